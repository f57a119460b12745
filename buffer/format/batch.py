"""The batch format: many entries in one object (rfcs/0003).

    batch  = block footer
    block  = ( len:u32, bytes )*                              version 1: byte-compatible with OpenData Buffer
           | bytes*, len:u32*                                 version 2: what native buffers hold
    footer = compression:u8, record_count:u32, version:u16    7 bytes; compression 0 is none, 1 is zstd

A block is compressed as a whole, or not. All integers are little-endian. `block_v1` and `block_v2` turn entries into a
block and back at native speed; what is here is the footer, the compression, and everything that bytes from a stranger
could get wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from itertools import chain
from operator import countOf
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from forebay.buffer.base.errors import Corrupt, InvalidInput, damaged
from forebay.buffer.format import block_v1, block_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.format.block_v2 import Lengths
    from forebay.buffer.store.base import Data

Compression: TypeAlias = Literal["none", "zstd"]
"""How a block is stored."""

Version: TypeAlias = Literal[1, 2]
"""How a block is laid out."""

FOOTER: Final = struct.Struct("<BIH")
_CODES: Final[dict[str, int]] = {"none": 0, "zstd": 1}

DEFAULT_LEVEL: Final = 3
LEVELS: Final = range(-7, 23)
"""zstd's levels: below zero are its fast ones, 0 means its own default."""

DEFAULT_MAX_RAW_BYTES: Final = 4 << 30
"""The largest block, uncompressed, that is written or read unless the caller says otherwise."""

MAX_ENTRY_BYTES: Final = 2**31 - 16
"""The largest entry: with its length it must fit one page, and Arrow's `binary` ends there too."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# zstd's densest block says "this byte, 128 KiB of it" in four bytes. No stream, whatever its header claims, holds more.
_ZSTD_MAX_RATIO: Final = (128 << 10) // 4
_USUAL_RATIO: Final = 8
# What a frame of incompressible data takes at most beside a 128th of its content.
_ZSTD_FRAME_BYTES: Final = 1024
_WINDOW_LOG: Final = 19
_PIECE_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 64 << 10
_ENTRIES_AT_ONCE: Final = 4096
_BYTES_LIKE: Final = bytes | bytearray | memoryview


class Entries(Sequence[bytes]):
    """The entries as `bytes`, each made when it is asked for."""

    __slots__ = ("arrow",)

    def __init__(self, arrow: pa.ChunkedArray) -> None:
        self.arrow: Final = arrow

    def __len__(self) -> int:
        return len(self.arrow)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, int):
            entry: bytes = self.arrow[index].as_py()
            return entry
        start, stop, step = index.indices(len(self))
        if step == 1:
            return Entries(self.arrow.slice(start, max(0, stop - start)))
        return [self[i] for i in range(start, stop, step)]

    def __iter__(self) -> Iterator[bytes]:
        # A generator that yields each entry takes as long again as it takes to make them.
        return chain.from_iterable(
            chunk.slice(start, _ENTRIES_AT_ONCE).to_pylist()
            for chunk in self.arrow.chunks
            for start in range(0, len(chunk), _ENTRIES_AT_ONCE)
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Entries):
            return bool(self.arrow.equals(other.arrow))
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as for a list

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """What a batch holds.

    Its memory is its own: the object it was decoded from may go, or change. Only where that is uncompressed, of version
    2 and read-only, the entries stand on it, and keep it: then what is behind a read-only view must not change either.
    """

    chunks: tuple[pa.BinaryArray, ...]
    """The entries as Arrow `binary` arrays in order, each below 2 GiB: one of them, unless the batch is larger."""
    raw_bytes: int
    """The size of the uncompressed block: 4 bytes and its length for each entry."""

    @property
    def arrow(self) -> pa.BinaryArray | pa.ChunkedArray:
        """The entries as one Arrow `binary` array, or from 2 GiB on as a `ChunkedArray` of them.

        The type is always `binary`, whose 32-bit offsets end at 2 GiB, and never `large_binary`: Spark refuses that,
        and code that meets another type only in its largest batches fails only there. `ChunkedArray` has the same
        methods for nearly every use; `chunks` is the same at any size.
        """
        return self.chunks[0] if len(self.chunks) == 1 else pa.chunked_array(self.chunks, pa.binary())

    @property
    def entries(self) -> Entries:
        """The entries as a sequence of `bytes`, each made when it is asked for."""
        return Entries(pa.chunked_array(self.chunks, pa.binary()))

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __repr__(self) -> str:
        return f"DecodedBatch({len(self)} entries, {self.raw_bytes} raw bytes)"


def raw_size(entries: Sequence[bytes] | pa.Array | pa.ChunkedArray) -> int:
    """Return the size of the block these entries make before compression: 4 bytes and its length for each."""
    if isinstance(entries, pa.ChunkedArray):
        return sum(map(raw_size, entries.chunks))
    if isinstance(entries, pa.Array):
        return 4 * len(entries) + int(entries.total_values_length)
    return 4 * len(entries) + sum(map(len, entries))


def encode_batch(
    entries: Sequence[bytes] | pa.Array | pa.ChunkedArray,
    compression: Compression = "zstd",
    level: int = DEFAULT_LEVEL,
    *,
    version: Version = 2,
    max_raw_bytes: int = DEFAULT_MAX_RAW_BYTES,
) -> bytes | memoryview:
    """Return the batch object that holds `entries`, ready to be put into a store.

    Takes a list of bytes, or an Arrow `binary` or `large_binary` array, chunked or not. zstd frames carry their content
    size, and in version 1 a checksum; the checksum of a version 2 object is in the manifest. Arrow and zstd do the
    work without the interpreter's lock. What OpenData Buffer is to read as well must be of `version` 1.

    Raises:
        InvalidInput: an entry is null, is not bytes or is too large; they are more than `max_raw_bytes` in all (which
            readers would refuse); or there is no such compression, level or version.
    """
    if version not in (1, 2):
        raise InvalidInput(f"the version of a batch must be 1 or 2, not {version!r}")
    values = to_large_binary(entries)
    size = raw_size(values)
    if size > max_raw_bytes:
        raise InvalidInput(
            f"{len(values)} entries make a block of {size} bytes; the most is {max_raw_bytes}: split them"
        )
    found = _check_lengths(values)
    if version == 1:
        interleaved = memoryview(block_v1.write_block(values, found.cast(pa.uint32()))).cast("B")
        return encode_blocks([interleaved[:size]], len(values), compression, level, version=1)
    lengths = memoryview(block_v2.lengths_of(values)).cast("B")
    block = block_v1.join_buffers(block_v2.bytes_of(values), lengths)
    return encode_blocks([memoryview(block).cast("B")], len(values), compression, level)


def write_block(data: bytes | memoryview, lengths: Lengths) -> memoryview:
    """Return the version 1 block of the entries whose bytes are `data`, one entry after the other.

    Blocks one after the other are the block of all their entries.
    """
    values = block_v2.to_array(memoryview(data), lengths)
    block = block_v1.write_block(values, block_v2.column_of(lengths))
    return memoryview(block).cast("B")[: len(data) + 4 * len(lengths)]


def encode_blocks(
    blocks: list[memoryview],
    count: int,
    compression: Compression = "zstd",
    level: int = DEFAULT_LEVEL,
    *,
    version: Version = 2,
) -> memoryview:
    """Return the batch object of `count` entries, whose block is in the pieces: they are taken out of the list.

    One piece is compressed in one go, which is a fifth faster, and stays in memory until that is done. Of several,
    there is never more in memory than the part of the object that is made and the pieces that are not in it yet.
    """
    check_compression(compression, level)
    footer = FOOTER.pack(_CODES[compression], count, version)
    compressor = make_compressor(level, version) if compression == "zstd" else None
    if compressor is not None and len(blocks) == 1:
        # A stream in memory that owns its bytes alone makes room for the footer where they are; `+` would copy them.
        whole = BytesIO(compressor.compress(blocks.pop()))
        whole.seek(0, SEEK_END)
        whole.write(footer)
        # No copy. With `getbuffer`, Python 3.12 crashes when it collects a cycle that holds the view.
        return memoryview(whole.getvalue())
    size = sum(map(len, blocks))
    # Room for the worst case: pages that are never written to are never there. To collect parts and join them at the
    # end took up to half as long again (rfcs/0003).
    pool = pa.default_memory_pool()
    batch = memoryview(pa.allocate_buffer(size + size // 128 + _ZSTD_FRAME_BYTES + len(footer))).cast("B")
    # Large pieces, because each costs a wait for the interpreter's lock.
    zstd = None if compressor is None else compressor.chunker(size=size, chunk_size=_PIECE_BYTES)
    piece: bytes | memoryview
    end = taken = 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        taken += len(block)
        for piece in (block,) if zstd is None else zstd.compress(block):
            batch[end : end + len(piece)] = piece
            end += len(piece)
        block = piece = memoryview(b"")  # or it would stay until the next one is there
        if end > taken // 2:
            pool.release_unused()  # the batch hardly shrinks, and needs the room
    rest = () if zstd is None else zstd.finish()  # type: ignore[no-untyped-call]  # zstandard forgot its type
    for piece in chain(rest, (footer,)):
        batch[end : end + len(piece)] = piece
        end += len(piece)
    return batch[:end]


def shrinks(block: memoryview) -> bool:
    """Return whether zstd makes half of a block or less, going by how it begins."""
    sample = block[:_SAMPLE_BYTES]
    return 2 * len(make_compressor(1).compress(sample)) <= len(sample)


def check_compression(compression: str, level: int) -> None:
    """Raise `InvalidInput` if there is no such compression or level."""
    if compression not in _CODES:
        raise InvalidInput(f"compression must be one of {', '.join(_CODES)}; got {compression!r}")
    if type(level) is not int or level not in LEVELS:
        raise InvalidInput(f"the level of zstd must be a whole number from {LEVELS[0]} to {LEVELS[-1]}, not {level!r}")


def make_compressor(level: int = DEFAULT_LEVEL, version: Version = 2) -> zstandard.ZstdCompressor:
    """Return a compressor for blocks of a version.

    Frames of version 1 carry a checksum of their content, since nothing else vouches for it. The manifest that lists
    batches of version 2 has a checksum of the whole object, which readers compare before they decompress. A second one
    would take a tenth of their time.

    On the fast levels it looks back half a MiB, as level 1 does, and not the two that zstd gives level 3: then as many
    of them as there are processors fit the caches they share, which saves about a tenth of the time, and up to a
    quarter of the readers'. Objects are as large where events repeat their neighbours (rfcs/0003 has the rest).
    """
    window = _WINDOW_LOG if level <= DEFAULT_LEVEL else 0  # 0 is zstd's own choice
    # guard: write a checksum into version 1 zstd frames
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(
            compression_level=level, window_log=window, write_checksum=version == 1, write_content_size=True
        )
    )


def _check_lengths(values: pa.LargeBinaryArray) -> pa.Int64Array:
    """Return each entry's length."""
    lengths = pc.binary_length(values)
    if values.total_values_length > MAX_ENTRY_BYTES:
        longest = pc.max(lengths).as_py()
        if longest > MAX_ENTRY_BYTES:
            raise InvalidInput(f"an entry is {longest} bytes long; the most is {MAX_ENTRY_BYTES}")
    return lengths


def to_large_binary(entries: Sequence[bytes] | pa.Array | pa.ChunkedArray) -> pa.LargeBinaryArray:
    """Return the entries as one array whose 64-bit offsets do not care how many bytes there are.

    Raises:
        InvalidInput: an entry is null or not bytes, or they are too many for a batch.
    """
    if isinstance(entries, Entries):
        entries = entries.arrow
    if isinstance(entries, pa.ChunkedArray | pa.Array):
        if entries.type not in (pa.binary(), pa.large_binary()):
            raise InvalidInput(
                f"entries must be an Arrow binary or large_binary array; got {entries.type}: cast it first"
            )
        values = entries.cast(pa.large_binary())
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    else:
        if not isinstance(entries, Sequence) or isinstance(entries, _BYTES_LIKE | str):
            raise InvalidInput(
                f"entries must be a list of bytes or an Arrow binary array; got {type(entries).__name__}"
            )
        # Arrow would take text and quietly encode it. Counting is the cheapest look at every type.
        if countOf(map(type, entries), bytes) != len(entries):
            wrong = {kind.__name__ for kind in set(map(type, entries)) if not issubclass(kind, _BYTES_LIKE)}
            if wrong:
                raise InvalidInput(f"every entry must be bytes; found {', '.join(sorted(wrong))}")
        values = pa.array(entries, pa.large_binary())
    if values.null_count:
        raise InvalidInput(f"{values.null_count} of {len(values)} entries are null; every entry must be bytes")
    if len(values) >= 2**32:
        raise InvalidInput(f"a batch holds at most {2**32 - 1} entries; got {len(values)}")
    return values


def decode_batch(
    data: Data | pa.Buffer, *, location: str = "", max_raw_bytes: int = DEFAULT_MAX_RAW_BYTES
) -> DecodedBatch:
    """Return the entries of a batch object.

    zstd frames that do not tell their content size decode as well, a little slower, and so do several frames one after
    the other, which is what concatenated zstd means everywhere else. `location` is for messages. `max_raw_bytes` bounds
    the uncompressed block, and with it the memory used (two to three times that), before any of it is set aside.
    Damage within the entries shows in version 1 with zstd; otherwise compare the object's CRC32C with the manifest's
    first, as `FetchHandle` does.

    Raises:
        Corrupt: the bytes are not a batch, or one larger than `max_raw_bytes`.
    """
    return _Decoder(location, max_raw_bytes).decode(memoryview(data).cast("B"))


@dataclass(frozen=True, slots=True)
class _Decoder:
    location: str
    max_raw_bytes: int

    def decode(self, data: memoryview) -> DecodedBatch:
        if len(data) < FOOTER.size:
            raise self._corrupt(f"{len(data)} bytes, which is less than the {FOOTER.size} of a footer")
        block = data[: -FOOTER.size]
        code, count, version = FOOTER.unpack(data[-FOOTER.size :])
        if version not in (1, 2):
            raise self._corrupt(f"version {version}; this reader knows 1 and 2")
        if code == _CODES["none"]:
            if version == 1:
                return self._split(block, count)
            # guard: copy a mutable buffer before entries refer to it
            return self._read_columns(pa.py_buffer(block if block.readonly else bytes(block)), count)
        if code == _CODES["zstd"]:
            return self._decode_zstd(block, count, version)
        raise self._corrupt(f"compression code {code}; this reader knows 0 (none) and 1 (zstd)")

    def _decode_zstd(self, block: memoryview, count: int, version: Version) -> DecodedBatch:
        if bytes(block[:4]) != _ZSTD_MAGIC:
            raise self._corrupt("the footer says zstd, but the block does not start as zstd does")
        try:
            size = zstandard.frame_content_size(block)  # of the first frame; -1 where it is not told
        except zstandard.ZstdError as error:
            raise self._corrupt(f"bad zstd frame header ({error})") from error
        limit = min(self.max_raw_bytes, len(block) * _ZSTD_MAX_RATIO)
        if size > limit:  # guard: bound the claimed size of a zstd frame
            raise self._corrupt(
                f"its zstd frame claims {size} bytes; {len(block)} compressed bytes and max_raw_bytes allow {limit}"
            )
        # Nothing is asked of Arrow that it does not so much as look at: that, too, is left to the stream.
        if 0 < 4 * count <= size:
            try:
                if version == 2:
                    return self._read_columns(pa.Codec("zstd").decompress(block, decompressed_size=size), count)
                if max(size, len(block)) <= block_v1.MAX_PAGE_BYTES:
                    values = block_v1.read_page(block, count, codec=block_v1.ZSTD, raw_size=size)
                    return self._checked((values,), size)
            except (pa.ArrowException, OSError) as error:
                # Damaged, or the first of several frames, which only a stream finds out.
                _raise_if_out_of_memory(error)
        whole = self._decompress(block, limit)
        return self._split(memoryview(whole).cast("B"), count) if version == 1 else self._read_columns(whole, count)

    def _read_columns(self, block: pa.Buffer, count: int) -> DecodedBatch:
        """Return the entries of an uncompressed block of version 2, which stand on it."""
        self._check_room(block.size, count)
        try:
            return DecodedBatch(tuple(block_v2.read_columns(block, count)), block.size)
        except pa.ArrowInvalid as error:
            raise self._corrupt(f"the block does not hold {count} entries ({error})") from error

    def _decompress(self, block: memoryview, limit: int) -> pa.Buffer:
        """Return what the frames hold, read as a stream because how much that is cannot be known beforehand."""
        pieces: list[pa.Buffer] = []
        size, room = 0, min(limit, _USUAL_RATIO * len(block))
        try:
            stream = pa.CompressedInputStream(pa.BufferReader(block), "zstd")
            while (piece := stream.read_buffer(room + 1)).size:  # one more than may be there: that much is too much
                size += piece.size
                if size > limit:
                    raise self._corrupt(f"its zstd block is longer than the {limit} bytes that max_raw_bytes allows")
                pieces.append(piece)
                room = min(limit - size, size)
        except (pa.ArrowException, OSError) as error:
            _raise_if_out_of_memory(error)
            raise self._corrupt(f"bad zstd block ({error})") from error
        return pieces[0] if len(pieces) == 1 else block_v1.join_buffers(*pieces)

    def _split(self, block: memoryview, count: int) -> DecodedBatch:
        """Return the entries of an uncompressed block of version 1."""
        size = len(block)
        self._check_room(size, count)
        chunks = []
        try:
            while len(block) > block_v1.MAX_PAGE_BYTES and count:
                chunk = self._first_page(block, count)
                chunks.append(chunk)
                block = block[raw_size(chunk) :]
                count -= len(chunk)
            if count or not chunks:
                raw = min(len(block), block_v1.MAX_PAGE_BYTES)
                chunks.append(block_v1.read_page(block[:raw], count, codec=block_v1.UNCOMPRESSED, raw_size=raw))
        except (pa.ArrowException, OSError) as error:
            _raise_if_out_of_memory(error)
            raise self._corrupt(f"the block does not hold {count} entries ({error})") from error
        return self._checked(tuple(chunks), size)

    def _check_room(self, size: int, count: int) -> None:
        if size > self.max_raw_bytes:
            raise self._corrupt(f"a block of {size} bytes; max_raw_bytes allows {self.max_raw_bytes}")
        if 4 * count > size:  # guard: bound the entry count by the block size
            raise self._corrupt(f"the footer says {count} entries; a block of {size} bytes has no room for them")

    def _first_page(self, block: memoryview, count: int) -> pa.BinaryArray:
        """Return the first entries of a block that is more than one page: as many as a guess or two finds to fit."""
        page = block[: block_v1.MAX_PAGE_BYTES]
        rows = max(1, count * len(page) // len(block))
        while True:
            try:
                return block_v1.read_page(page, rows, codec=block_v1.UNCOMPRESSED, raw_size=len(page))
            except (pa.ArrowException, OSError):
                if rows == 1:
                    raise
                rows //= 2

    def _checked(self, chunks: tuple[pa.BinaryArray, ...], size: int) -> DecodedBatch:
        """Return the batch if its entries are the whole block: Arrow does not mind what follows them."""
        used = sum(map(raw_size, chunks))
        if used != size:  # guard: refuse bytes after the last entry
            raise self._corrupt(f"{size - used} bytes follow the last entry")
        return DecodedBatch(chunks, size)

    def _corrupt(self, found: str) -> Corrupt:
        return damaged(f"batch {self.location or '(no location given)'} is corrupt: {found}")


def _raise_if_out_of_memory(error: Exception) -> None:
    if isinstance(error, MemoryError):
        raise error
