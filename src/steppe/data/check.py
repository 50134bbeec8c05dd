"""Identify data in a folder or a file, and report what is wrong with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.terminal import line
from .catalogue import CATALOGUE, CORRUPTED, CORRUPTIONS_OF, File, Published

if TYPE_CHECKING:
    from .dataset import Dataset, Splits


@dataclass(frozen=True)
class Part:
    """A part of a data set: training, test or validation rows, or a file."""

    name: str
    rows: int
    shape: tuple[int, ...]
    classes: int  # 0 where targets are numbers

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "one number"
        return f"{self.name} {self.rows:,} rows of {shape}" + (f" in {self.classes} classes" if self.classes else "")


@dataclass(frozen=True)
class Found:
    """One data set, its place, and its problem, if it has one."""

    what: str
    where: str
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.what} at {self.where}", *map(str, self.parts), *(f"note: {note}" for note in self.notes)]
        return "\n  ".join(map(line, [*lines, *([f"PROBLEM: {self.problem}"] if self.problem else [])]))


@dataclass(frozen=True)
class Report:
    """Everything found at a path."""

    path: str
    found: tuple[Found, ...]

    @property
    def ok(self) -> bool:
        """Whether everything found is usable."""
        return not any(one.problem for one in self.found)

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "ok": self.ok, "found": [asdict(one) for one in self.found]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.found))


def check(path: Path | str) -> Report:
    """Identify the data at a path; problems are reported, not raised.

    Parameters
    ----------
    path
        A folder or a file.

    """
    path = Path(path).expanduser()
    if not path.exists():
        results = [Found("nothing", str(path), problem="there is no such file or folder")]
    elif path.is_dir():
        results = [*_published(path), *_corrupted(path)] or [_folder(path)]
    else:
        results = [_file(path)]
    return Report(str(path), tuple(results))


def _published(root: Path) -> Iterator[Found]:
    seen = set()
    for name, one in CATALOGUE.items():
        try:
            folder = one.find(root)
        except FileNotFoundError:
            result = _partly(one, root)
        else:
            result = _read_published(name, root, folder)
        if result is not None and (result.where, one.layouts[0].needs) not in seen:
            seen.add((result.where, one.layouts[0].needs))  # MNIST and Fashion-MNIST have the same file names
            yield result


def _read_published(name: str, root: Path, folder: Path) -> Found:
    from . import mnist, registry

    try:
        if name in mnist.CLASSES:
            name = mnist.identity(folder) or ("fashion-mnist" if "fashion" in str(folder).lower() else name)
            root = folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # becomes a note below
            parts = _parts(registry.DATASETS[name](root))
    except (ValueError, OSError) as error:
        return Found(name, str(folder), problem=str(error))
    expected = CATALOGUE[name].rows
    differs = tuple(part.rows for part in parts) != expected
    note = f"the published set has {expected[0]:,} rows to train on and {expected[1]:,} to test on"
    return Found(name, str(folder), parts, (note,) if differs else ())


def _partly(one: Published, root: Path) -> Found | None:
    """Report a layout of which at least half exists, so that the user learns what is missing."""
    for layout in one.layouts:
        for place in layout.places:
            missing = layout.missing(root / place)
            only_files = not any(name.endswith("/") for name in layout.needs)
            if only_files and len(missing) <= len(layout.needs) // 2:
                return Found(one.name, str(root / place), problem=f"it lacks {', '.join(missing)}")
    return None


def _corrupted(root: Path) -> Iterator[Found]:
    from . import cifar_c, folders

    for data, folder_name in CORRUPTIONS_OF.items():
        folder = root if root.name == folder_name else root / folder_name
        if not folder.is_dir():
            continue
        if data in cifar_c.SETS:
            names = cifar_c.corruptions(folder)
            read = partial(_cifar_c_part, folder, data)
        else:
            names = folders.tiny_corruptions(folder)
            read = partial(_tiny_part, folder)
        try:
            parts = tuple(read(name) for name in names)
        except (ValueError, OSError) as error:
            yield Found(f"{data}-c", str(folder), problem=str(error))
            continue
        problem = None if names else "it has no images"
        yield Found(f"{data}-c", str(folder), parts, ("rows of one severity of five",), problem)


def _cifar_c_part(folder: Path, data: str, name: str) -> Part:
    from . import cifar_c

    return _part(name, cifar_c.read(folder, data, name, severity=1))


def _tiny_part(folder: Path, name: str) -> Part:
    """Describe a folder of TinyImageNet-C by its list of files; its images are not decoded."""
    from . import folders

    files, _, classes = folders.listed(folder / name / "1")
    return Part(name, len(files), tuple(folders.pixels(files[:1]).shape[1:]), len(classes))


def _folder(path: Path) -> Found:
    from . import folders

    try:
        return Found("class folders", str(path), _parts(folders.read(path)))
    except (ValueError, OSError) as error:
        inside = ", ".join(sorted(p.name for p in path.iterdir())[:6]) or "nothing"
        titles = ", ".join(one.title for one in CATALOGUE.values())
        why = f"{error}. It holds {inside}; steppe reads {titles}, and class folders of images"
        return Found("unknown", str(path), problem=why)


def _file(path: Path) -> Found:
    archives = {file.name: file for one in CATALOGUE.values() for file in one.files if file.holds}
    archives |= {file.name: file for file in CORRUPTED.values()}
    readers: dict[str, Callable[[Path], Found]] = {".npz": _npz, ".mat": _mat}
    try:
        if path.name in archives:
            return _archive(path, archives[path.name])
        return readers.get(path.suffix, _idx)(path)
    except (ValueError, OSError) as error:
        return Found("unknown", str(path), problem=str(error))


def _archive(path: Path, file: File) -> Found:
    if wrong := file.differs(path):
        return Found(f"archive {file.name}", str(path), problem=f"{wrong}; download it again")
    return Found(f"archive {file.name}", str(path), notes=("as published; `steppe data get` unpacks it",))


def _npz(path: Path) -> Found:
    from . import npz

    return Found("arrays", str(path), _parts(npz.read(path)))


def _mat(path: Path) -> Found:
    from . import svhn

    return Found("svhn", str(path), (_part(path.stem, svhn.part(path)),))


def _idx(path: Path) -> Found:
    from . import mnist

    array = mnist.array(path)
    return Found("IDX file", str(path), (Part(path.stem, array.shape[0], array.shape[1:], 0),))


def _parts(splits: Splits) -> tuple[Part, ...]:
    named = {"train": splits.train, "test": splits.test, "validation": splits.validation}
    return tuple(_part(name, part) for name, part in named.items() if part is not None)


def _part(name: str, rows: Dataset) -> Part:
    return Part(name, len(rows), tuple(rows.inputs.shape[1:]), len(rows.classes))
