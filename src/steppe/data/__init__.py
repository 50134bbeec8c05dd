"""Data sets: synthesise, read, download, subset, corrupt and batch them. Importing this does not import torch."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
