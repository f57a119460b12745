"""The explorer of `test_explorer.py`: every interleaving of a few processes on one version 2 head.

The states are explored breadth first. Transitions are single requests to the store (a read, a put, a conditional write,
a delete), and the real methods of `Head` decide what is written; only the loops around them are written anew here, as
small state machines that can be copied. `open_format` is run as it is (`scripted.py`). In each reachable state the
invariants of rfcs/0005 and rfcs/0010 are asserted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from scripted import open_rows
from ulid import ULID

from forebay.buffer.base.errors import Fenced, Unsupported
from forebay.buffer.base.names import ulid_in
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.format.schema import decode_schema
from forebay.buffer.manifest import BelowFloor, Head
from forebay.buffer.manifest.decode import read_head, read_node, read_writer_node
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head_fields import Bucket, Writer
from forebay.buffer.manifest.nodes import Node, NodeNeeded, WriterNode
from forebay.buffer.manifest.schemas import Schemas, schema_key
from forebay.buffer.store.base import Applied, InDoubt, NotApplied, StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AHEAD = 1000
"""Names of clocks that are ahead start here; the collector's clock never gets as far."""
COLLECTED_UP_TO = 500

ID = pa.field("id", pa.int64(), nullable=False)
SCHEMAS = {
    "maker": pa.schema([ID]),
    "evolver1": pa.schema([ID, pa.field("a", pa.string())]),
    "evolver2": pa.schema([ID, pa.field("b", pa.string())]),
}
"""What the rows of each producer are in that opens a buffer."""
STORED = MemoryStore("memory://explored")
FIRST, SECOND = (Schemas(STORED, clock=ManualClock()).save(SCHEMAS[kind]) for kind in ("maker", "evolver1"))
ENDED = ("done", "refused")


def ulid(number: int) -> str:
    return str(ULID.from_int(number))


class Actor(NamedTuple):
    """A process: what it is, what it does next, and what it remembers."""

    kind: str
    at: str
    seen: bytes = b""
    """The head as last read."""
    memory: tuple[Any, ...] = ()


@dataclass(frozen=True)
class State:
    """The store, the network and all processes at one moment."""

    head: bytes
    objects: frozenset[tuple[str, bytes]]
    actors: tuple[Actor, ...]
    log: tuple[tuple[str, bytes, int | None], ...]
    """Location, payload and schema version of everything ever listed, by sequence."""
    deleted: frozenset[str] = frozenset()
    flying: tuple[int, bytes] | None = None
    """A conditional write that is still on its way: the revision it expects, and what it writes."""
    faults_left: int = 1

    def become(self, number: int, actor: Actor, **changes: Any) -> State:
        actors = (*self.actors[:number], actor, *self.actors[number + 1 :])
        return replace(self, actors=actors, **changes)

    def with_head(self, data: bytes) -> dict[str, Any]:
        """The changes that a write of the head makes; entries are added one by one."""
        new = decode(data)
        assert new.next_sequence <= len(self.log) + 1
        if new.next_sequence == len(self.log):
            return {"head": data}
        entry = new.tail[-1]
        return {"head": data, "log": (*self.log, logged(entry))}


def logged(entry: NewBatch) -> tuple[str, bytes, int | None]:
    return entry.location, entry.metadata[0].payload, entry.schema


@cache
def decode(data: bytes) -> Head:
    return read_head(data, "manifest")


def mint(state: State, above: str, *, ahead: bool) -> str:
    """A name never used: the lowest above the floor, as of a clock far behind, or one of a clock ahead."""
    used = {name for name, _ in state.objects} | state.deleted
    number = AHEAD if ahead else int(ULID.from_str(above)) + 1
    while any(ulid(number) in name for name in used):
        number += 1
    return ulid(number)


def write(
    state: State, number: int, new: Head, done: Actor, doubt: Actor, *, conflict: Actor | None = None
) -> Iterator[State]:
    """A conditional write on what the actor has seen: as it should go, and in every way that it can go wrong.

    `conflict` is who was told that another came first, if it is not the same to him as to get no answer.
    """
    expected, data = decode(state.actors[number].seen).revision, new.to_bytes()
    applies = decode(state.head).revision == expected
    changes = state.with_head(data) if applies else {}
    yield state.become(number, done._replace(seen=data) if applies else conflict or doubt, **changes)
    if state.faults_left == 0:
        return
    spent = {"faults_left": state.faults_left - 1}
    yield state.become(number, doubt, **spent)  # the request is lost
    yield state.become(number, doubt, flying=(expected, data), **spent)  # it lands later
    if applies:
        yield state.become(number, doubt, **changes, **spent)  # the answer is lost
        twice = {**changes, **spent, "flying": (expected, data)}
        yield state.become(number, done._replace(seen=data), **twice)


def step_writer(state: State, number: int) -> Iterator[State]:
    """Upload, look, perhaps seal, append; find out; upload again if refused."""
    actor = state.actors[number]
    writer_id = actor.kind
    now = decode(state.head)
    match actor.at:
        case "upload":
            (above,) = actor.memory
            for ahead in (False, True):
                location = f"data/{mint(state, above, ahead=ahead)}.batch"
                following = actor._replace(at="write" if actor.seen else "look", memory=(location, None))
                yield state.become(number, following, objects=state.objects | {(location, b"")})
        case "look":
            following = {"s": "seal", "=": "seal writers"}.get(writer_id[0], "write")
            yield state.become(number, actor._replace(at=following, seen=state.head))
        case "seal":
            node = decode(actor.seen).plan_seal()
            if node is None:
                yield state.become(number, actor._replace(at="write"))
                return
            for ahead in (False, True):
                name = mint(state, decode(actor.seen).lowest_new_name, ahead=ahead)
                sealed = actor._replace(at="write", memory=(actor.memory[0], (node.refer(name), node.refs)))
                stored = (f"segments/{name}.segment", pack(node))
                yield state.become(number, sealed, objects=state.objects | {stored})
        case "seal writers":
            yield from seal_writers(state, number)
        case "write":
            location, ref = actor.memory
            seen = decode(actor.seen)
            # One that is opened before the schema evolves, one of bytes, and one that knows a topic's second version.
            schemas = {"bytes": (), "newer": (FIRST, SECOND)}.get(writer_id, seen.schemas[:1])
            batch = NewBatch(location, (Metadata(0, 0, writer_id.encode()),), schema=version_in(schemas))
            sealed = seen if ref is None else seen.seal_writers(*ref) if writer_id[0] == "=" else seen.seal(*ref)
            try:
                new = sealed.append((batch,), writer_id, 1, schemas=schemas)
            except Unsupported:
                yield state.become(number, actor._replace(at="refused"))
                return
            except BelowFloor as refused:
                yield state.become(number, actor._replace(at="upload", memory=(refused.floor,)))
                return
            yield from write(state, number, new, actor._replace(at="done"), actor._replace(at="find out"))
        case "find out":
            done = numbers_of(now, dict(state.objects))[writer_id] >= 1
            yield state.become(number, actor._replace(at="done" if done else "write", seen=state.head))


def version_in(schemas: tuple[str, ...]) -> int | None:
    return len(schemas) - 1 if schemas else None


def seal_writers(state: State, number: int) -> Iterator[State]:
    """Store the bucket with all other lasting writers in it."""
    actor = state.actors[number]
    seen, objects = decode(actor.seen), dict(state.objects)
    planned = seen.plan_writer_seal(actor.kind)
    before = seen.writer_buckets.get(0)
    if before is not None and f"writers/{before.name}.writers" not in objects:
        yield state.become(number, actor._replace(at="look"))  # replaced and swept since
        return
    if not planned:
        yield state.become(number, actor._replace(at="write"))
        return
    known = {} if before is None else read_writer_node(objects[f"writers/{before.name}.writers"], "bucket").numbers
    node = WriterNode(seen.buffer_id, 0, known | {name: writer.number for name, writer in planned[0].items()})
    for ahead in (False, True):
        name = mint(state, seen.lowest_new_name, ahead=ahead)
        seal = (0, before, Bucket(name, len(node.numbers)), FrozenDict(planned[0]))
        sealed = actor._replace(at="write", memory=(actor.memory[0], seal))
        yield state.become(number, sealed, objects=state.objects | {(f"writers/{name}.writers", pack(node))})


class FrozenDict(dict[str, Writer]):
    """What an actor remembers has to have a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))


def numbers_of(of: Head, objects: dict[str, bytes]) -> dict[str, int]:
    """The number of every writer that a head knows, in its own map or in a bucket."""
    numbers: dict[str, int] = {}
    for bucket in of.writer_buckets.values():
        key = f"writers/{bucket.name}.writers"
        assert key in objects, "a bucket is listed and deleted"
        numbers |= read_writer_node(objects[key], key).numbers
    return numbers | {name: writer.number for name, writer in of.writers.items()}


def step_consumer(state: State, number: int) -> Iterator[State]:
    """Claim, then acknowledge all that is there until it is fenced; a rival only claims."""
    actor = state.actors[number]
    now = decode(state.head)
    following = "done" if actor.kind == "rival" else "ack"
    match actor.at:
        case "look":
            yield state.become(number, actor._replace(at="claim", seen=state.head))
        case "claim":
            new = decode(actor.seen).claim(actor.kind)
            done = actor._replace(at=following, memory=(new.epoch,))
            yield from write(state, number, new, done, actor._replace(at="find out claim"))
        case "find out claim":
            mine = now.owner is not None and now.owner.claim_id == actor.kind
            claimed = actor._replace(at=following, memory=(now.epoch,)) if mine else actor._replace(at="claim")
            yield state.become(number, claimed._replace(seen=state.head))
        case "ack" | "find out ack":
            through = now.next_sequence - 1
            owner = now.owner
            if owner is None or owner.claim_id != actor.kind or (owner.acked is not None and owner.acked >= through):
                yield state.become(number, actor._replace(at="done"))
            else:
                yield state.become(number, actor._replace(at="write ack", seen=state.head))
        case "write ack":
            seen = decode(actor.seen)
            try:
                new = seen.ack(seen.next_sequence - 1)
            except Fenced:  # pragma: no cover - it was looked at before
                return
            yield from write(state, number, new, actor._replace(at="done"), actor._replace(at="find out ack"))


def step_collector(state: State, number: int) -> Iterator[State]:
    """Look, trim and raise the floor, list, delete one by one."""
    actor = state.actors[number]
    match actor.at:
        case "look":
            yield state.become(number, actor._replace(at="write", seen=state.head))
        case "write":
            seen = decode(actor.seen)
            new = collect(seen, state)
            listed = actor._replace(at="list", memory=((new or seen).to_bytes(),))
            if new is None:
                yield state.become(number, listed)
            else:
                yield from write(state, number, new, listed, actor._replace(at="look"))
        case "list":
            yield state.become(number, actor._replace(at="delete", memory=victims_of(decode(*actor.memory), state)))
        case "delete":
            if not actor.memory:
                yield state.become(number, actor._replace(at="done", seen=b""))
                return
            victim, *rest = actor.memory
            objects = frozenset(stored for stored in state.objects if stored[0] != victim)
            deleting = actor._replace(memory=tuple(rest))
            yield state.become(number, deleting, objects=objects, deleted=state.deleted | {victim})


def victims_of(written: Head, state: State) -> tuple[str, ...]:
    """What a collector deletes that wrote this head: all below one floor; below the other, what cannot be reached."""
    objects = dict(state.objects)
    reachable = {entry.location for entry in written.tail}
    in_use = {f"writers/{bucket.name}.writers" for bucket in written.writer_buckets.values()}
    floor = written.reference_floor
    refs = list(written.refs)
    while refs:
        key = f"segments/{refs[-1].name}.segment"
        refs.pop()
        if key not in objects:  # another collector was faster: what can be reached is not known any more
            floor = written.gc_floor
            continue
        node = read_node(objects[key], key)
        reachable |= {key, *(entry.location for entry in node.entries)}
        refs += node.refs
    floors = ((key, written.gc_floor if key in reachable else floor) for key in objects if key not in in_use)
    return tuple(sorted(key for key, floor in floors if (ulid_in(key) or "Z") < floor))


def collect(seen: Head, state: State) -> Head | None:
    """What the collector makes of a head, whose clock says that every old name is older than the grace period."""
    point = seen.first_sequence if seen.owner is None or seen.owner.acked is None else seen.owner.acked + 1
    nodes: dict[str, Node] = {}
    while True:
        try:
            return seen.collect(point=point, dropped=0, expired=(), floor=ulid(COLLECTED_UP_TO), nodes=nodes)
        except NodeNeeded as needed:
            nodes[needed.ref.name] = read_node(dict(state.objects)[f"segments/{needed.ref.name}.segment"], "node")


def step_opener(state: State, number: int) -> Iterator[State]:
    """The product's own code: its next request, and what it does with the answer."""
    actor = state.actors[number]

    def told(answer: Any, seen: bytes = actor.seen) -> Actor:
        return actor._replace(memory=(*actor.memory, answer), seen=seen)

    match open_rows(SCHEMAS[actor.kind], actor.memory):
        case ("get", "manifest"):
            yield state.become(number, told(StoredObject(state.head, version_of(state.head)), state.head))
        case ("get", key):
            yield state.become(number, told(StoredObject(dict(state.objects)[key], "")))
        case ("put", key, data):
            yield state.become(number, told(""), objects=state.objects | {(key, data)})
        case ("replace", "manifest", data, version):
            assert version == version_of(actor.seen)
            conflict, doubt = told(NotApplied("another came first")), told(InDoubt("no answer"))
            yield from write(state, number, decode(data), told(Applied(version_of(data))), doubt, conflict=conflict)
        case ("opened", ids):
            yield state.become(number, actor._replace(at="done", seen=b"", memory=(ids,)))
        case _:
            yield state.become(number, actor._replace(at="refused", seen=b"", memory=()))


def version_of(data: bytes) -> str:
    return str(decode(data).revision)


CLAIMANTS = ("consumer", "rival")
WRITERS = ("writer", "sealer", "=lasting", "newer", "bytes")
STEPS: dict[str, Callable[[State, int], Iterator[State]]] = {
    **dict.fromkeys(WRITERS, step_writer),
    **dict.fromkeys(("maker", "evolver"), step_opener),
    "consumer": step_consumer,
    "rival": step_consumer,
    "collector": step_collector,
}


def successors(state: State) -> Iterator[State]:
    for number, actor in enumerate(state.actors):
        if actor.at not in ENDED:
            yield from STEPS[actor.kind.rstrip("0123456789")](state, number)
    if state.flying is not None:
        expected, data = state.flying
        landed = state.with_head(data) if decode(state.head).revision == expected else {}
        yield replace(state, flying=None, **landed)


def check(before: State, state: State) -> None:
    """rfcs/0005's invariants, of a state and of the way that led to it."""
    now, was = decode(state.head), decode(before.head)
    assert now.gc_floor >= was.gc_floor, "the floor went down"
    assert now.reference_floor >= was.reference_floor, "the reference floor went down"
    assert state.log[: len(before.log)] == before.log, "what was listed changed"
    assert len({location for location, _, _ in state.log}) == len(state.log), "a location is listed twice"
    payloads = [payload for _, payload, _ in state.log]
    assert len(set(payloads)) == len(payloads), "a batch is there twice"
    if now.first_sequence > was.first_sequence:
        assert now.owner is not None
        assert now.owner.acked is not None
        assert now.first_sequence <= now.owner.acked + 1, "trimmed past the consumer"
    epochs = {actor.kind: actor.memory[0] for actor in state.actors if actor.kind in CLAIMANTS and actor.memory}
    assert len(set(epochs.values())) == len(epochs), "two consumers believe in one epoch"
    if now.owner is not None and was.owner is not None and now.owner.acked != was.owner.acked:
        assert now.epoch == epochs["consumer"], "acknowledged after a fence"
    objects = dict(state.objects)
    before_numbers, numbers = numbers_of(was, dict(before.objects)), numbers_of(now, objects)
    assert all(numbers.get(name, -1) >= number for name, number in before_numbers.items()), "a writer is forgotten"
    at = now.refs[0].first_sequence if now.refs else now.tail_start
    assert at <= now.first_sequence
    for entry in entries(now, objects):
        assert logged(entry) == state.log[at], f"sequence {at} is not what it was"
        has_version = entry.schema in range(len(now.schemas)) if now.schemas else entry.schema is None
        assert has_version, f"schema version {entry.schema} is listed, of {len(now.schemas)}"
        assert (ulid_in(entry.location) or "") >= now.gc_floor, "listed below the floor"
        if at >= now.first_sequence:
            assert entry.location in objects, "listed and deleted"
        at += 1
    assert at == now.next_sequence, "sequences are not contiguous"
    assert now.schemas[: len(was.schemas)] == was.schemas, "a schema version changed"
    assert {schema_key(each) for each in now.schemas} <= objects.keys(), "a schema is named and not stored"
    for actor in state.actors:
        if actor.at in ENDED and actor.kind.startswith(WRITERS):
            assert (actor.kind.encode() in payloads) == (actor.at == "done"), (
                "durable, and not there; or refused, and there"
            )
        elif actor.at == "refused":
            assert not now.schemas, "a schema that fits was refused"
        elif actor.at == "done" and actor.kind in SCHEMAS:
            (ids,) = actor.memory
            assert now.schemas[: len(ids)] == ids, "a producer writes in a version that the head does not have"
            newest = decode_schema(objects[schema_key(now.schemas[-1])], "newest")
            assert set(SCHEMAS[actor.kind].names) <= set(newest.names), "a column was lost"


def entries(of: Head, objects: dict[str, bytes]) -> Iterator[NewBatch]:
    for ref in of.refs:
        key = f"segments/{ref.name}.segment"
        assert ref.name >= of.gc_floor, "a segment is listed below the floor"
        assert key in objects, "a segment is listed and deleted"
        node = read_node(objects[key], key)
        yield from entries(msgspec.structs.replace(of, refs=node.refs, tail=node.entries), objects)
    yield from of.tail


class Family(NamedTuple):
    """Processes that run at once, and how many states that makes."""

    kinds: tuple[str, ...]
    waiting: int
    faults: int
    states: int
    typed: bool = False


def begin(family: Family) -> State:
    """A buffer with entries waiting, whose names are of a clock in the middle."""
    kinds = family.kinds
    actors = tuple(
        Actor(kind, "upload", memory=(ulid(0),)) if kind.startswith(WRITERS) else Actor(kind, "look") for kind in kinds
    )
    empty = Head("b" * 32, writers={kind: Writer(0, 0) for kind in kinds if kind.startswith(WRITERS)})
    schemas = (FIRST,) if family.typed else ()
    filled = empty.evolve(schemas) if schemas else empty
    old = [
        NewBatch(f"data/{ulid(100 + i)}.batch", (Metadata(0, 0, b"old %d" % i),), schema=version_in(schemas))
        for i in range(family.waiting)
    ]
    for number, batch in enumerate(old):
        filled = filled.append((batch,), "old", number + 1, schemas=schemas)
    # The producer of a topic stores its schemas in a partition before it appends there.
    stored = (*schemas, *((SECOND,) if "newer" in kinds else ()))
    return State(
        filled.to_bytes(),
        frozenset(
            [
                *((batch.location, b"") for batch in old),
                *((schema_key(each), bytes(STORED.get(schema_key(each)).data)) for each in stored),
            ]
        ),
        actors,
        tuple(map(logged, old)),
        faults_left=family.faults,
    )


def explore(start: State) -> int:
    """Visit every state that can be reached, and return how many there are."""
    known = {start}
    pending = deque([start])
    ended = 0
    while pending:
        state = pending.popleft()
        following = False
        for reached in successors(state):
            following = True
            if reached not in known:
                check(state, reached)
                known.add(reached)
                pending.append(reached)
        ended += not following
        assert following or all(actor.at in ENDED for actor in state.actors), "somebody is stuck"
    assert ended
    return len(known)
