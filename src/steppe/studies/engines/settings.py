"""Where and how the cells of a study are computed, as its file says it; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ..._util.names import unknown

EngineName = Literal["local", "serial", "ray"]
REMOVED = ("stacked",)  # studies that name it still open; it computes nothing any more


@dataclass(frozen=True)
class EngineSettings:
    """Where and how cells are computed. Nothing here changes a number.

    Parameters
    ----------
    name : {"local", "serial", "ray"}
        Local processes, one process for debugging, or a Ray cluster.
    workers : int, optional
        Cells at a time; defaults to the number of cores, or of GPUs.
    per_gpu : int, optional
        Cells at a time per GPU. Defaults to 1, and with the engine local to at most 8 where the driver has the CUDA
        multi-process service, as GPU memory and cores allow.
    retries : int
        Retries of a cell whose worker was lost, before it is recorded as failed.
    address : str, optional
        Address of a Ray cluster; by default Ray starts one on this machine.

    """

    name: EngineName = "local"
    workers: int | None = None
    per_gpu: int | None = None
    retries: int = 2
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in (*get_args(EngineName), *REMOVED):
            raise ValueError(unknown("engine", str(self.name), get_args(EngineName)))
        for name, least in (("workers", 1), ("per_gpu", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} of an engine is a whole number, {least} or more, not {value!r}")

    @classmethod
    def of(cls, value: Any) -> EngineSettings:
        """Parse a name, or `{name: local, workers: 4}`."""
        if isinstance(value, str):
            return cls(name=value)  # type: ignore[arg-type]  # checked there
        if not isinstance(value, Mapping):
            raise ValueError(f"engine takes a name or a mapping, as in {{name: local, workers: 4}}, not {value!r}")
        for key in value:
            if key not in (names := [f.name for f in fields(cls)]):
                raise ValueError(unknown("key of engine", str(key), names))
        return cls(**value)
