"""Programs to schedule: small graphs of every kind, of drawn sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from minitvm import te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor
from minitvm.tir.expr import const_int
from minitvm.tir.functor import substitute

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(repr=False)
class Program:
    """A computation: its outputs, its arguments, and the values of the symbolic sizes."""

    outputs: list[Operation]
    args: list[Tensor]
    sizes: dict[Any, int]
    bounds: tuple[Tensor, ...] = ()  # whose elements are ascending and from 0 to 6

    def __repr__(self) -> str:
        """As text: each tensor, and what its elements are."""
        lines, waiting = list[str](), [op.output(0) for op in self.outputs]
        while waiting:
            tensor = waiting.pop()
            line = f"{tensor}: {tensor.dtype}"
            if isinstance(tensor.op, ComputeOp):
                axes = ", ".join(axis.name for axis in tensor.op.axis)
                line += f", [{axes}] = {', '.join(map(str, tensor.op.body))}"
            if line not in lines:
                lines.append(line)
                waiting += tensor.op.input_tensors
        return "\n".join(lines[::-1])

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """As hypothesis shows it."""
        printer.text(repr(self))

    def arrays(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """Arguments: inputs of small whole numbers, outputs of rubbish."""
        generator = np.random.default_rng(seed)
        made = []
        for tensor in self.args:
            shape = tuple(self._extent(dim) for dim in tensor.shape)
            array = generator.integers(-9, 10, shape).astype(str(tensor.dtype))
            made.append(np.sort(array % 7) if tensor in self.bounds else array)
        return made

    def _extent(self, dim: Any) -> int:
        extent = const_int(Analyzer().simplify(substitute(dim, self.sizes)))
        assert extent is not None
        return int(extent)

    def inside(self) -> list[Tensor]:
        """The tensors between arguments that could be arguments, too."""
        parts = set[Operation]()
        found = dict[Tensor, None]()
        waiting = [*self.outputs]
        while waiting:
            op = waiting.pop()
            if isinstance(op, ScanOp):
                parts.update(each.op for each in (*op.init, *op.update, *op.state_placeholder))
            found.update(dict.fromkeys(op.outputs))
            waiting += [tensor.op for tensor in op.input_tensors]
        return [
            tensor
            for tensor in found
            if not isinstance(tensor.op, PlaceholderOp)
            and tensor.op not in parts
            and tensor not in self.args
        ]


DTYPES = st.sampled_from(["int32", "int32", "int64", "float64", "float32"])


class Sizes:
    """Draws dimensions, constant or symbolic."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.values: dict[Any, int] = {}

    def __call__(self, name: str, low: int = 1, high: int = 12) -> Any:
        value = self._draw(st.integers(low, high))
        if not self._draw(st.booleans()):
            return value
        size = te.size_var(name)
        self.values[size] = value if self._draw(st.integers(0, 9)) else 0 if low == 1 else value
        return size


def elementwise_chain(draw: Draw) -> Program:
    size = Sizes(draw)
    shape = tuple(size(f"n{i}") for i in range(draw(st.integers(1, 3))))
    dtype = draw(DTYPES)
    a = te.placeholder(shape, dtype, name="a")
    made = [a]
    for i in range(draw(st.integers(1, 4))):
        x, y = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        made.append(
            te.compute(shape, lambda *j, x=x, y=y, i=i: x(*j) * (i + 2) + y(*j), name=f"t{i}")
        )
    return Program([made[-1].op], [a, made[-1]], size.values)


def stencil(draw: Draw) -> Program:
    """A padded border, two passes of a stencil."""
    size = Sizes(draw)
    n, dtype = size("n"), draw(DTYPES)
    a = te.placeholder((n,), dtype, name="a")
    pad = te.compute(
        (n + 2,),
        lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), a[i - 1], te.const(0, dtype)),
        name="pad",
    )
    blur = te.compute((n,), lambda i: pad[i] + pad[i + 1] * 2 + pad[i + 2], name="blur")
    step = draw(st.integers(1, 2))
    m = draw(st.integers(1, 4)) if draw(st.booleans()) else n
    out = te.compute(
        (m,), lambda i: blur[te.min(i * step, n - 1)] + blur[n - 1 - te.min(i, n - 1)], name="out"
    )
    size.values = {key: max(value, 1) for key, value in size.values.items()}
    return Program([out.op], [a, out], size.values)


def blur_2d(draw: Draw) -> Program:
    h, w, dtype = draw(st.integers(3, 11)), draw(st.integers(3, 11)), draw(DTYPES)
    a = te.placeholder((h, w), dtype, name="a")
    bx = te.compute((h, w - 2), lambda y, x: a[y, x] + a[y, x + 1] + a[y, x + 2], name="bx")
    by = te.compute((h - 2, w - 2), lambda y, x: bx[y, x] + bx[y + 1, x] + bx[y + 2, x], name="by")
    return Program([by.op], [a, by], {})


def row_reduction(draw: Draw) -> Program:
    size, begin = Sizes(draw), draw(st.sampled_from([0, 0, 1, 2]))
    n, m, dtype = size("n"), size("m", max(begin, 1)), draw(DTYPES)
    a = te.placeholder((n, m), dtype, name="a")
    reducer = draw(st.sampled_from([te.sum, te.max, te.min]))
    k = te.reduce_axis((begin, m), "k")
    r = te.compute((n,), lambda i: reducer(a[i, k], axis=k), name="r")
    if draw(st.booleans()):
        return Program([r.op], [a, r], size.values)
    low = te.compute((n, m), lambda i, j: a[i, j] - r[i], name="low")
    return Program([low.op], [a, low], size.values)


def argmax(draw: Draw) -> Program:
    size = Sizes(draw)
    n, m = size("n"), size("m")
    a = te.placeholder((n, m), "int32", name="a")

    def combine(x: Any, y: Any) -> Any:
        first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
        return te.if_then_else(first, x[0], y[0]), te.if_then_else(first, x[1], y[1])

    best = te.comm_reducer(
        combine, lambda t0, t1: (te.const(1000, t0), te.min_value(t1)), name="argmax"
    )
    k = te.reduce_axis((0, m), "k")
    index, value = te.compute((n,), lambda i: best((k.var, a[i, k]), axis=k), name="best")
    return Program([index.op], [a, index, value], size.values)


def matmul(draw: Draw) -> Program:
    size, begin = Sizes(draw), draw(st.sampled_from([0, 0, 1, 2]))
    n, m, depth, dtype = size("n"), size("m"), size("l", max(begin, 1)), draw(DTYPES)
    a, b = te.placeholder((n, depth), dtype, name="a"), te.placeholder((depth, m), dtype, name="b")
    k = te.reduce_axis((begin, depth), "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    if draw(st.booleans()):
        return Program([c.op], [a, b, c], size.values)
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], te.const(0, dtype)), name="d")
    return Program([d.op], [a, b, d], size.values)


def factors(draw: Draw) -> Program:
    """A sum, or a least sum, of several factors that change along different axes, with a part that
    is dear: what can be taken out of inner sums, and computed ahead of them."""
    size = Sizes(draw)
    n, m, depth, begin = size("n"), size("m"), size("l"), draw(st.integers(0, 1))
    size.values = {each: max(value, 1) for each, value in size.values.items()}
    dtype, reducer = draw(DTYPES), draw(st.sampled_from([te.sum, te.sum, te.min, te.max]))
    a, b = te.placeholder((n, m), dtype, name="a"), te.placeholder((m, depth), dtype, name="b")
    x, y = te.placeholder((n,), dtype, name="x"), te.placeholder((depth,), dtype, name="y")
    i, k = te.reduce_axis((0, n), "i"), te.reduce_axis((0, depth), "k")
    j = te.reduce_axis((begin, m), "j")

    def dear(z: Any) -> Any:
        return te.sqrt(te.abs(z) + 1) if dtype.startswith("float") else z // 2

    def of(*parts: Any) -> Any:
        made = parts[0]
        for each in parts[1:]:
            made = made * each if reducer is te.sum else made + each
        return made

    if draw(st.booleans()):
        c = te.compute((n,), lambda q: reducer(
            of(x[q], a[q, j], dear(b[j, k]), dear(y[k])), axis=[j, k]), name="c")  # fmt: skip
    else:
        c = te.compute((depth,), lambda q: reducer(
            of(dear(x[i]), a[i, j], b[j, q], y[q]), axis=[i, j]), name="c")  # fmt: skip
    d = te.compute(c.shape, lambda q: c[q] + 1, name="d")
    return Program([d.op], [a, b, x, y, d], size.values)


def convolution(draw: Draw) -> Program:
    n, f, c, o = (draw(st.integers(1, high)) for high in (9, 3, 3, 4))
    stride, dtype = draw(st.integers(1, 2)), draw(DTYPES)
    a = te.placeholder((c, n + 2), dtype, name="a")
    w = te.placeholder((o, c, f), dtype, name="w")
    length = (n + 2 - f) // stride + 1
    rc = te.reduce_axis((draw(st.integers(0, c - 1)), c), "rc")
    rx = te.reduce_axis((draw(st.integers(0, f - 1)), f), "rx")
    y = te.compute(
        (o, length),
        lambda q, x: te.sum(a[rc, x * stride + rx] * w[q, rc, rx], axis=[rc, rx]),
        name="y",
    )
    z = te.compute((o, length), lambda q, x: y[q, x] + 1, name="z")
    return Program([z.op], [a, w, z], {})


def layouts(draw: Draw) -> Program:
    """Transposes, packing and reversal."""
    n, m, dtype = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(DTYPES)
    a = te.placeholder((n, m), dtype, name="a")
    t = te.compute((m, n), lambda i, j: a[j, i] * 2, name="t")
    p = te.compute((n, m), lambda i, j: t[m - 1 - j, i] + a[i, j], name="p")
    block = draw(st.integers(1, 4))
    q = te.compute(
        (n, (m + block - 1) // block, block),
        lambda i, jo, ji: te.if_then_else(
            jo * block + ji < m, p[i, te.min(jo * block + ji, m - 1)], te.const(0, dtype)
        ),
        name="q",
    )
    return Program([q.op], [a, q], {})


def scan(draw: Draw) -> Program:
    """A recurrence with a stage between the state and its update, and a use of the result."""
    depth, size = draw(st.integers(1, 3)), Sizes(draw)
    steps = size("steps", depth, 6)
    size.values = {steps: max(value, depth) for steps, value in size.values.items()}
    n, dtype = size("n"), draw(st.sampled_from(["int32", "int64", "int8", "uint16"]))
    x = te.placeholder((steps, n), dtype, name="x")
    state = te.placeholder((steps, n), dtype, name="state")
    first = te.compute((depth, n), lambda t, i: x[t, i] + te.const(1, dtype), name="first")
    twice = te.compute((steps, n), lambda t, i: state[t - 1, i] * te.const(2, dtype), name="twice")
    given = te.compute((steps, n), lambda t, i: x[t, i] - te.const(3, dtype), name="given")
    update = te.compute(
        (steps, n),
        lambda t, i: twice[t, i] + twice[t - depth + 1, n - 1 - i] + given[t, i],
        name="update",
    )
    result = te.scan(first, update, state, inputs=[x], name="result")
    if draw(st.booleans()):
        return Program([result.op], [x, result], size.values)
    out = te.compute((steps, n), lambda t, i: result[steps - 1 - t, i] + 1, name="out")
    return Program([out.op], [x, out], size.values)


def cell(draw: Draw) -> Program:
    """Two states, whose updates need products, a stage between, and the other update."""
    size = Sizes(draw)
    steps, n = draw(st.integers(1, 5)), size("n")
    x, w = te.placeholder((steps, n), "int32", name="x"), te.placeholder((n, n), "int32", name="w")
    a, b = (te.placeholder((steps, n), "int32", name=name) for name in ("a", "b"))
    firsts = [te.compute((1, n), lambda t, i: x[t, i], name=f"first{each}") for each in "ab"]
    k = te.reduce_axis((0, n), "k")
    product = te.compute((steps, n), lambda t, i: te.sum(a[t - 1, k] * w[k, i], axis=k), name="p")
    gate = te.compute((steps, n), lambda t, i: te.min(product[t, i], x[t, i]), name="gate")
    kept = te.compute((steps, n), lambda t, i: b[t - 1, i] - gate[t, n - 1 - i], name="kept")
    shown = te.compute((steps, n), lambda t, i: kept[t, n - 1 - i] * 2 + gate[t, i], name="shown")
    one, two = te.scan(firsts, [shown, kept], [a, b], inputs=[x, w], name="result")
    return Program([one.op], [x, w, one, two], size.values)


def running(draw: Draw) -> Program:
    """Reductions of all steps so far, or of all from here on, between two elementwise stages."""
    size = Sizes(draw)
    others = [draw(st.integers(1, 5)) for _ in range(draw(st.integers(0, 2)))]
    shape = (*others, size("n", 1, 9))
    dtype, place = draw(st.sampled_from(["int32", "float32"])), draw(st.integers(0, len(shape) - 1))
    reducer = draw(st.sampled_from([te.sum, te.max, te.min]))
    form = draw(st.sampled_from(["<", "<=", ">", ">="]))
    a = te.placeholder(shape, dtype, name="a")
    b = te.compute(shape, lambda *i: a(*i) * 2 + 1, name="b")

    def element(*i: Any) -> Any:
        k, j = te.reduce_axis((0, shape[place]), "k"), i[place]
        where = {"<": k < j, "<=": k <= j, ">": k > j, ">=": k >= j}[form]
        return reducer(b(*i[:place], k, *i[place + 1 :]), axis=k, where=where)

    r = te.compute(shape, element, name="r")
    out = te.compute(shape, lambda *i: te.min(r(*i), 100) - b(*i), name="out")
    return Program([out.op], [a, out], size.values)


def sums_so_far(draw: Draw) -> Program:
    """A scan that is a running reduction, and a stage that moves its elements."""
    size = Sizes(draw)
    steps, n = size("steps", 2, 9), size("n")
    size.values = {each: max(value, 1) for each, value in size.values.items()}
    x = te.placeholder((n, steps), "int32", name="x")
    state = te.placeholder((steps, n), "int32", name="state")
    more = draw(st.integers(0, 1))
    first = te.compute((1, n), lambda t, i: x[i, t] + more, name="first")
    update = te.compute((steps, n), lambda t, i: x[i, t] + state[t - 1, i], name="update")
    result = te.scan(first, update, state, inputs=[x], name="result")
    if draw(st.booleans()):
        return Program([result.op], [x, result], size.values)
    backwards = draw(st.booleans())
    out = te.compute(
        (n, steps), lambda i, t: result[steps - 1 - t if backwards else t, i], name="out"
    )
    return Program([out.op], [x, out], size.values)


def chosen_reducer(draw: Draw) -> Program:
    """A reducer that depends on the element: the greatest of some rows, the least of others."""
    size, begin = Sizes(draw), draw(st.integers(0, 2))
    n, m, dtype = size("n"), size("m", max(begin, 1)), draw(DTYPES)
    a, w = te.placeholder((n, m), dtype, name="a"), te.placeholder((n,), "int32", name="w")
    k = te.reduce_axis((begin, m), "k")
    by_tensor, starts = draw(st.booleans()), draw(st.booleans())

    def row(i: Any) -> Any:
        up = w[i] > 0 if by_tensor else i % 2 == 0
        reducer = te.comm_reducer(
            lambda x, y: te.if_then_else(up, te.max(x, y), te.min(x, y)),
            lambda t: te.if_then_else(up, te.min_value(t), te.max_value(t)),
        )
        init = (w[i] * i).astype(dtype) if starts else None
        return reducer(a[i, k] * 2, axis=k, init=init)

    r = te.compute((n,), row, name="r")
    out = te.compute((n, m), lambda i, j: a[i, j] + r[i] // 2, name="out")
    return Program([out.op], [a, w, out], size.values)


def segments(draw: Draw) -> Program:
    """Sums of parts of a vector, which begin where data says."""
    size = Sizes(draw)
    n, dtype = size("n"), draw(DTYPES)
    a = te.placeholder((6,), dtype, name="a")
    p = te.placeholder((n + 1,), "int32", name="p")
    q = te.compute((n + 1,), lambda i: p[i] + 0, name="q") if draw(st.booleans()) else p

    def part(i: Any) -> Any:
        k = te.reduce_axis((q[i], q[i + 1]), "k")
        return te.sum(a[k] * 2, axis=k)

    r = te.compute((n,), part, name="r")
    out = te.compute((n,), lambda i: r[i] + p[i + 1].astype(dtype), name="out")
    return Program([out.op], [a, p, out], size.values, (p,))


def triangle(draw: Draw) -> Program:
    """Reductions whose ranges depend on the row, between two elementwise stages."""
    n, dtype = draw(st.integers(1, 9)), draw(DTYPES)
    a = te.placeholder((n, n), dtype, name="a")
    b = te.compute((n, n), lambda i, j: a[i, j] * 2 + 1, name="b")
    begin, end = draw(st.sampled_from([(0, 1), (0, n), (1, n)]))

    def row(i: Any) -> Any:
        last = i + 1 if end == 1 else te.max(end - i, begin)
        k = te.reduce_axis((begin, last), "k")
        return te.sum(b[i, te.min(k, n - 1)], axis=k)

    r = te.compute((n,), row, name="r")
    out = te.compute((n, n), lambda i, j: b[i, j] - r[i], name="out")
    return Program([out.op], [a, out], {})


def guarded(draw: Draw) -> Program:
    """A sum of what is read under conditions: at an edge, along a band, or where data says so."""
    size = Sizes(draw)
    n, depth, dtype = size("n"), draw(st.integers(1, 6)), draw(DTYPES)
    m, first = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    a = te.placeholder((n,), dtype, name="a")
    b = te.placeholder((depth, m), dtype, name="b")
    mask = te.placeholder((m, depth), "int32", name="mask")
    begin = draw(st.integers(0, 1))
    k = te.reduce_axis((begin, depth), name="k")
    other = te.const(draw(st.sampled_from([0, 0, 1])), dtype)
    kind, where = draw(st.integers(0, 4)), draw(st.booleans())

    def element(i: Any, j: Any) -> Any:
        place = i - k + first if kind == 1 else i + k - first
        inside = te.all(place >= 0, place < n)
        if kind == 2:  # of another axis
            inside = te.all(inside, k <= j)
        value = a[place]
        if kind == 3:  # of data
            value = te.if_then_else(mask[j, k] > 0, value, other)
        if kind == 4:  # in two places
            value = te.if_then_else(i + j > 3, value, other) + value
        if where:
            return te.sum(value * b[k, j], axis=k, where=inside)
        return te.sum(te.if_then_else(inside, value, other) * b[k, j], axis=k)

    c = te.compute((n, m), element, name="c")
    d = te.compute((n, m), lambda i, j: c[i, j] * 2, name="d")
    return Program([d.op], [a, b, mask, d], size.values)


def extern(draw: Draw) -> Program:
    """A stage by hand between others, of which one reads what it reads, too."""
    n, dtype = draw(st.integers(1, 9)), draw(DTYPES)
    a = te.placeholder((n,), dtype, name="a")
    b = te.compute((n,), lambda i: a[i] * 2, name="b")

    def reverse(ins: Any, outs: Any) -> Any:
        builder = tir.ir_builder.create()
        source, target = builder.buffer_ptr(ins[0]), builder.buffer_ptr(outs[0])
        with builder.for_range(0, n) as i:
            target[i] = source[n - 1 - i]
        return builder.get()

    e = te.extern((n,), [b], reverse, name="e", dtype=dtype)
    c = te.compute((n,), lambda i: e[i] + b[i], name="c")
    d = te.compute((n,), lambda i: c[n - 1 - i] * 3, name="d")
    return Program([d.op], [a, d], {})


def siblings(draw: Draw) -> Program:
    """Stages of the same axes that read the same tensors, and not each other."""
    size = Sizes(draw)
    n, m = size("n"), size("m")
    dtype = draw(DTYPES)
    x, y = te.placeholder((n, m), dtype, name="x"), te.placeholder((n, m), dtype, name="y")
    made = []
    for i in range(draw(st.integers(2, 4))):
        k = te.reduce_axis((0, m), name=f"k{i}")
        value = draw(st.sampled_from([lambda i, j: x[i, j], lambda i, j: x[i, j] * y[i, j]]))
        sums = te.compute((n,), lambda i, k=k, f=value: te.sum(f(i, k), axis=k), name=f"s{i}")
        made.append(sums)
        if draw(st.booleans()):
            made[-1] = te.compute((n, m), lambda i, j, s=sums: s[i] + y[i, j], name=f"e{i}")
    return Program([each.op for each in made], [x, y, *made], size.values)


PROGRAMS: list[Callable[[Draw], Program]] = [
    elementwise_chain,
    stencil,
    blur_2d,
    row_reduction,
    siblings,
    argmax,
    matmul,
    factors,
    convolution,
    layouts,
    scan,
    cell,
    running,
    sums_so_far,
    chosen_reducer,
    segments,
    triangle,
    guarded,
    extern,
]
