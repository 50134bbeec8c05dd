"""steppe: train flat, measure flatness, learn whether it mattered."""

from ._util.lazy import lazy_exports, names_of

__version__ = "0.1.0"
__all__ = names_of(__file__)  # noqa: PLE0605  (without the packages: `nn` and `data` are names of others too)
__getattr__, __dir__ = lazy_exports(__name__, __file__)
