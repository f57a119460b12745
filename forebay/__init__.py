"""forebay: an ingestion buffer on object storage.

The names that most programs need are here. More are in `forebay.buffer`, `forebay.runtime`, `forebay.gc` and
`forebay.testing`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Python started in a checkout's top folder finds this folder before the installed package; the subpackages are beside
# it there, not in it (rfcs/0002).
if not Path(__file__).with_name("buffer").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from forebay.buffer.base.errors import (
        Backpressure,
        Closed,
        Corrupt,
        Denied,
        Fenced,
        ForebayError,
        InvalidInput,
        NotFound,
        NotReady,
        StoreError,
        Timeout,
        Trimmed,
        Unavailable,
        Unknown,
        Unsupported,
    )
    from forebay.buffer.consumer import Consumer
    from forebay.buffer.coordinator import Durability
    from forebay.buffer.either.holds import hold
    from forebay.buffer.either.scan import Scan, scan
    from forebay.buffer.format.model import BatchDescriptor, Metadata
    from forebay.buffer.producer import Producer
    from forebay.buffer.read.ahead import ReadAhead
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.store import open_store
    from forebay.buffer.write.settings import ProducerLimits

__all__ = [
    "Backpressure",
    "Batch",
    "BatchDescriptor",
    "Closed",
    "Consumer",
    "Corrupt",
    "Denied",
    "Durability",
    "Fenced",
    "ForebayError",
    "InvalidInput",
    "Metadata",
    "NotFound",
    "NotReady",
    "Producer",
    "ProducerLimits",
    "ReadAhead",
    "Scan",
    "StoreError",
    "Timeout",
    "Trimmed",
    "Unavailable",
    "Unknown",
    "Unsupported",
    "hold",
    "open_store",
    "scan",
]

_HOMES = {
    "Batch": "buffer.read.fetch",
    "BatchDescriptor": "buffer.format.model",
    "Consumer": "buffer.consumer",
    "Durability": "buffer.coordinator",
    "Metadata": "buffer.format.model",
    "Producer": "buffer.producer",
    "ProducerLimits": "buffer.write.settings",
    "ReadAhead": "buffer.read.ahead",
    "Scan": "buffer.either.scan",
    "hold": "buffer.either.holds",
    "open_store": "buffer.store",
    "scan": "buffer.either.scan",
}
"""Where names are that are no errors. They are loaded when asked for: `forebay --help` needs none of them."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"forebay.{_HOMES.get(name, 'buffer.base.errors')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
