"""One spelling: lower case wraps an optimizer, CamelCase is a method, `steppe.optimizer` takes parameters first."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, RMSprop

import steppe

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import tables  # noqa: E402

X, Y = torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 16)
LOWER = {name: name.replace("-", "_") for name in steppe.METHODS}
MAKERS = ["ASAM", "SAMON", "TraceSAM", "FrobSAM", "DetSAM"]  # functions that make a method, named as classes are


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))


def loss(model: nn.Module, pass_: Any = None) -> Tensor:
    x, y = (X, Y) if pass_ is None else pass_.rows(X, Y)
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    return each if pass_ is not None else each.mean()  # ESAM picks rows by their own losses


def step(opt: steppe.SharpnessAware, model: nn.Module) -> Tensor:
    mask = torch.arange(32) < 16 if isinstance(opt.method, steppe.SharpBalance) else None
    for pass_ in opt.passes(mask=mask):
        pass_.backward(loss(model, pass_))
    return opt.step()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", steppe.METHODS)
def test_lower_case_wraps_an_optimizer_as_build_does(name: str) -> None:
    models = [network(), network()]
    bases = [SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    opts = [
        getattr(steppe, LOWER[name])(bases[0], model=models[0]),
        steppe.build(name, bases[1], model=models[1]),
    ]
    losses = [[step(opt, model) for _ in range(2)] for opt, model in zip(opts, models, strict=True)]
    assert losses[0] == losses[1]
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", steppe.METHODS)
def test_a_wrapper_has_the_signature_and_the_texts_of_its_method(name: str) -> None:
    wrap, of_method = getattr(steppe, LOWER[name]), inspect.signature(steppe.METHODS[name].make).parameters
    of_engine = [
        p.name for p in inspect.signature(steppe.SharpnessAware).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    shown = inspect.signature(wrap).parameters
    assert list(shown) == ["base", *of_method, *of_engine]
    assert all(shown[p].kind is inspect.Parameter.KEYWORD_ONLY for p in of_engine)
    assert wrap.__name__ == LOWER[name]
    assert steppe.METHODS[name].does in wrap.__doc__
    assert not re.search(r"\n(\w+)\n    \n", wrap.__doc__), "a parameter without a text"
    assert not any(isinstance(p.annotation, str) for p in shown.values())


def test_an_option_by_position_and_by_name() -> None:
    model = network()
    by_name = steppe.asam(SGD(model.parameters(), lr=0.1), rho=0.3, eta=0.2, model=model)
    by_position = steppe.asam(SGD(model.parameters(), lr=0.1), 0.3, 0.2, model=model)
    assert by_name.method == by_position.method == steppe.ASAM(rho=0.3, eta=0.2)
    assert by_name.param_groups[0]["rho"] == 0.3
    with pytest.raises(ValueError, match=r"no option of asam 'rhoo'. Did you mean 'rho'"):
        steppe.asam(SGD(model.parameters(), lr=0.1), rhoo=0.3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for argument 'rho'"):
        steppe.asam(SGD(model.parameters(), lr=0.1), 0.3, rho=0.3)  # type: ignore[misc]


def test_a_wrapper_reaches_another_process() -> None:
    model = network()
    for make in (steppe.asam, steppe.optimizer):
        assert pickle.loads(pickle.dumps(make)) is make
    opt = pickle.loads(pickle.dumps(partial(steppe.asam, rho=0.25)))(SGD(model.parameters(), lr=0.1), model=model)
    assert opt.method == steppe.ASAM(rho=0.25)


def test_what_was_a_method_before_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"frob_sam wraps an optimizer: write steppe\.frob_sam\(base, \.\.\.\)"):
        steppe.frob_sam(rho=0.05)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"the base is a torch optimizer, not float 0\.05"):
        steppe.frob_sam(0.05)  # type: ignore[arg-type]


@pytest.mark.parametrize("maker", MAKERS)
def test_camel_case_is_a_method(maker: str) -> None:
    make = getattr(steppe, maker)
    (registered,) = [one for one in steppe.METHODS.values() if one.make is make]
    assert make(rho=0.125) == registered(rho=0.125)
    assert callable(make().plan)


def test_the_stub_for_editors_is_current() -> None:
    """`python docs/tables.py` writes it again; the names stand in the stub of the package too."""
    assert tables.STUB.read_text() == tables.stub()
    assert {*LOWER.values(), "optimizer"} <= set(steppe.__all__)


def test_a_name_that_is_no_method_is_no_wrapper() -> None:
    from steppe.optim import by_name

    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        by_name.nonesuch  # type: ignore[attr-defined]  # noqa: B018


# -- parameters first -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [SGD, "SGD", "torch.optim.SGD", partial(SGD, momentum=0.9)], ids=str)
def test_parameters_first_is_the_wrapped_optimizer(base: Any) -> None:
    models = [network(), network()]
    momentum = {} if isinstance(base, partial) else {"momentum": 0.9}
    first = steppe.optimizer(models[0].parameters(), base=base, method="gsam", lr=0.1, rho=0.2, alpha=0.3, **momentum)
    second = steppe.gsam(SGD(models[1].parameters(), lr=0.1, momentum=0.9), rho=0.2, alpha=0.3)
    assert type(first) is steppe.SharpnessAware
    for opt, model in ((first, models[0]), (second, models[1])):
        opt.model = None
        model[1].eval()  # type: ignore[index]
        step(opt, model)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)


def test_davda54s_arguments_make_the_optimizer_by_another_name() -> None:
    """`SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)` becomes `steppe.optimizer(...)`."""
    opt = steppe.optimizer(network().parameters(), SGD, lr=0.1, momentum=0.9)
    assert opt.method == steppe.method("sam")
    assert [opt.param_groups[0][k] for k in ("lr", "momentum", "rho")] == [0.1, 0.9, 0.05]


def test_a_configuration_as_of_hydra() -> None:
    """`_target_: steppe.optimizer` with `_partial_: true` is `functools.partial(steppe.optimizer, **rest)`."""
    target = {
        "_target_": "steppe.optimizer",
        "_partial_": True,
        "base": "AdamW",
        "method": "asam",
        "lr": 0.01,
        "rho": 1.0,
    }
    rest = {k: v for k, v in target.items() if not k.startswith("_")}
    make = partial(getattr(steppe, "optimizer"), **rest)  # noqa: B009  (found by its name)
    model = network()
    opt = make(model.named_parameters(), model=model)
    assert isinstance(opt.base, AdamW)
    assert opt.method == steppe.ASAM(rho=1.0)
    assert opt.model is model


def test_hydra_instantiates_it() -> None:
    hydra = pytest.importorskip("hydra.utils")
    make = hydra.instantiate(
        {"_target_": "steppe.optimizer", "_partial_": True, "method": "sam", "lr": 0.1, "rho": 0.1}
    )
    assert make(network().parameters()).method == steppe.method("sam", rho=0.1)


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_the_command_line_of_lightning_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fit"])
    pytest.importorskip("lightning")
    import yaml
    from lightning.pytorch.cli import LightningCLI
    from lightning_net import Net

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = {"max_epochs": 1, "accelerator": "cpu", "enable_model_summary": False, **quiet}
    chosen = {
        "class_path": "steppe.optimizer",
        "init_args": {"base": "torch.optim.AdamW", "method": "asam"},
        "dict_kwargs": {"lr": 0.01, "rho": 0.25},  # jsonargparse's key for what the signature does not list
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"model": {"optimizer": chosen}, "trainer": trainer}))
    cli = LightningCLI(Net, args=["fit", "--config", str(file)], save_config_callback=None)
    (opt,) = cli.trainer.optimizers
    assert isinstance(opt, steppe.SharpnessAware)
    assert isinstance(opt.base, AdamW)
    assert opt.method == steppe.ASAM(rho=0.25)
    assert opt.param_groups[0]["lr"] == 0.01
    assert opt.passes_run == 2


WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda p: steppe.optimizer(p, SGD, lr=0.1, roh=0.1), ValueError, "no option of sam with SGD 'roh'.*mean 'rho'"),
    (lambda p: steppe.optimizer(p, "SGDD", lr=0.1), ValueError, r"optimizer in torch\.optim 'SGDD'.*mean 'SGD'"),
    (lambda p: steppe.optimizer(p, method="samm", lr=0.1), ValueError, "no method 'samm'. Did you mean 'sam'"),
    (lambda p: steppe.optimizer(SGD(p, lr=0.1)), TypeError, r"to wrap one that you have, write steppe\.sam\(base"),
    (lambda p: steppe.optimizer(p, SGD(list(p), lr=0.1)), TypeError, "to wrap one that you have"),
    (lambda p: steppe.optimizer(p, RMSprop, "gsam", alpha=0.9), ValueError, "option of gsam and of RMSprop: make"),
    (lambda p: steppe.optimizer(p, method=steppe.SAM(), lr=0.1, rho=0.1), ValueError, "option of SAM with SGD 'rho'"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "error", "said"), WRONG, ids=range(len(WRONG)))
def test_a_mistake_is_told_what_to_write(write: Callable[[Any], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        write(network().parameters())


# -- the loss of a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", steppe.METHODS)
def test_a_step_returns_the_first_loss_however_the_passes_are_driven(name: str) -> None:
    model = network()
    twin = copy.deepcopy(model)
    few = {"samples": 4} if name == "ssam-f" else {}
    opts = [steppe.build(name, SGD(m.parameters(), lr=0.1, momentum=0.9), model=m, **few) for m in (model, twin)]
    mask = torch.arange(32) < 16 if name == "sharpbalance" else None
    for _ in range(2):
        by_passes = step(opts[0], model)

        def closure(pass_: Any) -> Tensor:
            one = loss(twin, pass_)
            pass_.backward(one)
            return one.mean()

        assert torch.equal(by_passes, opts[1].step(closure, mask=mask))
        assert not by_passes.requires_grad


def test_the_loss_of_accumulated_micro_batches_is_their_sum() -> None:
    model = network().eval()
    opt = steppe.sam(SGD(model.parameters(), lr=0.1), rho=0.1)
    with torch.no_grad():
        expected = loss(model)
    for pass_ in opt.passes():
        for x, y in zip(X.chunk(4), Y.chunk(4), strict=True):
            pass_.backward(nn.functional.cross_entropy(model(x), y) / 4)
    torch.testing.assert_close(opt.step(), expected)


def test_the_loss_of_steps_that_accumulate_is_their_sum() -> None:
    model = network().eval()
    opt = steppe.sam(SGD(model.parameters(), lr=0.1), rho=0.1)
    with torch.no_grad():
        expected = loss(model)
    for x, y in zip(X.chunk(2), Y.chunk(2), strict=True):
        for pass_ in opt.passes(accumulate=True):
            pass_.backward(nn.functional.cross_entropy(model(x), y) / 2)
    torch.testing.assert_close(opt.step(), expected)


def test_a_scaler_does_not_scale_the_loss_that_a_step_returns() -> None:
    model = network().eval()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = steppe.sam(SGD(model.parameters(), lr=0.1), rho=0.1, scaler=scaler)
    with torch.no_grad():
        expected = loss(model)
    for pass_ in opt.passes():
        pass_.backward(loss(model))
    torch.testing.assert_close(scaler.step(opt), expected)
    scaler.update()


def test_the_loss_of_a_maximised_objective_keeps_its_sign() -> None:
    model = network().eval()
    opt = steppe.sam(SGD(model.parameters(), lr=0.1, maximize=True), rho=0.1)
    with torch.no_grad():
        expected = loss(model)
    for pass_ in opt.passes():
        pass_.backward(loss(model))
    torch.testing.assert_close(opt.step(), expected)
