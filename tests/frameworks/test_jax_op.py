"""Built functions as operations of JAX, against what numpy makes of the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.contrib import jax_op as module_face
from minitvm.contrib.imported import imported
from minitvm.runtime import Module
from tests.frameworks import programs

A, B = programs.matrices()
# An error of XLA; JAX (0.10) makes one of its classes of some.
FAILURES = (jax.errors.JaxRuntimeError, ValueError)


@cache
def scaled() -> Any:
    return programs.scaled().jax_op()


@cache
def product() -> Any:
    return programs.product().jax_op()


@cache
def taken() -> Module:
    """Y = X[I], whose index is checked while it runs."""
    n, m = te.var("n"), te.var("m")
    x, i = te.placeholder((n,), name="X"), te.placeholder((m,), "int32", name="I")
    y = te.compute((m,), lambda j: x[i[j]], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, i, y], name="taken")


# -- results --------------------------------------------------------------------------------------


def test_results() -> None:
    x = jnp.arange(4.0)
    assert isinstance(scaled()(x, 2.0), jax.Array)
    assert scaled()(x, 2.0).tolist() == [0, 2, 8, 18]
    assert scaled()(a=0.5, X=np.arange(2, dtype="float32")).tolist() == [0, 0.5]
    assert scaled()(jnp.zeros(0), 1.0).shape == (0,)
    np.testing.assert_allclose(product()(A, B), A @ B, rtol=1e-6)
    y, z = programs.parts().jax_op()(jnp.ones((2, 3)))
    assert (y.tolist(), z.tolist()) == ([[2] * 3] * 2, [3, 3])


@pytest.mark.parametrize("number", [3, True, np.float64(3), np.int8(3), jnp.float16(3)])
def test_numbers(number: Any) -> None:
    assert scaled()(jnp.ones(1), number).tolist() == [float(number)]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "float16"])
def test_numbers_of_a_dtype(dtype: str) -> None:
    """Numbers of all kinds reach the function, in JAX with 64 bits and without."""
    a = te.var("a", dtype)
    y = te.compute((1,), lambda i: a.astype("float32"), name="Y")
    f = tvm.build(te.create_schedule(y.op), [a, y], name="f").jax_op()
    assert f(100).tolist() == [100]
    assert f(jnp.asarray(7, jnp.int32 if dtype == "int64" else dtype)).tolist() == [7]
    with jax.enable_x64(True):
        assert f(jnp.asarray(9, dtype)).tolist() == [9]
    if dtype == "int8":
        with pytest.raises(
            Exception, match="argument 0 'a': expected a value of dtype int8, got 300"
        ):
            f(300).block_until_ready()


@pytest.mark.parametrize("dtype", [*programs.DTYPES, "bfloat16", "uint32"])
def test_dtypes(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.array([0, 1, 1, 0], dtype)
        y = programs.backwards(dtype).jax_op()(x)
        assert (y.dtype, y.tolist()) == (x.dtype, [0, 1, 1, 0])


def test_no_dimensions() -> None:
    x = te.placeholder((), name="X")
    y = te.compute((), lambda: x[()] + 1.0, name="Y")
    f = tvm.build(te.create_schedule(y.op), [x, y], name="f").jax_op()
    assert f(jnp.float32(2)).tolist() == 3
    assert f(2.0).shape == ()
    assert jax.vmap(f)(jnp.arange(3.0)).tolist() == [1, 2, 3]


# -- transformations ------------------------------------------------------------------------------


def test_compiled() -> None:
    assert jax.jit(lambda x, a: scaled()(x + 1, a) * 2)(jnp.arange(3.0), 2.0).tolist() == [
        4,
        16,
        36,
    ]
    carry, sums = jax.lax.scan(
        lambda x, _: (scaled()(x, 0.5), x.sum()), jnp.array([2.0, 4.0]), None, length=2
    )
    assert (carry.tolist(), sums.tolist()) == ([2, 32], [6, 10])
    either = jax.jit(lambda c, x: jax.lax.cond(c, lambda x: scaled()(x, 1.0), jnp.negative, x))
    assert [float(either(c, jnp.full(1, 3.0))[0]) for c in (True, False)] == [9, -3]


def test_batches() -> None:
    """Operands with dimensions in front, in any of them; those without are shared, not copied."""
    a, b = np.stack([A, A + 1, A - 1]), np.stack([B, 2 * B])
    rows = jax.vmap(product(), in_axes=(0, None))
    np.testing.assert_allclose(rows(a, B), a @ B, rtol=1e-5)
    last = jax.vmap(product(), in_axes=(None, 2), out_axes=1)
    np.testing.assert_allclose(last(A, np.moveaxis(b, 0, 2)), np.moveaxis(A @ b, 0, 1), rtol=1e-5)
    every = jax.jit(jax.vmap(rows, in_axes=(None, 0)))
    np.testing.assert_allclose(every(a, b), a @ b[:, None], rtol=1e-5)
    both = jax.vmap(jax.vmap(scaled()), in_axes=(0, None))
    x, s = np.arange(24, dtype="float32").reshape(2, 3, 4), np.array([1, 2, 3], "float32")
    np.testing.assert_array_equal(both(x, s), x * x * s[:, None])
    assert jax.vmap(scaled(), in_axes=(0, None))(jnp.zeros((0, 3)), 1.0).shape == (0, 3)


def test_a_batch_is_one_call() -> None:
    text = str(jax.make_jaxpr(jax.vmap(product(), in_axes=(0, None)))(np.stack([A, A]), B))
    assert (text.count("ffi_call["), "scan" in text, "5,7" in text) == (1, False, True)


def test_nothing_is_copied() -> None:
    lowered = jax.jit(product()).lower(A, B).compile().as_text()
    assert lowered.count('custom_call_target="minitvm_call"') == 1
    assert " copy(" not in lowered


def test_given_gradients() -> None:
    op = programs.scaled().jax_op(
        backward=lambda inputs, _, gradient: (
            2 * inputs[0] * inputs[1] * gradient,
            (inputs[0] ** 2 * gradient).sum(),
        )
    )

    def loss(x: Any, a: Any) -> Any:
        return op(x, a).sum()

    x = jnp.array([1.0, 3.0])
    gx, ga = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, 2.0)
    assert (gx.tolist(), ga) == ([4, 12], 10)
    each = jax.vmap(jax.grad(loss), in_axes=(0, None))(jnp.stack([x, x + 1]), 2.0)
    assert each.tolist() == [[4, 12], [8, 16]]


@pytest.mark.parametrize("with_outputs", [False, True])
def test_built_gradients(with_outputs: bool) -> None:
    """Y = exp(X), with the gradient Y * G, by a function that takes Y or computes it again."""
    n = te.var("n")
    x, y, g = (te.placeholder((n,), name=name) for name in "XYG")
    value = te.compute((n,), lambda i: te.exp(x[i]), name="V")
    d = te.compute((n,), lambda i: (y[i] if with_outputs else te.exp(x[i])) * g[i], name="D")
    forward = tvm.build(te.create_schedule(value.op), [x, value], name="forward")
    arguments = [x, y, g, d] if with_outputs else [x, g, d]
    op = forward.jax_op(backward=tvm.build(te.create_schedule(d.op), arguments, name="back"))
    point = jnp.array([0.0, 1.0])
    np.testing.assert_allclose(jax.grad(lambda x: op(x).sum())(point), np.exp(point), rtol=1e-6)
    with pytest.raises(
        TypeError, match=r"back: expected the 2 inputs of product, .*so 3 or 4 inputs"
    ):
        programs.product().jax_op(backward=forward_of("back"))


def forward_of(name: str) -> Module:
    x = te.placeholder((4,), name="X")
    y = te.compute((4,), lambda i: x[i], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], name=name)


def test_integers_have_no_gradient_and_need_none() -> None:
    x = te.placeholder((3,), name="X")
    y = te.compute((3,), lambda i: (x[i] * 2.0).astype("int32"), name="Y")
    op = tvm.build(te.create_schedule(y.op), [x, y], name="op").jax_op()
    assert jax.grad(lambda x: (x * op(x)).sum())(jnp.arange(3.0)).tolist() == [0, 2, 4]


def test_numbers_that_give_shapes() -> None:
    n = te.var("n")
    y = te.compute((n,), lambda i: i.astype("float32"), name="Y")
    count = tvm.build(te.create_schedule(y.op), [n, y], name="count").jax_op()
    assert count(3).tolist() == [0, 1, 2]
    assert jax.jit(count, static_argnums=0)(2).tolist() == [0, 1]
    with pytest.raises(TypeError, match="argument 0 'n': expected a Python int, since a shape"):
        jax.jit(count)(3)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((A, B[:5]), ValueError, r"product: argument 1 'B': expected shape\[0\] == 7 \(m, as arg"),
        ((A.astype("int32"), B), TypeError, "argument 0 'A': expected dtype float32, got int32"),
        ((A[0], B), ValueError, "argument 0 'A': expected ndim == 2, got 1"),
        (([1.0], B), TypeError, "argument 0 'A': expected an array of JAX or numpy, got list"),
        ((A,), TypeError, r"product: expected 2 inputs \(A, B\), got 1: outputs are returned"),
    ],
)
def test_wrong_arguments(args: Any, error: type[Exception], text: str) -> None:
    """They are refused while JAX traces."""
    for operation in (product(), jax.jit(lambda *args: product()(*args))):
        with pytest.raises(error, match=text):
            operation(*args)


def test_wrong_numbers() -> None:
    for number, text in (
        (jnp.ones(3), r"argument 1 'a': expected a number, got an array of shape \(3,\)"),
        (1j, "argument 1 'a': expected a number, got one of complex64"),
    ):
        with pytest.raises(TypeError, match=text):
            scaled()(A[0], number)


def test_64_bits_are_switched_off() -> None:
    f = programs.backwards("float64").jax_op()
    with pytest.raises(
        TypeError, match="argument 0 'X': expected JAX to have dtype float64, got jax"
    ):
        f(np.zeros(4))


def test_wrong_functions() -> None:
    with pytest.raises(TypeError, match=r"expected a function of minitvm.build.*got function"):
        module_face(programs.add_one)
    with pytest.raises(TypeError, match="scaled: backward: expected a function, got int"):
        programs.scaled().jax_op(backward=3)
    with pytest.raises(TypeError, match="scaled: expected a backward to differentiate"):
        jax.grad(lambda x: scaled()(x, 1.0).sum())(jnp.ones(2))
    op = programs.scaled().jax_op(backward=lambda inputs, *_: inputs[0])
    with pytest.raises(TypeError, match=r"backward: expected 2 gradients \(X, a\), got 1"):
        jax.grad(lambda x: op(x, 1.0).sum())(jnp.ones(2))
    op = programs.scaled().jax_op(backward=lambda *_: (jnp.ones(3), None))
    with pytest.raises(
        TypeError, match=r"'X': expected a gradient of shape \(2,\) and dtype float32"
    ):
        jax.grad(lambda x: op(x, 1.0).sum())(jnp.ones(2))


def test_failures_while_it_runs() -> None:
    op = taken().jax_op()
    x = jnp.arange(5.0)
    assert op(x, jnp.array([4, 0], "int32")).tolist() == [4, 0]
    with pytest.raises(FAILURES, match=r"IndexError: taken: X\[I\[j\]\]: .*got 5"):
        op(x, jnp.array([4, 5], "int32")).block_until_ready()
    assert op(x, jnp.array([1], "int32")).tolist() == [1]


def test_a_program_runs_beside_a_busy_thread() -> None:
    """The function doesn't wait for the GIL."""
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    busy.start()
    try:
        x = jnp.full(2, 2.0)
        repeated = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda _, x: scaled()(x, 0.5), x))
        assert repeated(x).tolist() == [2, 2]
    finally:
        stop.set()
        busy.join()


# -- elsewhere ------------------------------------------------------------------------------------


def test_without_ffi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is called back where JAX has no FFI; on other platforms, the platform decides."""
    with monkeypatch.context() as patched:
        patched.delattr(jax, "ffi")
        op = programs.scaled().jax_op()
    called = jax.make_jaxpr(op)(jnp.ones(2), 1.0)
    assert "pure_callback" in str(called)
    assert op(jnp.array([2.0]), 3).tolist() == [12]
    assert jax.vmap(op, in_axes=(0, None))(jnp.ones((2, 2)), 1.0).tolist() == [[1, 1]] * 2
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert programs.scaled().jax_op()(jnp.array([2.0]), 3).tolist() == [12]
    assert imported("jax", "test") is jax


def test_a_pickled_function_is_the_same_callee() -> None:
    """A program finds the function by what it is: in another process, too."""
    module = programs.scaled()
    again = pickle.loads(pickle.dumps(module))
    key = {str(jax.make_jaxpr(f.jax_op())(jnp.ones(1), 1.0)).split("key")[1][:30] for f in
           (module, again)}  # fmt: skip
    assert len(key) == 1


def test_exported_programs() -> None:
    module = programs.scaled()
    checks = [jax.export.DisabledSafetyCheck.custom_call("minitvm_call")]
    program = jax.jit(lambda x: module.jax_op()(x, 2.0))
    (size,) = jax.export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((size,), "float32")
    with pytest.raises(ValueError, match="custom calls whose targets have no compatib"):
        jax.export.export(program)(spec)
    exported = jax.export.export(program, disabled_checks=checks)(spec)
    assert exported.call(np.full(2, 3, "float32")).tolist() == [18, 18]


def test_a_built_function_that_jax_traces() -> None:
    f = programs.scaled()
    for call in (f.returning(), lambda *args: f(*args, args[0])):
        with pytest.raises(BufferError, match=r"argument 0 .*JAX is tracing.*: call .*jax_op\(\)"):
            jax.jit(call)(jnp.arange(3.0), 2.0)


# What a user's module defines; each process that calls an exported program imports it.
_MODULE = """
    import jax
    import jax.export
    import minitvm as tvm
    from minitvm import te

    X = te.placeholder((te.var("n"), 8), name="X")
    Y = te.compute(X.shape, lambda i, j: X[i, j] * 2.0, name="Y")
    built = tvm.build(te.create_schedule(Y.op), [X, Y], name="double")
    double = built.jax_op(backward=lambda inputs, outputs, gradients: (2.0 * gradients,))


    @tvm.jit(symbolic="m")
    def squares(x: "m n"):
        k = te.reduce_axis((0, x.shape[1]))
        return te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))


    gradient = jax.jit(jax.grad(lambda x: squares(double(x)).sum()))
    jax.eval_shape(gradient, jax.ShapeDtypeStruct((4, 8), "float32"))
"""
_CALL = """
    import sys
    import numpy as np
    import user_of_jax as user

    called = user.jax.export.deserialize(open(sys.argv[1], "rb").read()).call
    for rows in (1, 4, 7):
        x = np.random.default_rng(0).random((rows, 8), "float32")
        np.testing.assert_allclose(called(x), 8 * x, rtol=1e-6)
"""


@pytest.mark.wide
def test_serialised_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flatbuffers")
    (tmp_path / "user_of_jax.py").write_text(textwrap.dedent(_MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    import user_of_jax as user  # type: ignore[import-not-found]  # written here

    checks = [jax.export.DisabledSafetyCheck.custom_call("minitvm_call")]
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("m, 8"), "float32")
    exported = jax.export.export(user.gradient, disabled_checks=checks)(spec)
    (tmp_path / "program").write_bytes(exported.serialize())
    script = tmp_path / "call.py"
    script.write_text(textwrap.dedent(_CALL))
    paths = [str(Path(tvm.__file__).parents[1]), str(tmp_path), *sys.path]
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "program")],
        env={"PYTHONPATH": ":".join(paths)},
        check=True,
    )
