"""Ensembles of runs: strategies, the exchange between members, and their accuracy and diversity."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
