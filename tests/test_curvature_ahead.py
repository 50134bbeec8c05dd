"""Products in forward mode: right where a layer has them, refused where they are wrong, taken where they are faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from problems import each_cross_entropy
from test_curvature_products import LAYERS, close, conv, directions, mlp, right, small
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, huber_loss, mse_loss
from untouched import MAKERS, Case, assert_untouched, make

from steppe import Elementwise
from steppe.basis import flat
from steppe.measures.curvature import trial
from steppe.measures.curvature.ahead import AHEAD
from steppe.measures.curvature.dense import Dense
from steppe.measures.curvature.forms import Form, gauss_newton, hessian
from steppe.measures.curvature.operator import Curvature
from steppe.measures.curvature.trial import AT_ONCE, FIRST, SHARE, WARM, Trial, agree
from steppe.measures.objective import Objective

F64 = torch.float64
FORMS: list[Form] = [hessian, gauss_newton]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0)


class Fake:
    """A bench whose clock goes on by what each way is said to cost, and whose memory by what a direction takes."""

    def __init__(self, ahead: float = 1.0, behind: float = 2.0, each: float = 10.0, free: float = 1e9, had: float = 0):
        self.cost, self.each, self.room = {"ahead": ahead, "behind": behind}, each, free
        self.clock, self.peak, self.asked = 0.0, had, 0.0
        self.log: list[tuple[str, int]] = []

    def now(self) -> float:
        return self.clock

    def held(self) -> float:
        return 0.0

    def most(self) -> float:
        return self.peak

    def taken(self) -> float:
        return self.asked

    def free(self) -> float:
        return self.room

    def did(self, way: str, n: int) -> None:
        self.clock += self.cost[way] * n
        self.log.append((way, n))
        if way == "ahead":
            self.peak, self.asked = max(self.peak, self.each * n), self.asked + 3 * self.each * n

    def watch(self, monkeypatch: pytest.MonkeyPatch, operator: Curvature) -> Curvature:
        """Notes what the operator does, and lets it take its time."""
        form, products, make = operator.form, operator._behind.products, AHEAD[operator.form]

        def ahead(objective: Objective, batch: Any, columns: Sequence[Tensor]) -> list[Tensor]:
            found = make(objective, batch, columns)
            self.did("ahead", len(columns[0]))
            return found

        def behind(i: int, batch: Any, vectors: Any) -> Any:
            found = products(i, batch, vectors)
            self.did("behind", len(vectors))
            return found

        monkeypatch.setitem(AHEAD, form, ahead)
        monkeypatch.setattr(operator._behind, "products", behind)
        return operator


def forward(objective: Objective, form: Form = hessian, **options: Any) -> Curvature:
    """An operator that takes forward mode as soon as it agrees."""

    class Sure(Fake):
        def now(self) -> float:  # every second interval is endless: the way behind is slow
            self.clock += 1.0 + self.clock
            return self.clock

    return Curvature(objective, form, bench=Sure(), **options)


def assert_taken(operator: Curvature) -> None:
    trial = operator._trial
    assert trial.ahead is not False
    assert trial._seen


# -- they are right -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "conv"])
def test_the_hessian_in_forward_mode_is_that_of_functorch_in_reverse_mode(name: str) -> None:
    operator = forward({"small": small, "conv": conv}[name]())
    close(Dense(operator).matrix, right(name))
    assert_taken(operator)


@pytest.mark.parametrize(
    ("layer", "statistics"),
    [*((name, "running") for name in LAYERS), ("BatchNorm1d", "batch"), ("InstanceNorm with statistics", "batch")],
)
def test_layers(layer: str, statistics: Any) -> None:
    """Against differences of gradients, which know of no second derivative."""
    tracked = [nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Tanh()]
    shape, layers = LAYERS.get(layer) or ((2, 3, 3), lambda: tracked)
    torch.manual_seed(0)
    model = nn.Sequential(*layers(), nn.Flatten(), nn.LazyLinear(3)).double()
    batches = [(torch.randn(n, *shape, dtype=F64), torch.randint(0, 3, (n,))) for n in (5, 3)]
    model(batches[0][0])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    objective = Objective(model, cross_entropy, batches, statistics=statistics)
    vectors, h, operator = directions(objective, 3), 1e-5, forward(objective)
    with assert_untouched(model):
        found = operator.products(vectors)
    for v, image in zip(vectors, found, strict=True):
        slope = (objective.gradient(v * h)[1] - objective.gradient(v * -h)[1]) * (0.5 / h)
        close(image.tensors, slope.tensors, 1e-7)
    assert_taken(operator)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_any_model_has_the_products_of_reverse_mode(maker: Callable[[], Case], form: Form) -> None:
    objective = make(maker).objective()
    vectors = directions(objective, 5)
    operator = forward(objective, form)
    with assert_untouched(objective.model):
        found = operator.products(vectors)
    again = operator.products(vectors)
    expected = Curvature(objective, form).products(vectors)
    for images in (found, again):
        close([v.tensors for v in images], [v.tensors for v in expected])
        assert not any(t.requires_grad for v in images for t in v.tensors)
    # torch.func has no saved tensor hooks
    assert (operator._trial.ahead is False) == (maker.__name__ == "checkpointed")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("form", FORMS)
def test_squared_losses(form: Form, reduction: str) -> None:
    """Spelt out, because torch's own has no forward derivative of its gradient."""
    x, y = torch.randn(6, 4, dtype=F64), torch.randn(6, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    losses: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda out, y: mse_loss(out, y, reduction=reduction).mean(),
        lambda out, y: nn.MSELoss(reduction=reduction)(out, y).mean(),
        lambda out, y: mse_loss(out, y, None, None, reduction).mean(),
    ]
    plain = Dense(Curvature(Objective(model, losses[0], (x, y), m=4), form)).matrix
    taken = []
    for loss in losses:
        operator = forward(Objective(model, loss, (x, y), m=4), form)
        close(Dense(operator).matrix, plain)
        taken.append(operator._trial.ahead is not False)
    assert taken == [True, True, False] or all(taken)  # one day torch may know all of them


@pytest.mark.parametrize("form", FORMS)
def test_losses_a_row_some_parameters_a_metric_and_a_linear_loss(form: Form) -> None:
    objective = small()
    options: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (each_cross_entropy, {}, {}),
        (cross_entropy, {"only": ["3.*"]}, {}),
        (cross_entropy, {}, {"metric": Elementwise(0.1)}),
        (lambda out, y: out.sum(1), {"only": ["3.*"]}, {}),
    ]
    for loss_fn, asked, scaled in options:
        one = Objective(objective.model, loss_fn, objective.batches, **asked)
        operator = forward(one, form, **scaled)
        close(Dense(operator).matrix, Dense(Curvature(one, form, **scaled)).matrix)
        assert_taken(operator)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter_and_no_graph_is_left(mode: Any) -> None:
    objective = mlp()
    operator = forward(objective)
    vectors = directions(objective, 4)
    with mode():
        operator.products(vectors)
        found = operator.products(vectors)
    close(torch.stack([flat(v) for v in found]), torch.stack([flat(v) for v in vectors]) @ right("mlp"))
    assert len(operator._behind.kept) <= 2  # of batches that were compared or timed


# -- what is wrong is noticed ----------------------------------------------------------------------------


class Cubed(torch.autograd.Function):
    """x^3 with a forward derivative that is off by a factor, or raises, or is missing."""

    generate_vmap_rule = True
    factor: Any = 1.0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if isinstance(Cubed.factor, type):
            raise Cubed.factor("planted")
        return Cubed.factor * 3 * x**2 * tangent


class Cubing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5, dtype=F64), nn.Linear(5, 3, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(Cubed.apply(self.one(x)))
        return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("factor", [1.0, 1.01, RuntimeError, NotImplementedError, torch.OutOfMemoryError, TypeError])
def test_a_planted_mistake_in_a_forward_derivative_is_noticed(
    factor: Any, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cubed, "factor", factor)
    torch.manual_seed(0)
    objective = Objective(Cubing(), cross_entropy, small().batches)
    operator, vectors = forward(objective, form), directions(objective, 5)
    for _ in range(WARM + 3):
        found = operator.products(vectors)
        close([v.tensors for v in found], [Curvature(objective, form).product(v).tensors for v in vectors])
    assert operator._trial.ahead is (factor == 1.0)


def test_a_loss_without_forward_derivative_falls_back_and_forward_mode_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objective = small()
    batches = [(x, torch.randn(len(x), 3, dtype=F64)) for x, _ in objective.batches]
    asked = Objective(objective.model, huber_loss, batches)
    bench = Fake()
    operator = bench.watch(monkeypatch, Curvature(asked, bench=bench))
    vectors = directions(asked, 3)
    for _ in range(2):
        found = operator.products(vectors)
        close([v.tensors for v in found], [Curvature(asked).product(v).tensors for v in vectors])
    assert {way for way, _ in bench.log} == {"behind"}


def test_a_real_mistake_is_told_by_reverse_mode() -> None:
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.asked:
                raise LookupError("the model's own")
            return super().forward(x)

    model = Odd(4, 3, dtype=F64)
    model.asked = False
    objective = Objective(model, cross_entropy, small().batches)
    objective.check()
    model.asked = True
    with pytest.raises(LookupError, match="the model's own"):
        forward(objective).products(directions(objective, 2))


# -- the choice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("faster", ["ahead", "behind"])
def test_the_faster_way_is_taken_and_every_product_is_counted(
    faster: str, n: int, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = conv()  # reverse mode takes one direction at a time
    bench = Fake(ahead=1.0 if faster == "ahead" else 3.0, behind=2.0)
    operator = bench.watch(monkeypatch, Curvature(objective, form, bench=bench))
    vectors, rows = directions(objective, n), objective.sizes
    expected = [v.tensors for v in Curvature(conv(), form).products(vectors)]
    for times in range(1, WARM + 3):
        close([v.tensors for v in operator.products(vectors)], expected)
        assert objective.spent().products == pytest.approx(times * n + rows[0] / sum(rows))  # one more, to compare
        assert sum(k for _, k in bench.log) == times * n * len(rows) + 1
    assert bench.log[:2] == [("ahead", min(n, FIRST)), ("behind", 1)]
    taken = len(bench.log)
    operator.products(vectors)
    assert {way for way, _ in bench.log[taken:]} == {faster}
    sizes = [k for way, k in bench.log[2:] if way == "ahead"]
    settled = next(k for k in sizes if sizes.count(k) > WARM - (k == min(n, FIRST)))
    assert settled <= AT_ONCE


def test_a_wrong_way_is_paid_for_honestly(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = mlp((6, 6))
    monkeypatch.setattr(trial, "agree", lambda *_: False)
    Curvature(objective, bench=Fake()).products(directions(objective, 3))
    assert objective.spent().products == pytest.approx(3 + FIRST / 2)
    assert objective.spent().gradients == pytest.approx(1)


def test_a_cpu_has_no_trial_unless_a_bench_is_given() -> None:
    assert Curvature(mlp())._trial is None
    assert Curvature(mlp(), lambda *args: hessian(*args), bench=Fake())._trial is None  # nobody knows it ahead
    for dtype, precision, tolerance in (
        (F64, "float32", 1e-9),
        (torch.float32, "float32", 1e-4),
        (torch.float32, "tf32", 1e-2),
        (F64, "tf32", 1e-9),
    ):
        model = nn.Linear(4, 3).to(dtype)
        objective = Objective(model, cross_entropy, (torch.randn(5, 4).to(dtype), torch.arange(5) % 3))
        objective = Objective(model, cross_entropy, objective.batches, precision=precision)
        found = Curvature(objective, bench=Fake())._trial
        assert found is not None
        assert found.tolerance == tolerance


def test_few_directions_and_one_alone_go_back_through_the_graph_and_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 4)
    objective = mlp((6,))
    bench = Fake()
    operator = bench.watch(monkeypatch, Curvature(objective, bench=bench))
    one, *two = directions(objective, 3)
    for vectors in ([one], two, [one], two, [one]):
        operator.products(vectors)
    assert bench.log == [("behind", 1), ("behind", 2), ("behind", 1), ("behind", 2), ("behind", 1)]
    operator.products(two)
    assert bench.log[5:] == [("ahead", 2), ("behind", 1)]


def one_way(bench: Fake, most: float = 1e9) -> Callable[[Any], Any]:
    """A way that raises where more memory is asked for than there is."""

    def ahead(vectors: Any) -> Any:
        if bench.each * len(vectors) > most:
            raise torch.OutOfMemoryError("planted")
        bench.did("ahead", len(vectors))
        return [[torch.ones(1)] for _ in vectors]

    return ahead


def sizes(bench: Fake, n: int, most: float = 1e9) -> tuple[list[int], Trial]:
    found = Trial(bench, 1e-4)
    found.ahead = True
    parts, more = found.products(one_way(bench, most), lambda v: [[torch.zeros(1)] for _ in v], [None] * n)  # type: ignore[list-item]
    assert len(parts) == n
    assert more == 0
    return [k for way, k in bench.log if way == "ahead"], found


def test_chunks_take_no_more_than_their_share_of_the_memory() -> None:
    assert sizes(Fake(each=10, free=1e9), 30)[0] == [2, 7, 7, 7, 7]
    assert sizes(Fake(each=10, free=10 * 4 / SHARE), 14)[0] == [2, 4, 4, 4]
    assert sizes(Fake(each=10, free=10 * 3.9 / SHARE), 14)[0] == [2, 3, 3, 3, 3]
    assert sizes(Fake(each=10, free=1), 6)[0] == [2, 2, 2]  # two did fit


def test_a_peak_that_an_earlier_one_hides_lets_chunks_grow_until_they_are_seen() -> None:
    assert sizes(Fake(each=10, free=1e9, had=1e6), 30)[0] == [2, 4, 8, 8, 8]
    assert sizes(Fake(each=10, free=10 * 5 / SHARE, had=35), 30)[0] == [2, 4, 5, 5, 5, 5, 4]


def test_memory_that_runs_out_makes_chunks_smaller_and_then_ends_forward_mode() -> None:
    bench = Fake(each=10, had=1e6)
    chunks, found = sizes(bench, 20, most=30)
    assert chunks == [2] * 10
    assert found.ahead
    assert found.chunk == 2
    bench = Fake(each=10)
    chunks, found = sizes(bench, 20, most=9)
    assert chunks == []
    assert found.ahead is False


def test_agreement() -> None:
    one = [torch.ones(3), torch.zeros(2)]
    assert agree(one, one, 0.0)
    assert agree([torch.zeros(1)], [torch.zeros(1)], 1e-9)
    off = [one[0] * (1 + 2e-4), one[1]]
    assert agree(off, one, 2.1e-4)
    assert not agree(off, one, 1.9e-4)
    assert not agree([torch.full((1,), torch.nan)], [torch.ones(1)], 0.1)
    assert not agree([torch.ones(1)], [torch.full((1,), torch.inf)], 0.1)
