"""JSON events into a Delta Lake table that gets a new column on the way, while nothing is lost or written twice.

python examples/delta_new_column.py file:///tmp/clicks file:///tmp/clicks-delta
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import forebay
from forebay.runtime import DeltaSink, Runtime, Source
from forebay.runtime.decoders import JsonLines

COLUMNS = pa.schema([("page", pa.string()), ("user", pa.int64())])
WIDER = pa.schema([*COLUMNS, ("referrer", pa.string())])


def produce(buffer_url: str, events: list[dict[str, object]]) -> None:
    with forebay.Producer(buffer_url) as producer:
        producer.produce([json.dumps(event).encode() for event in events])


def land(buffer_url: str, table_url: str, columns: pa.Schema) -> None:
    # The version of the table that has the first row with a referrer also adds the column.
    with DeltaSink(table_url, merge_schema=True) as sink:
        Runtime([Source(buffer_url, group="to-delta")], sink, decoder=JsonLines(columns)).run(until_caught_up=True)


def main(buffer_url: str, table_url: str) -> None:
    produce(buffer_url, [{"page": "/", "user": user} for user in range(100)])
    land(buffer_url, table_url, COLUMNS)
    produce(buffer_url, [{"page": "/", "user": user, "referrer": "ad"} for user in range(100)])
    land(buffer_url, table_url, WIDER)

    table = DeltaTable(table_url)
    query = QueryBuilder().register("clicks", table).execute("SELECT count(*), count(referrer) FROM clicks")
    rows, referred = (column[0].as_py() for column in query.read_all().columns)
    columns = ", ".join(field.name for field in table.schema().fields)
    print(f"{rows} rows in the columns {columns}; {referred} have a referrer")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
