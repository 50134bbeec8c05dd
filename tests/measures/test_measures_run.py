"""Several measures in one call: names, shared work, failures, interruptions, and what is shown of it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from typing import Any

import pytest
import torch
from model_cases import convolutions, dictionaries, make
from oracles import curvature
from problems import each_cross_entropy, flat_weights
from rich.progress import Progress
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from steppe import MEASURES, TRACE, Ball, Estimate, Measure, Objective, measure
from steppe._util.names import unknown
from steppe._util.numbers import with_error
from steppe.core.metric import CustomScales
from steppe.measures import (
    AverageCase,
    Dense,
    Eigenvalue,
    FrobeniusSquared,
    GradientNorm,
    LogDeterminant,
    Loss,
    NotFinite,
    Results,
    Sweep,
    Trace,
    WorstCase,
    ZerothOrder,
    gauss_newton,
)
from steppe.measures.estimate import Cost
from steppe.measures.registry import measure_by_name
from steppe.measures.run import DEFAULT

F64 = torch.float64
Pair = tuple[Tensor, Tensor]


def classifier(width: int = 6) -> tuple[nn.Sequential, Pair]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()
        return model, (torch.randn(20, 4, dtype=F64), torch.randint(0, 3, (20,)))


def measured(measures: Any, **options: Any) -> Results:
    model, data = classifier()
    return measure(model, cross_entropy, data, measures, **options)


# -- names ------------------------------------------------------------------------------------------------------------

CHEAP = ("loss", "grad_norm", "adaptive_slope_limit", "worst_linf@0.002")


@pytest.mark.parametrize(
    "asked",
    [CHEAP, list(CHEAP), iter(CHEAP), ",".join(CHEAP), " , ".join(CHEAP), {n: measure_by_name(n) for n in CHEAP}],
    ids=["tuple", "list", "iterator", "text", "text with spaces", "mapping"],
)
def test_measures_are_asked_for_in_many_ways(asked: Any) -> None:
    found = measured(asked)
    assert list(found) == list(CHEAP)
    assert not found.failures
    model, data = classifier()
    for name in CHEAP:
        assert found[name] == measure_by_name(name).estimate(Objective(model, cross_entropy, data))


def test_one_name_is_one_measure() -> None:
    assert list(measured("loss")) == ["loss"]


def test_names_of_ones_own() -> None:
    model, data = classifier()
    found = measured({"slope": GradientNorm(1), "loss": GradientNorm()})
    assert list(found) == ["slope", "loss"]
    assert found["slope"] == GradientNorm(1).estimate(Objective(model, cross_entropy, data))
    assert found["loss"] == GradientNorm().estimate(Objective(model, cross_entropy, data)), "not the one of that name"


@pytest.mark.parametrize(
    ("asked", "near"),
    [("lamda_max", "lambda_max"), ("frobenius", "frobenius_squared"), ("worst_inf", "worst_linf")],
)
def test_an_unknown_name_is_refused_with_the_nearest(asked: str, near: str) -> None:
    """Before anything was measured, and with what lists all of them."""
    with pytest.raises(ValueError, match=rf"no measure '{asked}'\. Did you mean .*'{near}'") as caught:
        measured(["loss", asked])
    assert str(caught.value).endswith(f"There are {len(MEASURES)}: `steppe measures` lists them.")


def test_a_name_like_no_other_is_refused_with_what_lists_them() -> None:
    with pytest.raises(ValueError, match=r"no measure 'qqqqqq'\. There are \d+: `steppe measures` lists") as caught:
        measured("qqqqqq")
    assert "Did you mean" not in str(caught.value)


def test_measures_without_names_are_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match="name"):
        measured([Trace(), Loss()])


def test_what_to_say_of_a_name_that_is_not_there() -> None:
    assert unknown("fruit", "appel", ["kiwi", "apple"]) == (
        "there is no fruit 'appel'. Did you mean 'apple'? There are: apple, kiwi."
    )
    assert unknown("fruit", "x", []) == "there is no fruit 'x'. There are: none."
    assert unknown("size", "smal", ["small", "smaller", "xxl"]) == (
        "there is no size 'smal'. Did you mean 'small' or 'smaller'? There are: small, smaller, xxl."
    )
    many = [f"n{i}" for i in range(30)]
    assert unknown("fruit", "x", many) == "there is no fruit 'x'. There are 30."
    assert unknown("model", "x", many) == "there is no model 'x'. There are 30: `steppe models` lists them."


def test_by_default_there_is_a_short_list() -> None:
    model, data = classifier(2)
    found = measure(model, cross_entropy, data)
    assert list(found) == list(DEFAULT)
    assert set(DEFAULT) <= set(MEASURES)


@pytest.mark.parametrize("name", MEASURES)
def test_every_name_measures_a_small_classifier(name: str) -> None:
    model, data = classifier(2)
    found = measure(model, cross_entropy, data, [name], m=10)
    assert not found.failures
    estimate = found[name]
    assert isinstance(estimate, Estimate)
    assert isfinite(estimate.value)
    assert estimate.stderr >= 0
    assert estimate.complete
    assert estimate.cost.losses + estimate.cost.gradients + estimate.cost.products > 0
    assert estimate.cost.seconds > 0


def test_named_curvatures_are_those_of_dense_matrices() -> None:
    """So that no name stands for its neighbour: the spectrum of three matrices."""
    model, data = classifier(2)
    f, w = curvature.mean_loss(model, cross_entropy, [data]), flat_weights(model)
    hessian = curvature.hessian(f, w)
    matrices = {
        "": hessian,
        "adaptive_": curvature.rescaled(hessian, w.abs()),
        "gauss_newton_": curvature.gauss_newton(model, cross_entropy, [data], w),
    }
    names = [f"{p}{n}" for p in matrices for n in ("lambda_max", "trace", "frobenius_squared")]
    found = measure(model, cross_entropy, data, [*names, "lambda_min"])
    for prefix, matrix in matrices.items():
        values = curvature.eigenvalues(matrix)
        assert found[f"{prefix}lambda_max"].value == pytest.approx(float(values[-1]), rel=1e-3)
        for name, expected in (("trace", values.sum()), ("frobenius_squared", (values**2).sum())):
            estimate = found[f"{prefix}{name}"]
            assert abs(estimate.value - float(expected)) <= 4 * estimate.stderr + 1e-9
    assert found["lambda_min"].value == pytest.approx(float(curvature.eigenvalues(hessian)[0]), rel=1e-3)


# -- shared work ------------------------------------------------------------------------------------------------------


def digits_like() -> tuple[nn.Module, Pair]:
    """Larger than thirty products can exhaust, and trained, so that some eigenvalues stand out."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x = torch.randn(64, 10, dtype=F64)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(200):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, (x, y)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_measures_of_one_spectrum_share_their_products(order: tuple[int, ...]) -> None:
    three = ("lambda_max", "trace", "frobenius_squared")
    names = [three[i] for i in order]
    model, data = digits_like()
    together = measure(model, cross_entropy, data, names)
    assert list(together) == names
    assert sum(e.cost.products for e in together.values()) == together.cost.products
    assert sum(e.cost.gradients for e in together.values()) == together.cost.gradients == 1
    assert 20 <= together.cost.products <= 45
    alone = sum(measure(model, cross_entropy, data, [name]).cost.products for name in names)
    assert together.cost.products < 0.6 * alone
    hessian = curvature.hessian(curvature.mean_loss(model, cross_entropy, [data]), flat_weights(model))
    assert together["lambda_max"].value == pytest.approx(float(curvature.eigenvalues(hessian)[-1]), rel=1e-3)
    for name, expected in (("trace", curvature.trace(hessian)), ("frobenius_squared", (hessian**2).sum())):
        assert abs(together[name].value - float(expected)) <= 4 * together[name].stderr


OTHERS: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "metric": lambda model: {"metric": CustomScales([torch.full_like(p, 2.0) for p in model.parameters()])},
    "sweep": lambda model: {"by": partial(Sweep, deflate=3)},
    "dense": lambda model: {"by": Dense},
    "form": lambda model: {"form": gauss_newton},
}


@pytest.mark.parametrize("other", OTHERS)
def test_measures_of_different_spectra_share_none(other: str) -> None:
    model, data = digits_like()  # large enough that the trace is not exact
    asked = Trace(**OTHERS[other](model))
    found = measure(model, cross_entropy, data, {"one": Trace(), "other": asked})
    assert not found.failures
    alone = asked.estimate(Objective(model, cross_entropy, data))
    assert found["other"] == alone
    assert found["other"].cost.products == alone.cost.products
    assert found["other"].value != found["one"].value


def test_a_metric_of_ones_own_is_shared_too() -> None:
    model, data = classifier(2)
    metric = CustomScales([p.detach().abs() for p in model.parameters()])
    asked = {
        "trace": Trace(metric=metric),
        "top": Eigenvalue(metric=metric),
        "squares": FrobeniusSquared(metric=metric),
    }
    found = measure(model, cross_entropy, data, asked)
    assert not found.failures
    assert found["squares"].cost.products == 0
    assert found.cost.gradients == 1


def test_results_come_in_the_order_asked_for() -> None:
    names = ["trace", "loss", "lambda_min", "grad_norm", "lambda_max"]
    model, data = classifier(2)
    found = measure(model, cross_entropy, data, names)
    assert list(found) == names
    assert re.findall(r"(?m)^(\w+)  ", str(found))[1:] == names


# -- failures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(Measure):
    """Yields an estimate, or none, and raises."""

    error: Exception
    first: bool = True

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.first:
            yield Estimate(1.0, 0.1, 2, "unbiased")
        raise self.error


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "error",
    [NotFinite("the loss is inf"), ValueError("no such cut"), TypeError("not a tensor"), RuntimeError("no derivative")],
    ids=lambda e: type(e).__name__,
)
def test_a_measure_that_fails_does_not_lose_the_others(error: Exception, first: bool) -> None:
    found = measured({"loss": Loss(), "bad": Broken(error, first), "slope": GradientNorm()})
    assert list(found) == ["loss", "slope"]
    assert found.failures == {"bad": str(error)}
    with pytest.raises(KeyError, match=f"bad has no value: {error}"):
        found["bad"]
    assert "bad" not in found
    assert str(error) in str(found)


class Once(torch.autograd.Function):
    """A square that can be differentiated once, like many fused kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


def fourth_power(out: Tensor, y: Tensor) -> Tensor:
    return Once.apply(out).square().mean()


def test_a_loss_without_second_derivatives_has_no_curvature_but_all_else() -> None:
    """autograd.grad passes over the mark that backward() stops at, and leaves most of the Hessian out."""
    model, data = classifier()
    with assert_untouched(model):
        found = measure(model, fourth_power, data, "loss,lambda_max,grad_norm,worst_l2")
    assert list(found) == ["loss", "grad_norm", "worst_l2"]
    assert "twice" in found.failures["lambda_max"]


def test_a_measure_without_an_estimate_is_a_failure() -> None:
    """Rather than a name that was asked for and is nowhere."""

    class Silent(Measure):
        def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
            yield from ()

    found = measured({"loss": Loss(), "silent": Silent()})
    assert list(found) == ["loss"]
    assert "silent" in found.failures


def test_an_infinite_loss_inside_a_ball_fails_alone() -> None:
    model, data = classifier()

    def loss_fn(out: Tensor, y: Tensor) -> Tensor:
        far = (out**2).mean()
        return torch.where(far > 1e3, torch.inf, far)

    asked = {
        "worst": WorstCase(Ball(1e4)),
        "loss": Loss(),
        "average": AverageCase(1e4, n=2),
        "small": WorstCase(Ball(0.01)),
    }
    found = measure(model, loss_fn, data, asked)
    assert list(found) == ["loss", "small"]
    assert all("the loss is inf" in why for why in found.failures.values())


def test_a_loss_that_is_no_function_is_refused_at_once() -> None:
    calls = []

    def noisy(out: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return cross_entropy(nn.functional.dropout(out, 0.5, training=True), y)

    model, data = classifier()
    with assert_untouched(model), pytest.raises(ValueError, match="not a function of the weights"):
        measure(model, noisy, data, ["loss", "grad_norm", "trace"])
    assert len(calls) == 2


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TypeError, match="steps"):
        measured("loss", steps=3)


# -- interruptions ----------------------------------------------------------------------------------------------------


@dataclass
class Stopping:
    """A loss that somebody interrupts after so many calls."""

    after: int
    calls: int = 0

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.after:
            raise KeyboardInterrupt
        return cross_entropy(out, y)


PLAN: dict[str, Measure] = {
    "loss": Loss(),
    "long": ZerothOrder(TRACE, n=100),
    "slope": GradientNorm(),
    "top": Eigenvalue(),
}


def test_an_interruption_returns_what_is_there() -> None:
    """Two calls for the check; then eigenvalues, which are asked first; then loss, gradient and 25 draws."""
    model, data = classifier()
    with assert_untouched(model):
        found = measure(model, Stopping(2 + 1 + 1 + 1 + 25), data, PLAN)
    assert list(found) == ["loss", "long", "top"]
    assert found["loss"].complete
    assert found["top"].complete
    assert not found["long"].complete
    assert found["long"].n == 20
    measurement_mode = ZerothOrder(TRACE, n=20).estimate(Objective(model, cross_entropy, data))
    assert found["long"].value == pytest.approx(measurement_mode.value, rel=1e-12)
    assert found.failures == {"slope": "not measured: stopped"}
    text = " ".join(str(found).split())
    assert "unbiased, stopped early" in text
    assert "not measured: stopped" in text
    assert json.loads(found.to_json())["estimates"]["long"]["complete"] is False
    assert found.cost.losses == 26


@pytest.mark.parametrize("after", [2, 3, 4])
def test_an_interruption_before_the_first_estimate_leaves_none(after: int) -> None:
    model, data = classifier()
    with assert_untouched(model):
        found = measure(model, Stopping(after), data, PLAN)
    done = ["top", "loss"][: after - 2]
    assert sorted(found) == sorted(done)
    assert all(e.complete for e in found.values())
    assert found.failures == {name: "not measured: stopped" for name in PLAN if name not in done}


def test_an_interruption_keeps_failures() -> None:
    model, data = classifier()
    plan = {"bad": Broken(ValueError("no such cut")), "loss": Loss(), "slope": GradientNorm()}
    found = measure(model, Stopping(3), data, plan)
    assert list(found) == ["loss"]
    assert found.failures == {"bad": "no such cut", "slope": "not measured: stopped"}


def test_an_interrupted_eigenvalue_is_still_a_bound() -> None:
    """Its products call no loss, so the interruption comes from where the bar is drawn."""
    model, data = classifier()

    @dataclass(frozen=True)
    class Interrupted(Measure):
        inner: Measure

        def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
            for i, estimate in enumerate(self.inner.running(objective, seed)):
                yield estimate
                if i == 3:
                    raise KeyboardInterrupt

    found = measure(model, cross_entropy, data, {"top": Interrupted(Eigenvalue()), "loss": Loss()})
    top = Eigenvalue().estimate(Objective(model, cross_entropy, data))
    assert not found["top"].complete
    assert found["top"].kind == "lower bound"
    assert found["top"].value <= top.value
    assert found["top"].cost.products == 4
    assert list(found.failures) == ["loss"]


# -- what is shown ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_terminal() -> Iterator[tuple[Terminal, io.StringIO]]:
    """Standard error as a terminal and standard output as a file, whatever the tests run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
            patch.delenv(name, raising=False)
        terminal, output = Terminal(), io.StringIO()
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdout", output)
        yield terminal, output
        assert (sys.stderr, sys.stdout) == (terminal, output), "the bar has given back what it took"


@pytest.mark.parametrize("progress", [True, None])
def test_progress_is_written_to_the_terminal_and_nowhere_else(progress: bool | None) -> None:
    with on_a_terminal() as (terminal, output):
        found = measured({"loss": Loss(), "long": ZerothOrder(TRACE, n=50), "slope": GradientNorm()}, progress=progress)
    assert "slope" in terminal.getvalue()
    assert output.getvalue() == ""
    assert found["long"].n == 50


def test_progress_shows_the_running_estimate_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the bar is told is drawn here, and not only ten times a second."""
    monkeypatch.setattr(Progress, "update", _drawn_at_once(Progress.update))
    with on_a_terminal() as (terminal, _):
        found = measured({"loss": Loss(), "long": ZerothOrder(TRACE, n=50)}, progress=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\s", "", terminal.getvalue())
    for estimate in list(ZerothOrder(TRACE, n=50).running(Objective(*classifier_parts()))):
        assert with_error(estimate.value, estimate.stderr).replace(" ", "") in shown
    assert "passes" in shown
    assert found["long"].complete


def _drawn_at_once(update: Callable[..., None]) -> Callable[..., None]:
    def update_and_draw(self: Progress, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        self.refresh()

    return update_and_draw


def classifier_parts() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Pair]:
    model, data = classifier()
    return model, cross_entropy, data


def test_no_progress_where_it_is_not_wanted() -> None:
    with on_a_terminal() as (terminal, output):
        measured("loss", progress=False)
    assert (terminal.getvalue(), output.getvalue()) == ("", "")


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    measured("loss,grad_norm")
    assert capsys.readouterr() == ("", "")


def test_progress_asked_for_is_written_into_a_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a batch job is no terminal, and somebody asked for it."""
    measured("loss,grad_norm", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "grad_norm" in err


def test_progress_ends_with_an_interruption() -> None:
    model, data = classifier()
    with on_a_terminal() as (_, output):
        found = measure(model, Stopping(20), data, PLAN, progress=True)
    assert not found["long"].complete
    assert output.getvalue() == ""


def test_progress_does_not_change_the_numbers() -> None:
    names = "loss,lambda_max,worst_linf,zeroth_trace"
    with on_a_terminal():
        shown = measured(names, progress=True)
    assert dict(shown) == dict(measured(names, progress=False))


BRACKETS = ["worst[linf]", "a[/b]", "[bold]"]


def test_names_in_the_table_may_have_brackets() -> None:
    """Which must not be taken for colours."""
    found = measured(dict.fromkeys(BRACKETS, Loss()))
    assert all(name in str(found) for name in BRACKETS)
    failed = measured({"x": Broken(ValueError("none of [weight, bias] is [/there]"))})
    assert "none of [weight, bias] is [/there]" in str(failed)


def test_names_beside_the_bar_may_have_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "update", _drawn_at_once(Progress.update))
    with on_a_terminal():
        found = measured(dict.fromkeys(BRACKETS, Loss()), progress=True)
    assert list(found) == BRACKETS


COLUMNS = ["measure", "value", "error", "n", "kind", "cost", "time"]


def test_the_table_has_a_row_for_every_name() -> None:
    found = measured({"loss": Loss(), "long": ZerothOrder(TRACE, n=20), "bad": Broken(ValueError("no such cut"))})
    head, _, loss, long, bad, *rest = [line for line in str(found).splitlines() if line.strip()]
    assert head.split() == COLUMNS
    assert list(found.table().heads) == COLUMNS
    assert loss.split()[:4] == ["loss", f"{found['loss'].value:.5g}", "1", "exact"]
    e = found["long"]
    assert long.split()[:5] == ["long", f"{e.value:.5g}", f"{e.stderr:.2g}", "20", "unbiased"]
    assert "21 passes" in long  # 20 losses and a gradient
    assert re.search(r"\d\.\d\d s\s*$", long)
    assert bad.split() == ["bad", "none", "no", "such", "cut"]
    total = " ".join(" ".join(rest).split())
    assert total.startswith("Total cost: 22 passes, ")
    assert "counted once" in total


def test_no_name_is_cut_off() -> None:
    """A table of abbreviated names is one of different measures that look alike."""
    plain = Estimate(-1.2345e-05, 1.2e-07, 100, "lower bound", Cost(100, 20, 200, 12.3), "of some.layer.weight")
    found = Results(dict.fromkeys(MEASURES, plain), {f"failed_{name}": "no such cut" for name in MEASURES})
    words = str(found).split()
    assert [name for name in (*found, *found.failures) if name not in words] == []


def test_an_error_that_is_unknown_or_nothing_is_left_blank() -> None:
    found = Results({"a": Estimate(1.0, nan, 1, "unbiased"), "b": Estimate(2.0, 0.0, 1, "exact", note="of x")})
    lines = str(found).splitlines()
    row = next(line for line in lines if line.startswith("a ")).split()
    assert row == ["a", "1", "1", "unbiased", "nothing", "0.00", "s"]
    assert next(line for line in lines if line.startswith("b ")).split()[:6] == ["b", "2", "1", "exact,", "of", "x"]


def test_json_is_strict_and_holds_everything() -> None:
    found = measured(
        {"loss": Loss(), "one": ZerothOrder(TRACE, n=1), "trace": Trace(), "bad": Broken(ValueError("no"))}
    )

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    read = json.loads(found.to_json(), parse_constant=refuse)
    json.dumps(read, allow_nan=False)
    assert set(read) == {"estimates", "failures", "cost"}
    assert read["failures"] == {"bad": "no"}
    assert list(read["estimates"]) == ["loss", "one", "trace"]
    for name, e in found.items():
        row = read["estimates"][name]
        assert row["value"] == e.value
        assert row["stderr"] == (e.stderr if isfinite(e.stderr) else None)
        assert (row["n"], row["kind"], row["note"], row["complete"]) == (e.n, e.kind, e.note, e.complete)
        assert Cost(**row["cost"]) == e.cost
        assert row["interval"] == ([*e.interval()] if isfinite(e.interval()[0]) else [None, None])
    assert Cost(**read["cost"]) == found.cost
    again = {n: Estimate(r["value"], nan if r["stderr"] is None else r["stderr"], r["n"], r["kind"], note=r["note"],
                         complete=r["complete"]) for n, r in read["estimates"].items()}  # fmt: skip
    assert again["trace"] == found["trace"]


def test_results_are_a_mapping() -> None:
    one, two = Estimate(1.0, 0.0, 1, "exact"), Estimate(2.0, 0.1, 5, "unbiased")
    found = Results({"a": one, "b": two}, {"c": "no such cut"})
    assert isinstance(found, Mapping)
    assert (len(found), list(found), dict(found)) == (2, ["a", "b"], {"a": one, "b": two})
    assert found["b"] is two
    assert found.get("c") is None
    assert found.get("d", one) is one
    assert "a" in found
    assert "c" not in found
    with pytest.raises(KeyError, match="c has no value: no such cut"):
        found["c"]
    with pytest.raises(KeyError, match="d"):
        found["d"]
    assert found == replace(found)
    assert Results({}).cost == Cost()


def test_nothing_asked_is_nothing_found() -> None:
    found = measured([])
    assert len(found) == 0
    assert found.cost.losses == found.cost.gradients == found.cost.products == 0
    assert json.loads(found.to_json())["estimates"] == {}


# -- options that are the objective's ---------------------------------------------------------------------------------


def test_m_cuts_the_data_anew() -> None:
    model, (x, y) = classifier()
    found = measure(model, cross_entropy, (x, y), "worst_l2,loss", m=8)
    batches = [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    assert found["worst_l2"].n == 3
    assert found["worst_l2"].value == measure(model, cross_entropy, batches, "worst_l2")["worst_l2"].value
    assert found["loss"].value == pytest.approx(float(cross_entropy(model(x), y).detach()), rel=1e-12)


def test_forward_takes_batches_of_any_shape() -> None:
    case = make(dictionaries)
    found = measure(case.model, case.loss_fn, case.batches, "loss,grad_norm", forward=case.forward)
    loss, grads = case.moved()
    assert found["loss"].value == pytest.approx(loss, rel=1e-12)
    assert found["grad_norm"].value == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-10)


def test_only_moves_some_parameters() -> None:
    model, data = classifier()
    found = measure(model, cross_entropy, data, "grad_norm,lambda_max", only=["2.*"])
    f = curvature.mean_loss(model, cross_entropy, [data])
    w = flat_weights(model)
    assert found["grad_norm"].value == pytest.approx(float(curvature.gradient(f, w)[30:].norm()), rel=1e-10)
    top = float(curvature.eigenvalues(curvature.hessian(f, w)[30:, 30:])[-1])
    assert found["lambda_max"].value == pytest.approx(top, rel=1e-3)


def test_statistics_of_normalisation_layers() -> None:
    case = make(convolutions)
    running, batch = (
        measure(case.model, case.loss_fn, case.batches, "loss,grad_norm", statistics=s) for s in ("running", "batch")
    )
    assert running["loss"].value != pytest.approx(batch["loss"].value, rel=1e-3)
    assert running["grad_norm"].value != pytest.approx(batch["grad_norm"].value, rel=1e-3)
    assert running["loss"].value == pytest.approx(case.moved()[0], rel=1e-10)


def test_one_loss_a_row_is_the_same_as_their_mean() -> None:
    model, data = classifier()
    one, other = (measure(model, f, data, "loss,grad_norm,lambda_max") for f in (cross_entropy, each_cross_entropy))
    for name in one:
        assert one[name].value == pytest.approx(other[name].value, rel=1e-9)


def test_a_data_loader_is_read_once() -> None:
    model, (x, y) = classifier(2)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    torch.manual_seed(4)
    with assert_untouched(model):
        found = measure(model, cross_entropy, loader, "loss,trace,adaptive_worst_linf", seed=1)
    whole = measure(model, cross_entropy, (x, y), "loss,trace", seed=1)
    assert found["loss"].value == pytest.approx(whole["loss"].value, rel=1e-10)
    assert found["trace"].value == pytest.approx(whole["trace"].value, rel=1e-6)
    assert found["adaptive_worst_linf"].n == 3


MIXED = "loss,lambda_max,trace,worst_linf,avg_l2,zeroth_trace,relative_flatness"


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, data = classifier(2)
    one, again, other = (measure(model, cross_entropy, data, MIXED, m=10, seed=seed) for seed in (3, 3, 4))
    assert dict(one) == dict(again)
    assert all(one[name] != other[name] for name in ("avg_l2", "zeroth_trace", "relative_flatness"))
    assert one["loss"] == other["loss"]
    assert one["trace"].kind == "exact"
    assert float(one["trace"]) == pytest.approx(float(other["trace"]), rel=1e-12)


def test_a_measure_is_the_same_in_company_as_alone() -> None:
    """Except for what is shared: a trace profits from vectors that eigenvalues leave."""
    model, data = classifier(2)
    together = measure(model, cross_entropy, data, "loss,worst_linf,avg_l2,relative_flatness,lambda_max", seed=2)
    for name in together:
        assert measure(model, cross_entropy, data, [name], seed=2)[name] == together[name]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_alone(training: bool) -> None:
    case = make(convolutions)
    case.model.train(training)
    names = "loss,grad_norm,lambda_max,worst_l2,zeroth_trace,fisher_trace"
    with assert_untouched(case.model):
        found = measure(case.model, case.loss_fn, case.batches, names)
    assert not found.failures


def test_two_determinant_measures_share_their_lanczos_runs() -> None:
    model, data = classifier(2)
    asked = {"wide": LogDeterminant(0.3, runs=4), "narrow": LogDeterminant(0.5, runs=4)}
    found = measure(model, cross_entropy, data, asked)
    assert not found.failures
    assert found["narrow"].cost.products == 0 < found["wide"].cost.products


def test_nothing_is_printed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured("loss")
    assert all((str(found), found.to_json(), found.table()))
    assert capsys.readouterr() == ("", "")
