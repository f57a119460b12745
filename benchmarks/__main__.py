"""Run the benchmarks: `python benchmarks` runs every script, `python benchmarks codec` one."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import Bench  # noqa: E402  # after the path to it

_EXAMPLES = """\
examples:
  python benchmarks                   every script; results go to benchmarks/results/
  python benchmarks codec             one of them
  python benchmarks codec --quick     small inputs, to see that it works; nothing is written
  python benchmarks --quick --out /tmp/results

The exit status is 1 if a promised ratio was missed (with --quick it is only shown).
"""


def main() -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in {"__main__", "harness", "places"})
    parser = argparse.ArgumentParser(
        prog="python benchmarks",
        description="Measure forebay, as ratios to ceilings and peers taken in the same run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run, of: {', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: proves nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON and pictures go")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(names)}")
    out = options.out or (None if options.quick else HERE / "results")
    kept = True
    for name in options.names or names:
        script = importlib.import_module(name)
        bench = Bench(name, (script.__doc__ or name).splitlines()[0], quick=options.quick)
        script.run(bench)
        kept = bench.finish(out) and kept
    return 0 if kept or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
