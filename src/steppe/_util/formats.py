"""JSON, YAML and CSV: read with limits on size and depth, written without NaN and without formulas.

YAML and JSON from files are small, shallow and without aliases, or raise one error with the file's name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

LARGEST = 1 << 22  # bytes of a YAML file: run.yaml names all classes, of which there may be 100 000
DEEPEST = 64  # nested containers: the readers recurse. The state of optimizers has about 20 levels
LONGEST = 10_000  # characters of a YAML scalar: YAML 1.1 reads 1:1:1... as one number, in quadratic time


def yaml_in(path: Path, typed: bool = False) -> Any:
    """Read a YAML file, as `from_yaml` does."""
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{path} has {size:,} bytes, and at most {LARGEST:,} are read")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8") from error
    return from_yaml(text, path, typed)


def from_yaml(text: str, where: Path | str, typed: bool = False) -> Any:
    """Read a YAML text after a check of its size and depth; `typed` by hand, it is read as `typed_loader` describes.

    Aliases raise an error: nine lines of them expand to a billion values.
    """
    import yaml

    try:
        _check_shape(text)
        return yaml.load(text, Loader=typed_loader() if typed else loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        lines = text.splitlines()
        if mark and mark.line < len(lines) and (quoted := _with_quotes(lines[mark.line])):
            problem = f"a text with a colon and a space needs quotes: {quoted}"
        raise ValueError(f"{where} is not YAML{place}: {problem}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # `!!int ""`, for one, is an IndexError
        raise ValueError(f"{where} is not plain YAML: {error}") from error


def yaml_value(text: str) -> Any:
    """Read a value on the command line as in a YAML file, but 010 as ten; a text where it is none."""
    try:
        value = int(text) if re.fullmatch(r"[-+]?\d+", text) else from_yaml(text, "", typed=True)
    except ValueError:
        return text
    return text if value is None and text.lower() not in ("null", "~") else value


def _with_quotes(line: str) -> str:
    """The line `title: SAM: a study` with its text in quotes; empty for other lines."""
    key, _, value = line.partition(": ")
    plain = ": " in value and value.strip()[0] not in "\"'[{|>&*!"
    return f"{key.strip()}: {json.dumps(value.strip(), ensure_ascii=False)}" if plain else ""


def _check_shape(text: str) -> None:
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader()):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth and isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases (*name), which can expand without limit: write the values out")
        if depth > DEEPEST:
            raise ValueError(f"it nests deeper than {DEEPEST} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise ValueError(f"a value has {len(event.value):,} characters, and at most {LONGEST:,} are read")


def loader() -> Any:
    """Return PyYAML's safe loader, in C if available: ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def typed_loader() -> Any:
    """Return the loader of what people type: 1e-3 is a number, 2026-11-20 is a text, and a key is there once."""

    class Typed(loader()):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            for key, count in Counter(key.value for key, _ in node.value if isinstance(key.value, str)).items():
                if count > 1:
                    raise ValueError(f"{key!r} appears {count} times: keep one")
            return super().construct_mapping(node, deep)

    kept = {c: [r for r in found if "timestamp" not in r[0]] for c, found in Typed.yaml_implicit_resolvers.items()}
    Typed.yaml_implicit_resolvers = kept
    number = r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))([eE][-+]?\d+)?$"  # YAML 1.1 needs a point and a sign
    Typed.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(number), list("-+.0123456789"))
    return Typed


def from_json(text: str | bytes, where: Path | str) -> Any:
    """Read a JSON text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON that can be read: {error}") from error
    level = [value]
    for _ in range(DEEPEST + 1):
        inside = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list)))
        level = [x for values in inside for x in values]
        if not level:
            return value
    raise ValueError(f"{where}: its JSON nests deeper than {DEEPEST} levels")


def json_safe(x: Any, other: Callable[[Any], Any] = lambda x: x) -> Any:
    """A copy of a value that `json.dumps(..., allow_nan=False)` takes.

    Parameters
    ----------
    x
        Nested mappings, lists, tuples, sets, arrays, strings and numbers. Keys become strings, arrays become lists, and
        numbers that are not finite become None: JSON has no such numbers.
    other
        Converts values of any other type. By default they stay, and `json.dumps` raises.

    """
    if hasattr(x, "tolist"):  # an array, or one number of an array
        x = x.tolist()
    if isinstance(x, Mapping):
        return {str(k): json_safe(v, other) for k, v in x.items()}
    if isinstance(x, (set, frozenset)):
        x = sorted(x, key=str)  # for a reproducible order
    if isinstance(x, (list, tuple)):
        return [json_safe(v, other) for v in x]
    if isinstance(x, float):
        return x if isfinite(x) else None
    return x if x is None or isinstance(x, (int, str)) else other(x)


FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # first characters of a formula, in full width too


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The columns of some rows below a header; missing values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """Prefix a string that would start a formula with an apostrophe; numbers stay, also as strings."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
