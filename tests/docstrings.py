"""What docstrings describe, for tests of the public names of both packages."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from typing import Any


def sections(x: Any) -> dict[str, str]:
    """The text of a docstring by the underlined heading above it."""
    parts = re.split(r"^(\w+)\n-{3,}\n", inspect.getdoc(x) or "", flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def parameters(x: Any) -> set[str]:
    if inspect.isclass(x) and getattr(x, "_is_protocol", False):
        return set()  # made by its subclasses
    kinds = inspect.signature(x).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {stars.get(p.kind, "") + p.name for p in kinds if not p.name.startswith("_") and p.name != "self"}


def fields_with_text(x: Any) -> set[str]:
    """The fields of a dataclass that have a string below them, which is also the help text of a command's option."""
    if not inspect.isclass(x):
        return set()
    (cls,) = ast.parse(textwrap.dedent(inspect.getsource(x))).body
    assert isinstance(cls, ast.ClassDef)
    return {
        field.target.id
        for field, below in pairwise(cls.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def documented(x: Any) -> set[str]:
    found = sections(x)
    lists = found.get("Parameters", "") + found.get("Attributes", "")
    heads = [line for line in lists.splitlines() if line and not line.startswith(" ")]
    return {name for head in heads for name in head.partition(" :")[0].split(", ")} | fields_with_text(x)
