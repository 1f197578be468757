"""Arguments of wrong kinds, of what takes whole programs: refused in the project's own words."""

# What is refused is of other types than annotations say.
# mypy: disable-error-code="arg-type,call-overload,no-untyped-call,untyped-decorator,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te

A = te.placeholder((4,), name="A")
B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
N = np.ones(3)


def schedule() -> te.Schedule:
    return te.create_schedule(B.op)


def doubled(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x(*i) * 2)


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


WRONG: list[tuple[Callable[[], Any], str]] = [
    *((lambda w=w: tvm.build(schedule(), w), "default_function: expected a list of arg")
      for w in (3, "AB", {}, N, 1.5, lambda: A, A, {A, B}, np)),
    *((lambda w=w: tvm.build(schedule(), [A, B], binds=w), "default_function: binds: expected a ma")
      for w in (3, "AB", [A], N, {A: 3}, {"A": None})),
    *((lambda w=w: tvm.lower(schedule(), [A, B], binds=w), "main: binds: expected a mapping from")
      for w in (3, "AB", [A], N, {A: 3}, {"A": None})),
    *((lambda w=w: tvm.build(schedule(), [A, B], name=w), "build: expected a name such as 'fmm'")
      for w in (3, N, ["f"], A)),
    *((lambda w=w: tvm.build(schedule(), [A, B], fp=w), "build: expected fp to be 'fast' or")
      for w in (3, N, None, ["fast"])),
    *((lambda w=w: tvm.lower(schedule(), [A, B], debug=w), "main: expected debug to be None or")
      for w in (3, N, ["bounds"], True)),
    *((lambda w=w: tvm.build(schedule(), [A, B], prepacked=w), "prepacked: expected a list of pl")
      for w in (3, None, "A", A)),
    *((lambda w=w: tvm.device(w), "device: expected the name or number of a kind of device, got")
      for w in (None, 1.5, N, [1])),
    *((lambda w=w: tvm.device("cpu", w), "device: expected the id, got ") for w in (None, "0", N)),
    *((lambda w=w: tvm.jit(doubled, static=w), "jit: static: expected names, as 'm n'")
      for w in (3, None, [3], N, te.var("x"), A, itself())),
    *((lambda w=w: tvm.jit(doubled, symbolic=w), "jit: symbolic: expected names, as 'm n'")
      for w in (3, [3], N, te.var("x"), A, itself())),
    *((lambda w=w: tvm.jit(doubled, name=w), "jit: name: expected a name, got ") for w in (3, N)),
    *((lambda w=w: tvm.jit(doubled).warm_up(w), "warm_up: expected a list of signatures, as ")
      for w in (3, None, "float32[3]")),
    (lambda: tvm.jit(int), "expected a Python function of tensors, got the class int"),
    *((lambda w=w: tvm.build(schedule(), [A, B])[w], "expected a function among default_function")
      for w in (3, None, [], {}, N, "g")),
    *((lambda w=w: tvm.build(schedule(), [A, B]).get_source(w), "expected a kind of source among")
      for w in (3, [1], N, "obj")),
    *((lambda w=w: tvm.build(schedule(), [A, B]).save("x", w), "default_function: expected the fo")
      for w in (3, [1], N, "obj")),
    *((lambda w=w: tvm.arith.detect_linear_equation(te.var("n"), w), "a list of integer variables")
      for w in (None, 3, "n", ["n"], te.var("n"), A, [te.var("x", "float32")])),
    *((lambda w=w: tvm.arith.Analyzer().int_set(te.var("n"), w), "int_set: expected a mapping")
      for w in (3, "n", [], N)),
    (lambda: tvm.ir.structural_hash(itself()), "expected a program, got a list within itself"),
    (lambda: tvm.ir.save_json(itself()), "save_json: expected expressions nested less deeply"),
    *((lambda w=w: schedule()[B].split(w, 2), "B: split: ") for w in (N, "i", 3, None)),
    (lambda: schedule()[B].reorder(itself()), "expected values, got a list within itself"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(number: int) -> None:
    call, words = WRONG[number]
    with pytest.raises((tvm.CompileError, TypeError, ValueError, AttributeError), match=words):
        call()


def test_a_schedule_is_as_before_after_a_refusal() -> None:
    s = schedule()
    for wrong in (itself(), N, None):
        with pytest.raises((tvm.CompileError, TypeError)):
            s[B].split(wrong, 2)
    s[B].split(B.op.axis[0], 2)
    x, y = np.ones(4, "float32"), np.empty(4, "float32")
    tvm.build(s, [A, B])(x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_names_of_files_as_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "plus").encode()
    tvm.build(schedule(), [A, B], name="plus").export_library(path)
    assert tvm.runtime.load_module(path).entry_name == "plus"
    tvm.build(schedule(), [A, B], name="plus").save(path + b".ll")
    assert (tmp_path / "plus.ll").is_file()
