"""Outputs in the place of inputs: what is proved, and that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.dtype import FLOAT32, INT32
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var, const
from minitvm.tir.functor import Mutator, substitute, walk, with_fields
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, ForKind, FuncAttrs, PrimFunc, Stmt, seq
from minitvm.tir.verify import verify
from minitvm.transform.vectorize_loops import vectorize_loops
from minitvm.variants.any_strides import accept_strides
from minitvm.variants.in_place import _may_precede, can_run_in_place, run_in_place
from tests.schedules.programs import PROGRAMS
from tests.schedules.random_schedule import schedule_randomly
from tests.tir.programs import loop
from tests.transform.programs_in_lanes import ROWS
from tests.transform.programs_in_lanes import SIZE as SIZE_IN_LANES
from tests.transform.programs_in_lanes import Program as ProgramInLanes

Plan = Callable[[Schedule, Any], object]
n, m = te.var("n"), te.var("m")
X, W = te.placeholder((n, m), name="X"), te.placeholder((n, m), name="W")
V, Q = te.placeholder((n,), name="V"), te.placeholder((n, n), name="Q")
ROW = te.placeholder((m,), name="row")


def as_it_is(s: Schedule, y: Any) -> None:
    """The plain loops."""


def lowered(output: Any, *inputs: Tensor, schedule: Plan = as_it_is) -> PrimFunc:
    """A function of some inputs and the output."""
    plan = te.create_schedule(output.op)
    schedule(plan, output)
    func: PrimFunc = tvm.lower(plan, [*inputs, output], name="f")["f"]
    return func


# -- What users expect -----------------------------------------------------------------------------


def elementwise() -> Any:
    return te.compute((n, m), lambda i, j: X[i, j] * 2.0 + W[i, j], name="Y")


def in_vectors(s: Schedule, y: Any) -> None:
    _, inner = s[y].split(y.op.axis[1], factor=16)
    s[y].vectorize(inner)
    s[y].parallel(y.op.axis[0])


def fused(s: Schedule, y: Any) -> None:
    outer, inner = s[y].split(s[y].fuse(*y.op.axis), factor=16)
    s[y].parallel(outer)
    s[y].vectorize(inner)


def tiled(s: Schedule, y: Any) -> None:
    rows, _, x, lanes = s[y].tile(y.op.axis[0], y.op.axis[1], 4, 8)
    s[y].parallel(rows)
    s[y].unroll(x)
    s[y].vectorize(lanes)


@pytest.mark.parametrize("plan", [as_it_is, in_vectors, fused, tiled])
def test_elementwise(plan: Any) -> None:
    func = lowered(elementwise(), X, W, schedule=plan)
    assert can_run_in_place(func, 2, 0)
    assert can_run_in_place(func, 2, 1)
    biased = te.compute((n, m), lambda i, j: te.max(X[i, j] + ROW[j], 0.0), name="Y")
    func = lowered(biased, X, ROW, schedule=plan)
    assert can_run_in_place(func, 2, 0)
    assert not can_run_in_place(func, 2, 1)  # a row is no matrix


def residual() -> tuple[Any, Any, Any, Any]:
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m, n), name="B")
    k = te.reduce_axis((0, m), name="k")
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="T")
    return a, b, product, te.compute((n, n), lambda i, j: product[i, j] + Q[i, j], name="Y")


def test_residual_of_a_matrix_product() -> None:
    a, b, product, y = residual()

    def schedule(s: Schedule, y: Any) -> None:
        rows, columns, _, lanes = s[y].tile(y.op.axis[0], y.op.axis[1], 4, 16)
        s[product].compute_at(s[y], columns)
        s[product].vectorize(product.op.axis[1])
        s[y].vectorize(lanes)
        s[y].parallel(rows)

    for plan in (as_it_is, schedule):
        func = lowered(y, a, b, Q, schedule=plan)
        assert can_run_in_place(func, 3, 2)
        assert not can_run_in_place(func, 3, 0)


def test_softmax() -> None:
    k, r = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="r")
    largest = te.compute((n,), lambda i: te.max(X[i, k], axis=k), name="largest")
    power = te.compute((n, m), lambda i, j: te.exp(X[i, j] - largest[i]), name="power")
    total = te.compute((n,), lambda i: te.sum(power[i, r], axis=r), name="total")
    y = te.compute((n, m), lambda i, j: power[i, j] / total[i], name="Y")

    def by_rows(s: Schedule, y: Any) -> None:
        for stage in (power, total, largest):
            s[stage].compute_at(s[y], y.op.axis[0])
        s[y].parallel(y.op.axis[0])

    for plan in (as_it_is, by_rows):
        assert can_run_in_place(lowered(y, X, schedule=plan), 1, 0)


def next_element() -> Any:
    return te.compute((n,), lambda i: te.if_then_else(i < n - 1, V[te.min(i + 1, n - 1)], V[i]))


def test_the_order_of_a_loop_counts() -> None:
    """Reading ahead is safe in a loop that runs in order, and only there."""
    assert can_run_in_place(lowered(next_element(), V), 1, 0)
    func = lowered(next_element(), V, schedule=lambda s, y: s[y].parallel(y.op.axis[0]))
    assert not can_run_in_place(func, 1, 0)


def squared() -> Any:
    k = te.reduce_axis((0, n), name="k")
    return te.compute((n, n), lambda i, j: te.sum(Q[i, k] * Q[k, j], axis=k), name="Y")


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda: te.compute((n, n), lambda i, j: Q[j, i]), Q),
        (lambda: te.compute((n,), lambda i: V[n - 1 - i]), V),
        (lambda: te.compute((n, n), lambda i, j: Q[i, j] - Q[i, 0]), Q),
        (lambda: te.compute((n,), lambda i: V[i] + V[te.max(i - 1, 0)]), V),
        (lambda: te.compute((n,), lambda i: V[i].astype("int32"), name="Y"), V),
        (squared, Q),
    ],
    ids=["transpose", "reverse", "first of the row", "stencil", "another dtype", "product"],
)
def test_what_is_refused(make: Callable[[], Any], source: Tensor) -> None:
    assert not can_run_in_place(lowered(make(), source), 1, 0)


# -- Loops by hand ---------------------------------------------------------------------------------

SIZE = 24
i, j, k = (Var(name) for name in "ijk")
A, B = tir.decl_buffer((SIZE,), name="A"), tir.decl_buffer((SIZE,), name="B")
P = tir.decl_buffer((SIZE,), "int32", name="P")


def func(body: Stmt) -> PrimFunc:
    buffers = (A, B, P)
    params = {b.data: b for b in buffers}
    return PrimFunc(tuple(params), body, params, "f", FuncAttrs(outputs=frozenset({B})))


def store(value: Any, *index: Any) -> Stmt:
    return BufferStore(B, e.as_expr(value), tuple(map(e.as_expr, index)))


def test_a_second_store_is_refused() -> None:
    assert can_run_in_place(func(loop(i, SIZE, store(A[i], i))), 1, 0)
    twice = loop(i, SIZE, seq(store(A[i], i), store(A[i] + 1.0, i)))
    assert not can_run_in_place(func(twice), 1, 0)
    assert not can_run_in_place(func(loop(k, 2, loop(i, SIZE, store(A[i], i)))), 1, 0)
    read_once = loop(i, SIZE, seq(store(A[i], i), store(B[i] + 1.0, i)))
    assert can_run_in_place(func(read_once), 1, 0)


def test_while_comes_back() -> None:
    count = BufferStore(P, P[0] + 1, (const(0),))
    again = s.While(P[0] < 2, seq(loop(i, SIZE, store(A[i], i)), count))
    assert not can_run_in_place(func(again), 1, 0)
    ahead = seq(loop(i, SIZE, store(A[i], i)), s.While(P[0] < 2, count))
    assert can_run_in_place(func(ahead), 1, 0)


def test_an_index_of_data_is_refused_unless_all_is_read_before() -> None:
    scattered = loop(i, SIZE, store(A[i], P[i]))
    assert not can_run_in_place(func(scattered), 1, 0)
    T = tir.decl_buffer((SIZE,), name="T")
    copied = loop(i, SIZE, BufferStore(T, A[P[i]], (i,)))
    body = s.Allocate(T, seq(copied, loop(j, SIZE, store(T[j], P[j]))))
    assert can_run_in_place(func(body), 1, 0)


def test_a_let_is_read_where_it_stands() -> None:
    value = Var("value", FLOAT32)
    before = s.LetStmt(value, A[i], seq(store(0.0, i), store(value, i)))
    assert can_run_in_place(func(loop(i, SIZE, before)), 1, 0)
    after = seq(store(0.0, i), s.LetStmt(value, A[i], store(value, i)))
    assert not can_run_in_place(func(loop(i, SIZE, after)), 1, 0)


def test_one_statement_at_two_places() -> None:
    """The same node twice is two loops, one after the other."""
    once = loop(i, SIZE, store(A[i], i))
    assert not can_run_in_place(func(seq(once, once)), 1, 0)


def test_memory_that_is_passed_on_is_refused() -> None:
    passed = s.Evaluate(Call(INT32, "call_packed", (e.StringImm("g"), e.BufferRef(A))))
    assert not can_run_in_place(func(seq(passed, loop(i, SIZE, store(A[i], i)))), 1, 0)
    for buffer in (A, B):  # a C function, which gets the address of the data alone
        for reference in (e.BufferRef(buffer), buffer.data):
            extern = s.Evaluate(Call(INT32, "call_extern", (e.StringImm("g"), reference)))
            assert not can_run_in_place(func(seq(extern, loop(i, SIZE, store(A[i], i)))), 1, 0)
        pointer = s.Evaluate(Call(INT32, "call_extern", (e.StringImm("g"), buffer.access_ptr("r"))))
        assert not can_run_in_place(func(seq(loop(i, SIZE, store(A[i], i)), pointer)), 1, 0)
    unrelated = s.Evaluate(Call(INT32, "call_extern", (e.StringImm("g"), P.data)))
    assert can_run_in_place(func(seq(unrelated, loop(i, SIZE, store(A[i], i)))), 1, 0)
    other = Buffer(A.data, (const(SIZE),), FLOAT32, "other")
    assert not can_run_in_place(func(loop(i, SIZE, store(other[i] + A[i], i))), 1, 0)


def test_a_region_of_parallel_loops_is_refused() -> None:
    loops = [loop(Var("i"), SIZE, store(1.0, 0)) for _ in range(2)]
    launch = s.AttrStmt(None, "pragma_parallel_launch_point", const(1), seq(*loops))
    assert not can_run_in_place(func(seq(s.Evaluate(A[0]), launch)), 1, 0)
    assert can_run_in_place(func(seq(s.Evaluate(A[0]), *loops)), 1, 0)


def test_prefetch_reads_nothing() -> None:
    ahead = s.Evaluate(Call(INT32, "prefetch", (A[i - 1],)))
    assert can_run_in_place(func(loop(i, SIZE, seq(ahead, store(A[i], i)))), 1, 0)


def test_copies_of_an_unrolled_body_are_compared_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to another layout, by blocks of 8 x 8 in registers, is refused after a few
    comparisons."""
    Y = te.compute((n, m), lambda i, j: X[i, j] * 2.0, name="Y")
    binds = {X: tir.decl_buffer((n, m), "float32", "X", layout="left")}
    built: Any = tvm.build(Y, [X, Y], "llvm -mcpu=haswell", binds=binds, name="f")
    whole = built.entry_func.program.lowered["f"]
    assert can_run_in_place(whole, 1, 0)  # by its form without blocks
    func = with_fields(whole, attrs=with_fields(whole.attrs, form_in_place=None))
    loads = [each for each in walk(func.body) if isinstance(each, BufferLoad)]
    assert sum(each.dtype.lanes > 1 for each in loads) >= 16
    asked: list[object] = []

    def counted(*accesses: Any) -> bool:
        asked.append(accesses)
        return _may_precede(*accesses)

    monkeypatch.setattr("minitvm.variants.in_place._may_precede", counted)
    assert not can_run_in_place(func, 1, 0)
    assert len(asked) < 16


def test_inputs_and_outputs_only() -> None:
    body = loop(i, SIZE, seq(store(A[i], i), BufferStore(A, const(0.0), (i,))))
    assert not can_run_in_place(func(body), 1, 0)  # A is stored to, whatever the attribute says
    body = loop(i, SIZE, store(A[i], i))
    assert not can_run_in_place(func(body), 0, 1)
    assert not can_run_in_place(func(body), 1, 2)


# -- The variant -----------------------------------------------------------------------------------


def test_one_name_for_one_memory() -> None:
    made = run_in_place(func(loop(i, SIZE, store(A[i] + B[i], i))), frozenset({(1, 0)}))
    verify(made)
    assert {b.name for b in map(_buffer, walk(made.body)) if b is not None} == {"B"}
    assert made.attrs.in_place == {(1, 0)}
    verify(accept_strides(made))
    assert accept_strides(made).attrs.in_place == {(1, 0)}


def _buffer(node: Any) -> Buffer | None:
    return node.buffer if isinstance(node, BufferLoad | BufferStore) else None


# -- That what is proved holds ---------------------------------------------------------------------


class _Reversed(Mutator):
    """Parallel loops from the last round to the first."""

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        if made.kind != ForKind.PARALLEL:
            return made
        last = made.min + made.extent - 1 - (made.loop_var - made.min)
        body = substitute(made.body, {made.loop_var: last})
        return s.For(made.loop_var, made.min, made.extent, made.kind, body)


def holds_in_place(func: PrimFunc, output: int, before: int, arrays: list[Any]) -> None:
    """What is proved of a function is so: the result with one array is that with two, whichever
    round of a parallel loop comes first."""
    if not can_run_in_place(func, output, before):
        event("refused")
        return
    event("proved")
    reverse = PrimFunc(
        func.params, _Reversed().stmt(func.body), func.buffer_map, func.name, func.attrs
    )
    variant = run_in_place(func, frozenset({(output, before)}))
    for each in (reverse, func, variant):
        if each is not variant:
            apart = [array.copy() for array in arrays]
            apart[output][...] = apart[before]
            interpret(each, *apart)
        together = [array.copy() for array in arrays]
        together[output] = together[before]
        interpret(each, *together)
        np.testing.assert_array_equal(together[output], apart[output])


KINDS = (ForKind.SERIAL, ForKind.SERIAL, ForKind.PARALLEL, ForKind.UNROLLED, ForKind.VECTORIZED)


class RandomLoops:
    """Draws loops that load A and store to B at affine indices, in more than one order."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self._count = 0
        self.func = func(self._statement(3, ()))

    def _one(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def _index(self, around: tuple[Var, ...]) -> PrimExpr:
        """Between 0 and SIZE - 1: a sum in which each loop, of at most 4 rounds, has a place."""
        steps = self._one((1, 4, 8), (4, 1, 8), (1, 2, 4), (2, 4, 0), (1, 0, 4), (1, 4, 1))
        total: PrimExpr = const(self._one(0, 0, 0, 0, 1, 4))
        for var, step in zip(around, steps, strict=False):
            total = total + var * step
        made = e.minimum(total, SIZE - 1) if self._one(True, False, False) else total
        return e.floormod(made, SIZE) if made is total else made

    def _statement(self, depth: int, around: tuple[Var, ...]) -> Stmt:
        kind = self._one("store", "loop", "loop", "two", "if", "let")
        if kind == "loop" and len(around) < 3:
            self._count += 1
            var, extent = Var(f"i{self._count}"), self._draw(st.integers(1, 4))
            kind = self._one(*KINDS)
            if kind == ForKind.VECTORIZED:
                return loop(var, extent, self._store((*around, var)), kind)
            return loop(var, extent, self._statement(depth, (*around, var)), kind)
        if kind == "two" and depth:
            parts = [self._statement(depth - 1, around) for _ in range(2)]
            return seq(*parts)
        if kind == "if" and around and depth:
            condition = self._index(around) < self._draw(st.integers(1, 12))
            otherwise = self._statement(depth - 1, around) if self._one(True, False) else None
            return s.IfThenElse(condition, self._statement(depth - 1, around), otherwise)
        if kind == "let" and depth:
            self._count += 1
            var = Var(f"v{self._count}")
            value = self._one(self._index(around), P[self._index(around)])
            return s.LetStmt(var, value, self._statement(depth - 1, (*around[:2], var)))
        return self._store(around)

    def _store(self, around: tuple[Var, ...]) -> Stmt:
        index = self._index(around)
        read = index if self._one(True, True, False) else self._index(around)
        value: PrimExpr = A[read] * 2.0 + 1.0 if self._one(True, True, True, False) else const(5.0)
        return BufferStore(B, value, (index,))


QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
few = settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
many = settings(max_examples=5000, deadline=None, suppress_health_check=SLOW)


def check_loops(data: st.DataObject) -> None:
    try:
        made = vectorize_loops(RandomLoops(data.draw).func)
    except CompileError:
        return
    note(str(made))
    numbers = np.random.default_rng(0)
    values = numbers.standard_normal((2, SIZE)).astype("float32")
    holds_in_place(made, 1, 0, [*values, numbers.integers(0, SIZE // 2, SIZE, "int32")])


@few
@given(st.data())
def test_loops(data: st.DataObject) -> None:
    check_loops(data)


@pytest.mark.wide
@many
@given(st.data())
def test_many_loops(data: st.DataObject) -> None:
    check_loops(data)


def check_vectors(data: st.DataObject) -> None:
    program = ProgramInLanes(data.draw, FLOAT32)
    try:
        made = vectorize_loops(program.func)
    except CompileError:
        return
    note(str(made))
    numbers = np.random.default_rng(0)
    vector, matrix = (SIZE_IN_LANES,), (ROWS, SIZE_IN_LANES)
    arrays: list[Any] = [numbers.random(shape, "float32") for shape in (vector, vector, matrix)]
    arrays.append(numbers.integers(0, ROWS, vector, "int32"))
    holds_in_place(made, 1, 0, arrays)


@settings(few, max_examples=50)
@given(st.data())
def test_vectors(data: st.DataObject) -> None:
    check_vectors(data)


@pytest.mark.wide
@settings(many, max_examples=2000)
@given(st.data())
def test_many_vectors(data: st.DataObject) -> None:
    check_vectors(data)


def check_schedules(make: Any, data: st.DataObject) -> None:
    program = make(data.draw)
    plan = te.create_schedule(program.outputs)
    schedule_randomly(plan, data.draw)
    note(plan.trace())
    made = tvm.lower(plan, program.args)["main"]
    arrays = program.arrays(seed=0)
    for output in range(len(arrays)):
        for before in range(output):
            holds_in_place(made, output, before, arrays)


@pytest.mark.parametrize("make", PROGRAMS)
@settings(few, max_examples=5, phases=QUICK)
@given(data=st.data())
def test_schedules(make: Any, data: st.DataObject) -> None:
    check_schedules(make, data)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(many, max_examples=500, phases=QUICK)
@given(data=st.data())
def test_many_schedules(make: Any, data: st.DataObject) -> None:
    check_schedules(make, data)
