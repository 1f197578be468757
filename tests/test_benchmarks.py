"""The benchmarks run, and say what they have to. No time is judged."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    calls,
    contraction,
    conv,
    elementwise,
    functions,
    gemm,
    libgomp,
    openblas,
    operator_cases,
    operators,
    peers,
    report,
    speeds,
    symbolic,
    symbolic_forms,
)
from benchmarks.__main__ import GROUPS, main
from benchmarks.measure import (
    OURS,
    QUICK,
    Contraction,
    Measured,
    Row,
    Settings,
    interleaved,
    paced,
    statement,
)
from benchmarks.start import cumulative
from minitvm import te
from minitvm.runtime.dtype import FLOAT32
from minitvm.tir.expr import IntImm
from minitvm.tir.intrinsics import INTRINSICS

ROOT = Path(__file__).resolve().parents[1]
# ``python -m benchmarks`` where peers look as if not installed, which importing None does.
_WITHOUT = """
import runpy, sys
sys.modules.update(numba=None, tvm=None)
runpy.run_module("benchmarks", run_name="__main__")
"""


@pytest.fixture(scope="module", autouse=True)
def unchanged() -> Iterator[None]:
    """Other tests of the process see JAX as it was: measured, it computes in 64 bits."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The output and the JSON of all groups, without numba and tvm."""
    path = tmp_path_factory.mktemp("benchmarks") / "new" / "quick.json"
    command = [sys.executable, "-c", _WITHOUT, "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text(encoding="utf-8"))


def test_json_has_the_machine_and_every_group(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    assert set(found) == {"machine", "settings", "groups"}
    assert list(found["groups"]) == list(GROUPS)
    assert {"CPU", "cores available", "python", "numpy", "llvmlite"} <= set(found["machine"])
    assert found["machine"]["numba"] == "not installed"
    assert found["settings"]["repeat"] == 2


def test_every_family_of_contractions_is_built_and_right(
    quick: tuple[str, dict[str, Any]],
) -> None:
    out, found = quick
    rows = [row for group in ("gemm", "conv") for row in found["groups"][group]]
    assert {row["threads"] for row in rows} == {1, 2}
    families = {row["contraction"]["family"] for row in rows}
    assert {"float32/squares", "float32/TT", "int8/squares", "fused/gelu"} <= families
    assert {"bfloat16/squares", "conv/layers", "conv/depthwise"} <= families
    assert "FAILED" not in out
    assert "minitvm: WRONG" not in out  # a peer may be, on a processor that it doesn't know
    assert all("minitvm" in row for row in rows)
    assert "Slower than 0.95 of the best peer" in out


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
    assert {"np.empty", "np.add"} <= set(rows["jit, numpy arrays"]["peers"])
    if peers.peer("torch") is not None:
        assert "torch.empty" in rows["jit, torch tensors"]["peers"]
        assert "autograd.Function" in rows["jit, recorded by torch"]["peers"]


def test_batches_are_beside_numpy(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = {row["name"]: row for row in found["groups"]["batches"]}
    assert "numpy" in rows["gufunc, 10,000 products of 4 x 4, one factor for all"]["peers"]
    assert "numpy" in rows["ufunc, reduce of 1,000 rows of 100"]["peers"]


def test_memory_has_the_bound_of_a_copy(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = found["groups"]["memory"]
    assert {row["threads"] for row in rows} == {1, 2}
    assert "transpose float32 64 x 100 by 1, 0, 1 thread" in {row["name"] for row in rows}
    assert all(row["target"] > 0 for row in rows)
    assert not any("copy" in peer for row in rows for peer in row["peers"])


def test_semirings_are_beside_the_product(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = found["groups"]["semirings"]
    assert "min(a + b), 256^3" in {row["name"] for row in rows}
    assert all(set(row["peers"]) == {"the product"} and row["target"] > 0 for row in rows)


def test_every_operator_of_the_gallery_is_measured(quick: tuple[str, dict[str, Any]]) -> None:
    out, found = quick
    scripts = {path.stem for path in (ROOT / "examples" / "operators").glob("*.py")}
    assert scripts == {each.script for each in operator_cases.OPERATORS}
    names = [row["name"] for row in found["groups"]["operators"]]
    assert any(name.startswith("edit_distance forward small, numpy: ") for name in names)
    if peers.peer("torch") is not None:
        assert scripts == {name.split()[0] for name in names}
        assert any(name.startswith("rms_norm backward small, torch: ") for name in names)
    assert "Slower than 1.05 of the best peer, by least times: " in out


def test_an_operator_that_computes_something_else_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heat_equation = importlib.import_module("examples.operators.heat_equation")
    monkeypatch.setattr(heat_equation, "by_numpy", lambda u, rate, steps: u)
    settings = dataclasses.replace(QUICK, only="heat_equation forward")
    monkeypatch.setattr(peers, "_import", lambda name: (None, "not installed"))
    with pytest.raises(AssertionError, match=r"heat_equation forward small, numpy: WRONG: off by"):
        list(operators.rows(settings))


def test_losses_of_operators_are_said() -> None:
    rows = [_shape("a", 1.0, 4.0), _shape("b", 2.0, 1.0)]
    head, lost = operators.summary(rows).splitlines()
    assert head == "Slower than 1.05 of the best peer, by least times: 1 of 2"
    assert " ".join(lost.split()) == "b 2 s 2.00 (2.00) SLOWER torch 2.00; numba 200.00"


def test_exchange_is_measured_both_ways(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = {row["name"]: row for row in found["groups"]["exchange"]}
    assert "numpy" in rows["np.from_dlpack of an array"]["peers"]
    if peers.peer("torch") is not None:
        assert {"tensor.numpy()", "np.from_dlpack"} <= set(
            rows["from_dlpack of a tensor of torch"]["peers"]
        )
        assert {"numpy", "torch.from_numpy"} <= set(rows["torch.from_dlpack of an array"]["peers"])


def test_callers_are_measured_alone_and_together(quick: tuple[str, dict[str, Any]]) -> None:
    _, found = quick
    rows = {row["name"]: row for row in found["groups"]["threads"]}
    alone, together = (rows[f"addition of 3 elements, {n}"] for n in ("1 caller", "8 callers"))
    assert set(alone["peers"]) == set(together["peers"])
    assert "calls of 8 callers in the time that one makes one: minitvm " in together["what"]


def test_command_line_runs_the_groups_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "_import", lambda name: (None, "not installed"))
    path = tmp_path / "out.json"
    main(["matmul", "--quick", "--repeat", "1", "--json", str(path)])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert list(found["groups"]) == ["matmul"]
    assert found["settings"]["repeat"] == 1
    assert str(path) in capsys.readouterr().out


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
    program: elementwise.Program,
    loop: elementwise.Loop,
    inputs: Any,
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "_import", lambda name: (None, "not installed"))
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


# ---- Contractions --------------------------------------------------------------------------------


def _shape(name: str, ours: float | None, peer: float, *, held_out: bool = False) -> Row:
    measured = {"torch": Measured(peer), "numba": Measured(0.01)}
    missing = {}
    if ours is None:
        missing[OURS] = "FAILED: CompileError: no"
    else:
        measured[OURS] = Measured(ours)
    about = Contraction("f", 2_000_000_000, held_out, 0.05, ("numba",))
    return Row(name, "f", measured, missing, contraction=about)


def test_a_shape_is_a_line_with_the_speed_in_that_of_the_best_peer() -> None:
    lost = " ".join(speeds.line(_shape("1 x 2", 2.0, 1.0, held_out=True)).split())
    assert lost == "f 1 x 2 * 1 2 s 1.0 0.50 (0.50) LOST torch 0.50; numba 0.01"
    assert "LOST" not in speeds.line(_shape("1 x 2", 1.0, 0.96))
    assert speeds.line(_shape("1 x 2", None, 1.0)).endswith("1 FAILED: CompileError: no")


def test_a_summary_of_shapes() -> None:
    rows = [
        _shape("a", 1.0, 4.0),
        _shape("b", 2.0, 1.0),
        _shape("c", 1.0, 2.0, held_out=True),
    ]
    low = speeds.Target("low", 1.5, lambda row: True)
    high = speeds.Target("high", 1.5, lambda row: True, worst=0.95)
    text = [" ".join(line.split()) for line in speeds.summary(rows, [low, high]).splitlines()]
    assert "low, 1 thread 3 1.59 (1.59) 0.50 1 mean 1.5: met" in text
    assert "high, 1 thread 3 1.59 (1.59) 0.50 1 mean 1.5, worst 0.95: MISSED" in text
    assert "tuned on 2 1.41 (1.41) 0.50 1" in text
    assert "held out 1 2.00 (2.00) 2.00 0" in text
    assert [line.split()[1] for line in text if "LOST" in line] == ["b"]
    assert text[-1].startswith("Scheduling and building 3 programs: median 50 ms, worst 50 ms")


def test_on_one_thread_the_time_of_the_processor_is_undisturbed() -> None:
    measured = {OURS: Measured(4.0, 0.5, 3.0, 1.0), "torch": Measured(4.0, 0.5, 3.0, 2.0)}
    assert speeds.undisturbed(Row("r", "f", measured)) == 2.0
    assert speeds.undisturbed(Row("r", "f", measured, threads=2)) == 1.0


def test_a_shape_that_failed_is_a_loss_and_misses_the_target() -> None:
    target = speeds.Target("t", 1.0, lambda row: True)
    text = speeds.summary([_shape("a", 1.0, 2.0), _shape("b", None, 1.0)], [target])
    assert "1 FAILED   mean 1.0: MISSED" in text
    assert "FAILED: CompileError: no" in text


def _small_product(**changed: Any) -> contraction.Problem:
    problem = gemm.product("float32/squares", "float32", "NT", 3, 4, 5)
    return dataclasses.replace(problem, **changed)


def test_a_wrong_contender_is_named_and_not_measured() -> None:
    def wrong(inputs: Any) -> dict[str, Any]:
        a, b = inputs
        return {"right": lambda: a @ b.T, "wrong": lambda: a @ b.T + 0.1, "raises": lambda: 1 // 0}

    rows = list(contraction.measured(_small_product(peers=wrong), QUICK))
    assert [row.threads for row in rows] == [1, 2]
    for row in rows:
        assert set(row.measured) == {OURS, "right"}
        assert row.missing["wrong"].startswith("WRONG: off by 0.1, where ")
        assert row.missing["raises"].startswith("FAILED: ZeroDivisionError: integer division")


def test_a_program_that_cannot_be_built_is_a_row() -> None:
    def beyond(te: Any) -> list[Any]:
        A = te.placeholder((3,), name="A")
        return [A, te.compute((3,), lambda i: A[i + 1], name="B")]

    row, _ = contraction.measured(_small_product(program=beyond), QUICK)
    assert row.missing[OURS].startswith("FAILED: CompileError: ")
    assert row.ratio is None
    assert report.document({}, QUICK, {"gemm": [row]})["groups"]["gemm"][0]["minitvm"] is None


def test_only_the_shapes_asked_for() -> None:
    settings = dataclasses.replace(QUICK, only="NT 3", threads=(1,))
    problems = [_small_product(name="NT 3"), _small_product(name="NT 4")]
    assert [row.name for row in contraction.rows(problems, settings)] == ["NT 3"]
    assert not list(contraction.rows(problems[1:], settings))


@pytest.mark.parametrize(
    "layer",
    [
        conv.Layer(3, 9, 4, 3, 2, 1),
        conv.Layer(4, 8, 6, 3, 1, 2, dilation=2, groups=2),
        conv.Layer(4, 7, 4, 5, 1, 2, groups=4),
    ],
)
def test_convolutions_are_those_of_torch(layer: conv.Layer) -> None:
    torch = pytest.importorskip("torch")
    (row,) = contraction.measured(
        conv.convolution("conv/layers", layer), dataclasses.replace(QUICK, threads=(1,))
    )
    assert torch.__version__
    assert set(row.measured) == {OURS, "torch"}
    assert not row.missing


def test_slow_contenders_are_run_once_more_and_others_in_the_time_there_is() -> None:
    runs = {"slow": 0, "fast": 0}

    def contender(name: str, seconds: float) -> Any:
        def run(number: int) -> float:
            runs[name] += 1
            return number * seconds

        return run

    contenders = {"slow": contender("slow", 5.0), "fast": contender("fast", 0.1)}
    found = paced(contenders, Settings(repeat=100, least=0.05), 1.0)
    assert (found["slow"].seconds, found["fast"].seconds) == (5.0, 0.1)
    assert runs["slow"] == 1
    assert set(paced({"slow": contenders["slow"]}, Settings(), 1.0)) == {"slow"}
    assert 10 <= runs["fast"] < 20


# ---- Symbolic extents ----------------------------------------------------------------------------


def test_symbolic_extents_are_beside_constant_ones(quick: tuple[str, dict[str, Any]]) -> None:
    out, found = quick
    first, build, *_ = found["groups"]["symbolic"]
    assert (first["name"], build["name"]) == (
        "product NN 64 x 64 x 64",
        "build product NN 64 x 64 x 64",
    )
    assert list(first["peers"]) == list(build["peers"]) == ["constant extents"]
    assert "calls in the least time with constant extents: mean " in out


def test_every_form_is_a_program_of_its_extents() -> None:
    forms = [*symbolic_forms.forms()]
    assert len({form.name for form in forms}) == len(forms) > 150
    for form in forms:
        names = [f"n{place}" for place, _ in enumerate(form.extents)]
        *_, output = form.program(*map(te.var, names))
        has_weights = form.name.startswith("rows by")  # of constant sizes
        known = [isinstance(extent, IntImm) for extent in output.shape[1:]]
        assert has_weights or not any(known), form.name


def test_symbolic_extents_are_those_asked_for() -> None:
    settings = dataclasses.replace(QUICK, only="transpose 0 2 1 2 x 100", threads=(1,))
    names = [row.name for row in symbolic.rows(settings)]
    assert names == ["transpose 0 2 1 2 x 100 x 100", "build transpose 0 2 1 2 x 100 x 100"]


def test_results_that_differ_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(n: Any) -> list[Any]:
        x = te.placeholder((n,), name="X")
        factor = 1.0 if isinstance(n, int) else 2.0
        return [x, te.compute((n,), lambda i: x[i] * factor, name="Y")]

    form = symbolic_forms.Form("wrong", program, (64,))
    monkeypatch.setattr(symbolic, "forms", lambda: [form])
    with pytest.raises(AssertionError, match=r"wrong: the results differ by "):
        list(symbolic.rows(QUICK))


def test_slow_symbolic_extents_are_said() -> None:
    def row(name: str, ours: float) -> Row:
        return Row(name, "w", {OURS: Measured(ours), symbolic.CONSTANT: Measured(1.0)})

    rows = [row("a", 1.1), row("b", 1.3), row("build a", 1.9), row("build b", 2.5)]
    assert [" ".join(line.split()) for line in symbolic.summary(rows).splitlines()] == [
        "calls in the least time with constant extents: mean 1.20, above 1.2: 1 of 2",
        "b 1.3 s 1.30 (1.30) SLOWER",
        "builds in the least time with constant extents: mean 2.18, above 2.0: 1 of 2",
        "build b 2.5 s 2.50 (2.50) SLOWER",
    ]


# ---- Functions -----------------------------------------------------------------------------------


def test_every_function_of_floats_has_a_row() -> None:
    of_floats = {each.name for each in INTRINSICS.values() if each.problem(FLOAT32) is None}
    assert of_floats - set(functions.CASES) == {"isnan", "isinf", "isfinite", "round"}  # no peer


def test_functions_are_measured_with_their_errors(quick: tuple[str, dict[str, Any]]) -> None:
    out, found = quick
    rows = {row["name"]: row for row in found["groups"]["math"]}
    assert {"exp float32", "exp float64", "atan2 float32"} <= set(rows)
    assert "numpy" in rows["tan float64"]["peers"]
    assert " ULP" in rows["exp float32"]["what"]
    assert "In the speed of the best peer: mean " in out


def test_functions_are_those_asked_for() -> None:
    settings = dataclasses.replace(QUICK, only="tan float32")
    assert [row.name for row in functions.rows(settings)] == ["tan float32"]


@pytest.mark.parametrize("name", ["exp", "hypot"])
def test_the_error_of_a_function(name: str) -> None:
    error = functions.largest_error(name, "float32")
    assert error is not None
    assert 0.4 < error <= 1
    assert functions.largest_error("ldexp", "float32") is None


def test_a_summary_of_functions() -> None:
    rows = [_shape("a", 1.0, 4.0), _shape("b", 2.0, 1.0)]
    assert functions.summary(rows) == (
        "In the speed of the best peer: mean 1.41, worst 0.50 (b); undisturbed 1.41, 0.50 (b); "
        "target 1.2, 0.9: MISSED"
    )
    assert functions.summary(rows[:1]).endswith("4.00 (a); target 1.2, 0.9: met")
    assert functions.summary([]) == "no peer"


def test_threads_of_openblas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(openblas, "_MAPPED", tmp_path / "none")
    openblas._library.cache_clear()
    try:
        assert openblas.why_not().startswith("its threads can't be set: no library")
    finally:
        openblas._library.cache_clear()
