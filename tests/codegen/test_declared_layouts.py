"""A buffer that is declared by a layout of mdspan: compiled for that layout, and held to it."""

from __future__ import annotations

import ctypes
import pickle
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime import mdspan
from minitvm.runtime.dlpack import DLDataType, DLDevice, DLTensor
from minitvm.runtime.errors import CompileError
from minitvm.tir.interpreter import interpret

Array = np.ndarray[Any, Any]
LAYOUTS = ("right", "left", "stride", "stride_relaxed")


@cache
def _copy_of(ndim: int, layout: str, *, output: bool = False) -> tvm.runtime.Module:
    """A function that copies an array, the source or the target of which is declared."""
    shape = tuple(te.var(f"n{i}") for i in range(ndim))
    x = te.placeholder(shape, name="X")
    y = te.compute(shape, lambda *i: x[i] + 1.0, name="Y")
    declared = y if output else x
    buffer = tir.decl_buffer(shape, "float32", declared.name, layout=layout)
    return tvm.build(te.create_schedule(y.op), [x, y], name="f", binds={declared: buffer})


def _arrays(data: st.DataObject) -> Array:
    """An array of float32 with any strides, in memory of its own."""
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    order = data.draw(st.permutations(range(len(shape))))
    gaps = data.draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=3, max_size=3))
    whole = [shape[dim] * gap for dim, gap in zip(order, gaps, strict=False)]
    memory = np.arange(max(1, int(np.prod(whole))), dtype="float32")[: int(np.prod(whole))]
    view = memory.reshape(whole)[tuple(slice(None, None, gap) for gap in gaps[: len(shape)])]
    view = view.transpose(np.argsort(order))
    flips = data.draw(st.lists(st.sampled_from([1, 1, -1]), min_size=3, max_size=3))
    view = view[tuple(slice(None, None, flip) for flip in flips[: len(shape)])]
    strides = list(view.strides)
    for dim, extent in enumerate(view.shape):  # which lead nowhere
        if extent <= 1 or 0 in view.shape:
            step = data.draw(st.sampled_from([None, None, 0, 4, 40, -4, *view.strides]))
            strides[dim] = strides[dim] if step is None else step
    return np.lib.stride_tricks.as_strided(view, view.shape, strides)


def _says(array: Array, layout: str) -> str | None:
    """What mdspan says of the layout of an array; an empty one has memory here."""
    ndim = array.ndim
    dims = (ctypes.c_int64 * (2 * ndim))(*array.shape, *(step // 4 for step in array.strides))
    at = ctypes.addressof(dims)
    tensor = DLTensor(
        array.ctypes.data or 64, DLDevice(1, 0), ndim, DLDataType(2, 32, 1), at, at + 8 * ndim, 0
    )
    try:
        mdspan.to_host_mdspan(tensor, "float", ndim, f"layout_{layout}")
    except ValueError as error:
        return str(error)
    return None


@given(st.data(), st.sampled_from(LAYOUTS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_rules_are_those_of_mdspan(data: st.DataObject, layout: str) -> None:
    array = _arrays(data)
    result = np.zeros(array.shape, "float32")
    f = _copy_of(array.ndim, layout)
    if _says(array, layout) is None:
        f(array, result)
        np.testing.assert_array_equal(result, array + 1)
    else:
        with pytest.raises(ValueError, match=r"f: argument 0 'X': expected strides\[\d\] "):
            f(array, result)
        assert not result.any()


x = np.arange(12, dtype="float32").reshape(3, 4)


@pytest.mark.parametrize(
    ("layout", "array", "text"),
    [
        ("left", x, r"strides\[0\] == 1 \(elements, layout_left\), got 4: pass np.array"),
        ("left", np.asfortranarray(x)[:2], r"strides\[1\] == 2 \(elements, layout_left\), got 3:"),
        ("right", x.T, r"strides\[0\] == 3 \(elements, layout_right\), got 1: pass np.array"),
        ("right", x[:, :3], r"strides\[0\] == 3 \(elements, layout_right\), got 4"),
        ("stride", x[::-1], r"strides\[0\] of at least 1 \(elements, layout_stride\), got -4: "),
        ("stride", np.broadcast_to(x[:1], (3, 4)), r"strides\[0\] of at least 1 .*, got 0"),
        ("left", np.zeros((0, 3), "float32"), r"strides\[0\] == 1 .*, got 0"),
        ("right", x[:, :1], r"strides\[0\] == 1 \(elements, layout_right\), got 4"),
    ],
)  # fmt: skip
def test_what_is_refused(layout: str, array: Array, text: str) -> None:
    result = np.full(array.shape, 7, "float32")
    with pytest.raises(ValueError, match=f"^f: argument 0 'X': expected {text}"):
        _copy_of(2, layout)(array, result)
    assert (result == 7).all()


def test_without_strides() -> None:
    """DLTensors of before DLPack 1.2: row-major, which column-major can't be."""
    f = {layout: _copy_of(2, layout).entry_func for layout in LAYOUTS}
    shape = (ctypes.c_int64 * 2)(3, 4)
    z = np.zeros((3, 4), "float32")
    source, target = (
        DLTensor(each.ctypes.data, DLDevice(1, 0), 2, DLDataType(2, 32, 1),
                 ctypes.addressof(shape), None, 0)
        for each in (x, z)
    )  # fmt: skip
    entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int,
                             *[ctypes.c_void_p] * 3)  # fmt: skip
    values = (tvm.TVMValue * 2)(*(tvm.TVMValue(v_handle=ctypes.addressof(each))
                                  for each in (source, target)))  # fmt: skip
    codes = (ctypes.c_int * 2)(7, 7)
    for layout, function in f.items():
        c, z[...] = function.c_function, 0
        status = entry(c.call)(
            ctypes.addressof(values), ctypes.addressof(codes), 2, None, None, c.resource
        )
        if layout == "left":
            error = ctypes.CFUNCTYPE(ctypes.c_char_p)(c.last_error)()
            assert status == -1
            assert not z.any()
            assert error.endswith(b"'X': expected strides (layout_left), got a null pointer")
        else:
            assert status == 0
            np.testing.assert_array_equal(z, x + 1)


@pytest.mark.covering(2)
@pytest.mark.parametrize("sizes", ["fixed", "symbolic"])
@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("names", ["A", "B", "C", "AC", "ABC"])
def test_products_of_column_major_matrices(names: str, sizes: str, auto: bool) -> None:
    n, m, p = (6, 20, 9) if sizes == "fixed" else map(te.var, "nmp")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m, p), name="B")
    k = te.reduce_axis((0, m), name="k")
    c = te.compute((n, p), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    rng = np.random.default_rng(0)
    left, right = (rng.random(s, dtype="float32") for s in ((6, 20), (20, 9)))
    declared = [each for each in (a, b, c) if each.name in names]
    binds = {t: tir.decl_buffer(t.shape, t.dtype, t.name, layout="left") for t in declared}
    f = tvm.build(te.create_schedule(c.op), [a, b, c], name="f", binds=binds, auto_schedule=auto)
    given = {a: left, b: right, c: np.zeros((6, 9), "float32")}
    given = {t: np.array(v, order="F" if t in declared else "C") for t, v in given.items()}
    f(given[a], given[b], given[c])
    np.testing.assert_allclose(given[c], left @ right, rtol=1e-5)
    for each in declared:
        wrong = {**given, each: np.array(given[each], order="C")}
        text = f"argument . '{each.name}': expected strides.* layout_left"
        with pytest.raises(ValueError, match=text):
            f(wrong[a], wrong[b], wrong[c])


def _pair(x_layout: str | None, y_layout: str | None) -> tvm.runtime.Module:
    n, m = te.var("n"), te.var("m")
    source = te.placeholder((n, m), name="X")
    target = te.compute((n, m), lambda i, j: source[i, j] * 2.0, name="Y")
    binds = {
        tensor: tir.decl_buffer((n, m), "float32", tensor.name, layout=layout)
        for tensor, layout in ((source, x_layout), (target, y_layout)) if layout
    }  # fmt: skip
    return tvm.build(te.create_schedule(target.op), [source, target], name="f", binds=binds)


def test_other_arguments_may_be_strided() -> None:
    f = _pair("left", None)
    source = np.asfortranarray(x)
    for result in (np.zeros((3, 4), "float32"), np.zeros((6, 8), "float32")[::2, ::-2],
                   np.zeros((4, 3), "float32").T):  # fmt: skip
        f(source, result)
        np.testing.assert_array_equal(result, 2 * x)
    with pytest.raises(ValueError, match=r"'X': expected strides.*layout_left"):
        f(x, np.zeros((6, 8), "float32")[::2, ::2])


@cache
def _and_pickled(x_layout: str | None, y_layout: str | None) -> tuple[Any, Any]:
    f = _pair(x_layout, y_layout)
    return f, pickle.loads(pickle.dumps(f.entry_func))


@pytest.mark.parametrize("layouts", [("left", None), (None, "left"), ("left", "right")])
@pytest.mark.parametrize("shape", [(4, 4), (9, 13), (40, 33), (64, 64), (2, 20)])
def test_in_place_by_layouts_that_differ(
    layouts: tuple[str | None, str | None], shape: tuple[int, int]
) -> None:
    """The loops see a transpose; blocks that overlap must not read what they have stored."""
    given_array = np.asfortranarray(np.random.default_rng(0).random(shape, dtype="float32"))
    for function in _and_pickled(*layouts):
        apart = np.empty(shape, "float32", order="C" if layouts[1] == "right" else "F")
        source = given_array if layouts[0] else np.ascontiguousarray(given_array)
        function(source, apart)
        np.testing.assert_array_equal(apart, 2 * given_array)
        if "right" in layouts:
            continue  # no array has both
        array = given_array.copy(order="F")
        function(array, array)
        np.testing.assert_array_equal(array, 2 * given_array)


def test_in_place() -> None:
    for layouts in (("left", "left"), ("stride", "stride"), ("left", None), (None, "left")):
        f = _pair(*layouts)
        array = np.array(x, order="F")
        f(array, array)
        np.testing.assert_array_equal(array, 2 * x)
        variants = f.entry_func.variants  # type: ignore[attr-defined]  # a Function
        free = [each.strided for each in variants.made if each.same]
        assert free == [None in layouts]
    with pytest.raises(ValueError, match=r"'X': expected strides.*layout_left"):
        row_major = x.copy()
        _pair("left", "left")(row_major, row_major)


def test_the_interpreter_and_a_schedule_by_hand() -> None:
    n, m = te.var("n"), te.var("m")
    source = te.placeholder((n, m), name="X")
    target = te.compute((n, m), lambda i, j: source[i, j] * 2.0, name="Y")
    binds = {t: tir.decl_buffer((n, m), "float32", t.name, layout="left")
             for t in (source, target)}  # fmt: skip
    s = te.create_schedule(target.op)
    i, j = target.op.axis
    s[target].reorder(j, i)
    fused = s[target].fuse(j, i)
    _, inner = s[target].split(fused, 4)
    s[target].vectorize(inner)
    big = np.asfortranarray(np.random.default_rng(0).random((17, 9), dtype="float32"))
    for run in (
        tvm.build(s, [source, target], name="f", binds=binds),
        lambda *arrays: interpret(tvm.lower(s, [source, target], "f", binds)["f"], *arrays),
    ):
        result = np.zeros((17, 9), "float32", order="F")
        run(big, result)
        np.testing.assert_array_equal(result, 2 * big)


def test_an_untouched_program_walks_by_columns() -> None:
    """Neighbours in memory are neighbours in a vector, as of row-major arrays."""
    source = te.placeholder((64, 48), name="X")
    between = te.compute((64, 48), lambda i, j: te.exp(source[i, j]), name="E")
    target = te.compute((64, 48), lambda i, j: between[i, j] * 2.0, name="Y")
    binds = {t: tir.decl_buffer(t.shape, t.dtype, t.name, layout="left")
             for t in (source, target)}  # fmt: skip
    f = tvm.build(te.create_schedule(target.op), [source, target], name="f", binds=binds)
    assert re.search(r"Y\[ramp\([^]]*, 1, \d+\)[^]]*\] = ", f.get_source("tir"))
    value = np.asfortranarray(np.random.default_rng(0).random((64, 48), dtype="float32"))
    result = np.zeros((64, 48), "float32", order="F")
    f(value, result)
    np.testing.assert_allclose(result, 2 * np.exp(value), rtol=1e-5)
    assert "X : array of float32, shape (64, 48), layout_left\n" in (f.__doc__ or "")
    assert "nothing: with arguments that were made" not in str(tvm.explain(f))


def test_softmax_and_other_stages() -> None:
    """Several stages, of which any two arguments are column-major, and not, in all ways."""
    n, m = te.var("n"), te.var("m")
    source, weights = te.placeholder((n, m), name="X"), te.placeholder((n, m), name="W")
    k, q = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="q")
    most = te.compute((n,), lambda i: te.max(source[i, k], axis=k), name="M")
    power = te.compute((n, m), lambda i, j: te.exp(source[i, j] - most[i]), name="E")
    total = te.compute((n,), lambda i: te.sum(power[i, q], axis=q), name="T")
    soft = te.compute((n, m), lambda i, j: power[i, j] / total[i] * weights[i, j], name="S")
    args = [source, weights, soft]
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 37, 21), dtype="float32")
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True) * w
    for number in (0b000, 0b011, 0b101, 0b110):
        left = [each for bit, each in enumerate(args) if number >> bit & 1]
        binds = {t: tir.decl_buffer(t.shape, t.dtype, t.name, layout="left") for t in left}
        f = tvm.build(te.create_schedule(soft.op), args, name="f", binds=binds)
        arrays = [np.array(a, order="F" if t in left else "C")
                  for a, t in zip((x, w, 0 * x), args, strict=True)]  # fmt: skip
        f(*arrays)
        np.testing.assert_allclose(arrays[2], expected, rtol=1e-4)


def test_messages_keep_the_order_of_the_program() -> None:
    rows = te.placeholder((5,), "int32", name="R")
    source = te.placeholder((7, 3), name="X")
    target = te.compute((5, 3), lambda i, j: source[rows[i], j], name="Y")
    binds = {t: tir.decl_buffer(t.shape, t.dtype, t.name, layout="left")
             for t in (source, target)}  # fmt: skip
    f = tvm.build(te.create_schedule(target.op), [rows, source, target], name="f", binds=binds)
    value = np.asfortranarray(np.arange(21, dtype="float32").reshape(7, 3))
    result = np.zeros((5, 3), "float32", order="F")
    picked = np.array([6, 0, 3, 3, 1], "int32")
    f(picked, value, result)
    np.testing.assert_array_equal(result, value[picked])
    picked[2] = 9
    with pytest.raises(
        IndexError, match=r"f: X\[R\[i\], j\]: index 0 must stay in \[0, 7\), got 9"
    ):
        f(picked, value, result)
    n, m = te.var("n"), te.var("m")
    source = te.placeholder((n, m), name="X")
    target = te.compute((n, m), lambda i, j: source[i + 1, j], name="Y")
    binds = {t: tir.decl_buffer(t.shape, t.dtype, t.name, layout="left")
             for t in (source, target)}  # fmt: skip
    with pytest.raises(CompileError, match=r"X\[i \+ 1, j\]"):
        tvm.build(te.create_schedule(target.op), [source, target], name="f", binds=binds)


def test_pickles() -> None:
    f = pickle.loads(pickle.dumps(_pair("left", "left")))
    result = np.zeros((3, 4), "float32", order="F")
    f(np.asfortranarray(x), result)
    np.testing.assert_array_equal(result, 2 * x)
    with pytest.raises(ValueError, match="layout_left"):
        f(x, result)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"layout": "up"}, "A: expected a layout among 'right', 'left', 'stride', 'stride"),
        ({"layout": 3}, "A: expected a layout among .*, got int 3"),
        ({"layout": "left", "strides": [1, 4]}, "A: expected a layout or strides, got both"),
        ({"layout": "left", "buffer_type": "auto_broadcast"}, "A: expected a layout or buffer"),
    ],
)  # fmt: skip
def test_wrong_declarations(declared: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        tir.decl_buffer((4, 3), name="A", **declared)


@pytest.mark.parametrize("layout", ["left", "layout_left", mdspan.layout_left])
def test_names_of_layouts(layout: Any) -> None:
    assert tir.decl_buffer((4, 3), layout=layout).layout == "left"
