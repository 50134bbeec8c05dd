"""SharpnessAwareTrainer against a hand-written SAM loop."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers_loops import BATCH, LR, MOMENTUM, RHO, Rows, arguments, bert, by_hand, distance, token_loss

import steppe

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from steppe.integrations.transformers import SharpnessAwareTrainer  # noqa: E402


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
