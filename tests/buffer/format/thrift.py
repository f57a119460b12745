"""Thrift's compact protocol, enough to take a Parquet footer apart, change it, and put it together again.

A struct is a dict from a field's number to its type and value, a list a pair of the type and the values.
"""

from __future__ import annotations

from typing import Any

BOOLS, BYTE, INTS, DOUBLE, BINARY, LIST, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 9, 12
I32, I64 = 5, 6
Struct = dict[int, tuple[int, Any]]


class Reader:
    """Reads one struct."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while header := self.take(1)[0]:
            number = number + (header >> 4) if header >> 4 else self.zigzag()
            found[number] = header & 15, self.value(header & 15)
        return found

    def value(self, kind: int) -> Any:
        if kind in BOOLS:
            return None
        if kind in INTS:
            return self.zigzag()
        if kind == BINARY:
            return self.take(self.varint())
        if kind == LIST:
            header = self.take(1)[0]
            size = header >> 4 if header >> 4 < 15 else self.varint()
            return header & 15, [self.take(1) if header & 15 in BOOLS else self.value(header & 15) for _ in range(size)]
        assert kind in {BYTE, DOUBLE, STRUCT}, kind
        return self.struct() if kind == STRUCT else self.take(1 if kind == BYTE else 8)


def write_varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def write_struct(struct: Struct) -> bytes:
    out, before = b"", 0
    for number, (kind, value) in sorted(struct.items()):
        step = number - before
        out += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + write_varint(number << 1)
        out += write_value(kind, value)
        before = number
    return out + b"\0"


def write_value(kind: int, value: Any) -> bytes:
    if kind in BOOLS:
        return value or b""
    if kind in INTS:
        return write_varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == BINARY:
        return write_varint(len(value)) + bytes(value)
    if kind == LIST:
        of, values = value
        size = len(values)
        header = bytes([size << 4 | of]) if size < 15 else bytes([0xF0 | of]) + write_varint(size)
        return header + b"".join(write_value(of, each) for each in values)
    return write_struct(value) if kind == STRUCT else bytes(value)


def read_footer(file: bytes) -> Struct:
    """Return a Parquet file's footer."""
    size = int.from_bytes(file[-8:-4], "little")
    return Reader(file, len(file) - 8 - size).struct()


def with_footer(file: bytes, footer: Struct) -> bytes:
    """Return a Parquet file with another footer."""
    size = int.from_bytes(file[-8:-4], "little")
    data = write_struct(footer)
    return file[: len(file) - 8 - size] + data + len(data).to_bytes(4, "little") + b"PAR1"
