"""The search for bad entries: exact while there are few, bounded always."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.runtime.bad_entries import MAX_ATTEMPTS, find_bad, others, to_ranges


class Attempts:
    """Fails for ranges that hold a bad entry, and counts."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.count = 0

    def __call__(self, entries: range) -> str | None:
        self.count += 1
        return next((f"{index} is bad" for index in entries if index in self.bad), None)


@given(st.integers(1, 300), st.data())
def test_exactly_the_bad_entries_are_found_each_with_its_own_reason(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    assert find_bad(Attempts(bad), count, "some are bad" if count > 1 else "0 is bad") == {
        index: f"{index} is bad" for index in sorted(bad)
    }


def test_one_bad_entry_of_a_thousand_takes_twenty_attempts() -> None:
    attempts = Attempts({333})
    assert list(find_bad(attempts, 1000, "")) == [333]
    assert attempts.count == 20


def test_attempts_are_bounded_and_then_neighbours_of_bad_entries_go_with_them() -> None:
    attempts = Attempts(set(range(0, 100_000, 2)))
    found = find_bad(attempts, 100_000, "")
    assert attempts.count == MAX_ATTEMPTS
    assert len(found) == 100_000
    assert found[0] == "one of entries 0 to 11: 0 is bad"
    few = find_bad(Attempts({7}), 1000, "", max_attempts=10)
    assert set(few) == set(range(31)), "what was found good stays good"


def test_entries_that_fail_only_together_are_not_bad() -> None:
    assert find_bad(lambda entries: "too many" if len(entries) > 3 else None, 4, "too many") == {}


@given(st.sets(st.integers(0, 30)))
def test_ranges_hold_the_entries_and_the_others_hold_the_rest(bad: set[int]) -> None:
    ordered = sorted(bad)
    assert [index for found in to_ranges(ordered) for index in found] == ordered
    assert [index for found in others(ordered, 31) for index in found] == [i for i in range(31) if i not in bad]
    assert all(found for found in others(ordered, 31))
