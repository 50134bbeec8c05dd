"""Identify data in a folder or a file, and report what is wrong with it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.terminal import line
from .catalogue import DATASETS, Source, downloads

if TYPE_CHECKING:
    from .dataset import Dataset, Splits

AS_PUBLISHED = "as published; `steppe data get` unpacks it"


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
    for one in (one for one in DATASETS.values() if one.layouts):
        try:
            result: Found | None = _read_published(one.name, root, one.find(root))
        except FileNotFoundError:
            result = _partly(one, root)
        if result is not None and (result.where, one.layouts[0].needs) not in seen:
            seen.add((result.where, one.layouts[0].needs))  # MNIST and Fashion-MNIST have the same file names
            yield result


def _read_published(name: str, root: Path, folder: Path) -> Found:
    from . import small_images

    try:
        if name in small_images.MNIST_CLASSES:
            fashion = "fashion-mnist" if "fashion" in str(folder).lower() else name
            name, root = small_images.mnist_or_fashion(folder) or fashion, folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # becomes a note below
            parts = _parts(DATASETS[name](root))
    except (ValueError, OSError) as error:
        return Found(name, str(folder), problem=str(error))
    expected = DATASETS[name].rows
    notes: tuple[str, ...] = ()
    if expected is not None and tuple(part.rows for part in parts) != expected:
        notes = (f"the published set has {expected[0]:,} rows to train on and {expected[1]:,} to test on",)
    return Found(name, str(folder), parts, notes)


def _partly(one: Source, root: Path) -> Found | None:
    """Report a layout of files of which at least half exist, so that the user learns what is missing."""
    for folder, layout, missing in one.search(root):
        only_files = not any(name.endswith("/") for name in layout.needs)
        if only_files and len(missing) <= len(layout.needs) // 2:
            return Found(one.name, str(folder), problem=f"it lacks {', '.join(missing)}")
    return None


def _corrupted(root: Path) -> Iterator[Found]:
    from . import cifar_c, folders

    def part(name: str) -> Part:
        if data in cifar_c.SETS:
            return _part(name, cifar_c.read(folder, data, name, severity=1))
        files, _, classes = folders.listed(folder / name / "1")  # a list: not all images are decoded
        return Part(name, len(files), tuple(folders.pixels(files[:1]).shape[1:]), len(classes))

    for data, folder_name in ((name, one.corrupted.holds) for name, one in DATASETS.items() if one.corrupted):
        folder = root if root.name == folder_name else root / folder_name
        if folder.is_dir():
            names = (cifar_c.corruptions if data in cifar_c.SETS else folders.tiny_corruptions)(folder)
            try:
                parts = tuple(map(part, names))
            except (ValueError, OSError) as error:
                yield Found(f"{data}-c", str(folder), problem=str(error))
                continue
            problem = None if names else "it has no images"
            yield Found(f"{data}-c", str(folder), parts, ("rows of one severity of five",), problem)


def _folder(path: Path) -> Found:
    from . import folders

    try:
        return Found("class folders", str(path), _parts(folders.read(path)))
    except (ValueError, OSError) as error:
        inside = ", ".join(sorted(p.name for p in path.iterdir())[:6]) or "nothing"
        titles = ", ".join(one.title for one in DATASETS.values() if one.layouts)
        why = f"{error}. It holds {inside}; steppe reads {titles}, and class folders of images"
        return Found("unknown", str(path), problem=why)


def _file(path: Path) -> Found:
    from . import arrays, npz, small_images

    published = (file for files in downloads().values() for file in files)
    archive = next((file for file in published if file.holds and file.name == path.name), None)
    try:
        if archive is not None:
            wrong = archive.differs(path)
            problem, notes = (f"{wrong}; download it again", ()) if wrong else (None, (AS_PUBLISHED,))
            return Found(f"archive {archive.name}", str(path), notes=notes, problem=problem)
        if path.suffix == ".npz":
            return Found("arrays", str(path), _parts(npz.read(path)))
        if path.suffix == ".mat":
            return Found("svhn", str(path), (_part(path.stem, small_images.svhn_part(path)),))
        shape = arrays.read_idx(path).shape
        return Found("IDX file", str(path), (Part(path.stem, shape[0], shape[1:], 0),))
    except (ValueError, OSError) as error:
        return Found("unknown", str(path), problem=str(error))


def _parts(splits: Splits) -> tuple[Part, ...]:
    return tuple(_part(name, part) for name, part in splits.parts.items())


def _part(name: str, rows: Dataset) -> Part:
    return Part(name, len(rows), tuple(rows.inputs.shape[1:]), len(rows.classes))
