"""The report of a study: one self-contained HTML file, which also follows a running study."""

from ..._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
