"""How near do encoding and decoding a batch come to what zstd alone costs, and how far ahead of a Python loop are they?

One thread, processor time, batches of 64 MiB of version 2, and of version 1, which is shared with OpenData Buffer.
Records are events as services write them, from a fixed seed: 100 bytes, 1 KiB, and lengths spread as in a mixed stream
(log-normal, median about 245 bytes). Ceilings work on the very same bytes, and the Python loop is the one that a plain
reading of the layout would give. Decompression has two ceilings: the `zstandard` package, which is what one would call,
and Arrow's own zstd, which gets warm memory from a pool where the package has to touch fresh pages for every large
result.

A buffer that is shared with OpenData Buffer should not cost its producers more. So version 1 is also compared with
version 2: batches of a producer's default size, made by `encode_batch`, and made as a producer does, from calls of a
thousand entries each.
"""

from __future__ import annotations

import json
import struct
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from forebay.buffer.format.batch import DEFAULT_LEVEL, decode_batch, encode_batch, raw_size
from forebay.buffer.write.accumulator import Accumulator, check_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness import Bench

    from forebay.buffer.format.batch import Version
    from forebay.buffer.write.accumulator import Entries

_ROUNDS = 7
_BATCH_BYTES = 8 << 20
_ENTRIES_A_CALL = 1000
_LENGTH = struct.Struct("<I")


def run(bench: Bench) -> None:
    size = (2 if bench.quick else 64) << 20
    for shape, length in _SHAPES.items():
        entries = _records(length, size)
        versions: tuple[Version, ...] = (2, 1) if shape == "100 B" else (2,)
        for version in versions:
            _decode(bench, shape, entries, version)
            _encode(bench, shape, entries, version)
        if shape != "mixed":
            _compare_versions(bench, shape, entries[: len(entries) * _BATCH_BYTES // max(size, _BATCH_BYTES)])
    _other_compressions(bench, _records(_SHAPES["100 B"], size))


def _decode(bench: Bench, shape: str, entries: list[bytes], version: Version) -> None:
    block, count, what = _naive_encode(entries, version), len(entries), f"{shape}, version {version}"
    # Immutable, as stores return them: what could still be changed, decoding has to copy.
    told, stored = (bytes(encode_batch(entries, kind, version=version)) for kind in ("zstd", "none"))
    zstd_options = {"write_checksum": version == 1, "write_content_size": False}
    untold = zstandard.ZstdCompressor(**zstd_options).compress(block) + told[-7:]
    frame = told[:-7]
    arrow_zstd, zstd = pa.Codec("zstd"), zstandard.ZstdDecompressor()
    assert decode_batch(told).entries == decode_batch(untold).entries == decode_batch(stored).entries == entries

    ratios = bench.compare(
        f"decode zstd, {what}",
        {
            "zstd alone (zstandard)": lambda: zstd.decompress(frame),
            "zstd alone (Arrow's)": lambda: arrow_zstd.decompress(frame, decompressed_size=len(block)),
            "decode_batch to Arrow": lambda: decode_batch(told),
            "the same, size not told": lambda: decode_batch(untold),
            "decode_batch to bytes": lambda: list(decode_batch(told).entries),
            "zstandard, Python loop": lambda: _naive_decode(zstd.decompress(frame), count, version),
        },
        ceiling="zstd alone (zstandard)",
        amount=len(block),
        rounds=_ROUNDS,
        clock="cpu",
    )
    if shape == "100 B":
        # zstandard pays page faults for its result at this size, and Arrow's pool does not: the strict ceiling counts.
        strict = ratios["decode_batch to Arrow"] / max(1.0, ratios["zstd alone (Arrow's)"])
        bench.require(f"decode zstd to Arrow, {what}, of the faster zstd alone", strict, least=0.8)
        bench.note(f"decode zstd to Arrow, {what}, of zstandard alone: {ratios['decode_batch to Arrow']:.2f}")

    ratios = bench.compare(
        f"decode uncompressed, {what}",
        {
            "Python loop": lambda: _naive_decode(block, count, version),
            "decode_batch to Arrow": lambda: decode_batch(stored),
            "decode_batch to bytes": lambda: list(decode_batch(stored).entries),
        },
        ceiling="Python loop",
        amount=len(block),
        rounds=_ROUNDS,
        clock="cpu",
    )
    if shape == "100 B":
        bench.require(f"decode uncompressed, {what}, of the Python loop", ratios["decode_batch to Arrow"], least=10)


def _encode(bench: Bench, shape: str, entries: list[bytes], version: Version) -> None:
    block, what = _naive_encode(entries, version), f"{shape}, version {version}"
    array = pa.array(entries, pa.binary())

    def compress(data: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=3, write_checksum=version == 1).compress(data)

    ratios = bench.compare(
        f"encode zstd 3, {what}",
        {
            "zstd alone": lambda: compress(block),
            "encode_batch of Arrow": lambda: encode_batch(array, version=version),
            "encode_batch of a list": lambda: encode_batch(entries, version=version),
            "Python loop, zstandard": lambda: compress(_naive_encode(entries, version)),
        },
        ceiling="zstd alone",
        amount=len(block),
        rounds=_ROUNDS,
        clock="cpu",
    )
    if shape == "100 B":
        bench.require(f"encode zstd 3 of Arrow, {what}, of zstd alone", ratios["encode_batch of Arrow"], least=0.85)
        bench.require(f"encode zstd 3 of a list, {what}, of zstd alone", ratios["encode_batch of a list"], least=0.7)
    bench.compare(
        f"encode uncompressed, {what}",
        {
            "Python loop": lambda: _naive_encode(entries, version),
            "encode_batch of Arrow": lambda: encode_batch(array, "none", version=version),
            "encode_batch of a list": lambda: encode_batch(entries, "none", version=version),
        },
        ceiling="Python loop",
        amount=len(block),
        rounds=_ROUNDS,
        clock="cpu",
    )


def _compare_versions(bench: Bench, shape: str, entries: list[bytes]) -> None:
    array = pa.array(entries, pa.binary())
    starts = range(0, len(entries), _ENTRIES_A_CALL)
    calls = [entries[start : start + _ENTRIES_A_CALL] for start in starts]
    arrays = [array.slice(start, _ENTRIES_A_CALL) for start in starts]
    forms: dict[str, Callable[[Version], object]] = {
        "Arrow": lambda version: encode_batch(array, version=version),
        "a list": lambda version: encode_batch(entries, version=version),
        "calls with Arrow": lambda version: _fill(arrays, version),
        "calls with lists": lambda version: _fill(calls, version),
    }
    for form, encode in forms.items():
        ratios = bench.compare(
            f"encode zstd 3, {shape}, {form}",
            {"version 2": partial(encode, 2), "version 1": partial(encode, 1)},
            ceiling="version 2",
            amount=raw_size(entries),
            rounds=2 * _ROUNDS + 1,
            clock="cpu",
        )
        bench.require(f"encode zstd 3, {shape}, {form}: version 1, of version 2", ratios["version 1"], least=0.9)


def _fill(calls: Sequence[Entries], version: Version) -> object:
    """Return the batch of these calls as a producer makes it."""
    accumulator = Accumulator(_BATCH_BYTES, version=version, in_one_piece=True)
    for call in calls:
        accumulator.apply(check_call(call, b"", 0))
    return accumulator.freeze()[0].encode("zstd", DEFAULT_LEVEL)


def _other_compressions(bench: Bench, entries: list[bytes]) -> None:
    block = _naive_encode(entries, 2)
    codecs = {
        "zstd 3": pa.Codec("zstd", compression_level=3),
        "zstd 1": pa.Codec("zstd", compression_level=1),
        "lz4": pa.Codec("lz4"),
    }
    packed = {name: codec.compress(block, asbytes=True) for name, codec in codecs.items()}
    sizes = ", ".join(f"{name} {len(block) / len(data):.2f}" for name, data in packed.items())
    bench.note(f"how many times smaller, 100 B: {sizes}")

    def compress(name: str) -> Callable[[], object]:
        return lambda: codecs[name].compress(block)

    def decompress(name: str) -> Callable[[], object]:
        return lambda: codecs[name].decompress(packed[name], decompressed_size=len(block))

    for verb, make in (("compress", compress), ("decompress", decompress)):
        bench.compare(
            f"{verb} alone, 100 B",
            {name: make(name) for name in codecs},
            ceiling="zstd 3",
            amount=len(block),
            rounds=_ROUNDS,
            clock="cpu",
        )


def _naive_encode(entries: list[bytes], version: Version) -> bytes:
    if version == 1:
        return b"".join([_LENGTH.pack(len(entry)) + entry for entry in entries])
    return b"".join(entries) + b"".join([_LENGTH.pack(len(entry)) for entry in entries])


def _naive_decode(block: bytes, count: int, version: Version) -> list[bytes]:
    entries, position = [], 0
    if version == 1:
        while position < len(block):
            (length,) = _LENGTH.unpack_from(block, position)
            position += 4
            entries.append(block[position : position + length])
            position += length
        return entries
    for (length,) in _LENGTH.iter_unpack(memoryview(block)[len(block) - 4 * count :]):
        entries.append(block[position : position + length])
        position += length
    return entries


_SHAPES: dict[str, Callable[[Random], int]] = {
    "100 B": lambda _: 100,
    "1 KiB": lambda _: 1024,
    "mixed": lambda random: min(20_000, max(20, int(random.lognormvariate(5.5, 1.0)))),
}


def _records(length: Callable[[Random], int], size: int) -> list[bytes]:
    """Return records of about `size` bytes in all, the same ones every time."""
    random = Random(20)
    entries: list[bytes] = []
    total = 0
    while total < size:
        want = length(random)
        line = json.dumps(
            {
                "ts": 1_700_000_000_000 + 7 * len(entries),
                "id": f"{random.getrandbits(64):016x}",
                "user": random.randrange(50_000),
                "event": random.choice(["view", "click", "buy", "scroll"]),
                "page": f"/p/{random.randrange(900)}",
                "ms": round(random.expovariate(0.02)),
            }
        )
        while len(line) < want:
            tag = random.choice(["referrer", "campaign", "agent", "region", "trace", "session"])
            line += f', "{tag}": "{random.choice(["web", "app", "mail"])}-{random.getrandbits(32):08x}"'
        entries.append(line[:want].encode())
        total += want + 4
    return entries
