"""Stages that are computed together, a block of rows at a time: attention, and products with what
comes before and after them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.interpreter import interpret
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.meaning import Meaning
from tests.auto_scheduler.test_contractions import (
    QUICK,
    SLOW,
    SMALL_CACHES,
    assert_means,
    check,
    inputs,
    run,
)
from tests.schedules.programs import Draw, Program

Array = np.ndarray[Any, Any]
TARGET = f"llvm -mcpu=haswell {SMALL_CACHES} -num-cores=2"
Rows = Callable[..., Any]


def softmax(scores: Tensor, seen: Rows) -> Tensor:
    """Over the last axis; each row sees the first ``seen(row)`` elements."""
    rows = tuple(scores.shape)[:-1]

    def over(combine: Any, x: Tensor, name: str) -> Tensor:
        def element(*i: Any) -> Any:
            k = te.reduce_axis((0, seen(i[-1])), name="k")
            return combine(x(*i, k), axis=k)

        made: Tensor = te.compute(rows, element, name=name)
        return made

    largest = over(te.max, scores, "M")
    powers = te.compute(scores.shape, lambda *i: te.exp(scores[i] - largest[i[:-1]]), name="E")
    total = over(te.sum, powers, "T")
    made: Tensor = te.compute(scores.shape, lambda *i: powers[i] / total[i[:-1]], name="P")
    return made


def attention(
    heads: Any,
    rows: Any,
    keys: Any,
    depth: int,
    width: int,
    *,
    form: str = "",
    shared: bool = False,
    dtype: str = "float32",
    hidden: float = -9.0,
) -> list[Tensor]:
    """Arguments and result: causal by a range or a choice, with a bias, or keys for all heads."""
    of_keys = () if shared else (heads,)
    q = te.placeholder((heads, rows, depth), dtype, name="Q")
    k = te.placeholder((*of_keys, keys, depth), dtype, name="K")
    v = te.placeholder((*of_keys, keys, width), dtype, name="V")
    bias = te.placeholder((rows, keys), dtype, name="B")
    d = te.reduce_axis((0, depth), name="d")

    def at(head: Any) -> tuple[Any, ...]:
        return () if shared else (head,)

    scores = te.compute(
        (heads, rows, keys),
        lambda h, i, j: te.sum(q[h, i, d] * k(*at(h), j, d), axis=d),
        name="S",
    )

    def masked(h: Any, i: Any, j: Any) -> Any:
        scaled = scores[h, i, j] * 0.25
        if form == "choice":
            return te.if_then_else(j <= i, scaled, hidden)
        return scaled + bias[i, j] if form == "bias" else scaled

    def seen(i: Any) -> Any:
        return i + 1 if form == "range" else keys

    chosen = te.compute(scores.shape, masked, name="C")
    shares = softmax(chosen, seen)

    def output(h: Any, i: Any, c: Any) -> Any:
        n = te.reduce_axis((0, seen(i)), name="n")
        return te.sum(shares[h, i, n] * v(*at(h), n, c), axis=n)

    out = te.compute((heads, rows, width), output, name="O")
    return [q, k, v, *([bias] if form == "bias" else []), out]


def product(a: Tensor, b: Tensor, name: str) -> Tensor:
    r = te.reduce_axis((0, b.shape[0]), name="r")
    made: Tensor = te.compute(
        (a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name=name
    )
    return made


def norm(x: Tensor) -> Tensor:
    """Each row less its mean, by its mean square."""
    rows, columns = x.shape
    k, r = te.reduce_axis((0, columns), name="k"), te.reduce_axis((0, columns), name="r")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    mean = te.compute((rows,), lambda i: total[i] * (1.0 / int(columns)), name="mean")
    square = te.compute(
        (rows,), lambda i: te.sum((x[i, r] - mean[i]) * (x[i, r] - mean[i]), axis=r), name="square"
    )
    made: Tensor = te.compute(
        x.shape, lambda i, j: (x[i, j] - mean[i]) / (square[i] + 1.0), name="N"
    )
    return made


def matrix(rows: Any, columns: int, name: str) -> Tensor:
    made: Tensor = te.placeholder((rows, columns), name=name)
    return made


def product_norm(rows: Any, wide: int) -> list[Tensor]:
    x, w = matrix(rows, 9, "X"), matrix(9, wide, "W")
    return [x, w, norm(product(x, w, "C"))]


def product_softmax(rows: Any, wide: int) -> list[Tensor]:
    x, w = matrix(rows, 9, "X"), matrix(9, wide, "W")
    return [x, w, softmax(product(x, w, "C"), lambda i: wide)]


def norm_product(rows: Any, wide: int) -> list[Tensor]:
    x, w = matrix(rows, wide, "X"), matrix(wide, 8, "W")
    return [x, w, product(norm(x), w, "C")]


def mlp(rows: Any, wide: int) -> list[Tensor]:
    x, v, w = matrix(rows, 9, "X"), matrix(9, wide, "V"), matrix(wide, 8, "W")
    c = product(x, v, "C")
    hidden = te.compute(c.shape, lambda i, j: te.tanh(c[i, j]), name="H")
    d = product(hidden, w, "D")
    return [x, v, w, te.compute(d.shape, lambda i, j: d[i, j] + x[i, j], name="Y")]


def chain(rows: Any, wide: int) -> list[Tensor]:
    x, w = matrix(rows, wide, "X"), [matrix(wide, wide, f"W{i}") for i in range(4)]
    made = x
    for i, each in enumerate(w):
        made = product(made, each, f"C{i}")
    return [x, *w, made]


GRAPHS = {
    "product, norm": lambda: product_norm(301, 24),
    "product, softmax": lambda: product_softmax(301, 24),
    "norm, product": lambda: norm_product(301, 24),
    "mlp": lambda: mlp(301, 24),
    "chain": lambda: chain(301, 9),
    "rows unknown": lambda: mlp(te.var("n"), 24),
    "attention": lambda: attention(2, 50, 41, 8, 12),
    "range": lambda: attention(2, 53, 53, 8, 12, form="range"),
    "range, more keys": lambda: attention(2, 31, 53, 8, 12, form="range"),
    "range, one value": lambda: attention(2, 53, 53, 8, 1, form="range"),
    "choice": lambda: attention(2, 53, 53, 8, 12, form="choice"),
    "bias": lambda: attention(2, 53, 41, 8, 12, form="bias"),
    "shared keys": lambda: attention(3, 53, 41, 8, 12, shared=True),
    "three heads": lambda: attention(3, 53, 41, 8, 12),
    "one head": lambda: attention(1, 53, 41, 8, 12),
    "one row": lambda: attention(60, 1, 41, 8, 12),
    "short rows": lambda: attention(40, 9, 7, 8, 12),
    "few columns": lambda: attention(2, 4, 78, 2, 2),  # the shares end a block beside the product
    "float64": lambda: attention(2, 53, 41, 8, 12, dtype="float64"),
    "symbolic": lambda: attention(te.var("b"), te.var("n"), te.var("m"), 8, 12),
    "symbolic range": lambda: (lambda n: attention(2, n, n, 8, 12, form="range"))(te.var("n")),
}
ALONE = {"one row"}  # nothing to gain
RARE = {"range, more keys", "short rows", "float64", "chain", "product, softmax", "norm, product"}
RARE |= {"bias", "choice", "range"}  # whose values others of these tests compare
LARGE = {"rows unknown", "symbolic", "symbolic range"}  # sizes, for all that is known
SIZES = {"b": (1, 3, 0, 2), "n": (53, 1, 7, 60), "m": (41, 60, 1, 5)}


def target_of(name: str) -> str:
    return TARGET.replace(SMALL_CACHES, "") if name in LARGE else TARGET


def is_together(s: Schedule) -> bool:
    """Whether stages are computed together."""
    return any("together with" in each.text for each in s.choices)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.wide if each in RARE else ()) for each in GRAPHS]
)
def test_values(name: str) -> None:
    args = GRAPHS[name]()
    symbols = {size for each in args for size in each.shape if isinstance(size, tvm.tir.Var)}
    s = tvm.auto_schedule(args[-1].op, target_of(name))
    assert is_together(s) is (name not in ALONE)
    f = tvm.build(s, args, target_of(name))
    for call in range(4 if symbols else 1):
        sizes = {each: SIZES[each.name][call] for each in symbols}
        program = Program([args[-1].op], args, sizes)
        given = inputs(program, sizes, call, whole=False)
        (got,) = run(f, program, given, sizes)
        assert_means(args[-1], got, Meaning(given, sizes).of(args[-1]))


@pytest.mark.parametrize("name", ["attention", "range", "shared keys", "product, softmax", "mlp"])
def test_no_tensor_between_is_whole(name: str) -> None:
    args = GRAPHS[name]()
    text = str(tvm.lower(tvm.auto_schedule(args[-1].op, TARGET), args))
    sizes = [
        np.prod([int(each) for each in found.split(", ")])
        for found in re.findall(r"allocate\(float32\[([0-9, ]+)\]\)", text)
    ]
    whole = {"product, softmax": 301 * 24, "mlp": 301 * 24}.get(name, 53 * 41)
    assert sizes and max(sizes) < whole


def test_a_block_computes_only_what_its_rows_see() -> None:
    args = GRAPHS["range"]()
    text = str(tvm.lower(tvm.auto_schedule(args[-1].op, TARGET), args))
    assert re.search(r"j\.extent = .*i\.outer\) \* 11 \+ 11", text)
    assert re.search(r"for j\.outer in range\(.*j\.extent", text)


@pytest.mark.parametrize("is_first", [True, False])
def test_windows_beside_blocks(is_first: bool) -> None:
    """A window of weights has loops of its own, whether it ends a program or a product does."""
    x, w = (te.placeholder(shape, name=n) for shape, n in [((48, 32, 9), "X"), ((48, 9, 48), "W")])
    taps, last = te.placeholder((3,), name="K"), te.placeholder((48, 16), name="L")
    d, r, k = (te.reduce_axis((0, size), name="k") for size in (9, 32, 3))
    c = te.compute((48, 32, 48), lambda b, i, j: te.sum(x[b, i, d] * w[b, d, j], axis=d), name="C")
    total = te.compute((48, 48), lambda b, j: te.sum(c[b, r, j], axis=r), name="T")

    def at(i: te.Var, j: te.Var) -> te.PrimExpr:
        return te.if_then_else(te.all(j >= 1, j < 49), total[i, j - 1], 0.0)

    padded = te.compute((48, 50), at, name="Z")
    window = te.compute((48, 48), lambda i, j: te.sum(padded[i, j + k] * taps[k], axis=k), name="F")
    out = window if is_first else product(window, last, "O")
    args = [x, w, taps, *([] if is_first else [last]), out]
    program = Program([out.op], args, {})
    given = inputs(program, {}, 0, whole=False)
    (got,) = run(tvm.build(out, args), program, given, {})
    assert_means(out, got, Meaning(given, {}).of(out))


def test_trace_replays() -> None:
    args = GRAPHS["range"]()
    s = tvm.auto_schedule(args[-1].op, TARGET)
    names: dict[str, Any] = {"te": te, "O": args[-1]}
    exec(s.trace(), names)
    assert str(tvm.lower(names["s"], args)) == str(tvm.lower(s, args))


def call(args: Sequence[Tensor], *arrays: Array) -> Array:
    """The output; the same by the interpreter."""
    shape = [int(each) for each in args[-1].shape]
    dtype = str(args[-1].dtype)
    got, interpreted = np.full(shape, 7, dtype), np.full(shape, 7, dtype)
    s = tvm.auto_schedule(args[-1].op, TARGET)
    assert is_together(s)
    tvm.build(s, args, TARGET)(*arrays, got)
    interpret(tvm.lower(s, args)["main"], *arrays, interpreted)
    np.testing.assert_allclose(got, interpreted, rtol=1e-5, atol=1e-6)
    return got


def exact(q: Array, k: Array, v: Array, bias: Any) -> Array:
    with np.errstate(invalid="ignore"):  # -inf less itself
        scores = q.astype("float64") @ k.transpose(0, 2, 1) * 0.25 + bias
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        made: Array = (powers / powers.sum(-1, keepdims=True)) @ v
        return made


def arrays_of(args: Sequence[Tensor]) -> list[Array]:
    generator = np.random.default_rng(0)
    shapes = [[int(each) for each in x.shape] for x in args[:-1]]
    return [generator.standard_normal(shape).astype(str(args[0].dtype)) for shape in shapes]


def test_rows_that_see_nothing_are_nan() -> None:
    args = attention(2, 53, 41, 8, 12, form="bias")
    q, k, v, bias = arrays_of(args)
    bias[::3, 5:] = -np.inf
    bias[7] = -np.inf
    wanted = exact(q, k, v, bias)
    assert np.isnan(wanted[:, 7]).all() and np.isnan(wanted).sum() == 2 * 12
    np.testing.assert_allclose(call(args, q, k, v, bias), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["choice", "range"])
def test_causal(form: str) -> None:
    args = attention(2, 53, 53, 8, 12, form=form, hidden=-np.inf)
    q, k, v = arrays_of(args)
    if form == "range":
        k[:, 50:] = np.nan  # which no row but the last ones sees
    bias = np.where(np.tri(53, dtype=bool), 0.0, -np.inf)
    seen = slice(None) if form == "choice" else slice(0, 50)
    wanted = exact(q[:, seen], k[:, seen], v[:, seen], bias[seen, seen])
    got = call(args, q, k, v)
    np.testing.assert_allclose(got[:, seen], wanted, rtol=1e-4, atol=1e-5)
    assert np.isnan(got).any() == (form == "range")


def test_no_heads_no_rows() -> None:
    """Nothing is written, not even beside the output."""
    for heads, rows in ((0, 53), (2, 0)):
        args = attention(heads, rows, 41, 8, 12)
        memory = np.full((heads + 1, rows + 1, 12), 7, "float32")
        tvm.build(args[-1], args, TARGET)(*arrays_of(args), memory[1:, 1:])
        assert (memory == 7).all()


def test_scores_that_are_asked_for_are_whole() -> None:
    *given, out = attention(2, 53, 41, 8, 12)
    shares = out.op.input_tensors[0]
    f = tvm.build([shares, out], [*given, shares, out], TARGET)
    q, k, v = arrays_of([*given, out])
    got = np.empty((2, 53, 41), "float32"), np.empty((2, 53, 12), "float32")
    f(q, k, v, *got)
    np.testing.assert_allclose(got[0] @ v, got[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], exact(q, k, v, 0.0), rtol=1e-4, atol=1e-5)


def graph(draw: Draw) -> Program:
    """Products, norms, softmaxes, one after the other; now and then one is an output."""
    rows = draw(st.integers(1, 320) | st.just(te.var("n")))
    sizes = {} if isinstance(rows, int) else {rows: draw(st.integers(1, 300))}
    x = matrix(rows, draw(st.integers(1, 40)), "X")
    args, outputs, made = [x], list[Tensor](), x
    for step in range(draw(st.integers(2, 5))):
        columns = int(made.shape[1])
        before, kind = made, draw(st.sampled_from(["product", "product", "norm", "softmax", "sum"]))
        if kind == "product":
            w = matrix(columns, draw(st.integers(1, 40)), f"W{step}")
            args.append(w)
            made = product(made, w, f"C{step}")
        elif kind == "norm":
            made = norm(made)
        elif kind == "softmax":
            scaled = te.compute(made.shape, lambda i, j, x=made: x[i, j] * 0.01, name=f"Z{step}")
            made = softmax(scaled, lambda i, n=columns: n)
        else:
            made = te.compute(made.shape, lambda i, j, x=made: x[i, j] + 1.0, name=f"D{step}")
        if before is not x and draw(st.integers(0, 5)) == 5:
            outputs.append(before)
    outputs.append(made)
    return Program([each.op for each in outputs], [*args, *outputs], sizes)


@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_graphs(data: st.DataObject) -> None:
    check(graph, data.draw)


@pytest.mark.wide
@settings(max_examples=800, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_graphs(data: st.DataObject) -> None:
    check(graph, data.draw)
