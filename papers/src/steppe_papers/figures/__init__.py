"""Closed forms from the papers on sharpness-aware training, and simulations that check them."""

from steppe.extend import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
