"""The simulation: every seed holds, the same seed gives the same run, and a guard that is missing is noticed.

A seed that fails is printed with the command that replays it. Keep it as a test of its own with what it found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import simulation
from test_buffer_machine import (
    append_again_without_looking_for_the_own_number,
    append_below_the_floor,
    believe_any_claim_of_the_same_epoch,
    claim_without_raising_the_epoch,
    ignore_the_claim_id_of_a_group,
    ignore_the_epoch_and_claim_id_of_the_owner,
    ignore_the_generation_of_a_group,
    raise_the_floor_past_what_is_reachable,
    seal_below_the_floor,
    sweep_cursors_by_an_old_head,
    trim_by_a_group_whatever_its_generation,
    trim_without_asking_for_new_groups,
)

SEEDS = 240
EVENTS = (
    *("appends ok", "appends unknown", "appends failed", "appends of a lasting writer", "loads ok", "acks", "crashes"),
    *("claims of a group", "claims of the unnamed", "Fenced", "resets", "renewals", "expired holds", "holds lost"),
    *("lasting writers found in a bucket", "falsified reads", "throttled writes"),
    *("batches read ahead", "takeovers by a standby"),
    *("trims", "sweeps", "segments", "landings", "stalls past the grace period", "migrations"),
)
"""What a run must have met with to mean anything."""


def play_many(seeds: range, *, rows: bool = False) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += simulation.play(seed, rows=rows).seen
    return seen


def test_every_seed_holds() -> None:
    seen = play_many(range(SEEDS))
    rare = [what for what in EVENTS if seen[what] < 5]
    assert not rare, f"too seldom for the run to mean anything: {rare} of {dict(seen)}"


@pytest.mark.matrix
def test_every_seed_holds_for_rows_of_a_schema_that_evolves() -> None:
    seen = play_many(range(SEEDS // 2), rows=True)
    missing = {*EVENTS} - {"migrations"} - seen.keys()
    assert not missing, f"never met, so the run means little: {missing} of {dict(seen)}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
def test_thousands_of_new_seeds_hold(rows: bool) -> None:
    first = Random().randrange(10**9)
    play_many(range(first, first + 5000), rows=rows)


def test_same_seed_gives_the_same_run() -> None:
    first, second, other = (simulation.play(seed) for seed in (7, 7, 8))
    assert first.trace == second.trace
    assert first.lines == second.lines
    assert first.trace != other.trace


@pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
def test_seed_gives_the_same_trace_in_processes_that_hash_differently(rows: bool) -> None:
    """A seed with processes of most kinds: the whole trace, and all that the processes were told."""
    seed = 15
    command = [sys.executable, str(Path(simulation.__file__)), str(seed), *["rows"] * rows]
    replays = []
    for hash_seed in ("1", "99"):
        replayed = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
        )
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        replays.append(replayed.stdout)
    assert replays[0] == replays[1]
    here = simulation.play(seed, rows=rows)
    told = [line.decode().rstrip() for line in here.lines]
    assert replays[0].startswith("\n".join([*here.trace, *told, f"seed {seed}: everything holds"]))


RARELY_MISSED = [
    ignore_the_generation_of_a_group,
    seal_below_the_floor,
    trim_by_a_group_whatever_its_generation,
    trim_without_asking_for_new_groups,
]
"""Guards that it takes tens or hundreds of seeds to miss."""


@pytest.mark.parametrize(
    "remove_guard",
    [
        append_again_without_looking_for_the_own_number,
        append_below_the_floor,
        believe_any_claim_of_the_same_epoch,
        claim_without_raising_the_epoch,
        ignore_the_claim_id_of_a_group,
        ignore_the_epoch_and_claim_id_of_the_owner,
        raise_the_floor_past_what_is_reachable,
        sweep_cursors_by_an_old_head,
        *(pytest.param(guard, marks=pytest.mark.slow) for guard in RARELY_MISSED),
    ],
)
@pytest.mark.timeout(1800)
def test_simulation_notices_when_a_guard_is_removed(
    remove_guard: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_guard(monkeypatch)
    with pytest.raises(AssertionError, match=r"replay it: python tests/scenarios/simulation\.py \d+"):
        play_many(range(5000))
