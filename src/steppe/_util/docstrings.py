"""What numpy-style docstrings say of parameters, for listings, help pages and the wrappers of methods."""

from __future__ import annotations

import inspect
import re


def parameter_docs(documented: object) -> dict[str, str]:
    """Return the parameters in the docstring of a function or class, with their descriptions on one line."""
    section = (inspect.getdoc(documented) or "").partition("\nParameters\n----------\n")[2]
    entries = re.findall(r"^(\w+(?:, \w+)*)\n((?:    .+\n?)+)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def definition(*documented: object) -> str:
    """Return docstrings without their sections, each text once, on one line."""
    texts = dict.fromkeys((inspect.getdoc(one) or "").partition("\n\nParameters\n")[0] for one in documented)
    return " ".join(" ".join(texts).split())
