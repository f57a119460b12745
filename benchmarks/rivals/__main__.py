"""One measurement in a process of its own: `python -m rivals '{…}'` prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivals import RIVALS
from rivals.rival import peak_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAUSE = 0.01
"""Between calls, where time to durable is measured."""
_PACED_CALL = 10


def _repeat(entries: list[bytes], calls: int, size: int) -> Iterator[list[bytes]]:
    """That many calls. Entries repeat, but farther apart than the window of zstd."""
    ready = [entries[at : at + size] for at in range(0, len(entries) - size + 1, size)]
    return islice(cycle(ready), calls)


def _pace(calls: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    due = time.perf_counter()
    for call in calls:
        due += _PAUSE
        time.sleep(max(0.0, due - time.perf_counter()))
        yield call


def measure(told: dict[str, Any]) -> dict[str, Any]:
    """Do one thing with one rival, and say what it took."""
    whole, length = Path(told["events"]).read_bytes(), told["length"]
    entries = [whole[at : at + length] for at in range(0, len(whole), length)]
    del whole
    found: dict[str, Any] = {}
    with closing(RIVALS[told["rival"]](told["folder"], told["options"])) as rival:
        cpu, began = time.process_time(), time.perf_counter()
        match told["phase"]:
            case "in":
                rival.write(_repeat(entries, told["calls"], told["call"]), told["calls_each"])
            case "out":
                found["entries"] = rival.read()
            case "paced":
                durable: list[float] = []
                calls = _pace(_repeat(entries, told["calls"], _PACED_CALL))
                rival.write_paced(calls, lambda at: durable.append(time.perf_counter() - at))
                assert len(durable) == told["calls"], "a flush has failed"
                found["seconds_to_durable"] = durable
        found["seconds"] = time.perf_counter() - began
        server_cpu, server_memory = rival.server_use()
        found["cpu"] = time.process_time() - cpu + server_cpu
        found["memory"] = peak_memory(os.getpid()) + server_memory
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # Delta's reader, which calls Python from threads of Arrow's, may abort at the interpreter's exit
