"""A study as one page that people look at: a file that is whole, or a server on this machine that follows a study."""

from ..._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
