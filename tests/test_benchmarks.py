"""The benchmarks' own parts: what they compare, show and compute. What they measure, `make bench` says."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import changes
import compressing
import contention
import cost
import headlines
import performance
import report
import scale
import scale_tables
import sizing
from contention import Store
from harness import Bench, Skipped, to_text

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def load_main() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_main", BENCHMARKS / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finished(name: str = "trial", *, quick: bool = False, share: float = 0.5, **promises: float) -> dict[str, Any]:
    """A run of a ceiling and one case at a share of it, with what was promised and found by name."""
    bench = Bench(name, "How <fast> is it?", quick=quick)
    bench.record("group", {"ceiling": [1.0], "case": [1 / share]}, ceiling="ceiling")
    for text, found in promises.items():
        bench.require(text, found, least=1.0)
    return bench.as_json()


# What moved


def test_comparison_leads_with_what_moved_and_sums_up_the_rest() -> None:
    before, now = finished(share=0.5), finished(share=0.75)
    steady = Bench("trial", "?")
    steady.record("other", {"ceiling": [1.0], "case": [2.0]}, ceiling="ceiling")
    for run in (before, now):
        run["rows"] += steady.as_json()["rows"]
        run["groups"] += steady.as_json()["groups"]
    lines = list(changes.describe(before, now))
    assert lines[1].split() == ["+50%", "0.50", "→", "0.75", "group:", "case"]
    assert lines[2] == "  1 other shares of ceilings within 10% of what they were"


def test_comparison_says_which_promises_changed_their_verdict() -> None:
    lines = list(changes.describe(finished(first=2.0, second=0.5), finished(first=0.9, second=1.5)))
    assert "  NO LONGER KEPT: first  (2.00 then, 0.90 now)" in lines
    assert "  now kept: second  (0.50 then, 1.50 now)" in lines


def test_comparison_warns_of_another_machine_and_leaves_rates_out() -> None:
    before, now = finished(), finished()
    assert any("ceilings themselves ran at 1.00" in line for line in changes.describe(before, now))
    before["machine"]["cores"] = -1
    before["machine"]["packages"]["pyarrow"] = "0.1"
    lines = list(changes.describe(before, now))
    assert "cores -1 then" in lines[1]
    assert "pyarrow 0.1 then" in lines[1]
    assert not any("ran at" in line for line in lines)


def test_comparison_of_a_quick_run_warns_and_judges_no_promise() -> None:
    lines = list(changes.describe(finished(promise=2.0), finished(promise=0.5, quick=True)))
    assert "this run was --quick" in lines[1]
    assert not any("KEPT" in line for line in lines)


def test_rows_with_another_ceiling_are_not_compared() -> None:
    before, now = finished(share=0.5), finished(share=0.9)
    before["groups"][0]["ceiling"] = "an easier one"
    assert list(changes.describe(before, now))[1:] == ["  2 rows are new, or have another ceiling than then"]


# What is kept


def test_results_are_kept_with_a_line_for_each_row_and_no_more_than_25_times_of_it() -> None:
    bench = Bench("trial", "?")
    bench.record("group", {"ceiling": [3.0000001], "case": [float(n) for n in range(600, 0, -1)]}, ceiling="ceiling")
    text = to_text(bench.as_json())
    ceiling, case = json.loads(text)["rows"]
    assert ceiling["seconds"] == [3.0]
    assert len(case["seconds"]) == 25
    assert (case["seconds"][0], case["seconds"][-1]) == (1.0, 600.0)
    assert sum('"case":' in line for line in text.splitlines()) == 2
    assert max(map(len, text.splitlines())) < 500


def test_committed_results_are_as_compact_as_a_run_writes_them() -> None:
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert path.read_text() == to_text(json.loads(path.read_text())), path.name


# The runner


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, **scripts: Callable[[Bench], None]) -> int:
    """Run made-up scripts as `python benchmarks` runs the real ones."""
    main = load_main()
    monkeypatch.setattr(main, "find_scripts", lambda: list(scripts))
    for name, run in scripts.items():
        module = ModuleType(name, f"Does {name} work?")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(out)])
    status: int = main.main()
    return status


def keep(bench: Bench) -> None:
    bench.require("it works", 2.0, least=1.0)


def interrupt(bench: Bench) -> None:
    bench.require("begun", 1.0, least=1.0)
    raise KeyboardInterrupt


def fail(bench: Bench) -> None:
    raise RuntimeError("no server")


def skip(bench: Bench) -> None:
    raise Skipped("there is no Maven")


def miss(bench: Bench) -> None:
    bench.require("it works", 0.5, least=1.0)


def test_interrupted_run_keeps_what_is_finished_and_shows_what_was_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, tmp_path, trial_a=keep, trial_b=interrupt, trial_c=keep) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "trial_a.json"]
    shown = capsys.readouterr().out
    assert "trial_b was interrupted" in shown
    assert "begun" in shown


def test_script_that_fails_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, tmp_path, trial_a=fail, trial_b=keep) == 1
    assert json.loads((tmp_path / "trial_b.json").read_text())["promises"][0]["kept"]
    assert not (tmp_path / "trial_a.json").exists()
    assert "no server" in capsys.readouterr().err


def test_script_that_cannot_run_here_is_skipped_with_a_sentence_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, tmp_path, trial_a=skip, trial_b=keep) == 0
    assert not (tmp_path / "trial_a.json").exists()
    assert "trial_a is skipped: there is no Maven" in capsys.readouterr().err


def test_missed_promise_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_main(monkeypatch, tmp_path, trial_a=keep) == 0
    assert run_main(monkeypatch, tmp_path, trial_a=keep, trial_b=miss) == 1


def test_every_script_is_found_and_asks_a_question() -> None:
    found = load_main().find_scripts()
    assert {"codec", "cost", "produce", "consume", "scale"} <= set(found)
    assert not {"harness", "places", "report", "headlines", "corpora", "changes", "contention", "sizing"} & set(found)
    for name in found:
        first = (BENCHMARKS / f"{name}.py").read_text().splitlines()[0]
        assert first.endswith("?"), f"benchmarks/{name}.py begins with {first}"


# The page


class Outline(HTMLParser):
    """Where each script's section begins, what is loaded from elsewhere, and whether all that was opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: list[str | None] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "section":
            self.sections.append(found["id"])
        if tag in {"script", "link", "img", "iframe", "object"} or "src" in found:
            self.loads.append(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open and closed at once."""

    def handle_endtag(self, tag: str) -> None:
        implied = {"tr", "td", "th", "p", "li"}
        while self.open[-1] != tag and self.open[-1] in implied:
            self.open.pop()
        assert self.open.pop() == tag


def test_page_shows_missed_promises_first_and_loads_nothing() -> None:
    runs = [finished("steady", fine=2.0), finished("late", worse=0.5, bad=0.999, good=3.0)]
    ordered = sorted(runs, key=lambda run: run["name"] == "steady")
    page = report.make_page(ordered)
    outline = Outline(page)
    assert (outline.sections, outline.loads, outline.open) == (["late", "steady"], [], [])
    assert "http" not in page
    assert "2 of 4 promises kept" in page
    assert page.index("<td>worse</td>") < page.index("<td>bad</td>") < page.index("<td>good</td>")
    assert ">99 %<" in page, "what was missed by a hair must not read as reached"
    assert "How &lt;fast&gt; is it?" in page


def test_page_of_the_committed_results_holds_every_script(tmp_path: Path) -> None:
    page = report.make_page(report.load(BENCHMARKS / "results"))
    outline = Outline(page)
    assert set(outline.sections) == {path.stem for path in (BENCHMARKS / "results").glob("*.json")}
    assert len(re.findall(r"<svg viewBox=\"0 0 960", page)) == len(outline.sections)
    assert "NaN" not in page


def test_first_screen_has_a_ratio_for_every_line() -> None:
    runs = {run["name"]: run for run in report.load(BENCHMARKS / "results")}
    for lines in headlines.QUESTIONS.values():
        for line in lines:
            assert isinstance(line.found, str) or line.found.find(runs)
    assert headlines.Figure("absent", "group", "case", "ceiling").find(runs) == []


def test_reasons_are_of_promises_that_exist() -> None:
    runs = {run["name"]: run for run in report.load(BENCHMARKS / "results")}
    for script, reasons in headlines.read_reasons().items():
        for part in reasons:
            assert any(part in promise["text"] for promise in runs[script]["promises"]), f"[{script}] {part}"


def test_missed_promises_are_shown_by_reason_those_without_one_first() -> None:
    runs = [finished("scan", DuckDB=0.3, close=0.96, far=0.9, kept=1.0), finished("other", DuckDB=0.2)]
    found = {
        reason: [(name, each["text"]) for name, each in these] for reason, these in headlines.explain(runs).items()
    }
    (unexplained, known, near) = found
    assert found[unexplained] == [("scan", "far"), ("other", "DuckDB")]
    assert unexplained == ""
    assert known.startswith("A scan")
    assert found[known] == [("scan", "DuckDB")]
    assert (near, found[near]) == (headlines.BY_A_LITTLE, [("scan", "close")])


# Scale


def test_model_of_a_manifest_agrees_with_the_real_code() -> None:
    """In simulated time and from a seed: the same on every machine."""
    for producers, interval in ((1, 0.1), (4, 0.1), (12, 1.0)):
        store = Store(put=0.05, get=0.03)
        found = contention.measure(producers, interval, store, seconds=20)
        expected = contention.predict(producers, interval, store)
        assert expected.rate == pytest.approx(found.rate, rel=0.15)
        assert expected.tries == pytest.approx(found.tries, rel=0.4)


def test_manifest_takes_no_more_than_one_append_in_each_window() -> None:
    store = Store(put=0.06, get=0.04)
    for producers in (2, 20, 200):
        appends = contention.predict(producers, 0.1, store)
        assert appends.rate < 1 / store.window
        assert appends.tries >= 1
    assert contention.predict(200, 0.1, store).failed > 0
    assert contention.predict(200, 60.0, store).failed == pytest.approx(0, abs=1e-6)


def test_sole_producer_of_a_quiet_buffer_takes_four_writes_a_batch() -> None:
    # The batch, the manifest, the group's plan and its ack; and of reads the batch, and two for each look.
    requests = sizing.predict_requests(1, 10.0, Store(0.05, 0.05))
    assert requests.writes == pytest.approx(4)
    # It looks when it finds it, and 0.15, 0.35, 0.65, … s later until 10 s have passed: nine times, or eight.
    assert requests.reads == pytest.approx(1 + 2 * 9)


def test_plan_spreads_a_fleet_until_its_producers_seldom_meet() -> None:
    measured = sizing.Measured(turns=1.0, seconds_in=8.0, seconds_out=2.0, smaller=4.0)
    found = sizing.plan(sizing.Stream(1e9, 200, measured), 1.0)
    assert found.appends.tries <= sizing.MOST_TRIES
    assert contention.predict(200, found.partitions - 1, sizing.S3).tries > sizing.MOST_TRIES
    assert found.topics == 1
    assert found.batch == pytest.approx(1e9 / 200)
    assert found.cores == pytest.approx((8 + 2) / sizing.BUSY)
    # A day of a TB that is four times smaller: 250 GB for a thirtieth of a month.
    assert found.storage_dollars == pytest.approx(250 / 30 * 0.023)
    large = sizing.plan(sizing.Stream(100e9, 1000, measured), 30.0)
    assert large.topics == 4, "a manifest remembers 256 writers"
    assert large.interval == pytest.approx(sizing.FLUSH_SIZE * 1000 / 100e9), "a full batch does not wait"


@pytest.mark.parametrize(
    ("path", "make"),
    [(scale.PAGE, scale_tables.make_tables), (scale.KAFKA_PAGE, scale_tables.make_comparison)],
    ids=["settings", "coming from Kafka"],
)
def test_page_says_what_scale_computes_from_what_was_measured(path: Path, make: Callable[..., str]) -> None:
    page, figures = path.read_text(), json.loads(scale.RESULTS.read_text())["figures"]
    assert page == cost.put_tables(page, make(figures), scale.BEGIN), "run `python benchmarks/scale.py --write`"


def test_performance_page_says_what_was_measured() -> None:
    page = performance.PAGE.read_text()
    made = performance.make_page(page, {name: performance.read_figures(name) for name in performance.SCRIPTS})
    assert page == made, "run `python benchmarks/performance.py`"


def test_price_of_a_compression_is_its_processor_time_and_its_storage() -> None:
    # 3,600 s for a TB, which is one hour; and a quarter of a TB for a tenth of a month.
    found = {"produce": 2.6, "read": 1.0, "stored": 0.25}
    assert compressing.dollars(found, 72) == pytest.approx(0.0405 + 250 * 0.023 / 10)


def test_scale_command_answers_for_any_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale.py", "--rate", "1e9", "--producers", "200", "--interval", "2"])
    assert scale.main() == 0
    shown = capsys.readouterr().out
    for line in ("1 GB/s before compression, 200 producers", "flush interval  2 s", "for each TB     $", "partitions"):
        assert line in shown
    monkeypatch.setattr(sys, "argv", ["scale.py", "--rate", "0"])
    with pytest.raises(SystemExit):
        scale.main()
