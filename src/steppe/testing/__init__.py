"""Laws for parts that other packages register, as functions for their tests: each raises AssertionError."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
