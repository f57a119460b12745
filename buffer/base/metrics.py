"""Every metric forebay records, by the OpenTelemetry API: nothing happens unless the host installs an SDK.

| name | kind | unit | what |
| --- | --- | --- | --- |
| `forebay.batches.flushed` | counter | `{batch}` | batches encoded and handed to the store |
| `forebay.entries.flushed` | counter | `{entry}` | entries in them |
| `forebay.bytes.flushed` | counter | `By` | raw bytes of those entries |
| `forebay.bytes.written` | counter | `By` | bytes of batch objects stored |
| `forebay.flush.duration` | histogram | `s` | encode and upload of one batch |
| `forebay.commit.duration` | histogram | `s` | one manifest append, conflicts included |
| `forebay.appends.repeated` | counter | `{batch}` | batches appended again, the first append being in doubt |
| `forebay.manifest.writes` | counter | `{write}` | manifest writes sent, by `role` |
| `forebay.manifest.conflicts` | counter | `{write}` | those that found another writer there first, by `role` |
| `forebay.descriptors.handed_out` | counter | `{batch}` | descriptors given to the caller |
| `forebay.batches.fetched` | counter | `{batch}` | batches fetched and decoded |
| `forebay.entries.fetched` | counter | `{entry}` | entries in them |
| `forebay.bytes.fetched` | counter | `By` | bytes of batch objects read |
| `forebay.batches.skipped` | counter | `{batch}` | batches passed over as damaged, missing or trimmed, where asked |
| `forebay.fetch.duration` | histogram | `s` | read and decode of one batch |
| `forebay.acks` | counter | `{batch}` | batches acknowledged |
| `forebay.queue.length` | gauge | `{batch}` | batches waiting, as last seen |
| `forebay.consumer.lag` | gauge | `s` | age of the newest entry of the batch fetched last |
| `forebay.runtime.stage.depth` | gauge | `{item}` | items waiting or at work in a `stage`: fetch, commit |
| `forebay.runtime.batches_in_flight` | gauge | `{batch}` | batches admitted and not yet acknowledgeable |
| `forebay.runtime.bytes_in_flight` | gauge | `By` | memory that admitted batches take, known or expected |
| `forebay.runtime.waiting` | counter | `s` | time a source waited, by `reason`: data, room, fetch, sink, more, store |
| `forebay.runtime.commits` | counter | `{commit}` | tries of a commit, by `answer` |
| `forebay.runtime.commit.duration` | histogram | `s` | one try of a commit by the sink |
| `forebay.runtime.rows` | counter | `{row}` | rows committed |
| `forebay.runtime.dead_letters` | counter | `{letter}` | dead letters: entries of a batch put aside for one reason |
| `forebay.runtime.ack.duration` | histogram | `s` | one acknowledgement by the runtime |
| `forebay.runtime.lag.batches` | gauge | `{batch}` | batches of a source that are not committed, as last seen |
| `forebay.runtime.lag.seconds` | gauge | `s` | age of the oldest of them that was read |
| `forebay.collection.deleted` | counter | `{object}` | objects that the collector deleted |
| `forebay.collection.failed` | counter | `{object}` | objects that it could not delete and will try again |
| `forebay.collection.dropped` | counter | `{batch}` | batches that retention dropped unread |
| `forebay.collection.errors` | counter | `{run}` | collections in the background that ended in an error |
| `forebay.collection.duration` | histogram | `s` | one collection |
| `forebay.events.appended` | counter | `{event}` | events appended to an event log |
| `forebay.events.lagged` | counter | `{subscriber}` | subscribers of an event log that fell too far behind |
| `forebay.events.lost` | counter | `{event}` | events of an audit trail that could not be appended |

Each carries the attribute `buffer`, the URL of the buffer or the event log; of the runtime's, those about one source
also its `group`, and those about all sources (depth and in flight) no buffer.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import metrics

_meter = metrics.get_meter("forebay")

batches_flushed: Final = _meter.create_counter("forebay.batches.flushed", "{batch}")
entries_flushed: Final = _meter.create_counter("forebay.entries.flushed", "{entry}")
bytes_flushed: Final = _meter.create_counter("forebay.bytes.flushed", "By")
bytes_written: Final = _meter.create_counter("forebay.bytes.written", "By")
flush_duration: Final = _meter.create_histogram("forebay.flush.duration", "s")
commit_duration: Final = _meter.create_histogram("forebay.commit.duration", "s")
appends_repeated: Final = _meter.create_counter("forebay.appends.repeated", "{batch}")
manifest_writes: Final = _meter.create_counter("forebay.manifest.writes", "{write}")
manifest_conflicts: Final = _meter.create_counter("forebay.manifest.conflicts", "{write}")
descriptors_handed_out: Final = _meter.create_counter("forebay.descriptors.handed_out", "{batch}")
batches_fetched: Final = _meter.create_counter("forebay.batches.fetched", "{batch}")
entries_fetched: Final = _meter.create_counter("forebay.entries.fetched", "{entry}")
bytes_fetched: Final = _meter.create_counter("forebay.bytes.fetched", "By")
batches_skipped: Final = _meter.create_counter("forebay.batches.skipped", "{batch}")
fetch_duration: Final = _meter.create_histogram("forebay.fetch.duration", "s")
acks: Final = _meter.create_counter("forebay.acks", "{batch}")
queue_length: Final = _meter.create_gauge("forebay.queue.length", "{batch}")
consumer_lag: Final = _meter.create_gauge("forebay.consumer.lag", "s")
runtime_stage_depth: Final = _meter.create_gauge("forebay.runtime.stage.depth", "{item}")
runtime_batches_in_flight: Final = _meter.create_gauge("forebay.runtime.batches_in_flight", "{batch}")
runtime_bytes_in_flight: Final = _meter.create_gauge("forebay.runtime.bytes_in_flight", "By")
runtime_waiting: Final = _meter.create_counter("forebay.runtime.waiting", "s")
runtime_commits: Final = _meter.create_counter("forebay.runtime.commits", "{commit}")
runtime_commit_duration: Final = _meter.create_histogram("forebay.runtime.commit.duration", "s")
runtime_rows: Final = _meter.create_counter("forebay.runtime.rows", "{row}")
runtime_dead_letters: Final = _meter.create_counter("forebay.runtime.dead_letters", "{letter}")
runtime_ack_duration: Final = _meter.create_histogram("forebay.runtime.ack.duration", "s")
runtime_lag_batches: Final = _meter.create_gauge("forebay.runtime.lag.batches", "{batch}")
runtime_lag_seconds: Final = _meter.create_gauge("forebay.runtime.lag.seconds", "s")
collection_deleted: Final = _meter.create_counter("forebay.collection.deleted", "{object}")
collection_failed: Final = _meter.create_counter("forebay.collection.failed", "{object}")
collection_dropped: Final = _meter.create_counter("forebay.collection.dropped", "{batch}")
collection_errors: Final = _meter.create_counter("forebay.collection.errors", "{run}")
collection_duration: Final = _meter.create_histogram("forebay.collection.duration", "s")
events_appended: Final = _meter.create_counter("forebay.events.appended", "{event}")
subscribers_lagged: Final = _meter.create_counter("forebay.events.lagged", "{subscriber}")
events_lost: Final = _meter.create_counter("forebay.events.lost", "{event}")
