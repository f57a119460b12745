"""The page over HTTP: a fixed list of paths, read and nothing else."""

from __future__ import annotations

import hmac
import json
import logging
import socket
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from socketserver import TCPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock

_log = logging.getLogger("forebay.ui")

SHORTEST_TOKEN: Final = 16
MOST_CONNECTIONS: Final = 64
CLIENT_SECONDS: Final = 10.0
"""Maximum time that a client may take to send its whole request, and to take the answer."""

_PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/format.js": ("format.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_STATE: Final = "/state.json"

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_REFUSAL_HEADERS: Final = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": 'Bearer realm="forebay"'},
    HTTPStatus.METHOD_NOT_ALLOWED: {"Allow": "GET, HEAD"},
}


class Server(ThreadingHTTPServer):
    """Listens from the moment it is made; answers once started.

    Args:
        state: what is shown, with the history after a number.
        host: where to listen. Anything but loopback needs a token.
        port: 0 is any that is free.
        token: what a viewer has to know.
        most_connections: maximum number of open connections. Beyond it, the one that has waited longest for its request
            is closed.
        client_seconds: maximum time for a client to send its whole request.
        clock: measures that time.

    Raises:
        InvalidInput: it cannot listen there, or must not without a token.
    """

    daemon_threads = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self,
        state: Callable[[int], dict[str, Any]],
        host: str,
        port: int,
        token: str | None,
        *,
        most_connections: int = MOST_CONNECTIONS,
        client_seconds: float = CLIENT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if token is None and not _is_loopback(host):
            raise InvalidInput(
                f"who reaches {host} could see this page: give a token of at least {SHORTEST_TOKEN} characters (such "
                "as one that `openssl rand -hex 16` writes), or stay on 127.0.0.1"
            )
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise InvalidInput(f"a token is at least {SHORTEST_TOKEN} printable ASCII characters")
        self.state = state
        self.token: bytes | None = None if token is None else token.encode()
        self.page: dict[str, bytes] = {
            path: files("forebay.ui").joinpath("page", name).read_bytes() for path, (name, _) in _PAGE.items()
        }
        self.address_family: int = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.client_seconds = client_seconds
        self._most_connections = most_connections
        self._clock = clock or SystemClock()
        self._open: dict[Any, float | None] = {}
        """Connections, oldest first, each with the deadline for its request; None once the request has arrived."""
        self._lock = Lock()
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, name="forebay-ui", daemon=True)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput(
                f"cannot listen on {host}, port {port} ({error}): choose another, or port 0 for any that is free"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url: str = f"http://{shown}:{self.server_address[1]}/"

    def start(self) -> None:
        """Start to answer requests, in new threads."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and close every connection."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        with self._lock:
            for connection in self._open:
                _hang_up(connection)
        self.server_close()

    def cookie(self) -> tuple[str, str]:
        """Return the name and value of the cookie for a browser that has sent the token, which they do not reveal."""
        digest = hmac.new(self.token or b"", b"forebay dashboard", "sha256").hexdigest()
        return f"forebay_{self.server_address[1]}", digest  # cookies know no ports, and there may be two dashboards

    def server_bind(self) -> None:
        """Bind without a look-up of this machine's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name: str = str(self.server_address[0])
        self.server_port: int = int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. If too many connections are open, hang up on the one that has kept us waiting longest."""
        with self._lock:
            if len(self._open) >= self._most_connections:
                _log.warning("%s: %d connections are open; the slowest one is dropped", self.url, len(self._open))
                slowest = next((known for known, due in self._open.items() if due is not None), next(iter(self._open)))
                self._drop(slowest)
            self._open[request] = self._clock.monotonic() + self.client_seconds
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections whose request is late. A byte now and then must not keep a connection open."""
        now = self._clock.monotonic()
        with self._lock:
            for late in [known for known, due in self._open.items() if due is not None and due <= now]:
                self._drop(late)

    def note_request(self, request: Any) -> None:
        """Record that the whole request of a connection has arrived."""
        with self._lock:
            if request in self._open:
                self._open[request] = None

    def _drop(self, request: Any) -> None:
        del self._open[request]
        _hang_up(request)  # which ends its thread

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log an error, but not that a viewer has closed the connection."""
        _log.debug("a request of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "forebay"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.client_seconds)

    def do_GET(self) -> None:
        self.server.note_request(self.connection)
        path, _, rest = self.path.partition("?")
        query = parse_qs(rest)
        if not self._is_addressed_to_us():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This page answers to localhost only.")
        elif path == "/" and "token" in query and self.server.token is not None:
            self._exchange_token(query["token"][-1])
        elif not self._is_allowed():
            self._refuse(HTTPStatus.UNAUTHORIZED, "Open this page by the address with ?token=… that it was given.")
        elif path == _STATE:
            self._send_state(query)
        elif path in _PAGE:
            self._send(HTTPStatus.OK, self.server.page[path], _PAGE[path][1])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _is_addressed_to_us(self) -> bool:
        """Without a token, reject Host headers that are not loopback (DNS rebinding)."""
        if self.server.token is not None:
            return True
        with suppress(ValueError):
            return _is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname or "")
        return False

    def _is_allowed(self) -> bool:
        token = self.server.token
        if token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), token):
            return True
        name, expected = self.server.cookie()
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(name)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, expected.encode())

    def _exchange_token(self, given: str) -> None:
        """Give a cookie for the token, so that it does not stay in the address."""
        if not _same(given, self.server.token or b""):
            self._refuse(HTTPStatus.UNAUTHORIZED, "This is not the token.")
            return
        name, value = self.server.cookie()
        cookie = f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"
        self._send(HTTPStatus.SEE_OTHER, b"", "text/plain; charset=utf-8", {"Location": "/", "Set-Cookie": cookie})

    def _send_state(self, query: dict[str, list[str]]) -> None:
        after = query.get("after", ["0"])[-1]
        if not (after.isascii() and after.isdigit() and len(after) < 18):
            self._refuse(HTTPStatus.BAD_REQUEST, "after= is the number of a point.")
            return
        state = self.server.state(int(after))
        self._send(HTTPStatus.OK, json.dumps(state, separators=(",", ":")).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(status, f"{why}\n".encode(), "text/plain; charset=utf-8", _REFUSAL_HEADERS.get(status))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse requests that are malformed, or that do more than read."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what the base class says of a method that is not defined here
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.")
        else:
            self._refuse(HTTPStatus(code), HTTPStatus(code).phrase)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Write nothing to the terminal: browsers open connections ahead that they never use."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002 - the base class's
        """Note a request without its query, where a token may be."""
        _log.debug("%s %s: %s", self.command, self.path.partition("?")[0] if self.command else "", code)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _same(given: str, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), expected)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # the client has closed it already
        connection.shutdown(socket.SHUT_RDWR)
