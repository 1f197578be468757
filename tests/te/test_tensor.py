"""Tensors: indexing, identity, operators and broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitvm import te
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.functor import walk_once


def matrix(name: str = "A", dtype: str = "float32") -> te.Tensor:
    return te.placeholder((4, 3), dtype, name)


def scalar(name: str = "s") -> te.Tensor:
    return te.placeholder((), name=name)


def dims(tensor: te.Tensor) -> tuple[int | None, ...]:
    return tuple(map(e.const_int, tensor.shape))


# -- Indexing -------------------------------------------------------------------------------------


def test_full_indices_read_an_element() -> None:
    A, i, k = matrix(), te.var("i"), te.reduce_axis((0, 3), "k")
    for load in (A[i, k], A(i, k), A[i][k]):
        assert isinstance(load, e.ProducerLoad)
        assert load.producer is A and load.dtype == "float32"
        assert load.indices == (i, k.var)


def test_rank_zero() -> None:
    s = scalar()
    for load in (s(), s[()], s.asobject()):
        assert isinstance(load, e.ProducerLoad) and load.indices == ()


def test_a_slice_is_indexed_on() -> None:
    T = te.placeholder((2, 3, 4), name="T")
    row = T[1]
    assert isinstance(row, te.TensorSlice) and row.dtype == "float32"
    assert isinstance(row[0], te.TensorSlice)
    assert isinstance(row[0, 2], e.ProducerLoad)
    assert repr(row[0]) == "T[1, 0]"
    with pytest.raises(CompileError, match="T: expected 3 indices, got 1"):
        row + 1
    with pytest.raises(TypeError, match="T: a tensor can't be iterated over"):
        list(row)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ((0, 1, 2), "A: expected 2 indices, got 3"),
        ((0, slice(1, 3)), r"A: index 1: expected an integer expression, got a slice: compute"),
        ((0.5, 0), "A: index 0: expected an integer expression, got 0.5 of dtype float32"),
        ((0, True), "A: index 1: expected an integer expression"),
        ((0, "x"), "A: index 1: expected an integer expression"),
        ((0, None), "A: index 1: expected an integer expression, got None: an axis of one element"),
        (None, "A: index 0: expected an integer expression, got None: an axis of one element"),
        (slice(1, None), r"A: index 0: .*, got a slice: compute the part that is meant"),
        (..., r"A: index 0: expected an integer expression, got \.\.\.: give each index"),
        ((..., 0), r"A: index 0: expected an integer expression, got \.\.\.: give each index"),
        (te.placeholder((2,), "int32"), r"A: index 0: .*, got a whole tensor: index it"),
        (matrix() > 0.0, r"A: index 0: .*, got a tensor of bools: choose between elements"),
    ],
)
def test_wrong_indices(index: Any, text: str) -> None:
    with pytest.raises(CompileError, match=text):
        matrix()[index]


def test_a_value_that_is_not_known_has_no_format() -> None:
    load = matrix()[0, 1]
    assert f"{load}" == str(load) == "A[0, 1]"
    with pytest.raises(TypeError, match=r"A\[0, 1\] has no value .*: for the format '\.2f' print"):
        f"{load:.2f}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("where", r": write te\.if_then_else\(c, a, b\)$"),
        ("relu", r": write te\.max\(x, 0\.0\)$"),
        ("mean", r": write te\.sum over an axis"),
        ("nothing", "$"),
    ],
)
def test_names_of_numpy_and_torch_that_te_writes_otherwise(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=f"'minitvm.te' has no attribute '{name}'{text}"):
        getattr(te, name)


def test_a_placeholder_begins_with_its_shape() -> None:
    with pytest.raises(CompileError, match=r"^placeholder: expected a shape first, got 'A': write"):
        te.placeholder("A", (3,))


def test_a_whole_tensor_is_no_number() -> None:
    with pytest.raises(CompileError, match="A: expected an element, got the whole tensor, of rank"):
        e.as_expr(matrix())


# -- As a Python object ---------------------------------------------------------------------------


def test_identity() -> None:
    A, B = matrix(), matrix()
    twin = te.Tensor(A.op, 0, A.shape, A.dtype)
    assert A.op.output(0) == A and twin == A and hash(A) == hash(twin)
    assert A != B and A != "A" and A != 1
    assert A.same_as(A) and not A.same_as(B)
    assert len({A, B, twin}) == 2


def test_len_bool_float_iteration() -> None:
    A = matrix()
    assert len(A) == 4 and A.ndim == 2
    assert repr(A) == "Tensor(shape=[4, 3], op.name=A)"
    with pytest.raises(
        TypeError, match=r"n: len: expected a constant first dimension, .*: write n.shape\[0\]"
    ):
        len(te.placeholder((te.var("n"),), name="n"))
    with pytest.raises(TypeError, match=r"s: len: expected a constant first dimension, got .*=s.$"):
        len(scalar())
    with pytest.raises(CompileError, match="A: a tensor has no truth value"):
        bool(A)
    with pytest.raises(TypeError, match="A: a tensor can't be iterated over"):
        iter(A)
    with pytest.raises(TypeError, match="no value while a program is written: for float"):
        float(A)


def test_axes_and_input_tensors() -> None:
    A, B = matrix("A"), matrix("B")
    C = te.compute((4, 3), lambda i, j: B[i, j] + A[i, j] * B[0, j], name="C")
    assert C.op.input_tensors == (B, A)
    assert [axis.name for axis in C.axis] == ["i", "j"]
    assert C.op.same_as(C.op) and repr(C.op) == "ComputeOp(C)"
    with pytest.raises(AttributeError, match="A: a tensor of PlaceholderOp has no axis"):
        A.axis  # noqa: B018  # the mistake that is tested


def test_inputs_of_conditions_and_of_the_domains_of_axes() -> None:
    A, limit = te.placeholder((8,), name="A"), te.placeholder((), "int32", "limit")
    k = te.reduce_axis((0, limit()), "k")
    C = te.compute((1,), lambda i: te.sum(te.const(1.0), axis=k, where=A[k] > 0), name="C")
    assert C.op.input_tensors == (A, limit)


def test_shared_subexpressions_are_read_once() -> None:
    A = te.placeholder((4,), name="A")

    def doubled(i: e.Var) -> Any:
        value = A[i]
        for _ in range(200):
            value = value + value
        return value

    assert te.compute((4,), doubled, name="C").op.input_tensors == (A,)


# -- Operators ------------------------------------------------------------------------------------

BINARY = [
    (operator.add, "T_add"), (operator.sub, "T_subtract"), (operator.mul, "T_multiply"),
    (operator.truediv, "T_divide"), (operator.floordiv, "T_floordiv"),
    (operator.mod, "T_floormod"), (operator.pow, "T_power"), (operator.lt, "T_less"),
    (operator.le, "T_less_equal"), (operator.gt, "T_greater"), (operator.ge, "T_greater_equal"),
]  # fmt: skip
BITS = [
    (operator.and_, "T_bitwise_and"), (operator.or_, "T_bitwise_or"),
    (operator.xor, "T_bitwise_xor"), (operator.lshift, "T_shift_left"),
    (operator.rshift, "T_shift_right"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "name", "dtype"),
    [(*each, "float32") for each in BINARY] + [(*each, "int32") for each in BITS],
)
def test_operators_on_whole_tensors(
    function: Callable[[Any, Any], Any], name: str, dtype: str
) -> None:
    A, row = matrix("A", dtype), te.placeholder((3,), dtype, "row")
    made = function(A, row)
    assert isinstance(made, te.Tensor) and dims(made) == (4, 3)
    assert (made.op.name, made.op.tag) == (name, "broadcast")
    i, j = (axis.var for axis in made.axis)
    loads = [x for x in e_loads(made) if x.producer is row]
    assert loads and all(load.indices == (j,) for load in loads)
    assert all(x.indices == (i, j) for x in e_loads(made) if x.producer is A)
    wanted = "bool" if function in (operator.lt, operator.le, operator.gt, operator.ge) else dtype
    assert made.dtype == wanted
    for scalar_result in (function(A, 2), function(2, A)):
        assert isinstance(scalar_result, te.Tensor) and dims(scalar_result) == (4, 3)
        assert scalar_result.op.tag == "elemwise" and scalar_result.dtype == wanted


def e_loads(tensor: te.Tensor) -> list[e.ProducerLoad]:
    op = tensor.op
    assert isinstance(op, te.ComputeOp)
    return [node for node in walk_once(*op.body) if isinstance(node, e.ProducerLoad)]


def test_numpy_scalars_on_the_left() -> None:
    product = np.float64(2) * matrix()
    assert isinstance(product, te.Tensor) and product.dtype == "float64"
    number = np.float64(2) * te.var("x", "float32")
    assert isinstance(number, e.Mul) and number.dtype == "float64"


def test_unary_operators() -> None:
    A, N = matrix(), matrix("N", "int32")
    assert (-A).op.name == "T_negate" and abs(A).op.name == "T_absolute" and +A is A
    assert (~N).op.name == "T_bitwise_not"
    assert A.astype("float16").dtype == "float16"
    assert te.if_then_else(A > 0, A, 0.0).dtype == "float32"


def test_a_mathematical_function_of_a_whole_tensor() -> None:
    A = matrix()
    made = te.exp(A)
    assert made.op.name == "T_exp" and dims(made) == (4, 3) and made.op.tag == "elemwise"
    assert te.power(A, 2).dtype == "float32" and te.max(A, A + 1).op.name == "T_maximum"
    assert te.exp(x=A).shape == A.shape


def test_rank_zero_beside_an_expression_is_its_element() -> None:
    A, s = matrix(), scalar()
    C = te.compute((4, 3), lambda i, j: s * A[i, j] + s, name="C")
    assert C.op.input_tensors == (s, A)
    assert isinstance(s + s, te.Tensor) and isinstance(s + 1, te.Tensor) and (s + 1).ndim == 0
    assert isinstance(te.var("x", "float32") + s, e.Add)


def test_a_variable_beside_a_tensor() -> None:
    A, alpha = matrix(), te.var("alpha", "float32")
    for made in (A * alpha, alpha * A):
        assert isinstance(made, te.Tensor) and dims(made) == (4, 3)


# -- Broadcasting ---------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_shapes_broadcast_as_in_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    A, B = te.placeholder(left, name="A"), te.placeholder(right, name="B")
    try:
        wanted = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(CompileError, match="expected shapes that broadcast, got"):
            A + B
        return
    made = A + B
    assert dims(made) == wanted
    axis = [each.var for each in made.axis]
    for load in e_loads(made):
        shape = left if load.producer is A else right
        own = axis[len(axis) - len(shape) :]
        assert [
            e.const_int(index) == 0 if extent == 1 else index is var
            for extent, index, var in zip(shape, load.indices, own, strict=True)
        ] == [True] * len(shape)


def test_symbolic_shapes() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, 1), name="A")
    assert (A + te.placeholder((m,), name="B")).shape == (n, m)
    assert (A + te.placeholder((n, 5), name="B")).shape[0] is n
    C, D = te.placeholder((n + 1,), name="C"), te.placeholder((1 + n,), name="D")
    assert (C + D).ndim == 1
    with pytest.raises(CompileError, match=r"that broadcast, got \(n,\) and \(m,\)"):
        te.placeholder((n,)) + te.placeholder((m,))
    with pytest.raises(CompileError, match=r"that broadcast, got \(4, 3\) and \(4,\)"):
        matrix() + te.placeholder((4,))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sum", r"A: a tensor of a program has no `sum`: reduce over an axis"),
        ("T", r"A: a tensor of a program has no `T`: say where each element comes from"),
        ("float", r"A: .* no `float`: write x\.astype"),
        ("item", r"A: .* no `item`: it has no numbers while a program is written"),
        ("exp", r"A: .* no `exp`: write te\.exp\(x\)"),
        ("nothing", r"a tensor of a program has no attribute 'nothing'"),
    ],
)
def test_what_arrays_have_and_tensors_lack(name: str, text: str) -> None:
    A = te.placeholder((3,), name="A")
    assert not hasattr(A, name)
    with pytest.raises(AttributeError, match=f"^{text}"):
        getattr(A, name)
