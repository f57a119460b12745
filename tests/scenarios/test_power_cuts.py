"""Power cuts on a local disk: what was reported durable is there afterwards, and the buffer can be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_work import Work
from simulation_world import small_limits


@pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
def test_what_was_reported_durable_survives_a_power_cut_after_any_change_of_the_disk(
    rows: bool, tmp_path: Path
) -> None:
    with small_limits(forgetful=False):
        work = Work(tmp_path / "disk", rows=rows)
        work.do_all()
        wrong = work.check_all(tmp_path / "after")
    print(work.disk.changes, work.cut_disks, len(work.states), len(wrong))
    assert not wrong, f"{len(wrong)} of {len(work.states)} disks: " + "\n".join(wrong[:5])
