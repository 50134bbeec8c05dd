"""`steppe models`: the reference models, with their sizes and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._util.names import unknown
from .errors import UsageError
from .options import Command
from .output import Output, add_row, table

if TYPE_CHECKING:
    from ..nn.registry import Architecture

IMAGES, CLASSES = (3, 32, 32), 10  # CIFAR-10, for the numbers of parameters


@dataclass(frozen=True)
class Which:
    """Options of `steppe models`."""

    model: str | None = field(default=None, metadata={"metavar": "MODEL", "nargs": "?"})
    """one model, in detail"""


def run(which: Which) -> Output:
    """Return all reference models in a table, or one."""
    from ..nn.registry import MODELS

    if which.model is not None and which.model not in MODELS:
        raise UsageError(unknown("model", which.model, MODELS))
    names = list(MODELS) if which.model is None else [which.model]
    rows = [described(name, MODELS[name]) for name in names]
    shown = table("model", "parameters", "what it is", "options", right=("parameters",), fold=("what it is", "options"))
    for row in rows:
        options = " ".join(f"{k}={v}" for k, v in row["options"].items())
        add_row(shown, row["name"], f"{row['parameters']:,}", row["is"], options)
    foot = (
        "Parameters are for 3 x 32 x 32 images and 10 classes. `--model-options.width 16` sets an option; a model of "
        "your own is --model package.module:factory."
    )
    return Output(rows if which.model is None else rows[0], [shown, foot])


def described(name: str, architecture: Architecture) -> dict[str, Any]:
    """Return a model with its options and number of parameters; built on the meta device, without memory."""
    import torch

    from ..nn.registry import build

    with torch.device("meta"):
        model = build(name, IMAGES, CLASSES)
    count = sum(p.numel() for p in model.parameters())
    return {"name": name, "is": architecture.about, "parameters": count, "options": dict(architecture.options)}


COMMANDS = {
    "models": Command(
        "models",
        "List the reference models with their sizes and options.",
        (Which,),
        run,
        ["steppe models", "steppe models resnet18 --json"],
    )
}
