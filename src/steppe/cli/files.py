"""Options from a YAML file: every key is an option, once, and nothing else is in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._util.names import unknown
from .._util.untrusted import from_yaml, loader, refuse_yaml_within
from .options import Option
from .trouble import Misuse

LARGEST = 1 << 20  # bytes: a file of options is small, and a larger one is something else
NOT_IN_FILES = ("config", "json", "debug", "dry_run", "trust")  # how to run a command, not what


def read_options(file: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """The options in a YAML file; a run's own run.yaml, which has them under `config`, is one too."""
    found = mapping_of(file, text_of(file))
    inner = found.get("config")
    if isinstance(inner, dict):
        found = inner
    keys = {str(key).replace("-", "_"): key for key in found}
    known = [o.name for o in options.values() if o.number is None and o.name not in NOT_IN_FILES]
    for key, spelled in keys.items():
        if key not in known:
            raise Misuse(f"{file}: " + unknown("option", str(spelled), known))
    return {key: found[spelled] for key, spelled in keys.items()}


def text_of(file: str) -> str:
    path = Path(file)
    if path.is_dir():
        inside = path / "run.yaml"
        hint = f" Did you mean {str(inside)!r}?" if inside.exists() else ""
        raise Misuse(f"--config takes a YAML file, and {file!r} is a folder.{hint}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {file!r} to read options from (looked in {Path.cwd()})")
    if path.stat().st_size > LARGEST:
        raise Misuse(f"{file} has {path.stat().st_size} bytes: that is no file of options, which is a page of YAML")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Misuse(f"{file} is not a text in UTF-8: options are written in YAML") from error


def mapping_of(file: str, text: str) -> dict[Any, Any]:
    import yaml
    from jsonargparse import get_loader

    try:
        found = from_yaml(text, file, get_loader("yaml"))  # reads 1e-3 as a number, which YAML 1.1 does not
        refuse_yaml_within(found, file)
    except ValueError as error:
        raise Misuse(str(error)) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Misuse(f"{file}: a file of options has lines such as `lr: 0.1`, and this is a {type(found).__name__}")
    keys = [key.value for key, _ in yaml.compose(text, Loader=loader()).value]
    for key in keys:
        if keys.count(key) > 1:
            raise Misuse(f"{file}: {key!r} is there {keys.count(key)} times: leave one")
    return found
