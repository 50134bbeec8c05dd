"""What holds for all tests: property tests have no deadline, and tests of pages share a browser per module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("steppe", deadline=None)  # about answers, not about how long a busy machine takes
settings.load_profile("steppe")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from pages import browser  # most tests need no page

    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def shared_page(chromium: Any, report: Path) -> Iterator[Any]:
    """The module's `report` in the browser."""
    from pages import Watched

    watched = Watched(chromium, report.as_uri())
    yield watched
    watched.context.close()


@pytest.fixture
def page(shared_page: Any) -> Iterator[Any]:
    """One page for many tests, because loading it takes seconds; it is reset after each."""
    yield shared_page.page
    shared_page.reset()
    shared_page.check_quiet()
