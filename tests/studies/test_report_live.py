"""The server that follows a study: on this machine only, for pages that mean it, and with news as they come."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
from pages import cells, finish, study

from steppe.studies.report import live
from steppe.studies.report.page import html
from steppe.studies.store import Store


@contextmanager
def served(path: Path):
    running = live.server(path, 0)
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def ask(running: live.Server, path: str = "/", method: str = "GET", whole: bool = False, **headers: str):
    """What the server says to a path below the page's own, or to a whole path."""
    connection = HTTPConnection("127.0.0.1", running.port, timeout=60)
    try:
        connection.request(method, path if whole else f"/{running.token}{path}", headers=headers)
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
        assert running.address.startswith("http://127.0.0.1:")
    finally:
        running.server_close()


def test_page_and_data(path) -> None:
    with served(path) as running:
        status, headers, text = ask(running)
        assert status == 200
        assert "connect-src 'self'" in unescape(text)
        assert headers["X-Frame-Options"] == "DENY"
        status, headers, text = ask(running, "/data.json")
        assert status == 200
        made = json.loads(text)
        assert made["live"]
        assert made["runs"]["states"].count("done") == 4
        assert ask(running, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        assert ask(running, "/data.json", "HEAD")[2] == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", ""])
def test_other_names_are_refused(path, host) -> None:
    """A page elsewhere can make its own name mean 127.0.0.1: its questions carry that name."""
    with served(path) as running:
        for place in ("/", "/data.json"):
            status, _, text = ask(running, place, Host=host.format(port=running.port))
            assert status == 403
            assert "runs" not in text
        assert ask(running, "/", Host=f"localhost:{running.port}")[0] == 200


@pytest.mark.parametrize(("place", "method", "expected"), [
    ("/../study.sqlite", "GET", 404), ("/study.sqlite", "GET", 404), ("/", "POST", 501), ("/", "DELETE", 501),
])  # fmt: skip
def test_there_is_nothing_else(path, place, method, expected) -> None:
    with served(path) as running:
        assert ask(running, place, method)[0] == expected


def test_news_have_another_tag(path, monkeypatch) -> None:
    monkeypatch.setattr(live, "MAX_AGE", 0.0)
    with served(path) as running:
        _, before, _ = ask(running, "/data.json")
        _, again, _ = ask(running, "/data.json")
        assert before["ETag"] == again["ETag"]
        with Store.join(path) as store:
            finish(store, cells(8)[5], random.Random(1))
        status, after, text = ask(running, "/data.json", **{"If-None-Match": before["ETag"]})
        assert (status, after["ETag"] != before["ETag"]) == (200, True)
        assert json.loads(text)["runs"]["states"].count("done") == 5


def test_a_store_that_went_away_is_no_news(path, monkeypatch) -> None:
    monkeypatch.setattr(live, "MAX_AGE", 0.0)
    with served(path) as running:
        path.unlink()
        status, _, text = ask(running, "/data.json")
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

    monkeypatch.setattr(live.Server, "serve_forever", interrupted)
    live.serve(path, 0, ready=told.append)
    assert told[0].startswith("http://127.0.0.1:")


def test_half_open_requests_do_not_keep_others_out(path) -> None:
    """Many connections that never finish a request: the page still comes, and few threads are left."""
    idle = []
    with served(path) as running:
        threads = threading.active_count()
        try:
            for _ in range(2 * live.MAX_CONNECTIONS):
                idle.append(socket.create_connection(("127.0.0.1", running.port)))
                idle[-1].sendall(b"GET / HTTP/1.1\r\nHost:")
            assert ask(running)[0] == 200
            until = time.monotonic() + 10
            while threading.active_count() - threads > live.MAX_CONNECTIONS and time.monotonic() < until:
                time.sleep(0.02)
            assert threading.active_count() - threads <= live.MAX_CONNECTIONS
        finally:
            for connection in idle:
                connection.close()


def test_a_connection_that_says_nothing_is_closed(path, monkeypatch) -> None:
    monkeypatch.setattr(live.Handler, "timeout", 0.2)
    with served(path) as running, socket.create_connection(("127.0.0.1", running.port), timeout=10) as idle:
        idle.sendall(b"GET / HT")
        assert idle.recv(1) == b""


def test_the_page_is_rendered_once_for_many(path, monkeypatch) -> None:
    rendered = []
    monkeypatch.setattr(live, "html", lambda made: rendered.append(1) or html(made))
    monkeypatch.setattr(live, "MAX_AGE", 0.0)
    with served(path) as running:
        pages = {ask(running)[2] for _ in range(3)}
        assert (len(pages), len(rendered)) == (1, 1)
        with Store.join(path) as store:
            finish(store, cells(8)[5], random.Random(1))
        assert ask(running)[2] not in pages
        assert len(rendered) == 2


def test_the_address_cannot_be_guessed(path) -> None:
    """Other users of this machine reach the port as well: they do not know the address."""
    with served(path) as one, served(path) as two:
        assert one.token != two.token
        assert len(one.token) >= 20
        for place in ("/", "/data.json", f"/{two.token}/", f"/{one.token}x/", f"/{one.token}"):
            status, _, text = ask(one, place, whole=True)
            assert status == 404
            assert "runs" not in text
            assert one.token not in text


def test_an_open_page_follows(chromium, path, monkeypatch) -> None:
    """A run that ends while somebody looks appears, with the filters and the focus as they were."""
    monkeypatch.setattr(live, "MAX_AGE", 0.0)
    with served(path) as running:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(running.address)
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        for fold in ("runs", "scatter"):
            page.locator(f"#{fold} summary").first.click()
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
        assert all(url.startswith(running.address) for url in asked)
        context.close()
