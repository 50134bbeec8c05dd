from collections.abc import Iterator

import pytest

from .pair import Pair


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    workers = Pair()
    yield workers
    workers.stop()
