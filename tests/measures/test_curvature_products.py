"""Products with Hessians and Gauss-Newton matrices: of any model, in any batches, against matrices found otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from curvature_problems import close, conv, directions, matrix, mlp, right, small
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import MAKERS, Case, checkpointed, convolutions, lstm, make, tied, transformer
from oracles import curvature as oracle
from problems import (
    bowl_problem,
    each_cross_entropy,
    flat_parts,
    flat_weights,
    random_hessian,
    random_vector,
)
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, jvp
from torch.nn import functional
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parametrizations

from steppe import Elementwise, NormLayersOnly, Vector
from steppe.core.basis import flat
from steppe.core.metric import CustomScales
from steppe.measures.curvature.forms import Form, gauss_newton, hessian
from steppe.measures.curvature.operator import AT_ONCE, GRAPH, Curvature
from steppe.measures.curvature.spectrum import Dense
from steppe.measures.objective import Objective

F64 = torch.float64
FORMS: list[Form] = [hessian, gauss_newton]


# -- any model ------------------------------------------------------------------------------------------


def slope_of_gradients(case: Case, v: Vector, h: float = 1e-5) -> list[Tensor]:
    """Central differences of the gradients of a copy that was really moved: nothing is differentiated twice."""
    there, back = (case.moved([t * step for t in v.tensors])[1] for step in (h, -h))
    return [(a - b) / (2 * h) for a, b in zip(there, back, strict=True)]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_products_are_the_change_of_the_gradient(maker: Callable[[], Case]) -> None:
    case = make(maker)
    objective = case.objective()
    one, two = directions(objective, 2)
    together = Curvature(objective).products([one, two])
    close(Curvature(objective).product(one).tensors, slope_of_gradients(case, one), 1e-7)
    close(together[1].tensors, slope_of_gradients(case, two), 1e-7)
    assert float(together[0].norm()) > 1e-3  # there was something to be wrong about


@pytest.mark.sampled(10)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_however_they_are_computed_products_are_the_same(maker: Callable[[], Case], form: Form) -> None:
    """One direction at a time or several, and with graphs that are kept or made anew."""
    objective = make(maker).objective()
    vectors = directions(objective, 3)
    kept, alone = Curvature(objective, form), Curvature(objective, form, memory=0)
    expected = [kept.product(v).tensors for v in vectors]
    close([v.tensors for v in kept.products(vectors)], expected)
    close([v.tensors for v in alone.products(vectors)], expected)
    close([alone.product(v).tensors for v in vectors], expected)


class Attention(nn.Module):
    """Self-attention by the layer of torch, with weights or without, or by the function."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "function":
            together = functional.linear(x, self.layer.in_proj_weight, self.layer.in_proj_bias)
            q, k, v = together.unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)  # of every row and head
            heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.layer.out_proj(heads.transpose(1, 2).flatten(2))
        out: Tensor = self.layer(x, x, x, need_weights=self.kind == "weights")[0]
        return out


class Steps(nn.Module):
    """A recurrent cell, one step after the other."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class First(nn.Module):
    """The output of a recurrent layer without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


LAYERS: dict[str, tuple[tuple[int, ...], Callable[[], list[nn.Module]]]] = {
    "GELU": ((4,), lambda: [nn.Linear(4, 6), nn.GELU()]),
    "Softmax": ((4,), lambda: [nn.Linear(4, 6), nn.Softmax(-1)]),
    "RMSNorm": ((4,), lambda: [nn.Linear(4, 6), nn.RMSNorm(6)]),
    "GroupNorm": ((4,), lambda: [nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh()]),
    "BatchNorm1d": ((4,), lambda: [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()]),
    "InstanceNorm": ((2, 3, 3), lambda: [nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.Tanh()]),
    "transposed": ((2, 3, 3), lambda: [nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Tanh()]),
    "pooling": ((2, 4, 4), lambda: [nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Tanh(), nn.MaxPool2d(2)]),
    "MultiheadAttention": ((3, 4), lambda: [Attention("layer")]),
    "MultiheadAttention with weights": ((3, 4), lambda: [Attention("weights")]),
    "scaled_dot_product_attention": ((3, 4), lambda: [Attention("function")]),
    "GRU": ((3, 4), lambda: [First(nn.GRU(4, 3, batch_first=True))]),
    "LSTMCell": ((3, 4), lambda: [Steps(nn.LSTMCell(4, 3))]),
}


@pytest.mark.parametrize(("layer", "statistics"), [*((name, "running") for name in LAYERS), ("BatchNorm1d", "batch")])
def test_layers(layer: str, statistics: Any) -> None:
    shape, layers = LAYERS[layer]
    torch.manual_seed(0)
    model = nn.Sequential(*layers(), nn.Flatten(), nn.LazyLinear(3)).double()
    batches = [(torch.randn(n, *shape, dtype=F64), torch.randint(0, 3, (n,))) for n in (5, 3)]
    model(batches[0][0])
    with torch.no_grad():  # norms start at ones and zeros, which would hide mistakes
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    objective = Objective(model, cross_entropy, batches, statistics=statistics)
    one, two = directions(objective, 2)
    h = 1e-5
    slope = (objective.gradient(one * h)[1] - objective.gradient(one * -h)[1]) * (0.5 / h)
    found = Curvature(objective)
    close(found.product(one).tensors, slope.tensors, 1e-7)
    close(found.products([two, one])[1].tensors, slope.tensors, 1e-7)


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("made", ["parametrization", "hook"])
def test_weight_norm(made: str, dim: int | None) -> None:
    """The second derivative of torch's own operator is wrong: when the last line fails it has been mended."""
    torch.manual_seed(0)
    norm: Any = parametrizations.weight_norm if made == "parametrization" else nn.utils.weight_norm
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.nn.utils.weight_norm`", FutureWarning)
        model = nn.Sequential(norm(nn.Linear(4, 5), dim=dim), nn.Tanh(), nn.Linear(5, 3)).double()
    objective = Objective(model, cross_entropy, small().batches)
    one, two = directions(objective, 2)
    for v, found in ((one, Curvature(objective).product(one)), (two, Curvature(objective).products([one, two])[1])):
        slope = (objective.gradient(v * 1e-5)[1] - objective.gradient(v * -1e-5)[1]) * 0.5e5
        close(found.tensors, slope.tensors, 1e-7)
    weights = random_vector(6).view(2, 3).requires_grad_(), random_vector(2).view(2, 1).requires_grad_()
    assert not torch.autograd.gradgradcheck(lambda v, g: torch._weight_norm(v, g, 0), weights, raise_exception=False)


def test_rows_of_an_embedding_that_are_padding_do_not_move() -> None:
    """Their gradient is 0 by decree, so that differences of gradients are not symmetric; the Hessian is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    with torch.no_grad():
        model[0].weight[1] = 0.5
    tokens, y = torch.arange(24).reshape(6, 4) * 7 % 5, torch.arange(6) % 3
    found = matrix(Objective(model, cross_entropy, [(tokens, y)]))
    whole = oracle.hessian_row_by_row(oracle.mean_loss(model, cross_entropy, [(tokens, y)]), flat_weights(model))
    padding = torch.zeros(len(whole), dtype=torch.bool)
    padding[3:6] = True
    assert found[padding].eq(0).all()
    close(found[~padding][:, ~padding], whole[~padding][:, ~padding])


# -- the whole matrix -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "small", "conv"])
def test_the_hessian_is_that_of_functorch(name: str) -> None:
    close(matrix({"mlp": mlp, "small": small, "conv": conv}[name]()), right(name))


def test_the_hessian_by_differences() -> None:
    objective = small()
    f = oracle.mean_loss(objective.model, cross_entropy, objective.batches)
    close(matrix(objective), oracle.hessian_by_differences(f, flat_weights(objective.model)), 1e-8)


@pytest.mark.parametrize(("kind", "form"), [("Hessian", hessian), ("GGN", gauss_newton)])
@pytest.mark.parametrize("name", ["small", "conv"])
def test_curvlinops_finds_the_same(name: str, kind: str, form: Form) -> None:
    pytest.importorskip("curvlinops")
    objective = conv() if name == "conv" else small(norm=kind != "Hessian")
    theirs = oracle.curvlinops_matrix(kind, objective.model, nn.CrossEntropyLoss(), objective.batches)
    close(matrix(objective, form), theirs)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in jvp
def test_forward_mode_is_wrong_through_layer_norm_and_ours_is_not() -> None:
    """When the second half fails torch has been mended, and faster products may be allowed."""
    objective = small()
    f, w = oracle.mean_loss(objective.model, cross_entropy, objective.batches), flat_weights(objective.model)
    slopes = oracle.hessian_by_differences(f, w)

    def error(found: Tensor) -> float:
        return float((found - slopes).norm() / slopes.norm())

    assert error(matrix(objective)) < 1e-8
    assert error(torch.stack([jvp(grad(f), (w,), (e,))[1] for e in torch.eye(len(w), dtype=F64)])) < 1e-8
    assert error(jacrev(jacfwd(f))(w)) > 0.1


@pytest.mark.parametrize("name", ["0.*", "*.bias", "3.weight"])
@pytest.mark.parametrize("how", ["only", "frozen"])
def test_the_hessian_of_some_parameters_is_a_block_of_the_whole(how: str, name: str) -> None:
    objective = small()
    chosen = Objective(objective.model, cross_entropy, objective.batches, only=[name]).params
    if how == "frozen":
        for other, p in objective.model.named_parameters():
            p.requires_grad_(other in chosen)
    part = Objective(objective.model, cross_entropy, objective.batches, only=[name] if how == "only" else None)
    index = torch.cat([torch.arange(53)[s] for n, s in flat_parts(objective.model).items() if n in chosen])
    assert 0 < len(index) < 53
    close(matrix(part), right("small")[index][:, index])


def test_shared_parameters_count_once_with_both_their_roles() -> None:
    case = make(tied)
    w, (x, y) = flat_weights(case.model), (torch.cat(parts) for parts in zip(*case.batches, strict=True))
    names = [name for name, _ in case.model.named_parameters()]
    assert "decoder.weight" not in names

    def f(v: Tensor) -> Tensor:
        """Written out, without modules."""
        e, wide, b, c = v[:28].view(7, 4), v[28:44].view(4, 4), v[44:48], v[48:]
        assert names == ["embedding.weight", "middle.weight", "middle.bias", "decoder.bias"]
        return case.loss_fn((e[x] @ wide.T + b).tanh() @ e.T + c, y)

    close(matrix(case.objective()), oracle.hessian(f, w))


def test_parameters_that_take_no_part_have_no_curvature() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.layer = nn.Linear(2, 2, dtype=F64), nn.Linear(4, 3, dtype=F64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    model, batches = Half(), small().batches
    expected = matrix(Objective(model.layer, cross_entropy, batches))
    for form in FORMS:
        found = matrix(Objective(model, cross_entropy, batches), form)
        assert found[:6].eq(0).all()
        close(found[6:, 6:], expected)
    model.layer.requires_grad_(False)
    with pytest.raises(ValueError, match="does not depend on the parameters"):
        matrix(Objective(model, cross_entropy, batches))


@pytest.mark.parametrize("form", FORMS)
def test_a_linear_loss_has_no_curvature(form: Form) -> None:
    model = nn.Linear(4, 1).double()
    objective = Objective(model, lambda out, y: (out[:, 0] * y).mean(), [(random_vector(8).view(2, 4), torch.ones(2))])
    for vectors in (directions(objective, 1), directions(objective, 3)):
        assert all(v.norm() == 0 for v in Curvature(objective, form).products(vectors))


def test_a_parameter_that_enters_linearly_still_bends_others() -> None:
    """L = a b: neither entry of the gradient depends on its own weight, each on the other."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.a * self.b * x

    objective = Objective(Product(), lambda out, y: out, [(torch.ones(3), torch.zeros(3))])
    close(matrix(objective), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64))


def test_losses_may_come_one_a_row() -> None:
    objective = small()
    rows = Objective(objective.model, each_cross_entropy, objective.batches)
    for form in FORMS:
        close(matrix(rows, form), matrix(objective, form))


def test_checkpointed_activations_are_computed_again_with_the_right_weights() -> None:
    case = make(checkpointed)
    model: Any = case.model
    plain = nn.Sequential(model.first, *model.block, model.last)
    expected = matrix(Objective(plain, cross_entropy, case.batches))
    order = [name for name, _ in plain.named_parameters()]
    assert order == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    for memory in (None, 0.0):
        close(matrix(case.objective(), memory=memory), expected)


def test_checkpointed_activations_are_computed_again_in_the_same_mode() -> None:
    """The model may be in training mode, with dropout, when a product makes it compute something again."""
    case = make(checkpointed)
    model: Any = case.model
    expected = [matrix(case.objective(), form) for form in FORMS]
    model.block.append(nn.Dropout(0.5))
    model.train()
    for form, whole in zip(FORMS, expected, strict=True):
        operator = Curvature(case.objective(), form)
        for v in directions(operator.objective, 2):
            close(flat(operator.product(v)), whole @ flat(v))
    assert model.training


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("maker", [convolutions, lstm, transformer], ids=lambda f: f.__name__)
def test_single_precision(maker: Callable[[], Case], form: Form) -> None:
    case = make(maker)
    exact, v = case.objective(), directions(case.objective(), 1)[0]
    expected = flat(Curvature(exact, form).product(v))
    batches = [tuple(t.float() if t.is_floating_point() else t for t in b) for b in case.batches]
    rough = Objective(case.model.float(), case.loss_fn, batches)
    found = Curvature(rough, form).product(rough.space.vector([t.float() for t in v.tensors]))
    assert all(t.dtype is torch.float32 for t in found.tensors)
    assert float((flat(found).double() - expected).norm() / expected.norm()) < 1e-5


# -- closed forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_linear_models(form: Form, bias: bool) -> None:
    """Where the output is linear in the weights, the Gauss-Newton matrix is the Hessian."""
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(4, 3, bias=bias).double(), (random_vector(44).view(11, 4), torch.arange(11) % 3)
    targets = random_vector(33).view(11, 3)
    squares = Objective(model, mse_loss, (x, targets), m=4)
    close(matrix(squares, form), oracle.linear_regression_hessian(x, 3, bias))
    entropy = Objective(model, cross_entropy, (x, y), m=4)
    close(matrix(entropy, form), oracle.logistic_regression_hessian(x, model(x).detach(), bias))


def test_diagonal_linear_networks() -> None:
    """||X (u * v) - y||^2 has no 1/2: at a minimum on whitened data its eigenvalues are 2 (u^2 + v^2), and 0."""

    class Diagonal(nn.Module):
        def __init__(self, u: Tensor, v: Tensor) -> None:
            super().__init__()
            self.u, self.v = nn.Parameter(u.clone()), nn.Parameter(v.clone())

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.u * self.v)

    def summed(out: Tensor, y: Tensor) -> Tensor:
        return ((out - y) ** 2).sum()

    x, y = random_vector(24).view(6, 4), random_vector(6, seed=1)
    u, v = random_vector(4, seed=2), random_vector(4, seed=3)
    found = matrix(Objective(Diagonal(u, v), summed, (x, y)))
    close(found, oracle.diagonal_network_hessian(x, y, u, v))
    x = torch.linalg.qr(x).Q
    spectrum = Dense(Curvature(Objective(Diagonal(u, v), summed, (x, x @ (u * v))))).spectrum
    close(spectrum, torch.cat([torch.zeros(4, dtype=F64), 2 * (u**2 + v**2).sort().values]))


def test_bowls_and_planes_in_proportion_of_their_rows() -> None:
    h = random_hessian(5)
    problem = bowl_problem(h, random_vector(5), steps=3, curved=lambda t: t != 1)
    close(matrix(Objective(problem.model, problem.losses, problem.batches)), 2 / 3 * h)


# -- Gauss-Newton ---------------------------------------------------------------------------------------


def test_gauss_newton_by_three_routes() -> None:
    objective = small()
    model, batches = objective.model, objective.batches
    found = matrix(objective, gauss_newton)
    close(found, oracle.gauss_newton(model, cross_entropy, batches, flat_weights(model)))
    close(found, oracle.softmax_fisher(model, batches, flat_weights(model)))
    assert float((found - right("small")).norm() / right("small").norm()) > 0.1  # not the Hessian by accident
    assert float(oracle.eigenvalues(found)[0]) > -1e-14


@pytest.mark.parametrize("maker", [small, conv])
def test_gauss_newton_of_squares(maker: Callable[[], Objective]) -> None:
    objective = maker()
    batches = [(x, random_vector(3 * len(x)).view(-1, 3)) for x, _ in objective.batches]
    asked, w = Objective(objective.model, mse_loss, batches), flat_weights(objective.model)
    close(matrix(asked, gauss_newton), oracle.gauss_newton(objective.model, mse_loss, batches, w))


def test_gauss_newton_of_outputs_that_are_no_tensor_is_refused_with_what_to_do() -> None:
    objective = small()
    pair = Objective(
        objective.model,
        lambda out, y: cross_entropy(out["logits"], y),
        objective.batches,
        forward=lambda model, batch: ({"logits": model(batch[0])}, batch[1]),
    )
    close(matrix(pair), right("small"))
    with pytest.raises(TypeError, match="one tensor, not dict: let forward="):
        matrix(pair, gauss_newton)


@pytest.mark.parametrize("memory", [None, 0.0])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("metric", [None, Elementwise(0.1)])
def test_the_operators_gradient_is_the_gradient(form: Form, memory: float | None, metric: Any) -> None:
    objective = mlp()
    expected = objective.gradient()[1]
    expected = expected if metric is None else expected * metric(objective)
    close(Curvature(objective, form, metric, memory).gradient().tensors, expected.tensors)


# -- rescaled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_rescaled_operator_is_a_matrix_times_the_scales_of_both_its_sides(form: Form) -> None:
    objective = small()
    plain = matrix(objective, form)
    w, parts = flat_weights(objective.model), flat_parts(objective.model)
    close(matrix(objective, form, metric=Elementwise(0.0, everywhere=True)), oracle.rescaled(plain, w.abs()))
    own = random_vector(53, seed=7)
    own[::4] = 0  # pinned
    given = CustomScales([own[s].view(p.shape) for s, p in zip(parts.values(), objective.params.values(), strict=True)])
    close(matrix(objective, form, metric=given), oracle.rescaled(plain, own))
    norms = torch.zeros(53, dtype=F64)
    norms[parts["1.weight"]] = norms[parts["1.bias"]] = 1
    close(matrix(objective, form, metric=NormLayersOnly()), oracle.rescaled(plain, norms))


def test_the_adaptive_hessian_is_the_curvature_in_relative_coordinates() -> None:
    objective = small()
    f, w = oracle.mean_loss(objective.model, cross_entropy, objective.batches), flat_weights(objective.model)
    in_gamma = oracle.hessian(lambda gamma: f(w + w.abs() * gamma), torch.zeros_like(w))
    close(matrix(objective, metric=Elementwise(0.0, everywhere=True)), in_gamma)


# -- graphs and their cost ------------------------------------------------------------------------------


def gradients_for(products: int, **options: Any) -> tuple[float, list[list[Tensor]]]:
    """What graphs cost, in gradients of all rows, when products are asked for one after the other."""
    objective = mlp(rows=(4, 4, 4))
    operator = Curvature(objective, **options)
    found = [operator.product(v).tensors for v in directions(objective, products)]
    assert objective.spent().products == products
    return objective.spent().gradients, found


def test_graphs_are_kept_as_far_as_memory_allows() -> None:
    all_kept, expected = gradients_for(3)
    assert all_kept == pytest.approx(1)
    costs = []
    for memory in torch.logspace(3.5, 5.5, 14).tolist():
        cost, found = gradients_for(3, memory=memory)
        close(found, expected)
        costs.append(round(cost * 3))
    assert all(a >= b for a, b in pairwise(costs))
    assert set(costs) == {9, 7, 5, 3}  # none of three graphs kept, one, two, all


def test_several_vectors_share_one_graph_even_where_none_is_kept() -> None:
    objective = mlp()
    Curvature(objective, memory=0).products(directions(objective, 10))
    assert objective.spent().gradients == pytest.approx(1)
    assert objective.spent().products == pytest.approx(10)


def test_memory_is_not_underrated() -> None:
    """Layers of one size after another: a tensor that was freed must not lend its address to the next one."""
    width, depth, rows = 64, 12, 1000
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    model, x = nn.Sequential(*layers, nn.Linear(width, 1)), torch.randn(2 * rows, width)
    objective = Objective(model, lambda out, y: out[:, 0] * y, (x, torch.ones(2 * rows)), m=rows)
    activations = depth * rows * width * 4
    operator = Curvature(objective, memory=0.9 * GRAPH * activations)  # of one batch
    for v in directions(objective, 2):
        operator.product(v)
    assert objective.spent().gradients == pytest.approx(2)  # no graph was kept


@pytest.mark.parametrize("n", [1, 2, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + 3])
def test_any_number_of_vectors(n: int) -> None:
    objective = mlp()
    vectors = directions(objective, n)
    found = torch.stack([flat(v) for v in Curvature(objective).products(vectors)])
    close(found, torch.stack([flat(v) for v in vectors]) @ right("mlp"))
    assert objective.spent().products == pytest.approx(n)


@pytest.mark.parametrize("metric", [None, Elementwise(0.1), NormLayersOnly()])
def test_vectors_that_go_in_stay_as_they_are(metric: Any) -> None:
    objective = mlp()
    vectors = directions(objective, 3)
    before = [flat(v).clone() for v in vectors]
    operator = Curvature(objective, metric=metric)
    first = operator.product(vectors[0])
    first.mul_(0.0)  # nor does what comes out share memory with what is kept
    operator.products(vectors)
    operator.gradient().mul_(0.0)
    assert all(torch.equal(flat(v), b) for v, b in zip(vectors, before, strict=True))
    again, fresh = operator.product(vectors[0]), Curvature(mlp(), metric=metric).product(vectors[0])
    close(again.tensors, fresh.tensors)
    close(operator.gradient().tensors, Curvature(mlp(), metric=metric).gradient().tensors)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter(mode: Any) -> None:
    objective = mlp()
    vectors = directions(objective, 2)
    with mode():
        for form in FORMS:
            operator = Curvature(objective, form)
            found = [operator.product(vectors[0]), *operator.products(vectors)]
            assert not any(t.requires_grad for v in found for t in v.tensors)
            close(found[0].tensors, found[1].tensors)
    close(found[0].tensors, Curvature(mlp(), gauss_newton).product(vectors[0]).tensors)


def test_weights_that_moved_since_are_noticed() -> None:
    """A kept graph belongs to the weights that it was made at."""
    objective = small()
    operator = Curvature(objective)
    v = directions(objective, 1)[0]
    operator.product(v)
    with torch.no_grad():
        objective.model[3].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        operator.product(v)
    expected = oracle.hessian(
        oracle.mean_loss(objective.model, cross_entropy, objective.batches), flat_weights(objective.model)
    )
    close(flat(Curvature(objective).product(v)), expected @ flat(v))


# -- laws -----------------------------------------------------------------------------------------------


@cache
def operators() -> list[Curvature]:
    adaptive = Elementwise(0.0, everywhere=True)
    return [Curvature(mlp()), Curvature(mlp(), gauss_newton), Curvature(mlp(), metric=adaptive), Curvature(conv())]


@settings(deadline=None, max_examples=15)
@given(which=st.integers(0, 3), seed=st.integers(0, 10_000), a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_operators_are_linear_and_symmetric(which: int, seed: int, a: float, b: float) -> None:
    operator = operators()[which]
    u, v = (operator.objective.draw(seed, i).normal() for i in range(2))
    au, av, both = operator.product(u), operator.product(v), operator.product((u * a).add_(v, b))
    close(flat(both), a * flat(au) + b * flat(av), 1e-10)
    assert float(u.dot(av)) == pytest.approx(float(v.dot(au)), rel=1e-9, abs=1e-10)
    if which == 1:
        assert float(u.dot(au)) >= 0


@settings(deadline=None, max_examples=10)
@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=8), seed=st.integers(0, 100))
def test_how_rows_are_cut_into_batches_does_not_matter(cuts: list[int], seed: int) -> None:
    rows = [min(c, 12 - sum(cuts[:i])) for i, c in enumerate(cuts) if sum(cuts[:i]) < 12]
    objective = mlp((*rows, 12 - sum(rows)) if sum(rows) < 12 else tuple(rows))
    v = objective.draw(seed).normal()
    close(flat(Curvature(objective).product(v)), right("mlp") @ flat(v), 1e-11)
