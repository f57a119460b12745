"""How commands write: lines, JSON, tables, sizes and one-line errors.

Data from a store may contain control characters, which can take over a terminal. So they are escaped on a terminal, and
always in errors and log lines. Pipes and files get the data unchanged.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.errors import Denied, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.process import Process

_CREDENTIALS: Final = {
    "s3": "--option key=… --option secret=…",
    "gs": "--option service_account_path=…",
    "az": "--option account_name=… --option account_key=…",
}
_NETWORK: Final = "check the network, and --option endpoint_url=… if the store is not at its usual place"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Every control character but tab and newline: C0, DEL and C1."""


def escape(text: str | bytes) -> str:
    """Return text with escapes in place of control characters and of bytes that are not UTF-8."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def log_to_stderr() -> None:
    """Write warnings to standard error, each with its time and level, unless the caller's program has log handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class EscapingFormatter(logging.Formatter):
    """Formats log lines without control characters, which keys and names from the store may contain."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return escape(super().format(record))


def write_line(text: str) -> None:
    """Write a line of the command's result."""
    sys.stdout.write(f"{escape(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write a value as one line of JSON."""
    write_line(json.dumps(value, default=str))


def write_note(text: str) -> None:
    """Write a line for people, beside the result."""
    sys.stderr.write(f"{escape(text)}\n")
    sys.stderr.flush()


def write_error(error: Exception, hint: str = "") -> None:
    """Write an error as one line, with a hint where there is one."""
    hint = hint or _hint_for(error)
    write_note(f"error: {' '.join(str(error).split())}{f' ({hint})' if hint else ''}")


def _hint_for(error: Exception) -> str:
    """What to check if a remote store failed, in options of its kind; nothing for folders, memory and other errors."""
    remote = re.search(r"\b(s3|gs|az)://", str(error))
    if remote and isinstance(error, Denied):
        return f"check the credentials: {_CREDENTIALS[remote[1]]}, or the environment"
    return _NETWORK if remote and isinstance(error, Unavailable) else ""


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows below their heads; what is a number stands right."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    numeric = [all(row[column][:1].isdigit() or row[column] == "-" for row in rows) for column in range(len(heads))]
    for row in (heads, *rows):
        cells = zip(row, widths, numeric, strict=True)
        line = "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells)
        write_line(line.rstrip())


def as_json_value(name: str, value: Any) -> dict[str, Any]:
    """A value as JSON can hold it, under its name."""
    if isinstance(value, bytes):
        try:
            return {name: value.decode()}
        except UnicodeDecodeError:
            return {f"{name}_base64": base64.b64encode(value).decode()}
    return {name: value.isoformat() if hasattr(value, "isoformat") else value}


def size(count: float | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count(number: float | None) -> str:
    """A number for people."""
    return "-" if number is None else f"{number:,.0f}"


def consumer(owner: Process | None, *, alive: bool | None) -> str:
    """Whether a reader has a consumer, and in which process, for people."""
    if alive is False:
        return "no"
    return str(owner) if owner is not None else "yes" if alive else "-"


def age(seconds: float | None) -> str:
    """A time span for people."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
