"""Measures by name, `NAME[@RADIUS][KEY=VALUE,...]`: one canonical spelling, and options that do what they say."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe
from steppe import Ball, Objective, measure
from steppe.measures import AutoPGD, AverageCase, OnData, OnNormalisedLogits, PerBatch, ProjectedAscent, WorstCase
from steppe.measures.registration import MAGNITUDE
from steppe.measures.registry import canonical_names, measure_by_name, resolve_measures
from steppe.studies.plan import Study
from steppe.studies.report.definitions import definition, label


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("trace", "trace"),
        (" worst_linf@2e-3 ", "worst_linf@0.002"),
        ("worst_linf@.0020", "worst_linf@0.002"),
        ("worst_linf@0.00001234567", "worst_linf@1.234567e-05"),
        ("lambda_max[rows=test]", "lambda_max[rows=test]"),
        ("lambda_max[ rows = test , count=512 ]", "lambda_max[count=512,rows=test]"),
        ("trace[rtol=0.02]", "trace"),  # the default
        ("trace[rtol=1e-1,most=50]", "trace[most=50,rtol=0.1]"),
        (
            "adaptive_worst_linf@0.002[m=64,steps=20,starts=2,start=uniform]",
            "adaptive_worst_linf@0.002[m=64,start=uniform]",
        ),
        ("worst_l2@1[starts=1.0,climb=power,start=zero]", "worst_l2@1[starts=1]"),
        ("worst_l2[climb=auto-pgd,precision=bf16]", "worst_l2[climb=auto-pgd,precision=bf16]"),
    ],
)
def test_equal_requests_have_one_name(written: str, canonical: str) -> None:
    assert canonical_names([written]) == [canonical]
    assert canonical_names([canonical, written]) == [canonical]
    assert Study.of({"measures": [written]}, "x").measures == (canonical,)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        (
            "adaptive_worst_linf_normalised@0.1[climb=auto-pgd,start=uniform,starts=1,steps=7]",
            PerBatch(OnNormalisedLogits(WorstCase(Ball(0.1, MAGNITUDE, inf), 7, 1, AutoPGD(), "uniform"))),
        ),
        ("worst_l2@0.5[climb=pgd,steps=3]", PerBatch(WorstCase(Ball(0.5), 3, climb=ProjectedAscent()))),
        ("avg_l2@0.5[n=7,m=8]", OnData(PerBatch(AverageCase(0.5, n=7)), m=8)),
        ("lambda_max[rows=augmented,count=9]", OnData(steppe.MEASURES["lambda_max"](), rows="augmented", count=9)),
    ],
)
def test_a_name_is_short_for_a_value(written: str, made: Any) -> None:
    assert measure_by_name(written) == made


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("lambda_max[rows=tests]", r"no value of rows 'tests'. Did you mean 'test'"),
        ("worst_l2[step=3]", r"no option of worst_l2 'step'. Did you mean 'steps'"),
        ("lambda_max[steps=3]", r"no option of lambda_max 'steps'"),
        ("lambda_max[m=64]", r"m is the batch size of means over batches"),
        ("worst_l2[climb=autopgd]", r"no value of climb 'autopgd'. Did you mean 'auto-pgd'"),
        ("worst_l2[steps=2.5]", r"steps of WorstCase takes a whole number, 1 or more, not 2\.5"),
        ("worst_l2[steps=0]", r"steps of WorstCase takes a whole number, 1 or more, not 0"),
        ("worst_l2[steps=few]", r"steps of WorstCase takes a whole number, 1 or more, not 'few'"),
        ("lambda_max[count=0]", r"count of OnData takes a whole number, 1 or more"),
        ("trace[rtol=-1]", r"rtol of Trace takes a number, 0 or more, and finite, not -1"),
        ("trace[rtol]", r"options are written \[KEY=VALUE,...\]"),
        ("trace[]", r"options are written \[KEY=VALUE,...\]"),
        ("trace[rtol=1,rtol=2]", r"two values of rtol"),
        ("trace]rtol=1[", r"a measure is written NAME\[@RADIUS\]\[KEY=VALUE,...\]"),
        ("worst_linf@resnet18-cifar", r"no grid 'resnet18-cifar'. Did you mean 'resnet18-cifar10'"),
        ("all@vit", r"no grid 'vit'"),
        ("all", r"takes the name of a grid"),
        ("trace@vit-cifar10", r"no definition in the grid vit-cifar10 'trace'"),
        ("all@vit-cifar10[stps=3]", r"no option of all 'stps'. Did you mean 'steps'"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(written: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resolve_measures([written])


def test_grids_of_the_paper_by_name() -> None:
    names = canonical_names(["adaptive_worst_linf@resnet18-cifar10", "worst_linf@vit-cifar10[m=128]"])
    assert names[:4] == [f"adaptive_worst_linf@{r}" for r in ("0.001", "0.002", "0.004", "0.008")]  # Table 3
    assert names[4:] == [f"worst_linf@{r}[m=128]" for r in ("1e-05", "2e-05", "4e-05", "8e-05")]  # Table 4
    every = canonical_names(["all@resnet18-cifar10[climb=auto-pgd,n=10]"])
    assert len(every) == 12 * 4
    assert all(("climb=auto-pgd" in n) == ("worst" in n) and ("n=10" in n) == ("avg" in n) for n in every)
    assert len(canonical_names(["all@bert-mnli"])) == 4 * 3
    study = Study.of({"measures": {"adaptive_worst_linf[m=8]": "clip", "worst_l2": [0.1, None], "trace": None}}, "x")
    assert study.measures == (
        "adaptive_worst_linf@0.001[m=8]", "adaptive_worst_linf@0.002[m=8]", "adaptive_worst_linf@0.004[m=8]",
        "worst_l2@0.1", "worst_l2", "trace",
    )  # fmt: skip


def test_in_a_study_the_usual_data_options_are_left_out() -> None:
    names = ["trace[rows=train]", "trace", "worst_l2@0.1[m=256,precision=float32]", "worst_l2@0.1[m=128]"]
    assert Study.of({"measures": names}, "x").measures == ("trace", "worst_l2@0.1", "worst_l2@0.1[m=128]")
    assert canonical_names(names[:1]) == names[:1]  # `steppe measure --split test` has other ones


def test_commas_inside_brackets_do_not_separate_names() -> None:
    assert list(resolve_measures("loss,worst_l2[steps=3,starts=1],trace")) == [
        "loss",
        "worst_l2[starts=1,steps=3]",
        "trace",
    ]
    assert "on test rows" in definition("worst_l2@0.1[m=8,rows=test]")
    assert label("lambda_max[rows=corrupted]").endswith("corrupted rows")
    assert definition("my own [name") == ""


# -- options against computations of another kind ----------------------------------------------------------------------


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return model, torch.randn(12, 5, dtype=torch.float64), torch.randint(3, (12,))


def test_m_is_the_number_of_rows_per_batch() -> None:
    model, x, y = problem()
    results = measure(model, cross_entropy, (x, y), ["worst_l2@0.3[m=4]", "worst_l2@0.3"], m=6, progress=False)
    for m, name in ((4, "worst_l2@0.3[m=4]"), (6, "worst_l2@0.3")):
        parts = [Objective(model, cross_entropy, (x[i : i + m], y[i : i + m])) for i in range(0, 12, m)]
        by_hand = [WorstCase(Ball(0.3)).estimate(part).value for part in parts]
        assert results[name].value == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-12)
        assert results[name].n == 12 // m


def test_precision_of_one_measure() -> None:
    model, x, y = problem()
    model, x = model.float(), x.float()
    results = measure(model, cross_entropy, (x, y), ["loss", "loss[precision=bf16]"], progress=False)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        rounded = float(cross_entropy(model(x), y))
    assert results["loss[precision=bf16]"].value == pytest.approx(rounded, rel=1e-6)
    assert results["loss"].value == pytest.approx(float(cross_entropy(model(x), y).detach()), rel=1e-6)
    assert results["loss"].value != results["loss[precision=bf16]"].value


def test_rows_of_a_run_are_not_those_of_given_data() -> None:
    model, x, y = problem()
    results = measure(model, cross_entropy, (x, y), ["loss", "loss[rows=test]"], progress=False)
    assert "pass the rows to measure on as data" in results.failures["loss[rows=test]"]
    assert list(results) == ["loss"]


def test_one_step_from_the_weights_is_the_step_of_sam() -> None:
    model, x, y = problem()
    loss = cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.sqrt(sum((g.square().sum() for g in grads), torch.tensor(0.0)))
    moved = {n: p.detach() + 0.1 * g / norm for (n, p), g in zip(model.named_parameters(), grads, strict=True)}
    there = float(cross_entropy(torch.func.functional_call(model, moved, (x,)), y).detach())
    found = measure(model, cross_entropy, (x, y), "worst_l2@0.1[steps=1,starts=1]", progress=False)
    assert found["worst_l2@0.1[starts=1,steps=1]"].value == pytest.approx(there - float(loss.detach()), rel=1e-10)


class Quadratic(nn.Module):
    """A convex quadratic of four weights around w, one of which is zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.w = nn.Parameter(torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=torch.float64))
        self.centre = self.w.detach().clone()
        a = torch.randn(4, 4, dtype=torch.float64)
        self.h, self.g = a @ a.T, torch.randn(4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        d = self.w - self.centre
        return (x * 0).sum() + self.g @ d + d @ self.h @ d / 2


def of_output(output: Tensor, target: Tensor) -> Tensor:
    return output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("climb", ["power", "auto-pgd", "pgd"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_ascents_from_uniform_starts_reach_the_highest_corner(climb: str, adaptive: bool) -> None:
    model = Quadratic()
    scale = model.centre.abs() if adaptive else torch.ones(4, dtype=torch.float64)
    corners = [torch.tensor(c, dtype=torch.float64) * scale * 2 for c in product((-1.0, 1.0), repeat=4)]
    highest = max(float(model.g @ d + d @ model.h @ d / 2) for d in corners)  # of a convex function on a box
    name = f"{'adaptive_' if adaptive else ''}worst_linf@2[climb={climb},start=uniform,starts=30,steps=40]"
    found = measure(model, of_output, (torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1)), [name], progress=False)
    assert next(iter(found.values())).value == pytest.approx(highest, rel=1e-6)


def first_points(p: float, adaptive: bool) -> Tensor:
    """The first point of every search from a uniform start, in coordinates in which the ball has radius 1."""
    model, points = Quadratic(), []

    def stay(start: Any, problem: Any, steps: int) -> Any:
        points.append(torch.cat([t.reshape(-1) for t in start.gamma.tensors]))
        yield start

    ball = Ball(0.3, MAGNITUDE if adaptive else None, p)
    objective = Objective(model, of_output, (torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1)))
    WorstCase(ball, starts=1000, climb=stay, start="uniform").estimate(objective)
    return torch.stack(points)


@pytest.mark.slow
@pytest.mark.parametrize(("p", "adaptive"), [(2.0, False), (2.0, True), (inf, False), (inf, True)])
def test_uniform_starts_are_uniform_in_the_ball(p: float, adaptive: bool) -> None:
    from scipy.stats import kstest

    points = first_points(p, adaptive)
    free = [0, 1, 3] if adaptive else [0, 1, 2, 3]  # a weight of zero cannot move
    assert not points[:, [i for i in range(4) if i not in free]].any()
    points = points[:, free]
    if p == 2:  # P(|x| <= r) = r^d, and the first coordinate is symmetric
        assert kstest((points.norm(dim=1) ** len(free)).numpy(), "uniform").pvalue > 1e-3
        assert abs(float((points[:, 0] > 0).double().mean()) - 0.5) < 0.06
    else:
        for column in points.T:
            assert kstest((column.numpy() + 1) / 2, "uniform").pvalue > 1e-3


def test_a_uniform_start_in_other_balls_is_refused() -> None:
    model = Quadratic()
    objective = Objective(model, of_output, (torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1)))
    with pytest.raises(ValueError, match="uniform starts are drawn in l2 and l_inf balls"):
        WorstCase(Ball(0.3, None, 1.0), start="uniform").estimate(objective)
