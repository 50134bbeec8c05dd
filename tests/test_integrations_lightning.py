"""SharpnessAwareSteps, passes and SharpnessMonitor in Lightning, against loops written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe

pl = pytest.importorskip("lightning.pytorch")

from lightning.fabric import Fabric  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from steppe.integrations.lightning import SharpnessAwareSteps, SharpnessMonitor, passes, step  # noqa: E402

LR, MOMENTUM, GAMMA, EPOCHS = 0.3, 0.9, 0.8, 2
Method = Callable[[], steppe.Method]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lightning warns about workers of data loaders, logging intervals and its own future."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def batches(n: int = 5, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, rows, 5, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(3, (n, rows), generator=g), strict=True))


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(6) if norm else nn.LayerNorm(6)
    return nn.Sequential(nn.Linear(5, 6), middle, nn.Tanh(), nn.Linear(6, 3)).double()


class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, method: steppe.Method, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.method, self.logged = net or network(), method, []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        base = torch.optim.SGD(self.parameters(), lr=LR, momentum=MOMENTUM)
        engine = steppe.SharpnessAware(base, self.method)
        return [engine], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(engine, GAMMA), "interval": "step"}]


class Automatic(SharpnessAwareSteps, Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.logged.append(float(outputs["loss"]))


def fit(
    model: Any, folder: Path, data: Any = None, epochs: int = EPOCHS, resume: str | None = None, **options: Any
) -> Any:
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **({"enable_checkpointing": False} | options),
    )  # fmt: skip
    trainer.fit(model, data or torch.utils.data.DataLoader(batches(), batch_size=None), ckpt_path=resume)
    return trainer


def by_hand(method: steppe.Method, net: nn.Module, accumulate: int = 1, clip: float = 0.0) -> list[float]:
    """A plain loop over `passes()`; SAM by its own formula, so that the engine is not its own oracle."""
    params = list(net.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)
    opt = None if isinstance(method, steppe.SAM) else steppe.SharpnessAware(base, method, model=net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(base, GAMMA)
    data, losses = batches(), []
    for _ in range(EPOCHS):
        for i in range(0, len(data), accumulate):
            micro = data[i : i + accumulate]
            if opt is None:
                losses.append(sam_gradient(net, micro, accumulate))
            else:
                for turn in opt.passes():
                    for x, y in micro:
                        x, y = turn.rows(x, y)
                        turn.backward(cross_entropy(net(x), y) / accumulate)
            if clip:
                nn.utils.clip_grad_norm_(params, clip)
            (opt or base).step()
            if len(micro) == accumulate or i + accumulate >= len(data):
                schedule.step()
    return losses


def sam_gradient(net: nn.Module, micro: list[tuple[Tensor, Tensor]], accumulate: int) -> float:
    params = list(net.parameters())

    def grads() -> tuple[float, list[Tensor]]:
        loss = torch.stack([cross_entropy(net(x), y) / accumulate for x, y in micro]).sum()
        return loss.item(), list(torch.autograd.grad(loss, params))

    loss, first = grads()
    norm = torch.cat([g.flatten() for g in first]).norm()
    before = [p.detach().clone() for p in params]
    buffers = [b.clone() for b in net.buffers()]
    with torch.no_grad():
        for p, g in zip(params, first, strict=True):
            p += 0.2 * g / norm
    _, second = grads()
    with torch.no_grad():
        for p, w, g in zip(params, before, second, strict=True):
            p.copy_(w)
            p.grad = g
        for b, kept in zip(net.buffers(), buffers, strict=True):
            b.copy_(kept)
    return loss


def distance(a: nn.Module, b: nn.Module) -> float:
    tensors = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((p.double() - q.double()).abs().max()) for p, q in tensors)


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
        for turn in passes(opt):
            x, y = turn.rows(*batch)
            turn.backward(cross_entropy(self(x), y))
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
            for turn in passes(opt):
                turn.backward(cross_entropy(model(x), y))
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
