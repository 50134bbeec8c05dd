"""Engines that compute the cells of a study: one protocol, and the same records from all of them."""

from ..._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
