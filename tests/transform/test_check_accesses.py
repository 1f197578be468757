"""``debug="bounds"``: every access is checked where it happens, compiled and interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import compile_module
from minitvm.runtime.dtype import HANDLE, INT32, INT64
from minitvm.runtime.errors import CompileError, InternalError
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir.expr import (
    Broadcast,
    Buffer,
    BufferLoad,
    BufferRef,
    BufferStore,
    Call,
    Let,
    PrimExpr,
    Ramp,
    Select,
    StringImm,
    Var,
    as_expr,
    const,
)
from minitvm.tir.functor import Mutator, rebuild, walk_once
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IRModule,
    LetStmt,
    PrimFunc,
    Stmt,
    While,
    seq,
)
from minitvm.tir.verify import verify
from minitvm.transform.check_accesses import check_accesses
from tests.memory.mapped import given_back
from tests.schedules.programs import PROGRAMS, Draw, Program
from tests.schedules.random_schedule import schedule_randomly
from tests.tir.programs import function, lazily, loop

Array = np.ndarray[Any, Any]

n, m = Var("n"), Var("m")
i, j = Var("i", INT64), Var("j", INT64)
PAD = 128  # bytes on each side of an array that nothing may touch


def fenced(array: Array) -> tuple[Array, Callable[[], None]]:
    """A copy of an array between two zones, and what asserts that these are as they were."""
    memory = np.full(array.nbytes + 2 * PAD, 0xA5, np.uint8)
    copy = memory[PAD : PAD + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array

    def check() -> None:
        assert (memory[:PAD] == 0xA5).all() and (memory[PAD + array.nbytes :] == 0xA5).all()

    return copy, check


def buffer(name: str, *shape: Any, dtype: str = "float32", **layout: Any) -> Buffer:
    return tir.decl_buffer(shape, dtype, name, **layout)


def store(target: Buffer, indices: Any, value: Any = 1.0, predicate: Any = None) -> Stmt:
    indices = indices if isinstance(indices, tuple) else (indices,)
    return BufferStore(target, as_expr(value), tuple(map(as_expr, indices)), predicate)


def ramp(base: Any, lanes: int, stride: int = 1) -> PrimExpr:
    return Ramp(e.cast(INT64, base), const(stride, INT64), lanes)


def compiled(func: PrimFunc) -> Any:
    return compile_module(IRModule({func.name: func}), CodegenOptions(Target("llvm")))


def run(func: PrimFunc, *arrays: Array) -> list[Array]:
    """What both the interpreter and compiled code make of the checked program."""
    checked = check_accesses(func)
    verify(checked)
    interpreted = [array.copy() for array in arrays]
    interpret(checked, *interpreted)
    copies, fences = zip(*map(fenced, arrays), strict=True)
    compiled(checked)(*copies)
    for fence, copy, wanted in zip(fences, copies, interpreted, strict=True):
        fence()
        np.testing.assert_array_equal(copy, wanted)
    return interpreted


def refuse(func: PrimFunc, *arrays: Array) -> str:
    """The error of both, which is the same; nothing around the arrays is touched."""
    checked = check_accesses(func)
    verify(checked)
    with pytest.raises(IndexError) as interpreted:
        interpret(checked, *[array.copy() for array in arrays])
    copies, fences = zip(*map(fenced, arrays), strict=True)
    with pytest.raises(IndexError) as raised:
        compiled(checked)(*copies)
    for fence in fences:
        fence()
    assert str(raised.value) == str(interpreted.value)
    return str(raised.value)


def floats(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


A, B = buffer("A", n), buffer("B", n)
A8, B8 = buffer("A", 8), buffer("B", 8)
I8 = buffer("I", 8, dtype="int32")
X = buffer("X", 56, 64)


# -- What is refused, and how it is said ----------------------------------------------------------

FIRST_FIVE = e.LT(ramp(0, 8), Broadcast(const(5, INT64), 8))

REFUSED: dict[str, tuple[Stmt, tuple[Buffer, ...], str]] = {
    "store": (
        store(X, (57, 3)),
        (X,),
        "f: X[57, 3]: expected an index inside shape (56, 64)",
    ),
    "inside the memory, but not the row": (
        store(X, (3, 64)),
        (X,),
        "f: X[3, 64]: expected an index inside shape (56, 64)",
    ),
    "load": (
        store(A8, 0, B8[as_expr(-1)]),
        (A8, B8),
        "f: B[-1]: expected an index inside shape (8,)",
    ),
    "loop, symbolic shape": (
        loop(i, n + 1, store(A, i, B[i])),
        (A, B),
        "f: A[8]: expected an index inside shape (8,)",
    ),
    "lane of a vector": (
        store(A8, ramp(3, 8), Broadcast(const(1.0), 8)),
        (A8,),
        "f: A[8]: expected an index inside shape (8,)",
    ),
    "lane under a mask": (
        store(A8, ramp(5, 8), Broadcast(const(1.0), 8), FIRST_FIVE),
        (A8,),
        "f: A[8]: expected an index inside shape (8,)",
    ),
    "lane that runs backwards": (
        store(A8, ramp(0, 4), BufferLoad(B8, (ramp(2, 4, -1),))),
        (A8, B8),
        "f: B[-1]: expected an index inside shape (8,)",
    ),
    "gather": (
        store(A8, ramp(0, 8), BufferLoad(B8, (BufferLoad(I8, (ramp(0, 8),)),))),
        (A8, B8, I8),
        "f: B[99]: expected an index inside shape (8,)",
    ),
    "index of an index": (
        store(A8, 0, B8[I8[as_expr(9)]]),
        (A8, B8, I8),
        "f: I[9]: expected an index inside shape (8,)",
    ),
    "both sides of Select": (
        store(A8, 0, Select(as_expr(A8[const(0)] > 100.0), B8[const(8)], const(0.0))),
        (A8, B8),
        "f: B[8]: expected an index inside shape (8,)",
    ),
    "both sides of And": (
        IfThenElse(e.And(A8[const(0)] > 100.0, B8[const(8)] > 0.0), store(A8, 0)),
        (A8, B8),
        "f: B[8]: expected an index inside shape (8,)",
    ),
    "condition of while": (
        While(A8[e.cast(INT64, I8[const(0)])] >= 0.0, store(I8, 0, I8[const(0)] + 1)),
        (A8, I8),
        "f: A[8]: expected an index inside shape (8,)",
    ),
    "workspace": (
        Allocate(buffer_ := buffer("T", 4), store(buffer_, 4)),
        (A8,),
        "f: T[4]: expected an index inside shape (4,)",
    ),
    "unsigned": (
        store(A8, e.cast("uint32", I8[const(1)])),
        (A8, I8),
        "f: A[4294967295]: expected an index inside shape (8,)",
    ),
    "scalar predicate": (
        store(A8, 8, 1.0, e.GE(I8[const(0)], const(0))),
        (A8, I8),
        "f: A[8]: expected an index inside shape (8,)",
    ),
}


def arguments(buffers: tuple[Buffer, ...]) -> list[Array]:
    sizes = [tuple(e.const_int(d) or 8 for d in b.shape) for b in buffers]
    made = [floats(*size).astype(str(b.dtype)) for b, size in zip(buffers, sizes, strict=True)]
    for b, array in zip(buffers, made, strict=True):
        if b is I8:
            array[:] = [0, -1, 2, 3, 4, 99, -99, 7]
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, buffers, message = REFUSED[name]
    arrays = arguments(buffers)
    if name == "gather":
        arrays[-1][1] = 1
    assert refuse(function("f", *buffers, body=body), *arrays) == message


@pytest.mark.parametrize("layout", [{"elem_offset": 3}, {"strides": (-1,)}])
def test_a_workspace_reaches_upwards_from_its_first_element(layout: Any) -> None:
    """More isn't allocated, so an index inside of the shape would leave the memory."""
    work = buffer("T", 8, **layout)
    message = refuse(function("f", A8, body=Allocate(work, store(work, 7))), floats(8))
    assert message.startswith("f: T: expected a workspace without negative strides and elem_offset")


def test_a_message_holds_as_many_values_as_a_failure_can() -> None:
    """Those beyond are shown as the program has them."""
    sizes = [Var(f"n{k}") for k in range(5)]
    tensor = buffer("W", *sizes)
    indices = [Var(f"i{k}", INT64) for k in range(5)]
    body = store(tensor, tuple(indices))
    for index, size in zip(indices, sizes, strict=True):
        body = loop(index, size + (index is indices[4]), body)
    message = refuse(function("f", tensor, body=body), floats(2, 2, 2, 2, 2))
    assert message == "f: W[0, 0, 0, 0, 2]: expected an index inside shape (2, 2, 2, n3, n4)"


# -- What is not ----------------------------------------------------------------------------------

ACCEPTED: dict[str, tuple[Stmt, tuple[Buffer, ...]]] = {
    "guarded by if_then_else": (
        loop(i, 8, store(A8, i, lazily(i < 7, B8[i + 1], 0.0))),
        (A8, B8),
    ),
    "guarded by if": (loop(i, 100, IfThenElse(i < 8, store(A8, i, B8[i]))), (A8, B8)),
    "masked store": (store(A8, ramp(3, 8), Broadcast(const(1.0), 8), FIRST_FIVE), (A8,)),
    "masked load": (
        store(A8, ramp(0, 8), BufferLoad(B8, (ramp(3, 8),), FIRST_FIVE)),
        (A8, B8),
    ),
    "masked gather": (
        store(
            A8,
            ramp(0, 8),
            BufferLoad(B8, (BufferLoad(I8, (ramp(0, 8),)),), BufferLoad(I8, (ramp(0, 8),)) < 8),
        ),
        (A8, B8, I8),
    ),
    "masked by NaN": (
        store(A8, ramp(3, 8), Broadcast(const(1.0), 8), BufferLoad(B8, (ramp(0, 8),)) < 5.0),
        (A8, B8),
    ),
    "scalar predicate": (
        store(A8, 0, BufferLoad(B8, (I8[const(5)],), e.LT(I8[const(5)], const(8)))),
        (A8, B8, I8),
    ),
    "scalar predicate of a store": (
        store(A8, I8[const(5)], 1.0, e.LT(I8[const(5)], const(8))),
        (A8, I8),
    ),
    "let": (store(A8, 0, Let(i, e.cast(INT64, I8[const(2)]), B8[i] + B8[i + 1])), (A8, B8, I8)),
    "prefetch": (
        seq(Evaluate(Call(INT32, "prefetch", (B8[const(1 << 40, INT64)],))), store(A8, 0)),
        (A8, B8),
    ),
    "empty loop": (loop(i, -3, store(A8, i)), (A8,)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    body, buffers = ACCEPTED[name]
    arrays = arguments(buffers)
    if name == "masked gather":
        arrays[2][6] = 6
        arrays[2][1] = 1
    if name == "masked by NaN":
        arrays[1][5:] = np.nan
    run(function("f", *buffers, body=body), *arrays)


def test_a_dimension_of_one_that_broadcasts_takes_any_index() -> None:
    wide = buffer("R", n, m, buffer_type="auto_broadcast")
    program = function("f", A8, wide, body=loop(i, 8, store(A8, i, wide[i, i])))
    assert run(program, floats(8), floats(1, 8))[0].tolist() == list(range(8))
    message = refuse(program, floats(8), floats(1, 7))
    assert message == "f: R[7, 7]: expected an index inside shape (1, 7)"


def test_strides_and_offsets_are_no_matter() -> None:
    """An index is inside by shape, wherever its element is."""
    strided = buffer("S", n, m, strides=(Var("s0"), Var("s1")), elem_offset=Var("first"))
    body = loop(i, n, loop(j, m, store(strided, (i, j), strided[i, j] * 2.0)))
    checked = check_accesses(function("f", strided, body=body))
    memory = floats(6, 8)
    compiled(checked)(memory[::-2, 1:5])
    assert (memory[::-2, 1:5] == floats(6, 8)[::-2, 1:5] * 2).all()
    assert memory.sum() == floats(6, 8).sum() + floats(6, 8)[::-2, 1:5].sum()


def test_each_index_of_data_is_its_own() -> None:
    rows, columns = buffer("R", 4, dtype="int32"), buffer("C", 4, dtype="int32")
    table = buffer("T", 4, 5)
    body = loop(i, 4, store(table, (rows[i], columns[i]), table[rows[i], columns[i]] + 1.0))
    where = np.array([3, 1, 0, 2], "int32"), np.array([4, 0, 1, 3], "int32")
    found = run(
        function("f", table, rows, columns, body=body), np.zeros((4, 5), "float32"), *where
    )[0]
    expected = np.zeros((4, 5), "float32")
    expected[where] = 1
    np.testing.assert_array_equal(found, expected)


def test_an_index_is_evaluated_once() -> None:
    """Also one that a function returns, which might return another the second time."""
    calls: list[int] = []

    def count_up() -> int:
        calls.append(len(calls))
        return calls[-1]

    following = Call(INT32, "call_packed", (StringImm("check_accesses.next"),))
    again = Call(INT32, "call_packed", (StringImm("check_accesses.next"),))
    checked = check_accesses(function("f", A8, B8, body=store(A8, following, B8[again])))
    verify(checked)
    interpreted = np.zeros(8, "float32")
    interpret(checked, interpreted, floats(8), packed={"check_accesses.next": count_up})
    assert calls == [0, 1]
    calls.clear()
    array = np.zeros(8, "float32")
    tvm.register_func("check_accesses.next", count_up)
    compiled(checked)(array, floats(8))
    tvm.remove_global_func("check_accesses.next")
    assert calls == [0, 1]
    assert array.tolist() == interpreted.tolist() == [0, 0, 0, 0, 0, 0, 0, 0]


# -- Memory that is passed on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "extent", "message"),
    [
        (0, -1, None),
        (56, 8, None),
        (64, -1, None),
        (-1, 4, "elements from 0 to before 64, got -1 to before 3"),
        (60, 8, "elements from 0 to before 64, got 60 to before 68"),
        (65, -1, "elements from 0 to before 64, got 65"),
        (2**62, 2**62, f"elements from 0 to before 64, got {2**62} to before {-(2**63)}"),
    ],
)
def test_pointers(offset: int, extent: int, message: str | None) -> None:
    square = buffer("Q", n, n)
    where, count = const(offset, INT64), const(extent, INT64)
    pointer = square.access_ptr("r", offset=where, extent=count)
    call = Call(INT32, "call_extern", (StringImm("memcmp"), pointer, pointer, const(0, INT64)))
    body = seq(Evaluate(call), store(square, (0, 0)))
    if message is None:
        run(function("f", square, body=body), floats(8, 8))
    else:
        assert (
            refuse(function("f", square, body=body), floats(8, 8))
            == f"f: Q: expected a pointer to {message}"
        )


def test_pointers_into_strided_memory() -> None:
    """What counts is the memory that the elements lie in."""
    column = buffer("Q", n, strides=(const(-3),))
    for offset, inside in ((0, True), (-21, True), (1, True), (-22, False), (2, False)):
        pointer = column.access_ptr("r", offset=const(offset, INT64))
        call = Call(INT32, "call_extern", (StringImm("memcmp"), pointer, pointer, const(0, INT64)))
        function_ = compiled(check_accesses(function("f", column, body=Evaluate(call))))
        argument = floats(24)[23::-3]
        if inside:
            function_(argument)
        else:
            with pytest.raises(IndexError, match=r"from -21 to before 1, got"):
                function_(argument)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((2, 3, 4, 5), None),
        ((0, 0, 8, 8), None),
        ((7, 3, 5), None),
        ((8, 0, 0, 8), None),
        ((2, 4, 4, 5), "Q[2:6, 4:9]"),
        ((-1, 0, 4, 4), "Q[-1:3, 0:4]"),
        ((0, 5, 3, -1), "Q[0:3, 5:4]"),
        ((8, 0, 4), "Q[8, 0:4]"),
    ],
)
def test_regions(numbers: tuple[int, ...], found: str | None) -> None:
    square = buffer("Q", n, n)
    seen: list[tuple[int, ...]] = []
    tvm.register_func("check_accesses.look", lambda array: seen.append(tuple(array.shape)))
    region = Call(HANDLE, "tvm_stack_make_array",
                  (BufferRef(square), *[const(x, INT64) for x in numbers]))  # fmt: skip
    call = Call(INT32, "call_packed", (StringImm("check_accesses.look"), region))
    checked = check_accesses(function("f", square, body=Evaluate(call)))
    verify(checked)
    look = {"check_accesses.look": lambda array: seen.append(array.shape)}
    try:
        if found is None:
            interpret(checked, floats(8, 8), packed=look)
            compiled(checked)(floats(8, 8))
            assert seen == [tuple(numbers[2:])] * 2
            return
        message = f"f: {found}: expected a region inside shape (8, 8)"
        with pytest.raises(IndexError) as raised:
            compiled(checked)(floats(8, 8))
        assert str(raised.value) == message
        with pytest.raises(IndexError) as raised:
            interpret(checked, floats(8, 8), packed=look)
        assert str(raised.value) == message
        assert seen == []
    finally:
        tvm.remove_global_func("check_accesses.look")


# -- build(..., debug="bounds") -------------------------------------------------------------------


class _Shift(Mutator):
    """Adds to an index of the `which`-th access: a bug."""

    def __init__(self, which: int, axis: int, by: int) -> None:
        super().__init__()
        self._left, self._axis, self._by = which, axis, by

    def _shifted(self, node: Any) -> Any:
        made = self.descend(node)
        self._left -= 1
        if self._left != -1 or not made.indices:
            return made
        indices, axis = list(made.indices), self._axis % len(made.indices)
        indices[axis] = indices[axis] + e.const(self._by, indices[axis].dtype.element)
        return rebuild(made, {"indices": tuple(indices)})

    visit_BufferLoad = visit_BufferStore = _shifted


class _Lengthen(Mutator):
    """Adds to the extent of the `which`-th loop: a bug."""

    def __init__(self, which: int, by: int) -> None:
        super().__init__()
        self._left, self._by = which, by

    def visit_For(self, node: For) -> Stmt:
        made: For = self.descend(node)
        self._left -= 1
        if self._left != -1:
            return made
        longer: Stmt = rebuild(made, {"extent": made.extent + self._by})
        return longer


def broken(func: PrimFunc, bug: Mutator) -> PrimFunc:
    return PrimFunc(func.params, bug.stmt(func.body), func.buffer_map, func.name, func.attrs)


def test_a_bug_of_a_pass_is_found() -> None:
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="B")
    s = te.create_schedule(b.op)
    _, inner = s[b].split(b.op.axis[0], 8)
    s[b].vectorize(inner)
    wrong = {"tir.add_lower_pass": [(3, lambda func: broken(func, _Shift(0, 0, 1)))]}
    with tvm.transform.PassContext(config=wrong):
        double = tvm.build(s, [a, b], name="double", debug="bounds")
    x, fence_x = fenced(floats(16))
    y, fence_y = fenced(floats(16))
    strided = floats(32)[::2]
    for source in (x, strided):
        with pytest.raises(IndexError) as raised:
            double(source, y)
        assert str(raised.value) == "double: A[16]: expected an index inside shape (16,)"
    fence_x()
    fence_y()


def test_the_classic_option_does_the_same() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    plain = str(tvm.lower([b], [a, b], debug="bounds"))
    with tvm.transform.PassContext(config={"tir.instrument_bound_checkers": True}):
        assert str(tvm.lower([b], [a, b])) == plain
    assert plain != str(tvm.lower([b], [a, b]))
    assert str(tvm.lower([b], [a, b], debug=None)) == str(tvm.lower([b], [a, b]))


@pytest.mark.parametrize("debug", ["bound", True, "", 0])
def test_an_unknown_mode_is_refused(debug: Any) -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(CompileError, match=r"f: expected debug to be None or 'bounds', got"):
        tvm.build(te.create_schedule(b.op), [a, b], name="f", debug=debug)


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL])
def test_the_first_iteration_that_fails_is_named(kind: ForKind) -> None:
    index = buffer("I", n, dtype="int32")
    out = buffer("O", n)
    body = loop(i, n, store(out, i, A8[index[i]]), kind)
    checked = compiled(check_accesses(function("f", A8, index, out, body=body)))
    places = np.zeros(1_000_000, "int32")
    places[[300_001, 300_000, 900_000, 700_000]] = [11, 10, 90, 70]
    for _ in range(5):
        with pytest.raises(IndexError, match=r"f: A\[10\]: expected an index inside shape \(8,\)"):
            checked(floats(8), places, np.empty(1_000_000, "float32"))


@pytest.mark.parametrize("place", ["then", "else", "both", "body", "let"])
def test_accesses_under_conditions_are_checked(place: str) -> None:
    index, out = buffer("I", n, dtype="int32"), buffer("O", n)
    checked, plain = store(out, i, A8[index[i]]), store(out, i, -1.0)
    cases = {
        "then": (A[i] > 0.0, checked, plain),
        "else": (A[i] <= 0.0, plain, checked),
        "both": (index[i] >= 0, checked, checked),
    }
    body: Stmt = checked
    if place in cases:
        body = IfThenElse(*cases[place])
    if place == "let":
        body = LetStmt(V := Var("v"), index[i], store(out, i, A8[V]))
    func = compiled(check_accesses(function("f", A, A8, index, out, body=loop(i, n, body))))
    for bad in (8, -1, 1 << 30):
        places, result = np.arange(6, dtype="int32"), np.zeros(6, "float32")
        func(np.ones(6, "float32"), floats(8), places, result)
        np.testing.assert_array_equal(result, floats(6))
        places[4] = bad
        with pytest.raises(IndexError, match=rf"f: A\[{bad}\]: expected an index inside"):
            func(np.ones(6, "float32"), floats(8), places, result)


def test_the_workspace_is_given_back() -> None:
    """A failure goes out through the blocks that free what is allocated."""
    large = buffer("T", n, 1 << 16)
    body = Allocate(large, seq(store(large, (0, 0)), store(large, (n, 0))))
    failing = compiled(check_accesses(function("f", A, body=body)))
    with given_back(1 << 26):
        for _ in range(300):  # of 16 MiB
            with pytest.raises(IndexError, match=r"f: T\[64, 0\]"):
                failing(floats(64))


QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize("make", PROGRAMS[::2])
@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_a_right_program_raises_no_alarm(make: Any, data: st.DataObject) -> None:
    check_right_program(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_right_programs_raise_no_alarm(make: Any, data: st.DataObject) -> None:
    check_right_program(make, data.draw)


def check_right_program(make: Any, draw: Draw) -> None:
    program: Program = make(draw)
    s = te.create_schedule(program.outputs)
    schedule_randomly(s, draw)
    note(s.trace())
    wanted, checked = program.arrays(seed=0), program.arrays(seed=0)
    interpreted = program.arrays(seed=0)
    tvm.build(s, program.args)(*wanted)
    tvm.build(s, program.args, debug="bounds")(*checked)
    interpret(tvm.lower(s, program.args, debug="bounds")["main"], *interpreted)
    for got, also, expected in zip(checked, interpreted, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(also, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("make", PROGRAMS[1::2])
@settings(max_examples=4, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_a_wrong_program_is_found_out(make: Any, data: st.DataObject) -> None:
    check_wrong_program(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=400, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_wrong_programs_are_found_out(make: Any, data: st.DataObject) -> None:
    check_wrong_program(make, data.draw)


def check_wrong_program(make: Any, draw: Draw) -> None:
    """The interpreter, which checks each access itself, says which programs are wrong."""
    program: Program = make(draw)
    s = te.create_schedule(program.outputs)
    schedule_randomly(s, draw)
    lowered = tvm.lower(s, program.args)["main"]
    accesses = sum(isinstance(x, BufferLoad | BufferStore) for x in walk_once(lowered.body))
    loops = sum(isinstance(x, For) for x in walk_once(lowered.body))
    by = draw(st.sampled_from([-1000, -2, -1, 1, 2, 1000]))
    if loops and draw(st.booleans()):
        bug: Mutator = _Lengthen(draw(st.integers(0, loops - 1)), min(by, 9))
    else:
        bug = _Shift(draw(st.integers(0, accesses - 1)), draw(st.integers(0, 3)), by)
    mutant = broken(lowered, bug)
    note(str(mutant))
    checked = check_accesses(mutant)
    verify(checked)
    arrays = [fenced(array) for array in program.arrays(seed=0)]
    expected = program.arrays(seed=0)
    outcome = _outcome(lambda: interpret(mutant, *expected))
    interpreted = _outcome(lambda: interpret(checked, *program.arrays(seed=0)))
    found = _outcome(lambda: compiled(checked)(*[array for array, _ in arrays]))
    for _, fence in arrays:
        fence()
    if outcome is InternalError:  # what was never written was read, which compiled code can't tell
        return
    assert found is interpreted is outcome
    if outcome is None:
        for (got, _), wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def _outcome(attempt: Callable[[], None]) -> type[Exception] | None:
    try:
        attempt()
    except (IndexError, InternalError) as error:
        return type(error)
    return None


def test_a_program_without_indices_stays_the_same() -> None:
    scalar = buffer("S")
    func = function("f", scalar, body=store(scalar, (), BufferLoad(scalar, ()) + 1.0))
    assert check_accesses(func) is func
