"""The words of the domain, as values: what a batch is called and what is known of it without fetching it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a producer attached to one call, and the entries of the batch that it covers."""

    start_index: int
    """The first entry it covers; it covers all up to the next one's `start_index`."""
    ingestion_time_ms: int
    """When the producer took the entries in, in milliseconds since 1970."""
    payload: bytes
    """Opaque to forebay."""


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """Everything a worker needs to fetch one batch without reading the manifest. Pickles; may be sent anywhere."""

    sequence: int
    """The number the manifest gave the batch: contiguous, from 0, never reused."""
    location: str
    """The batch object's key, relative to the buffer's URL."""
    metadata: tuple[Metadata, ...] = ()
    """In the order of `start_index`; empty if the producer attached none."""
    size: int | None = None
    """The object's bytes, where the manifest knows them (version 1 does not)."""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A stored batch that the manifest does not list yet."""

    location: str
    """The batch object's key, relative to the buffer's URL: never used before."""
    metadata: tuple[Metadata, ...] = ()
    """In the order of `start_index`."""
