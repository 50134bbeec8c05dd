"""The terminal: text with control characters escaped, as a terminal would act on those in names; tables; bars."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.progress import Progress
    from rich.text import Text

Tick = Callable[[int, int], object]  # (points or bytes done, in total)
Column = Literal["now", "elapsed", "left", "remaining", "bytes", "speed"]


def line(text: object) -> str:
    """Return a string on one line, with unprintable characters escaped: control codes, line breaks, direction marks."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: object, *, error: bool = False, end: str = "\n") -> None:
    """Print lines on stdout, or on stderr."""
    lines = "\n".join(map(line, str(text).expandtabs().split("\n")))
    print(lines, file=sys.stderr if error else sys.stdout, end=end, flush=error)


def complain(text: object) -> None:
    """Print an error on stderr; indent all lines but the first, so that names cannot fake a message."""
    lines = [line(one) for one in str(text).expandtabs().replace("\n", "\n  ").split("\n")]
    if sys.stderr.isatty():
        lines = [part for one in lines for part in _parts(one, columns_of(ANY_WIDTH), more="  ")]
    say("\n".join(lines), error=True)


def cell(text: object) -> Text:
    """Return plain text for a console of rich, not markup: names may contain brackets."""
    from rich.text import Text

    return Text(line(text))


def console(**options: Any) -> Console:
    """Return a rich console for tables and bars; pass their strings through `cell` first."""
    from rich.console import Console

    return Console(**options)


def columns_of(fallback: int) -> int:
    """Return the width of the terminal, or what COLUMNS says; the fallback where output goes to no terminal."""
    return shutil.get_terminal_size((fallback, 0)).columns


def wrapped(text: str, columns: int) -> str:
    """Return lines broken between words where they are longer than a terminal; parts keep the indentation."""
    return "\n".join(part for one in text.split("\n") for part in _parts(one, columns))


def _parts(text: str, columns: int, more: str = "") -> list[str]:
    indent = " " * (len(text) - len(text.lstrip(" -")))  # of a list's item: below its text
    fill = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return [text] if len(text) <= columns else fill(text, columns, subsequent_indent=indent + more)


ANY_WIDTH = 10**6  # of sentences without a terminal: scripts read whole lines
GAP = 2  # between columns
FOLDED = 24  # columns that a cell of several words has at least, before others are left out


@dataclass(frozen=True)
class Table:
    """A table that fits the terminal: sentences wrap, then columns are left out, then every row becomes a block.

    No word, number or name is cut; a name that is longer than the terminal goes on in the next line.

    Parameters
    ----------
    heads
        The names of the columns. The first column identifies a row.
    rows
        The cells; a row of one cell is a heading.
    right
        Columns that are aligned right.
    fold
        Columns of sentences, which wrap between words.
    drop
        Columns that are left out if the terminal is too narrow, the first one first.

    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    fold: Sequence[str] = ()
    drop: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        heads, left_out = list(self.heads), list[str]()
        widths = self._widths(heads, options.max_width)
        for head in self.drop:
            if widths is None:
                heads.remove(head)
                left_out.append(head)
                widths = self._widths(heads, options.max_width)
        if widths is None:
            yield from map(_whole, self._blocks(options.max_width))
            return
        yield from self._lines(heads, widths)
        if left_out:
            text = f"A wider terminal also shows: {', '.join(left_out)}."
            yield from map(_whole, _parts(text, options.max_width))

    def _widths(self, heads: Sequence[str], columns: int) -> list[int] | None:
        """The widths of columns, or None if they do not fit."""
        from rich.cells import cell_len

        natural, least = [], []
        for head in heads:
            place = self.heads.index(head)
            # headings may run over the next columns
            texts = [head, *(row[place] for row in self.rows if place < len(row) and len(row) > 1)]
            natural.append(max(map(cell_len, texts)))
            words = (cell_len(word) for text in texts for word in text.split())
            least.append(min(natural[-1], max(FOLDED, *words)) if head in self.fold else natural[-1])
        spare = columns - GAP * (len(heads) - 1) - sum(least)
        if spare < 0:
            return None
        wanted = [wide - few for wide, few in zip(natural, least, strict=True)]
        return [few + min(more, spare * more // max(1, sum(wanted))) for few, more in zip(least, wanted, strict=True)]

    def _lines(self, heads: Sequence[str], widths: Sequence[int]) -> Iterator[Text]:
        """The table: a head, a rule, and the rows, whose sentences wrap."""
        from rich.cells import cell_len

        def laid_out(cells: Sequence[str]) -> Iterator[Text]:
            folded = [
                _parts(text, wide) if head in self.fold else [text]
                for head, text, wide in zip(heads, cells, widths, strict=True)
            ]
            for parts in zip_longest(*folded, fillvalue=""):
                padded = []
                for head, text, wide in zip(heads, parts, widths, strict=True):
                    space = " " * (wide - cell_len(text))
                    padded.append(space + text if head in self.right else text + space)
                yield _whole((GAP * " ").join(padded).rstrip())

        yield from laid_out(heads)
        yield _whole("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (sum(widths) + GAP * (len(widths) - 1)))
        for row in self.rows:
            if len(row) > 1:
                yield from laid_out([row[i] if i < len(row) else "" for i in map(self.heads.index, heads)])
            else:
                yield from map(_whole, row)

    def _blocks(self, columns: int) -> Iterator[str]:
        """Every row as a block: its first cell, then the others below it, with the names of their columns."""
        for first, *others in self.rows:
            yield from _parts(first, columns) if first else ()
            indent = " " * (len(first) - len(first.lstrip()) + GAP)
            for head, text in zip(self.heads[1:], others, strict=False):
                if text:
                    yield from _parts(f"{indent}{head}: {text}", columns, more=GAP * " ")


def table(
    heads: Sequence[str],
    rows: Iterable[Iterable[object]],
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Table:
    """A table, as `Table` describes; cells may be anything that has a text."""
    texts = tuple(tuple(map(line, row)) for row in rows)
    return Table(tuple(map(line, heads)), texts, tuple(map(line, right)), tuple(map(line, fold)), drop)


def _whole(text: str) -> Text:
    """A line that rich prints as it is, however long its words are."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def is_shown(progress: bool | None) -> bool:
    """Return whether to show progress: None shows it if standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def style(progress: bool | None) -> Literal["bars", "lines", "nothing"]:
    """Return how to show progress: bars on a terminal unless it is False; elsewhere lines, if it is True."""
    if not is_shown(progress):
        return "nothing"
    return "bars" if sys.stderr.isatty() else "lines"


def bar(*columns: Column) -> Progress:
    """Return a progress display on standard error, which disappears at the end.

    Parameters
    ----------
    columns
        What follows the description and the bar: the task's field `now`, the elapsed or the remaining time, the word
        "left", bytes, or bytes per second. Defaults to `now` and the elapsed time.

    """
    from rich import progress as rich

    every = {
        "now": rich.TextColumn("{task.fields[now]}", markup=False),
        "elapsed": rich.TimeElapsedColumn(),
        "left": rich.TextColumn("left"),
        "remaining": rich.TimeRemainingColumn(),
        "bytes": rich.DownloadColumn(),
        "speed": rich.TransferSpeedColumn(),
    }
    description = rich.TextColumn("{task.description}", markup=False)
    chosen = [every[name] for name in columns or ("now", "elapsed")]
    return rich.Progress(description, rich.BarColumn(), *chosen, console=console(stderr=True), transient=True)


@contextmanager
def ticking(what: str, tick: Tick | None, progress: bool | None = None) -> Iterator[Tick]:
    """Yield the caller's progress callback; without one, a callback that draws a bar on the terminal."""
    if tick is not None or not is_shown(progress):
        yield tick or (lambda done, total: None)
        return
    with bar() as shown:
        task = shown.add_task(line(what), total=None, now="")
        yield lambda done, total: shown.update(task, completed=done, total=total, now=f"{done} of {total}")
