"""Ensembles of runs: strategies, what members tell one another, and how good and how different they are."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
