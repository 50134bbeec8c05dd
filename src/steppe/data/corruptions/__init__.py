"""Nineteen corruptions of images at five severities, in the style of CIFAR-10-C, for out-of-distribution tests."""

from ..._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
