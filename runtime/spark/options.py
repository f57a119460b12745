"""The data source's options, as Spark hands them over: text, under names whose case is lost.

Whatever reaches a store (credentials, endpoint, client) has the prefix `storage.`: `storage.key`, `storage.secret`,
`storage.endpoint_url`. Only a store's handle is kept of them, which shows none and pickles them sealed (rfcs/0008).
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.errors import Denied, InvalidInput
from forebay.buffer.store import open_store
from forebay.buffer.store.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.buffer.store import ObjectStore

_STORAGE = "storage."
_LOCATION = ("url", "path")


def refuse_memory(given: Mapping[str, str]) -> None:
    """Raise `InvalidInput` if a URL among Spark's options names memory, which Spark's other processes do not see."""
    for url in (value for name, value in given.items() if name.lower() in _LOCATION):
        if parse_url(url).scheme == "memory":  # guard: refuse a store that only this process sees
            raise InvalidInput(f"{url} is in the memory of one process, and Spark uses several: use file:// for tests")


@contextmanager
def naming_credentials() -> Iterator[None]:
    """Add to a `Denied` that speaks of `storage_options` what these are called among Spark's options."""
    try:
        yield
    except Denied as error:
        if "storage_options" not in str(error):
            raise
        raise Denied(
            f"{error}. In Spark, set storage options as options of the format: {_STORAGE}key, {_STORAGE}secret, …"
        ) from error


class Options:
    """What one reader or writer was given, checked by name.

    Args:
        given: from Spark.
        known: the names that this reader or writer takes besides `url`, `path` and `storage.*`, in their own spelling.
        internal: names that forebay itself gives. No error shows them.
        instead: names that it does not take and that users may expect, each with what to use.

    Raises:
        InvalidInput: there is a name that is not known, so that a slip of the pen is not read as its absence.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str],
        *,
        internal: Iterable[str] = (),
        instead: Mapping[str, str] | None = None,
    ) -> None:
        self._spelling = {name.lower(): name for name in (*_LOCATION, *known)}
        self._instead = {name.lower(): text for name, text in (instead or {}).items()}
        taken = {*self._spelling, *(name.lower() for name in internal)}
        self._given: dict[str, str] = {}
        self._storage: dict[str, str] = {}
        for name, value in given.items():
            lowered = name.lower()
            if lowered.startswith(_STORAGE):
                self._storage[lowered.removeprefix(_STORAGE)] = value
            elif lowered in taken:
                self._given[lowered] = value
            elif hint := self._instead.get(lowered):
                raise InvalidInput(f"option {name} cannot be used here: {hint}")
            else:
                raise InvalidInput(f"unknown option {name!r}{self._suggest(lowered)}")

    @property
    def url(self) -> str:
        """The buffer or topic: what `load`, `save` or `start` was given, or the option `url`."""
        urls = {self._given[name] for name in _LOCATION if name in self._given}
        if len(urls) != 1:
            raise InvalidInput(
                f"options url and path differ: {' and '.join(sorted(urls))}; give one of them"
                if urls
                else "there is no URL: give the buffer's or topic's, as in load(\"s3://lake/clicks\")"
            )
        return urls.pop()

    @property
    def manifest_path(self) -> str:
        """The manifest's key below `url`."""
        return self.text("manifestPath") or "manifest"

    def open_store(self) -> ObjectStore:
        """Return the store at `url`, with the storage options. It pickles, and shows no credentials."""
        return open_store(self.url, self._storage)

    def text(self, name: str) -> str | None:
        """Return an option as it was given; None if it was not."""
        return self._given.get(name.lower())

    def whole(self, name: str, *, least: int = 0) -> int | None:
        """Return an option that is a whole number; None if it was not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return check_whole(int(text), name, least=least)
        except ValueError:
            raise InvalidInput(f"option {name} must be a whole number of at least {least}, not {text!r}") from None

    def seconds(self, name: str, default: float) -> float:
        """Return an option that is a positive number of seconds."""
        text = self.text(name)
        try:
            return default if text is None else check_seconds(float(text), name)
        except ValueError:
            raise InvalidInput(f"option {name} must be a positive number of seconds, not {text!r}") from None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def choice(self, name: str, among: tuple[str, ...], default: str) -> str:
        """Return an option that is one of a few words."""
        text = (self.text(name) or default).lower()
        if text not in among:
            raise InvalidInput(f"option {name} must be one of {', '.join(among)}, not {text!r}")
        return text

    def _suggest(self, lowered: str) -> str:
        nearest = difflib.get_close_matches(lowered, self._spelling, n=1)
        if nearest:
            return f"; did you mean {self._spelling[nearest[0]]!r}?"
        return f"; expected one of {', '.join(sorted(self._spelling.values()))}, or {_STORAGE}*"
