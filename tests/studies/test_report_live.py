"""The page of a running study: written again while it runs, read again by browsers, and at its end as any page."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import cells, finish, study

from steppe._util.files import lock_folder
from steppe.studies.report import live
from steppe.studies.report.page import write
from steppe.studies.run import LOCK
from steppe.studies.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return study(tmp_path / "study.sqlite", 8, left=4, extras=False)


def finish_rest(path: Path) -> None:
    with Store.join(path) as store:
        for cell in cells(8)[4:]:
            finish(store, cell, random.Random(1))


def asked_to_reload(out: Path) -> int:
    found = re.search(r'"live":(\d+)', out.read_text())
    assert found
    return int(found[1])


def sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    monkeypatch.setattr(live.time, "sleep", sleep)


def test_it_is_written_again_while_the_study_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, told, seen = path.parent / "page.html", [], []
    driver = lock_folder(path.parent, LOCK)

    def sleep(seconds: float) -> None:
        seen.append(asked_to_reload(out))
        if len(seen) == 2:
            finish_rest(path)
            driver.__exit__(None, None, None)

    sleeps(monkeypatch, sleep)
    driver.__enter__()
    assert live.serve(path, out, ready=told.append) == out
    assert seen == [10, 10]
    assert told == [f"{out} follows the study: open it in a browser"]
    assert asked_to_reload(out) == 0
    assert '"states":["done","done","done","done","done","done","done","done"]' in out.read_text()


def test_an_interrupt_ends_it_with_a_page_that_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    sleeps(monkeypatch, interrupted)
    with lock_folder(path.parent, LOCK):
        assert asked_to_reload(live.serve(path, path.parent / "page.html", ready=lambda text: None)) == 0


def test_writing_takes_a_tenth_of_a_core_at_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    now = iter([0.0, 5.0, 100.0, 100.1])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: next(now)))
    monkeypatch.setattr(live, "write", lambda store, out, reload=0: out)
    with lock_folder(path.parent, LOCK):
        live.serve(path, path.parent / "page.html", ready=lambda text: None)
    assert pauses == [50.0, 10.0]


def test_a_study_that_nobody_runs_is_written_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps(monkeypatch, lambda seconds: pytest.fail("it waits for nothing"))
    assert asked_to_reload(live.serve(path, path.parent / "page.html")) == 0


def test_no_store_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no store"):
        live.serve(tmp_path / "nothing.sqlite", tmp_path / "page.html")


def test_it_may_send_no_requests(path: Path) -> None:
    text = unescape(write(path, path.parent / "page.html", reload=10).read_text())
    assert "default-src 'none'" in text
    assert "connect-src" not in text


def test_an_open_page_follows(chromium, path: Path) -> None:
    """A run that ends while somebody looks appears, with the filters and the menus as they were."""
    out = write(path, path.parent / "page.html", reload=2)
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url.split("#")[0]))
    page.goto(out.as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
    page.locator("#runs summary").first.click()
    page.locator("#search").fill("lr=0.05")
    page.locator("#scatter summary").first.click()
    page.locator("#scatter-y").select_option("targets:gap")
    finish_rest(path)
    write(path, out, reload=100)
    page.get_by_text("8 of 8 runs done", exact=False).wait_for(timeout=30_000)
    page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
    assert page.locator("#search").input_value() == "lr=0.05"
    assert page.locator("#scatter-y").input_value() == "targets:gap"
    assert page.locator("#runs-table tbody tr").count() == 6
    assert said == []
    assert set(asked) == {out.as_uri()}
    context.close()
