"""How long to wait before trying again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.buffer.clock import Random

# Past this many doublings any base has reached any cap; without the bound a long loop would overflow a float.
_MAX_DOUBLINGS = 64


def full_jitter(random: Random, attempt: int, base: float, cap: float) -> float:
    """Seconds to wait after the failed `attempt` (from 0): evenly drawn between 0 and min(cap, base * 2**attempt).

    Drawing from the whole range spreads contending clients out; adding a little noise to a fixed delay would leave them
    in step.
    """
    return random.uniform(0.0, min(cap, base * 2.0 ** min(attempt, _MAX_DOUBLINGS)))
