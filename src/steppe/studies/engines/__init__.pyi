from .engine import Engine as Engine
from .engine import Serial as Serial
from .engine import engine_of as engine_of
from .local import Local as Local
from .ray import Ray as Ray
