"""Checks the names of topics and consumers, and turns a consumer's id into a file name."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from forebay.buffer.base.checks import NAME, check_name
from forebay.buffer.base.errors import InvalidInput

_UNSAFE = re.compile(r"[^a-z0-9._-]")
_NOT_IN_A_TOPIC = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 100


def check_topic(topic: Any) -> str:
    """Return a topic's name, or raise `InvalidInput`."""
    return check_name(topic, "a topic's name")


def topic_name(text: str) -> str:
    """Return a valid topic name for any text, such as a URL. The same text always gives the same name.

    A valid name is returned as it is. In any other text, invalid characters become `_`, and a hash of the text is
    appended, so that two such texts get two names.
    """
    if NAME.fullmatch(text) and text not in {".", ".."}:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{_NOT_IN_A_TOPIC.sub('_', text)[:80]}-{digest}"


def check_consumer(consumer: Any) -> str:
    """Return a consumer's id. Raise `InvalidInput` if it is blank or not text."""
    if not isinstance(consumer, str) or not consumer.strip():
        raise InvalidInput(f"a consumer's id must be text that is not blank, not {consumer!r}")
    try:
        consumer.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a consumer's id must be text that UTF-8 can write: {error}") from None
    return consumer


def safe_name(consumer: str) -> str:
    """Return a file name that no other consumer's id gets, even where file names ignore case.

    Every character but `a-z 0-9 . _ -` becomes `%` and its bytes. A name that is too long is cut, and ends in `=` and a
    hash. No short name ends like that, since `=` itself is escaped.
    """
    escaped = _UNSAFE.sub(lambda found: "".join(f"%{byte:02x}" for byte in found[0].encode()), consumer)
    if len(escaped) <= _LONGEST and escaped not in {".", ".."}:
        return escaped
    return f"{escaped[:_LONGEST]}={blake2b(consumer.encode(), digest_size=16).hexdigest()}"
