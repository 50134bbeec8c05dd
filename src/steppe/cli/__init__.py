"""What people type: `steppe train`, `steppe measure` and the others."""

from .entry import main as main
