"""What a small training step is made of: its kernels, and how long the GPU has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from gpu_timing import Page, Settings
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import steppe
from steppe import capture
from steppe.nn.resnet import resnet18

ABOUT = """
A captured SAM step on CIFAR's ResNet-18, bf16 autocast, channels last, batches of 128: the time of a step without the
profiler, and the kernels of ten steps with it. Several runs at a time on one GPU (sharing) hide what one leaves idle:
each kernel is too small to fill the GPU, and waits for the one before it.
"""
WIDTHS, STEPS, PROFILED, SHOWN = (16, 32), 200, 10, 10


def _step(settings: Settings, width: int) -> Callable[[], object]:
    net = resnet18((3, 32, 32), 10, width=width).to(settings.device).to(memory_format=torch.channels_last)
    x = torch.randn(8 if settings.quick else 128, 3, 32, 32, device=settings.device)
    x, y = x.to(memory_format=torch.channels_last), torch.randint(10, (len(x),), device=settings.device)

    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(settings.device, torch.bfloat16):
            return cross_entropy(model(x), y)

    opt = steppe.sam(torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), rho=0.05, model=net)
    take = capture(opt, loss, net, (x, y))
    for _ in range(1 if settings.quick else 20):
        take(x, y)
    return lambda: take(x, y)


def kernels(settings: Settings) -> Page:
    page = Page("kernels", ABOUT, settings, "")
    rows = []
    steps = 1 if settings.quick else PROFILED
    for width in WIDTHS[: 1 if settings.quick else None]:
        step = _step(settings, width)
        wall = settings.ms(step, 1 if settings.quick else STEPS)
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if settings.gpu else [])]) as found:
            for _ in range(steps):
                step()
            settings.wait()
        device = torch.autograd.DeviceType.CUDA if settings.gpu else torch.autograd.DeviceType.CPU
        events = [e for e in found.events() if e.device_type == device]
        took: Counter[str] = Counter()
        for e in events:
            took[e.name] += e.device_time_total if settings.gpu else e.self_cpu_time_total
        number = Counter(e.name for e in events)
        total = sum(took.values()) / steps / 1e3
        count = len(events) / steps
        share = 100 * total / wall
        each = 1e3 * total / count
        rows.append([width, f"{wall:.2f}", f"{count:.0f}", f"{total:.2f}", f"{each:.1f}", f"{share:.0f}"])
        most = [(n, number[n], t) for n, t in took.most_common(SHOWN)]
        lines = [
            (n[:60].replace("|", "/"), f"{k / steps:.0f}", f"{t / steps / 1e3:.3f}", f"{t / k:.1f}") for n, k, t in most
        ]
        page.table(f"Kernels of a step, width {width}", ("kernel", "number", "ms", "us each"), lines)
    page.table("A step", ("width", "ms", "kernels", "ms in kernels", "us a kernel", "% of the time in kernels"), rows)
    return page
