"""Use a store in a forked child: `fork.py used|unused`, after using it in the parent or not. Prints what happened."""

from __future__ import annotations

import os
import pickle
import sys

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.store import ObjectStore


def use(store: ObjectStore, key: str) -> str:
    """What a read after a write sees, or the name of the error."""
    try:
        store.put(key, b"of " + key.encode())
        seen = [row.key for row in store.list()]
        return f"{bytes(store.get(key).data).decode()} in {seen}"
    except ForebayError as error:
        return f"{type(error).__name__}: {error}"


def use_in_child(store: ObjectStore) -> str:
    """What `use` returns in a forked child."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, use(store, "child").encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told


if __name__ == "__main__":
    shared: ObjectStore = pickle.load(sys.stdin.buffer)
    if sys.argv[1] == "used":
        use(shared, "parent")
    print("child:", use_in_child(shared))  # noqa: T201
    print("parent:", use(shared, "after"))  # noqa: T201
