"""Options of `steppe study` and `steppe report`: which study, and where its cells are computed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import read_mapping
from .output import UsageError, usage_errors

if TYPE_CHECKING:
    from ..studies.cell import Cell
    from ..studies.plan import Study
    from ..studies.table import Table

BUILT_IN = "digits"  # the study that comes with steppe


@dataclass(frozen=True)
class Which:
    """Which study."""

    study: str | None = field(default=None, metadata={"metavar": "STUDY", "nargs": "?"})
    """a study's YAML file, its folder where nothing is computed, or digits, the built-in study (the default)"""
    out: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """the study's folder; defaults to the file's own, or studies/NAME"""
    budget: str | None = field(default=None, metadata={"metavar": "NAME"})
    """apply these changes of the file's `budgets`, in a folder of that name within the study's"""

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
    """address of a Ray cluster"""
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
    from ..studies.plan import STORE, Study, digits

    with usage_errors():
        if which.study is None or (which.study == BUILT_IN and not Path(BUILT_IN).exists()):
            study = digits()
        else:
            file = Path(which.study)
            if file.is_dir() or file.name == STORE:
                raise _folder_is_no_file(file if file.is_dir() else file.parent)
            try:
                study = replace(Study.of(_read(file), file.stem, which.budget), file=which.study)
            except ValueError as error:
                raise UsageError(str(error) if str(file) in str(error) else f"{file}: {error}") from error
        if which.out is not None:
            study = replace(study, out=which.out)
        return with_flags(study, engine)


def with_flags(study: Study, engine: Engine | None) -> Study:
    """The study with the engine that the flags describe."""
    flags = {"name": "engine", "address": "address", "workers": "workers", "retries": "retries"}
    changes = {key: value for key, flag in flags.items() if (value := getattr(engine, flag, None)) is not None}
    return replace(study, engine=replace(study.engine, **changes))


def _read(file: Path) -> dict[Any, Any]:
    """The content of a study's file. YAML reads an unquoted * as an alias, such as that of `pool: *.pt`."""
    try:
        return read_mapping(str(file))
    except UsageError as error:
        star = re.search(r"^\s*([\w-]+:|-)\s+(\*[^\s#]*)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if star is None:
            raise
        raise UsageError(
            f"{file}: in YAML a value that starts with * is an alias. Quote it: {star[1]} '{star[2]}'"
        ) from error


def _folder_is_no_file(folder: Path) -> UsageError:
    """The error for a folder in the place of a study's file, with the file if the folder's store records it."""
    from ..studies.plan import STORE
    from ..studies.run import file_of, folder_hint

    if not (folder / STORE).exists():
        hint = folder_hint(folder) or "`steppe study init` writes one"
        return UsageError(f"{folder} is a folder, and this command needs a study's YAML file. {hint}")
    name = str(file_of(folder) or (BUILT_IN if folder.name == BUILT_IN else ""))
    if not name:
        return UsageError(f"{folder} is a study's folder, and this command needs the study's YAML file")
    out = "" if folder == Path("studies") / Path(name).stem else f" --out {folder}"
    return UsageError(f"{folder} is a study's folder, and this command needs the study's file: give {name}{out}")


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
    from ..studies.run import store_in

    return store_in(Path(which.study) if which.study and which.is_folder else study_of(which).folder)
