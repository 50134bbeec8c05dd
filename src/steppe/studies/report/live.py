"""The page of a study that runs, from a server that only this machine can reach."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_urlsafe
from socket import SHUT_RDWR, socket
from threading import Lock
from typing import Any

from ..._util.terminal import say
from ..store import Store
from .contents import content
from .page import html

HOST = "127.0.0.1"
PORT = 8421
REST = 2.0  # seconds for which an answer is good: several windows then cost no more than one
MOST_CONNECTIONS = 32  # at a time: a page has one, for a moment every three seconds


class Board:
    """What the server shows, made anew when it is asked for and older than a moment."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = Lock()
        self._made: dict[str, Any] = {}
        self._at = float("-inf")
        self._tag = self._data = self._page = ""

    def data(self) -> tuple[str, str]:
        """The content as JSON and its tag, which differs when the content does."""
        with self._lock:
            self._look()
            return self._data, self._tag

    def page(self) -> str:
        """The page, rendered once for each content."""
        with self._lock:
            self._look()
            if not self._page:
                self._page = html(self._made | {"tag": self._tag})
            return self._page

    def _look(self) -> None:
        if time.monotonic() - self._at <= REST:
            return
        with Store.reading(self._store) as store:
            self._made = content(store, full=False) | {"live": True}
        self._at = time.monotonic()
        text = json.dumps({k: v for k, v in self._made.items() if k != "making"}, sort_keys=True)
        tag = f'"{sha256(text.encode()).hexdigest()[:20]}"'
        if tag != self._tag:
            self._tag, self._data, self._page = tag, json.dumps(self._made, allow_nan=False), ""


def serve(store: Path, port: int = PORT, *, ready: Callable[[str], None] = say) -> None:
    """Shows a study on this machine, and what is new as it comes, until it is interrupted.

    `ready` is called with the address when the page can be opened. Port 0 takes any that is free.
    """
    with server(store, port) as running:
        ready(running.address)
        try:
            running.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return


def server(store: Path, port: int = PORT) -> Server:
    """The server, bound to the loopback address and not yet running; a store that cannot be read is refused here."""
    board = Board(store)
    board.data()
    try:
        return Server(board, port)
    except OSError as error:
        raise OSError(f"cannot listen on {HOST}:{port}: {error.strerror}. Give another port, or 0 for any") from error


class Server(ThreadingHTTPServer):
    """A thread for each of a few connections, of which the oldest goes where there are too many."""

    daemon_threads = True

    def __init__(self, board: Board, port: int) -> None:
        self.board = board
        self.token = token_urlsafe()  # other users of this machine reach the port as well, and do not know the address
        self._connections: dict[socket, None] = {}  # in the order in which they came
        self._lock = Lock()
        super().__init__((HOST, port), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > MOST_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):  # it may just have ended by itself
                    oldest.shutdown(SHUT_RDWR)  # its thread finds the end of the request, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a browser that went away is no error
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Two addresses, the page and data.json beside it, for programs on this machine that were told of them."""

    server: Server
    server_version = "steppe"
    sys_version = ""
    timeout = 10.0  # seconds without a byte

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        # a page elsewhere may make a browser call this address under its own name (DNS rebinding)
        port = self.server.port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to 127.0.0.1 only\n", body)
        home, path = f"/{self.server.token}/", self.path.partition("?")[0]
        if not compare_digest(path[: len(home)].encode(), home.encode()) or path[len(home) :] not in ("", "data.json"):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "the page is at the address that was printed\n", body)
        try:
            data, tag = self.server.board.data()
            page = self.server.board.page() if path == home else ""
        except Exception as error:  # whatever the store says, the page shows that it has no news
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n", body)
        if page:
            return self._send(HTTPStatus.OK, "text/html", page, body)
        if self.headers.get("If-None-Match") == tag:
            return self._send(HTTPStatus.NOT_MODIFIED, "application/json", "", body, tag)
        return self._send(HTTPStatus.OK, "application/json", data, body, tag)

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
