"""Buffers that a forward pass moves: once a step, at the unperturbed weights, for every kind of layer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from registry import same
from torch import Tensor, nn

import steppe


class ReassigningNorm(nn.Module):
    """A normalisation of somebody's own, which puts new tensors in place of its buffers."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            self.num_batches_tracked = self.num_batches_tracked + 1
        return x - mean


class Centred(nn.Module):
    """Keeps its statistics under a name that nobody could guess."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre.lerp_(x.detach().mean(0), 0.1)
        return x - self.centre.clone()


class Unversioned(nn.Module):
    """Writes to buffers in ways that raise no version: codes of VQ-VAE, and a view of NumPy; one is never written."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("codes", torch.zeros(width))
        self.register_buffer("rows_seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer(
            "table", torch.arange(3).expand(4, 3), persistent=False
        )  # overlaps itself: nobody could write to it

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.codes.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            self.rows_seen.numpy()[0] += len(x)
        return x - self.codes.clone()


class MadeLate(nn.Module):
    """Makes its buffer in its first pass."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.detach().mean(0)
            self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return x - self.mean


class Momentum(nn.Module):
    """A momentum encoder as in MoCo or BYOL: a copy of the weights that `forward` moves towards them."""

    def __init__(self, width: int, how: str = "in place"):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = copy.deepcopy(self.query).requires_grad_(how == "with gradients")
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for k, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
                if self.how == "replaced":
                    k.data = k.data * 0.9 + q.data * 0.1
                else:
                    k.data.mul_(0.9).add_(q.data, alpha=0.1)
        return self.query(x) + self.key(x).detach()


class Quantized(nn.Module):
    """Fake quantization as torch's default QAT runs it: a fused kernel moves its ranges."""

    def __init__(self, width: int):
        super().__init__()
        self.fake = torch.ao.quantization.FusedMovingAvgObsFakeQuantize()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self  # the kernel is for float32

    def forward(self, x: Tensor) -> Tensor:
        return self.fake(x.float()).to(x.dtype)


class Counter(nn.Module):
    """Counts rows, and normalises by a buffer that it replaces, when compiled by TorchScript too."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(width).double()
        self.register_buffer("top", torch.zeros(width, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.top = torch.maximum(self.top, x.detach().amax(0))
        return self.norm(x) / (1 + self.top)


def scripted(width: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Counter(width))


class PerInstance(nn.Module):
    """InstanceNorm with running statistics, over a row folded into channels."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.InstanceNorm1d(width // 2, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.unflatten(1, (-1, 2))).flatten(1)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm": nn.BatchNorm1d,
    "BatchNorm, cumulative": lambda width: nn.BatchNorm1d(width, momentum=None),
    "BatchNorm, no statistics": lambda width: nn.BatchNorm1d(width, track_running_stats=False),
    "SyncBatchNorm": nn.SyncBatchNorm,
    "InstanceNorm": PerInstance,
    "buffers reassigned": ReassigningNorm,
    "buffers of any name": Centred,
    "writes without a version": Unversioned,
    "made in a pass": MadeLate,
    "momentum encoder": Momentum,
    "momentum encoder, replaced": lambda width: Momentum(width, "replaced"),
    "momentum encoder, with gradients": lambda width: Momentum(width, "with gradients"),
    "fake quantization": Quantized,
    "TorchScript": scripted,
    "spectral norm": lambda width: nn.utils.parametrizations.spectral_norm(nn.Linear(width, width)),
    "spectral norm, by hook": lambda width: nn.utils.spectral_norm(nn.Linear(width, width)),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


def setting(layer: Callable[[int], nn.Module], method: Any = None) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), layer(6), nn.Tanh(), nn.Linear(6, 1)).double()
    trained = [p for name, p in model.named_parameters() if "key" not in name]
    base = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    return model, steppe.SharpnessAware(base, method or steppe.SAM(1.0), model=model)


def batch(number: int) -> Tensor:
    return torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def loss_on(model: nn.Module, number: int) -> Tensor:
    return (model(batch(number)) - 1).square().mean()


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """And the parameters of momentum encoders."""
    encoders = [(k, p) for k, p in model.named_parameters() if "key" in k]
    return {k: v.detach().clone() for k, v in [*model.named_buffers(), *encoders]}


@pytest.mark.parametrize("method", [steppe.SAM(1.0), steppe.SAM(1.0, steps=3), steppe.SASAM()], ids=["sam", "3", "sa"])
@layers
def test_buffers_move_as_in_one_plain_pass(layer: Callable[[int], nn.Module], method: Any) -> None:
    model, opt = setting(layer, method)
    for i in range(4):
        for module in model.modules():
            if isinstance(
                weight := vars(module).get("weight"), Tensor
            ):  # of a hook, with its graph: deepcopy refuses it
                weight.detach_()
        plain = copy.deepcopy(model)
        loss_on(plain, i)
        opt.step(lambda pass_: pass_.backward(loss_on(model, i)))
        same(buffers(model), buffers(plain))


def test_buffers_that_get_their_shapes_in_the_first_pass() -> None:
    (model, opt), (plain, _) = (setting(lambda width: nn.LazyBatchNorm1d(affine=False)) for _ in range(2))
    loss_on(plain, 0)
    opt.step(lambda pass_: pass_.backward(loss_on(model, 0)))
    same(buffers(model), buffers(plain))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, Centred, LAYERS["spectral norm"]])
def test_buffers_keep_their_identity(layer: Callable[[int], nn.Module]) -> None:
    """Others may hold them, as DDP and exported graphs do."""
    model, opt = setting(layer)
    before = {k: id(v) for k, v in model.named_buffers()}
    for i in range(2):
        opt.step(lambda pass_: pass_.backward(loss_on(model, i)))
    assert before == {k: id(v) for k, v in model.named_buffers()}


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("bad", [0, 1])
@layers
def test_an_exception_gives_every_buffer_back(layer: Callable[[int], nn.Module], bad: int, step: int) -> None:
    """In the first step too, when it is not known yet which buffers a pass moves."""
    model, opt = setting(layer)
    for i in range(step):
        opt.step(lambda pass_: pass_.backward(loss_on(model, i)))
    before = buffers(model)
    with pytest.raises(ZeroDivisionError):
        for number, pass_ in enumerate(opt.passes()):
            pass_.backward(loss_on(model, 9))
            1 // (bad - number)
    same(buffers(model), before)


def test_cumulative_statistics_are_the_mean_over_steps() -> None:
    """With momentum=None a batch counted twice would get the weight of two."""
    model, opt = setting(LAYERS["BatchNorm, cumulative"])
    means = []
    for i in range(4):
        means.append(model[0](batch(i)).detach().mean(0))
        opt.step(lambda pass_: pass_.backward(loss_on(model, i)))
    torch.testing.assert_close(model[1].running_mean, torch.stack(means).mean(0), rtol=1e-12, atol=1e-14)
    assert int(model[1].num_batches_tracked) == 4


def test_statistics_that_move_in_part_of_the_model_only() -> None:
    """A frozen, evaluated backbone keeps its statistics while the head's move."""
    model, opt = setting(nn.BatchNorm1d)
    extra = nn.BatchNorm1d(3).double().eval()
    whole = nn.Sequential(extra, model)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=whole)
    before = buffers(extra)
    opt.step(lambda pass_: pass_.backward(loss_on(whole, 0)))
    same(buffers(extra), before)
    assert int(model[1].num_batches_tracked) == 1


def blind(model: nn.Module) -> Any:
    """An optimizer that was not given the model."""
    return steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1))


def test_without_the_model_training_statistics_are_warned_of_once() -> None:
    model, _ = setting(nn.BatchNorm1d)
    opt = blind(model)
    with pytest.warns(UserWarning, match=r"batch normalisation.*model=model") as caught:
        opt.step(lambda pass_: pass_.backward(loss_on(model, 0)))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step(lambda pass_: pass_.backward(loss_on(model, 1)))


def test_without_the_model_a_loop_is_warned_too() -> None:
    model, _ = setting(nn.BatchNorm1d)
    opt = blind(model)
    with pytest.warns(UserWarning, match="batch normalisation"):
        for pass_ in opt.passes():
            pass_.backward(loss_on(model, 0))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.LayerNorm, nn.Identity])
def test_without_the_model_there_is_nothing_to_warn_of(layer: Any) -> None:
    """In eval mode, and for normalisation without running statistics."""
    model, _ = setting(layer)
    opt = blind(model.eval() if layer is nn.BatchNorm1d else model)
    opt.step(lambda pass_: pass_.backward(loss_on(model, 0)))


@pytest.mark.parametrize("apart", ["trained", "frozen", "without weights"])
def test_a_discriminator_under_the_generators_optimizer_is_warned_of(apart: str) -> None:
    generator = setting(nn.BatchNorm1d)[0]
    critic = nn.Sequential(
        nn.Linear(1, 4), nn.BatchNorm1d(4, affine=apart != "without weights"), nn.Linear(4, 1)
    ).double()
    critic.requires_grad_(apart != "frozen")

    def take(model: nn.Module, number: int) -> None:
        opt.step(lambda pass_: pass_.backward(critic(model(batch(number))).square().mean()))

    opt = steppe.sam(torch.optim.SGD(generator.parameters(), lr=0.1), model=generator)
    with pytest.warns(UserWarning, match=r"outside of model=(.|\n)*ModuleList") as caught:
        take(generator, 0)
    assert len(caught) == 1
    both = nn.ModuleList([generator, critic])
    opt = steppe.sam(torch.optim.SGD(generator.parameters(), lr=0.1), model=both)
    critic[1].reset_running_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):
            take(generator, i)
    assert int(critic[1].num_batches_tracked) == 3


def test_a_layer_outside_of_the_model_that_comes_later_is_warned_of() -> None:
    model, opt = setting(nn.BatchNorm1d)
    opt.step(lambda pass_: pass_.backward(loss_on(model, 0)))
    other = nn.BatchNorm1d(1).double()
    opt.add_param_group({"params": list(other.parameters())})
    with pytest.warns(UserWarning, match="outside of model="):
        opt.step(lambda pass_: pass_.backward(other(model(batch(1))).square().mean()))


def test_a_graph_that_somebody_keeps_is_not_written_to() -> None:
    """Values that are put back are the same values: the discriminator's backward pass may come after the step."""
    model, opt = setting(nn.BatchNorm1d)
    critic = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 1)).double()
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=nn.ModuleList([model, critic]))
    kept = critic(batch(3)[:, :1]).square().mean()
    for i in range(2):
        opt.step(lambda pass_: pass_.backward(critic(model(batch(i))).square().mean()))
    kept.backward()
    assert critic[0].weight.grad is not None


def test_what_exceeds_the_weights_is_not_copied_until_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large frozen backbone is watched; from the step in which a pass writes to it, it is put back."""
    monkeypatch.setattr("steppe.optim.forward_state.SPARE", 0)
    torch.manual_seed(0)
    backbone = nn.Linear(3, 400).requires_grad_(False)
    backbone.register_buffer("small", torch.zeros(2))
    model = nn.Sequential(backbone, nn.Linear(400, 1, bias=False)).double()
    opt = steppe.sam(torch.optim.SGD(model[1].parameters(), lr=0.1), model=model)

    def take(write: bool) -> None:
        for pass_ in opt.passes():
            if write:
                backbone.weight.data.mul_(2.0)
                backbone.weight.detach().mul_(1.0)  # raises the version
            pass_.backward(loss_on(model, 0))
        opt.step()

    take(write=False)
    held = opt.forward_state.held(opt.param_layout().space).tensors
    assert [t.shape for t in held] == [torch.Size([2]), torch.Size([400])]
    before = backbone.weight.clone()
    take(write=True)
    assert torch.equal(backbone.weight, 2 * before)
    for pass_ in opt.passes():
        backbone.weight.data.mul_(3.0)
        pass_.backward(loss_on(model, 0))
    opt.zero_grad()
    assert torch.equal(backbone.weight, 2 * before)


def test_a_one_pass_method_has_nothing_to_warn_of() -> None:
    model, _ = setting(nn.BatchNorm1d)
    opt = steppe.build("none", torch.optim.SGD(model.parameters(), lr=0.1))
    opt.step(lambda pass_: pass_.backward(loss_on(model, 0)))
