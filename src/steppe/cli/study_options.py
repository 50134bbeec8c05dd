"""Options of `steppe study` and `steppe report`: which study, and where its cells are computed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError, usage_errors
from .options import read_mapping

if TYPE_CHECKING:
    from ..studies.cell import Cell
    from ..studies.plan import Study
    from ..studies.table import Table


@dataclass(frozen=True)
class Which:
    """Which study."""

    study: str | None = field(default=None, metadata={"metavar": "STUDY", "nargs": "?"})
    """a study's YAML file, or its folder where nothing is computed; defaults to the built-in digits study"""
    out: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """the study's folder; defaults to the file's own, or studies/NAME"""

    @property
    def is_folder(self) -> bool:
        """Whether the study is named by its folder."""
        return self.study is not None and Path(self.study).is_dir()


@dataclass(frozen=True)
class Engine:
    """Where cells are computed, and how progress is shown."""

    engine: str | None = field(default=None, metadata={"metavar": "ENGINE"})
    """local (processes of this machine), serial, or ray"""
    address: str | None = field(default=None, metadata={"metavar": "ADDRESS"})
    """of a Ray cluster"""
    workers: int | None = None
    """cells at a time; defaults to the number of cores, or of GPUs"""
    retries: int | None = None
    """how often to retry a cell whose worker was lost before it counts as failed"""
    again: bool = False
    """recompute cells that failed"""
    trust: bool = False
    """import any code that folders of the pool name as their model, not only the `model` in base"""
    progress: bool | None = None
    """a bar on a terminal, one line per cell elsewhere; defaults to the bar, and to nothing elsewhere"""


def study_of(which: Which, engine: Engine | None = None) -> Study:
    """The study of a file. Flags override the file."""
    from ..studies.plan import Study, digits

    with usage_errors():
        if which.study is None:
            study = digits()
        else:
            file = Path(which.study)
            if file.is_dir():
                raise UsageError(f"{file} is a folder, and this command computes: give the study's YAML file")
            try:
                study = Study.of(read_mapping(which.study), file.stem)
            except ValueError as error:
                raise UsageError(str(error) if str(file) in str(error) else f"{file}: {error}") from error
        if which.out is not None:
            study = replace(study, out=which.out)
        flags = {"name": "engine", "address": "address", "workers": "workers", "retries": "retries"}
        changes = {key: value for key, flag in flags.items() if (value := getattr(engine, flag, None)) is not None}
        return replace(study, engine=replace(study.engine, **changes))


def study_and_results(which: Which) -> tuple[Study, list[Cell], Table]:
    """A study by its file or its folder, its cells, and the results in its store."""
    if which.study is not None and which.is_folder:
        from ..studies.run import study_in

        if which.out is not None and Path(which.out) != Path(which.study):
            raise UsageError(f"{which.study} is a study's folder, and --out is another one, {which.out}: give one")
        return study_in(Path(which.study))
    from ..studies.run import look

    study = study_of(which)
    return study, *look(study)


def store_of(which: Which) -> Path:
    """The file with the results of a study."""
    from ..studies.plan import STORE

    store = Path(which.study) / STORE if which.study and which.is_folder else study_of(which).store
    if not store.exists():
        raise FileNotFoundError(f"there is no study in {store.parent}: it has no {STORE}. `steppe study run` makes one")
    return store
