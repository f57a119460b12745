"""Streams written to buffers and topics: every epoch once, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from pyspark.sql import SparkSession
from spark_place import Place
from write_job import entries_in, head_of

from forebay.buffer import buffers_at
from forebay.buffer.topic import create_topic

pytestmark = pytest.mark.matrix

HERE = Path(__file__).parents[1]


class Lines:
    """A streaming query of text files, one file an epoch, that is run until it has read all of them."""

    def __init__(self, folder: Path, spark: SparkSession, place: Place) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.place = place
        self._spark = spark
        self._files = 0

    def add(self, *lines: str) -> None:
        self._files += 1
        path = self.source / f"{self._files}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (self._files, self._files))  # by which Spark orders them

    def run(self, *columns: str, **options: str) -> None:
        frame = self._spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(self.source))
        given = {"writerId": "etl", "checkpointLocation": str(self.checkpoint), **self.place.options, **options}
        query = (
            frame.selectExpr("value", *columns)
            .writeStream.format("forebay")
            .options(**{name: value for name, value in given.items() if value})
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()

    def forget_commit(self, epoch: int) -> None:
        """As if Spark had died before it wrote that an epoch is done: it will run it again."""
        (self.checkpoint / "commits" / str(epoch)).unlink()
        (self.checkpoint / "commits" / f".{epoch}.crc").unlink()

    def written(self) -> list[str]:
        return sorted(entry.decode() for entries in entries_in(self.place.open()) for entry in entries)


@pytest.fixture
def lines(tmp_path: Path, spark: SparkSession, place: Place) -> Lines:
    return Lines(tmp_path, spark, place)


def test_stream_goes_on_from_its_checkpoint_and_writes_every_epoch_once(lines: Lines) -> None:
    lines.add("a", "b")
    lines.add("c")
    lines.run()
    lines.forget_commit(1)
    lines.add("d")
    lines.run()
    assert lines.written() == ["a", "b", "c", "d"]
    assert head_of(lines.place.open()).holds == {}


def test_topic_is_written_once_as_well(lines: Lines) -> None:
    create_topic(lines.place.url, 2)
    lines.add("a", "b", "c", "d")
    lines.run("value as key")
    lines.forget_commit(0)
    lines.add("e")
    lines.run("value as key")
    assert lines.written() == ["a", "b", "c", "d", "e"]
    assert all(head_of(buffer).holds == {} for buffer in buffers_at(lines.place.open()))


def test_stream_whose_checkpoint_was_deleted_is_told_so_and_writes_nothing(lines: Lines) -> None:
    lines.add("a")
    lines.run()
    lines.checkpoint.rename(lines.checkpoint.with_name("deleted"))
    with pytest.raises(Exception, match="checkpoint was deleted or put back"):
        lines.run()
    assert lines.written() == ["a"]
    assert head_of(lines.place.open()).holds == {}
    lines.run(writerId="another")
    assert lines.written() == ["a", "a"], "under another name it is another stream"


def test_stream_without_a_writer_id_is_refused(lines: Lines) -> None:
    lines.add("a")
    with pytest.raises(Exception, match="a stream needs the option writerId"):
        lines.run(writerId="")


def start_dying(lines: Lines, moment: str) -> subprocess.Popen[bytes]:
    arguments = [moment, lines.source, lines.checkpoint, lines.place.url]
    return subprocess.Popen(
        [sys.executable, HERE / "killed_driver.py", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_driver_killed_just_before_or_after_the_append_is_made_good_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SIGKILL of the driver's Python and its JVM: objects stored and not listed, or listed and Spark not told."""
    both = {}
    for moment in ("before", "after"):
        (tmp_path / moment).mkdir()
        both[moment] = Lines(tmp_path / moment, spark, Place(f"file://{tmp_path}/{moment}/buffer"))
        both[moment].add("a", "b")
        both[moment].add("c")
    drivers = {moment: start_dying(lines, moment) for moment, lines in both.items()}  # at once: it is long
    for driver in drivers.values():
        output, _ = driver.communicate()
        assert driver.returncode == -signal.SIGKILL, output.decode()
    assert both["before"].written() == []
    assert both["after"].written() == ["a", "b"]
    assert list(head_of(both["before"].place.open()).holds) == ["spark.etl"], "what is stored is held for the next run"
    for lines in both.values():
        lines.run()
        assert lines.written() == ["a", "b", "c"]
        assert head_of(lines.place.open()).holds == {}
