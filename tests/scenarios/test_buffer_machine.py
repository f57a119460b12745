"""Everything at once: a native buffer with writers, groups, holds and collectors, against DESIGN's invariants 1 to 7.

A Hypothesis state machine, in one thread. Its rules are steps of the protocol, so that a process may sleep or die
between any two of them: an upload is one, the append of it another, any time later. What happens *within* a step comes
from its plan: at the n-th request that the step makes to the store, a fault, or whole steps of other processes. So a
collector decides, and before its compare-and-swap arrives a group is made; a sealer has stored its segment, and before
its append a sweep goes by. Requests that time out land when another rule says so, clocks jump both ways, and segments
hold one or two entries. Half of the buffers hold rows, of a schema that evolves while old and new writers are at work.

What must hold is checked after every write by `WatchedStore`, and by the model here: what each process was told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from buffer_machine import BufferMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from forebay.buffer.base import names
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Claim, Head, Queue, UnnamedReader, head
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import sweep, trim
from forebay.testing import ManualClock

SHORT = settings(
    max_examples=400,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


EVENTS = (
    *(
        "claims of the unnamed",
        "claims of a group",
        "trims",
        "sweeps",
        "segments",
        "index nodes",
        "landings",
        "renewals",
        "evolutions",
    ),
    *("loads", "expired holds", "Fenced", "BelowFloor", "Unknown", "Unavailable"),
)
"""What a run must have met with to mean anything."""


pytestmark = pytest.mark.matrix


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    monkeypatch.setattr(head, "FANOUT", 2)
    monkeypatch.setattr(head, "MAX_WRITERS", 2)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_invariants_hold_after_every_write_whatever_is_lost_late_or_dead() -> None:
    BufferMachine.seen.clear()
    run_state_machine_as_test(BufferMachine, settings=SHORT)
    rare = [what for what in EVENTS if BufferMachine.seen[what] < 10]
    assert not rare, f"too seldom for the run to mean anything: {rare} of {dict(BufferMachine.seen)}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_invariants_hold_in_a_long_run_of_new_examples() -> None:
    run_state_machine_as_test(BufferMachine, settings=settings(SHORT, max_examples=10_000, derandomize=False))


# What the machine is worth: each of these takes one guard out, and the machine must notice.


def append_below_the_floor(patch: pytest.MonkeyPatch) -> None:
    checked = Head.append
    patch.setattr(Head, "append", lambda self, *what, **more: ignore_floor(checked, self, *what, **more))


def seal_below_the_floor(patch: pytest.MonkeyPatch) -> None:
    checked = Head.seal
    patch.setattr(Head, "seal", lambda self, *what, **more: ignore_floor(checked, self, *what, **more))


def ignore_floor(change: Callable[..., Head], of: Head, *what: Any, **more: Any) -> Head:
    changed = change(replace(of, gc_floor=names.LOWEST, reference_floor=names.LOWEST), *what, **more)
    return replace(changed, gc_floor=of.gc_floor, reference_floor=of.reference_floor)


def append_again_without_looking_for_the_own_number(patch: pytest.MonkeyPatch) -> None:
    checked = Queue._append

    def append(self: Queue, *what: Any) -> range:
        updated = self.update
        self.update = lambda change, _is_mine: updated(change, lambda _state: False)  # type: ignore[method-assign]
        try:
            return checked(self, *what)
        finally:
            del self.update

    patch.setattr(Queue, "_append", append)


def believe_any_claim_of_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    def claim(self: UnnamedReader, _process: object) -> Claim:
        queue = self._queue
        claim_id, epoch = queue.new_id(), 0

        def take(state: Any) -> Any:
            nonlocal epoch
            taken = (state or queue.empty_state()).claim(claim_id)
            epoch = taken.epoch
            return taken

        return Claim(queue.update(take, lambda state: state.epoch == epoch).epoch, claim_id)

    patch.setattr(UnnamedReader, "claim", claim)


def ignore_the_claim_id_of_a_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupReader, "_check_owner", lambda *_: None)


def ignore_the_epoch_and_claim_id_of_the_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnnamedReader, "_check_owner", lambda *_: None)


def claim_without_raising_the_epoch(patch: pytest.MonkeyPatch) -> None:
    checked = Head.claim

    def claim(self: Head, claim_id: str, _process: object = None) -> Head:
        claimed = checked(self, claim_id)
        assert claimed.owner is not None
        return replace(claimed, owner=replace(claimed.owner, epoch=max(1, self.epoch)))

    patch.setattr(Head, "claim", claim)


def ignore_the_generation_of_a_group(patch: pytest.MonkeyPatch) -> None:
    checked = GroupReader.look

    def look(self: GroupReader, *what: Any) -> Any:
        now = self._queue.read()
        assert isinstance(now, Head)
        self._group = now.groups.get(self._name, self._group)
        return checked(self, *what)

    patch.setattr(GroupReader, "look", look)


def trim_without_asking_for_new_groups(patch: pytest.MonkeyPatch) -> None:
    checked = trim._frontiers

    def frontiers(of: Head, read: Any) -> list[int]:
        known = {name: group for name, group in of.groups.items() if (name, group.generation) in read}
        return checked(replace(of, groups=known), read)

    patch.setattr(trim, "_frontiers", frontiers)


def trim_by_a_group_whatever_its_generation(patch: pytest.MonkeyPatch) -> None:
    checked = trim._frontiers

    def frontiers(of: Head, read: Any) -> list[int]:
        by_name = {name: frontier for (name, _), frontier in read.items()}
        generations = {(n, g.generation): by_name[n] for n, g in of.groups.items() if n in by_name}
        return checked(of, {**generations, **read})

    patch.setattr(trim, "_frontiers", frontiers)


def raise_the_floor_past_what_is_reachable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Head, "lowest", None)


def sweep_cursors_by_an_old_head(patch: pytest.MonkeyPatch) -> None:
    delete = sweep.Sweep.delete_old_cursors
    patch.setattr(sweep.Sweep, "delete_old_cursors", lambda self, known, _read: delete(self, known, lambda: known))


def shorten_the_history_of_schemas_to_that_of_an_older_writer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(head, "extend_history", lambda _known, carried, **_: tuple(carried))


def name_a_schema_that_was_not_stored(patch: pytest.MonkeyPatch) -> None:
    elsewhere = Schemas(MemoryStore("memory://elsewhere"), clock=ManualClock())
    checked = Schemas.save
    patch.setattr(Schemas, "save", lambda _self, schema: checked(elsewhere, schema))


@pytest.mark.parametrize(
    "remove_guard",
    [
        append_below_the_floor,
        seal_below_the_floor,
        append_again_without_looking_for_the_own_number,
        believe_any_claim_of_the_same_epoch,
        ignore_the_claim_id_of_a_group,
        ignore_the_epoch_and_claim_id_of_the_owner,
        claim_without_raising_the_epoch,
        ignore_the_generation_of_a_group,
        trim_without_asking_for_new_groups,
        trim_by_a_group_whatever_its_generation,
        raise_the_floor_past_what_is_reachable,
        sweep_cursors_by_an_old_head,
        shorten_the_history_of_schemas_to_that_of_an_older_writer,
        name_a_schema_that_was_not_stored,
    ],
)
@pytest.mark.timeout(900)
def test_machine_notices_when_a_guard_is_removed(
    remove_guard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a normal run nearly always; the rarest took 329 of its 400 examples once, so there is room for more."""
    remove_guard(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(BufferMachine, settings=settings(SHORT, max_examples=4000, phases=[Phase.generate]))
