"""Locks on files. Only one thread of one process can hold a lock at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.buffer.base.clock import Clock

LOCK_SECONDS = 60.0
"""Maximum wait for a lock, in seconds. forebay holds a lock only for a rename, so another program must hold it."""
_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


@contextmanager
def hold_lock(path: Path, seconds: float, clock: Clock) -> Iterator[None]:
    """Hold the lock on a file, which is made if it is not there, during a `with` block.

    Raises:
        Unavailable: another program held the lock for `seconds`.
    """
    # A lock belongs to the open file, so threads of one process exclude each other as processes do. And a child that is
    # forked meanwhile has the same open file: to close ours would not unlock it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    _open_locks.add(descriptor)  # guard: track locks so that a forked child releases them
    try:
        wait_for_lock(descriptor, path, seconds, clock)  # guard: hold the lock during compare and rename
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _open_locks.discard(descriptor)
        os.close(descriptor)


def wait_for_lock(descriptor: int, path: Path, seconds: float, clock: Clock) -> None:
    """Lock an open file for this program alone.

    Raises:
        Unavailable: another program held the lock for `seconds`.
    """
    deadline = clock.monotonic() + seconds
    attempt = 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                raise Unavailable(
                    f"{path} was locked by another program for {seconds:g} seconds; nothing was written. Find that "
                    "program with `lslocks` or `lsof`, and end it"
                ) from None
        clock.sleep(full_jitter(system_random(), attempt, _PAUSE, _LONGEST_PAUSE))
        attempt += 1


_open_locks: set[int] = set()


def _close_inherited_locks() -> None:
    """Or this process would go on with a lock of its parent's, should that die before it unlocks."""
    for descriptor in _open_locks:
        os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
