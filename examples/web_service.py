"""A web service (FastAPI) that answers only when the event is durable.

    pip install fastapi uvicorn
    python examples/web_service.py file:///tmp/events 8080
    curl -d '{"page": "/cart"}' localhost:8080/events

Many requests share one batch, so each costs a fraction of an upload. While the producer has no room, because the store
is slow or nobody reads, the client is told to come back (503). Before the server ends, it stores what it has taken.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

import forebay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOM_SECONDS = 1.0
"""Maximum wait for room in the producer."""


def make_app(url: str, **settings: Any) -> FastAPI:
    """Return the service. Each of its processes opens one producer with these settings, for all requests."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with await asyncio.to_thread(forebay.Producer, url, **settings) as producer:
            app.state.producer = producer
            yield
        # Leaving the block has stored everything.

    app = FastAPI(lifespan=lifespan)

    @app.post("/events", status_code=202)
    async def take_event(request: Request) -> str:
        producer: forebay.Producer = request.app.state.producer
        try:
            handle = await producer.produce_async(await request.body(), metadata=b"source=http", timeout=ROOM_SECONDS)
            await handle
        except (forebay.Backpressure, forebay.Timeout):
            raise HTTPException(503, "busy: nothing was stored", {"Retry-After": "1"}) from None
        except forebay.InvalidInput as error:
            raise HTTPException(400, str(error)) from None
        except forebay.ForebayError:
            logging.getLogger("uvicorn.error").exception("an event is not known to be stored")
            raise HTTPException(500, "not known to be stored") from None
        return "stored"

    return app


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    uvicorn.run(make_app(sys.argv[1], flush_interval=0.05), port=int(sys.argv[2]))
