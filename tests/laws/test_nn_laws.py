"""What holds for every reference model: shapes, gradients, second derivatives, seeds, functional calls."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.functional import cross_entropy

from steppe.nn.mlp import mlp
from steppe.nn.resnet import cifar_resnet, resnet18
from steppe.nn.vit import simple_vit, vit_small
from steppe_papers.models.convnets import densenet121, efficientnet, vgg19
from steppe_papers.models.diagonal import diagonal
from steppe_papers.models.resnets import preact_resnet18, pyramidnet, wide_resnet

Make = Callable[[tuple[int, ...], int], nn.Module]

SMALL: dict[str, Make] = {  # every architecture, small enough for a second derivative
    "mlp": lambda shape, outputs: mlp(shape, outputs, width=5, depth=3),
    "resnet18": lambda shape, outputs: resnet18(shape, outputs, width=2),
    "resnet18, large stem": lambda shape, outputs: resnet18(shape, outputs, width=2, stem="large"),
    "preact-resnet18": lambda shape, outputs: preact_resnet18(shape, outputs, width=2),
    "efficientnet": lambda shape, outputs: efficientnet(shape, outputs, 0.1, 0.1, 0.0, 0.0),
    "resnet14": lambda shape, outputs: cifar_resnet(shape, outputs, depth=14, width=2),
    "wrn16-1": lambda shape, outputs: wide_resnet(shape, outputs, depth=16, width=1),
    "vgg19": lambda shape, outputs: vgg19(shape, outputs, width=1),
    "pyramidnet20": lambda shape, outputs: pyramidnet(shape, outputs, 20, 9, "bottleneck"),
    "pyramidnet14": lambda shape, outputs: pyramidnet(shape, outputs, 14, 9, "basic"),
    "densenet": lambda shape, outputs: densenet121(shape, outputs, growth=2, blocks=(2, 1, 2)),
    "simple-vit": lambda shape, outputs: simple_vit(shape, outputs, 2, 8, 2, 2, 3, 6),
    "vit-small": lambda shape, outputs: vit_small(shape, outputs, 2, 8, 2, 2),
    "diagonal": lambda shape, outputs: diagonal(shape, outputs),
}
every = pytest.mark.parametrize("name", SMALL)


def shape_for(name: str, channels: int = 2) -> tuple[int, int, int]:
    return (channels, 32, 32) if name == "vgg19" else (channels, 8, 8)


def made(name: str, outputs: int = 3, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in double precision, ready to be measured, with no weight left at zero, and a batch for it."""
    torch.manual_seed(seed)
    model = SMALL[name](shape_for(name), outputs).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that do something
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model, torch.randn(4, *shape_for(name), dtype=torch.float64), torch.randint(outputs, (4,))


@every
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("outputs", [1, 7])
def test_one_output_a_row_for_any_channels_and_classes(name: str, channels: int, outputs: int) -> None:
    shape = shape_for(name, channels)
    model = SMALL[name](shape, outputs)
    assert model(torch.randn(3, *shape)).shape == (3, outputs)
    assert model.eval()(torch.randn(1, *shape)).shape == (1, outputs)


@pytest.mark.parametrize("name", [n for n in SMALL if n != "vgg19"])
@settings(max_examples=12, deadline=None)
@given(height=st.integers(4, 20), width=st.integers(4, 20))
def test_images_of_any_size_and_of_unequal_sides(name: str, height: int, width: int) -> None:
    if "vit" in name:
        height, width = 2 * height, 2 * width  # patches of two
    model = SMALL[name]((1, height, width), 2).eval()
    assert model(torch.zeros(1, 1, height, width)).shape == (1, 2)


@every
def test_every_parameter_has_a_say(name: str) -> None:
    model, rows, targets = made(name)
    cross_entropy(model(rows), targets).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-12]


@pytest.mark.sampled(6)
@every
def test_a_few_steps_of_training_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = SMALL[name](shape_for(name), 2)
    rows, targets = torch.randn(8, *shape_for(name)), torch.arange(8) % 2
    rows += (2 * targets - 1).view(-1, 1, 1, 1)  # classes that a mean tells apart
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        losses.append(cross_entropy(model(rows), targets))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


@every
def test_a_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return SMALL[name](shape_for(name), 3).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


@every
def test_functional_call_is_the_call(name: str) -> None:
    model, rows, _ = made(name)
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    expected = model(rows)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    torch.testing.assert_close(functional_call(model, state, rows), expected, rtol=0, atol=0)


@every
def test_rows_do_not_see_each_other_when_measured(name: str) -> None:
    model, rows, targets = made(name)
    weights = {k: v.detach() for k, v in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, row[None]), target[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, rows, targets)
    model.zero_grad()
    cross_entropy(model(rows), targets).backward()
    for k, p in model.named_parameters():
        torch.testing.assert_close(each[k].mean(0), p.grad)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in jvp
@every
def test_products_with_the_hessian_agree_with_differences_of_gradients(name: str) -> None:
    model, rows, targets = made(name)
    weights = {k: v.detach() for k, v in model.named_parameters()}
    along = {k: torch.randn_like(v) for k, v in weights.items()}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(model, weights, rows), targets)

    def moved(step: float) -> dict[str, Tensor]:
        return grad(loss)({k: v + step * along[k] for k, v in weights.items()})

    twice = torch.autograd.grad(  # reverse over reverse, as plain torch code does it
        sum((g * along[k]).sum() for k, g in zip(weights, _gradients(model, rows, targets), strict=True)),
        list(model.parameters()),
    )
    forward = jvp(grad(loss), (weights,), (along,))[1]  # forward over reverse
    step = 1e-6  # small enough that few ReLUs change sides between the two points
    ahead, behind = moved(step), moved(-step)
    size = max(float(v.abs().max()) for v in forward.values())
    assert size > 1e-3
    for k, by_reverse in zip(weights, twice, strict=True):
        torch.testing.assert_close(by_reverse, forward[k], rtol=1e-8, atol=1e-9 * size)
        torch.testing.assert_close((ahead[k] - behind[k]) / (2 * step), forward[k], rtol=1e-4, atol=1e-5 * size)


def _gradients(model: nn.Module, rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(cross_entropy(model(rows), targets), list(model.parameters()), create_graph=True)


@every
def test_copies_and_checkpoints_are_the_model(name: str) -> None:
    model, rows, _ = made(name)
    expected = model(rows)
    torch.testing.assert_close(copy.deepcopy(model)(rows), expected, rtol=0, atol=0)
    other = SMALL[name](shape_for(name), 3).double().eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(rows), expected, rtol=0, atol=0)


@every
def test_half_precision_stays_near(name: str) -> None:
    model, rows, _ = made(name)
    model, rows = model.float(), rows.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(rows)
    full = model(rows)
    assert (low.float() - full).norm() < 0.1 * full.norm()


@every
def test_parameters_of_norms_are_told_by_their_names(name: str) -> None:
    """Methods that treat norms apart know them by their names where they have no model to look at."""
    model = SMALL[name](shape_for(name), 3)
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            assert path.rpartition(".")[2].startswith("norm")


def test_the_hessian_of_a_diagonal_network_is_the_papers_doubled() -> None:
    """Section 5.2: with X^T X = 1 and at a minimum, blocks diag(v v), diag(u v), diag(u u); Eq. 6 has no half."""
    torch.manual_seed(0)
    d = 4
    model = diagonal((d,), 1, scale=1.0).double()
    rows = torch.linalg.qr(torch.randn(9, d, dtype=torch.float64)).Q
    u, v = model.u.detach()[0], model.v.detach()[0]
    y = rows @ (u * v)

    def loss(w: Tensor) -> Tensor:
        predictions = functional_call(model, {"u": w[None, :d], "v": w[None, d:]}, rows)[:, 0]
        return ((predictions - y) ** 2).sum()

    printed = torch.cat(
        [torch.cat([(v * v).diag(), (u * v).diag()], 1), torch.cat([(u * v).diag(), (u * u).diag()], 1)]
    )
    torch.testing.assert_close(hessian(loss)(torch.cat([u, v])), 2 * printed)
