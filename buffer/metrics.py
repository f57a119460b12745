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
| `forebay.fetch.duration` | histogram | `s` | read and decode of one batch |
| `forebay.acks` | counter | `{batch}` | batches acknowledged |
| `forebay.queue.length` | gauge | `{batch}` | batches waiting, as last seen |
| `forebay.consumer.lag` | gauge | `s` | age of the newest entry of the batch fetched last |
| `forebay.collection.deleted` | counter | `{object}` | objects that the collector deleted |
| `forebay.collection.failed` | counter | `{object}` | objects that it could not delete and will try again |
| `forebay.collection.dropped` | counter | `{batch}` | batches that retention dropped unread |
| `forebay.collection.errors` | counter | `{run}` | collections in the background that ended in an error |
| `forebay.collection.duration` | histogram | `s` | one collection |

Each carries the attribute `buffer`, the buffer's URL.
"""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("forebay")

batches_flushed = _meter.create_counter("forebay.batches.flushed", "{batch}")
entries_flushed = _meter.create_counter("forebay.entries.flushed", "{entry}")
bytes_flushed = _meter.create_counter("forebay.bytes.flushed", "By")
bytes_written = _meter.create_counter("forebay.bytes.written", "By")
flush_duration = _meter.create_histogram("forebay.flush.duration", "s")
commit_duration = _meter.create_histogram("forebay.commit.duration", "s")
appends_repeated = _meter.create_counter("forebay.appends.repeated", "{batch}")
manifest_writes = _meter.create_counter("forebay.manifest.writes", "{write}")
manifest_conflicts = _meter.create_counter("forebay.manifest.conflicts", "{write}")
descriptors_handed_out = _meter.create_counter("forebay.descriptors.handed_out", "{batch}")
batches_fetched = _meter.create_counter("forebay.batches.fetched", "{batch}")
entries_fetched = _meter.create_counter("forebay.entries.fetched", "{entry}")
bytes_fetched = _meter.create_counter("forebay.bytes.fetched", "By")
fetch_duration = _meter.create_histogram("forebay.fetch.duration", "s")
acks = _meter.create_counter("forebay.acks", "{batch}")
queue_length = _meter.create_gauge("forebay.queue.length", "{batch}")
consumer_lag = _meter.create_gauge("forebay.consumer.lag", "s")
collection_deleted = _meter.create_counter("forebay.collection.deleted", "{object}")
collection_failed = _meter.create_counter("forebay.collection.failed", "{object}")
collection_dropped = _meter.create_counter("forebay.collection.dropped", "{batch}")
collection_errors = _meter.create_counter("forebay.collection.errors", "{run}")
collection_duration = _meter.create_histogram("forebay.collection.duration", "s")
