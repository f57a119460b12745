"""The `forebay` command: what can be done with a buffer from a shell."""

from __future__ import annotations

import sys

from forebay.buffer import verify
from forebay.gc import __main__ as gc

_USAGE = """usage: forebay COMMAND …

  forebay gc URL        delete what every reader has read, and what nobody ever listed
  forebay verify URL    check that everything a buffer lists is there and intact

`forebay COMMAND --help` tells more, with examples.
"""

_COMMANDS = {"gc": gc.main, "verify": verify.main}


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in {"-h", "--help"}:
        sys.stdout.write(_USAGE)
        return 0
    command = _COMMANDS.get(name)
    if command is None:
        sys.stderr.write(_USAGE if not name else f"forebay: there is no command {name!r}\n{_USAGE}")
        return 2
    return command(rest)
