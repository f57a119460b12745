"""Events to a function of yours, many batches at a time; an async one here, as if it called a service.

python examples/events_to_function.py file:///tmp/clicks

At least once: after a crash the function may be given again what it has done and the buffer has not heard of. A service
that remembers `commit.identity` can tell.
"""

from __future__ import annotations

import sys
from collections import Counter

import forebay
from forebay.runtime import CallableSink, Commit, Runtime, Source

pages: Counter[bytes] = Counter()


async def count_pages(commit: Commit) -> None:
    """A commit is done when this returns; if it raises, it is tried again."""
    pages.update(commit.table["value"].to_pylist())  # an Arrow table: sequence, index, ingestion_time, metadata, value


def main(buffer_url: str) -> None:
    with forebay.Producer(buffer_url) as producer:  # what your services do
        for number in range(1000):
            producer.produce([b"/", b"/cart"] if number % 4 else b"/checkout")

    with CallableSink(count_pages) as sink:
        Runtime([Source(buffer_url, group="count")], sink).run(until_caught_up=True)
    for page, times in pages.most_common():
        print(times, page.decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
