"""Dead letters are listed and found by name, without a claim; a repeated letter is shown once."""

from __future__ import annotations

import msgspec
import pytest

from forebay.buffer.base.errors import NotFound
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import DeadLetter
from forebay.runtime.letters import find_letter, list_letters


def letter(sequence: int, first: int = 0, last: int = 0, group: str = "etl", **settings: object) -> DeadLetter:
    return DeadLetter("memory://a", "00", group, "11", sequence, "data/x", first, last, "bad", **settings)  # type: ignore[arg-type]


def kept(name: str, *letters: tuple[DeadLetter, list[bytes]]) -> Queue:
    store = MemoryStore(f"memory://letters-{name}")
    with Producer(store, flush_interval=1000) as producer:
        for found, entries in letters:
            producer.produce(entries, msgspec.json.encode(found))
    return Queue(store)


def test_letters_are_listed_oldest_first_under_names_that_find_them() -> None:
    queue = kept("listed", (letter(1, 3, 4), [b"a", b"b"]), (letter(2), [b"c"]))
    assert [(found.name, found.letter.sequence) for found in list_letters(queue)] == [("0.0", 1), ("0.2", 2)]
    found, batch = find_letter(queue, "0.2")
    assert found.entries(batch) == [b"c"]
    assert queue.read().groups == {}, "listing claims nothing"


def test_letter_that_was_written_again_is_listed_once() -> None:
    queue = kept("again", (letter(1), [b"a"]), (letter(1), [b"a"]), (letter(1, group="audit"), [b"a"]))
    assert [found.letter.group for found in list_letters(queue)] == ["etl", "audit"]
    found, batch = find_letter(queue, "0.0")
    assert found.entries(batch) == [b"a"], "calls with equal metadata share an item of the manifest"


def test_entries_of_other_producers_are_left_out() -> None:
    store = MemoryStore("memory://letters-foreign")
    with Producer(store) as producer:
        producer.produce(b"x", b"svc=web")
    assert list(list_letters(Queue(store))) == []


@pytest.mark.parametrize("name", ["0.1", "7.0", "x", "", "0.0.0", "-1.0"])
def test_name_of_no_letter_is_refused(name: str) -> None:
    queue = kept(f"none-{name}", (letter(1), [b"a"]))
    with pytest.raises(NotFound, match=r"no letter .*dead-letters list"):
        find_letter(queue, name)


def test_entries_come_back_in_the_calls_of_their_producers() -> None:
    queue = kept(
        "calls",
        (letter(1, 0, 2, metadata=[(1, b"web"), (2, b"app")]), [b"a", b"b", b"c"]),
        (letter(2, 5, 5), [b"d"]),
    )
    first, second = list_letters(queue)
    batch = find_letter(queue, "0.0")[1]
    assert list(first.calls(batch)) == [(0, b"", [b"a"]), (1, b"web", [b"b"]), (2, b"app", [b"c"])]
    assert list(second.calls(batch)) == [(3, b"", [b"d"])]
