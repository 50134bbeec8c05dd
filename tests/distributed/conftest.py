from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .pair import Pair

SHARDED = ("fsdp", "hsdp", "shard", "torchrun_started", "filters_cut")  # in names of tests and cases


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out sharded models before torch 2.7, whose FSDP2 works on GPUs only."""
    if torch.__version__ < (2, 7):
        for item in items:
            if Path(__file__).parent in item.path.parents and any(word in item.nodeid for word in SHARDED):
                item.add_marker(pytest.mark.skip(reason="FSDP2 of torch before 2.7 does not work on a CPU"))


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    workers = Pair()
    yield workers
    workers.stop()
