"""Data sets: made, read, fetched, cut, corrupted and fed; importing this package does not import torch."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
