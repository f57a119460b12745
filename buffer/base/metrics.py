"""Every metric forebay records, by the OpenTelemetry API: nothing happens unless the host installs an SDK.

Each definition has the metric's name, its unit by UCUM and what it counts. Every metric has the attribute `buffer`: the
URL of the buffer or of the event log. Metrics of the runtime about one source also have its `group`. Those about all
sources (depth and in flight) have no buffer. docs/monitoring.md says why the names are forebay's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from forebay.buffer.base.install import installed_version

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Advised bounds of histograms. The bounds of the SDK are made for milliseconds: most durations are below the first."""

_meter = metrics.get_meter("forebay", installed_version("forebay") or "")
_counter, _gauge = _meter.create_counter, _meter.create_gauge


def _duration(name: str, description: str) -> Histogram:
    return _meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=SECONDS)


batches_flushed: Final = _counter("forebay.batches.flushed", "{batch}", "Batches encoded and uploaded")
entries_flushed: Final = _counter("forebay.entries.flushed", "{entry}", "Entries in the batches that were flushed")
bytes_flushed: Final = _counter(
    "forebay.bytes.flushed", "By", "Bytes of the entries that were flushed, before compression"
)
bytes_written: Final = _counter("forebay.bytes.written", "By", "Bytes of batch objects stored, after compression")
flush_duration: Final = _duration("forebay.flush.duration", "Time to encode and upload one batch")
commit_duration: Final = _duration("forebay.commit.duration", "Time of one append to the manifest, conflicts included")
appends_repeated: Final = _counter(
    "forebay.appends.repeated", "{batch}", "Batches appended again because the first append was in doubt"
)
manifest_writes: Final = _counter("forebay.manifest.writes", "{write}", "Manifest writes that were sent, by role")
manifest_conflicts: Final = _counter(
    "forebay.manifest.conflicts", "{write}", "Manifest writes that another writer came before, by role"
)
descriptors_handed_out: Final = _counter(
    "forebay.descriptors.handed_out", "{batch}", "Batch descriptors given to the caller"
)
batches_fetched: Final = _counter("forebay.batches.fetched", "{batch}", "Batches fetched and decoded")
entries_fetched: Final = _counter("forebay.entries.fetched", "{entry}", "Entries in the batches that were fetched")
bytes_fetched: Final = _counter("forebay.bytes.fetched", "By", "Bytes of batch objects read")
batches_skipped: Final = _counter(
    "forebay.batches.skipped", "{batch}", "Damaged, missing or trimmed batches that were skipped on request"
)
fetch_duration: Final = _duration("forebay.fetch.duration", "Time to read and decode one batch")
acks: Final = _counter("forebay.acks", "{batch}", "Batches acknowledged")
queue_length: Final = _gauge("forebay.queue.length", "{batch}", "Batches that wait to be read, as of the last look")
consumer_lag: Final = _gauge("forebay.consumer.lag", "s", "Age of the newest entry in the batch that was fetched last")
runtime_stage_depth: Final = _gauge(
    "forebay.runtime.stage.depth", "{item}", "Items that wait or are worked on, by stage: fetch, commit"
)
runtime_batches_in_flight: Final = _gauge(
    "forebay.runtime.batches_in_flight", "{batch}", "Batches that are admitted and cannot be acknowledged yet"
)
runtime_bytes_in_flight: Final = _gauge(
    "forebay.runtime.bytes_in_flight", "By", "Memory that admitted batches take, or are expected to take"
)
runtime_waiting: Final = _counter(
    "forebay.runtime.waiting", "s", "Time that a source waited, by reason: data, room, fetch, sink, more, store"
)
runtime_commits: Final = _counter("forebay.runtime.commits", "{commit}", "Attempts to commit, by answer of the sink")
runtime_commit_duration: Final = _duration("forebay.runtime.commit.duration", "Time of one attempt to commit")
runtime_rows: Final = _counter("forebay.runtime.rows", "{row}", "Rows committed")
runtime_dead_letters: Final = _counter(
    "forebay.runtime.dead_letters",
    "{letter}",
    "Dead letters; one holds entries of one batch that failed for one reason",
)
runtime_ack_duration: Final = _duration("forebay.runtime.ack.duration", "Time of one acknowledgement by the runtime")
runtime_lag_batches: Final = _gauge(
    "forebay.runtime.lag.batches", "{batch}", "Batches of a source that are not committed, as of the last look"
)
runtime_lag_seconds: Final = _gauge(
    "forebay.runtime.lag.seconds", "s", "Age of the oldest batch of a source that is not committed"
)
collection_deleted: Final = _counter("forebay.collection.deleted", "{object}", "Objects that the collector deleted")
collection_failed: Final = _counter(
    "forebay.collection.failed", "{object}", "Objects that the collector could not delete and will try again"
)
collection_dropped: Final = _counter("forebay.collection.dropped", "{batch}", "Batches that retention dropped unread")
collection_errors: Final = _counter(
    "forebay.collection.errors", "{run}", "Collections in the background that ended in an error"
)
collection_duration: Final = _duration("forebay.collection.duration", "Time of one collection")
events_appended: Final = _counter("forebay.events.appended", "{event}", "Events appended to an event log")
subscribers_lagged: Final = _counter(
    "forebay.events.lagged", "{subscriber}", "Subscribers of an event log that fell too far behind"
)
events_lost: Final = _counter("forebay.events.lost", "{event}", "Events of an audit trail that could not be appended")
