"""SharpnessAwareTrainer against a hand-written SAM loop."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers_loops import (
    BATCH,
    LR,
    MOMENTUM,
    RHO,
    Rows,
    arguments,
    bert,
    by_hand,
    distance,
    gpt2,
    lora,
    token_loss,
    vit,
)

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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["gpt2", "vit", "lora", "checkpointing", "compiled"])
def test_models_equal_a_loop_written_by_hand(kind: str, tmp_path: Path) -> None:
    """With two micro-batches of three, a remainder, clipping and a schedule."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
    if kind == "lora":
        pytest.importorskip("peft")
    if kind == "checkpointing":
        options |= {"gradient_checkpointing": True}
    if kind == "compiled":
        if not hasattr(torch.compiler, "is_exporting"):
            pytest.skip("transformers needs a newer torch to be compiled")
        options |= {"torch_compile": True, "torch_compile_backend": "eager"}  # inductor takes minutes
    made = {"gpt2": gpt2, "vit": vit, "lora": lora}.get(kind, bert)()
    data, causal, start = Rows(3 * BATCH, images=kind == "vit"), kind == "gpt2", deepcopy(made)
    expected = deepcopy(made)
    by_hand(expected, data, 2, 0.5, causal=causal)
    sharp = SharpnessAwareTrainer(
        made, arguments(tmp_path, **options), train_dataset=data, method=steppe.SAM(rho=RHO),
        compute_loss_func=partial(token_loss, causal=causal),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler
        sharp.train()
    assert distance(start, made) > 1e-3
    assert distance(expected, made) < 1e-12
    if kind == "lora":
        frozen = zip(start.named_parameters(), made.parameters(), strict=True)
        assert all(torch.equal(a, b) for (name, a), b in frozen if "lora" not in name and a.requires_grad is False)


def test_a_resumed_run_is_bitwise_the_same(tmp_path: Path) -> None:
    data, options = Rows(4 * BATCH), {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 1}
    whole = bert(dropout=0.2)
    trainer(whole, data, tmp_path, **options).train()
    resumed = bert(dropout=0.2)
    trainer(resumed, data, tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert distance(whole, resumed) == 0


def test_a_scaler_changes_nothing(tmp_path: Path) -> None:
    """A GradScaler of the accelerator scales the losses of all passes, and clipping sees unscaled gradients."""
    expected, scaled, data = bert(), bert(), Rows(2 * BATCH)
    by_hand(expected, data, 2, 0.05)
    made = trainer(scaled, data, tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.05)
    made.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    made.train()
    assert distance(expected, bert()) > 1e-3
    assert distance(expected, scaled) < 1e-12


def test_bf16_autocast_sees_the_perturbed_weights(tmp_path: Path) -> None:
    class Cast(nn.Module):
        """Autocast around the forward pass, with outputs in float32, as Accelerate has it."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, **inputs: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                output = self.net(**inputs)
            output.logits = output.logits.float()
            return output

    data, (expected, plain, model) = Rows(3 * BATCH), [bert().float() for _ in range(3)]
    by_hand(Cast(expected), data, 2, 0.5)
    by_hand(plain, data, 2, 0.5)
    trainer(model, data, tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.5, bf16=True).train()
    assert distance(expected, plain) > 1e-4
    assert distance(expected, model) < 1e-5


def test_a_schedule_free_base_is_evaluated_at_its_average(tmp_path: Path) -> None:
    """`Trainer` switches modes of the optimizer: passes run in training mode, evaluation at the averaged weights."""
    schedule_free = pytest.importorskip("pytorch_optimizer").ScheduleFreeSGD
    expected, model, data = bert(), bert(), Rows(3 * BATCH)
    base = schedule_free(expected.parameters(), lr=LR)
    base.train()
    by_hand(expected, data, 1, 0.0, epochs=1, base=base)
    base.eval()
    arg = arguments(tmp_path, num_train_epochs=1, eval_strategy="steps", eval_steps=2)
    engine = steppe.sam(schedule_free(model.parameters(), lr=LR), rho=RHO)
    made = SharpnessAwareTrainer(
        model, arg, train_dataset=data, eval_dataset=data, optimizers=(engine, None), compute_loss_func=token_loss
    )
    made.train()
    made.evaluate()
    assert distance(expected, bert()) > 0.01
    assert distance(expected, model) < 1e-12


def test_optimizers_may_hold_the_engine(tmp_path: Path) -> None:
    one, other, data = bert(), bert(), Rows(2 * BATCH)
    trainer(one, data, tmp_path, lr_scheduler_type="constant").train()
    engine = steppe.sam(torch.optim.SGD(other.parameters(), lr=LR, momentum=MOMENTUM), rho=RHO)
    arg, own = arguments(tmp_path, lr_scheduler_type="constant"), {"compute_loss_func": token_loss}
    SharpnessAwareTrainer(other, arg, train_dataset=data, optimizers=(engine, None), **own).train()
    assert distance(one, other) < 1e-12


def test_a_second_call_of_train_keeps_the_optimizer(tmp_path: Path) -> None:
    model, expected, data = bert(), bert(), Rows(2 * BATCH)
    made = trainer(model, data, tmp_path)
    made.train()
    engine = made.optimizer.optimizer
    made.train()
    assert made.optimizer.optimizer is engine
    base = torch.optim.SGD(expected.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(2):
        by_hand(expected, data, 1, 0.0, base=base)
    assert distance(bert(), model) > 0.01
    assert distance(expected, model) < 1e-12


def test_what_does_not_fit_is_one_error(tmp_path: Path) -> None:
    data = Rows(BATCH)
    with pytest.raises(TypeError, match="the optimizer is SGD, not a SharpnessAware"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), train_dataset=data).train()
    with pytest.raises(ValueError, match="steps during the backward pass"):
        trainer(bert(), data, tmp_path, optim="galore_adamw_layerwise", optim_target_modules="all-linear").train()
    engine = steppe.sam(torch.optim.SGD(bert().parameters(), lr=LR))
    with pytest.raises(ValueError, match="give one of the two"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), method=steppe.SAM(), optimizers=(engine, None))
    with pytest.raises(ValueError, match="the SharpnessAware of method=, which is missing"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), options={"seed": 1}, optimizers=(engine, None))
    model = bert()
    before = deepcopy(model)
    own = steppe.sam(torch.optim.SGD(model.parameters(), lr=LR), scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="has a scaler of its own"):
        SharpnessAwareTrainer(model, arguments(tmp_path), train_dataset=data, optimizers=(own, None)).train()
    parts = SharpnessAwareTrainer(model, arguments(tmp_path), train_dataset=data, method=steppe.AgnosticSAM())
    with pytest.raises(RuntimeError, match="AgnosticSAM uses parts of the batch, and Trainer computes"):
        parts.train()
    assert distance(before, model) == 0
