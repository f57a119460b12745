"""Run the benchmarks: `python benchmarks` runs every script, `python benchmarks codec` one."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import changes  # noqa: E402  # after the path to it
import report  # noqa: E402
from harness import Bench, Skipped  # noqa: E402

RESULTS = HERE / "results"
_INTERRUPTED = 128 + signal.SIGINT

_EXAMPLES = """\
examples:
  python benchmarks                   every script; results go to benchmarks/results/, a page to benchmarks/report.html
  python benchmarks codec             one script
  python benchmarks codec --quick     small inputs, to check that the script runs; nothing is written
  python benchmarks --quick --out /tmp/results
  python benchmarks report            write the page from the results in benchmarks/results/, without measuring

After each script the run prints what changed since the committed results. Ctrl-C ends a run: the results of finished
scripts are kept, and the interrupted script prints what it has. The exit status is 1 if a script failed or missed a
promise; with --quick a missed promise is only printed.
"""


def main() -> int:
    names = find_scripts()
    options = _parse(names)
    out = options.out or (None if options.quick else RESULTS)
    page = (options.out or HERE) / "report.html"
    if options.names == ["report"]:
        return _write_page(options.out or RESULTS, page)
    kept, done = True, 0
    try:
        for name in options.names or names:
            kept = _run(name, quick=options.quick, out=out) and kept
            done += 1
    except KeyboardInterrupt:
        print(f"\ninterrupted, with {done} of {len(options.names or names)} scripts done", file=sys.stderr)
        return _INTERRUPTED
    finally:
        if out is not None and done:
            _write_page(out, page)
    return 0 if kept else 1


def find_scripts() -> list[str]:
    """The files here that measure something; the others help them."""
    return sorted(path.stem for path in HERE.glob("*.py") if "\ndef run(bench: Bench) -> None:" in path.read_text())


def _parse(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks",
        description="Measure forebay, as ratios to ceilings and peers taken in the same run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run, of: {', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: proves nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON, pictures and the page go")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names))
    if unknown and options.names != ["report"]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(names)}")
    return options


def _run(name: str, *, quick: bool, out: Path | None) -> bool:
    """Run one script, and return whether it did what was promised. One that fails does not keep others from running."""
    before = changes.committed(name)
    bench: Bench | None = None
    try:
        script: Any = importlib.import_module(name)
        bench = Bench(name, (script.__doc__ or name).splitlines()[0], quick=quick)
        script.run(bench)
    except KeyboardInterrupt:
        if bench is not None:
            print(f"\n{name} was interrupted. So far, and not written:")
            bench.show()
        raise
    except Skipped as reason:
        print(f"\n{name} is skipped: {reason}", file=sys.stderr)
        return True
    except Exception:  # noqa: BLE001 - whatever it is, the other scripts are worth running
        traceback.print_exc()
        print(f"\n{name} FAILED, and has no results", file=sys.stderr)
        return False
    bench.show()
    if before is not None:
        print()
        for line in changes.describe(before, bench.as_json()):
            print(f"  {line}")
    bench.save(out)
    return bench.kept or quick


def _write_page(results: Path, page: Path) -> int:
    page.write_text(report.make_page(report.load(results)))
    print(f"\nthe page: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
