"""The nineteen corruptions of Hendrycks & Dietterich (2019), remade; importing this package registers them.

The constants at five severities are from the authors' scripts: one set for CIFAR-10-C and CIFAR-100-C, and a harsher
one for TinyImageNet-C.
"""

from . import camera, weather

__all__ = ["camera", "weather"]
