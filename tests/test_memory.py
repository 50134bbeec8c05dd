"""A SAM step holds one copy of the weights more than SGD does at its peak, and nothing else of their size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TENSORS, ENTRIES = 8, 4_000_000
COPY = TENSORS * ENTRIES * 4 / 1024  # of the weights, in KiB

SCRIPT = f"""
import re, sys, torch, steppe
torch.set_num_threads(1)
params = [torch.nn.Parameter(torch.randn({ENTRIES})) for _ in range({TENSORS})]
base = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=False)
options = {{"everywhere": True}} if sys.argv[1] == "asam" else {{}}
opt = base if sys.argv[1] == "sgd" else steppe.build(sys.argv[1], base, **options)
def closure():
    opt.zero_grad()
    loss = sum(p @ p for p in params)
    loss.backward()
    return loss.detach()
for _ in range(3):
    opt.step(closure)
# not ru_maxrss, which a process inherits from the one that started it: a test process can be larger than this one
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def peak(method: str) -> int:
    """The largest resident size of a process that takes three steps, in KiB."""
    command = [sys.executable, "-c", SCRIPT, method]
    # every tensor in pages of its own, so that freed memory leaves the process at once
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    return int(done.stdout)


@pytest.fixture(scope="module")
def sgd() -> int:
    return peak("sgd")


# ASAM's scale T needs its own memory, but only while the backup does not exist yet
@pytest.mark.parametrize("method", ["sam", "asam"])
def test_peak_memory_is_one_copy_above_sgd(method, sgd):
    extra = (peak(method) - sgd) / COPY
    assert 0.9 < extra < 1.05


def test_the_measurement_sees_a_second_copy(sgd):
    assert (peak("gsam") - sgd) / COPY > 1.9
