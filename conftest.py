"""What holds for all tests: no deadlines, temporary folders in memory, and one browser for all pages."""

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tiers import mark_unsampled

# about answers, not about how long a busy machine takes; every run draws other examples
settings.register_profile("steppe", deadline=None, max_examples=50)
settings.register_profile("quick", deadline=None, max_examples=25)  # `make test` selects it
settings.load_profile("steppe")

if not entry_points(group="steppe.commands"):  # steppe-papers is not installed: from its source, here and in processes
    sources = str(Path(__file__).parent / "papers" / "src")
    sys.path.append(sources)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), sources]))
    os.environ.setdefault("STEPPE_PLUGINS", "steppe_papers")

for name in ("COLUMNS", "LINES"):  # readline, which pytest imports, sets them for processes that it starts
    os.environ.pop(name, None)

MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes: all tests together leave less behind


def pytest_configure() -> None:
    """Temporary folders are in memory where there is room: on a disk, tests of runs and studies wait for fsync."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_unsampled(items)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: collecting garbage among them takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from pages import browser  # most tests need no page

    with browser() as launched:
        yield launched


@pytest.fixture(scope="session")
def window(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Where all pages are opened that need no process of their own."""
    from pages import Window

    opened = Window(chromium, tmp_path_factory.mktemp("window"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared_page(window: Any, report: Path) -> Iterator[Any]:
    """The module's `report` in the browser."""
    from pages import Watched

    watched = Watched(window)
    watched.visit(report)
    yield watched
    watched.page.close()


@pytest.fixture(scope="module")
def visitor(window: Any) -> Iterator[Any]:
    """Loads the pages that only one test needs, one after the other."""
    from pages import Watched

    watched = Watched(window)
    yield watched
    watched.page.close()


@pytest.fixture
def open_page(visitor: Any) -> Iterator[Any]:
    """Opens a file; at the end no page has sent a request or written to its console."""
    opened = False

    def opening(file: Path, **how: Any) -> Any:
        nonlocal opened
        if opened:
            visitor.check_quiet()
        opened = True
        return visitor.visit(file, **how)

    yield opening
    visitor.check_quiet()


@pytest.fixture
def page(shared_page: Any) -> Iterator[Any]:
    """One page for many tests, because loading it takes seconds; it is reset after each."""
    shared_page.page.bring_to_front()  # others may be open, and the mouse reaches only the front one
    yield shared_page.page
    shared_page.reset()
    shared_page.check_quiet()
