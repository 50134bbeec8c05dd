"""A study as one page that people look at: a file that is whole, or a server on this machine that follows a study."""

from ...offered import offered

__getattr__, __dir__ = offered(__name__, __file__)
