"""Nineteen corruptions of images at five severities, in the style of CIFAR-10-C, for out-of-distribution tests."""

from ..._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
