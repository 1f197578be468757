"""Accesses proved inside, refused, checked at entry and checked where they happen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.dtype import HANDLE, INT32, INT64, UINT32, DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.expr import (
    Broadcast,
    Buffer,
    BufferLoad,
    BufferRef,
    Call,
    Let,
    Not,
    PrimExpr,
    Ramp,
    Select,
    StringImm,
    Var,
    as_expr,
    const,
)  # fmt: skip
from minitvm.tir.functor import substitute, walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip
from minitvm.tir.verify import verify
from minitvm.transform.check_bounds import check_bounds
from tests.tir.programs import function, likely, loop

i, j, k, n, m = (Var(name) for name in "ijknm")
ZERO = const(0.0)


def buffer(name: str, *shape: Any, dtype: str = "float32") -> Buffer:
    return Buffer(Var(name, HANDLE), tuple(map(as_expr, shape)), DType.of(dtype), name)


def func(body: Stmt, *scalars: Var) -> PrimFunc:
    """A function of every buffer that is used and not allocated in `body`."""
    allocated = {each.buffer for each in walk(body) if isinstance(each, Allocate)}
    used = dict.fromkeys(e.buffer for e in walk(body) if isinstance(e, BufferStore | BufferLoad))
    return function("f", *(b for b in used if b not in allocated), *scalars, body=body)


def store(target: Buffer, indices: Any, value: Any = 0.0) -> Stmt:
    indices = indices if isinstance(indices, tuple) else (indices,)
    lanes = max(e.as_expr(each).dtype.lanes for each in (value, *indices))
    made = e.cast(target.dtype.with_lanes(lanes), value)
    if all(e.as_expr(each).dtype.lanes == 1 for each in indices):
        return target.vstore(indices, made)
    return BufferStore(target, made, indices)


def lazy(condition: Any, a: PrimExpr, b: PrimExpr = ZERO) -> PrimExpr:
    return Call(a.dtype, "if_then_else", (condition, a, b))


A16, B16, B4, S = buffer("A", 16), buffer("B", 16), buffer("B", 4), buffer("S")
An, Bn, Am, Cn1 = buffer("A", n), buffer("B", n), buffer("A", m), buffer("C", n + 1)
Anm, Bmn, Pnm = buffer("A", n, m), buffer("B", m, n), buffer("P", n * m)
A44 = buffer("A", 4, 4)
In, Fn = buffer("I", n, dtype="int32"), buffer("F", n, dtype="int32")
X8, Y8 = buffer("X", 8, 8), buffer("Y", 8, 8)
u = Var("u", UINT32)
w = Var("w", INT64)
y, x, dy, dx = (Var(name) for name in ("y", "x", "dy", "dx"))
ONE_U = const(1, "uint32")
INDEX = In[i]
row, column = y + dy - 1, x + dx - 1
IN_IMAGE = e.logical_and(
    e.logical_and(row >= 0, row < 8), e.logical_and(column >= 0, column < 8)
)  # fmt: skip

INSIDE = {
    "copy": loop(i, 16, store(B16, i, A16[i])),
    "symbolic copy": loop(i, n, store(Bn, i, An[i])),
    "stencil, shrunk": loop(i, 14, store(B16, i + 1, A16[i] + A16[i + 2])),
    "stencil, guarded": loop(
        i, n, store(Bn, i, lazy(e.logical_and(i > 0, i + 1 < n), An[i - 1] + An[i + 1]))
    ),
    "guard in the negative": loop(i, n, store(Bn, i, lazy(e.EQ(i, 0 * n), ZERO, An[i - 1]))),
    "convolution with padding": loop(
        y, 8, loop(x, 8, loop(dy, 3, loop(dx, 3, store(
            Y8, (y, x), Y8[y, x] + lazy(IN_IMAGE, X8[row, column])
        ))))
    ),
    "nested ifs": loop(
        i, n, IfThenElse(i >= 2, IfThenElse(i < n - 1, store(Bn, i, An[i - 2] + An[i + 1])))
    ),
    "else case": loop(i, n, IfThenElse(e.Or(i < 1, i >= n - 1), store(Bn, i),
                                       store(Bn, i, An[i - 1] + An[i + 1]))),
    "assertion": AssertStmt(n <= m, "too small", loop(i, n, store(Bn, i, Am[i]))),
    "transpose": loop(i, n, loop(j, m, store(Bmn, (j, i), Anm[i, j]))),
    "reversed": loop(i, n, store(Bn, i, An[n - 1 - i])),
    "reshape": loop(i, 16, store(B16, i, A44[i // 4, i % 4])),
    "reshape back": loop(i, 4, loop(j, 4, store(B16, i * 4 + j, A44[i, j]))),
    "symbolic fuse": loop(i, n, loop(j, m, store(Pnm, i * m + j, Anm[i, j]))),
    "symbolic unfuse": loop(i, n * m, store(Pnm, i, Anm[i // m, i % m])),
    "tail": loop(i, (n + 3) // 4, loop(j, 4, IfThenElse(
        likely(i * 4 + j < n), store(Bn, i * 4 + j, An[i * 4 + j])
    ))),
    "clamped gather": loop(i, n, store(Fn, i, An[e.maximum(0, e.minimum(INDEX, n - 1))])),
    "clamped gather and more": loop(
        i, n, store(Bn, i, Cn1[e.maximum(0, e.minimum(INDEX, n - 1)) + 1])
    ),
    "guarded gather": loop(
        i, n, IfThenElse(e.logical_and(INDEX >= 0, m > INDEX), store(Bn, i, Am[INDEX]))
    ),
    "gather bound to a name": loop(
        i, n, LetStmt(k, INDEX, IfThenElse(e.logical_and(k >= 0, k < m), store(Bn, i, Am[k])))
    ),
    "gather, lazy": loop(
        i, n, store(Bn, i, lazy(e.logical_and(INDEX >= 0, m > INDEX), Am[INDEX]))
    ),
    "empty loop": loop(i, 0, store(B16, i + 100, A16[i - 7])),
    "empty domain": loop(i, 4, loop(j, 4, IfThenElse(i + j > 6, store(B16, i + j - 7)))),
    "no dimensions": store(S, (), S[()] + 1.0),
    "begins at one": loop(i, 15, store(B16, i, A16[i - 1]), begin=1),
    "unsigned": loop(u, 16, store(B16, u, A16[const(15, "uint32") - u])),
    "64 bits": loop(w, n, store(Bn, w, An[w])),
    "vector": loop(i, n // 4, BufferStore(
        Bn, BufferLoad(An, (Ramp(i * 4, const(1), 4),)), (Ramp(i * 4, const(1), 4),)
    )),
    "vector, backwards": store(B4, 0, BufferLoad(A16, (Ramp(const(15), const(-5), 4),))),
    "broadcast": loop(i, 16, store(
        B16, Ramp(const(0), const(1), 4), BufferLoad(A16, (Broadcast(i, 4),))
    )),
    "let in an expression": loop(
        i, 15, store(B16, i, Let(k, i + 1, A16[k]))
    ),
    "allocated": Allocate(B4, loop(i, 4, store(B4, i))),
    "range of a byte": loop(i, n, store(
        Bn, i, buffer("T", 256)[e.cast("int32", buffer("Q", n, dtype="uint8")[i])]
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_proved_inside_costs_nothing(name: str) -> None:
    made = func(INSIDE[name])
    assert check_bounds(made) is made


REFUSED = {
    "stencil": (
        loop(i, 16, store(B16, i, A16[i - 1])), r"16\), got i - 1 in \[-1, 14\] \(at i = 0\): ",
    ),
    "stencil, other end": (loop(i, 16, store(B16, i, A16[i + 1])), r"\b16\b.*i = 15"),
    "select": (
        loop(i, 16, store(B16, i, Select(i >= 1, A16[i - 1], ZERO))),
        "i = 0.*Select evaluates both sides",
    ),
    "symbolic stencil": (loop(i, n, store(Bn, i, An[i - 1])), "i = 0, n = 1"),
    "symbolic stencil, other end": (loop(i, n, store(Bn, i, An[i + 1])), "n = 1"),
    "second index": (
        loop(i, n, loop(j, m, store(Bmn, (j, i), Anm[i, j + 1]))), "A.*index 1 must stay",
    ),
    "store": (loop(i, 5, store(B4, i)), "B.*index 0.*i = 4.*store with an if"),
    "constant": (store(B4, -1), r"B.*got -1: "),
    "no element": (store(buffer("E", 0), 0), "E.*index 0"),
    "reshape": (loop(i, 20, store(buffer("B", 20), i, A44[i // 4, i % 4])), "i = 16"),
    "vector": (
        loop(i, 4, store(B4, i, BufferLoad(A16, (Ramp(i * 4 + 1, const(1), 4),)))), "i = 3",
    ),
    "guard too weak": (loop(i, 16, store(B16, i, lazy(i >= 1, A16[i - 2]))), "i = 1"),
    "nested ifs": (
        loop(i, 16, IfThenElse(i > 3, IfThenElse(i < 8, store(B4, i)))), "i = 4",
    ),
    "clamped wrongly": (loop(i, 16, store(B16, i, A16[e.minimum(i + 1, 16)])), "i = 15"),
    "in a condition": (loop(i, 4, IfThenElse(A16[i + 13] > 0.0, store(B4, i))), "i = 3"),
    "in an index": (
        loop(i, 16, store(B16, In[const(0) - 1])), r"I.*index 0.*begin with 0: write I",
    ),
    "modulo": (
        loop(i, 8, IfThenElse(e.EQ(i % 2, const(1)), store(B4, i))), "B.*i = 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_sure_escape_is_refused(name: str) -> None:
    body, message = REFUSED[name]
    with pytest.raises(
        CompileError,
        match=r"^f: \w+\[.*\]: index \d must stay in \[0, .*\), got .*: (guard|indices)",
    ) as caught:
        check_bounds(func(body))
    assert re.search(message, str(caught.value))


AT_ENTRY: dict[str, tuple[Stmt, Any]] = {
    "n <= m": (loop(i, n, store(Bn, i, Am[i])), lambda n, m, k: n <= m),
    "n + 1 <= m": (loop(i, n, store(Bn, i, Am[i + 1])), lambda n, m, k: n < m or n == 0),
    "twice": (loop(i, n, store(Bn, i, Am[i * 2])), lambda n, m, k: 2 * n - 1 <= m or n == 0),
    "scalar": (
        loop(i, n, store(Bn, i, Am[i + k])), lambda n, m, k: n == 0 or (k >= 0 and n + k <= m),
    ),
    "constant loop": (loop(i, 8, store(Am, i)), lambda n, m, k: m >= 8),
    "one element": (store(An, 0), lambda n, m, k: n >= 1),
    "rounded up": (
        loop(i, (n + 3) // 4, loop(j, 4, store(Bn, i * 4 + j, An[i * 4 + j]))),
        lambda n, m, k: n % 4 == 0,
    ),
    "for larger sizes only": (loop(i, n, store(Bn, i, An[i * 2])), lambda n, m, k: n <= 1),
    "under a condition": (
        loop(i, n, IfThenElse(i < 5, store(Bn, i, Am[i]))), lambda n, m, k: min(n, 5) <= m,
    ),
    "quotient": (loop(i, n, store(Bn, i, Am[i // 4])), lambda n, m, k: (n + 3) // 4 <= m),
}  # fmt: skip


def asserts(body: Stmt) -> Iterator[AssertStmt]:
    return (each for each in walk(body) if isinstance(each, AssertStmt))


@pytest.mark.parametrize("name", AT_ENTRY)
def test_what_depends_on_sizes_is_checked_at_entry(name: str) -> None:
    body, expected = AT_ENTRY[name]
    made = check_bounds(func(body, k))
    conditions = []
    inner = made.body
    while isinstance(inner, AssertStmt):
        assert inner.kind == "ValueError"
        assert inner.message.count("{}") == len(inner.values)
        assert " needs " in inner.message
        conditions.append(inner.condition)
        inner = inner.body
    assert conditions
    assert inner is body
    for sizes in product(range(6), range(12), range(-2, 4)):
        at = dict(zip((n, m, k), sizes, strict=True))
        holds = [Analyzer().simplify(substitute(c, at)) for c in conditions]
        assert all(isinstance(each, e.IntImm) and each.value for each in holds) == expected(*sizes)


def test_one_check_for_one_reason() -> None:
    body = loop(i, n, SeqStmt((store(Bn, i, Am[i]), store(Bn, i, Am[i] + Am[i]))))
    assert len(list(asserts(check_bounds(func(body)).body))) == 1


AT_ACCESS = {
    "gather": loop(i, n, store(Bn, i, Am[INDEX])),
    "scatter": loop(i, n, store(Am, INDEX, Bn[i])),
    "wraps": loop(i, n, store(Bn, i, Am[INDEX + 1])),
    "gather in a condition": loop(i, n, IfThenElse(Am[INDEX] > 0.0, store(Bn, i))),
    "in an evaluation": Evaluate(Am[buffer("I", 1, dtype="int32")[0]]),
    "unsigned and below zero": loop(u, 16, store(B16, u, A16[u - ONE_U])),
    "loop of data extent": loop(i, buffer("L", 1, dtype="int32")[0], store(B4, i)),
    "stale guard": loop(i, n, IfThenElse(
        e.logical_and(INDEX >= 0, m > INDEX), SeqStmt((store(In, i, const(-1)), store(Am, INDEX)))
    )),
    "stale name": loop(i, n, LetStmt(k, INDEX, SeqStmt((store(In, i, const(-1)), store(Am, k))))),
    "non-linear": loop(i, n, store(Bn, i, Am[i * i])),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ACCESS)
def test_what_depends_on_data_is_checked_there(name: str) -> None:
    made = check_bounds(func(AT_ACCESS[name]))
    found = list(asserts(made.body))
    assert found
    for each in found:
        assert each.kind == "IndexError"
        assert " must stay in [0, {}), got {}" in each.message
        assert len(each.values) == 2


@pytest.mark.parametrize("both", [True, False])
def test_a_case_of_two_is_checked_alone(both: bool) -> None:
    """Where the other needs no check, too."""
    first = store(Bn, i, Am[INDEX]) if both else store(Bn, i)
    made = check_bounds(func(loop(i, n, IfThenElse(i > 3, first, store(Bn, i, Am[INDEX + 1])))))
    assert len(list(asserts(made.body))) == 1 + both


def test_a_check_stands_before_its_statement() -> None:
    made = check_bounds(func(loop(i, n, store(Bn, i, Am[INDEX]))))
    assert isinstance(made.body, For)
    check = made.body.body
    assert isinstance(check, AssertStmt)
    assert isinstance(check.body, BufferStore)


def test_a_check_under_a_lazy_choice_is_guarded() -> None:
    body = loop(i, n, store(Bn, i, lazy(i > 2, Am[In[i - 3]])))
    made = check_bounds(func(body))
    assert isinstance(made.body, For)
    assert isinstance(made.body.body, SeqStmt)
    guard, statement = made.body.body.seq
    assert isinstance(guard, IfThenElse)
    assert isinstance(guard.then_case, AssertStmt)
    assert isinstance(statement, BufferStore)


def test_inner_accesses_are_checked_first() -> None:
    inner = buffer("I", m, dtype="int32")
    made = check_bounds(func(loop(i, n, store(Bn, i, Am[inner[INDEX]]))))
    messages = [each.message for each in asserts(made.body)]
    assert len(messages) == 2
    assert messages[0].startswith("f: I[")
    assert messages[1].startswith("f: A[")


def test_a_name_inside_an_expression_is_spelt_out() -> None:
    made = check_bounds(func(loop(i, n, store(Bn, i, Let(k, INDEX, Am[k])))))
    (check,) = asserts(made.body)
    assert not any(each is k for each in walk(check.condition))


def test_a_loop_condition_is_checked_before_every_round() -> None:
    state = buffer("I", 1, dtype="int32")
    advance = store(state, 0, state[0] + 1)
    made = check_bounds(func(While(Am[state[0]] > 0.0, advance)))
    assert isinstance(made.body, AssertStmt)
    assert isinstance(made.body.body, While)
    assert len(list(asserts(made.body.body.body))) == 1


def test_every_lane_of_a_vector_of_data_is_checked() -> None:
    lanes = BufferLoad(buffer("I", 4, dtype="int32"), (Ramp(const(0), const(1), 4),))
    made = check_bounds(func(store(B4, Ramp(const(0), const(1), 4), BufferLoad(Am, (lanes,)))))
    assert len(list(asserts(made.body))) == 4


def test_attributes_are_looked_into() -> None:
    body = AttrStmt(None, "pragma", const(1), store(B4, 4))
    with pytest.raises(CompileError, match=r"B\[4\]: index 0"):
        check_bounds(func(body))


# -- Calls out of the program ---------------------------------------------------------------------


def call() -> Call:
    return Call(INT32, "call_packed", (StringImm("g"),))


I16 = buffer("I", 16, dtype="int32")
CALL = call()

# Programs in which "g" is called so many times, and what is said when it returns 16.
CALLING = {
    "load": (store(B4, 0, A16[call()]), 1, "A[16]"),
    "store": (store(B16, call()), 1, "B[16]"),
    "load and store": (store(B16, call(), A16[call()]), 2, "A[16]"),
    "index of an index": (store(B4, 0, A16[I16[call()]]), 1, "I[16]"),
    "part of an index": (store(B4, 0, A16[I16[3] * 0 + call()]), 1, "A[16]"),
    "name": (store(B4, 0, Let(k, call(), A16[k])), 1, "A[16]"),
    "both in a condition": (store(B4, 0, lazy(CALL < 17, A16[CALL])), 2, "A[16]"),
    "condition": (store(B4, 0, lazy(call() > 0, A16[w])), 1, "A[16]"),
    "condition of a branch": (IfThenElse(A16[call()] < 0.0, store(B4, 0)), 1, "A[16]"),
    "condition of a loop": (While(A16[call()] < 0.0, store(B4, 0)), 1, "A[16]"),
    "size of a loop": (loop(i, I16[call()], store(B4, 0)), 1, "I[16]"),
}


def run_with(made: PrimFunc, g: Callable[..., int], *scalars: int) -> None:
    """Interprets a function on zeros."""
    verify(made)
    shapes = [[int(str(dim)) for dim in each.shape] for each in made.buffer_map.values()]
    dtypes = [str(each.dtype) for each in made.buffer_map.values()]
    interpret(made, *map(np.zeros, shapes, dtypes), *scalars, packed={"g": g})


@pytest.mark.parametrize("name", CALLING)
def test_an_index_that_is_called_for_is_evaluated_once(name: str) -> None:
    body, calls, access = CALLING[name]
    made = check_bounds(func(body, *([w] if name == "condition" else [])))
    scalars = len(made.params) - len(made.buffer_map)
    returned: list[int] = []

    def g() -> int:
        returned.append(1)
        return 1

    run_with(made, g, *[1] * scalars)
    assert len(returned) == calls
    message = f"f: {access}: expected an index inside shape (16,)"
    with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
        run_with(made, lambda: 16, *[16] * scalars)


def grow(memory: Any) -> int:
    memory[0] = 16
    return 0


WRITE = e.cast("float32", Call(INT32, "call_packed", (StringImm("g"), BufferRef(I16))))


@pytest.mark.parametrize("value", [WRITE + A16[I16[0]], lazy(I16[0] < 16, WRITE + A16[I16[0]])])
def test_a_call_may_write_what_an_index_reads(value: PrimExpr) -> None:
    """What held before the call says nothing of the index after it."""
    with pytest.raises(IndexError, match=r"^f: A\[16\]: expected an index inside shape"):
        run_with(check_bounds(func(store(B4, 0, value))), grow)


def test_a_name_keeps_its_value_over_a_call() -> None:
    """The call writes an index outside of A; the name stands for what was there before, 0, so that
    no IndexError comes."""
    run_with(check_bounds(func(store(B4, 0, Let(k, I16[0], WRITE + A16[k])))), grow)


def test_what_is_proved_beside_a_call_costs_nothing() -> None:
    body = loop(i, 16, store(B16, i, A16[i] + e.cast("float32", call())))
    made = func(body)
    assert check_bounds(made) is made


indices = st.recursive(
    st.sampled_from([i, j]) | st.integers(-4, 9).map(const),
    lambda inner: st.builds(
        lambda op, a, b: op(a, b),
        st.sampled_from([e.add, e.subtract, e.minimum, e.maximum]), inner, inner,
    )
    | st.builds(
        lambda op, a, c: op(a, c),
        st.sampled_from([e.floordiv, e.floormod, e.multiply]), inner, st.integers(1, 4),
    ),
    max_leaves=5,
)  # fmt: skip


@given(indices, st.none() | indices, st.integers(0, 5), st.integers(0, 4), st.integers(0, 9))
@settings(max_examples=250, deadline=None)
def test_verdicts_agree_with_running_the_loops(
    index: PrimExpr, guard: PrimExpr | None, rows: int, columns: int, size: int
) -> None:
    read: PrimExpr = buffer("A", size)[index]
    condition = None if guard is None else guard > 2
    if condition is not None:
        read = lazy(Not(condition), ZERO, read)
    made = func(loop(i, rows, loop(j, columns, store(buffer("B", 1), 0, read))))

    def escapes(a: int, b: int) -> bool:
        at = {i: a, j: b}
        if condition is not None and not bool(Analyzer().simplify(substitute(condition, at))):
            return False
        return not 0 <= e.const_int(Analyzer().simplify(substitute(index, at))) < size  # type: ignore[operator]  # constant

    escape = any(escapes(a, b) for a in range(rows) for b in range(columns))
    if escape:
        with pytest.raises(CompileError, match=r"A\[.*\]: index 0"):
            check_bounds(made)
    else:
        assert check_bounds(made) is made
