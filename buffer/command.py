"""What the commands share: arguments, opening what they name, and one-line errors."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from forebay.buffer.errors import Denied, ForebayError, InvalidInput, NotFound, Unavailable
from forebay.buffer.store import ObjectStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130

_HINTS: dict[type[ForebayError], str] = {
    Denied: "check the credentials: --option key=… --option secret=…, or the environment",
    NotFound: "check the URL and the bucket's name",
    Unavailable: "check the network, and --option endpoint_url=… if the store is not at its usual place",
}


def make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser with what every command takes: the buffer, where in it things are, and how to reach it."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", help="the buffer or topic, such as s3://lake/clicks")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a storage option, such as endpoint_url=http://localhost:8333 (may be repeated)",
    )
    parser.add_argument("--manifest-path", default="manifest", metavar="KEY", help="default: %(default)s")
    parser.add_argument("--data-prefix", default="data", metavar="KEY", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="write one JSON object per buffer and line")
    return parser


def open_url(options: argparse.Namespace) -> ObjectStore:
    """Return the store of the buffer or topic that was named."""
    return open_store(options.url, _storage_options(options.option))


def _storage_options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            # What follows may be a secret, so it is not repeated.
            raise InvalidInput("--option needs KEY=VALUE, such as --option region=eu-central-1")
        options[key] = value
    return options


def write_line(text: str) -> None:
    """Write a line of the command's result."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_error(error: Exception) -> None:
    """Write an error as one line, with a hint where there is one."""
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    sys.stderr.write(f"error: {' '.join(str(error).split())}{f' ({hint})' if hint else ''}\n")


def run(action: Callable[[], int], *, on_failure: int) -> int:
    """Return the action's exit status, or `on_failure` if it could not be carried out; errors become one line."""
    try:
        return action()
    except ForebayError as error:
        write_error(error)
        return on_failure
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
