"""JSON events into Parquet files by date, each event once: kill it at any moment and start it again.

python examples/json_to_parquet.py file:///tmp/clicks file:///tmp/clicks-parquet
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import forebay
from forebay.runtime import ParquetSink, Runtime, Source
from forebay.runtime.decoders import JsonLines

COLUMNS = pa.schema([("page", pa.string()), ("user", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])


def main(buffer_url: str, parquet_url: str) -> None:
    with forebay.Producer(buffer_url) as producer:  # what your services do
        for user in range(1000):
            event = {"page": "/cart", "user": user, "at": "2026-01-31T12:00:00Z", "a field nobody asked for": True}
            producer.produce(json.dumps(event).encode())

    # Files hold many batches (up to 128 MiB or a minute), and are named for what they hold: a replay overwrites itself.
    with ParquetSink(parquet_url, by_date=True) as sink:
        runtime = Runtime(
            [Source(buffer_url, group="to-parquet")],
            sink,
            decoder=JsonLines(COLUMNS, keep=["ingestion_time"]),
        )
        status = runtime.run(until_caught_up=True)  # without it: until stop() is called
    print(f"{status.rows} rows in {status.commits} commits are in {parquet_url}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
