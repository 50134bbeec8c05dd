"""Engines by name."""

from __future__ import annotations

from ..plan import EngineSettings
from .engine import Engine


def engine_of(settings: EngineSettings, device: str | None = None) -> Engine:
    """The engine that settings ask for; `device` is where runs were told to be."""
    match settings.name:
        case "local":
            from .local import Local

            return Local.of(settings.workers, settings.per_gpu, settings.retries, device)
        case "serial":
            from .serial import Serial

            return Serial(settings.retries)
        case "ray":
            from .ray import Ray

            return Ray(settings.address, settings.retries, settings.workers, settings.per_gpu, device)
        case removed:
            raise ValueError(
                f"the engine {removed!r} was removed: take 'local' or 'serial' (`engine:` in the file, or --engine). "
                "They train every run by itself, which gives the same numbers up to rounding"
            )
