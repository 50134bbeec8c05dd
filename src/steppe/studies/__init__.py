"""Studies: train and measure a pool of runs, test whether sharpness predicts generalisation, and report it."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
