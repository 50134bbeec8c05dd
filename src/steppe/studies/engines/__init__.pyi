from .engine import Engine as Engine
from .local import Local as Local
from .named import engine_of as engine_of
from .ray import Ray as Ray
from .serial import Serial as Serial
