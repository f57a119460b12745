"""Every interleaving of a few processes on one version 2 head, exhaustively: append, seal, claim, ack, trim and sweep.

The states are explored breadth first. Transitions are single requests to the store (a read, a put, a conditional write,
a delete), and the real methods of `Head` decide what is written; only the loops around them are written anew here, as
small state machines that can be copied. In each reachable state the invariants of rfcs/0005 are asserted.

What is explored, from a buffer with two entries waiting and segments of one entry:

- two writers, each with one batch, one of them sealing; either may be stored under an old name (a clock behind) or a
  new one (a clock ahead), and is stored again above the floor when it is refused;
- lasting writers, each of which seals the others into a bucket before it appends;
- a consumer that claims and acknowledges what it sees, and a rival that claims at any moment;
- a collector whose clock is ahead of every old name: it trims, raises the floor as far as it may, and sweeps object by
  object, while everything else goes on;
- one fault anywhere: a conditional write of which the request is lost, the answer is lost, or that lands at any later
  moment, or lands twice.

All of them at once, with a fault, would be many millions of states, so families of them are explored: see `FAMILIES`,
and `LARGE_FAMILIES` for the long form. The number of states of each is asserted, so that an explorer that quietly
explores less is noticed: 185,658 states in the short form, 621,228 more in the long one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from ulid import ULID

from forebay.buffer.base.errors import Fenced
from forebay.buffer.base.names import LOWEST, ulid_in
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.manifest import BelowFloor, Head, head
from forebay.buffer.manifest.decode import read_head, read_node, read_writer_node
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head_fields import Bucket, Writer
from forebay.buffer.manifest.nodes import Node, NodeNeeded, WriterNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AHEAD = 1000
"""Names of clocks that are ahead start here; the collector's clock never gets as far."""
COLLECTED_UP_TO = 500


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
    log: tuple[tuple[str, bytes], ...]
    """Location and payload of everything ever listed, by sequence."""
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
        return {"head": data, "log": (*self.log, (entry.location, entry.metadata[0].payload))}


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


def write(state: State, number: int, new: Head, done: Actor, doubt: Actor) -> Iterator[State]:
    """A conditional write on what the actor has seen: as it should go, and in every way that it can go wrong."""
    expected, data = decode(state.actors[number].seen).revision, new.to_bytes()
    applies = decode(state.head).revision == expected
    changes = state.with_head(data) if applies else {}
    yield state.become(number, done._replace(seen=data) if applies else doubt, **changes)
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
            batch = NewBatch(location, (Metadata(0, 0, writer_id.encode()),))
            sealed = seen if ref is None else seen.seal_writers(*ref) if writer_id[0] == "=" else seen.seal(*ref)
            try:
                new = sealed.append((batch,), writer_id, 1)
            except BelowFloor as refused:
                yield state.become(number, actor._replace(at="upload", memory=(refused.floor,)))
                return
            yield from write(state, number, new, actor._replace(at="done"), actor._replace(at="find out"))
        case "find out":
            done = numbers_of(now, dict(state.objects))[writer_id] >= 1
            yield state.become(number, actor._replace(at="done" if done else "write", seen=state.head))


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


CLAIMANTS = ("consumer", "rival")
STEPS: dict[str, Callable[[State, int], Iterator[State]]] = {
    "writer": step_writer,
    "sealer": step_writer,
    "=lasting": step_writer,
    "consumer": step_consumer,
    "rival": step_consumer,
    "collector": step_collector,
}


def successors(state: State) -> Iterator[State]:
    for number, actor in enumerate(state.actors):
        if actor.at != "done":
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
    assert len({location for location, _ in state.log}) == len(state.log), "a location is listed twice"
    payloads = [payload for _, payload in state.log]
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
        assert entry.location == state.log[at][0], f"sequence {at} is not what it was"
        assert (ulid_in(entry.location) or "") >= now.gc_floor, "listed below the floor"
        if at >= now.first_sequence:
            assert entry.location in objects, "listed and deleted"
        at += 1
    assert at == now.next_sequence, "sequences are not contiguous"
    for actor in state.actors:
        if actor.at == "done" and actor.kind.startswith(("writer", "sealer", "=lasting")):
            assert actor.kind.encode() in payloads, "durable, and not there"


def entries(of: Head, objects: dict[str, bytes]) -> Iterator[NewBatch]:
    for ref in of.refs:
        key = f"segments/{ref.name}.segment"
        assert ref.name >= of.gc_floor, "a segment is listed below the floor"
        assert key in objects, "a segment is listed and deleted"
        node = read_node(objects[key], key)
        yield from entries(msgspec.structs.replace(of, refs=node.refs, tail=node.entries), objects)
    yield from of.tail


def begin(family: Family) -> State:
    """A buffer with entries waiting, whose names are of a clock in the middle."""
    kinds = family.kinds
    first = {"writer": "upload", "sealer": "upload", "=lasting": "upload"}
    actors = tuple(
        Actor(kind, first.get(kind.rstrip("0123456789"), "look"), memory=(ulid(0),) if kind[0] in "ws=" else ())
        for kind in kinds
    )
    empty = Head("b" * 32, writers={kind: Writer(0, 0) for kind in kinds if kind[0] in "ws="})
    old = [NewBatch(f"data/{ulid(100 + i)}.batch", (Metadata(0, 0, b"old %d" % i),)) for i in range(family.waiting)]
    filled = empty
    for number, batch in enumerate(old):
        filled = filled.append((batch,), "old", number + 1)
    return State(
        filled.to_bytes(),
        frozenset((batch.location, b"") for batch in old),
        actors,
        tuple((batch.location, batch.metadata[0].payload) for batch in old),
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
        assert following or all(actor.at == "done" for actor in state.actors), "somebody is stuck"
    assert ended
    return len(known)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    monkeypatch.setattr(head, "FANOUT", 2)
    monkeypatch.setattr(head, "KEPT_LASTING", 0)
    monkeypatch.setattr(head, "WRITER_BUCKETS", 1)


class Family(NamedTuple):
    """Processes that run at once, and how many states that makes."""

    kinds: tuple[str, ...]
    waiting: int
    faults: int
    states: int


FAMILIES = [
    Family(("sealer", "consumer", "collector"), waiting=2, faults=1, states=61_204),
    Family(("consumer", "rival", "writer"), waiting=1, faults=1, states=6_603),
    Family(("sealer1", "sealer2"), waiting=3, faults=1, states=5_641),
    Family(("sealer", "consumer", "collector1", "collector2"), waiting=1, faults=0, states=39_612),
    Family(("=lasting1", "=lasting2", "collector"), waiting=1, faults=0, states=66_957),
    Family(("=lasting1", "=lasting2"), waiting=1, faults=1, states=5_641),
]
LARGE_FAMILIES = [
    Family(("writer1", "sealer2", "collector"), waiting=2, faults=1, states=137_035),
    Family(("writer1", "sealer2", "consumer", "collector"), waiting=2, faults=0, states=484_193),
]


def name_of(family: Family) -> str:
    return f"{', '.join(family.kinds)}; {family.faults} faults"


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_no_interleaving_breaks_an_invariant(family: Family) -> None:
    assert explore(begin(family)) == family.states


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", LARGE_FAMILIES, ids=name_of)
def test_no_interleaving_of_more_processes_breaks_an_invariant(family: Family) -> None:
    assert explore(begin(family)) == family.states


@pytest.mark.parametrize("guarded", ["append", "seal"])
def test_explorer_finds_what_the_floor_check_prevents(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = getattr(Head, guarded)

    def unchecked(self: Head, *what: Any) -> Head:
        changed = checked(msgspec.structs.replace(self, gc_floor=LOWEST, reference_floor=LOWEST), *what)
        return msgspec.structs.replace(changed, gc_floor=self.gc_floor, reference_floor=self.reference_floor)

    monkeypatch.setattr(Head, guarded, unchecked)
    with pytest.raises(AssertionError, match="below the floor"):
        explore(begin(FAMILIES[0]))


def test_explorer_finds_what_the_own_number_of_a_writer_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Head.append
    monkeypatch.setattr(Head, "append", lambda self, batches, writer_id, _number: checked(self, batches, writer_id, 0))
    with pytest.raises(AssertionError, match="listed twice"):
        explore(begin(FAMILIES[0]))


def test_explorer_finds_what_the_claim_id_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Head.claim
    monkeypatch.setattr(Head, "claim", lambda self, _claim_id: checked(self, "consumer"))
    with pytest.raises(AssertionError, match="two consumers"):
        explore(begin(FAMILIES[1]))
