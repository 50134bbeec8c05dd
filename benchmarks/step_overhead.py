"""A step of steppe costs its passes and its base step, and next to nothing else: ratios to that ideal, beside peers.

Every step of a method is timed between two steps of the ideal (the same number of passes and one base step,
nothing else), in random order, on one thread. The ratio is the step's time over the mean of its two neighbours;
medians and quartiles over all rounds. `ideal again` is the ideal as a method: its distance from 1 is the noise.

(a) 402 small tensors, batch 8: Python and dispatch dominate.    (b) CIFAR ResNet-18 of width 16, batch 32.
(c) 14 and (d) 44 tensors of the kind of (a): what a step costs whatever the number of tensors.

The optimizer's part alone is timed with passes replaced by handing over prepared gradients, and given as
(ideal step + what the method's part exceeds the ideal's by) / ideal step.

    python benchmarks/step_overhead.py [--rounds 60] [--problem a|b|c|d] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import steppe

Closure = Callable[[], Tensor]


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        same = stride == 1 and inside == outside
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.skip(x))


def resnet18(width: int) -> nn.Module:
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks, inside = [], width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            blocks.append(Block(inside, width << stage, stride))
            inside = width << stage
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def small_tensors(hidden: int = 200) -> tuple[nn.Module, Tensor, Tensor]:
    layers = [layer for _ in range(hidden) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 10)), torch.randn(8, 32), torch.randint(0, 10, (8,))


def small_resnet() -> tuple[nn.Module, Tensor, Tensor]:
    return resnet18(16), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


PROBLEMS = {"a": small_tensors, "b": small_resnet, "c": partial(small_tensors, 6), "d": partial(small_tensors, 21)}


class Contender:
    """One way to take a step on its own copy of a problem; `prepared` replaces passes by fixed gradients."""

    def __init__(self, problem: str, passes: int, prepared: bool):
        torch.manual_seed(0)
        self.model, x, y = PROBLEMS[problem]()
        self.passes = passes
        self.params = list(self.model.parameters())
        gradients = [torch.randn_like(p) for p in self.params]
        loss = torch.ones(())

        def closure() -> Tensor:
            for p in self.params:
                p.grad = None
            if prepared:
                for p, g in zip(self.params, gradients, strict=True):
                    p.grad = g.clone()
                return loss
            out = nn.functional.cross_entropy(self.model(x), y)
            out.backward()
            return out

        self.closure: Closure = closure

    def base(self, fused: bool = False) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.params, lr=1e-4, momentum=0.9, foreach=not fused, fused=fused)


def ideal(c: Contender, fused: bool = False) -> Callable[[], object]:
    base = c.base(fused)

    def step() -> None:
        for _ in range(c.passes):
            c.closure()
        base.step()

    return step


def fused_ideal(c: Contender) -> Callable[[], object]:
    return ideal(c, fused=True)


def ours(
    name: str, fused: bool = False, contiguous: bool = False, **options: object
) -> Callable[[Contender], Callable[[], object]]:
    def make(c: Contender) -> Callable[[], object]:
        if contiguous:
            steppe.contiguous_(c.model)
        opt = steppe.build(name, c.base(fused), **{"model": c.model, **options})
        return lambda: opt.step(c.closure)

    return make


def peer(**options: object) -> Callable[[Contender], Callable[[], object]]:
    """pytorch_optimizer's SAM by its two calls, which is how its documentation drives it."""

    def make(c: Contender) -> Callable[[], object]:
        from pytorch_optimizer import SAM

        opt = SAM(c.params, torch.optim.SGD, rho=0.05, lr=1e-4, momentum=0.9, **options)
        for group in opt.base_optimizer.param_groups:
            group["foreach"] = True  # as for the other base optimizers

        def step() -> None:
            c.closure()
            opt.first_step(zero_grad=False)
            c.closure()
            opt.second_step(zero_grad=False)

        return step

    return make


def tensor_by_tensor(c: Contender) -> Callable[[], object]:
    """The procedure of the most copied SAM implementation: clone, add and restore one tensor at a time."""
    base = c.base()

    @torch.no_grad()
    def up() -> list[Tensor]:
        norm = torch.norm(torch.stack([p.grad.norm() for p in c.params]))
        old = []
        for p in c.params:
            old.append(p.data.clone())
            p.add_(p.grad * (0.05 / (norm + 1e-12)))
        return old

    def step() -> None:
        c.closure()
        old = up()
        c.closure()
        for p, o in zip(c.params, old, strict=True):
            p.data = o
        base.step()

    return step


CONTENDERS: dict[str, tuple[int, Callable[[Contender], Callable[[], object]]]] = {
    "ideal again": (2, ideal),
    "ideal, fused base": (2, fused_ideal),
    "steppe sam": (2, ours("sam")),
    "steppe sam, without statistics and checks": (2, ours("sam", on_nonfinite=None, model=None)),  # as the peers
    "steppe sam, fused base": (2, ours("sam", fused=True)),
    "steppe sam, contiguous_": (2, ours("sam", contiguous=True)),
    "steppe sam, contiguous_, fused base": (2, ours("sam", contiguous=True, fused=True)),
    "steppe asam": (2, ours("asam")),
    "steppe asam, contiguous_, fused base": (2, ours("asam", contiguous=True, fused=True)),
    "steppe frob-sam (n=2)": (3, ours("frob-sam")),
    "pytorch_optimizer sam, default": (2, peer()),
    "pytorch_optimizer sam, foreach": (2, peer(foreach=True)),
    "pytorch_optimizer asam, default": (2, peer(adaptive=True)),
    "tensor-by-tensor sam": (2, tensor_by_tensor),
}


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(problem: str, rounds: int, prepared: bool) -> dict[str, tuple[list[float], float, float]]:
    """Ratios, median seconds of the ideal and median excess seconds, for every contender."""
    names = list(CONTENDERS)
    steps, ideals = {}, {}
    for name, (passes, make) in CONTENDERS.items():
        steps[name] = make(Contender(problem, passes, prepared))
        ideals.setdefault(passes, ideal(Contender(problem, passes, prepared)))
    for step in (*steps.values(), *ideals.values()):
        for _ in range(3):
            step()
    ratios: dict[str, list[float]] = {n: [] for n in names}
    excess: dict[str, list[float]] = {n: [] for n in names}
    reference: dict[str, list[float]] = {n: [] for n in names}
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            baseline = ideals[CONTENDERS[name][0]]
            before, own, after = timed(baseline), timed(steps[name]), timed(baseline)
            ratios[name].append(own / ((before + after) / 2))
            excess[name].append(own - (before + after) / 2)
            reference[name].append((before + after) / 2)
    return {n: (ratios[n], statistics.median(reference[n]), statistics.median(excess[n])) for n in names}


def report(problem: str, rounds: int) -> str:
    whole, part = measure(problem, rounds, prepared=False), measure(problem, max(rounds, 150), prepared=True)
    model, *_ = PROBLEMS[problem]()
    sizes = [p.numel() for p in model.parameters()]
    lines = [
        f"### ({problem}) {len(sizes)} tensors, {sum(sizes) / 1e6:.3g} M parameters",
        "",
        "| step | whole step / ideal | quartiles | optimizer's part, ms | its ideal, ms | derived step / ideal |",
        "|---|---|---|---|---|---|",
    ]
    for name, (ratios, seconds, _) in whole.items():
        low, middle, high = statistics.quantiles(ratios, n=4)
        _, alone, excess = part[name]
        lines.append(
            f"| {name} | {middle:.3f} | {low:.3f} - {high:.3f} | {1e3 * (alone + excess):.2f} | {1e3 * alone:.2f} "
            f"| {1 + excess / seconds:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--problem", choices=PROBLEMS, action="append")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    head = (
        f"# Overhead of a step\n\n{datetime.date.today()}, {platform.machine()} CPU, one thread of a 2-core machine, "
        f"torch {torch.__version__}, n = {chosen.rounds} interleaved rounds each, base "
        "SGD(momentum=0.9, foreach=True).\nRepeat with `python benchmarks/step_overhead.py`.\n"
    )
    text = "\n".join([head, *(report(p, chosen.rounds) + "\n" for p in chosen.problem or PROBLEMS)])
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
