"""Captured steps on a GPU against eager ones and the copied procedure: medians over interleaved rounds.

python benchmarks/capture_gpu.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable

import torch
from step_overhead import resnet18
from torch import nn

import steppe
from steppe.optim.capture import capture

STEPS = 10  # a round, queued up as in training
SHAPES = ((64, 128), (64, 512), (16, 128))  # width, batch
CAPTURED = {
    "none": {}, "sam": {}, "asam": {"rho": 0.5}, "frob-sam": {"n": 2}, "agnostic-sam": {}, "gsam": {},
}  # fmt: skip


class Loop:
    """SAM as most people copy it: one operation a parameter, written here from the procedure's description."""

    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho, self.kept = list(params), base, rho, {}

    @torch.no_grad()
    def up(self):
        norms = torch.stack([p.grad.norm(p=2) for p in self.params if p.grad is not None])
        scale = self.rho / (torch.norm(norms, p=2) + 1e-12)
        for p in self.params:
            if p.grad is not None:
                self.kept[p] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        self.base.zero_grad()

    @torch.no_grad()
    def down(self):
        for p in self.params:
            if p.grad is not None:
                p.data = self.kept[p]
        self.base.step()
        self.base.zero_grad()


def loss_fn(model, x, y):
    with torch.autocast("cuda", torch.bfloat16):
        return nn.functional.cross_entropy(model(x), y)


def fresh(width: int, fused: bool = False):
    torch.manual_seed(0)
    model = resnet18(width).cuda().to(memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=fused or None)


def contenders(width: int, batch: int) -> dict[str, Callable[[], object]]:
    x = torch.randn(batch, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")

    def plain(passes: int):
        model, base = fresh(width)

        def step():
            for _ in range(passes):
                base.zero_grad()
                loss_fn(model, x, y).backward()
            base.step()

        return step

    def copied():
        model, base = fresh(width)
        sam = Loop(model.parameters(), base)

        def step():
            loss_fn(model, x, y).backward()
            sam.up()
            loss_fn(model, x, y).backward()
            sam.down()

        return step

    def eager(**engine):
        model, base = fresh(width, fused=True)
        opt = steppe.build("sam", base, model=model, **engine)

        def closure():
            base.zero_grad()
            loss = loss_fn(model, x, y)
            loss.backward()
            return loss.detach()

        return lambda: opt.step(closure)

    def captured(name: str, compiled: bool = False, **options):
        model, base = fresh(width)
        opt = steppe.build(name, base, model=model, **options)
        take = capture(opt, loss_fn, model, (x, y), compile=compiled)
        for _ in range(4):
            take(x, y)
        assert take.why is None, take.why
        return lambda: take(x, y)

    found = {
        "SGD, eager": plain(1),
        "two passes and one step, eager": plain(2),
        "SAM, the copied procedure (reimplemented)": copied(),
        "steppe sam, eager": eager(),
        "steppe sam, eager, non-finite not looked at": eager(on_nonfinite=None),
    }
    found |= {f"steppe {name}, captured": captured(name, **options) for name, options in CAPTURED.items()}
    found |= {f"steppe {name}, compiled and captured": captured(name, True) for name in ("none", "sam", "asam")}
    return found


def medians(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float, float]]:
    times: dict[str, list[float]] = {n: [] for n in steps}
    for round_ in range(rounds + 2):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            if round_ >= 2:
                times[name].append((time.perf_counter() - start) / STEPS * 1e3)
    return {name: tuple(statistics.quantiles(own, n=4)) for name, own in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.backends.cudnn.benchmark = True
    print(f"{datetime.date.today()}, {torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 autocast, ")
    print(f"channels last, ResNet-18, n = {rounds} rounds of {STEPS} steps\n")
    print("| width, batch | step | ms, median | quartiles | copied procedure / this | this / captured SGD |")
    print("|---|---|---|---|---|---|")
    for width, batch in SHAPES:
        torch.cuda.reset_peak_memory_stats()
        found = medians(contenders(width, batch), rounds)
        copied, single = found["SAM, the copied procedure (reimplemented)"][1], found["steppe none, captured"][1]
        for name, (low, middle, high) in found.items():
            print(
                f"| {width}, {batch} | {name} | {middle:.2f} | {low:.2f} - {high:.2f} | {copied / middle:.2f} | "
                f"{middle / single:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
