"""Arrays that nobody may write: of libraries whose arrays never change, of torch where autograd
would not see it, and those that say so themselves. By whatever way they come, and through whatever
hands, they stay as they are; as inputs they are as good as any."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.contrib.dlpack import convert_func, to_pytorch_func
from minitvm.runtime import NDArray, PackedFunc, array, from_dlpack

WRITABLE = "expected a writable array, got a read-only one"


def foreign_class(module: str, versioned: bool) -> Any:
    """The class of arrays of a library, known by its module, whose capsules say nothing of what may
    be written."""

    class Array:
        def __init__(self, values: Any) -> None:
            self.memory = np.array(values, "float32")

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.memory.__dlpack__(**keywords) if versioned else self.memory.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    Array.__module__ = module
    return Array


class Derived(foreign_class("tensorflow.python.framework.ops", versioned=False)):  # type: ignore[misc]
    """A user's class."""


IMMUTABLE = {
    "tensorflow": foreign_class("tensorflow.python.framework.ops", versioned=False),
    "tensorflow, versioned": foreign_class("tensorflow.python.framework.ops", versioned=True),
    "jax": foreign_class("jaxlib._jax", versioned=False),
    "pyarrow": foreign_class("pyarrow.lib", versioned=False),
    "derived": Derived,
}
MUTABLE = [
    foreign_class(module, False) for module in ("jax_tools", "my.tensorflow", "paddle", "mlx.core")
]


@functools.cache
def add_one() -> Any:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    return tvm.build(te.create_schedule(b.op), [a, b], name="f")


def fill(target: Any) -> None:
    target[...] = 7


def fill_by_numpy(target: Any) -> None:
    np.asarray(target)[...] = 7


def fill_a_part(target: NDArray) -> None:
    target[1:].reshape(1, 2).view("float32")[...] = 7


ones = np.ones(3, "float32")
WRITES: dict[str, Callable[[Any], object]] = {
    "compiled": lambda x: add_one()(ones, x),
    "by name": lambda x: add_one()(ones, B=x),
    "in place": lambda x: add_one()(x, x),
    "evaluator": lambda x: add_one().time_evaluator(number=2)(ones, x),
    "callback": lambda x: PackedFunc(fill)(x),
    "callback by numpy": lambda x: PackedFunc(fill_by_numpy)(x),
    "callback's part": lambda x: PackedFunc(fill_a_part)(x),
    "callback that passes it on": lambda x: PackedFunc(lambda a: add_one()(ones, a))(x),
    "callback to callback": lambda x: PackedFunc(PackedFunc(fill))(x),
    "wrapper": lambda x: convert_func(fill, type(x), lambda x: x)(x),
    "wrapper of capsules": lambda x: convert_func(fill, type(x), lambda x: x.__dlpack__())(x),
    "NDArray": lambda x: add_one()(ones, from_dlpack(x)),
    "part of an NDArray": lambda x: add_one()(ones[1:], from_dlpack(x)[1:]),
    "NDArray of an NDArray": lambda x: add_one()(ones, from_dlpack(from_dlpack(x))),
    "numpy's array of an NDArray": lambda x: add_one()(ones, np.asarray(from_dlpack(x))),
    "numpy's array by DLPack": lambda x: add_one()(ones, np.from_dlpack(from_dlpack(x))),
    "NDArray to a callback": lambda x: PackedFunc(fill)(from_dlpack(x)),
    "copyfrom": lambda x: from_dlpack(x).copyfrom(ones),
    "copyto": lambda x: array(ones).copyto(from_dlpack(x)),
    "assignment": lambda x: fill(from_dlpack(x)),
}


def stays_as_it_is(write: Callable[[Any], object], x: Any, memory: Any) -> None:
    for _ in range(3):  # after the first call the compiled path might know the type
        with pytest.raises(
            (ValueError, BufferError), match=r"read-only|output that shares no memory"
        ):
            write(x)
        assert list(memory) == [1, 2, 3]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("library", IMMUTABLE)
def test_arrays_that_never_change_are_never_written(library: str, write: str) -> None:
    x = IMMUTABLE[library]([1, 2, 3])
    stays_as_it_is(WRITES[write], x, x.memory)


@pytest.mark.parametrize("library", IMMUTABLE)
def test_arrays_that_never_change_are_inputs_like_others(library: str) -> None:
    x, out = IMMUTABLE[library]([1, 2, 3]), np.empty(3, "float32")
    for source in (x, from_dlpack(x), from_dlpack(x)[:]):
        out[:] = 0
        add_one()(source, out)
        assert list(out) == [2, 3, 4]
    seen = PackedFunc(lambda a: [*a.numpy(), a.read_only])(x)
    assert seen == [1, 2, 3, True]
    assert array(x).copyfrom(ones).numpy().sum() == 3


@pytest.mark.parametrize("kind", MUTABLE, ids=lambda kind: kind.__module__)
def test_other_libraries_are_written(kind: Any) -> None:
    x = kind([1, 2, 3])
    add_one()(ones, x)
    assert list(x.memory) == [2, 2, 2]


def test_the_message_says_whose_arrays_never_change() -> None:
    x = IMMUTABLE["jax"]([1, 2, 3])
    text = rf"f: argument 1 'B': {WRITABLE} of jax, whose arrays never change: pass a numpy array"
    with pytest.raises(ValueError, match=text):
        add_one()(ones, x)


def read_only(values: Any) -> Any:
    made = np.array(values, "float32")
    made.flags.writeable = False
    return made


@pytest.mark.parametrize("write", [name for name in WRITES if "apsule" not in name])
def test_read_only_arrays_of_numpy_stay_so_in_all_hands(write: str) -> None:
    x = read_only([1, 2, 3])
    stays_as_it_is(WRITES[write], x, x)


def test_callbacks_of_compiled_code_get_read_only_memory_as_such() -> None:
    """The compiled function passes an array of its own making, of the memory that it was given."""

    def body(ins: Any, outs: Any) -> Any:
        return tvm.call_packed("read_only.callback", ins[0], outs[0])

    a = te.placeholder((4,), name="A")
    b = te.extern((4,), [a], body, name="B")
    f = tvm.build(te.create_schedule(b.op), [a, b], name="f")
    seen: list[tuple[bool, bool]] = []

    def callback(source: NDArray, target: NDArray) -> None:
        seen.append((source.read_only, target.read_only))
        target[...] = source
        if seen[-1][0]:
            fill(source)

    tvm.register_func("read_only.callback", callback, override=True)
    try:
        memory, out = np.arange(8, dtype="float32"), np.zeros(4, "float32")
        fixed = memory.copy()
        fixed.flags.writeable = False
        for source in (fixed[:4], fixed[::-2], fixed[1:5], from_dlpack(fixed)[2:6]):
            with pytest.raises(ValueError, match=WRITABLE):
                f(source, out)
            assert list(fixed) == list(memory)
        f(memory[:4], out)
        assert seen == [(True, False)] * 4 + [(False, False)]
    finally:
        tvm.remove_global_func("read_only.callback")


def test_a_writable_array_beside_a_read_only_view_of_it_is_writable() -> None:
    x = np.ones(3, "float32")
    PackedFunc(lambda a, b: fill(b))(np.broadcast_to(x, (2, 3)), x)
    assert list(x) == [7, 7, 7]


# ---- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tensors_that_require_grad_are_inputs_where_grad_mode_is_off(mode: Any) -> None:
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, torch.nn.Parameter(torch.ones(3)), leaf * 1, leaf[:], leaf.reshape(3, 1)[:, 0]):
        for _ in range(3):
            with pytest.raises(
                BufferError, match=r"that doesn't require grad.*x\.detach\(\).*no_g"
            ):
                add_one()(x, torch.zeros(3))
            with mode():
                out = torch.zeros(3)
                to_pytorch_func(add_one())(x, out)
                assert out.tolist() == [2, 2, 2]
                assert from_dlpack(x).read_only


@pytest.mark.parametrize("write", [name for name in WRITES if "apsule" not in name])
def test_tensors_that_require_grad_are_no_outputs(write: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with torch.no_grad():
        stays_as_it_is(WRITES[write], x, x.tolist())
        with pytest.raises(ValueError, match=r"since it requires grad: pass x\.detach\(\)"):
            add_one()(ones, x)
        add_one()(ones, x.detach())
    assert x.tolist() == [2, 2, 2]


def test_in_the_forward_of_a_function_of_autograd() -> None:
    class AddOne(torch.autograd.Function):  # type: ignore[misc]  # mypy doesn't read torch
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            out = torch.empty_like(x)
            add_one()(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * 3

    x = torch.nn.Parameter(torch.ones(3))
    for _ in range(3):
        x.grad = None
        AddOne.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3, 3, 3]


def test_tensors_of_vmap_are_refused() -> None:
    """They stand for a batch, and have no memory of their own; an operator takes them."""
    out = torch.zeros(3)

    def called(function: Any, order: int) -> Any:
        def one(x: torch.Tensor) -> torch.Tensor:
            function(*((x, out) if order else (out, x)))
            return x

        return one

    for order in (0, 1):
        for function in (add_one(), PackedFunc(lambda a, b: None)):
            with pytest.raises(BufferError, match=r"got one of torch\.vmap, .*f\.torch_op"):
                torch.vmap(called(function, order))(torch.ones(2, 3))
    with pytest.raises(BufferError, match=r"got one of torch\.vmap"):
        torch.vmap(lambda x: from_dlpack(x) and x)(torch.ones(2, 3))
    assert out.tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
def test_dual_tensors_are_refused() -> None:
    """Their tangent would be lost; tensors without one, beside them, are as good as ever."""
    forward_ad = torch.autograd.forward_ad
    plain, out = torch.ones(3), torch.zeros(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(plain, plain)
        for x in (dual, dual * 2, dual[:], torch.nn.Parameter(dual)[:] * dual):
            for function in (add_one(), PackedFunc(lambda a, b: None)):
                for args in ((x, out), (out, x), (x, x)):
                    with pytest.raises(BufferError, match=r"dual one.*\.primal"), torch.no_grad():
                        function(*args)
            with pytest.raises(BufferError, match="got a dual one"), torch.no_grad():
                from_dlpack(x)
        primal = forward_ad.unpack_dual(dual).primal
        for x in (plain, plain[:], primal, dual.detach()):
            add_one()(x, out[:])
            assert out.tolist() == [2, 2, 2]
    add_one()(dual, out)  # its tangent ended with the level
    with pytest.raises((BufferError, RuntimeError)):
        torch.func.jvp(lambda x: (add_one()(x, out), x)[1], (plain,), (plain,))


def test_a_list_as_output_is_no_input_to_convert() -> None:
    """``np.asarray`` of it would be written, and lost."""
    A = te.placeholder((3,), name="A")
    B = te.compute((3,), lambda i: A[i] + 1.0, name="B")
    f = tvm.build([B], [A, B], name="f")
    with pytest.raises(TypeError, match=r"argument 1 'B': .*got list: the function writes into it"):
        f(np.zeros(3, "float32"), [0.0, 0.0, 0.0])
    with pytest.raises(TypeError, match=r"argument 0 'A': .*got list: pass np.asarray\(x\)"):
        f([0.0, 0.0, 0.0], np.zeros(3, "float32"))
