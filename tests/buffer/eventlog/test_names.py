"""Consumers' ids as file names, and any text as a topic's name: safe, and never two of them the same."""

from __future__ import annotations

import re

import hypothesis.strategies as st
from hypothesis import given

from forebay.buffer.eventlog import topic_name
from forebay.buffer.eventlog.names import check_topic, safe_name

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(st.lists(ids, unique=True, min_size=2, max_size=6))
def test_two_ids_never_have_one_file_name_also_where_names_have_no_case(consumers: list[str]) -> None:
    assert len({safe_name(consumer).lower() for consumer in consumers}) == len(consumers)


@given(ids)
def test_file_name_is_safe_on_any_file_system_and_in_any_store(consumer: str) -> None:
    name = safe_name(consumer)
    assert re.fullmatch(r"[a-z0-9._%=-]{1,140}", name)
    assert name not in {".", ".."}


def test_plain_ids_stay_readable() -> None:
    assert safe_name("etl-job.v2_a") == "etl-job.v2_a"
    assert safe_name("a/b") == "a%2fb"


def test_id_that_spells_another_ones_shortened_name_is_another() -> None:
    long = "x" * 150
    assert safe_name(safe_name(long)) != safe_name(long)


@given(st.lists(st.text(max_size=200), unique=True, min_size=2, max_size=6))
def test_any_text_has_a_topic_name_of_its_own(texts: list[str]) -> None:
    names = [topic_name(text) for text in texts]
    assert [check_topic(name) for name in names] == names
    assert len(set(names)) == len(texts)


def test_topic_name_stays_readable_and_the_same_in_every_release() -> None:
    assert topic_name("jobs.v2") == "jobs.v2"
    assert topic_name("s3://lake/clicks") == "s3___lake_clicks-202a9201c500d6ff"
