"""Closed forms behind sharpness-aware training, each with its statement, and simulations that check them."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
