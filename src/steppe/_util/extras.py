"""Packages beyond steppe's core, which extras install: `pip install 'steppe[train]'`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple


class Extra(NamedTuple):
    """A distribution that an extra installs."""

    module: str
    extra: str
    purpose: str


EXTRAS: Mapping[str, Extra] = {
    "filelock": Extra("filelock", "train", "runs, downloads and studies"),
    "pillow": Extra("PIL", "train", "folders of images"),
    "pyyaml": Extra("yaml", "train", "run.yaml and study files"),
    "safetensors": Extra("safetensors", "train", "checkpoints"),
    "jinja2": Extra("jinja2", "study", "reports and other pages"),
    "plotly": Extra("plotly", "study", "figures and pages"),
    "pyarrow": Extra("pyarrow", "parquet", "records of a study as .parquet"),
    "pandas": Extra("pandas", "pandas", "data frames"),
    "ray": Extra("ray", "ray", "`steppe study run --engine ray`"),
    "accelerate": Extra("accelerate", "accelerate", "sharpness-aware steps in Accelerate"),
    "lightning": Extra("lightning", "lightning", "sharpness-aware steps in Lightning"),
    "transformers": Extra("transformers", "transformers", "sharpness-aware steps in Transformers"),
    "tensorboard": Extra("tensorboard", "tensorboard", "records in TensorBoard"),
    "mlflow-skinny": Extra("mlflow", "mlflow", "records in MLflow"),
    "alembic": Extra("alembic", "mlflow", "records in a local MLflow database"),
    "sqlalchemy": Extra("sqlalchemy", "mlflow", "records in a local MLflow database"),
    "wandb": Extra("wandb", "wandb", "records in W&B"),
}
"""By distribution; pyproject.toml states the versions."""
INCLUDED: Mapping[str, tuple[str, ...]] = {"study": ("train",)}
"""Extras that another one installs too."""


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'steppe[{extra}]'"


def _missing(one: Extra, within: str = "") -> str:
    extra = within if one.extra in INCLUDED.get(within, ()) else one.extra
    return f"{one.purpose} need {one.module}, which is not installed: {install_line(extra)}"


def require(extra: str) -> None:
    """Raise ModuleNotFoundError if a package of an extra is missing, without importing any."""
    for one in EXTRAS.values():
        if one.extra in (extra, *INCLUDED.get(extra, ())) and not _is_here(one.module):
            raise ModuleNotFoundError(_missing(one, extra), name=one.module)


def installed(extra: str) -> bool:
    """Return whether all packages of an extra are there, without importing any."""
    return all(_is_here(one.module) for one in EXTRAS.values() if one.extra == extra)


def _is_here(module: str) -> bool:
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


@contextmanager
def explained(within: str = "") -> Iterator[None]:
    """Name the extra in the error of an import that needs one.

    Parameters
    ----------
    within
        The extra that the caller needs as a whole: it is named in the place of those that it includes.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        for one in EXTRAS.values():
            if one.module == name:
                raise ModuleNotFoundError(_missing(one, within), name=error.name) from error
        raise
