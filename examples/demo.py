"""forebay at work, end to end, on local files: produce from several processes, consume in parallel, take over, sweep.

    python examples/demo.py                       # files in a temporary folder
    python examples/demo.py --url file:///tmp/b   # an empty folder of your own, kept afterwards

The summary at the end proves that every event was read, none was lost and none came twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import forebay
from forebay.gc import Collector

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

PRODUCERS = 3
CALLS = 400
EVENTS_PER_CALL = 50
PAGES = ("/", "/search", "/product", "/cart", "/checkout")


def produce_clicks(url: str, name: int, done: Queue[int]) -> None:
    """One service: sends its clicks and reports how many were durable."""
    handles = []
    with forebay.Producer(url, flush_interval=0.05) as producer:
        for call in range(CALLS):
            first = call * EVENTS_PER_CALL
            events = [
                json.dumps({"service": name, "number": n, "page": PAGES[n % len(PAGES)]}).encode()
                for n in range(first, first + EVENTS_PER_CALL)
            ]
            handles.append(producer.produce(events, metadata=f"service={name}".encode()))
            time.sleep(0.002)  # a service has other things to do
    for handle in handles:
        handle.result(timeout=60)
    done.put(len(handles) * EVENTS_PER_CALL)


def consume(consumer: forebay.Consumer, seen: Counter[tuple[int, int]], pages: Counter[str], *, stop_after: int) -> int:
    """Fetch with four workers, count what came, and acknowledge; returns how many batches were acknowledged."""
    acknowledged = 0
    fetch = consumer.fetch_handle().fetch
    with ThreadPoolExecutor(4) as workers:
        while acknowledged < stop_after:
            descriptors = consumer.next_descriptors(min(16, stop_after - acknowledged))
            if not descriptors:
                break
            for batch in workers.map(fetch, descriptors):
                for entry in batch.entries:
                    event = json.loads(entry)
                    seen[event["service"], event["number"]] += 1
                    pages[event["page"]] += 1
            consumer.ack_through(descriptors[-1].sequence)
            acknowledged += len(descriptors)
    return acknowledged


def run(url: str) -> bool:
    print(f"buffer     {url}")
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    done: Queue[int] = context.Queue()
    services = [context.Process(target=produce_clicks, args=(url, name, done)) for name in range(PRODUCERS)]
    for service in services:
        service.start()
    for service in services:
        service.join()
    if any(service.exitcode for service in services):
        print("failed     a producer did not get through; its error is above", file=sys.stderr)
        return False
    produced = sum(done.get(timeout=10) for _ in services)
    print(f"produced   {produced:,} events, durable, by {PRODUCERS} processes in {time.perf_counter() - began:.1f} s")

    seen: Counter[tuple[int, int]] = Counter()
    pages: Counter[str] = Counter()
    first = forebay.Consumer(url)
    waiting = len(first)
    taken = consume(first, seen, pages, stop_after=waiting // 2)
    print(f"consumed   {taken} of {waiting} batches by consumer 1, with 4 fetch workers")

    second = forebay.Consumer(url)
    try:
        first.next_descriptors(1)
    except forebay.Fenced:
        print("took over  consumer 2 opened the buffer; consumer 1 is fenced and stops")
    taken = consume(second, seen, pages, stop_after=sys.maxsize)
    second.close()
    print(f"consumed   {taken} batches by consumer 2")

    report = Collector(url, grace=0.1).collect_once()
    print(f"collected  {report.deleted} objects that everyone has read, {report.kept} batches left")

    print("pages      " + ", ".join(f"{page} {count:,}" for page, count in sorted(pages.items())))
    lost = PRODUCERS * CALLS * EVENTS_PER_CALL - len(seen)
    doubled = sum(count - 1 for count in seen.values())
    print(f"summary    produced {produced:,}   read {sum(seen.values()):,}   lost {lost}   doubled {doubled}")
    return lost == 0 and doubled == 0 and produced == sum(seen.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a buffer to use and keep; it must be empty")
    url = parser.parse_args().url
    if url is not None:
        return 0 if run(url) else 1
    folder = tempfile.mkdtemp(prefix="forebay-demo-")
    try:
        return 0 if run(f"file://{folder}/clicks") else 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
