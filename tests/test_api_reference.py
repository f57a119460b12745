"""The API reference that `make docs` writes: nothing in it leads nowhere, and it needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "docs"))
from reference import MODULES, Page, find_broken_links

TOP = Path(__file__).parent.parent
SCRIPT = TOP / "docs" / "reference.py"


pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, as the command writes it: it fails if a link is broken."""
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_reader_who_follows_links_from_the_index_reaches_every_module(folder: Path) -> None:
    assert "./forebay.html" in (folder / "index.html").read_text()
    reached, waiting = set(), [(folder / "forebay.html").resolve()]
    while waiting:
        path = waiting.pop()
        if path not in reached and path.is_file():
            reached.add(path)
            waiting += [(path.parent / link.partition("#")[0]).resolve() for link in Page(path.read_text()).links]
    assert reached == {(folder / f"{name.replace('.', '/')}.html").resolve() for name in MODULES}


def test_class_shows_what_it_inherits_from_bases_that_have_no_page(folder: Path) -> None:
    places = Page((folder / "forebay.html").read_text()).places
    assert {"Producer.produce_async", "Consumer.next_batch", "Consumer.batches", "Backpressure.write"} <= places


def test_every_module_that_a_document_imports_from_has_a_page() -> None:
    for page in [TOP / "README.md", *(TOP / "docs").glob("*.md")]:
        imported = set(re.findall(r"^ *(?:from|import) (forebay[\w.]*)", page.read_text(), re.MULTILINE))
        assert imported <= set(MODULES), f"{page.name} imports {sorted(imported - set(MODULES))}"


def test_link_to_nowhere_and_what_needs_a_network_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a> <a href="b.html#gone">2</a> <a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="#there">1</a> <script src="https://cdn.test/x.js">')
    assert find_broken_links(tmp_path) == [
        "a.html links to b.html#gone",
        "a.html links to c.html",
        "b.html needs https://cdn.test/x.js",
    ]
