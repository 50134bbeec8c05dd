"""The command line: `steppe train`, `steppe measure` and the other commands."""

from .entry import main as main
