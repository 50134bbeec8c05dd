"""Runs an optimizer and its naive rewrite side by side."""

from collections.abc import Callable
from typing import Any

import torch
from problems import Problem, flat_weights
from torch import Tensor, nn

from .flat import SGD, AdamW, Base, Rule, plain, trajectory

BASES: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Callable[[], Base]]] = {
    "sgd": (
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.02),
        lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.02),
    ),
    "adamw": (
        lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
        lambda: AdamW(lr=0.01, weight_decay=0.1),
    ),
}

Options = Callable[[int], dict[str, Any]]  # keyword arguments of opt.step at that step


def no_options(t: int) -> dict[str, Any]:
    return {}


class Run:
    """What an optimizer did: weights after every step, and where each pass was taken."""

    def __init__(self, problem: Problem, model: nn.Module, opt: Any, options: Options = no_options):
        self.visited: list[list[Tensor]] = []  # at each step, the displacement of every pass
        self.rows: list[list[int]] = []  # at each step, how many rows every pass was on
        self.options: list[dict[str, Any]] = []  # of the first group, after each step
        after = []
        for t, (x, y) in enumerate(problem.batches):
            origin = flat_weights(model)
            places, counts = [], []

            def closure(pass_: Any) -> Tensor:
                a, b = pass_.rows(x, y)
                places.append(flat_weights(model) - origin)
                counts.append(len(a))
                losses = problem.losses(model(a), b)
                pass_.backward(losses)
                return losses.detach().mean()

            opt.step(closure, **options(t))
            self.visited.append(places)
            self.rows.append(counts)
            self.options.append({k: v for k, v in opt.param_groups[0].items() if k != "params"})
            after.append(flat_weights(model))
        self.weights = torch.stack(after)


def assert_same_path(actual: Tensor, expected: Tensor, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_follows(run: Run, problem: Problem, rule: Rule, base: str = "sgd", *, like_plain: bool = False) -> None:
    """The run is the naive rewrite's, and the rewrite is (or is not) the base optimizer's own path."""
    expected = trajectory(problem, rule, BASES[base][1]())
    assert_same_path(run.weights, expected)
    unperturbed = trajectory(problem, plain, BASES[base][1]())
    gap = (expected - unperturbed).abs().max()
    # a method that does nothing on this problem would make the comparison above an empty one
    assert gap == 0 if like_plain else gap > 1e-5, f"largest distance from the base optimizer's path: {gap}"
