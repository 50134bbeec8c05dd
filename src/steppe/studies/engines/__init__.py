"""Engines that compute the cells of a study: one protocol, and the same records from all of them."""

from ..._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
