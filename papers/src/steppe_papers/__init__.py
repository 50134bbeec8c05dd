"""Papers on sharpness, reproduced with the public names of steppe: recipes, figures and tables.

From a checkout without installing it: `STEPPE_PLUGINS=steppe_papers`.
"""

from . import commands

__version__ = "0.1.0"
__all__ = ["commands"]
