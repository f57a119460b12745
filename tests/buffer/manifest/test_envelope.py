"""The envelope of version 2 objects, opened by many threads at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

RACE = textwrap.dedent("""
    import sys
    import threading

    import msgspec

    from forebay.buffer.manifest.envelope import pack, unpack

    sys.setswitchinterval(1e-6)


    def define(number):
        inner = msgspec.defstruct(f"Inner{number}", [("x", int, 0), ("y", str, "")], array_like=True)
        fields = [("a", int, 0), ("b", tuple[int, ...], ()), ("c", inner | None, None), ("d", str | None, None)]
        return msgspec.defstruct(f"Kind{number}", fields, array_like=True, tag="kind"), inner(1, "y")


    for number in range(500):
        kind, inner = define(number)
        data, start = pack(kind(1, (2, 3), inner, "d")), threading.Barrier(4)

        def read():
            start.wait()
            assert unpack(data, kind, "here").c == inner

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
""")


def test_threads_that_read_a_kind_for_the_first_time_do_not_crash_the_process() -> None:
    """In a process of its own: msgspec dereferences a null pointer where nothing prevents it."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
