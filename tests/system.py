"""Which tests `make test-fast` leaves out."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent

SYSTEM = [
    HERE / name
    for name in (
        "buffer/coordinator/test_interrupts.py",
        "buffer/eventlog/test_processes.py",
        "buffer/eventlog/test_subscription_model.py",
        "buffer/eventlog/test_subscriptions.py",
        "buffer/format/test_batch_hostile.py",
        "buffer/format/test_parquet_bombs.py",
        "buffer/manifest/test_head_hostile.py",
        "buffer/manifest/test_lasting_writers.py",
        "buffer/manifest/test_manifest_hostile.py",
        "buffer/manifest/test_numbers_hostile.py",
        "buffer/store/test_choice.py",
        "buffer/store/test_memory.py",
        "buffer/test_interrupts.py",
        "buffer/test_producer_typed.py",
        "buffer/test_read_ahead.py",
        "cli/test_demo.py",
        "cli/test_dry_run.py",
        "cli/test_dev.py",
        "cli/test_doctor.py",
        "cli/test_iceberg.py",
        "cli/test_produce_typed.py",
        "cli/test_run.py",
        "cli/test_trouble.py",
        "cli/test_typed.py",
        "conformance",
        "gc/test_command.py",
        "gc/test_crashes.py",
        "gc/test_full_disk.py",
        "gc/test_stores.py",
        "mutations",
        "runtime/sinks/test_iceberg_orphans.py",
        "runtime/sinks/test_sink_buffer.py",
        "runtime/sinks/test_sink_delta.py",
        "runtime/sinks/test_sink_delta_schema.py",
        "runtime/sinks/test_sink_iceberg.py",
        "runtime/sinks/test_sink_iceberg_schema.py",
        "runtime/sinks/test_table_schema.py",
        "runtime/spark",
        "runtime/test_letter_replay.py",
        "runtime/test_prometheus.py",
        "runtime/test_runtime_crashes.py",
        "runtime/test_sink_poison.py",
        "scenarios",
        "security",
        "test_benchmarks.py",
        "test_docs.py",
        "test_examples.py",
        "test_packaging.py",
        "testing/test_pytest_fixtures.py",
        "ui/test_page.py",
        "ui/test_real_parts.py",
    )
]
"""Tests of the whole system, and slow ones: with servers, Spark, a browser or other processes, or over 2 s in all."""
