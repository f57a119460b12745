"""A process of its own that appends to a log, or follows it, and says on its output what it did."""

from __future__ import annotations

import sys

from forebay.buffer.eventlog import Event, open_event_log


def say(*words: object) -> None:
    """One line, at once and in one piece."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def append(url: str, name: str, count: int) -> None:
    with open_event_log(url) as log:
        say("ready")
        sys.stdin.readline()
        for number in range(count):
            # Now and then several at once, so that being killed has something to tear.
            events = [Event("work", [name, number, piece]) for piece in range(1 + number % 3)]
            given = log.append_many("jobs", events)
            say(given.start, given.stop, number)


def follow(url: str, name: str, count: int) -> None:
    with open_event_log(url, depth=100_000, poll_interval=0.05) as log:
        records, _ = log.subscribe("jobs", {0: 0})
        say("ready")
        for _ in range(count):
            record = next(records)
            say(record.offset, *record.event.payload)


if __name__ == "__main__":
    _, mode, url, name, count = sys.argv
    {"append": append, "follow": follow}[mode](url, name, int(count))
