"""What only a memory store has: it is shared within a process, and copied by a fork."""

from __future__ import annotations

import os
import threading

from forebay.buffer.store.memory import MemoryStore


def test_child_forked_while_threads_write_can_go_on() -> None:
    store = MemoryStore("memory://forked-while-writing")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store.put("key", b"x" * 10_000)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                store.put("child", b"x")
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
