"""The commands that steppe-papers adds to `steppe`; importing this module registers them, without torch."""

from . import reproduce, theory

__all__ = ["reproduce", "theory"]
