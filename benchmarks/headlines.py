"""What the first screen of the page shows: a few lines for each question, and why promises are missed.

Each number is the ratio of two cases of one group, which were measured in turns, in one run. The lines about OpenData
Buffer are fixed text: no script here runs it, and it was measured separately.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Run = dict[str, Any]

REASONS: Final = Path(__file__).resolve().parent / "reasons.toml"
SIZES: Final = ("1 KiB", "100 B")
_RUST: Final = "OpenData Buffer (Rust), measured separately"
OUTSIDE: Final = (
    "OpenData Buffer: these scripts did not measure it. opendata-buffer 0.3.0 (a release build, zstd 3, events of both "
    "sizes) and forebay ran on the same two cores and one SeaweedFS server, in November 2026."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Where a ratio is found."""

    script: str
    group: str
    """With {} for the size of an event."""
    case: str
    peer: str
    """The case that is 1."""

    def find(self, runs: Mapping[str, Run]) -> list[float]:
        """The ratio for each size of an event, or one for all; none if the script has no results."""
        if self.script not in runs:
            return []
        found = []
        for group in dict.fromkeys(self.group.format(size) for size in SIZES):
            ratios = {row["case"]: row["ratio"] for row in runs[self.script]["rows"] if row["group"] == group}
            found.append(ratios[self.case] / ratios[self.peer])
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """One form of forebay against one other thing."""

    what: str
    against: str
    found: Figure | str
    """Where the ratios are, or what the separate measurement found."""


def _kafka(what: str, group: str, case: str, peer: str = "Kafka") -> Comparison:
    return Comparison(what, "Kafka", Figure("kafka", group, f"forebay, {case}", peer))


def _peers(group: str) -> tuple[Comparison, ...]:
    return tuple(
        Comparison("bytes", shown, Figure("peers", group, "forebay", peer))
        for shown, peer in (("Parquet files", "Parquet puts"), ("Delta", "Delta appends"))
    )


QUESTIONS: Final[dict[str, tuple[Comparison, ...]]] = {
    "Storing events until they are durable": (
        Comparison("bytes", "ceiling", Figure("produce", "S3 by obstore, {}", "Arrow, 4 threads", "zstd + bare puts")),
        Comparison("rows", "ceiling", Figure("typed", "produce Arrow, {}", "forebay", "pyarrow + bare puts")),
        *_peers("in, S3, {}"),
        _kafka("bytes", "produce until durable, {}", "bytes"),
        _kafka("rows", "produce until durable, {}", "typed from Arrow"),
        Comparison("bytes", _RUST, "1.6 to 2.05 times as fast by MB/s, 0.82 to 0.94 times by processor time"),
    ),
    "Reading them in Python": (
        Comparison(
            "bytes",
            "ceiling",
            Figure("consume", "S3 by obstore, {}, 4 workers", "workers to Arrow", "bare gets + zstd"),
        ),
        Comparison("rows", "ceiling", Figure("typed", "read, {}", "forebay", "bare gets + read_table")),
        *_peers("out, S3, {}"),
        Comparison("bytes, to Arrow", _RUST, "1.4 to 1.66 times as fast by MB/s, 1.4 to 1.9 times by processor time"),
        Comparison("bytes, to objects", _RUST, "0.82 to 1.22 times as fast by MB/s"),
    ),
    "A job in Spark: the count and length of bytes, the average of rows by page": (
        Comparison(
            "bytes", "Parquet files", Figure("spark_read", "count, sum(length): value, {}", "forebay", "Parquet")
        ),
        _kafka("bytes", "batch: count, sum(length), {}", "bytes"),
        _kafka("rows, format forebay", "batch: average by page, {}", "typed, format"),
        _kafka("rows, forebay.runtime.spark.read", "batch: average by page, {}", "typed, read"),
    ),
    "A stream in Spark that reads everything that is stored, and ends (AvailableNow)": (
        _kafka("bytes", "AvailableNow: count, sum(length), {}", "bytes"),
        _kafka("rows", "AvailableNow: average by page, {}", "typed, format"),
    ),
    "Time until one event is durable, or visible in a stream of Spark": (
        _kafka("durable", "time to durable", "flush_interval=0.1", "Kafka, linger.ms=100"),
        _kafka("visible", "time to visible in a stream of Spark", "flush_interval=0.1", "Kafka, linger.ms=100"),
    ),
    "Memory, and an append to a manifest that lists 20,000 batches": (
        Comparison(
            "peak, producing",
            _RUST,
            "forebay 271 to 619 MiB (before its defaults became smaller), OpenData Buffer 74 to 280 MiB",
        ),
        Comparison(
            "peak, consuming",
            _RUST,
            "forebay 182 to 733 MiB (before its defaults became smaller), OpenData Buffer 74 to 257 MiB",
        ),
        Comparison("append", _RUST, "forebay 3.9 ms and 10 kB, OpenData Buffer 34.5 ms and 3.2 MB"),
    ),
}


_NEAR = 0.95
BY_A_LITTLE: Final = "Missed by less than 5 %. Two runs on this machine differ by as much."


def explain(runs: Sequence[Run]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the missed promises and their scripts by reason: first those that nothing explains, under ""."""
    reasons = read_reasons()
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {"": []}
    near = []
    for run in runs:
        known = reasons.get(run["name"], {})
        for promise in run["promises"]:
            if promise["kept"]:
                continue
            reason = next((known[part] for part in known if part in promise["text"]), "")
            if not reason and promise["found"] >= _NEAR * promise["least"]:
                near.append((run["name"], promise))
            else:
                found.setdefault(reason, []).append((run["name"], promise))
    return {reason: these for reason, these in (*found.items(), (BY_A_LITTLE, near)) if these}


def read_reasons() -> dict[str, dict[str, str]]:
    """By script and part of a promise's text: why it is missed."""
    return tomllib.loads(REASONS.read_text())
