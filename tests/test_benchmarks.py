"""The benchmarks run, and say what they have to. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import calls, elementwise, libgomp, peers, report
from benchmarks.__main__ import GROUPS, main
from benchmarks.measure import OURS, Measured, Row, Settings, interleaved, statement
from benchmarks.start import cumulative

ROOT = Path(__file__).resolve().parents[1]
# Makes a peer look as if it were not installed, which importing None does.
_WITHOUT = (
    "import sys; sys.modules.update(numba=None, tvm=None); from benchmarks.__main__ import main"
)


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The output and the JSON of all groups, without numba and tvm."""
    path = tmp_path_factory.mktemp("benchmarks") / "new" / "quick.json"
    out = _run("-c", f"{_WITHOUT}; main(['--quick', '--json', {str(path)!r}])")
    return out, json.loads(path.read_text(encoding="utf-8"))


def test_json_has_the_machine_and_every_group(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    assert set(found) == {"machine", "settings", "groups"}
    assert list(found["groups"]) == list(GROUPS)
    assert {"CPU", "cores available", "python", "numpy", "llvmlite"} <= set(found["machine"])
    assert found["machine"]["numba"] == "not installed"
    assert found["settings"]["repeat"] == 2


def test_json_rows(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = [row for group in found["groups"].values() for row in group]
    assert {"import minitvm beyond numpy and llvmlite.binding", "matmul 56, call"} <= {
        row["name"] for row in rows
    }
    for row in rows:
        assert row["what"]
        assert row["minitvm"]["seconds"] > 0
        assert all(peer["seconds"] > 0 for peer in row["peers"].values())
        assert (row["ratio"] is None) == (not row["peers"])
        assert (row["met"] is None) == (row["target"] is None)


def test_missing_peers_are_named(quick: tuple[str, dict[str, Any]]) -> None:
    out, found = quick
    (call, kernel) = found["groups"]["matmul"]
    for row in (call, kernel, found["groups"]["build"][0], found["groups"]["start"][1]):
        assert {"numba", "tvm"} <= set(row["missing"])
    assert "numba not installed" in out
    assert "tvm not installed" in out


def test_calls_of_every_kind_are_measured(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = {row["name"]: row for row in found["groups"]["calls"]}
    assert {"numpy arrays", "NDArrays", "1 numpy array", "8 numpy arrays"} <= set(rows)
    assert {"numba", "tvm"} == set(rows["numpy arrays"]["missing"])
    assert "np.add(out=)" in rows["numpy arrays"]["peers"]
    assert rows["numpy arrays"]["target"] is None  # which is a part of the absent peers' times
    assert rows["of it, the compiled function"]["peers"] == {}


def test_callers_are_measured_alone_and_together(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = {row["name"]: row for row in found["groups"]["threads"]}
    alone, together = (rows[f"addition of 3 elements, {n}"] for n in ("1 caller", "8 callers"))
    assert set(alone["peers"]) == set(together["peers"])
    assert "calls of 8 callers in the time that one makes one: minitvm " in together["what"]


def test_command_line_runs_the_groups_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    out = _run("-m", "benchmarks", "matmul", "--quick", "--repeat", "1", "--json", str(path))
    found = json.loads(path.read_text(encoding="utf-8"))
    assert list(found["groups"]) == ["matmul"]
    assert found["settings"]["repeat"] == 1
    assert str(path) in out


@pytest.mark.parametrize("arguments", [["nonsense"], ["--repeat", "0"]])
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error: argument" in capsys.readouterr().err


def test_losses_are_said_as_wins_are() -> None:
    loss = Row("slow", "a", {"minitvm": Measured(3.0), "peer": Measured(1.5)}, target=1.0)
    win = Row(
        "fast", "b", {"minitvm": Measured(1e-3), "peer": Measured(2e-3)}, {"absent": "gone"}, 1.0
    )
    text = " ".join(report.table("group", [loss, win]).split())
    assert "2.00 (slower) 1 s: MISSED" in text
    assert "peer 1.5 s (2.00)" in text
    assert "0.50 (faster) 1 s: met" in text
    assert "absent gone" in text


def test_more_than_one_thread_is_said() -> None:
    row = Row("r", "a", {"minitvm": Measured(1.0, 1.0), "peer": Measured(1.0, 1.9)})
    assert "NOT ONE THREAD: peer kept 1.9 cores busy" in report.table("group", [row])


def test_contenders_take_turns() -> None:
    log: list[str] = []

    def contender(name: str) -> Any:
        def run(number: int) -> float:
            log.append(name)
            return 1.0

        return run

    found = interleaved({"a": contender("a"), "b": contender("b")}, Settings(repeat=3, least=0.5))
    assert "".join(log[-6:]) == "abbaab"
    assert found["a"].seconds == 1.0


def test_imports_are_read_from_pythons_account() -> None:
    log = "import time: self [us] | cumulative | imported package\nimport time: 10 | 2500 |   m\n"
    assert cumulative(log, "m") == 0.0025
    with pytest.raises(ValueError, match="expected a line for 'n', found none"):
        cumulative(log, "n")


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"g": [Row("r", "a", {"minitvm": Measured(1.0), "peer": Measured(2.0)}, target=3.0)]}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert report.plot(tmp_path / "a.png", rows) == "plot: not drawn, matplotlib is not installed"
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    assert report.plot(tmp_path / "b.png", rows) == f"plot: {tmp_path / 'b.png'}"
    assert (tmp_path / "b.png").stat().st_size > 0


def test_a_target_is_the_least_part_of_the_peers_times() -> None:
    measured = {OURS: Measured(1.0), "tvm": Measured(6.0), "numba": Measured(1.5)}
    assert calls._target(measured, {"tvm": 6, "numba": 2, "absent": 100}) == 0.75
    assert calls._target(measured, {"absent": 2}) is None


def test_a_call_that_computes_wrongly_is_not_measured() -> None:
    x, z = np.ones(3, np.float32), np.zeros(3, np.float32)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        calls._call("f(x, x, z)", 3 * x, f=np.add, x=x, z=z)
    with pytest.raises(AssertionError, match=r"expected a TypeError of .*add.*, got none"):
        calls._refusal("f(x, x, z)", f=np.add, x=x, z=z)


def test_a_statement_runs_as_often_as_asked() -> None:
    log: list[int] = []
    assert statement("log.append(1)", log=log)(3) > 0
    assert log == [1, 1, 1]


@pytest.mark.parametrize(
    ("program", "loop", "inputs", "expected"),
    [
        (elementwise.index, elementwise.index_loop, (), [0, 1, 2]),
        (elementwise.total("xyz"), elementwise.add_loop, ([1, 2, 3], [4, 5, 6]), [5, 7, 9]),
        (
            elementwise.total("abcdefgz"),
            elementwise.total_of_seven_loop,
            ([1, 2, 3],) * 7,
            [7, 14, 21],
        ),
        (elementwise.scaled("float32"), elementwise.scale_loop, ([1, 2, 3], 2.5), [2.5, 5, 7.5]),
        (elementwise.exponential, elementwise.exponential_loop, ([0, 0, 0],), [1, 1, 1]),
    ],
)
def test_the_program_and_the_loop_compute_the_same(
    program: elementwise.Program, loop: elementwise.Loop, inputs: Any, expected: list[float]
) -> None:
    args = [np.array(x, np.float32) if isinstance(x, list) else x for x in inputs]
    for function in (elementwise.compiled(program, loop)[OURS], loop):
        z = np.zeros(3, np.float32)
        function(*args, z)
        assert z.tolist() == expected


def test_without_libgomp(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    assert libgomp.regions() == (
        None,
        "not found (libgomp.so.1: cannot open shared object file)",
    )


def test_a_peer_that_is_not_there() -> None:
    assert peers.peer("no_such_peer") is None
    assert "No module named" in peers.missing(["no_such_peer"])["no_such_peer"]
