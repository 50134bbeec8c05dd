"""A Trainer of Transformers, small models and data for it, and a hand-written SAM loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RHO, LR, MOMENTUM, BATCH = 0.3, 0.2, 0.9, 4


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences of tokens, some of whose labels are ignored."""

    def __init__(self, n: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(3, 30, (n, 6), generator=g)
        self.labels = torch.where(torch.rand(self.ids.shape, generator=g) < 0.3, -100, self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.labels[i]}

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(0, len(self), BATCH):
            yield self.ids[i : i + BATCH], self.labels[i : i + BATCH]


def bert(dropout: float = 0.0) -> nn.Module:
    import transformers  # takes seconds

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=30,
        max_position_embeddings=8, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForTokenClassification(config).double()  # type: ignore[no-any-return]


def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """In float64: the losses of Transformers are computed in float32."""
    return (
        nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        / num_items_in_batch
    )


def arguments(folder: Path, **options: Any) -> Any:
    fixed: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": BATCH, "learning_rate": LR, "use_cpu": True,
        "num_train_epochs": 2, "lr_scheduler_type": "linear", "max_grad_norm": 0.0, "optim": "sgd",
        "optim_args": f"momentum={MOMENTUM}", "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "logging_steps": 1, "dataloader_pin_memory": False, "train_sampling_strategy": "sequential",
    }  # fmt: skip
    from transformers import TrainingArguments

    return TrainingArguments(**(fixed | options))


def gradient(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, list[Tensor]]:
    """Of the mean over all tokens of the micro-batches that count."""
    outputs = torch.cat([model(input_ids=ids).logits for ids, _ in batches])
    loss = nn.functional.cross_entropy(outputs.flatten(0, 1), torch.cat([y for _, y in batches]).flatten())
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


def by_hand(model: nn.Module, data: Rows, accumulate: int, clip: float, epochs: int = 2) -> list[float]:
    """SAM as in Foret et al. 2021, on micro-batches, with the linear schedule; returns the unperturbed losses."""
    params = list(model.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)
    micro = list(data.batches())
    steps = [micro[i : i + accumulate] for i in range(0, len(micro), accumulate)] * epochs
    seen = []
    for number, batches in enumerate(steps):
        base.param_groups[0]["lr"] = LR * (1 - number / len(steps))
        loss, grads = gradient(model, batches)
        seen.append(loss)
        norm = torch.cat([g.flatten() for g in grads]).norm()
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p += RHO * g / norm
        _, grads = gradient(model, batches)
        with torch.no_grad():
            for p, w, g in zip(params, before, grads, strict=True):
                p.copy_(w)
                p.grad = g
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        base.step()
    return seen


def distance(a: nn.Module, b: nn.Module) -> float:
    return max(float((p - q).detach().abs().max()) for p, q in zip(a.parameters(), b.parameters(), strict=True))
