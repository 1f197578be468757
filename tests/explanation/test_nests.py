"""What explain says of loop nests is true of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.driver.program import compiled_function
from minitvm.explanation import machine
from minitvm.explanation.assembly import NestCode, codes_of_nests
from minitvm.explanation.nests import Nest
from minitvm.explanation.report import Explanation
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import BufferStore
from tests.explanation.programs import AARCH64, HASWELL, convolution, product, softmax
from tests.schedules.programs import PROGRAMS, Program
from tests.schedules.random_schedule import schedule_randomly

QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def figures(function: Any, *args: Any) -> Explanation:
    return tvm.explain(function, *args, measure=False)


def built(tensors: list[Tensor], outputs: int = 1, **options: Any) -> tvm.runtime.Module:
    """The function of some tensors, of which the last ones are the outputs."""
    return tvm.build(tensors[-outputs:], tensors, options.pop("target", HASWELL), **options)


def only(found: Explanation) -> Nest:
    (nest,) = found.nests
    return nest


def counts(nest: Nest) -> dict[str, int]:
    return dict(nest.operations)


def written(found: Explanation) -> dict[str, Any]:
    return {str(each.kind): each.number for each in found.named}


# -- Programs -------------------------------------------------------------------------------------


def arg_max(n: int, m: int) -> list[Tensor]:
    X = te.placeholder((n, m), name="X")
    k = te.reduce_axis((0, m), name="k")

    def larger(a: Any, b: Any) -> Any:
        return tuple(tir.Select(a[1] >= b[1], x, y) for x, y in zip(a, b, strict=True))

    reducer = te.comm_reducer(
        larger, lambda t0, t1: (tir.const(-1, t0), te.min_value(t1)), name="arg_max"
    )
    found = te.compute((n,), lambda i: reducer((k.var, X[i, k]), axis=k), name="M")
    return [X, *found]


def copied() -> list[Tensor]:
    X = te.placeholder((64, 64), name="X")
    return [X, te.compute((64, 64), lambda i, j: X[i, j], name="Y")]


def rows_of_table(below: int = 1000) -> list[Tensor]:
    table, rows = te.placeholder((below, 64), name="T"), te.placeholder((32,), "int32", "I")
    return [table, rows, te.compute((32, 64), lambda i, j: table[rows[i], j] * 2.0, name="Y")]


def running_sum(n: int, m: int) -> list[Tensor]:
    X, S = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="S")
    first = te.compute((1, n), lambda _, j: X[0, j], name="first")
    step = te.compute((m, n), lambda t, j: S[t - 1, j] + X[t, j], name="step")
    return [X, te.scan(first, step, S, inputs=[X], name="sums")]


def recurrence(m: int) -> list[Tensor]:
    """Each element needs a function of the one before."""
    X, S = te.placeholder((m, 1), name="X"), te.placeholder((m, 1), name="S")
    first = te.compute((1, 1), lambda _, j: X[0, j], name="first")
    step = te.compute((m, 1), lambda t, j: te.sqrt(abs(S[t - 1, j])) + X[t, j], name="step")
    return [X, te.scan(first, step, S, inputs=[X], name="states")]


def sparse_product(rows: int, columns: int, entries: int) -> list[Tensor]:
    P = te.placeholder((rows + 1,), "int32", name="P")
    J, V = te.placeholder((entries,), "int32", name="J"), te.placeholder((entries,), name="V")
    D = te.placeholder((100, columns), name="D")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((P[i], P[i + 1]), name="k")
        return te.sum(V[k] * D[J[k], j], axis=k)

    return [P, J, V, D, te.compute((rows, columns), element, name="Y")]


def triangle(n: Any) -> list[Tensor]:
    A = te.placeholder((n, n), name="A")

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), name="k")
        return te.sum(A[i, k] * 2.0, axis=k)

    return [A, te.compute((n,), element, name="Y")]


# -- Operations of every kind ---------------------------------------------------------------------


def test_a_product_multiplies_and_adds() -> None:
    found = figures(product(96, 64, 80, HASWELL))
    assert written(found) == {"multiply-adds": 96 * 64 * 80}
    nests = {each.writes: each for each in found.nests}
    assert counts(nests["C.local",])["multiply-adds"] == 96 * 64 * 80
    assert counts(nests["C",]) == {"stores": 96 * 64}  # its loads are of registers
    assert nests["C.local",].reads[0] == "A"


def test_requests_are_no_loads() -> None:
    X = te.placeholder((64, 100), name="X")
    Y = te.compute((64, 100), lambda i, j: X[i, j] * 2, name="Y")
    s = te.create_schedule(Y.op)
    s[Y].prefetch(X, Y.op.axis[0], 2)
    nest = only(figures(tvm.build(s, [X, Y], HASWELL, auto_schedule=False)))
    assert counts(nest)["prefetches"] == 64 * 7 + 64 * (100 % 16 > 0)  # lines, and the last element
    assert counts(nest)["loads"] == 6400
    assert nest.loops == (("i", 64), ("j", 100))


def test_comparisons_and_selections_count() -> None:
    tensors = arg_max(8, 100)
    found = figures(built(tensors, 2, auto_schedule=False))
    assert written(found) == {"comparisons": 2 * 800, "selections": 2 * 800}
    nest = only(found)
    assert nest.writes == ("M.v0", "M.v1")
    assert counts(nest)["comparisons"] == counts(nest)["selections"] == 2 * 800
    assert counts(nest)["loads"] < 2 * 800  # the results so far are none


def test_conditions_on_indices_are_no_comparisons() -> None:
    X = te.placeholder((64,), name="X")
    Y = te.compute((64,), lambda i: te.if_then_else(i % 3 == 0, X[i], 0.0), name="Y")
    assert written(figures(built([X, Y]))) == {"selections": 64}
    Z = te.compute((64,), lambda i: tir.Select(X[i] > 0.5, X[i] / 3.0, const(0.0)), name="Z")
    expected = {"selections": 64, "comparisons": 64, "divisions": 64}
    found = figures(built([X, Z]))
    assert written(found) == expected
    assert counts(only(found)) == {**expected, "loads": 64, "stores": 64}


def test_conversions_remainders_and_functions_count_by_name() -> None:
    X = te.placeholder((48,), "int32", name="X")
    Y = te.compute((48,), lambda i: te.exp((X[i] // 3 % 5).astype("float32")), name="Y")
    expected = {"exp": 48, "conversions": 48, "divisions": 48, "remainders": 48}
    assert written(figures(built([X, Y]))) == expected


def test_a_product_that_is_added_elsewhere_is_one_operation() -> None:
    X = te.placeholder((48,), name="X")
    Y = te.compute((48,), lambda i: X[i] * X[i] + 1.0, name="Y")
    assert written(figures(built([X, Y]))) == {"multiply-adds": 48}


def test_sums_of_different_lengths() -> None:
    found = figures(built(triangle(40)))
    assert written(found) == {"multiply-adds": 40 * 41 // 2}
    assert found.flop == 40 * 41
    found = figures(built(triangle(te.var("n"))))
    assert found.flop == "2 * (n * (n + 1) // 2)"


def test_what_data_say_is_named() -> None:
    """A factor that data alone index counts for each row that they are read for, too."""
    found = figures(built(sparse_product(20, 8, 50)))
    assert written(found) == {"multiply-adds": "8 * (sum over i of P[i + 1] - P[i])"}
    assert found.flop == "16 * (sum over i of P[i + 1] - P[i])"


# -- Vectors --------------------------------------------------------------------------------------

VECTORS: dict[str, tuple[Callable[[], tvm.runtime.Module], int, str]] = {
    "copy": (lambda: built(copied()), 8, ""),
    "gathered": (lambda: built(picked()), 8, "X is read lane by lane: at places that I holds"),
    "argmax": (
        lambda: built(arg_max(8, 100), 2, auto_schedule=False),
        1,
        "a reduction by comparisons and selections",
    ),
    "sum": (lambda: built(row_sums(), auto_schedule=False), 8, ""),
    "strict": (
        lambda: built(row_sums(), fp="strict", auto_schedule=False),
        1,
        'added in order: fp="strict"',
    ),
    "scan": (lambda: built(running_sum(64, 32)), 8, ""),
    "serial": (lambda: built(recurrence(64)), 1, "t"),
    "sparse": (
        lambda: built(sparse_product(20, 8, 50), auto_schedule=False),
        1,
        "D is read at places that J holds",
    ),
    "extern": (lambda: built(cube_roots()), 1, 'a function is called for each element: "cbrt"'),
    "table": (lambda: built(rows_of_table()), 8, ""),
}


def picked() -> list[Tensor]:
    X, rows = te.placeholder((1000,), name="X"), te.placeholder((64,), "int32", name="I")
    return [X, rows, te.compute((64,), lambda i: X[rows[i]] * 2.0, name="Y")]


def row_sums() -> list[Tensor]:
    X = te.placeholder((32, 1000), name="X")
    k = te.reduce_axis((0, 1000), name="k")
    return [X, te.compute((32,), lambda i: te.sum(X[i, k], axis=k), name="Y")]


def cube_roots() -> list[Tensor]:
    X = te.placeholder((64,), "float64", name="X")
    return [X, te.compute((64,), lambda i: tir.call_extern("float64", "cbrt", X[i]), name="Y")]


@pytest.mark.skipif(tvm.Target("llvm").arch != "x86_64", reason="LLVM's choice for x86-64")
@pytest.mark.parametrize("name", VECTORS)
def test_a_nest_is_in_vectors_or_says_why_not(name: str) -> None:
    program, lanes, note_ = VECTORS[name]
    found = figures(program())
    nest = found.nests[-1]
    assert nest.lanes == lanes
    assert any(note_ in each for each in nest.notes) or not note_, nest.notes
    assert lanes > 1 or nest.notes
    said = f"{lanes} lanes at once" if lanes > 1 else "one element at a time"
    assert said in str(found)


def test_code_for_another_machine_is_in_the_vectors_of_its_schedule() -> None:
    nests = figures(product(64, 64, 64, AARCH64)).nests
    assert {each.lanes for each in nests} == {4}


MARKED = """
f:
	prefetchnta	1845493760
.LBB0_1:
	vmovups	(%rax), %ymm1
	vmovups	%ymm1, (%rcx)
	jne	.LBB0_1
	prefetchnta	1845493759
	vaddps	%zmm1, %zmm2, %zmm3
	prefetchnta	1845493761
	vucomiss	(%rax), %xmm1
	vblendvps	%xmm1, %xmm2, %xmm3, %xmm3
.LBB0_2:
	vaddss	%xmm1, %xmm2, %xmm3
	jne	.LBB0_2
	prefetchnta	1845493759
	retq
"""


def test_the_code_of_nests_is_between_marks() -> None:
    assert codes_of_nests(MARKED) == {0: NestCode(256, True), 1: NestCode(32, True)}


# -- Shares of the time ---------------------------------------------------------------------------


def test_shares_of_the_time_are_predicted() -> None:
    found = figures(softmax(64, 512))
    assert sum(each.predicted or 0.0 for each in found.nests) == pytest.approx(1.0)
    (powers,) = (each for each in found.nests if "exp" in counts(each))
    assert powers.predicted == max(each.predicted or 0.0 for each in found.nests)
    text = " ".join(str(found).split())
    assert f"of the time {powers.predicted:.0%} predicted" in text


def test_shares_of_the_time_are_measured() -> None:
    with tvm.num_threads(1):
        found = tvm.explain(product(192, 192, 192))
    shares = [each.measured for each in found.nests]
    assert any(each is not None for each in shares)
    assert 0 < sum(each or 0.0 for each in shares) <= 1.5
    assert "predicted, " in str(found) and "% measured" in str(found)


def test_symbolic_sizes_have_shares_with_arguments() -> None:
    function = product(te.var("n"), 64, 48)
    assert all(each.predicted is None for each in figures(function).nests)
    a, b, c = (np.ones(shape, "float32") for shape in ((30, 48), (48, 64), (30, 64)))
    found = figures(function, a, b, c)
    assert sum(each.predicted or 0.0 for each in found.nests) == pytest.approx(1.0)


def test_a_nest_by_itself_is_all_of_the_time() -> None:
    nest = only(tvm.explain(built(copied(), target="llvm")))
    assert (nest.predicted, nest.measured) == (1.0, None)


# -- Arguments that are made ----------------------------------------------------------------------


def test_made_indices_are_spread_over_what_they_index(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    timed = machine.least_time

    def record(function: Any, *args: Any) -> float:
        given.append(args)
        return timed(function, *args)

    monkeypatch.setattr("minitvm.explanation.explain.least_time", record)
    found = tvm.explain(built(rows_of_table(), target="llvm"))
    rows = given[0][1].numpy()
    assert 100 < rows.max() < 1000
    assert rows.min() >= 0
    assert found.zeros == ()


def test_what_is_made_of_zeros_is_said() -> None:
    found = tvm.explain(built(sparse_product(20, 8, 50), target="llvm"))
    assert found.zeros == ("P",)
    text = " ".join(str(found).split())
    assert "with arguments that were made: all of P is zero" in text
    assert "a call; data say how much is computed, so there is no bound" in text


# -- Any program ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: convolution(16, 8), lambda: softmax(16, 32)])
def test_every_buffer_has_its_nest(make: Callable[[], tvm.runtime.Module]) -> None:
    check_nests(make())


def check_nests(function: tvm.runtime.Module, *args: Any) -> None:
    found = tvm.explain(function, *args, measure=bool(args))
    compiled = compiled_function(function)
    assert compiled is not None
    called, program = compiled
    stores = (x for x in walk_once(program.lowered[called.name].body) if isinstance(x, BufferStore))
    assert {name for each in found.nests for name in each.writes} == {x.buffer.name for x in stores}
    predicted = [each.predicted for each in found.nests]
    assert None in predicted or sum(map(float, filter(None, predicted))) == pytest.approx(1.0)
    assert max(map(len, str(found).splitlines())) <= 100


@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_nests_of_any_schedule(make: Any, data: st.DataObject) -> None:
    program: Program = make(data.draw)
    s = te.create_schedule(program.outputs)
    schedule_randomly(s, data.draw)
    note(s.trace())
    function = tvm.build(s, program.args, name="scheduled", auto_schedule=False)
    check_nests(function, *program.arrays(seed=0))


def test_distances_of_symbolic_shapes_are_named() -> None:
    n = te.var("n")
    A, k = te.placeholder((n, 5, n), name="A"), te.reduce_axis((0, n), "k")
    for read in (lambda i: A[k, i, 0], lambda i: A[n - 1 - k, i, 0]):
        B = te.compute((5,), lambda i, read=read: te.sum(read(i) / 2.0, axis=k), name="B")
        (nest,) = tvm.explain(tvm.build(B, [A, B], fp="strict"), measure=False).nests
        assert "A is read n * 5 elements apart along k" in nest.notes
