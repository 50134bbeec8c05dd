"""SA-SAM's step sizes: their bounds and limit cycle on quadratics, and lambda_max against 2 / eta in training.

The rule: eta_t = min(|w_t - w_(t-1)| / (2 |g_t - g_(t-1)|), sqrt(1 + delta theta_(t-1)) eta_(t-1)). On a loss whose
gradient is beta-Lipschitz the first term is at least 1 / 2 beta, the second never decreases, and the second step uses
the first term. So eta_t >= 1 / 2 beta from the second step on, for every eta_0. The paper states 1 / beta, which holds
with the damping 1 of the released code.

Gradient descent with a fixed step size sharpens until lambda_max is about 2 / eta and stays there (Cohen et al. 2021).
The paper conjectures that its step size regularises sharpness through this edge of stability. Its rule keeps
2 / eta_t = 4 beta_t where the first term is active, with beta_t the smoothness along the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from steppe import SAM, SASAM, SASGD, Method, Plain, SharpnessAware
from steppe.extend import BLUE, VERMILLION
from steppe.measures import Eigenvalue, Objective

from .panels import Panel, line, picture
from .registry import Result, Settings
from .small_radius import images, network
from .universal import Quadratic

# -- quadratics -------------------------------------------------------------------------------------------------------


def step_size_bounds(smallest: float, largest: float, damping: float = 2.0) -> tuple[float, float]:
    """Bounds 1 / (damping lambda) of all step sizes but the first, from a quadratic's extreme eigenvalues.

    The lower bound holds on every loss whose gradient is Lipschitz with constant `largest`.
    """
    return 1 / (damping * largest), 1 / (damping * smallest)


def growth(delta: float = 0.02) -> float:
    """The largest lasting ratio of two successive step sizes, theta = sqrt(1 + delta theta): above 1 + delta/2."""
    return (delta + sqrt(delta**2 + 4)) / 2


@dataclass(frozen=True)
class LimitCycle:
    """The two-cycle w, -w in which SA-SAM ends on a quadratic, along the top eigenvector."""

    length: float  # |w|
    radius: float
    loss: float


def limit_cycle(top: float, damping: float = 2.0) -> LimitCycle:
    """The limit cycle for the top eigenvalue: |w| = rho / (2 damping - 1), rho^2 = 1 / (damping top).

    A step is w - eta top (w + rho sign w) = (1 - 1/damping) w - rho/damping sign w. The loss is
    1 / (2 damping (2 damping - 1)^2) for every curvature: 1/36 with the paper's damping 2, and 1/2 with the released
    code's 1. With rho_t = sqrt(eta_t), SA-SAM does not converge on a quadratic.
    """
    radius = 1 / sqrt(damping * top)
    length = radius / (2 * damping - 1)
    return LimitCycle(length, radius, top * length**2 / 2)


@dataclass(frozen=True)
class Point:
    """A training step on a quadratic: the step size, and the weights and loss after it."""

    eta: float
    weights: Tensor
    loss: float


def train_quadratic(method: SASAM | SASGD, hessian: Tensor, start: Tensor, steps: int, eta_0: float) -> Iterator[Point]:
    """Trains on w' H w / 2 with a smoothness-adaptive method, and yields every step."""
    model = Quadratic(hessian, start)
    base = torch.optim.SGD(model.parameters(), lr=eta_0)
    opt = SharpnessAware(base, method, model=model)
    for _ in range(steps):
        opt.step(_closure(opt, model))
        w = model.w.detach().clone()
        yield Point(float(base.param_groups[0]["lr"]), w, (w @ hessian @ w / 2).item())


def _closure(opt: SharpnessAware, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    return closure


# -- edge of stability ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of `edge-of-stability`."""

    rows: int = 200
    width: int = 24
    steps: int = 1200
    every: int = 60  # steps between two measurements of lambda_max
    lr: float = 0.2  # of methods with a fixed step size
    rho: float = 0.05


@dataclass(frozen=True)
class Trace:
    """Measurements in one training run."""

    step: list[int]
    top: list[float]  # lambda_max
    edge: list[float]  # 2 / eta
    loss: list[float]


def methods(sizes: Sizes) -> dict[str, Method]:
    """Gradient descent and SAM, each with a fixed and with an adaptive step size."""
    return {"gd": Plain(), "sam": SAM(sizes.rho), "sa-sgd": SASGD(), "sa-sam": SASAM()}


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance to the class's unit vector, averaged over rows, as in Cohen et al. 2021."""
    return mse_loss(out, y, reduction="none").sum(1).mean() / 2


def train(method: Method, sizes: Sizes, seed: int) -> Trace:
    """Full-batch training on the digits, with regular measurements of lambda_max and 2 / eta."""
    x, labels = images(sizes.rows)
    y = one_hot(labels, 10).double()
    model = network(sizes.width, seed)
    base = torch.optim.SGD(model.parameters(), lr=sizes.lr if isinstance(method, (Plain, SAM)) else 0.01)
    opt = SharpnessAware(base, method, model=model, seed=seed)
    closure = _closure(opt, lambda: squared_error(model(x), y))
    trace = Trace([], [], [], [])
    for step in range(1, sizes.steps + 1):
        loss = opt.step(closure)
        if step % sizes.every == 0:
            trace.step.append(step)
            trace.top.append(Eigenvalue(rtol=1e-2).estimate(Objective(model, squared_error, (x, y))).value)
            trace.edge.append(2 / float(base.param_groups[0]["lr"]))
            trace.loss.append(float(loss))
    return trace


def edge_of_stability(settings: Settings) -> Result:
    """lambda_max and 2 / eta in full-batch training by four methods, and SA-SAM's limit cycle on a quadratic."""
    sizes = settings.of(Sizes(), steps=120, rows=60, width=8, every=20)
    chosen = methods(sizes)
    traces: dict[str, Trace] = {}
    for name, method in chosen.items():
        traces[name] = train(method, sizes, settings.seed)
        settings.tick(len(traces), len(chosen))
    ratios = {name: fmean(a / b for a, b in list(zip(t.top, t.edge, strict=True))[-10:]) for name, t in traces.items()}
    words = [
        "The mean of lambda_max / (2 / eta) over the last ten measurements is "
        + ", ".join(f"{r:.2f} ({name})" for name, r in ratios.items()) + ".",
        "The last lambda_max is " + ", ".join(f"{t.top[-1]:.3g} ({name})" for name, t in traces.items())
        + ", the last loss " + ", ".join(f"{t.loss[-1]:.2g} ({name})" for name, t in traces.items()) + ".",
        _limit_cycle_words(),
    ]  # fmt: skip
    data = {"traces": {k: vars(t) for k, t in traces.items()}, "ratio": ratios, "sizes": vars(sizes)}
    return Result(data, _draw(data), words)


def _limit_cycle_words() -> str:
    hessian = torch.diag(torch.tensor([5.0, 1.0, 0.2], dtype=torch.float64))
    *_, last = train_quadratic(SASAM(), hessian, torch.ones(3, dtype=torch.float64), 200, 1e-2)
    return (
        f"On a quadratic with curvatures 5, 1 and 0.2, SA-SAM ends in a cycle with loss {last.loss:.4f} and step "
        f"size of {last.eta:.3f}; the closed form is {limit_cycle(5.0).loss:.4f} = 1/36 for all curvatures."
    )


def _draw(data: Mapping[str, Any]) -> dict[str, Any]:
    panels = []
    for name, t in data["traces"].items():
        traces = [
            line("λ max", t["step"], t["top"], BLUE),
            line("2 / η", t["step"], t["edge"], VERMILLION, line={"dash": "dash"}),
        ]
        panels.append(Panel(name, "step", "curvature" if name == "gd" else "", traces))
    return picture("lambda_max and the edge of stability", *panels)
