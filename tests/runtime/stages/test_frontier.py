"""The frontier: whatever order commits end in, it stops at the first that is not done (rfcs/0007)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.buffer.format.model import BatchDescriptor, Reader
from forebay.runtime.stages.frontier import Frontier
from forebay.runtime.stages.portions import Portion


def portions(sizes: list[int]) -> list[Portion]:
    made, at = [], 0
    for size in sizes:
        batches = [BatchDescriptor(at + i, f"data/{at + i}") for i in range(size)]
        made.append(Portion(Reader("5" * 32), batches, replay=False))
        at += size
    return made


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_it_is_the_longest_run_from_the_first_on_in_any_order_of_ending(sizes: list[int], data: st.DataObject) -> None:
    waiting = portions(sizes)
    frontier = Frontier(every=3, seconds=1.0)
    for portion in waiting:
        frontier.add(portion)
    done: set[int] = set()
    passed = 0
    for number in data.draw(st.permutations(range(len(waiting)))):
        waiting[number].done = True
        done.add(number)
        passed += frontier.advance(0.0)
        run = next((i for i in range(len(waiting)) if i not in done), len(waiting))
        assert frontier.through == (waiting[run - 1].identity.last if run else None)
        assert passed == sum(sizes[:run])
        assert frontier.first is (waiting[run] if run < len(waiting) else None)
    assert frontier.first is None


def test_unknown_in_the_middle_holds_it() -> None:
    waiting = portions([1] * 10)
    frontier = Frontier(every=100, seconds=1.0)
    for portion in waiting:
        frontier.add(portion)
        portion.done = portion.identity.first != 4
    assert frontier.advance(0.0) == 4
    assert (frontier.through, frontier.first) == (3, waiting[4])
    assert frontier.advance(9.0) == 0


def test_ack_is_due_after_a_number_of_commits_or_seconds() -> None:
    waiting = portions([2, 2, 2, 2])
    frontier = Frontier(every=3, seconds=5.0)
    for portion in waiting:
        frontier.add(portion)
    assert frontier.due is None
    waiting[0].done = True
    frontier.advance(10.0)
    assert frontier.due == 15.0
    waiting[1].done = True
    frontier.advance(12.0)
    assert frontier.due == 15.0, "since the first one that is not acknowledged"
    waiting[2].done = True
    frontier.advance(13.0)
    assert frontier.due is not None
    assert frontier.due <= 13.0
    frontier.mark_acked(5)
    assert (frontier.due, frontier.unacked) == (None, False)
    waiting[3].done = True
    frontier.advance(20.0)
    assert frontier.due == 25.0, "counted anew"


def test_commits_that_end_while_an_ack_is_under_way_wait_for_the_next() -> None:
    waiting = portions([1, 1])
    frontier = Frontier(every=1, seconds=5.0)
    for portion in waiting:
        frontier.add(portion)
        portion.done = True
        frontier.advance(0.0)
    frontier.mark_acked(0)
    assert frontier.unacked
    assert frontier.through == 1
