from . import layers as layers
from .registry import MODELS as MODELS
from .registry import Architecture as Architecture
from .registry import build as build
from .registry import register as register
