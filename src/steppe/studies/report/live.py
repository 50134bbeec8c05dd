"""The page of a study that runs, from a server that only this machine can reach."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from ..store import Store
from .contents import content
from .page import html

HOST = "127.0.0.1"
PORT = 8421
REST = 2.0  # seconds for which an answer is good: several windows then cost no more than one


class Board:
    """What the server shows, made anew when it is asked for and older than a moment."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = Lock()
        self._made: dict[str, Any] = {}
        self._at = float("-inf")

    def look(self) -> tuple[dict[str, Any], str]:
        """The content and its tag, which differs when the content does."""
        with self._lock:
            if time.monotonic() - self._at > REST:
                with Store.reading(self._store) as store:
                    self._made = content(store, full=False) | {"live": True}
                self._at = time.monotonic()
            text = json.dumps({k: v for k, v in self._made.items() if k != "making"}, sort_keys=True)
            return self._made, f'"{sha256(text.encode()).hexdigest()[:20]}"'


def serve(store: Path, port: int = PORT, *, ready: Callable[[str], None] = print) -> None:
    """Shows a study on this machine, and what is new as it comes, until it is interrupted.

    `ready` is called with the address when the page can be opened. Port 0 takes any that is free.
    """
    with server(store, port) as running:
        ready(address(running))
        try:
            running.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return


def address(running: ThreadingHTTPServer) -> str:
    """Where the page is."""
    return f"http://{HOST}:{running.server_address[1]}/"


def server(store: Path, port: int = PORT) -> ThreadingHTTPServer:
    """The server, bound to the loopback address and not yet running; a store that cannot be read is refused here."""
    board = Board(store)
    board.look()
    try:
        made = ThreadingHTTPServer((HOST, port), _handler(board))
    except OSError as error:
        raise OSError(f"cannot listen on {HOST}:{port}: {error.strerror}. Give another port, or 0 for any") from error
    made.daemon_threads = True
    return made


def _handler(board: Board) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Two addresses, / and /data.json, for programs on this machine that mean this server."""

        server_version = "steppe"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            port = self.connection.getsockname()[1]
            # a page elsewhere may make a browser call this address under its own name (DNS rebinding)
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                return self._send(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to 127.0.0.1 only\n", body)
            path = self.path.partition("?")[0]
            if path not in ("/", "/data.json"):
                return self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is / and /data.json\n", body)
            try:
                made, tag = board.look()
            except Exception as error:  # whatever the store says, the page shows that it has no news
                return self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n", body)
            if path == "/":
                return self._send(HTTPStatus.OK, "text/html", html(made | {"tag": tag}), body)
            if self.headers.get("If-None-Match") == tag:
                return self._send(HTTPStatus.NOT_MODIFIED, "application/json", "", body, tag)
            return self._send(HTTPStatus.OK, "application/json", json.dumps(made, allow_nan=False), body, tag)

        def _send(self, status: HTTPStatus, kind: str, text: str, body: bool, tag: str = "") -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            if status != HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Referrer-Policy", "no-referrer")
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            if body and status != HTTPStatus.NOT_MODIFIED:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing: a page that asks every few seconds would fill the terminal."""

    return Handler
