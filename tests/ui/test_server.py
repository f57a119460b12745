"""Who may see the page, and that it can be read and nothing else."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest
from patience import wait_for

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.store.memory import MemoryStore
from forebay.ui import Dashboard
from forebay.ui.server import MOST_CONNECTIONS, Server

TOKEN = "correct-horse-battery"
PAGE = ["/", "/page.css", "/page.js", "/chart.js", "/format.js", "/icon.svg", "/state.json"]


def started(token: str | None = None, host: str = "127.0.0.1", **limits: Any) -> Server:
    server = Server(lambda after: {"after": after}, host, 0, token, **limits)
    server.start()
    return server


@pytest.fixture
def server() -> Iterator[Server]:
    server = started()
    yield server
    server.close()


@pytest.fixture
def locked() -> Iterator[Server]:
    server = started(TOKEN)
    yield server
    server.close()


def ask(
    server: Server, path: str = "/", method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    where = urlsplit(server.url)
    connection = HTTPConnection(where.hostname or "", where.port)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def status(server: Server, path: str = "/", **headers: str) -> int:
    return ask(server, path, headers=headers)[0].status


def test_every_path_of_the_page_is_served_and_no_other(server: Server) -> None:
    for path in PAGE:
        answer, body = ask(server, path)
        assert (answer.status, bool(body)) == (200, True), path
    for path in (
        "/manifest",
        "/page",
        "/../pyproject.toml",
        "/page/index.html",
        "/state.json/",
        "/%2e%2e/x",
        "*",
    ):
        assert status(server, path) == 404, path


def test_answers_say_what_they_are(server: Server) -> None:
    kinds = {path: ask(server, path)[0].headers["Content-Type"] for path in PAGE}
    assert kinds["/"] == "text/html; charset=utf-8"
    assert kinds["/page.js"] == kinds["/chart.js"] == kinds["/format.js"] == "text/javascript; charset=utf-8"
    assert kinds["/state.json"] == "application/json"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"])
def test_page_can_only_be_read(server: Server, method: str) -> None:
    answer, _ = ask(server, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_head_answers_as_get_does_without_the_body(server: Server) -> None:
    for path in PAGE:
        (got, body), (head, nothing) = ask(server, path), ask(server, path, "HEAD")
        assert (head.status, nothing) == (got.status, b"")
        assert head.headers["Content-Length"] == str(len(body))


def test_every_answer_carries_the_headers_that_keep_a_browser_safe(server: Server, locked: Server) -> None:
    answers = [ask(server, path)[0] for path in [*PAGE, "/nothing"]]
    answers += [ask(server, "/", "POST")[0], ask(locked)[0], ask(locked, f"/?token={TOKEN}")[0]]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Python" not in answer.headers["Server"]


def test_state_is_asked_for_from_a_number_on(server: Server) -> None:
    assert json.loads(ask(server, "/state.json")[1]) == {"after": 0}
    assert json.loads(ask(server, "/state.json?after=17")[1]) == {"after": 17}
    for wrong in ("-1", "x", "1e3", "9" * 30, "%00", "%D9%A3"):
        assert status(server, f"/state.json?after={wrong}") == 400, wrong


def test_loopback_answers_to_its_own_names_only(server: Server) -> None:
    port = urlsplit(server.url).port
    for own in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", f"[::1]:{port}"):
        assert status(server, Host=own) == 200, own
    for other in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "[", "", "10.0.0.1"):
        assert status(server, Host=other) == 421, other
        assert status(server, "/state.json", Host=other) == 421, other


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_any_other_host_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match=r"give a token of at least 16 characters"):
        Server(lambda _after: {}, host, 0, None)


@pytest.mark.parametrize("token", ["", "short", "é" * 20, "a" * 15, "tab\tin-the-middle-of"])
def test_token_that_protects_nothing_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput, match="at least 16 printable"):
        Server(lambda _after: {}, "127.0.0.1", 0, token)


def test_without_the_token_nothing_is_shown(locked: Server) -> None:
    for path in [*PAGE, "/nothing", "/?token=", "/?token=wrong", f"/state.json?token={TOKEN}", f"/?tokens={TOKEN}"]:
        answer, body = ask(locked, path)
        assert (answer.status, answer.headers["Set-Cookie"]) == (401, None), path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert b"after" not in body
    assert status(locked, Authorization=f"Bearer {TOKEN}x") == 401
    assert status(locked, Authorization=f"Basic {TOKEN}") == 401
    assert status(locked, Cookie="forebay=x; ;;=") == 401


def test_token_in_the_address_is_exchanged_for_a_cookie(locked: Server) -> None:
    answer, _ = ask(locked, f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} == set(attributes)
    assert TOKEN not in cookie
    assert status(locked, "/state.json", Cookie=cookie) == 200
    assert status(locked, "/state.json", Cookie=cookie[:-1] + ("0" if cookie[-1] != "0" else "1")) == 401


def test_program_shows_the_token_in_a_header(locked: Server) -> None:
    assert status(locked, "/state.json", Authorization=f"Bearer {TOKEN}") == 200
    assert status(locked, "/state.json", Authorization=f"Bearer {TOKEN}", Host="dashboards.example") == 200


def test_token_is_never_logged_or_printed(
    locked: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="forebay")
    ask(locked, f"/?token={TOKEN}")
    ask(locked, f"/nothing?token={TOKEN}", "POST")
    ask(locked, "/", headers={"Authorization": f"Bearer {TOKEN}"})
    wait_for(lambda: [record for record in caplog.records if record.name == "forebay.ui"])
    told = caplog.text + "".join(capfd.readouterr()) + locked.url + repr(locked)
    assert TOKEN not in told


def test_port_in_use_is_said_with_what_to_do(server: Server) -> None:
    with pytest.raises(InvalidInput, match=r"cannot listen on 127\.0\.0\.1, port \d+ .*choose another, or port 0"):
        Server(lambda _after: {}, "127.0.0.1", urlsplit(server.url).port or 0, None)


def test_ipv6_loopback_needs_no_token() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    try:
        server = started(host="::1")
    except InvalidInput as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    assert server.url.startswith("http://[::1]:")
    assert status(server) == 200
    server.close()


def test_closing_hangs_up_and_frees_the_port(server: Server) -> None:
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port)) as silent:
        assert status(server) == 200, "so the connection before it was taken as well"
        server.close()
        assert silent.recv(1) == b""
    again = Server(lambda _after: {}, "127.0.0.1", where.port or 0, None)
    again.close()
    server.close()


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    where = urlsplit(server.url)
    connection = socket.create_connection((where.hostname, where.port))
    connection.sendall(sent)
    return connection


def test_viewer_is_answered_however_many_connections_stand_open(server: Server) -> None:
    slow = [connect(server, b"GET / HTTP/1.1\r\nX: ") for _ in range(2 * MOST_CONNECTIONS)]
    assert status(server) == 200
    for connection in slow:
        connection.close()


def test_connection_that_has_sent_the_least_for_longest_makes_room() -> None:
    answering, go_on = threading.Event(), threading.Event()

    def state(_after: int) -> dict[str, Any]:
        answering.set()
        go_on.wait()
        return {"answered": True}

    server = Server(state, "127.0.0.1", 0, None, most_connections=2)
    server.start()
    try:
        asked = connect(server, b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answering.wait()
        silent = connect(server)
        assert status(server) == 200, "the third"
        assert silent.recv(1) == b"", "younger than the first, whose request is here"
        go_on.set()
        with asked.makefile("rb") as answer:
            assert b"answered" in answer.read()
    finally:
        go_on.set()
        server.close()


def test_client_that_sends_a_byte_now_and_then_is_let_go() -> None:
    server = started(client_seconds=0.2)
    try:
        with connect(server, b"GET / HTTP/1.1\r\n") as slow, suppress(ConnectionError):
            slow.settimeout(0.01)
            for count in range(100_000):
                slow.sendall(b"X-More: x\r\n" if count < 50 else b"x")
                with suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
            else:
                pytest.fail("it was never let go")
    finally:
        server.close()


def test_connection_that_is_never_used_is_let_go_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    server = started(client_seconds=0.01)
    try:
        with connect(server) as silent:
            assert silent.recv(1) == b""
    finally:
        server.close()
    assert capfd.readouterr() == ("", "")


def test_viewer_that_hangs_up_or_talks_nonsense_harms_nobody(server: Server) -> None:
    where = urlsplit(server.url)
    for nonsense in (b"", b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n"):
        with socket.create_connection((where.hostname, where.port)) as rude:
            rude.sendall(nonsense)
    assert status(server) == 200


def test_dashboard_leaves_no_thread_behind(request: pytest.FixtureRequest) -> None:
    before = set(threading.enumerate())
    with Dashboard(MemoryStore("memory://ui-threads"), port=0).start() as dashboard:
        waiting = threading.Thread(target=dashboard.wait)
        waiting.start()
        state: dict[str, Any] = json.loads(ask(dashboard._server, "/state.json")[1])
        assert state["url"] == "memory://ui-threads"
    waiting.join()
    assert set(threading.enumerate()) <= before
    dashboard.close()
    assert repr(dashboard).endswith(", closed>")


def test_dashboard_that_was_never_started_closes_too() -> None:
    Dashboard(MemoryStore("memory://ui-never-started"), port=0).close()
