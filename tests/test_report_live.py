"""The server that follows a study: on this machine only, for pages that mean it, and with news as they come."""

from __future__ import annotations

import json
import random
import socket
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
from pages import browser, cells, finish, study

from steppe.studies.report import live
from steppe.studies.store import Store


@contextmanager
def served(path: Path):
    running = live.server(path, 0)
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running.server_address[1]
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return study(tmp_path / "study.sqlite", 8, left=4, extras=False)


def test_it_listens_on_loopback_only(path) -> None:
    running = live.server(path, 0)
    try:
        assert running.socket.getsockname()[0] == "127.0.0.1"
        assert live.address(running).startswith("http://127.0.0.1:")
    finally:
        running.server_close()


def test_page_and_data(path) -> None:
    with served(path) as port:
        status, headers, text = ask(port)
        assert status == 200
        assert "connect-src 'self'" in unescape(text)
        assert headers["X-Frame-Options"] == "DENY"
        status, headers, text = ask(port, "/data.json")
        assert status == 200
        made = json.loads(text)
        assert made["live"]
        assert made["runs"]["states"].count("done") == 4
        assert ask(port, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        assert ask(port, "/data.json", "HEAD")[2] == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", ""])
def test_other_names_are_refused(path, host) -> None:
    """A page elsewhere can make its own name mean 127.0.0.1: its questions carry that name."""
    with served(path) as port:
        for place in ("/", "/data.json"):
            status, _, text = ask(port, place, Host=host.format(port=port))
            assert status == 403
            assert "runs" not in text
        assert ask(port, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(("place", "method", "expected"), [
    ("/../study.sqlite", "GET", 404), ("/study.sqlite", "GET", 404), ("/", "POST", 501), ("/", "DELETE", 501),
])  # fmt: skip
def test_there_is_nothing_else(path, place, method, expected) -> None:
    with served(path) as port:
        assert ask(port, place, method)[0] == expected


def test_news_have_another_tag(path, monkeypatch) -> None:
    monkeypatch.setattr(live, "REST", 0.0)
    with served(path) as port:
        _, before, _ = ask(port, "/data.json")
        _, again, _ = ask(port, "/data.json")
        assert before["ETag"] == again["ETag"]
        with Store.join(path) as store:
            finish(store, cells(8)[5], random.Random(1))
        status, after, text = ask(port, "/data.json", **{"If-None-Match": before["ETag"]})
        assert (status, after["ETag"] != before["ETag"]) == (200, True)
        assert json.loads(text)["runs"]["states"].count("done") == 5


def test_a_store_that_went_away_is_no_news(path, monkeypatch) -> None:
    monkeypatch.setattr(live, "REST", 0.0)
    with served(path) as port:
        path.unlink()
        status, _, text = ask(port, "/data.json")
        assert status == 503
        assert "no store" in text


def test_a_port_in_use_is_told(path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="another port"):
            live.server(path, taken.getsockname()[1])


def test_no_store_no_server(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no store"):
        live.server(tmp_path / "nothing.sqlite", 0)


def test_serve_ends_when_interrupted(path, monkeypatch) -> None:
    told = []

    def interrupted(self, poll_interval):
        raise KeyboardInterrupt

    monkeypatch.setattr(live.ThreadingHTTPServer, "serve_forever", interrupted)
    live.serve(path, 0, ready=told.append)
    assert told[0].startswith("http://127.0.0.1:")


def test_an_open_page_follows(path, monkeypatch) -> None:
    """A run that ends while somebody looks appears, with the filters and the focus as they were."""
    monkeypatch.setattr(live, "REST", 0.0)
    with browser() as launched, served(path) as port:
        context = launched.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        page.locator("#search").fill("lr=0.05")
        page.locator("#scatter-y").select_option("targets:gap")
        page.locator("#search").focus()
        with Store.join(path) as store:
            for cell in cells(8)[4:]:
                finish(store, cell, random.Random(1))
        page.get_by_text("8 of 8 runs done", exact=False).wait_for(timeout=30_000)
        assert page.locator("#runs-table tbody tr").count() == 6
        assert page.locator("#search").input_value() == "lr=0.05"
        assert page.locator("#scatter-y").input_value() == "targets:gap"
        assert page.evaluate("document.activeElement.id") == "search"
        assert said == []
        assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
        context.close()
