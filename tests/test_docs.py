"""Every document's programs and commands run as printed, and whatever it points to is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from forebay import Consumer, Producer, ProducerLimits, ReadAhead
from forebay.buffer import TopicConsumer, TopicProducer
from forebay.buffer.write.settings import FLUSH_INTERVAL
from forebay.cli import cli
from forebay.gc import Collector
from forebay.runtime import Runtime, RuntimeConfig

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import cost
from dev_server import DevServer
from run_page import FENCE, fences, is_program

TOP = Path(__file__).parent.parent
RUNNER = Path(__file__).with_name("run_page.py")
DOCUMENTS = sorted(path for folder in (".", "docs", "rfcs", "deploy") for path in (TOP / folder).glob("*.md"))
PAGES = [path for path in DOCUMENTS if path.parent.name != "rfcs" and is_program(path.read_text())]


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def read_in_order() -> list[Path]:
    """The pages that can be run, in the order of the ladder: the README, then from the index's tutorial on."""
    index = TOP / "docs" / "README.md"
    ladder = index.read_text().partition("## Tutorial\n")[2]
    linked = [index.parent / target for target in re.findall(r"\]\((\w[\w/-]*\.md)\)", ladder)]
    return [page for page in dict.fromkeys([TOP / "README.md", *linked, *PAGES]) if page in PAGES]


class Reader(NamedTuple):
    """A person who reads one page after the other, in one folder, beside one `forebay dev`."""

    folder: Path
    settings: dict[str, str]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with DevServer(tmp_path_factory.mktemp("server")) as server:
        yield Reader(tmp_path_factory.mktemp("folder"), server.environment)


def run(page: Path, folder: Path, settings: Mapping[str, str] | None = None) -> str:
    # For the page that starts Spark: a JVM that is there fast, and on this machine alone.
    environment = {
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **os.environ,
        **(settings or {}),
    }
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(page)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", read_in_order(), ids=name_of)
def test_page_runs_as_printed_after_those_before_it_in_the_same_bucket_and_folder(page: Path, reader: Reader) -> None:
    shown = run(page, reader.folder, reader.settings)
    if page == TOP / "README.md":
        assert shown.splitlines()[:2] == ["""0 b'{"page": "/"}'""", """0 b'{"page": "/cart"}'"""]


def test_page_that_does_not_do_what_it_says_is_noticed(tmp_path: Path) -> None:
    """The runner itself: a wrong answer, a failing command and a wrong program all fail, at their line."""
    for wrong in ("```console\n$ echo one\ntwo\n```\n", "```console\n$ false\n```\n", "```python\nassert False\n```\n"):
        page = tmp_path / "page.md"
        page.write_text(f"# Page\n\n{wrong}")
        with pytest.raises(AssertionError, match="line 4"):
            run(page, tmp_path)
    page.write_text(
        "# Page\n\n```toml title=a.toml\nb = 1\n```\n\n```console\n$ cat a.toml && echo end\nb = …\nend\n```\n"
    )
    run(page, tmp_path)


def test_every_block_has_a_language_that_says_whether_it_runs() -> None:
    for page in PAGES:
        if page.is_relative_to(TOP / "docs"):
            languages = {language for language, _, _ in fences(page.read_text())}
            assert languages <= {"python", "console", "toml", "json", "text"}, name_of(page)


@cache
def anchors(path: Path) -> set[str]:
    """The places within a page that a link can name, as GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", FENCE.sub("", page.read_text()))
    for target, anchor in links:
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name_of(page)} points to {target}"
        assert not anchor or anchor in anchors(path), f"{name_of(page)} points to {target}#{anchor}"


def test_every_test_that_a_document_names_exists() -> None:
    there = set()
    for path in (TOP / "tests").rglob("*.py"):
        there.update(re.findall(r"def (test_\w+)", path.read_text()))
        there.add(path.stem)
    for page in DOCUMENTS:
        named = set(re.findall(r"\b(test_\w+)\b(?!\*)", FENCE.sub("", page.read_text())))
        assert named <= there, f"{name_of(page)} names {sorted(named - there)}"


def test_every_file_that_a_document_names_exists() -> None:
    """Paths from the top folder, in backticks. CHANGELOG.md may name what is gone."""
    folders = "buffer|runtime|gc|testing|forebay|tests|benchmarks|docs|rfcs|examples|deploy"
    for page in DOCUMENTS:
        named = re.findall(rf"`((?:{folders})/[\w./*-]*)`", FENCE.sub("", page.read_text()))
        missing = [path for path in named if not list(TOP.glob(path))]
        assert not missing or page.name == "CHANGELOG.md", f"{name_of(page)} names {missing}"


def test_glossary_defines_each_word_once_in_alphabetical_order() -> None:
    words = re.findall(r"^\*\*([^*]+)\*\*", (TOP / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(set(words), key=lambda word: re.sub("[^a-z ]", "", word.lower()))


def test_map_of_the_house_answers_each_question_with_files() -> None:
    section = (TOP / "CONTRIBUTING.md").read_text().partition("## Map of the house\n")[2].partition("\n## ")[0]
    answers = re.findall(r"^\| (.+\?) \| (.+) \|$", section, re.MULTILINE)
    assert len(answers) >= 10
    for question, answer in answers:
        assert re.search(r"`[\w/.]+`", answer), f"no file answers: {question}"
    files = [
        f"/{name_of(path)}"
        for folder in ("buffer", "gc", "forebay", "runtime", "tests")
        for path in (TOP / folder).rglob("*.py")
    ]
    for name in re.findall(r"[\w/]+\.py", section):  # the picture too, where a path may begin inside a folder
        assert any(path.endswith(f"/{name}") for path in files), f"CONTRIBUTING.md names {name}"


def commands_named(text: str) -> list[list[str]]:
    """The words after `forebay` wherever a page shows a command, in a block or within a line."""
    lines = [line for _, _, body in fences(text) for line in body.splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"`(forebay [^`]+)`", FENCE.sub("", text))]
    shown = re.compile(r"(?:^|\$ |\| |&& )forebay (.+?)(?= \||&&|$)")
    return [found.split() for line in lines for found in shown.findall(line)]


def unknown_in(words: list[str], command: click.Command) -> str | None:
    """The first word of a command line that there is no command or option for."""
    context = click.Context(command)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= set(command.get_help_option_names(context))
    for place, word in enumerate(words):
        if word == "#":
            return None
        if word.startswith("--") and word.partition("=")[0] not in options:
            return word
        if isinstance(command, click.Group) and re.fullmatch("[a-z]+(-[a-z]+)*", word):
            found = command.get_command(context, word)
            return word if found is None else unknown_in(words[place + 1 :], found)
    return None


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_every_command_that_a_document_shows_exists_with_its_options(page: Path) -> None:
    for words in commands_named(page.read_text()):
        assert unknown_in(words, cli) is None, f"{name_of(page)}: forebay {' '.join(words)}"


def test_command_that_does_not_exist_is_noticed() -> None:
    text = "`forebay sweep URL`, ```console\n"
    assert [unknown_in(words, cli) for words in commands_named(text)] == ["sweep"]
    shown = "```console\n$ seq 9 | forebay --debug gc URL --forever && forebay groups move\n```\n"
    assert [unknown_in(words, cli) for words in commands_named(shown)] == ["--forever", "move"]


def test_every_page_of_the_documents_is_in_their_index() -> None:
    index = (TOP / "docs" / "README.md").read_text()
    for page in (TOP / "docs").rglob("*.md"):
        link = page.relative_to(TOP / "docs").as_posix()
        assert link == "README.md" or f"]({link})" in index, f"docs/README.md does not name {link}"


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """The names that users pass: not the URL, and not where time and random numbers come from."""
    return set(signature(function).parameters) - {"url", "clock", "random"}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("producer", parameters_of(Producer)),
        ("producer", {f"limits.{field.name}" for field in fields(ProducerLimits)}),
        ("consumer", parameters_of(Consumer)),
        ("consumer", {field.name for field in fields(ReadAhead)}),
        ("topics", parameters_of(TopicConsumer) - parameters_of(Consumer)),
        ("producer", parameters_of(TopicProducer)),
        ("runtime", parameters_of(Runtime)),
        ("runtime", {field.name for field in fields(RuntimeConfig)}),
        ("collector", parameters_of(Collector)),
        ("command-line", {f"forebay {name}" for name in cli.list_commands(click.Context(cli))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reference_names_every_setting(page: str, names: set[str]) -> None:
    text = (TOP / "docs" / "reference" / f"{page}.md").read_text()
    missing = [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"docs/reference/{page}.md lacks {missing}"


def test_settings_page_says_what_cost_computes_from_what_was_measured() -> None:
    page = cost.PAGE.read_text()
    figures = json.loads(cost.RESULTS.read_text())["figures"]
    assert page == cost.put_tables(page, cost.make_tables(figures)), "run `python benchmarks/cost.py`"
    assert f"${cost.DOLLARS_PER_1000_WRITES} for 1,000 writes" in page
    assert f"${cost.DOLLARS_PER_1000_READS} for 1,000 reads" in page


@pytest.mark.parametrize("page", ["docs/settings.md", "docs/reference/producer.md", "README.md"])
def test_page_says_what_a_busy_producer_costs_at_the_default_interval(page: str) -> None:
    cells = json.loads(cost.RESULTS.read_text())["figures"]["cells"]
    (alone,) = (cell for cell in cells if (cell["interval"], cell["producers"]) == (FLUSH_INTERVAL, 1))
    assert f"${cost.dollars_a_month(alone):.0f}" in (TOP / page).read_text()


def test_costs_are_counted_by_what_each_kind_of_request_costs() -> None:
    cell = {
        "interval": 0.1, "producers": 4, "batches": 10,
        "writers": {"put": 10, "replace": 15, "get_if_changed": 5}, "reader": {"get": 10, "get_if_changed": 10},
    }  # fmt: skip
    idle = {"seconds": 10.0, "reader": {"get_if_changed": 10}, "collection": {"list": 3, "get": 2, "delete": 7}}
    tables = cost.make_tables({"cells": [cell], "idle": idle})
    # 10^12 / 2^20 batches of 2.5 writes and 2.5 reads.
    assert "$12.87 (4.77 M)" in tables
    # 4 producers that flush ten times a second for thirty days.
    assert "| 0.1 s | $1,400 |" in tables
    assert "polling every 2 s | $1.04 |" in tables
    assert "every 5 minutes | $0.14 |" in tables
