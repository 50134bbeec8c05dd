"""Reads the YAML files in which options are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._util.formats import from_yaml, loader, refuse_yaml_within
from .errors import UsageError

MAX_BYTES = 1 << 20  # of an options file


def read_mapping(file: str) -> dict[Any, Any]:
    """Return the mapping in a YAML file: small, without aliases, each key once."""
    import yaml
    from jsonargparse import get_loader

    path = Path(file)
    if path.is_dir():
        inside = path / "run.yaml"
        hint = f" Did you mean {str(inside)!r}?" if inside.exists() else ""
        raise UsageError(f"{file!r} is a folder, and a YAML file is needed.{hint}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {file!r} to read options from (the working folder is {Path.cwd()})")
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{file} has {path.stat().st_size} bytes, and an options file has at most {MAX_BYTES}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: options are written in YAML") from error
    try:
        mapping = from_yaml(text, file, get_loader("yaml"))  # reads 1e-3 as a number, which YAML 1.1 does not
        refuse_yaml_within(mapping, file)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise UsageError(f"{file}: an options file has lines such as `lr: 0.1`, and this is a {type(mapping).__name__}")
    keys = [key.value for key, _ in yaml.compose(text, Loader=loader()).value]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{file}: {key!r} appears {keys.count(key)} times: keep one")
    return mapping
