"""SharpnessAwareTrainer against a hand-written SAM loop."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from steppe.integrations.transformers import SharpnessAwareTrainer  # noqa: E402

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
    return transformers.TrainingArguments(**(fixed | options))


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


def trainer(model: nn.Module, data: Rows, folder: Path, **options: Any) -> SharpnessAwareTrainer:
    made = arguments(folder, **options)
    method = steppe.SAM(rho=RHO)
    return SharpnessAwareTrainer(model, made, train_dataset=data, method=method, compute_loss_func=token_loss)


@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (2, 0.5), (3, 0.05)])
def test_it_equals_a_loop_written_by_hand(accumulate: int, clip: float, tmp_path: Path) -> None:
    """With a schedule, clipping and, for three micro-batches of four, a remainder."""
    model, data = bert(), Rows(4 * BATCH)
    expected = deepcopy(model)
    losses = by_hand(expected, data, accumulate, clip)
    moved = deepcopy(model)
    made = trainer(model, data, tmp_path, gradient_accumulation_steps=accumulate, max_grad_norm=clip)
    made.train()
    assert distance(moved, model) > 0.01
    assert distance(expected, model) < 1e-12
    logged = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, abs=1e-4)  # Trainer rounds


def test_a_resumed_run_is_bitwise_the_same(tmp_path: Path) -> None:
    data, options = Rows(4 * BATCH), {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 1}
    whole = bert(dropout=0.2)
    trainer(whole, data, tmp_path, **options).train()
    resumed = bert(dropout=0.2)
    trainer(resumed, data, tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert distance(whole, resumed) == 0


def test_a_scaler_changes_nothing(tmp_path: Path) -> None:
    """A GradScaler of the accelerator scales the losses of all passes."""
    plain, scaled, data = bert(), bert(), Rows(2 * BATCH)
    trainer(plain, data, tmp_path, gradient_accumulation_steps=2).train()
    made = trainer(scaled, data, tmp_path, gradient_accumulation_steps=2)
    made.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    made.train()
    assert distance(plain, bert()) > 0.01
    assert distance(plain, scaled) < 1e-12


def test_optimizers_may_hold_the_engine(tmp_path: Path) -> None:
    one, other, data = bert(), bert(), Rows(2 * BATCH)
    trainer(one, data, tmp_path, lr_scheduler_type="constant").train()
    engine = steppe.sam(torch.optim.SGD(other.parameters(), lr=LR, momentum=MOMENTUM), rho=RHO)
    arg, own = arguments(tmp_path, lr_scheduler_type="constant"), {"compute_loss_func": token_loss}
    SharpnessAwareTrainer(other, arg, train_dataset=data, optimizers=(engine, None), **own).train()
    assert distance(one, other) < 1e-12


def test_what_does_not_fit_is_one_error(tmp_path: Path) -> None:
    data = Rows(BATCH)
    with pytest.raises(TypeError, match="the optimizer is SGD, not a SharpnessAware"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), train_dataset=data).train()
    with pytest.raises(ValueError, match="steps during the backward pass"):
        trainer(bert(), data, tmp_path, optim="galore_adamw_layerwise", optim_target_modules="all-linear").train()
    model = bert()
    before = deepcopy(model)
    parts = SharpnessAwareTrainer(model, arguments(tmp_path), train_dataset=data, method=steppe.AgnosticSAM())
    with pytest.raises(RuntimeError, match="AgnosticSAM uses parts of the batch, and Trainer computes"):
        parts.train()
    assert distance(before, model) == 0
