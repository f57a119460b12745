"""JSON events into a Delta Lake table, each event once: kill it at any moment, start it again, or start two of them.

python examples/json_to_delta.py file:///tmp/clicks file:///tmp/clicks-delta
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from deltalake import DeltaTable

import forebay
from forebay.runtime import DeltaSink, Runtime, Source
from forebay.runtime.decoders import JsonLines

COLUMNS = pa.schema([("page", pa.string()), ("user", pa.int64())])


def main(buffer_url: str, table_url: str) -> None:
    with forebay.Producer(buffer_url) as producer:  # what your services do
        for user in range(1000):
            producer.produce(json.dumps({"page": "/cart", "user": user}).encode())
        producer.flush().wait()
        producer.produce(b"this is no JSON")

    # A batch that cannot be read goes to a buffer of its own, with the reason, and the rest goes on.
    with DeltaSink(table_url) as sink, forebay.Producer(f"{buffer_url}-dead") as dead_letters:
        runtime = Runtime(
            [Source(buffer_url, group="to-delta")],
            sink,
            decoder=JsonLines(COLUMNS, keep=["sequence", "index"]),
            dead_letters=dead_letters,
        )
        status = runtime.run(until_caught_up=True)  # without it: until stop() is called

    table, dead = DeltaTable(table_url), status.sources[0].dead_letters
    print(f"{table.count()} rows at version {table.version()}; {dead} dead letters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
