"""A SAM step holds one copy of the weights more than SGD does at its peak, and nothing else of their size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TENSORS, ENTRIES = 8, 1_000_000
COPY = TENSORS * ENTRIES * 4 / 1024  # of the weights, in KiB
METHODS = ("sgd", "sam", "asam", "gsam")

# importing torch takes seconds, so one process imports it and forks a child per method
SCRIPT = f"""
import os, re, sys, torch, steppe
torch.set_num_threads(1)

def steps(method, entries={ENTRIES}):
    params = [torch.nn.Parameter(torch.randn(entries)) for _ in range({TENSORS})]
    base = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=False)
    options = {{"everywhere": True}} if method == "asam" else {{}}
    opt = base if method == "sgd" else steppe.build(method, base, **options)
    def closure():
        opt.zero_grad()
        loss = sum(p @ p for p in params)
        loss.backward()
        return loss.detach()
    for _ in range(3):
        opt.step(closure)

def warm_up():  # imports what a first step imports, and loads the pages of torch's code that any method runs
    for method in sys.argv[1:]:
        steps(method, entries=1000)

warm_up()
for method in sys.argv[1:]:
    if not (child := os.fork()):
        warm_up()
        steps(method)
        # not ru_maxrss, which a process inherits from the one that started it
        print(method, re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, method
"""


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """The largest resident size of a process that takes three steps, by method, in KiB."""
    # every tensor in pages of its own, so that freed memory leaves the process at once
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    command = [sys.executable, "-c", SCRIPT, *METHODS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    return {method: int(size) for method, size in (line.split() for line in done.stdout.splitlines())}


# ASAM's scale T needs its own memory, but only while the backup does not exist yet
@pytest.mark.parametrize("method", ["sam", "asam"])
def test_peak_memory_is_one_copy_above_sgd(method, peaks):
    extra = (peaks[method] - peaks["sgd"]) / COPY
    assert 0.9 < extra < 1.05


def test_the_measurement_sees_a_second_copy(peaks):
    assert (peaks["gsam"] - peaks["sgd"]) / COPY > 1.9
