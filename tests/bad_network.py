"""A bad network for `FaultProxy`: slow requests, lost answers and broken connections, by a seed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from forebay.testing.proxy import Fault


def bad_network(seed: int) -> Callable[[str], Fault]:
    """Of a hundred requests, three are slow, and four end in some way that their client cannot tell from another."""
    random, lock = Random(seed), threading.Lock()
    faults = [fault for fault in Fault if fault is not Fault.NONE]

    def choose(_line: str) -> Fault:
        with lock:
            fate, fault, delay = random.random(), random.choice(faults), random.random()
        if fate < 0.03:
            threading.Event().wait(delay)
        return fault if 0.03 <= fate < 0.07 else Fault.NONE

    return choose
