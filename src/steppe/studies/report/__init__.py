"""The report of a study: one self-contained HTML file, or a local server that follows a running study."""

from ..._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
