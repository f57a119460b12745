"""How batches are packed into tasks: rfcs/0008."""

from __future__ import annotations

import pytest
from read_job import (
    new_store,
)

from forebay.buffer.format.model import BatchDescriptor, Facts
from forebay.runtime.spark.read.plan import Piece, Sizing, SourceBuffer


def pieces_of(sizes: list[int], partition: int = 0) -> list[Piece]:
    source = SourceBuffer(new_store(), partition, "manifest")
    batches = [BatchDescriptor(i, f"data/{i}", (), Facts(1, size, 1, 0, 0, 0)) for i, size in enumerate(sizes)]
    return [Piece(source, tuple(batches))]


def packed(sizing: Sizing, pieces: list[Piece]) -> list[list[int]]:
    tasks = sizing.pack(pieces)
    return [
        [batch.facts.raw_bytes for piece in task.pieces for batch in piece.batches if batch.facts] for task in tasks
    ]


MiB = 1 << 20


def test_tasks_have_about_the_same_bytes_and_at_most_what_was_asked_for() -> None:
    assert packed(Sizing(100, 1), pieces_of([40, 10, 50, 60, 40, 100])) == [[40, 10, 50], [60, 40], [100]]
    assert packed(Sizing(1000, 3), pieces_of([10] * 9)) == [[10] * 3] * 3
    assert packed(Sizing(1000, 99), pieces_of([10] * 3)) == [[10]] * 3, "a batch is not cut"
    assert packed(Sizing(10, None), pieces_of([500, 1])) == [[500], [1]]
    assert packed(Sizing(10, None), []) == []


def test_small_reads_get_few_tasks_and_large_ones_two_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    sizing = Sizing(256 * MiB, None)
    assert len(sizing.pack(pieces_of([MiB] * 20))) == 1, "32 MiB are worth a task"
    assert len(sizing.pack(pieces_of([MiB] * 100))) == 4
    assert len(sizing.pack(pieces_of([MiB] * 500))) == 8
    assert len(sizing.pack(pieces_of([64 * MiB] * 100))) == 25, "256 MiB at most"


def test_every_task_knows_all_sources_so_that_it_keeps_their_holds() -> None:
    tasks = Sizing(10, None).pack([*pieces_of([10, 10], 0), *pieces_of([10], 1)])
    assert [[piece.source.partition for piece in task.pieces] for task in tasks] == [[0], [0], [1]]
    assert all([source.partition for source in task.sources] == [0, 1] for task in tasks)
