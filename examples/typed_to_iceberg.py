"""Typed events into an Iceberg table, each event once, and a query of the table with DuckDB.

python examples/typed_to_iceberg.py file:///tmp/visits /tmp/lake
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

import forebay
from forebay.runtime import IcebergSink, Runtime, Source

COLUMNS = pa.schema([pa.field("user", pa.int64(), nullable=False), pa.field("page", pa.string())])


def main(buffer_url: str, folder: str) -> None:
    with forebay.Producer(buffer_url, schema=COLUMNS) as producer:  # what your services do
        for user in range(100):
            producer.produce([{"user": user, "page": page} for page in ("/", "/", "/", "/", "/cart", "/cart", "/pay")])

    # A catalog in one file, for trying it out. In production: {"type": "rest", "uri": "https://…"}.
    lake = Path(folder).absolute()
    lake.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog("example", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    with IcebergSink(catalog, "web.visits", merge_schema=True) as sink:  # typed rows need no decoder
        Runtime([Source(buffer_url, group="to-iceberg")], sink).run(until_caught_up=True)

    visits = catalog.load_table("web.visits").scan().to_duckdb("visits")
    for page, count in visits.sql("SELECT page, count(*) FROM visits GROUP BY page ORDER BY page").fetchall():
        print(page, count)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
