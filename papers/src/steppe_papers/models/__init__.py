"""Models of the papers beside those of steppe; importing this module registers them."""

from . import convnets, diagonal, resnets

__all__ = ["convnets", "diagonal", "resnets"]
