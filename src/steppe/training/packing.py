"""Nested state as tensors beside a JSON text: what optimizers keep, without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._util.untrusted import from_json

Scalar = (bool, int, float, str, type(None))


def packed(tree: Any) -> tuple[dict[str, Tensor], str]:
    """Tensors by their path in the tree, and all the rest; Python writes floats so that they come back exactly."""
    tensors: dict[str, Tensor] = {}

    def pack(x: Any, path: str) -> Any:
        if isinstance(x, Tensor):
            tensors[path] = owned(x)
            # channels-last memory comes back as such: sums over it go in another order
            return {"tensor": path} if x.is_contiguous() else {"tensor": path, "strides": list(x.stride())}
        if isinstance(x, dict):
            return {"dict": [[_key(k, path), pack(v, f"{path}/{k}")] for k, v in x.items()]}
        if isinstance(x, (list, tuple)):
            return {type(x).__name__: [pack(v, f"{path}/{i}") for i, v in enumerate(x)]}
        if isinstance(x, Scalar):
            return x
        raise TypeError(
            f"{path} is a {type(x).__name__}, and a checkpoint keeps tensors, numbers, texts, lists and dicts only"
        )

    return tensors, json.dumps(pack(tree, ""))


def unpacked(tensors: dict[str, Tensor], text: str, where: Path | str = "") -> Any:
    """The tree that was packed; `where` is the file that an error names."""

    def unpack(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        if "tensor" in x:
            found = tensors[x["tensor"]]
            strides = x.get("strides", found.stride())
            return torch.empty_strided(found.shape, strides, dtype=found.dtype).copy_(found)
        if "dict" in x:
            return {k: unpack(v) for k, v in x["dict"]}
        kind = list if "list" in x else tuple
        return kind(unpack(v) for v in x[kind.__name__])

    return unpack(from_json(text, where))


def owned(t: Tensor) -> Tensor:
    """A copy on the host that shares memory with nothing, as a file wants it."""
    return t.detach().to("cpu", copy=True).contiguous()


def _key(key: Any, path: str) -> Any:
    if type(key) not in (int, str):
        raise TypeError(f"{path} has a key of type {type(key).__name__}, and a checkpoint keeps int and str only")
    return key
