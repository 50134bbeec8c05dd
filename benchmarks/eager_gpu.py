"""Eager SAM on a GPU costs its two passes and one base step: ratios to that ideal, medians over interleaved rounds.

python benchmarks/eager_gpu.py [--rounds 40]
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


def contenders(width: int, batch: int) -> dict[str, Callable[[], object]]:
    x = torch.randn(batch, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")

    def fresh():
        torch.manual_seed(0)
        model = resnet18(width).cuda().to(memory_format=torch.channels_last)
        base = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def closure():
            base.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        return model, base, closure

    def ideal(passes: int):
        _, base, closure = fresh()

        def step():
            for _ in range(passes):
                closure()
            base.step()

        return step

    def ours(name: str, **options):
        model, base, closure = fresh()
        opt = steppe.build(name, base, model=model, **options)
        return lambda: opt.step(closure)

    return {
        "ideal, one pass": ideal(1),
        "ideal, two passes": ideal(2),
        "steppe sam": ours("sam"),
        "steppe sam, non-finite not looked at": ours("sam", on_nonfinite=None),
        "steppe asam": ours("asam"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    device = torch.cuda.get_device_name()
    print(f"{datetime.date.today()}, {device}, torch {torch.__version__}, bf16 autocast, n = {rounds}\n")
    print("| width, batch | step | ms, median | quartiles | / two passes |\n|---|---|---|---|---|")
    for width, batch in ((64, 128), (64, 512), (16, 128)):
        steps = contenders(width, batch)
        times: dict[str, list[float]] = {n: [] for n in steps}
        for round_ in range(rounds + 5):
            for name, step in steps.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(5):  # steps queue up as in training
                    step()
                torch.cuda.synchronize()
                if round_ >= 5:
                    times[name].append((time.perf_counter() - start) / 5 * 1e3)
        reference = statistics.median(times["ideal, two passes"])
        for name, own in times.items():
            low, middle, high = statistics.quantiles(own, n=4)
            print(f"| {width}, {batch} | {name} | {middle:.2f} | {low:.2f} - {high:.2f} | {middle / reference:.3f} |")


if __name__ == "__main__":
    main()
