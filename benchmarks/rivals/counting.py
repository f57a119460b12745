"""A way to an S3 server on which requests are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 1 << 20


@contextmanager
def counted(endpoint: str) -> Iterator[tuple[str, Counter[str]]]:
    """Another address of a server, and the requests sent to it by kind, whatever client sends them."""
    requests: Counter[str] = Counter()
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(partial(_pass_on, host, int(port), requests), host, 0))
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}", requests
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    open_ones = asyncio.all_tasks() - {asyncio.current_task()}
    for task in open_ones:
        task.cancel()
    await asyncio.gather(*open_ones, return_exceptions=True)


async def _pass_on(
    host: str, port: int, requests: Counter[str], client: asyncio.StreamReader, answers: asyncio.StreamWriter
) -> None:
    upstream, server = await asyncio.open_connection(host, port)
    back = asyncio.ensure_future(_copy_all(upstream, answers))
    try:
        while True:
            head = await client.readuntil(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").lower().split("\r\n")
            method, target, _ = line.split(" ")
            requests["LIST" if method == "get" and "list-type=" in target else method.upper()] += 1
            server.write(head)
            named = dict(field.split(":", 1) for field in fields if field)
            if "transfer-encoding" in named:
                await _copy_chunks(client, server)
            else:
                await _copy(client, server, int(named.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has gone
    finally:
        server.close()
        await back


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, length: int) -> None:
    while length:
        data = await source.read(min(length, _PIECE))
        if not data:
            raise ConnectionError("the sender has gone")
        length -= len(data)
        target.write(data)
        await target.drain()


async def _copy_chunks(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    size = -1
    while size:
        line = await source.readuntil(b"\r\n")
        target.write(line)
        size = int(line.partition(b";")[0], 16)
        if size:
            await _copy(source, target, size + len(b"\r\n"))
    while line != b"\r\n":  # trailers, and the empty line after them
        line = await source.readuntil(b"\r\n")
        target.write(line)


async def _copy_all(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_PIECE):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()
