"""SharpnessAwareSteps, passes and SharpnessMonitor in Lightning, against loops written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import steppe

pl = pytest.importorskip("lightning.pytorch")

from lightning.fabric import Fabric  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402
from lightning_loops import (  # noqa: E402
    EPOCHS,
    GAMMA,
    LR,
    MOMENTUM,
    Automatic,
    Net,
    batches,
    by_hand,
    distance,
    fit,
    network,
)

from steppe.integrations.lightning import SharpnessAwareSteps, SharpnessMonitor, passes, step  # noqa: E402

Method = Callable[[], steppe.Method]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lightning warns about workers of data loaders, logging intervals and its own future."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


METHODS: list[Method] = [
    lambda: steppe.SAM(rho=0.2),
    lambda: steppe.SASAM(),
    lambda: steppe.LookSAM(rho=0.2, k=2),
    lambda: steppe.AgnosticSAM(),
    lambda: steppe.PerPart(steppe.SAM(rho=0.2), 2),
]


@pytest.mark.parametrize("method", METHODS, ids=["sam", "sa-sam", "looksam", "agnostic-sam", "parts"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (2, 0.1)])
def test_automatic_optimization_equals_a_loop(method: Method, accumulate: int, clip: float, tmp_path: Path) -> None:
    """With a schedule per step, clipping and a remainder: five batches in steps of two."""
    expected = network()
    by_hand(method(), expected, accumulate, clip)
    model = Automatic(method())
    trainer = fit(model, tmp_path, accumulate_grad_batches=accumulate, gradient_clip_val=clip or None)
    assert distance(expected, network()) > 0.01
    assert distance(expected, model.net) < 1e-12
    assert trainer.global_step == EPOCHS * (5 if accumulate == 1 else 3)


def test_a_training_step_of_a_parent_class_is_enough(tmp_path: Path) -> None:
    class Plain(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return cross_entropy(self(batch[0]), batch[1])

    class Sharp(SharpnessAwareSteps, Plain):
        pass

    class Sharper(Sharp):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx)

    expected = network()
    by_hand(steppe.SAM(rho=0.2), expected, 2, 0.1)
    for kind in (Sharp, Sharper):
        model = kind(steppe.SAM(rho=0.2))
        fit(model, tmp_path, accumulate_grad_batches=2, gradient_clip_val=0.1)
        assert distance(expected, model.net) < 1e-12


def test_running_statistics_and_the_logged_loss_are_those_of_the_first_pass(tmp_path: Path) -> None:
    expected = network(norm=True)
    losses = by_hand(steppe.SAM(rho=0.2), expected)
    model = Automatic(steppe.SAM(rho=0.2), network(norm=True))
    trainer = fit(model, tmp_path)
    assert distance(expected, model.net) < 1e-12
    assert model.logged == pytest.approx(losses, abs=1e-12)
    assert float(trainer.callback_metrics["loss"]) == pytest.approx(losses[-1], abs=1e-6)  # Lightning keeps float32


def test_a_resumed_run_is_bitwise_the_same(tmp_path: Path) -> None:
    model = Automatic(steppe.SASAM())
    save = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(model, tmp_path, enable_checkpointing=True, callbacks=[save], accumulate_grad_batches=2)
    resumed = Automatic(steppe.SASAM())
    fit(resumed, tmp_path, resume=str(tmp_path / "epoch=0.ckpt"), accumulate_grad_batches=2)
    assert distance(model, resumed) == 0


def scaled() -> MixedPrecision:
    """A GradScaler without autocast, which would leave float64."""
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**8))
    plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)  # type: ignore[method-assign]
    return plugin


def test_a_scaler_changes_nothing(tmp_path: Path) -> None:
    expected = network()
    by_hand(steppe.SAM(rho=0.2), expected, 2, 0.1)
    model = Automatic(steppe.SAM(rho=0.2))
    fit(model, tmp_path, accumulate_grad_batches=2, gradient_clip_val=0.1, plugins=[scaled()])
    assert distance(expected, model.net) < 1e-12


class Manual(Net):
    def __init__(self, method: steppe.Method) -> None:
        super().__init__(method)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt = self.optimizers()
        for pass_ in passes(opt):
            x, y = pass_.rows(*batch)
            pass_.backward(cross_entropy(self(x), y))
        self.clip_gradients(opt, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        step(opt)
        self.lr_schedulers().step()


@pytest.mark.parametrize("plugins", [[], [scaled]], ids=["plain", "scaler"])
def test_manual_optimization_equals_a_loop(plugins: list[Any], tmp_path: Path) -> None:
    expected = network()
    by_hand(steppe.AgnosticSAM(), expected, 1, 0.1)
    model = Manual(steppe.AgnosticSAM())
    trainer = fit(model, tmp_path, plugins=[make() for make in plugins])
    assert distance(expected, model.net) < 1e-12
    assert trainer.global_step == EPOCHS * 5


def test_fabric_runs_passes_through_its_wrapper() -> None:
    expected = network()
    by_hand(steppe.SAM(rho=0.2), expected)
    fabric = Fabric(accelerator="cpu", devices=1)
    net = network()
    model, opt = fabric.setup(net, steppe.sam(torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM), rho=0.2))
    for number in range(EPOCHS):
        for i, (x, y) in enumerate(batches()):
            for group in opt.param_groups:
                group["lr"] = LR * GAMMA ** (5 * number + i)
            for pass_ in passes(opt):
                pass_.backward(cross_entropy(model(x), y))
            opt.step()
    assert distance(expected, net) < 1e-12


def test_weight_averaging_updates_statistics_in_its_own_epoch(tmp_path: Path) -> None:
    """The callback runs training_step in one more epoch, without steps, for BatchNorm."""
    model = Automatic(steppe.SAM(rho=0.2), network(norm=True))
    averaging = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
    loader = torch.utils.data.DataLoader([(x[0], y[0]) for x, y in batches(12)], batch_size=4)
    fit(model, tmp_path, loader, epochs=3, callbacks=[averaging])
    bare = network(norm=True)
    bare.load_state_dict(model.net.state_dict())
    rows = torch.stack([x[0] for x, _ in batches(12)])
    hidden = bare[0](rows).detach()  # type: ignore[index]
    assert torch.allclose(bare[1].running_mean, hidden.mean(0), atol=1e-12)  # type: ignore[index]


def test_a_monitor_logs_value_and_error_every_k_epochs(tmp_path: Path) -> None:
    x, y = batches()[0]
    seen = []

    class Log(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append({k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("trace")})

    model = Automatic(steppe.SAM(rho=0.2))
    monitor = SharpnessMonitor((x, y), cross_entropy, "trace", every=2, seed=3)
    fit(model, tmp_path, callbacks=[monitor, Log()])
    estimate = steppe.measure(model.net, cross_entropy, (x, y), "trace", seed=3, progress=False)["trace"]
    assert seen[0] == {}
    assert trace_of(seen[1]) == pytest.approx((estimate.value, estimate.stderr), rel=1e-5)
    assert model.training


def trace_of(metrics: dict[str, float]) -> tuple[float, float]:
    return metrics["trace"], metrics["trace_stderr"]


def test_what_does_not_fit_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes the iterator of the data loader"):

        class Iterating(SharpnessAwareSteps, Net):
            def training_step(self, dataloader_iter: Any) -> None: ...

    with pytest.raises(TypeError, match="has LightningModule before SharpnessAwareSteps"):

        class Late(Net, SharpnessAwareSteps):
            pass

    class Silent(SharpnessAwareSteps, Net):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

    with pytest.raises(RuntimeError, match="training_step returned no loss"):
        fit(Silent(steppe.SAM()), tmp_path)

    class Other(Automatic):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(TypeError, match="the optimizer is LightningSGD, not a SharpnessAware"):
        fit(Other(steppe.SAM()), tmp_path)
    with pytest.raises(RuntimeError, match="held-out data or losses without gradients"):
        fit(Automatic(steppe.ESAM()), tmp_path)
    with pytest.raises(ValueError, match="every is a number of epochs from 1 on, not 0"):
        SharpnessMonitor(None, every=0)
