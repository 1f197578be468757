"""Makes small wrong changes and counts those that no test notices.

python -m tests.mutation --sample 200 --seed 1 --rooms transform,arith --jobs 2   (docs/testing.md)

Libraries for this (mutmut, cosmic-ray) run all tests, or those that call the changed function; they
change functions without decorators alone or start a process for each change, and know nothing of a
package that lies in two places. Here the few tests that execute a changed line run in a forked
process, which is what makes the run short enough to be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from tests.mutation.equal import EQUAL
from tests.mutation.mutants import Mutant, mutants_of, sampled
from tests.mutation.runner import Tree, judged
from tests.mutation.sources import CACHE, ROOMS, ROOT
from tests.mutation.traces import Traces, known_failing, note_failing, test_files, trace

RESULTS = CACHE / "results.jsonl"
STATES = ("caught", "timed out", "survived", "equal", "unsure")


def main() -> None:
    """The command."""
    options = _options()
    if options.trace is not None:
        wanted = options.trace or [""]
        trace([f for f in test_files() if any(each in f for each in wanted)], options.jobs)
        return
    mutants = [
        mutant
        for room in options.rooms.split(",")
        for mutant in sampled(_room(room, options.only), options.sample, options.seed)
    ]
    if options.list:
        for mutant in mutants:
            print(_shown(mutant))
        return
    known = {} if options.fresh else _known()
    if not options.known:
        noticed = {key for key, each in known.items() if each["state"] in ("caught", "timed out")}
        left = [m for m in mutants if m.key not in noticed and m.key not in EQUAL]
        known |= {mutant.key: record for mutant, record in _run(left, options)}
    equal = [{"room": m.room, "state": "equal"} for m in mutants if m.key in EQUAL]
    records = [known[m.key] for m in mutants if m.key in known and m.key not in EQUAL] + equal
    print(table(records))
    sys.exit(any(each["state"] == "survived" for each in records))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--trace", nargs="*", metavar="PART", help="trace files of tests, first")
    parser.add_argument("--sample", type=int, default=40, help="how many changes of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--near", type=float, default=4, help="seconds of tests for each change")
    parser.add_argument("--far", type=float, default=40, help="and for those that survive them")
    parser.add_argument("--fresh", action="store_true", help="also what was caught last time")
    parser.add_argument("--known", action="store_true", help="the table of earlier runs alone")
    parser.add_argument("--list", action="store_true", help="show the changes and run nothing")
    return parser.parse_args()


def _shown(mutant: Mutant) -> str:
    place = f"{mutant.path}:{mutant.line} in {mutant.function or 'the module'}: {mutant.kind}"
    return f"{place}\n  - {mutant.before}\n  + {mutant.after}"


def _room(room: str, only: str) -> list[Mutant]:
    paths = sorted((ROOT / ROOMS[room]).rglob("*.py"))
    return [m for path in paths if only in str(path) for m in mutants_of(path)]


def _known() -> dict[tuple[str, ...], dict[str, Any]]:
    """What became of changes in earlier runs, by their keys."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else ():
        record = json.loads(line)
        found[record["path"], record["function"], record["before"], record["after"]] = record
    return found


def _run(
    mutants: list[Mutant], options: argparse.Namespace
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """The record of each change, written and printed when it is known."""
    traces = Traces()
    trees: SimpleQueue[Tree] = SimpleQueue()

    def judge(mutant: Mutant) -> dict[str, Any]:
        tree = trees.get()
        try:
            return judged(tree, mutant, traces, options.near, options.far)
        finally:
            trees.put(tree)

    records = []
    with ExitStack() as stack:
        for _ in range(options.jobs):
            trees.put(stack.enter_context(Tree()))
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, record in zip(mutants, pool.map(judge, mutants), strict=True):
                _note(record)
                if record["state"] == "survived":
                    print(_shown(mutant), flush=True)
                records.append(record)
        failing = _failing(trees.get(), records, traces)
    note_failing(known_failing() | failing)
    for mutant, record in zip(mutants, records, strict=True):
        if set(record["by"]) & failing:
            record["state"] = "unsure"
            _note(record)
            print(f"fails without the change: {record['by'][0]}\n{_shown(mutant)}")
        yield mutant, record


def _note(record: dict[str, Any]) -> None:
    with RESULTS.open("a", encoding="utf-8") as results:
        results.write(json.dumps(record) + "\n")


def _failing(tree: Tree, records: list[dict[str, Any]], traces: Traces) -> set[str]:
    """The tests that have caught changes, and fail without one as well."""
    tests = {test for record in records for test in record["by"]}
    return set(tree.run(traces.seconds_of(tests), all_of_them=True)["failed"]) if tests else set()


def table(records: list[dict[str, Any]]) -> str:
    """How many changes of each room were made, and what became of them."""
    lines = ["room            made  " + "  ".join(f"{state:>9}" for state in STATES) + "   score"]
    for room in dict.fromkeys(each["room"] for each in records):
        counts = Counter(each["state"] for each in records if each["room"] == room)
        noticed = counts["caught"] + counts["timed out"]
        different = noticed + counts["survived"]
        numbers = "  ".join(f"{counts[state]:>9}" for state in STATES)
        score = f"{100 * noticed / different:6.1f}%" if different else "      -"
        lines.append(f"{room:<14}  {counts.total():>4}  {numbers}  {score}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
