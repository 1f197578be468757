"""``python -m tests.whole_programs --count 10000 --seed 1 --jobs 2``: see docs/testing.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from tests.whole_programs.sweep import case_of, case_text, shrunk, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.whole_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for each kind of finding")
    parser.add_argument("--show", action="store_true", help="print the program of --seed")
    options = parser.parse_args()
    if options.show:
        print(case_text(*case_of(options.seed)))
        return 0
    with tempfile.TemporaryDirectory(prefix="minitvm-cache-") as directory:
        os.environ["MINITVM_CACHE_DIR"] = directory
        report = sweep(
            options.count, options.seed, options.jobs, lambda line: print(line, flush=True)
        )
        print(report.text())
        for name, seeds in report.findings.items():
            case, trace = shrunk(seeds[0], options.shrink)
            print(
                f"\n--- {name}: seed {seeds[0]}, as small as it gets:\n{case_text(*case)}\n{trace}"
            )
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
