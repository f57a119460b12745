"""A `forebay run` whose clock is driven from outside, so that no real time decides what it does.

python standby_child.py JOB

Each line of its standard input is a number of seconds by which its clock advances.
"""

from __future__ import annotations

import sys
from threading import Thread

from forebay.cli import main
from forebay.testing import ManualClock


def follow(clock: ManualClock) -> None:
    for line in sys.stdin:
        clock.advance(float(line))


if __name__ == "__main__":
    clock = ManualClock()
    Thread(target=follow, args=(clock,), daemon=True).start()
    sys.exit(main(["run", sys.argv[1]], clock=clock))
