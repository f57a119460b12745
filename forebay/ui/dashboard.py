"""The dashboard as a thing to start and to close."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.ui.letters import Letters
from forebay.ui.sampler import Sampler
from forebay.ui.server import Server
from forebay.ui.subject import Subject
from forebay.ui.trail import Trail

if TYPE_CHECKING:
    from typing import Self

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.eventlog import EventLog
    from forebay.buffer.store import ObjectStore


class Dashboard(Closing):
    """A page at `url` that shows a buffer or topic. It listens at once, and answers once started.

    However many look, the store is asked once every `interval`: for a topic's record, each head, and each group's
    cursor. Nothing is ever written to it.

    Args:
        store: the buffer or topic, which need not be there yet.
        host: where to listen. Anything but loopback needs a token: the page is not encrypted, so put a proxy with TLS
            before it.
        port: 0 is any that is free.
        token: what a viewer has to know, 16 characters at least: once as `?token=…`, or as a bearer of it.
        manifest_path: the manifest's key.
        events: the event log with the audit trail of the collector and the runtimes; the caller closes it.
        dead_letters: the dead-letter buffer of the runtimes.
        interval: seconds between two looks.
        clock: where time comes from.

    Raises:
        InvalidInput: it cannot listen there, or must not without a token.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        host: str = "127.0.0.1",
        port: int = 8090,
        token: str | None = None,
        manifest_path: str = "manifest",
        events: EventLog | None = None,
        dead_letters: ObjectStore | None = None,
        interval: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.sampler: Final = Sampler(
            Subject(store, manifest_path=manifest_path, clock=clock),
            trail=None if events is None else Trail(events, store.url),
            letters=None if dead_letters is None else Letters(Subject(dead_letters, clock=clock)),
            interval=check_seconds(interval, "interval"),
            clock=clock,
        )
        self._server = Server(self.sampler.state, host, port, token)
        self._over = Event()
        self.url: str = self._server.url
        """Where the page is; without the token."""

    def start(self) -> Self:
        """Start to look at the buffer and to answer requests, in new threads."""
        self.sampler.start()
        self._server.start()
        return self

    def wait(self) -> None:
        """Return when it is closed, from another thread or by a signal's handler."""
        self._over.wait()

    def close(self) -> None:
        """Stop looking and answering. Closing again does nothing."""
        if not self._over.is_set():
            self._over.set()
            self._server.close()
            self.sampler.close()

    @shows_unopened
    def __repr__(self) -> str:
        return f"<Dashboard at {self.url}{', closed' if self._over.is_set() else ''}>"
