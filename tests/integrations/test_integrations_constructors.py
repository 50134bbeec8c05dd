"""Optimizers as configurations, registries and command lines make them, against a SAM loop written by hand."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import steppe

LR, MOMENTUM, RHO, CLIP, STEPS, ACCUMULATE = 0.3, 0.9, 0.2, 0.1, 6, 2


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """These libraries warn about each other's future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()


def micro_batches() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    n = STEPS * ACCUMULATE
    x = torch.randn(n, 8, 5, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(3, (n, 8), generator=g), strict=True))


def steps() -> list[list[tuple[Tensor, Tensor]]]:
    data = micro_batches()
    return [data[i : i + ACCUMULATE] for i in range(0, len(data), ACCUMULATE)]


def by_hand(params: list[nn.Parameter], base: Any, loss: Callable[[Any], Tensor]) -> None:
    """SAM as in Foret et al. 2021 on two micro-batches per step, clipped once."""
    for batches in steps():

        def gradient(batches: Any = batches) -> list[Tensor]:
            return list(torch.autograd.grad(sum(loss(batch) for batch in batches) / ACCUMULATE, params))

        first, before = gradient(), [p.detach().clone() for p in params]
        norm = torch.cat([g.flatten() for g in first]).norm()
        with torch.no_grad():
            for p, g in zip(params, first, strict=True):
                p += RHO * g / norm
        second = gradient()
        with torch.no_grad():
            for p, w, g in zip(params, before, second, strict=True):
                p.copy_(w)
                p.grad = g
        clip_grad_norm_(params, CLIP)
        base.step()


def expected() -> nn.Module:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    by_hand(list(model.parameters()), base, lambda batch: cross_entropy(model(batch[0]), batch[1]))
    return model


def distance(a: nn.Module, b: nn.Module) -> float:
    return max(float((p - q).detach().abs().max()) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# Constructors that take parameters, in a loop over passes that stops after three steps and resumes


TORCH = {"lr": LR, "momentum": MOMENTUM, "rho": RHO}


def instantiate(config: Mapping[str, Any], *args: Any, key: str = "_target_") -> Any:
    """What `hydra.utils.instantiate` and, with another key, `torchtune.config.instantiate` do with a configuration."""
    made = {k: instantiate(v, key=key) if isinstance(v, Mapping) else v for k, v in config.items()}
    module, _, name = made.pop(key).rpartition(".")
    target, partially = getattr(import_module(module), name), made.pop("_partial_", False)
    return partial(target, *args, **made) if partially else target(*args, **made)


def of_hydra() -> Callable[..., Any]:
    try:
        from hydra.utils import instantiate as make
    except ImportError:
        make = instantiate
    return make({"_target_": "steppe.optimizer", "_partial_": True, "method": "sam", **TORCH})  # type: ignore[no-any-return]


def of_hydra_nested() -> Callable[..., Any]:
    """With an optimizer and a method that are configurations themselves."""
    try:
        from hydra.utils import instantiate as make
    except ImportError:
        make = instantiate
    base = {"_target_": "torch.optim.SGD", "_partial_": True, "momentum": MOMENTUM}
    method = {"_target_": "steppe.SAM", "rho": RHO}
    config = {"_target_": "steppe.optimizer", "_partial_": True, "base": base, "method": method, "lr": LR}
    return make(config)  # type: ignore[no-any-return]


def of_torchtune() -> Callable[..., Any]:
    """Its recipes call `config.instantiate(cfg.optimizer, model.parameters())`."""
    config = {"_component_": "steppe.optimizer", "base": "torch.optim.SGD", "method": "sam", **TORCH}
    try:
        from torchtune.config import instantiate as make
    except ImportError:
        return lambda params: instantiate(config, params, key="_component_")
    return lambda params: make(config, params)


def of_timm() -> Callable[..., Any]:
    """A name in its registry, as its scripts and `create_optimizer_v2` look it up."""
    defaults = {"base": torch.optim.SGD, "method": "sam", "rho": RHO}
    facts: Any = {"name": "samsgd", "opt_class": steppe.optimizer, "has_eps": False, "has_momentum": True}
    try:
        from timm.optim import OptimInfo, OptimizerRegistry
    except ImportError:  # its `create_optimizer`: weight decay, options, defaults, momentum of 0.9
        return lambda params: facts["opt_class"](params, weight_decay=0.0, lr=LR, **defaults, momentum=0.9)
    registry = OptimizerRegistry()
    registry.register(OptimInfo(**facts, defaults=defaults))
    return lambda params: registry.create_optimizer(params, "samsgd", lr=LR)


def of_the_page() -> Callable[..., Any]:
    return partial(steppe.optimizer, base=torch.optim.SGD, method="sam", lr=LR, momentum=MOMENTUM, rho=RHO)


@pytest.mark.parametrize("constructor", [of_the_page, of_hydra, of_hydra_nested, of_torchtune, of_timm])
def test_constructors_equal_a_loop_written_by_hand(constructor: Callable[[], Any], tmp_path: Path) -> None:
    """With accumulation and clipping, and resumed after half of the steps in a new optimizer."""
    model = network()
    opt = constructor()(model.parameters())
    for number, batches in enumerate(steps()):
        if number == STEPS // 2:
            torch.save([model.state_dict(), opt.state_dict()], tmp_path / "half")
            model = network()
            opt = constructor()(model.parameters())
            weights, state = torch.load(tmp_path / "half", weights_only=True)
            model.load_state_dict(weights)
            opt.load_state_dict(state)
        for pass_ in opt.passes():
            for x, y in batches:
                pass_.backward(cross_entropy(model(x), y) / ACCUMULATE)
        clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
    assert distance(network(), model) > 0.01
    assert distance(expected(), model) < 1e-12


def test_a_step_of_one_backward_pass_is_refused() -> None:
    """As timm's scripts and torchtune's recipes take it: their loops need `opt.passes()`."""
    model = network()
    opt = of_timm()(model.parameters())
    x, y = micro_batches()[0]
    cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"passes\(\)"):
        opt.step()
    assert distance(network(), model) == 0


def test_an_option_that_is_given_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"lr is given twice, in options=\{'lr': 0.1\} and by itself"):
        steppe.optimizer(network().parameters(), options={"lr": 0.1}, lr=0.2)


# Lightning's command line


def lightning_line(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> Any:
    """`fit` of a module without a `configure_optimizers`, with the optimizer of `--optimizer`."""
    monkeypatch.setattr(sys, "argv", ["fit"])
    from lightning.pytorch.cli import LightningCLI
    from lightning_net import Plain

    fixed = {
        "max_epochs": 1, "accelerator": "cpu", "logger": "false", "enable_progress_bar": "false",
        "enable_model_summary": "false", "accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": CLIP,
        "default_root_dir": folder,
    }  # fmt: skip
    args = ["fit", *(f"--trainer.{k}={v}" for k, v in fixed.items()), *more]
    torch.manual_seed(0)
    return LightningCLI(Plain, args=args, save_config_callback=None, seed_everything_default=False)


OPTIMIZER = [
    "--optimizer=steppe.optimizer", "--optimizer.base=torch.optim.SGD", "--optimizer.method=sam",
    *(f"--optimizer.options.{name}={value}" for name, value in TORCH.items()),
]  # fmt: skip


def test_the_command_line_of_lightning_equals_a_loop_written_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    model = lightning_line(monkeypatch, tmp_path, *OPTIMIZER).model
    assert distance(network(), model.net) > 0.01
    assert distance(expected(), model.net) < 1e-12


def test_the_command_line_of_lightning_resumes_bitwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    first = lightning_line(monkeypatch, tmp_path, *OPTIMIZER)
    whole = lightning_line(monkeypatch, tmp_path / "whole", *OPTIMIZER, "--trainer.max_epochs=2").model
    path = first.trainer.checkpoint_callback.best_model_path
    resumed = lightning_line(monkeypatch, tmp_path, *OPTIMIZER, "--trainer.max_epochs=2", f"--ckpt_path={path}").model
    assert distance(first.model.net, whole.net) > 0.001
    assert distance(whole.net, resumed.net) == 0


# Trainer of Transformers


def of_class_and_options(trainer: Any, model: nn.Module, args: Any, **rest: Any) -> Any:
    from transformers_loops import LR, MOMENTUM, RHO

    options = {"base": torch.optim.SGD, "method": "sam", "lr": LR, "momentum": MOMENTUM, "rho": RHO}
    return trainer(model, args, optimizer_cls_and_kwargs=(steppe.optimizer, options), **rest)


def of_names(trainer: Any, model: nn.Module, args: Any, **rest: Any) -> Any:
    """The base by `optim`, which is sgd in these arguments, and the method by its name."""
    from transformers_loops import RHO

    return trainer(model, args, method="sam", options={"rho": RHO}, **rest)


@pytest.mark.parametrize("make", [of_class_and_options, of_names])
def test_trainer_by_names_equals_a_loop_written_by_hand(make: Any, tmp_path: Path) -> None:
    """With accumulation of a remainder, clipping and a schedule; resumed bitwise from a checkpoint."""
    pytest.importorskip("transformers")
    from transformers_loops import BATCH, Rows, arguments, bert, token_loss
    from transformers_loops import by_hand as written

    from steppe.integrations.transformers import SharpnessAwareTrainer

    data = Rows(3 * BATCH)
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "save_strategy": "steps", "save_steps": 2}
    models = [bert(), bert()]
    for model, resume in zip(models, (None, str(tmp_path / "checkpoint-2")), strict=True):
        made = make(
            SharpnessAwareTrainer, model, arguments(tmp_path, **options), train_dataset=data,
            compute_loss_func=token_loss,
        )  # fmt: skip
        made.train(resume_from_checkpoint=resume)
    by_loop = deepcopy(bert())
    written(by_loop, data, 2, 0.5)
    assert distance(bert(), models[0]) > 0.01
    assert distance(by_loop, models[0]) < 1e-12
    assert distance(*models) == 0


def test_a_trainer_with_an_unknown_name_is_told_which_there_are(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers_loops import BATCH, Rows, arguments, bert

    from steppe.integrations.transformers import SharpnessAwareTrainer

    with pytest.raises(ValueError, match=r"no method 'samm'\. Did you mean 'sam'"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), train_dataset=Rows(BATCH), method="samm").train()


def test_method_beside_an_optimizer_with_a_method_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers_loops import BATCH, Rows, arguments, bert

    from steppe.integrations.transformers import SharpnessAwareTrainer

    own = (steppe.optimizer, {"lr": LR})
    made = SharpnessAwareTrainer(
        bert(), arguments(tmp_path), train_dataset=Rows(BATCH), method="asam", optimizer_cls_and_kwargs=own
    )
    with pytest.raises(TypeError, match="SharpnessAware cannot be the base"):
        made.train()
