"""A signal ends a request of obstore's even if another thread than the main one is told of it."""

from __future__ import annotations

import signal
import socket
import threading

import pytest

from forebay.buffer.store import open_store


def test_signal_that_does_not_end_the_wait_for_an_answer_is_handled_soon() -> None:
    """As one that comes just before the main thread begins to wait, which cannot be had on demand."""
    connections = []  # kept open, so that no answer ever comes
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def interrupt() -> None:
            connections.append(silent.accept())
            (request,) = [thread for thread in threading.enumerate() if thread.name == "forebay-obstore"]
            assert request.ident is not None
            signal.pthread_kill(request.ident, signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        options = {
            "client": "obstore",
            "endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "key": "key",
            "secret": "secret",
            "read_timeout": 3600,
        }
        with pytest.raises(KeyboardInterrupt):
            open_store("s3://tests/never", options).get("key")
