"""A TCP proxy in front of an HTTP server that breaks connections on purpose, so that answers are really lost."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_EXPECT = b"\r\nExpect: 100-continue\r\n"


class Fault(Enum):
    """What happens to one request."""

    NONE = "the request goes through and so does the answer"
    CUT_BEFORE_REQUEST = "the connection ends once the head of the request is read; the server sees nothing"
    CUT_IN_HEAD = "the server gets half of the request's head, then both connections end"
    CUT_IN_BODY = "the server gets the head and half of the body, then both connections end"
    CUT_BEFORE_ANSWER = "the server carries the request out; its answer is thrown away and the connection ends"
    RESET_BEFORE_ANSWER = "as before, with a TCP reset"
    CUT_IN_ANSWER = "half of the answer arrives, then the connection ends"
    STALL_BEFORE_ANSWER = "the server carries the request out; the client waits for an answer that never comes"
    CUT_AFTER_ANSWER = "all goes well, then the idle connection ends without a word"


class _Listener:
    """A server on a free loopback port, with a thread for each connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._closed = False
        self.requests: list[str] = []
        """Every request line that arrived, such as `GET /bucket/key HTTP/1.1`."""
        self.heads: list[str] = []
        """The request lines with their headers."""
        self.endpoint_url: str = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        # close() does not wake a blocked accept(), but one last connection does.
        with suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=1):
            pass
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_quietly, args=(client,), daemon=True).start()

    def _serve_quietly(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def _note(self, head: bytes) -> None:
        self.requests.append(_first_line(head))
        self.heads.append(head.decode("latin-1"))


class CannedServer(_Listener):
    """Gives the same answer to every request. With None it reads requests and never answers."""

    def __init__(self, answer: bytes | None) -> None:
        super().__init__()
        self._answer = answer

    def _serve(self, client: socket.socket) -> None:
        incoming = client.makefile("rb")
        while head := _read_request_head(incoming, client):
            _read_body(incoming, head)
            self._note(head)
            if self._answer is not None:
                whole, end = self._answer, self._answer.find(b"\r\n\r\n") + 4
                client.sendall(whole[:end] if head.startswith(b"HEAD ") else whole)


def http_answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of a complete HTTP answer."""
    lines = [f"HTTP/1.1 {status} Canned", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class FaultProxy(_Listener):
    """Forwards requests to `endpoint_url`, each with the fault that `choose` returns for its first line."""

    def __init__(self, endpoint_url: str, choose: Callable[[str], Fault] = lambda _: Fault.NONE) -> None:
        super().__init__()
        target = urlsplit(endpoint_url)
        self._target = (target.hostname or "", target.port or 80)
        self.choose = choose
        self.answered: list[str] = []
        """Every request line that the server has answered, even if the client did not get the answer."""

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(self._target) as server:
            incoming, outgoing = client.makefile("rb"), server.makefile("rb")
            while head := _read_request_head(incoming, client):
                line = _first_line(head)
                fault = self.choose(line)
                self._note(head)
                if fault is Fault.CUT_BEFORE_REQUEST:
                    return
                body = _read_body(incoming, head)
                if fault in {Fault.CUT_IN_HEAD, Fault.CUT_IN_BODY}:
                    server.sendall(
                        head[: len(head) // 2] if fault is Fault.CUT_IN_HEAD else head + body[: len(body) // 2]
                    )
                    return
                server.sendall(head + body)
                answer = _read_head(outgoing)
                answer += _read_body(outgoing, answer, line)
                self.answered.append(line)
                if not _hand_over(client, answer, fault):
                    return


def _hand_over(client: socket.socket, answer: bytes, fault: Fault) -> bool:
    """Send as much of the answer as the fault allows. Return whether to keep the connection."""
    if fault in {Fault.NONE, Fault.CUT_AFTER_ANSWER}:
        client.sendall(answer)
    elif fault is Fault.CUT_IN_ANSWER:
        client.sendall(answer[: len(answer) // 2])
    elif fault is Fault.RESET_BEFORE_ANSWER:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif fault is Fault.STALL_BEFORE_ANSWER:
        client.recv(1)  # returns when the client gives up
    return fault is Fault.NONE


def _first_line(head: bytes) -> str:
    return head.split(b"\r\n", 1)[0].decode("latin-1")


def _read_request_head(stream: BinaryIO, client: socket.socket) -> bytes:
    head = _read_head(stream)
    if _EXPECT in head:
        # The client waits for this before it sends the body. The server need not be asked: the header is removed.
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return head.replace(_EXPECT, b"\r\n")


def _read_head(stream: BinaryIO) -> bytes:
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _read_body(stream: BinaryIO, head: bytes, request_line: str = "") -> bytes:
    if request_line.startswith("HEAD ") or head[9:12] in {b"204", b"304"}:
        return b""
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _read_chunks(stream)
    return stream.read(int(fields.get(b"content-length", b"0")))


def _read_chunks(stream: BinaryIO) -> bytes:
    parts = []
    while line := stream.readline():
        size = int(line.split(b";")[0], 16)
        parts += [line, stream.read(size + 2)]
        if not size:
            break
    return b"".join(parts)
