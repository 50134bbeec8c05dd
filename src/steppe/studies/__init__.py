"""Studies: train and measure a pool of runs, test whether sharpness predicts generalisation, and report it."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
