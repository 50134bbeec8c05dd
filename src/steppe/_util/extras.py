"""Packages beyond steppe's core, which extras install: `pip install 'steppe[train]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


class Extra(NamedTuple):
    """A distribution that an extra installs."""

    module: str
    extra: str
    purpose: str


EXTRAS: Mapping[str, Extra] = {
    "docstring-parser": Extra("docstring_parser", "train", "the commands"),
    "jsonargparse": Extra("jsonargparse", "train", "the commands"),
    "filelock": Extra("filelock", "train", "runs, downloads and studies"),
    "pillow": Extra("PIL", "train", "folders of images"),
    "pyyaml": Extra("yaml", "train", "run.yaml and study files"),
    "safetensors": Extra("safetensors", "train", "checkpoints"),
    "jinja2": Extra("jinja2", "study", "reports and other pages"),
    "pebble": Extra("pebble", "study", "studies in several processes"),
    "plotly": Extra("plotly", "study", "figures and pages"),
    "pyarrow": Extra("pyarrow", "parquet", "records of a study as .parquet"),
    "pandas": Extra("pandas", "pandas", "data frames"),
    "ray": Extra("ray", "ray", "`steppe study run --engine ray`"),
    "accelerate": Extra("accelerate", "accelerate", "sharpness-aware steps in Accelerate"),
    "lightning": Extra("lightning", "lightning", "sharpness-aware steps in Lightning"),
    "transformers": Extra("transformers", "transformers", "sharpness-aware steps in Transformers"),
    "tensorboard": Extra("tensorboard", "tensorboard", "`steppe train --loggers tensorboard`"),
}
"""By distribution; pyproject.toml states the versions."""


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'steppe[{extra}]'"


@contextmanager
def explained() -> Iterator[None]:
    """Name the extra in the error of an import that needs one."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        for one in EXTRAS.values():
            if one.module == name:
                message = f"{one.purpose} need {name}, which is not installed: {install_line(one.extra)}"
                raise ModuleNotFoundError(message, name=error.name) from error
        raise
