"""Writers of tiny pools of checkpoints, with stand-ins for the libraries and the data that a recipe names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data_files import random_bytes
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from steppe.studies.plan import Study

CLASSES = ("n01", "n02", "n03")
CHECKPOINTS = 4


def image_model(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 56, stride=56), nn.Tanh(), nn.Flatten(), nn.Linear(32, len(CLASSES)))


class TextModel(nn.Module):
    """Takes fields by name and returns an object with logits, as in Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> SimpleNamespace:
        states = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return SimpleNamespace(logits=self.head(states.mean(1).tanh()))


def text_model(**options: Any) -> nn.Module:
    return TextModel()


MODELS = {
    "timm:create_model": image_model,
    "clip_classifier:classifier": image_model,
    "transformers:AutoModelForSequenceClassification.from_pretrained": text_model,
}


def write_pool(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write checkpoints, training rows and other test sets where the study looks, and replace its model's library."""
    model = str(study.base["model"])
    module, _, path = model.partition(":")
    library: Any = ModuleType(module)
    *owners, last = path.split(".")
    owner = library
    for name in owners:
        setattr(owner, name, SimpleNamespace())
        owner = getattr(owner, name)
    setattr(owner, last, MODELS[model])
    monkeypatch.setitem(sys.modules, module, library)
    for k in range(CHECKPOINTS):
        file = Path(str(study.pool).replace("*", f"seed{k}"))
        file = file if file.suffix else file.with_suffix(".pt")
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(k)
        state = MODELS[model]().state_dict()
        save_file(state, file) if file.suffix == ".safetensors" else torch.save(state, file)
    if study.errors:  # settings of the checkpoints, which no file of weights has
        columns = [*study.groups, *(name for name in study.targets if not name.endswith("_error"))]
        lines = [f"seed{k},{','.join(str(f'kind{k % 2}' if c in study.groups else k + 1) for c in columns)}"
                 for k in range(CHECKPOINTS)]  # fmt: skip
        Path(study.errors).write_text("\n".join([f"checkpoint,{','.join(columns)}", *lines, ""]))
    _write_rows(str(study.base["data"]), ("train", "val"))
    for name in study.ood.values():
        _write_rows(name, ())


def _write_rows(name: str, parts: tuple[str, ...]) -> None:
    kind, _, rest = name.partition(":")
    place = Path(rest.partition("@")[0])
    if kind == "npz":
        _write_tokens(place, parts)
        return
    for part in parts or ("",):
        for number, one in enumerate(CLASSES if parts else CLASSES[:2]):  # a shifted set may have fewer classes
            folder = place / part / one
            folder.mkdir(parents=True)
            for k in range(2):
                pixels = random_bytes(40, 40, 3, seed=10 * number + k)
                Image.fromarray(pixels).save(folder / f"{k}.png")


def _write_tokens(file: Path, parts: tuple[str, ...]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for end in ("_train", "_test") if parts else ("",):
        arrays[f"input_ids{end}"] = rng.integers(0, 20, (12, 6))
        arrays[f"attention_mask{end}"] = np.ones((12, 6), dtype=np.int64)
        arrays[f"token_type_ids{end}"] = np.zeros((12, 6), dtype=np.int64)
        arrays[f"labels{end}"] = np.arange(12) % 3 if parts else np.ones(12, dtype=np.int64)
    names = ["contradiction", "entailment", "neutral"] if parts else ["entailment", "neutral+contradiction"]
    np.savez(file, classes=np.array(names), **arrays)
