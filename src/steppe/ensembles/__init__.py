"""Ensembles of runs: strategies, what members tell one another, and how good and how different they are."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
