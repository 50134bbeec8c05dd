"""The largest curvature against 2 / eta in training: fixed step sizes, and those that adapt to the smoothness.

Gradient descent with a fixed step size sharpens until lambda_max is about 2 / eta and stays there (Cohen et al. 2021).
SA-SAM's paper conjectures that its step size regularises sharpness through the same edge. Its rule keeps
2 / eta_t = 4 beta_t where the first branch acts, beta_t being the smoothness seen along the last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from ..core.probe import Method
from ..measures import Eigenvalue, Objective
from ..methods.sa_sam import SASAM, SASGD
from ..methods.sam import SAM, Plain
from ..optim.engine import SharpnessAware
from .panels import BLUE, VERMILLION, Panel, line, picture
from .result import Result, Settings
from .small_radius import images, network
from .step_sizes import descend, rest


@dataclass(frozen=True)
class Sizes:
    """How much data, how long, how often to look."""

    rows: int = 200
    width: int = 24
    steps: int = 1200
    every: int = 60  # steps between two looks at the curvature
    lr: float = 0.2  # fixed, or the first one; of the mean over rows of squares summed over classes, halved
    rho: float = 0.05


@dataclass(frozen=True)
class Trace:
    """One training run, look by look."""

    step: list[int]
    top: list[float]  # lambda_max
    edge: list[float]  # 2 / eta
    loss: list[float]


def methods(sizes: Sizes) -> dict[str, Method]:
    """Plain and sharpness-aware descent, each with a fixed and with an adaptive step size."""
    return {"gd": Plain(), "sam": SAM(sizes.rho), "sa-sgd": SASGD(), "sa-sam": SASAM()}


def squares(out: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance to the class's unit vector, as in Cohen et al. 2021: its mean over rows."""
    return mse_loss(out, y, reduction="none").sum(1).mean() / 2


def follow(method: Method, sizes: Sizes, seed: int) -> Trace:
    """Full-batch training on the digits, with lambda_max of the Hessian and 2 / eta every so many steps."""
    x, labels = images(sizes.rows)
    y = one_hot(labels, 10).double()
    model = network(sizes.width, seed)
    base = torch.optim.SGD(model.parameters(), lr=sizes.lr if isinstance(method, (Plain, SAM)) else 0.01)
    opt = SharpnessAware(base, method, model=model, seed=seed)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = squares(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    trace = Trace([], [], [], [])
    for step in range(1, sizes.steps + 1):
        loss = opt.step(closure)
        if step % sizes.every == 0:
            trace.step.append(step)
            trace.top.append(_top(model, x, y))
            trace.edge.append(2 / float(base.param_groups[0]["lr"]))
            trace.loss.append(float(loss))
    return trace


def _top(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return Eigenvalue(rtol=1e-2).estimate(Objective(model, squares, (x, y))).value


def edge_of_stability(settings: Settings) -> Result:
    """lambda_max and 2 / eta along full-batch training by four methods, and where SA-SAM rests on quadratics."""
    sizes = settings.of(Sizes(), steps=120, rows=60, width=8, every=20)
    traces: dict[str, Trace] = {}
    for name, method in methods(sizes).items():
        traces[name] = follow(method, sizes, settings.seed)
        settings.tick(len(traces), len(methods(sizes)))
    ratios = {name: fmean(a / b for a, b in list(zip(t.top, t.edge, strict=True))[-10:]) for name, t in traces.items()}
    words = [
        "Over the last ten looks lambda_max over 2/eta is on average "
        + ", ".join(f"{r:.2f} ({name})" for name, r in ratios.items()) + ".",
        "lambda_max ends at " + ", ".join(f"{t.top[-1]:.3g} ({name})" for name, t in traces.items())
        + ", the loss at " + ", ".join(f"{t.loss[-1]:.2g} ({name})" for name, t in traces.items()) + ".",
    ]  # fmt: skip
    words.append(_resting())
    data = {"traces": {k: vars(t) for k, t in traces.items()}, "ratio": ratios, "sizes": vars(sizes)}
    return Result(data, _draw(data, words), words)


def _resting() -> str:
    """A sentence about SA-SAM on a quadratic, simulated."""
    hessian = torch.diag(torch.tensor([5.0, 1.0, 0.2], dtype=torch.float64))
    *_, last = descend(SASAM(), hessian, torch.ones(3, dtype=torch.float64), 200, 1e-2)
    return (
        f"On a quadratic with curvatures 5, 1 and 0.2 SA-SAM rests at a loss of {last.loss:.4f} and a step size of "
        f"{last.eta:.3f}; closed form {rest(5.0).loss:.4f} = 1/36, whatever the curvatures."
    )


def _draw(data: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    panels = []
    for name, t in data["traces"].items():
        traces = [
            line("λ max", t["step"], t["top"], BLUE),
            line("2 / η", t["step"], t["edge"], VERMILLION, line={"dash": "dash"}),
        ]
        panels.append(Panel(name, "step", "curvature" if name == "gd" else "", traces))
    return picture("The largest curvature and the edge of stability", " ".join(words), *panels)
