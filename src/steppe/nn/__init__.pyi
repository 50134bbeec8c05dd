from .named import MODELS as MODELS
from .named import Architecture as Architecture
from .named import build as build
