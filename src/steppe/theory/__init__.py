"""Closed forms from the papers on sharpness-aware training, and simulations that check them."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
