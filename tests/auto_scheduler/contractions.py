"""Random programs around contractions: what people write, and what they may write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from typing import Any

from hypothesis import strategies as st

from minitvm import te, tir
from minitvm.te.tensor import Tensor
from tests.schedules.programs import Draw, Program

At = Mapping[str, Any]  # the axes by name
Index = Callable[[At], Any]
# The dtypes of both factors, and of the sum.
DTYPES = [
    *3 * [("float32", "float32", "float32")],
    ("float64", "float64", "float64"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float32", "float32"),
    ("float16", "float16", "float16"),
    ("float32", "float32", "float64"),
    ("int8", "float32", "float32"),
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("int16", "int16", "int32"),
    ("uint8", "bool", "int32"),
    ("int32", "int32", "int32"),
    ("int8", "int8", "int8"),
    ("int64", "int32", "int64"),
]
# The dtype in which products may be summed that were rounded to, or wrapped around in, another.
LATER = {"int8": "int32", "int32": "int64", "float16": "float32", "float32": "float64"}
EXTENTS = [1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 31, 32, 33, 48, 61, 64, 67, 97, 128, 130]
MOST = [2_000, 40_000, 40_000, 600_000]  # products, of which a program is drawn to have at most


@dataclass
class Axes:
    """The loops of a contraction: their extents, constant or symbolic."""

    draw: Draw
    most: int
    extents: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Any, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, *, empty: bool = True) -> str:
        """A new axis, of an extent that keeps the number of products below the most."""
        taken = prod(max(1, value) for value in self.values.values())
        fits = [each for each in EXTENTS if taken * each <= self.most] or [1]
        extent = self.draw(st.sampled_from(fits))
        if empty and self.draw(st.integers(0, 60)) == 60:
            extent = 0
        self.values[name] = self.extents[name] = extent
        dtype = self.draw(st.sampled_from(["int32", "int32", "int32", "int64"]))
        if self.draw(st.integers(0, 3)) == 3:
            self.extents[name] = te.size_var(f"n_{name}", dtype)
            self.sizes[self.extents[name]] = extent
        elif dtype == "int64":
            self.extents[name] = te.const(extent, dtype)
        return name


@dataclass
class Operand:
    """A tensor to read, and the dimensions of it: an extent, and an index made of the axes."""

    tensor: Tensor
    indices: list[Index]

    def __call__(self, at: At) -> Any:
        return self.tensor(*(index(at) for index in self.indices))


# -- How an operand is indexed --


def affine(*terms: tuple[str, Any], first: int = 0) -> Index:
    """The sum of some axes, each times a number."""

    def index(at: At) -> Any:
        parts = [at[name] if step == 1 else at[name] * step for name, step in terms]
        parts += [first] if first or not parts else []
        return reduce(operator.add, parts)

    return index


def backwards(name: str, extent: Any) -> Index:
    return lambda at: extent - 1 - at[name]


def quotient(name: str, by: int) -> Index:
    return lambda at: at[name] // by


def rest_of(name: str, by: int) -> Index:
    return lambda at: at[name] % by


def dimensions(draw: Draw, axes: Axes, read: Sequence[str]) -> list[tuple[Any, Index]]:
    """Dimensions that are indexed by some axes, each once or in a way that people think of."""
    made: list[tuple[Any, Index]] = []
    rest = list(read)
    while rest:
        name = rest.pop(0)
        n, kind = axes.extents[name], draw(st.integers(0, 19))
        m = axes.extents[rest[0]] if rest else None
        if kind == 0:
            step, first = draw(st.integers(2, 3)), draw(st.integers(0, 2))
            made.append((n * step + first, affine((name, step), first=first)))
        elif kind == 1:
            made.append((n, backwards(name, n)))
        elif kind == 2:
            first = draw(st.integers(1, 3))
            made.append((n + first, affine((name, 1), first=first)))
        elif kind == 3:  # a diagonal
            made += 2 * [(n, affine((name, 1)))]
        elif kind == 4:
            parts = draw(st.integers(2, 4))
            made += [
                ((n + parts - 1) // parts, quotient(name, parts)),
                (parts, rest_of(name, parts)),
            ]
        elif kind == 5 and rest:  # a window
            step, apart = draw(st.integers(1, 2)), draw(st.integers(1, 2))
            made.append((n * step + m * apart, affine((name, step), (rest.pop(0), apart))))
        elif kind == 6 and isinstance(m, int) and isinstance(n, int):  # two axes in one dimension
            made.append((n * m, affine((name, m), (rest.pop(0), 1))))
        elif kind == 7:
            made += [(3, affine(first=1)), (n, affine((name, 1)))]
        else:
            made.append((n, affine((name, 1))))
    return list(draw(st.permutations(made))) or [(2, affine(first=1))]


def placeholder(draw: Draw, axes: Axes, read: Sequence[str], dtype: str, name: str) -> Operand:
    made = dimensions(draw, axes, read)
    tensor = te.placeholder([extent for extent, _ in made], dtype, name=name)
    return Operand(tensor, [index for _, index in made])


# -- What is done with an operand before --


def prepared(
    draw: Draw, axes: Axes, operand: Operand, read: Sequence[str], dtype: str, args: list[Tensor]
) -> Callable[[At], Any]:
    """The operand's elements, as they are or changed, on the way or by a stage."""
    kind = draw(st.integers(0, 19))
    source = operand.tensor
    if kind >= 14 and source.ndim:
        return guarded(draw, axes, operand, read, dtype, args)
    if kind == 0 and read:
        scale = te.placeholder([axes.extents[read[0]]], dtype, name=f"{source.name}_scale")
        args.append(scale)
        return lambda at: operand(at).astype(dtype) * scale[at[read[0]]]
    if kind == 1:
        return lambda at: te.max(operand(at).astype(dtype), te.const(0, dtype))
    if kind == 2 and read:  # a predicate
        n = axes.extents[read[-1]]
        zero = te.const(0, dtype)
        return lambda at: te.if_then_else(at[read[-1]] < n - 1, operand(at).astype(dtype), zero)
    if kind == 12:  # of two tensors
        other = placeholder(draw, axes, read[: draw(st.integers(0, 2))], dtype, f"{source.name}_2")
        args.append(other.tensor)
        return lambda at: operand(at).astype(dtype) + other(at)
    if kind == 3:  # dequantised by a stage, a factor for each row
        scale = te.placeholder([source.shape[0]], dtype, name=f"{source.name}_scale")
        args.append(scale)
        stage = te.compute(
            source.shape,
            lambda *i: source(*i).astype(dtype) * scale[i[0]],
            name=f"{source.name}_scaled",
        )
        return Operand(stage, operand.indices)
    if kind == 4:  # cast by a stage
        stage = te.compute(
            source.shape, lambda *i: source(*i).astype(dtype), name=f"{source.name}_cast"
        )
        return Operand(stage, operand.indices)
    if kind == 5:  # padded by a stage
        zero, n = te.const(0, dtype), source.shape[-1]
        stage = te.compute(
            (*source.shape[:-1], n + 2),
            lambda *i: te.if_then_else(
                te.all(i[-1] >= 1, i[-1] < n + 1), source(*i[:-1], i[-1] - 1).astype(dtype), zero
            ),
            name=f"{source.name}_padded",
        )
        *first, last = operand.indices
        shift = draw(st.integers(0, 2))
        return Operand(stage, [*first, lambda at: last(at) + shift])
    return lambda at: operand(at).astype(dtype)


def guarded(
    draw: Draw, axes: Axes, operand: Operand, read: Sequence[str], dtype: str, args: list[Tensor]
) -> Callable[[At], Any]:
    """The operand's elements where a condition holds: at its edges, along a band, on one side of a
    diagonal, or where data says so."""
    source, other = operand.tensor, te.const(draw(st.sampled_from([0, 0, 1])), dtype)
    kind, lazy = draw(st.integers(0, 3)), draw(st.integers(0, 3)) < 3
    if kind == 0 and read:
        few = read[: draw(st.integers(1, len(read)))]
        mask = te.placeholder([axes.extents[each] for each in few], "bool", name=f"{source.name}_m")
        args.append(mask)
        choose = te.if_then_else if lazy else tir.Select
        return lambda at: choose(
            mask(*(at[each] for each in few)), operand(at).astype(dtype), other
        )
    if kind == 1 and len(axes.extents) > 1:
        first, second = draw(st.permutations(sorted(axes.extents)))[:2]
        width = draw(st.integers(0, 3))
        one_sided = draw(st.booleans())

        def inside(at: At) -> Any:
            below = at[first] - at[second] <= width
            return below if one_sided else te.all(below, at[second] - at[first] <= width)

        return lambda at: te.if_then_else(inside(at), operand(at).astype(dtype), other)
    place, shift = draw(st.integers(0, source.ndim - 1)), draw(st.integers(-3, 5))
    step, nested = draw(st.sampled_from([1, 1, 1, 2, -1])), draw(st.booleans())

    def at_edges(at: At) -> Any:
        indices = [index(at) for index in operand.indices]
        index = indices[place] = indices[place] * step - shift
        value, n = source(*indices).astype(dtype), source.shape[place]
        if nested:
            value = te.if_then_else(index < n, value, other)
            return te.if_then_else(index >= 0, value, other)
        return te.if_then_else(te.all(index >= 0, index < n), value, other)

    return at_edges


# -- What is done with the sums --


def epilogue(draw: Draw, tensor: Tensor, args: list[Tensor], count: int) -> Any:
    """One more stage, element by element or across."""
    shape, dtype, name = tensor.shape, str(tensor.dtype), f"E{count}"
    kind = draw(st.integers(0, 8))
    if kind <= 1 and shape:
        place = draw(st.integers(0, len(shape) - 1)) if kind else len(shape) - 1
        bias = te.placeholder([shape[place]], dtype, name=f"bias{count}")
        args.append(bias)
        return te.compute(shape, lambda *i: tensor(*i) + bias[i[place]], name=name)
    if kind == 2:
        residual = te.placeholder(shape, dtype, name=f"residual{count}")
        args.append(residual)
        return te.compute(shape, lambda *i: tensor(*i) + residual(*i), name=name)
    if kind == 3:
        return te.compute(shape, lambda *i: te.max(tensor(*i), te.const(0, dtype)), name=name)
    if kind == 4 and dtype == "float32":
        half, root = te.const(0.5, dtype), te.const(0.5**0.5, dtype)
        return te.compute(
            shape, lambda *i: tensor(*i) * half * (te.erf(tensor(*i) * root) + 1.0), name=name
        )
    if kind == 5 and dtype in ("float32", "float64"):
        return te.compute(shape, lambda *i: tensor(*i).astype("float16"), name=name)
    if kind == 6 and len(shape) > 1:
        order = draw(st.permutations(range(len(shape))))
        back = [order.index(i) for i in range(len(shape))]
        return te.compute(
            [shape[i] for i in order], lambda *i: tensor(*(i[j] for j in back)) * 2, name=name
        )
    if kind == 7 and len(shape) > 1:
        k = te.reduce_axis((0, shape[-1]), name="r")
        return te.compute(shape[:-1], lambda *i: te.sum(tensor(*i, k), axis=k), name=name)
    return te.compute(shape, lambda *i: tensor(*i) * 2 + 1, name=name)


def as_columns(value: Callable[[At], Any], columns: Mapping[str, str], at: At) -> Any:
    """A value of rows where the columns are."""
    return value({**at, **{row: at[column] for row, column in columns.items()}})


def contraction(draw: Draw) -> Program:
    """A sum of products over random axes, of factors read in any way, with stages before and
    behind, and perhaps another contraction of the sums."""
    axes = Axes(draw, draw(st.sampled_from(MOST)))
    few, args = st.integers(0, 2), list[Tensor]()
    rows = [axes.add(f"i{x}") for x in range(draw(few))]
    columns = [axes.add(f"j{x}") for x in range(draw(few))]
    reduced = [axes.add(f"k{x}") for x in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    batch = [axes.add(f"b{x}") for x in range(draw(st.sampled_from([0, 0, 0, 1, 2])))]
    a_dtype, b_dtype, dtype = draw(st.sampled_from(DTYPES))

    def some_batch() -> list[str]:
        """All of the batch axes, or fewer: such an operand is broadcast."""
        return [each for each in batch if draw(st.integers(0, 3))]

    def shuffled(each: Sequence[str]) -> list[str]:
        return list(draw(st.permutations(each)))

    def some_reduced() -> list[str]:
        """All of the reduced axes, or seldom fewer."""
        few = draw(st.integers(0, 9)) == 9
        return [each for each in reduced if not few or draw(st.booleans())]

    a_reads = shuffled([*some_batch(), *rows, *some_reduced()])
    a = placeholder(draw, axes, a_reads, a_dtype, "A")
    args.append(a.tensor)
    second: Callable[[At], Any]
    small = prod(max(1, axes.values[each]) for each in (*2 * rows, *reduced, *batch)) <= axes.most
    if rows and small and len(rows) == len(columns) and draw(st.integers(0, 3)) == 3:
        # The same tensor again, of other rows: the columns have the extents of the rows.
        twin = dict(zip(rows, columns, strict=True))
        axes.extents.update({column: axes.extents[row] for row, column in twin.items()})
        value = prepared(draw, axes, a, a_reads, dtype, args)
        second = partial(as_columns, value, twin)
    else:
        b_reads = shuffled([*some_batch(), *columns, *some_reduced()])
        b = placeholder(draw, axes, b_reads, b_dtype, "B")
        args.append(b.tensor)
        second = prepared(draw, axes, b, b_reads, dtype, args)
    first = prepared(draw, axes, a, a_reads, dtype, args)
    third = None
    if draw(st.integers(0, 15)) == 15:
        third = placeholder(draw, axes, shuffled([*rows, *reduced])[:1], dtype, "T")
        args.append(third.tensor)

    kept = shuffled([*batch, *rows, *columns])
    if not kept and draw(st.booleans()):
        kept = [axes.add("one")]
    begins = {name: draw(st.integers(0, 9)) == 9 and axes.values[name] > 0 for name in reduced}
    swapped, late, limited = draw(st.booleans()), *(draw(st.integers(0, 9)) == 9 for _ in range(2))
    ends = {name: uneven(draw, axes, kept, name, args) for name in reduced}
    others = REDUCERS if "float" in (LATER.get(dtype, dtype) if late else dtype) else WHOLE
    reducer = draw(st.sampled_from([*3 * len(others) * ["sum"], *others]))
    combined = draw(st.sampled_from([*3 * COMBINED[:1], *COMBINED]))
    counted = None
    if draw(st.integers(0, 19)) == 19:
        counted = te.placeholder([axes.extents[reduced[0]] + 1], "bool", name="counted")
        args.append(counted)

    def element(*indices: Any) -> Any:
        at = dict(zip(kept, indices, strict=True))
        sums = {}
        for name, begin in begins.items():
            least, end = ends[name](at)
            least = int(begin) if isinstance(least, int) else te.max(least, int(begin))
            sums[name] = te.reduce_axis((least, end), name=name)
        at |= sums
        value = combined(*((second(at), first(at)) if swapped else (first(at), second(at))))
        if third is not None:
            value = value * third(at)
        if late and dtype in LATER:
            value = value.astype(LATER[dtype])
        where = at[reduced[0]] != 1 if limited else None
        if counted is not None:
            where = counted[at[reduced[0]]]
        return reduced_by(reducer, value, list(sums.values()), where)

    c = te.compute([axes.extents[name] for name in kept], element, name="C")
    if reducer == "place":
        return finished(draw, axes, args, c[draw(st.integers(0, 1))])
    return finished(draw, axes, args, c)


# What is made of two factors: products, and what else uses each of them several times.
COMBINED: list[Callable[[Any, Any], Any]] = [
    operator.mul,
    operator.add,
    lambda a, b: (a - b) * (a - b),
    te.min,
    lambda a, b: a * b + a,
]
# What products are reduced by where they aren't summed: numbers, and whole numbers.
REDUCERS = ["max", "min"]
WHOLE = [*REDUCERS, "product", "total", "place"]
_product = te.comm_reducer(lambda x, y: x * y, lambda dtype: te.const(1, dtype), name="product")
_total = te.comm_reducer(lambda x, y: y + x, lambda dtype: te.const(0, dtype), name="total")


def _later(x: Any, y: Any) -> Any:
    is_first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] <= y[0]))
    return te.if_then_else(is_first, x[0], y[0]), te.if_then_else(is_first, x[1], y[1])


_place = te.comm_reducer(
    _later, lambda place, value: (te.const(-1, place), te.min_value(value)), name="place"
)


def reduced_by(reducer: str, value: Any, axes: Sequence[Any], where: Any) -> Any:
    """A reduction of a value; "place" is that of the greatest, along the first axis, and this."""
    if reducer == "place":
        return _place((axes[0].var.astype("int32"), value), axis=axes, where=where)
    made = {"product": _product, "total": _total, "sum": te.sum, "max": te.max, "min": te.min}
    # The greatest of no floats is infinite, of which nothing can be computed.
    init = te.const(0, value.dtype) if reducer in REDUCERS and value.dtype.is_float else None
    return made[reducer](value, axis=axes, where=where, init=init)


def uneven(
    draw: Draw, axes: Axes, kept: Sequence[str], name: str, args: list[Tensor]
) -> Callable[[At], tuple[Any, Any]]:
    """Where the range of a sum begins and ends: everywhere the same, or as other axes or data
    say."""
    n, kind = axes.extents[name], draw(st.integers(0, 29))
    if not kept or kind > 2:
        return lambda at: (0, n)
    other = draw(st.sampled_from(kept))
    if kind == 0:
        return lambda at: (0, te.min(at[other] + 1, n))
    if kind == 1:
        return lambda at: (te.min(at[other], n), n)
    lengths = te.placeholder([axes.extents[other]], "int32", name=f"L_{name}")
    args.append(lengths)
    return lambda at: (0, lengths[at[other]] % (n + 1))


def finished(draw: Draw, axes: Axes, args: list[Tensor], c: Tensor) -> Program:
    """Stages behind a contraction, another contraction, more outputs."""
    outputs, last, made = [], c, [c]
    for count in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        last = epilogue(draw, last, args, count)
        made.append(last)
    if draw(st.integers(0, 4)) == 4 and last.ndim and str(last.dtype) != "float16":
        n = draw(st.sampled_from([1, 5, 16, 40]))
        w = te.placeholder([last.shape[-1], n], last.dtype, name="W")
        args.append(w)
        k, x = te.reduce_axis((0, last.shape[-1]), name="k"), last
        last = te.compute(
            [*x.shape[:-1], n], lambda *i: te.sum(x(*i[:-1], k) * w[k, i[-1]], axis=k), name="P"
        )
        last = epilogue(draw, last, args, 9) if draw(st.booleans()) else last
    outputs.append(last)
    if draw(st.integers(0, 4)) == 4:  # the sums, or what became of them, are read by another, too
        x = draw(st.sampled_from(made))
        outputs.append(te.compute(x.shape, lambda *i: x(*i) + 3, name="F"))
    arguments = [*args, *outputs]
    if draw(st.integers(0, 4)) == 4:  # and are an argument
        x = draw(st.sampled_from(made))
        arguments += [x] if x not in outputs else []
    for size in axes.sizes:  # of a tensor that may not be read, but says what the size is
        if not any(extent is size for tensor in arguments for extent in tensor.shape):
            arguments.append(te.placeholder([size], "uint8", name=f"of_{size.name}"))
    return Program([each.op for each in outputs], arguments, axes.sizes)


def attention(draw: Draw) -> Program:
    """softmax(Q K^T) V, of a few heads, of which keys and values may be shared."""
    axes = Axes(draw, 40_000)
    heads, rows, columns, depth = (axes.extents[axes.add(each, empty=False)] for each in "hmnd")
    shared = draw(st.booleans())
    of_keys = () if shared else (heads,)
    q = te.placeholder((heads, rows, depth), name="Q")
    k = te.placeholder((*of_keys, columns, depth), name="K")
    v = te.placeholder((*of_keys, columns, depth), name="V")
    d, n = te.reduce_axis((0, depth), name="d"), te.reduce_axis((0, columns), name="n")
    r, t = te.reduce_axis((0, columns), name="r"), te.reduce_axis((0, columns), name="t")

    def at(head: Any) -> tuple[Any, ...]:
        return () if shared else (head,)

    scores = te.compute(
        (heads, rows, columns),
        lambda h, i, j: te.sum(q[h, i, d] * k(*at(h), j, d), axis=d),
        name="S",
    )
    scaled = te.compute(scores.shape, lambda h, i, j: scores[h, i, j] * 0.125, name="scaled")
    largest = te.compute((heads, rows), lambda h, i: te.max(scaled[h, i, r], axis=r), name="M")
    power = te.compute(
        scores.shape, lambda h, i, j: te.exp(scaled[h, i, j] - largest[h, i]), name="P"
    )
    total = te.compute((heads, rows), lambda h, i: te.sum(power[h, i, t], axis=t), name="L")
    share = te.compute(scores.shape, lambda h, i, j: power[h, i, j] / total[h, i], name="W")
    out = te.compute(
        (heads, rows, depth), lambda h, i, j: te.sum(share[h, i, n] * v(*at(h), n, j), axis=n)
    )
    return Program([out.op], [q, k, v, out], axes.sizes)


def product(
    m: Any,
    n: Any,
    k: Any,
    dtypes: tuple[str, str, str],
    layout: str = "NN",
    term: Callable[[Any, Any], Any] = operator.mul,
) -> list[te.Tensor]:
    """A (m, k) times B (k, n), each stored transposed where `layout` has a T; or sums of another
    `term`."""
    a, b, dtype = dtypes
    A = te.placeholder((m, k) if layout[0] == "N" else (k, m), a, name="A")
    B = te.placeholder((k, n) if layout[1] == "N" else (n, k), b, name="B")
    r = te.reduce_axis((0, k), name="k")

    def element(i: Any, j: Any) -> Any:
        x = A[i, r] if layout[0] == "N" else A[r, i]
        y = B[r, j] if layout[1] == "N" else B[j, r]
        return te.sum(term(x.astype(dtype), y.astype(dtype)), axis=r)

    return [A, B, te.compute((m, n), element, name="C")]
