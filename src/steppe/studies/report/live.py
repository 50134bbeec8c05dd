"""A local HTTP server that shows the page of a running study."""

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
MAX_AGE = 2.0  # seconds for which content is reused: several windows then cost no more than one
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
MAX_CONNECTIONS = 32  # at a time: a page has one, for a moment every three seconds


class Board:
    """The served content, computed again when it is requested and older than `MAX_AGE`."""

    def __init__(self, store: Path) -> None:
        self._store, self._lock, self._at = store, Lock(), float("-inf")
        self._content: dict[str, Any] = {}
        self._tag = self._data = self._page = ""

    def data(self) -> tuple[str, str]:
        """The content as JSON, and its ETag."""
        with self._lock:
            if time.monotonic() - self._at > MAX_AGE:
                self._refresh()
            return self._data, self._tag

    def page(self) -> str:
        """The page of the content that `data` returned last, rendered once per content."""
        with self._lock:
            self._page = self._page or html(self._content | {"tag": self._tag})
            return self._page

    def _refresh(self) -> None:
        with Store.reading(self._store) as store:
            fresh = content(store, full=False) | {"live": True}
        self._at = time.monotonic()
        text = json.dumps({k: v for k, v in fresh.items() if k != "making"}, sort_keys=True)
        tag = f'"{sha256(text.encode()).hexdigest()[:20]}"'
        if tag != self._tag:
            self._content, self._tag, self._data, self._page = fresh, tag, json.dumps(fresh, allow_nan=False), ""


def serve(store: Path, port: int = PORT, *, ready: Callable[[str], None] = say) -> None:
    """Serve the page of a study on this machine until interrupted; the page updates itself.

    Parameters
    ----------
    store : Path
        The study's SQLite file.
    port : int
        The port on 127.0.0.1; 0 for any free one.
    ready : callable
        Called with the address when the page can be opened; prints it by default.

    """
    with server(store, port) as running:
        ready(running.address)
        try:
            running.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return


def server(store: Path, port: int = PORT) -> Server:
    """The server, bound to the loopback address and not yet running; raises if the store cannot be read."""
    board = Board(store)
    board.data()
    try:
        return Server(board, port)
    except OSError as error:
        raise OSError(f"cannot listen on {HOST}:{port}: {error.strerror}. Give another port, or 0 for any") from error


class Server(ThreadingHTTPServer):
    """One thread per connection; above `MAX_CONNECTIONS` the oldest connection is closed."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS  # with the default of five, a burst waits for the kernel's retries

    def __init__(self, board: Board, port: int) -> None:
        self.board = board
        self.token = token_urlsafe()  # other users of this machine can reach the port, but do not know the token
        self._connections: dict[socket, None] = {}  # oldest first
        self._lock = Lock()
        super().__init__((HOST, port), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > MAX_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):  # it may have ended meanwhile
                    oldest.shutdown(SHUT_RDWR)  # its thread then closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a browser that disconnects is no error
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Serves two paths below the token: the page, and data.json."""

    server: Server
    server_version = "steppe"
    sys_version = ""
    timeout = 10.0  # seconds without a byte

    def do_GET(self) -> None:
        # another site may make a browser request this address under the site's own name (DNS rebinding)
        port = self.server.port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to 127.0.0.1 only\n")
        home, path = f"/{self.server.token}/", self.path.partition("?")[0]
        if not compare_digest(path[: len(home)].encode(), home.encode()) or path[len(home) :] not in ("", "data.json"):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "the page is at the address that was printed\n")
        try:
            data, tag = self.server.board.data()
            page = self.server.board.page() if path == home else ""
        except Exception as error:  # the page then shows that the server has no new data
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
        if page:
            return self._send(HTTPStatus.OK, "text/html", page)
        if self.headers.get("If-None-Match") == tag:
            return self._send(HTTPStatus.NOT_MODIFIED, "application/json", "", tag)
        return self._send(HTTPStatus.OK, "application/json", data, tag)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, status: HTTPStatus, kind: str, text: str, tag: str = "") -> None:
        body = text.encode()
        headers = {"Content-Type": f"{kind}; charset=utf-8", **HEADERS} | ({"ETag": tag} if tag else {})
        if status != HTTPStatus.NOT_MODIFIED:
            headers["Content-Length"] = str(len(body))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: a page that polls every few seconds would fill the terminal."""
