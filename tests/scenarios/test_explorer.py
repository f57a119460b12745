"""Every interleaving of a few processes on one version 2 head, exhaustively (`explorer.py` does it).

What is explored, from a buffer with two entries waiting and segments of one entry:

- two writers, each with one batch, one of them sealing; either may be stored under an old name (a clock behind) or a
  new one (a clock ahead), and is stored again above the floor when it is refused;
- lasting writers, each of which seals the others into a bucket before it appends;
- a consumer that claims and acknowledges what it sees, and a rival that claims at any moment;
- a collector whose clock is ahead of every old name: it trims, raises the floor as far as it may, and sweeps object by
  object, while everything else goes on;
- producers that make a buffer one of rows, or evolve its schema, while writers of older versions and of bytes append;
  in a partition of a topic, a writer whose append brings a new version;
- one fault anywhere: a conditional write of which the request is lost, the answer is lost, or that lands at any later
  moment, or lands twice.

All of them at once, with a fault, would be many millions of states, so families of them are explored: see `FAMILIES`,
and `LARGE_FAMILIES` for the long form. The number of states of each is asserted, so that an explorer that quietly
explores less is noticed: 210,723 states in the short form, 719,612 more in the long one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from explorer import Family, begin, explore
from scripted import open_rows

from forebay.buffer.base.names import LOWEST
from forebay.buffer.manifest import Head, head


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    monkeypatch.setattr(head, "FANOUT", 2)
    monkeypatch.setattr(head, "KEPT_LASTING", 0)
    monkeypatch.setattr(head, "WRITER_BUCKETS", 1)
    open_rows.cache_clear()  # the code that it runs may be another one now


FAMILIES = [
    Family(("sealer", "consumer", "collector"), waiting=2, faults=1, states=61_204),
    Family(("consumer", "rival", "writer"), waiting=1, faults=1, states=6_603),
    Family(("sealer1", "sealer2"), waiting=3, faults=1, states=5_641),
    Family(("sealer", "consumer", "collector1", "collector2"), waiting=1, faults=0, states=39_612),
    Family(("=lasting1", "=lasting2", "collector"), waiting=1, faults=0, states=66_957),
    Family(("=lasting1", "=lasting2"), waiting=1, faults=1, states=5_641),
    Family(("evolver1", "evolver2", "writer"), waiting=1, faults=0, states=4_094, typed=True),
    Family(("evolver1", "evolver2"), waiting=1, faults=1, states=1_760, typed=True),
    Family(("evolver1", "writer"), waiting=1, faults=1, states=640, typed=True),
    Family(("evolver1", "consumer", "collector"), waiting=1, faults=0, states=2_329, typed=True),
    Family(("maker", "evolver1", "bytes"), waiting=0, faults=1, states=15_349),
    Family(("newer", "sealer"), waiting=1, faults=1, states=893, typed=True),
]
LARGE_FAMILIES = [
    Family(("writer1", "sealer2", "collector"), waiting=2, faults=1, states=137_035),
    Family(("writer1", "sealer2", "consumer", "collector"), waiting=2, faults=0, states=484_193),
    Family(("evolver1", "evolver2", "writer"), waiting=1, faults=1, states=65_238, typed=True),
    Family(("newer", "sealer", "consumer"), waiting=1, faults=1, states=33_146, typed=True),
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

    def unchecked(self: Head, *what: Any, **more: Any) -> Head:
        changed = checked(msgspec.structs.replace(self, gc_floor=LOWEST, reference_floor=LOWEST), *what, **more)
        return msgspec.structs.replace(changed, gc_floor=self.gc_floor, reference_floor=self.reference_floor)

    monkeypatch.setattr(Head, guarded, unchecked)
    with pytest.raises(AssertionError, match="below the floor"):
        explore(begin(FAMILIES[0]))


def test_explorer_finds_what_the_own_number_of_a_writer_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Head.append
    monkeypatch.setattr(
        Head, "append", lambda self, batches, who, _number, **more: checked(self, batches, who, 0, **more)
    )
    with pytest.raises(AssertionError, match="listed twice"):
        explore(begin(FAMILIES[0]))


def test_explorer_finds_what_the_claim_id_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Head.claim
    monkeypatch.setattr(Head, "claim", lambda self, _claim_id: checked(self, "consumer"))
    with pytest.raises(AssertionError, match="two consumers"):
        explore(begin(FAMILIES[1]))


def test_explorer_finds_what_the_prefix_rule_of_schemas_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "extend_history", lambda _known, carried, **_: tuple(carried))
    with pytest.raises(AssertionError, match="schema version"):
        explore(begin(FAMILIES[8]))
