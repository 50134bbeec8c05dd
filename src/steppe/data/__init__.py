"""Data sets: made, read, fetched, cut, corrupted and fed; importing this package does not import torch."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
