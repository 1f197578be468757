"""Loop nests as schedules make them, drawn at random: splits that don't divide, borders, fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from minitvm import te, tir
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr, Var, const
from minitvm.tir.functor import substitute
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from minitvm.tir.verify import verify
from tests.tir.programs import likely, loop

SIZES = st.integers(0, 9)
Array = np.ndarray[Any, Any]


class Nest:
    """A function of A, B and the trace T, and the sizes of A and B."""

    def __init__(self, func: PrimFunc, shape: tuple[int, int]) -> None:
        self.func = func
        self.shape = shape

    def __repr__(self) -> str:
        return f"{self.shape}:\n{self.func}"

    def arguments(self) -> list[Array]:
        numbers = np.random.default_rng(0)
        a = numbers.standard_normal(self.shape).astype(np.float32)
        return [a, np.ones_like(a), np.zeros(1, np.int32)]

    def run(self, func: PrimFunc) -> list[Array]:
        """What the function, or another made of it, does to the arguments."""
        arguments = self.arguments()
        interpret(func, *arguments)
        return arguments


@dataclass
class _Axis:
    """One dimension of the iteration: its loops, the outermost first, its place and guards."""

    loops: list[tuple[Var, PrimExpr, ForKind]]
    place: PrimExpr
    guards: list[PrimExpr]


def same_effect(nest: Nest, made: PrimFunc) -> None:
    """`made` is valid and does what the program that it is made of does, in the same order."""
    verify(made)
    for found, expected in zip(nest.run(made), nest.run(nest.func), strict=True):
        np.testing.assert_array_equal(found, expected)


_OUTER = st.sampled_from([ForKind.SERIAL, ForKind.SERIAL, ForKind.PARALLEL])
_INNER = st.sampled_from([ForKind.SERIAL, ForKind.UNROLLED, ForKind.VECTORIZED])


@st.composite
def _axes(draw: st.DrawFn, name: str, extent: PrimExpr, parallel: bool) -> _Axis:
    factor, again = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    border = draw(st.sampled_from([0, 0, 1, 2]))  # iterations before the first element and after
    outer, inner, innermost = (Var(f"{name}{suffix}") for suffix in ("o", "m", "i"))
    blocks = (extent + (2 * border + factor * again - 1)) // (factor * again)
    loops = [
        (outer, blocks, draw(_OUTER) if parallel else ForKind.SERIAL),
        (inner, const(factor), draw(_INNER)),
    ]
    place = outer * (factor * again) + inner * again
    if again > 1:
        loops.append((innermost, const(again), draw(_INNER)))
        place = place + innermost
    place = place - border
    guards = [place < extent]
    if border:
        guards.append(draw(st.sampled_from([place >= 0, const(0) <= place, const(-1) < place])))
    return _Axis(loops, place, guards)


@st.composite
def loop_nests(draw: st.DrawFn, *, parallel: bool = True) -> Nest:
    """Two split axes in any order, guards in any order, borders chosen lazily in the value.

    Iterations depend on each other: a program with `parallel` loops is for the interpreter only.
    """
    shape = draw(SIZES), draw(SIZES)
    symbolic = draw(st.booleans())
    sizes = (te.var("n"), te.var("m")) if symbolic else tuple(map(const, shape))
    a, b = (tir.decl_buffer(sizes, name=name) for name in "AB")
    trace = tir.decl_buffer((1,), "int32", name="T")
    axes = [draw(_axes(name, size, parallel)) for name, size in zip("xy", sizes, strict=True)]
    loops = [each for axis in axes for each in axis.loops]
    x, y = (axis.place for axis in axes)
    if draw(st.booleans()):  # both outermost loops as one
        (xo, rows, kind), (yo, columns, _) = axes[0].loops[0], axes[1].loops[0]
        fused, columns = Var("f"), e.maximum(columns, 1)
        loops = [each for each in loops if each[0] is not xo and each[0] is not yo]
        loops.append((fused, rows * columns, kind))
        from_fused = {xo: fused // columns, yo: fused % columns}
        x, y = (replaced(place, from_fused) for place in (x, y))
        for axis in axes:
            axis.guards = [replaced(guard, from_fused) for guard in axis.guards]
    body = _body(draw, (a, b, trace), sizes, x, y)
    guards = draw(st.permutations([guard for axis in axes for guard in axis.guards]))
    if draw(st.booleans()):
        guards = [e.And(*guards[:2]), *guards[2:]]
    for guard in guards:
        body = IfThenElse(likely(guard), body)
    for var, extent, kind in draw(st.permutations(loops)):
        body = loop(var, extent, body, kind)
        if draw(st.integers(0, 4)) == 0:
            body = seq(body, BufferStore(trace, trace[0] * 5 + 1, (const(0),)))
    params = {buffer.data: buffer for buffer in (a, b, trace)}
    return Nest(PrimFunc(tuple(params), body, params, "nest"), shape)


@st.composite
def guarded_panels(draw: st.DrawFn) -> Nest:
    """Loops of constant extents around ``likely`` guards of sums in which each of them counts up,
    down or not at all; lets between the loops, of which the guards speak too."""
    rows, columns = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    n, m = te.var("n"), te.var("m")
    a, b = (tir.decl_buffer((n, m), name=name) for name in "AB")
    trace = tir.decl_buffer((1,), "int32", name="T")
    extents = [*draw(st.permutations([2, 3, 5])), draw(st.sampled_from([2, 32]))]
    loops = [(Var(f"i{place}"), extent) for place, extent in enumerate(extents)]
    step = st.sampled_from([-4, -1, 0, 1, 3, 8])
    lets: dict[int, tuple[Var, PrimExpr]] = {}
    for place in draw(st.sets(st.integers(0, 3))):
        around = [var for var, _ in loops[: place + 1]]
        value = draw(st.sampled_from([around[-1] * 3, n - around[-1], around[0] % 2 + m]))
        lets[place] = (Var(f"x{place}"), value)
    names = [*(var for var, _ in loops), *(var for var, _ in lets.values())]
    guards = []
    for _ in range(draw(st.integers(1, 2))):
        total: PrimExpr = const(draw(st.integers(-3, 12)))
        for name in names:
            total = total + name * draw(step)
        guards.append(total < draw(st.sampled_from([n, m, n * 2 - m, const(9)])))
    seen = trace[0]
    for name in names:
        seen = seen * 7 + name
    body: Stmt = BufferStore(trace, seen, (const(0),))
    for guard in guards:
        body = IfThenElse(likely(guard), body)
    for place, (var, extent) in reversed(list(enumerate(loops))):
        if place in lets:
            body = LetStmt(*lets[place], body)
        body = loop(var, extent, body)
    params = {buffer.data: buffer for buffer in (a, b, trace)}
    return Nest(PrimFunc(tuple(params), body, params, "nest"), (rows, columns))


def _body(
    draw: st.DrawFn, buffers: tuple[Buffer, ...], sizes: Any, x: PrimExpr, y: PrimExpr
) -> Stmt:
    a, b, trace = buffers
    n, m = sizes
    inside = draw(
        st.sampled_from([te.all(x >= 1, y >= 1), x >= 1, te.all(y >= 1, x + y < n + m, x > 0)])
    )
    before = a[x - (x >= 1).astype("int32"), y - (y >= 1).astype("int32")]
    value = te.if_then_else(inside, before, 0.5) if draw(st.booleans()) else before
    if draw(st.booleans()):
        value = tir.Select(x + 1 < n, value, value + 1.0)
    store = BufferStore(b, b[x, y] * 2.0 + value, (x, y))
    step = BufferStore(trace, trace[0] * 3 + x * 11 + y, (const(0),))
    return seq(store, step) if draw(st.booleans()) else store


def replaced(node: PrimExpr, mapping: dict[Var, PrimExpr]) -> PrimExpr:
    """An expression with loop variables replaced."""
    made: PrimExpr = substitute(node, mapping)
    return made
