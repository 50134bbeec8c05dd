"""Which study a command is about: the one of a file, of a folder, or the one that comes with steppe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .files import mapping_of, text_of
from .options import called, one
from .trouble import Misuse, asking

if TYPE_CHECKING:
    from ..studies.cell import Cell
    from ..studies.plan import Study
    from ..studies.table import Table


@dataclass(frozen=True)
class Which:
    """Which study."""

    study: str | None = field(default=None, metadata=one("STUDY"))
    """a study's YAML file, or to look at it its folder; without one, the digits study that comes with steppe"""
    out: str | None = field(default=None, metadata=called("FOLDER"))
    """the study's folder; by default what its file says, or studies/ and its name"""


@dataclass(frozen=True)
class How:
    """Where cells are computed, and how that is followed."""

    engine: str | None = field(default=None, metadata=called("ENGINE"))
    """local (processes of this machine), serial, or ray"""
    address: str | None = field(default=None, metadata=called("ADDRESS"))
    """of a Ray cluster"""
    workers: int | None = None
    """cells at a time; by default as many as there are cores, or GPUs"""
    retries: int | None = None
    """how often a cell is tried again whose worker was lost, before it is recorded as failed"""
    again: bool = False
    """compute once more what failed before"""
    trust: bool = False
    """import whatever code folders of the pool name as their model, not only the `model` in base"""
    progress: bool | None = None
    """a bar on a terminal, elsewhere a line a cell; by default the bar, and nothing elsewhere"""


def is_folder(which: Which) -> bool:
    """Whether a study is named by its folder."""
    return which.study is not None and Path(which.study).is_dir()


def known_of(which: Which) -> tuple[Study, list[Cell], Table]:
    """A study by its file or by its folder, its cells, and what its store has of them."""
    if which.study is not None and is_folder(which):
        from ..studies.run import study_in

        if which.out is not None and Path(which.out) != Path(which.study):
            raise Misuse(
                f"{which.study} is a study's folder, and --out names another one, {which.out}: give one of them"
            )
        return study_in(Path(which.study))
    from ..studies.run import look

    study = study_of(which)
    return study, *look(study)


def study_of(which: Which, how: How | None = None) -> Study:
    """The study of a file, with what flags say in the place of what the file says."""
    from ..studies.plan import Study, digits

    with asking():
        if which.study is None:
            study = digits()
        else:
            file = Path(which.study)
            if file.is_dir():
                raise Misuse(f"{file} is a folder, and what is computed stands in a study's YAML file: give that")
            try:
                study = Study.of(mapping_of(which.study, text_of(which.study)), file.stem)
            except ValueError as error:
                raise Misuse(str(error) if str(file) in str(error) else f"{file}: {error}") from error
        if which.out is not None:
            study = replace(study, out=which.out)
        names = {"name": "engine", "address": "address", "workers": "workers", "retries": "retries"}
        given = {key: value for key, flag in names.items() if (value := getattr(how, flag, None)) is not None}
        return replace(study, engine=replace(study.engine, **given))


def store_of(which: Which) -> Path:
    """The file that keeps what a study has found."""
    from ..studies.plan import STORE

    store = Path(which.study) / STORE if which.study and is_folder(which) else study_of(which).store
    if not store.exists():
        raise FileNotFoundError(f"there is no study in {store.parent}: it has no {STORE}. `steppe study run` makes one")
    return store
