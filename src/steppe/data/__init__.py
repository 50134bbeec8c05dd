"""Data sets: synthesise, read, download, subset, corrupt and batch them. Importing this does not import torch."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
