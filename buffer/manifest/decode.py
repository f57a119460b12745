"""Decodes the head and the objects that it refers to, and checks them for contradictions."""

from __future__ import annotations

from forebay.buffer.base.checks import MOST, check_name
from forebay.buffer.base.errors import InvalidInput, Unsupported, damaged
from forebay.buffer.base.names import is_ulid
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.manifest.head import KNOWN_FEATURES, WRITER_BUCKETS, Head, bucket_of, is_lasting
from forebay.buffer.manifest.nodes import Node, Ref, WriterNode
from forebay.buffer.manifest.schema_history import check_history


def read_head(data: bytes | memoryview, location: str) -> Head:
    """Return the head that the bytes hold.

    Raises:
        Corrupt: they are damaged, or contradict themselves.
        Unsupported: the head needs a release that knows more.
    """
    head = unpack(data, Head, location)
    unknown = set(head.required_features) - KNOWN_FEATURES
    if unknown:  # guard: refuse unknown required features
        raise Unsupported(f"{location} needs {', '.join(sorted(unknown))}, which this release does not know: upgrade")
    numbers = (head.revision, head.next_sequence, head.next_record, head.dropped, head.epoch)
    floors = (head.gc_floor, head.reference_floor, head.swept)
    if not all(map(is_ulid, floors)) or min(numbers) < 0 or max(numbers) > MOST:
        raise damaged(f"{location}: its numbers {numbers} or its floors {floors} cannot be")
    at = head.refs[0].first_sequence if head.refs else head.tail_start
    if not 0 <= at <= head.first_sequence <= head.next_sequence:
        raise damaged(f"{location}: it retains from {head.first_sequence}, but lists from {at} to {head.next_sequence}")
    _check_chain(head.refs, at, head.tail_start, location)
    _check_names(head, location)
    check_history(head.schemas, head.required_features, location)
    return head


def read_node(data: bytes | memoryview, location: str) -> Node:
    """Return the node that the bytes hold.

    Raises:
        Corrupt: they are damaged, or contradict themselves.
    """
    node = unpack(data, Node, location)
    if node.level < 0 or bool(node.entries) != (node.level == 0) or bool(node.refs) == (node.level == 0):
        raise damaged(f"{location}: {len(node.entries)} entries and {len(node.refs)} references at level {node.level}")
    if node.refs:
        # A reference to its own level could lead back here, and a reader would go round for ever.
        # guard: an index node may refer only to the level below
        if any(ref.level != node.level - 1 for ref in node.refs):
            raise damaged(f"{location}: a node of level {node.level} refers to another level than that below it")
        _check_chain(node.refs, node.first_sequence, node.refs[-1].end, location)
    return node


def read_writer_node(data: bytes | memoryview, location: str) -> WriterNode:
    """Return the lasting writers that the bytes hold.

    Raises:
        Corrupt: they are damaged, or contradict themselves.
    """
    node = unpack(data, WriterNode, location)
    for known, number in node.numbers.items():
        if not is_lasting(known) or bucket_of(known) != node.bucket or not 0 <= number <= MOST:
            raise damaged(f"{location}: writer {known!r} with number {number} cannot be in bucket {node.bucket}")
    return node


def _check_names(head: Head, location: str) -> None:
    """Raise `Corrupt` if a name that becomes part of a key, of a cursor or of what a sink writes, could lead astray."""
    try:
        check_name(head.buffer_id, "a buffer's id")
        for name, group in head.groups.items():
            check_name(name, "a group's name")
            check_name(group.generation, "a group's generation")
    except InvalidInput as error:
        raise damaged(f"{location}: {error}") from error
    for number, bucket in head.writer_buckets.items():
        if not 0 <= number < WRITER_BUCKETS or not is_ulid(bucket.name):
            raise damaged(f"{location}: bucket {number} of its writers refers to {bucket.name!r}, which cannot be")


def _check_chain(refs: tuple[Ref, ...], start: int, end: int, location: str) -> None:
    at = start
    for ref in refs:
        if ref.first_sequence != at or ref.count < 1 or ref.level < 0:
            raise damaged(f"{location}: a reference to {ref.name} stands for {ref.first_sequence}; expected {at}")
        at = ref.end
    if at != end:
        raise damaged(f"{location}: its references end at {at}; expected {end}")
