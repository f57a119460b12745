"""How batches are packed into tasks: rfcs/0008."""

from __future__ import annotations

import pytest
from read_job import ALL, columns, new_store

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.model import BatchDescriptor, Facts
from forebay.runtime.spark.options import Options
from forebay.runtime.spark.reading.plan import Piece, Sizing, SourceBuffer
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.times import TimeRange

MiB = 1 << 20
ROWS = Rows(ALL, TimeRange())


def pieces_of(sizes: list[int], partition: int = 0) -> list[Piece]:
    """Batches of these sizes in mebibytes."""
    source = SourceBuffer(new_store(), partition, "manifest")
    batches = [BatchDescriptor(i, f"data/{i}", (), Facts(1, size * MiB, 1, 0, 0, 0)) for i, size in enumerate(sizes)]
    return [Piece(source, tuple(batches))]


def packed(sizing: Sizing, pieces: list[Piece]) -> list[list[int]]:
    tasks = sizing.pack(pieces, ROWS)
    return [
        [batch.facts.raw_bytes // MiB for piece in task.pieces for batch in piece.batches if batch.facts]
        for task in tasks
    ]


def test_tasks_have_about_the_same_bytes_and_at_most_what_was_asked_for() -> None:
    assert packed(Sizing(100 * MiB, 1), pieces_of([40, 10, 50, 60, 40, 100])) == [[40, 10, 50], [60, 40], [100]]
    assert packed(Sizing(1000 * MiB, 3), pieces_of([10] * 9)) == [[10] * 3] * 3
    assert packed(Sizing(1000 * MiB, 99), pieces_of([10] * 3)) == [[10]] * 3, "a batch is not cut"
    assert packed(Sizing(10 * MiB, None), pieces_of([500, 1])) == [[500], [1]]
    assert packed(Sizing(10 * MiB, None), []) == []


def test_small_reads_get_few_tasks_and_large_ones_two_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    sizing = Sizing(256 * MiB, None)
    assert len(sizing.pack(pieces_of([1] * 20), ROWS)) == 1, "32 MiB are worth a task"
    assert len(sizing.pack(pieces_of([1] * 100), ROWS)) == 4
    assert len(sizing.pack(pieces_of([1] * 500), ROWS)) == 8
    assert len(sizing.pack(pieces_of([64] * 100), ROWS)) == 25, "256 MiB at most"


def test_every_task_knows_all_sources_so_that_it_keeps_their_holds() -> None:
    tasks = Sizing(10 * MiB, None).pack([*pieces_of([10, 10], 0), *pieces_of([10], 1)], ROWS)
    assert [[piece.source.partition for piece in task.pieces] for task in tasks] == [[0], [0], [1]]
    assert all([source.partition for source in task.sources] == [0, 1] for task in tasks)


def test_small_batches_share_tasks_and_count_for_the_requests_that_read_them() -> None:
    pieces = pieces_of([0] * 10_000)
    assert len(Sizing(256 * MiB, None).pack(pieces, ROWS)) == 10, "a thousand requests are about as much as 256 MiB"


def test_batches_that_need_not_be_read_count_for_their_rows_alone() -> None:
    pieces = pieces_of([64] * 100)
    assert len(Sizing(256 * MiB, None).pack(pieces, Rows(columns("sequence"), TimeRange()))) == 1


def test_task_of_more_than_a_gibibyte_cannot_be_asked_for() -> None:
    most = str(1 << 30)
    assert Sizing.of(Options({"maxPartitionBytes": most}, ["maxPartitionBytes"])).max_partition_bytes == 1 << 30
    with pytest.raises(InvalidInput, match="option maxPartitionBytes must be at most 1073741824"):
        Sizing.of(Options({"maxPartitionBytes": f"{most}0"}, ["maxPartitionBytes"]))


def test_no_task_has_more_than_a_gibibyte_unless_one_batch_has() -> None:
    assert packed(Sizing(1024 * MiB, 1), pieces_of([600] * 4)) == [[600]] * 4
    assert packed(Sizing(1024 * MiB, 1), pieces_of([1000, 100, 2000, 100])) == [[1000], [100], [2000], [100]]
