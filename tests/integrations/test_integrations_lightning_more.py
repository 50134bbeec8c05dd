"""Logs, precision, weight averaging and refusals in Lightning and Fabric."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe

pl = pytest.importorskip("lightning.pytorch")
torchmetrics = pytest.importorskip("torchmetrics")

from lightning.fabric import Fabric  # noqa: E402
from lightning.fabric.plugins import MixedPrecision as FabricMixed  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402
from lightning_loops import (  # noqa: E402
    EPOCHS,
    GAMMA,
    LR,
    MOMENTUM,
    Automatic,
    Net,
    batches,
    distance,
    fit,
    network,
    sam_gradient,
)

from steppe.integrations.lightning import SharpnessMonitor, passes, step  # noqa: E402

SAM, THREE_PASSES = steppe.SAM(rho=0.2), steppe.SASAM()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def unequal() -> list[tuple[Tensor, Tensor]]:
    rows = [8, 3, 8, 5, 2]
    return [(x[:n], y[:n]) for (x, y), n in zip(batches(), rows, strict=True)]


def test_a_mean_over_an_epoch_has_every_micro_batch_weighted_by_its_rows(tmp_path: Path) -> None:
    class Logging(Automatic):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = cross_entropy(self(batch[0]), batch[1])
            self.log("mean", loss, on_step=False, on_epoch=True)
            return loss

    model, start = Logging(SAM), network()
    model.configure_optimizers = lambda: steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.2)
    loader = torch.utils.data.DataLoader(unequal(), batch_size=None)
    trainer = fit(model, tmp_path, loader, epochs=1, accumulate_grad_batches=2)
    total = sum(float(cross_entropy(start(x), y, reduction="sum").detach()) for x, y in unequal())
    assert float(trainer.callback_metrics["mean"]) == pytest.approx(total / 26, rel=1e-6)


def hand_written(net: nn.Module, lrs: list[float], skip: int | None = None, value: float = 0.0) -> list[nn.Module]:
    """SAM at these learning rates, without step `skip`; copies of the model after every epoch."""
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    epochs = []
    for number, lr in enumerate(lrs):
        x, y = batches()[number % 5]
        base.param_groups[0]["lr"] = lr
        if number != skip:
            sam_gradient(net, [(x.to(net[0].weight.dtype), y)], 1)  # type: ignore[index]
            if value:
                nn.utils.clip_grad_value_(net.parameters(), value)
            base.step()
        if number % 5 == 4:
            epochs.append(network(norm=True).to(net[0].weight.dtype))  # type: ignore[index]
            epochs[-1].load_state_dict(net.state_dict())
    return epochs


SCHEDULE = [LR * GAMMA**i for i in range(5 * EPOCHS)]


def test_gradients_are_clipped_by_value_once(tmp_path: Path) -> None:
    expected, model = network(norm=True), Automatic(SAM, network(norm=True))
    hand_written(expected, SCHEDULE, value=0.02)
    fit(model, tmp_path, gradient_clip_val=0.02, gradient_clip_algorithm="value")
    assert distance(expected, model.net) < 1e-12


def test_bf16_autocast_sees_the_perturbed_weights(tmp_path: Path) -> None:
    expected, plain, model = (network(norm=True).float() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        hand_written(expected, SCHEDULE)
    hand_written(plain, SCHEDULE)
    loader = torch.utils.data.DataLoader([(x.float(), y) for x, y in batches()], batch_size=None)
    fit(Automatic(SAM, model), tmp_path, loader, precision="bf16-mixed")
    assert distance(expected, plain) > 1e-4
    assert distance(expected, model) < 1e-6


def scaler_alone(kind: type, **options: Any) -> Any:
    """A GradScaler without autocast, which would leave float64."""
    plugin = kind("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**8), **options)
    plugin.autocast_context_manager = plugin.forward_context = lambda: torch.autocast("cpu", enabled=False)
    plugin.convert_input = plugin.convert_output = lambda data: data
    return plugin


def test_an_overflow_in_the_second_pass_skips_the_step(tmp_path: Path) -> None:
    class Overflowing(Automatic):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * (float("inf") if self.global_step == 1 and not self.first_pass else 1.0)

    expected, model, plugin = network(norm=True), Overflowing(SAM, network(norm=True)), scaler_alone(MixedPrecision)
    hand_written(expected, SCHEDULE, skip=1)
    fit(model, tmp_path, plugins=[plugin])
    assert distance(expected, model.net) < 1e-12
    assert plugin.scaler.get_scale() == 2.0**7


@pytest.mark.parametrize("scaled", [False, True])
def test_fabric_scales_and_clips(scaled: bool) -> None:
    expected, net = network(norm=True), network(norm=True)
    hand_written(expected, SCHEDULE, value=0.02)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[scaler_alone(FabricMixed)] if scaled else None)
    model, opt = fabric.setup(net, steppe.sam(torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM), rho=0.2))
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA)
    for x, y in batches() * EPOCHS:
        for pass_ in passes(opt, model=model):
            pass_.backward(cross_entropy(model(x), y))
        fabric.clip_gradients(model, opt, clip_val=0.02)
        opt.step()
        schedule.step()
    assert distance(expected, net) < 1e-12


def test_weight_averaging_averages_sharpness_aware_epochs(tmp_path: Path) -> None:
    rates: list[float] = []

    class Rates(Automatic):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    model = Rates(SAM, network(norm=True))
    averaging = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2, annealing_epochs=1)
    fit(model, tmp_path, epochs=4, callbacks=[averaging])
    assert len(rates) == 4 * 5
    assert len(set(rates)) > 5
    epochs = hand_written(network(norm=True), rates)[:3]  # the weights at the starts of epochs 1, 2 and 3
    for name, p in model.net.named_parameters():
        mean = torch.stack([epoch.get_parameter(name) for epoch in epochs]).mean(0)
        assert float((p - mean).detach().abs().max()) < 1e-12


def test_a_monitor_does_not_change_the_training(tmp_path: Path) -> None:
    def trained(**options: Any) -> nn.Module:
        torch.manual_seed(3)
        model = Automatic(SAM, nn.Sequential(network(norm=True), nn.Dropout(0.2)))
        fit(model, tmp_path, **options)
        return model.net

    monitor = SharpnessMonitor(batches()[0], cross_entropy, "lambda_max")
    assert distance(trained(), trained(callbacks=[monitor])) == 0


class Manual(Net):
    def __init__(self, wrong: str = "") -> None:
        super().__init__(SAM, network(norm=True))
        self.automatic_optimization, self.wrong = False, wrong

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt = self.optimizers()

        def closure() -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            return loss

        if self.wrong:
            for pass_ in opt.passes() if self.wrong == "wrapper" else passes(opt):
                pass_.backward(cross_entropy(self(batch[0]), batch[1]))
        opt.step(None if self.wrong else closure)
        self.lr_schedulers().step()


def test_closures_in_manual_optimization(tmp_path: Path) -> None:
    class CustomScales(Manual):
        def configure_optimizers(self) -> Any:
            (engine,), [schedule] = super().configure_optimizers()
            engine.__setstate__(engine.__getstate__() | {"model": self})  # as SharpnessAware(..., model=self)
            return [engine], [schedule]

    expected, model = network(norm=True), CustomScales()
    hand_written(expected, SCHEDULE)
    trainer = fit(model, tmp_path)
    assert distance(expected, model.net) < 1e-12
    assert trainer.global_step == 5 * EPOCHS


class Plain(Net):
    """Without `SharpnessAwareSteps`."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])


def test_automatic_optimization_without_the_mixin_takes_the_same_steps(tmp_path: Path) -> None:
    plain, mixed = Plain(SAM), Automatic(SAM)
    fit(plain, tmp_path / "plain")
    fit(mixed, tmp_path / "mixed")
    assert distance(plain.net, mixed.net) < 1e-12


def test_without_the_mixin_running_statistics_change_once_per_step(tmp_path: Path) -> None:
    """Lightning's closure leads to the module, whose model the optimizer was not given."""
    expected, plain = network(norm=True), Plain(SAM, network(norm=True))
    hand_written(expected, SCHEDULE)
    fit(plain, tmp_path)
    assert distance(expected, plain.net) < 1e-12
    assert int(plain.net[1].num_batches_tracked) == 5 * EPOCHS  # type: ignore[index, arg-type]


class Counting(Automatic):
    """Metrics as the pages of torchmetrics have them, without a word of passes."""

    def __init__(self, *args: Any, manual: bool = False) -> None:
        super().__init__(*args)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        both = [torchmetrics.classification.MulticlassPrecision(3), torchmetrics.classification.MulticlassRecall(3)]
        self.both = torchmetrics.MetricCollection(both)  # which share their states
        self.losses = torchmetrics.CatMetric()  # whose state is a list
        self.automatic_optimization = not manual

    def loss(self, batch: Any) -> Tensor:
        logits, loss = self(batch[0]), cross_entropy(self(batch[0]), batch[1])
        self.accuracy(logits, batch[1])
        self.both(logits, batch[1])
        self.losses.update(loss.detach())
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = None
        if self.automatic_optimization:
            loss = self.loss(batch)
        else:
            opt = self.optimizers()
            for pass_ in passes(opt):
                pass_.backward(self.loss(batch))
            step(opt)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log_dict(self.both, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.logged.append(self.losses.compute())
        self.losses.reset()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...


@pytest.mark.parametrize(("accumulate", "manual"), [(1, False), (2, False), (1, True)])
def test_metrics_count_the_first_pass_alone(accumulate: int, manual: bool, tmp_path: Path) -> None:
    """At a learning rate of 0 they are those of the initial weights; three passes per step."""
    model = Counting(SAM, network(), manual=manual)
    engine = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), THREE_PASSES)
    model.configure_optimizers = lambda: engine
    trainer = fit(model, tmp_path, epochs=2, accumulate_grad_batches=accumulate)
    rows, targets = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    found, names = network()(rows).argmax(1), ("MulticlassPrecision", "MulticlassRecall")
    hit = found == targets
    shares = [torch.stack([hit[side == k].double().mean() for k in range(3)]).mean() for side in (found, targets)]
    logged = {k: float(v) for k, v in trainer.callback_metrics.items()}
    assert logged["accuracy"] == pytest.approx(float(hit.double().mean()))
    assert [logged[name] for name in names] == pytest.approx(list(map(float, shares)))
    losses = [float(cross_entropy(network()(x), y).detach()) for x, y in batches()]
    assert all(seen.tolist() == pytest.approx(losses) for seen in model.logged)


def test_a_step_of_one_s_own_calls_super(tmp_path: Path) -> None:
    """Warm-up, as Lightning's page on optimization has it."""

    class Warm(Automatic):
        override = "super"

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
            if self.override == "super":
                super().optimizer_step(epoch, batch_idx, optimizer, closure)
            else:
                optimizer.step(closure=closure)
            for group in optimizer.param_groups:
                group["lr"] = LR * GAMMA ** (self.global_step + 1)

        def configure_optimizers(self) -> Any:
            return super().configure_optimizers()[0]

    expected, model, wrong = network(norm=True), Warm(SAM, network(norm=True)), Warm(SAM, network(norm=True))
    hand_written(expected, SCHEDULE)
    fit(model, tmp_path)
    assert distance(expected, model.net) < 1e-12
    wrong.override = "none"
    for accumulate in (1, 2):
        with pytest.raises(
            RuntimeError, match=r"Warm.optimizer_step runs the closure itself.* super\(\).optimizer_step"
        ):
            fit(wrong, tmp_path, accumulate_grad_batches=accumulate)
    assert distance(network(norm=True), wrong.net) == 0


def test_what_would_be_another_update_is_one_error(tmp_path: Path) -> None:
    class OwnScaler(Automatic):
        def configure_optimizers(self) -> Any:
            base = torch.optim.SGD(self.parameters(), lr=LR)
            return steppe.sam(base, scaler=torch.amp.GradScaler("cpu"))

    class OwnSteps(pl.strategies.SingleDeviceStrategy):  # type: ignore[misc, name-defined]
        def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    for model, options, message in (
        (Plain(SAM), {"accumulate_grad_batches": 2}, "p.grad holds gradients that the last step did not leave there"),
        (Plain(SAM), {"gradient_clip_val": 0.1}, "gradient_clip_val clips in every call of the closure"),
        (OwnScaler(SAM), {}, "has a scaler of its own"),
        (Automatic(SAM), {"strategy": OwnSteps("cpu")}, "OwnSteps accumulates, steps or averages weights by itself"),
        (Manual("step"), {}, r"apply it by steppe.integrations.lightning.step\(opt\)"),
        (Manual("wrapper"), {}, r"LightningSharpnessAware, a wrapper .* steppe.integrations.lightning.passes\(opt\)"),
    ):
        start = {name: p.clone() for name, p in model.state_dict().items() if "running" not in name}
        with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
            fit(model, tmp_path, **options)
        weights = dict(model.named_parameters())
        assert all(torch.equal(p, start[name]) for name, p in weights.items()), message
    with pytest.raises(TypeError, match=r"step takes an optimizer of self.optimizers\(\)"):
        step(steppe.sam(torch.optim.SGD(network().parameters(), lr=0.1)))
