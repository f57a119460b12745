"""Write the API reference, made of docstrings, and check its links: `python docs/reference.py FOLDER`.

`make docs` runs it. The pages need no network: `FOLDER/index.html` can be opened as a file.
"""

from __future__ import annotations

import sys
import warnings
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pdoc.render
from pdoc.doc import Class, Module

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (
    "forebay",
    "forebay.buffer",
    "forebay.buffer.base.errors",
    "forebay.buffer.eventlog",
    "forebay.buffer.store",
    "forebay.buffer.store.memory",
    "forebay.buffer.topic",
    "forebay.gc",
    "forebay.runtime",
    "forebay.runtime.catalog",
    "forebay.runtime.decoders",
    "forebay.runtime.prometheus",
    "forebay.runtime.spark",
    "forebay.testing",
    "forebay.testing.pytest",
    "forebay.testing.servers",
)
"""What users import from."""


def write_reference(folder: Path) -> None:
    """Write a page for each module, an index and a search index."""
    pdoc.render.configure(docformat="google", footer_text="forebay")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # An annotation with a name that only type checkers import: pdoc shows it as it is written.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        modules = {name: read_module(name) for name in MODULES}
        for module in modules.values():
            module.submodules = [modules[name] for name in MODULES if find_parent(name) == module.modulename]
        pages = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(modules[name], modules) for name in MODULES}
        pages |= {"index.html": pdoc.render.html_index(modules), "search.js": pdoc.render.search_index(modules)}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def find_parent(name: str) -> str:
    """Return the module that a module is listed under; nothing for the first one."""
    parent = name.rpartition(".")[0]
    return parent if parent in MODULES or not parent else find_parent(parent)


def read_module(name: str) -> Module:
    """Return the documentation of a module."""
    module = import_module(name)
    for public in getattr(module, "__all__", ()):
        vars(module)[public] = getattr(module, public)  # pdoc does not see names that are loaded on demand
    found = Module(module)
    for member in found.flattened_own_members:
        if isinstance(member, Class):
            adopt_members(member)
    return found


def adopt_members(described: Class) -> None:
    """Show what a class inherits from bases without a place in the reference as its own."""
    hidden = [base for base in described.inherited_members if base[0].startswith("forebay") and not is_shown(*base)]
    described.own_members = described.own_members + [
        member for base in hidden for member in described.inherited_members[base]
    ]
    described.inherited_members = {
        base: members for base, members in described.inherited_members.items() if base not in hidden
    }
    described.bases = [(base.__module__, base.__qualname__, base.__qualname__) for base in shown_bases(described.obj)]


def shown_bases(described: type) -> Iterator[type]:
    """Yield the bases of a class. In place of a base without a place in the reference, yield its own bases."""
    for base in described.__bases__:
        if base.__module__.startswith("forebay") and not is_shown(base.__module__, base.__qualname__):
            yield from shown_bases(base)
        elif base is not object:
            yield base


def is_shown(module: str, name: str) -> bool:
    """Whether a class of ours has a place in the reference under this name."""
    return module in MODULES and not name.startswith("_")


class Page(HTMLParser):
    """The places that a page has, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places = {""}
        self.links: list[str] = []
        self.needed: list[str] = []
        """What a browser fetches to show the page."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag defines and refers to."""
        for name, value in attrs:
            if name == "id":
                self.places.add(value or "")
            elif name in {"href", "src"}:
                (self.links if tag == "a" else self.needed).append(value or "")


def find_broken_links(folder: Path) -> list[str]:
    """Return each link that leads nowhere, with its page, and whatever a page would fetch from the network."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        shown = path.relative_to(folder.resolve())
        broken += [f"{shown} needs {link}" for link in page.needed if urlsplit(link).netloc]
        for link in page.links + page.needed:
            url = urlsplit(link)
            target = (path.parent / url.path).resolve() if url.path else path
            is_there = url.fragment in pages[target].places if target in pages else target.is_file()
            if not (url.scheme or url.netloc or is_there):
                broken.append(f"{shown} links to {link}")
    return broken


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    write_reference(target)
    if broken := find_broken_links(target):
        sys.exit("\n".join(broken))
    print(target / "index.html")
