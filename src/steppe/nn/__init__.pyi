from .registry import MODELS as MODELS
from .registry import Architecture as Architecture
from .registry import build as build
