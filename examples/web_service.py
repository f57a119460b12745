"""An asyncio web service that answers only when the event is durable.

    python examples/web_service.py file:///tmp/events 8080
    curl -d '{"page": "/cart"}' localhost:8080/events

Many requests share one batch, so each costs a fraction of an upload. When the buffer is full the client is told to come
back (503) instead of being kept waiting. Plain asyncio stands in for a framework; the handler would be the same there.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import forebay


async def take_event(producer: forebay.Producer, body: bytes) -> tuple[int, bytes]:
    """The handler: status and answer for one event."""
    try:
        await producer.try_produce(body, metadata=b"source=http")
    except forebay.Backpressure:
        return 503, b"busy, try again\n"
    except forebay.InvalidInput as error:
        return 400, f"{error}\n".encode()
    except forebay.ForebayError as error:
        print(f"not stored: {error}", file=sys.stderr)
        return 500, b"not stored, try again\n"
    return 202, b"stored\n"


async def serve_connection(
    producer: forebay.Producer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        status, answer = await take_event(producer, body)
        writer.write(
            b"HTTP/1.1 %d -\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(answer)) + answer
        )
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass  # a client that hung up or does not speak HTTP
    finally:
        writer.close()


async def main(url: str, port: int) -> None:
    async with forebay.Producer(url, flush_interval=0.05) as producer:
        server = await asyncio.start_server(lambda r, w: serve_connection(producer, r, w), "127.0.0.1", port)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await stop.wait()
    print("everything is stored", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
