"""Every row's squared gradient norm, by every way, against a plain loop of single rows; and what each way refuses."""

from __future__ import annotations

import threading
import weakref
from copy import deepcopy
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import MAKERS, make
from problems import each_cross_entropy
from snapshots import assert_untouched
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from steppe.measures import ghost_layers
from steppe.measures.batches import row, rows_of
from steppe.measures.estimate import NotFinite, with_cost
from steppe.measures.fisher import FisherTrace, fisher_traces
from steppe.measures.ghost import ghost_squares
from steppe.measures.objective import Objective

FLOAT = torch.float64
WAYS = ["ghost", "vmap", "rows", None]
ROWS = 5


def naive(objective: Objective, model: nn.Module | None = None) -> torch.Tensor:
    """A loop of batches of one through a copy of the model in eval mode."""
    found = []
    for batch in objective.batches:
        for i in range(rows_of(batch)):
            copy = deepcopy(model or objective.model).eval()
            moving = [p for name, p in copy.named_parameters() if name in objective.params]
            loss = objective.loss_fn(*objective.forward(copy, row(batch, i))).mean()
            grads = torch.autograd.grad(loss, moving, allow_unused=True)
            found.append(sum(float(g.to_dense().double().square().sum()) for g in grads if g is not None))
    return torch.tensor(found, dtype=FLOAT)


def close(found: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-9) -> None:
    assert found.dtype == FLOAT
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-14 * float(expected.max()))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=FLOAT)


def classes(k: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, k, shape)


def ruffled(model: nn.Module) -> nn.Module:
    """Weights and statistics that are not the ones and zeros layers start with, which would hide mistakes."""
    model.double()
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            if t.is_floating_point():
                t.mul_(1 + 0.3 * torch.rand_like(t)).add_(0.1 * torch.rand_like(t))
    return model


def headed(layer: nn.Module, x: torch.Tensor, loss=cross_entropy, **options) -> Objective:
    """The layer under another one that tells classes apart."""
    layer = ruffled(layer)
    with torch.no_grad():
        width = deepcopy(layer).eval()(x)[0].numel()
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), ruffled(nn.Linear(width, 3)))
    return Objective(model, loss, [(x, classes(3, len(x)))], **options)


def named(way: str | None) -> str:
    return str(way)


LAYERS = {
    "linear": lambda: (nn.Linear(4, 6), numbers(ROWS, 4)),
    "linear without bias": lambda: (nn.Linear(4, 6, bias=False), numbers(ROWS, 4)),
    "linear on few positions": lambda: (nn.Linear(8, 8), numbers(ROWS, 2, 8)),
    "linear on many positions": lambda: (nn.Linear(2, 3), numbers(ROWS, 9, 2)),
    "linear on a grid": lambda: (nn.Linear(2, 3), numbers(ROWS, 2, 4, 2)),
    "linear without bias on a sequence": lambda: (nn.Linear(2, 3, bias=False), numbers(ROWS, 4, 2)),
    "conv1d": lambda: (nn.Conv1d(2, 3, 3, stride=2, padding=1), numbers(ROWS, 2, 9)),
    "conv2d on a large map": lambda: (nn.Conv2d(2, 3, 3, padding=1), numbers(ROWS, 2, 7, 8)),
    "conv2d on a small map": lambda: (nn.Conv2d(6, 8, 3), numbers(ROWS, 6, 4, 4)),
    "conv2d without bias": lambda: (nn.Conv2d(2, 3, (2, 3), bias=False), numbers(ROWS, 2, 6, 6)),
    "conv2d depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4), numbers(ROWS, 4, 6, 6)),
    "conv2d same, even kernel": lambda: (nn.Conv2d(2, 3, (4, 3), padding="same", dilation=2), numbers(ROWS, 2, 6, 6)),
    "conv2d valid": lambda: (nn.Conv2d(2, 3, 3, padding="valid"), numbers(ROWS, 2, 6, 6)),
    "conv2d circular": lambda: (
        nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular"),
        numbers(ROWS, 2, 6, 5),
    ),
    "conv2d reflect": lambda: (nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect"), numbers(ROWS, 2, 6, 5)),
    "conv3d": lambda: (nn.Conv3d(2, 4, 2, groups=2, padding_mode="replicate", padding=1), numbers(ROWS, 2, 3, 4, 3)),
    "transposed conv1d": lambda: (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), numbers(ROWS, 4, 5)),
    "transposed conv2d": lambda: (
        nn.ConvTranspose2d(4, 6, 3, stride=3, padding=1, output_padding=(2, 1), groups=2, dilation=2),
        numbers(ROWS, 4, 3, 4),
    ),
    "transposed conv3d": lambda: (nn.ConvTranspose3d(2, 3, 2), numbers(ROWS, 2, 2, 3, 2)),
    "embedding": lambda: (nn.Embedding(4, 3), classes(4, ROWS, 7)),
    "embedding of one token": lambda: (nn.Embedding(4, 3), classes(4, ROWS)),
    "embedding with padding": lambda: (nn.Embedding(4, 3, padding_idx=1), classes(4, ROWS, 2, 4)),
    "sparse embedding": lambda: (nn.Embedding(4, 3, sparse=True), classes(4, ROWS, 7)),
    "layer norm": lambda: (nn.LayerNorm(6), numbers(ROWS, 6)),
    "layer norm on a sequence": lambda: (nn.LayerNorm(6), numbers(ROWS, 4, 6)),
    "layer norm of a map": lambda: (nn.LayerNorm((3, 4), bias=False), numbers(ROWS, 2, 3, 4)),
    "rms norm": lambda: (nn.RMSNorm(6), numbers(ROWS, 3, 6)),
    "group norm": lambda: (nn.GroupNorm(2, 4), numbers(ROWS, 4, 3, 3)),
    "group norm of a vector": lambda: (nn.GroupNorm(2, 6), numbers(ROWS, 6)),
    "batch norm of a vector": lambda: (nn.BatchNorm1d(4), numbers(ROWS, 4)),
    "batch norm of a sequence": lambda: (nn.BatchNorm1d(4), numbers(ROWS, 4, 3)),
    "batch norm": lambda: (nn.BatchNorm2d(4), numbers(ROWS, 4, 3, 3)),
    "instance norm": lambda: (nn.InstanceNorm1d(3, affine=True), numbers(ROWS, 3, 5)),
    "instance norm with statistics": lambda: (
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        numbers(ROWS, 3, 3, 3),
    ),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("way", WAYS, ids=named)
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_exact_by_every_way(name, way):
    if way == "vmap" and "sparse" in name:
        pytest.skip("vmap has no sparse tensors")
    objective = headed(*LAYERS[name]())
    with assert_untouched(objective.model):
        close(fisher_traces(objective, way), naive(objective))


@pytest.mark.parametrize("name", LAYERS)
def test_the_open_way_is_ghost_where_layers_allow_it(name):
    assert FisherTrace().estimate(headed(*LAYERS[name]())).note == "by ghost"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=150, deadline=None)
@given(
    dims=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    each=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    size=st.integers(1, 3),
    padding=st.one_of(st.tuples(*[st.integers(0, 2)] * 3), st.sampled_from(["same", "valid"])),
    mode=st.sampled_from(["zeros", "circular", "replicate", "reflect"]),
    transposed=st.booleans(),
    few=st.booleans(),
)
def test_convolutions_of_any_setting(dims, groups, each, stride, dilation, size, padding, mode, transposed, few):
    """Both formulas, whichever is the cheaper, against the gradients that autograd gives single rows."""
    torch.manual_seed(1)
    ins, outs = each[0] * groups, each[1] * groups
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        padding = 0 if isinstance(padding, str) else tuple(min(p, size - 1) for p in padding[:dims])
        layer = kind(ins, outs, size, padding=padding, output_padding=max(stride, dilation) - 1, **options)
    else:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        options["stride"] = 1 if padding == "same" else stride
        padding = padding if isinstance(padding, str) else padding[:dims]
        layer = kind(ins, outs, size, padding=padding, padding_mode=mode, **options)
    layer.double()
    x = numbers(3, ins, *(5, 6, 5)[:dims])
    g = numbers(*layer(x).shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ghost_layers, "CONVOLUTION", float("inf") if few else 0.0)
        found = ghost_layers.of_convolution(layer, x, g)
    for i in range(3):
        grad = torch.autograd.grad(layer(x[i : i + 1]), layer.weight, g[i : i + 1])[0]
        torch.testing.assert_close(found[i], grad.square().sum(), rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 4), p=st.integers(1, 9), d=st.integers(1, 9), t=st.integers(0, 9), held=st.integers(1, 99))
def test_sums_of_outer_products(n, p, d, t, held):
    torch.manual_seed(1)
    a, g = numbers(n, p, t), numbers(n, d, t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ghost_layers, "HELD", (held, held))
        found = ghost_layers.of_matrices(a, g)
    torch.testing.assert_close(found, torch.einsum("npt,ndt->npd", a, g).square().sum((1, 2)))


def test_no_rounding_makes_a_square_negative():
    """Two positions that cancel: the sum of products over pairs of positions is a difference of equal numbers."""
    a, g = torch.randn(500, 64, 1), torch.randn(500, 64, 1)
    found = ghost_layers.of_few_positions(torch.cat([a, a * (1 + 1e-6)], 2), torch.cat([g, -g * (1 + 1e-6)], 2))
    assert (found >= 0).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rows=st.integers(1, 4), length=st.integers(1, 6), padded=st.booleans())
def test_tokens_that_come_again_are_summed_first(data, rows, length, padded):
    tokens = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=rows * length, max_size=rows * length)))
    tokens, layer = tokens.view(rows, length), nn.Embedding(3, 2, padding_idx=0 if padded else None)
    g = numbers(rows, length, 2)
    sums = torch.zeros(rows, 3, 2, dtype=FLOAT)
    for i in range(rows):
        for j in range(length):
            sums[i, tokens[i, j]] += g[i, j]
    found = ghost_layers.of_embedding(layer, tokens, g)
    torch.testing.assert_close(found, sums[:, int(padded) :].square().sum((1, 2)))


# --- closed forms


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_linear_regression(way):
    """The gradient of (w.x + b - y)^2 is 2 (w.x + b - y) (x, 1)."""
    model, x, y = nn.Linear(4, 1).double(), numbers(7, 4), numbers(7, 1)
    residual = (model(x) - y).detach().squeeze(1)
    expected = 4 * residual.square() * (x.square().sum(1) + 1)
    close(fisher_traces(Objective(model, mse_loss, (x, y)), way), expected)


@pytest.mark.parametrize("loss", [cross_entropy, each_cross_entropy])
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_softmax_regression(way, loss):
    """The gradient is (p - e_y) outer (x, 1)."""
    model, x, y = nn.Linear(4, 3).double(), numbers(7, 4), classes(3, 7)
    off = model(x).detach().softmax(1) - F.one_hot(y, 3)
    close(fisher_traces(Objective(model, loss, (x, y)), way), off.square().sum(1) * (x.square().sum(1) + 1))


def test_a_row_s_loss_is_its_own_and_no_share_of_the_mean():
    """With rows left out of the mean, the mean of a batch is no mean of its rows' losses."""
    model, x, y = nn.Linear(4, 3).double(), numbers(7, 4), torch.tensor([0, 1, -1, 2, -1, 1, 0])

    def loss(out, target):
        found = F.cross_entropy(out, target.clamp_min(0), reduction="none")
        return (found * (target >= 0)).sum() / (target >= 0).sum().clamp_min(1)

    objective = Objective(model, loss, (x, y))
    for way in WAYS:
        found = fisher_traces(objective, way)
        close(found, naive(objective))
        assert found[2] == found[4] == 0


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_gradients_whose_squares_vanish_in_single_precision(way):
    """Confident rows are ranked too: a gradient of 1e-30 has a square of 1e-60."""
    model, x = nn.Linear(4, 2), torch.randn(6, 4)
    y = torch.zeros(6, dtype=torch.long)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([60.0, 0.0]))
    found = fisher_traces(Objective(model, cross_entropy, (x, y)), way)
    off = (model(x)[:, 0] - model(x)[:, 1]).detach().double().neg().exp()
    # in single precision the probability of the right class is 1: the other one alone has a gradient
    torch.testing.assert_close(found, off.square() * (x.double().square().sum(1) + 1), rtol=1e-4, atol=0)
    assert 0 < float(found.max()) < 1e-45


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_gradients_whose_squares_overflow_in_single_precision(way):
    model, x, y = nn.Linear(2, 1), torch.randn(3, 2), torch.full((3, 1), 1e25)
    expected = 4 * 1e50 * (x.double().square().sum(1) + 1)
    found = fisher_traces(Objective(model, lambda out, y: (out.double() - y).square(), (x, y)), way)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


# --- whole models


class Block(nn.Module):
    """Writes over what its layers returned, as residual networks do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.c, self.d = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        out = self.d(self.c(F.relu(self.b(self.a(x)), inplace=True)))
        out += x
        return out.relu_()


def residual() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), Block(4), nn.MaxPool2d(2), nn.Dropout(0.5), Block(4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    return ruffled(model)


def images(model: nn.Module, **options) -> Objective:
    sizes = (4, 3, 1)
    return Objective(model, cross_entropy, [(numbers(n, 2, 6, 6), classes(3, n)) for n in sizes], **options)


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_residual_networks_with_batch_norm_in_uneven_batches(way):
    """In the order of the batches, though the model comes in training mode, with dropout."""
    objective = images(residual().train())
    with assert_untouched(objective.model):
        close(fisher_traces(objective, way), naive(objective))


@pytest.mark.parametrize("options", [{"only": ["2.*", "8.bias"]}, {"only": ["*.bias"]}, {"only": ["0.weight"]}])
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_only_some_parameters_move(way, options):
    objective = images(residual(), **options)
    close(fisher_traces(objective, way), naive(objective))


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_frozen_parameters_do_not_count(way):
    model = residual()
    torch.manual_seed(0)
    everything = fisher_traces(images(model))
    model[0].requires_grad_(False)
    model[5].c.weight.requires_grad_(False)
    torch.manual_seed(0)
    objective = images(model)
    close(fisher_traces(objective, way), naive(objective))
    assert (fisher_traces(objective, way) < everything).all()


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_the_open_way_is_exact_on_any_model_and_leaves_no_trace(maker):
    case = make(maker)
    if maker.__name__ == "spectrally_normalised":
        case.model.eval()
    objective = case.objective(trusted=True)
    with assert_untouched(case.model):
        found = fisher_traces(objective)
    close(found, naive(objective))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Branching(nn.Module):
    """Looks at numbers to decide what to do, which no vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return torch.cat([self.a(r) if float(r.sum()) > 0 else self.b(r) for r in x.mean(1).split(1)])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.a(self.a(x.mean(1)).tanh()))


class Shared(Twice):
    """One matrix in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.head(self.b(self.a(x.mean(1)).tanh()))


class Functional(Twice):
    """Uses a layer's weights without the layer."""

    def forward(self, x):
        return self.head(F.linear(x.mean(1), self.a.weight).tanh())


class Both(Twice):
    """Uses a layer, and its weights once more without it."""

    def forward(self, x):
        return self.head(self.a(x.mean(1)) + self.a.bias)


class Raw(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return self.head(self.a(x.mean(1) * self.scale))


class Own(nn.Linear):
    """A layer by descent only."""

    def forward(self, x):
        return super().forward(x.mean(1)) * 2


class Positions(nn.Module):
    """Looks up as many positions as the batch happens to have rows."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.head = nn.Embedding(ROWS, 4), nn.Linear(4, 3)

    def forward(self, x):
        where = self.positions(torch.arange(x.shape[1]))
        return self.head((x * where).mean(1))


class Broadcast(Positions):
    """Looks up positions once for all rows."""

    def forward(self, x):
        return self.head((x * self.positions(torch.arange(x.shape[1]).unsqueeze(0))).mean(1))


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.a(x.transpose(0, 1)).tanh().mean(0))


class Mixing(Twice):
    """Compares every row with the others."""

    def forward(self, x):
        x = x.mean(1)
        return self.head(self.a(x - x.mean(0)) + x)


class Bypassed(Twice):
    """Calls forward itself, so that no hook is called."""

    def forward(self, x):
        return self.head(self.a.forward(x.mean(1)))


class Recomputed(Twice):
    def forward(self, x):
        return self.head(checkpoint(lambda x: self.a(x).tanh(), x.mean(1), use_reentrant=False))


class Aware(Twice):
    """Reads the shape and the kind of its weights, which is no use of them."""

    def forward(self, x):
        return self.head(self.a(x.mean(1).to(self.a.weight.dtype)) * len(self.a.bias) / self.a.weight.shape[1])


class Blocked(Twice):
    """Layers that take no part: without gradients, cut off, or not called."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = x.mean(1)
        with torch.no_grad():
            x = self.a(self.a(x))
        return self.head(x + self.b(x).detach())


def weighted() -> nn.Module:
    return nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(4 * ROWS, 4)), nn.Linear(4, 3))


def pruned() -> nn.Module:
    layer = nn.Linear(4 * ROWS, 4)
    prune.random_unstructured(layer, "weight", 0.5)
    return nn.Sequential(nn.Flatten(), layer, nn.Linear(4, 3))


def sequences(model: nn.Module, loss=cross_entropy, **options) -> Objective:
    return Objective(ruffled(model), loss, (numbers(ROWS, ROWS, 4), classes(3, ROWS)), **options)


@pytest.mark.parametrize(
    ("maker", "way", "culprit"),
    [
        (Attention, "vmap", r"attention \(MultiheadAttention\) owns attention.in_proj_weight"),
        (Recurrent, "rows", r"lstm \(LSTM\) owns lstm.weight_ih_l0"),
        (Branching, "rows", r"(a|b) \(Linear\) (maps \(1, 4\)|is used more than once)"),
        (Twice, "vmap", r"a \(Linear\) is used more than once"),
        (Shared, "vmap", r"a.weight is shared by a, b"),
        (Functional, "vmap", r"a.weight is used by linear outside its layer"),
        (Both, "vmap", r"a.bias is used by add outside its layer"),
        (Raw, "vmap", r"the model \(Raw\) owns scale"),
        (lambda: nn.Sequential(Own(4, 3)), "vmap", r"0 \(Own\) owns 0.weight"),
        (Positions, "vmap", r"another gradient of positions.weight"),
        (Broadcast, "vmap", r"positions \(Embedding\) maps \(1, 5\) -> \(1, 5, 4\), not 5 rows first"),
        (SequenceFirst, "vmap", r"another gradient of a.weight"),
        (Mixing, "vmap", r"ghost gives row \d another gradient of"),
        (Bypassed, "vmap", r"a.weight is used by linear outside its layer"),
        (Recomputed, "rows", r"a.weight is used by linear outside its layer"),
        (weighted, "vmap", r"1.parametrizations.weight \(ParametrizationList\) owns"),
        (Aware, "ghost", None),
        (Blocked, "ghost", None),
    ],
)
def test_what_ghost_norms_cannot_know_goes_another_way(maker, way, culprit):
    objective = sequences(maker())
    with assert_untouched(objective.model):
        close(fisher_traces(objective), naive(objective))
        estimate = FisherTrace().estimate(objective)
        assert estimate.note == f"by {way}"
        if culprit is None:
            close(fisher_traces(objective, "ghost"), naive(objective))
        else:
            with pytest.raises(ValueError, match=culprit):
                fisher_traces(objective, "ghost")
        if way == "rows":
            with pytest.raises(ValueError, match=r'does not run under vmap.*Pass way="rows"'):
                fisher_traces(objective, "vmap")


def test_a_first_batch_of_one_row_proves_nothing():
    batches = [(numbers(n, ROWS, 4), classes(3, n)) for n in (1, 4)]
    objective = Objective(ruffled(Mixing()), cross_entropy, batches)
    close(fisher_traces(objective), naive(objective))


def test_layers_whose_rule_is_void():
    for layer in (nn.Embedding(4, 3, max_norm=9.0), nn.Embedding(4, 3, scale_grad_by_freq=True)):
        model = nn.Sequential(layer, nn.Flatten(), nn.Linear(6, 3)).double()
        objective = Objective(model, cross_entropy, (classes(4, ROWS, 2), classes(3, ROWS)))
        with pytest.raises(ValueError, match=r"0 \(Embedding\) owns 0.weight"):
            fisher_traces(objective, "ghost")
    with pytest.raises(ValueError, match=r"1 \(Linear\) owns 1.weight_orig"):
        fisher_traces(sequences(pruned()), "ghost")
    lone = sequences(nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 3)))
    lone.model[1].forward = lambda x: x[:, :3] * 2
    with pytest.raises(ValueError, match=r"1 \(Linear\) owns 1.weight"):
        fisher_traces(lone, "ghost")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its compiler
def test_compiled_parts_cannot_be_watched():
    model = nn.Sequential(nn.Flatten(), torch.compile(nn.Linear(4 * ROWS, 3).double()))
    with pytest.raises(ValueError, match="1 is compiled"):
        fisher_traces(sequences(model, trusted=True), "ghost")


def test_a_penalty_on_the_weights_inside_the_loss_is_seen():
    model = ruffled(nn.Sequential(nn.Linear(4, 3)))

    def loss(out, y, of=model):
        return cross_entropy(out, y) + 1e-4 * sum(p.square().sum() for p in of.parameters())

    objective = Objective(model, loss, (numbers(ROWS, 4), classes(3, ROWS)))
    found = fisher_traces(objective)
    for i in range(ROWS):
        x, y = row(objective.batches[0], i)
        grads = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
        torch.testing.assert_close(float(found[i]), float(sum(g.square().sum() for g in grads)))
    with pytest.raises(ValueError, match=r"0\.weight is used by square outside its layer"):
        fisher_traces(objective, "ghost")


def test_a_loss_that_vmap_cannot_follow_goes_row_by_row_unless_it_is_one_a_row():
    def loss(out, y):
        return cross_entropy(out, y) * (1.0 if float(out.detach().sum()) > 0 else 2.0)

    objective = sequences(nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 3)), loss)
    with pytest.raises(ValueError, match="loss of one row alone fails under vmap"):
        fisher_traces(objective, "ghost")
    assert FisherTrace().estimate(objective).note == "by rows"
    close(fisher_traces(objective), naive(objective))

    def losses(out, y):
        return torch.stack([loss(o, t) for o, t in zip(out.split(1), y.split(1), strict=True)])

    objective = sequences(nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 3)), losses)
    close(fisher_traces(objective, "ghost"), naive(objective))


def test_an_input_that_is_written_over_is_no_wrong_number():
    class Overwriting(Twice):
        def forward(self, x):
            x = x.mean(1).tanh()
            out = self.a(x)
            x.mul_(2)
            return self.head(out + x)

    with pytest.raises(ValueError, match=r"the input of a \(Linear\) is overwritten"):
        fisher_traces(sequences(Overwriting()), "ghost")


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_hooks_of_the_model_stay_and_count(way):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 4), nn.Linear(4, 3))
    model[1].register_forward_hook(lambda module, args, out: out * 3)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] / 2,))
    objective = sequences(model)
    with assert_untouched(model):
        close(fisher_traces(objective, way), naive(objective))


def test_arguments_by_name_dictionaries_and_outputs_of_any_shape():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.norm, self.head = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 3)

        def forward(self, *, ids, mask):
            states = self.norm(input=self.words(input=ids))
            pooled = (states * mask.unsqueeze(-1)).sum(1)
            return {"logits": self.head(input=pooled), "states": (states, None), "steps": 2}

    def forward(model, batch):
        return model(ids=batch["ids"], mask=batch["mask"]), {"y": batch["y"], "scale": batch["scale"]}

    def loss(out, target):
        return cross_entropy(out["logits"], target["y"]) * target["scale"] + out["states"][0].square().mean() / 9

    batches = [
        {"ids": classes(9, n, 6), "mask": classes(2, n, 6).double(), "y": classes(3, n), "scale": 2.0} for n in (4, 3)
    ]
    objective = Objective(ruffled(Model()), loss, batches, forward=forward)
    for way in WAYS:
        close(fisher_traces(objective, way), naive(objective))


def test_an_output_that_hides_tensors_or_has_no_rows_is_refused():
    class Box:
        def __init__(self, out):
            self.out = out

    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 3))
    boxed = sequences(
        model, lambda out, y: cross_entropy(out.out, y), forward=lambda model, b: (Box(model(b[0])), b[1])
    )
    with pytest.raises(ValueError, match="holds a Box"):
        fisher_traces(boxed, "ghost")
    close(fisher_traces(boxed), naive(boxed))
    flat = sequences(model, lambda out, y: out.sum(), forward=lambda model, b: (model(b[0]).flatten().exp(), b[1]))
    with pytest.raises(ValueError, match=r"\[\(15,\)\], not 5 rows"):
        fisher_traces(flat, "ghost")
    close(fisher_traces(flat), naive(flat))


# --- what all ways refuse


def test_statistics_of_the_batch_leave_a_row_no_loss_of_its_own():
    model, batch = residual(), (numbers(4, 2, 6, 6), classes(3, 4))
    with pytest.raises(ValueError, match=r'2.b \(BatchNorm2d\) normalises with the batch.*statistics="running"'):
        fisher_traces(Objective(model, cross_entropy, batch, statistics="batch"))
    model = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), nn.Linear(72, 3)).double()
    with pytest.raises(ValueError, match=r"0 \(BatchNorm2d\) normalises with the batch"):
        fisher_traces(Objective(model, cross_entropy, batch))


def test_statistics_of_the_batch_are_nothing_to_other_layers():
    objective = headed(nn.InstanceNorm1d(3, affine=True), numbers(ROWS, 3, 5), statistics="batch")
    close(fisher_traces(objective, "ghost"), naive(objective))


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_a_loss_without_the_parameters_is_refused(way):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * ROWS, 3))
    objective = sequences(model, forward=lambda model, batch: (model(batch[0]).detach(), batch[1]))
    with pytest.raises(ValueError, match="depend on the parameters"):
        fisher_traces(objective, way)


def test_a_loss_that_is_no_function_of_the_weights_is_refused():
    objective = sequences(Twice(), forward=lambda model, batch: (F.dropout(model(batch[0])), batch[1]))
    with pytest.raises(ValueError, match="not a function of the weights"):
        fisher_traces(objective)


def test_wrong_options_name_the_right_ones():
    objective = sequences(Twice())
    with pytest.raises(ValueError, match=r"way is 'magic'.*ghost, vmap, rows"):
        fisher_traces(objective, "magic")
    with pytest.raises(ValueError, match="at least 1, not 0"):
        fisher_traces(objective, "vmap", chunk=0)


@pytest.mark.parametrize("way", WAYS, ids=named)
@pytest.mark.parametrize("where", ["loss", "forward"])
def test_an_exception_leaves_no_trace(way, where):
    model, calls = residual().train(), []

    def loss(out, y):
        calls.append(1)
        if where == "loss" and len(calls) > 2:
            raise KeyboardInterrupt
        return cross_entropy(out, y)

    def forward(model, batch):
        out = model(batch[0])
        if where == "forward" and len(calls) >= 2:
            raise KeyboardInterrupt
        return out, batch[1]

    model[0].weight.grad = torch.ones_like(model[0].weight)
    objective = Objective(model, loss, (numbers(4, 2, 6, 6), classes(3, 4)), forward=forward)
    objective.check()
    with assert_untouched(model), pytest.raises(KeyboardInterrupt):
        fisher_traces(objective, way)


# --- precision and memory


def test_inputs_are_freed_as_soon_as_they_are_used():
    """Else the pass would hold all inputs to its end, where an ordinary backward pass has freed them one by one."""
    kept, alive = [], []

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            first = self.a(x.mean(1)).tanh()
            first.register_hook(lambda g: alive.append([ref() is not None for ref in kept]))
            second = self.b(first).tanh()
            kept[:] = [weakref.ref(first), weakref.ref(second)]
            return self.c(second)

    ghost_squares(sequences(Chain()), (numbers(ROWS, ROWS, 4), classes(3, ROWS)))
    assert alive == [[False, False]]


def test_half_precision_adds_up_in_single_precision():
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4) * 300, classes(3, 8)
    with torch.no_grad():
        model.weight.mul_(0.01)
    wide = Objective(deepcopy(model), cross_entropy, (x.half().float(), y))
    narrow = Objective(model.half(), cross_entropy, (x.half(), y))
    assert float(naive(wide).max()) > torch.finfo(torch.float16).max
    for way in WAYS:
        torch.testing.assert_close(fisher_traces(narrow, way), naive(wide), rtol=3e-2, atol=1e-2)


def test_autocast():
    def forward(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch[0])
        return out.float(), batch[1]

    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    batch = (torch.randn(ROWS, 2, 6, 6), classes(3, ROWS))
    expected = naive(Objective(model, cross_entropy, batch))
    for way in ("ghost", "rows", None):
        found = fisher_traces(Objective(model, cross_entropy, batch, forward=forward), way)
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_change_nothing(chunk):
    objective = images(residual())
    close(fisher_traces(objective, "vmap", chunk=chunk), naive(objective))


def test_no_grad_around_it_changes_nothing():
    objective = images(residual())
    for way in WAYS:
        with torch.no_grad():
            close(fisher_traces(objective, way), naive_with_grad(objective))


def naive_with_grad(objective: Objective) -> torch.Tensor:
    with torch.enable_grad():
        return naive(objective)


# --- the measure


def test_the_estimate_is_the_mean_over_rows_with_its_error_and_cost():
    objective = images(residual())
    objective.check()
    before = objective.spent()
    estimates = list(with_cost(FisherTrace().running(objective, seed=3), objective))
    rows = naive(objective)
    for found, n in zip(estimates, (4, 7, 8), strict=True):
        part = rows[:n]
        assert found.n == n
        assert found.kind == "unbiased"
        assert found.value == pytest.approx(float(part.mean()))
        assert found.stderr == pytest.approx(float(part.std()) / sqrt(n))
        assert found.cost.gradients == pytest.approx(n / 8)
    assert (objective.spent() - before).gradients == pytest.approx(1.0)
    last = FisherTrace("vmap", chunk=3).estimate(objective)
    assert (last.value, last.stderr) == (pytest.approx(estimates[-1].value), pytest.approx(estimates[-1].stderr))
    assert (last.note, estimates[-1].note) == ("by vmap", "by ghost")
    assert last.cost.gradients == pytest.approx(1.0)
    assert last.cost.seconds > 0


def test_the_mean_is_the_trace_of_the_fisher_matrix():
    """Built as a matrix, from the Jacobian of the rows' losses."""
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), numbers(6, 3), classes(2, 6)
    params = dict(model.named_parameters())

    def losses(places):
        return cross_entropy(torch.func.functional_call(model, places, (x,)), y, reduction="none")

    jacobian = torch.cat([j.detach().flatten(1) for j in torch.func.jacrev(losses)(params).values()], 1)
    fisher = jacobian.T @ jacobian / 6
    assert FisherTrace().estimate(Objective(model, cross_entropy, (x, y))).value == pytest.approx(float(fisher.trace()))


def test_a_row_that_is_not_finite_is_reported_as_such():
    first, second = ((numbers(3, 4), classes(3, 3)) for _ in range(2))
    second[0][1] = float("nan")
    objective = Objective(nn.Linear(4, 3).double(), cross_entropy, [first, second])
    found = fisher_traces(objective)
    assert found.isnan().tolist() == [False] * 4 + [True, False]
    with pytest.raises(NotFinite, match="1 of 6"):
        FisherTrace().estimate(objective)


class Meeting:
    """Workers as threads that wait for one another."""

    def __init__(self, count: int) -> None:
        self.barrier, self.box = threading.Barrier(count, timeout=5), {}


class Member:
    """What an objective asks of its workers, from one thread of a meeting."""

    def __init__(self, meeting: Meeting, rank: int, count: int) -> None:
        self.meeting, self.rank, self.count = meeting, rank, count

    def exchanged(self, mine):
        self.meeting.box[self.rank] = mine
        self.meeting.barrier.wait()
        everybody = [self.meeting.box[rank] for rank in range(self.count)]
        self.meeting.barrier.wait()
        return everybody

    def all_gather(self, numbers):
        return sorted(found for part in self.exchanged(list(numbers)) for found in part)


@pytest.mark.parametrize("count", [2, 3])
def test_workers_agree_with_one_process_although_some_have_more_batches(count, monkeypatch):
    whole = images(residual())
    expected, rows = FisherTrace("rows").estimate(whole), naive(whole)
    monkeypatch.setattr(Objective, "workers", property(lambda self: self.group or Member(Meeting(1), 0, 1)))
    meeting, found = Meeting(count), {}

    def work(rank: int) -> None:
        member = Member(meeting, rank, count)
        share = whole.batches[rank::count]
        mine = Objective(deepcopy(whole.model), cross_entropy, share, group=member, trusted=True)
        vars(mine)["rows"] = whole.rows  # threads cannot meet inside a cached_property, which is locked until 3.12
        found[rank] = (list(with_cost(FisherTrace("rows").running(mine), mine)), fisher_traces(mine, "rows"))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parts = rows.split([4, 3, 1])
    for rank in range(count):
        estimates, traces = found[rank]
        assert len(estimates) == len(parts[::count])
        assert estimates[-1] == expected  # bitwise: the rows are in the same order
        assert [e.n for e in estimates] == ([7, 8] if count == 2 else [8])
        assert estimates[-1].cost.gradients == pytest.approx(sum(map(len, parts[rank::count])) / 8)
        close(traces, torch.cat(parts[rank::count]))
