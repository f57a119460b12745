"""How long does a version 1 manifest of 10,000 waiting batches take to open, read from and append to?

One thread, processor time. The peer decodes every entry with `struct`, as a plain reading of the layout would. forebay
finds and checks all entries in one native pass and decodes those that are asked for; the last case asks for all.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from forebay.buffer.format.model import BatchDescriptor, Metadata, NewBatch
from forebay.buffer.manifest.v1 import Manifest

if TYPE_CHECKING:
    from harness import Bench

_NAIVE = "struct loop over every entry"


def run(bench: Bench) -> None:
    count = 1_000 if bench.quick else 10_000
    batches = [
        NewBatch(
            f"data/{number:026}.batch", tuple(Metadata(i * 100, 1_700_000_000_000 + i, b"svc=web") for i in range(2))
        )
        for number in range(count)
    ]
    data = Manifest.empty("bench").append(batches).data
    assert _naive_parse(data) == Manifest(data, "bench").tail_descriptors(0, count)

    ratios = bench.compare(
        f"parse {count:,} entries",
        {
            _NAIVE: lambda: _naive_parse(data),
            "find all, decode the last 100": lambda: Manifest(data, "bench").tail_descriptors(count - 100, 100),
            "find all, decode all": lambda: Manifest(data, "bench").tail_descriptors(0, count),
        },
        ceiling=_NAIVE,
        amount=count,
        unit="entries",
        clock="cpu",
    )
    bench.require("parsing against a struct loop", ratios["find all, decode the last 100"], least=5)

    bench.compare(
        f"change {count:,} entries",
        {
            "copy of the bytes": lambda: bytes(bytearray(data)),
            "append 10": lambda: Manifest(data, "bench").append(batches[:10]),
            "dequeue 100": lambda: Manifest(data, "bench").ack(99),
        },
        ceiling="copy of the bytes",
        amount=len(data),
        clock="cpu",
    )


def _naive_parse(data: bytes) -> list[BatchDescriptor]:
    found = []
    count, _next_sequence, _epoch, _version = struct.unpack_from("<IQQH", data, len(data) - 22)
    at = 0
    for _ in range(count):
        sequence, location_size = struct.unpack_from("<QH", data, at + 4)
        at += 14
        location = data[at : at + location_size].decode()
        at += location_size
        (items,) = struct.unpack_from("<I", data, at)
        at += 4
        metadata = []
        for _ in range(items):
            start, time_ms, size = struct.unpack_from("<IqI", data, at)
            at += 16
            metadata.append(Metadata(start, time_ms, data[at : at + size]))
            at += size
        found.append(BatchDescriptor(sequence, location, tuple(metadata)))
    return found
