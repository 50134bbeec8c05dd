"""A study as one page that people look at: a file that is whole, or a server on this machine that follows a study."""

from ..._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
