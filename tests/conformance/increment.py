"""Add 1 to a counter many times, by plain compare-and-swap: `increment.py <writer> <times>`."""

from __future__ import annotations

import json
import pickle
import sys

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.store import Applied, InDoubt, ObjectStore


def increment(store: ObjectStore, writer: str, own: int) -> None:
    """Write `own` as this writer's count, once; what others wrote stays."""
    attempt = 0
    while True:
        found = store.get("counter")
        counts = json.loads(bytes(found.data))
        if counts.get(writer) == own:
            return  # an earlier attempt, whose answer was lost, was applied
        outcome = store.replace("counter", json.dumps(counts | {writer: own}).encode(), found.version)
        if isinstance(outcome, Applied):
            return
        if not isinstance(outcome, InDoubt) and store.get("counter").version == found.version:
            raise SystemExit(f"a false 'not applied': {outcome}")
        SystemClock().sleep(full_jitter(system_random(), attempt, 0.01, 0.5))
        attempt += 1


if __name__ == "__main__":
    shared: ObjectStore = pickle.load(sys.stdin.buffer)
    for number in range(1, int(sys.argv[2]) + 1):
        increment(shared, sys.argv[1], number)
