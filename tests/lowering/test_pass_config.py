"""The options of the pipeline: what each does, and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import minitvm as tvm
from minitvm import te, tir
from minitvm.error import TVMError
from minitvm.lowering.lower import pipeline
from minitvm.tir.expr import Call, Var, const
from minitvm.tir.functor import walk
from minitvm.tir.stmt import Allocate, AssertStmt, BufferStore, For, ForKind, PrimFunc, Stmt, seq
from minitvm.transform import PassContext
from minitvm.transform.inject_double_buffer import DoubleBufferOptions
from minitvm.transform.partition_loops import LoopPartitionOptions
from minitvm.transform.pass_config import _KEYS, PassConfig, parse_config
from minitvm.transform.pass_context import PassInfo
from minitvm.transform.unroll_loops import UnrollOptions
from tests.tir.programs import function, function_of, loop
from tests.transform.loop_nests import Nest, loop_nests

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
i, j = Var("i"), Var("j")
A, B = tir.decl_buffer((64,), name="A"), tir.decl_buffer((64,), name="B")


func = function_of(A, B)


def lowered(body: Stmt, config: dict[str, Any]) -> Stmt:
    with PassContext(config=config, verify_each=True):
        return tvm.lower(func(body))["f"].body


def kinds(body: Stmt) -> list[ForKind]:
    return [node.kind for node in walk(body) if isinstance(node, For)]


COPY = BufferStore(B, A[i], (i,))
VECTOR = loop(i, 64, COPY, ForKind.VECTORIZED)


def test_disable_vectorize() -> None:
    assert kinds(lowered(VECTOR, {"tir.disable_vectorize": True})) == [ForKind.SERIAL]


def test_unroll_loop() -> None:
    body = loop(i, 4, COPY)
    assert kinds(lowered(body, {"tir.UnrollLoop": {"auto_max_step": 4}})) == [ForKind.UNROLLED]
    assert kinds(lowered(body, {"tir.UnrollLoop": {"auto_max_step": 3}})) == [ForKind.SERIAL]


def test_disable_storage_rewrite() -> None:
    t, u = (tir.decl_buffer((64,), name=name) for name in "TU")
    stages = [(t, A[i]), (u, t[i] * 2.0), (B, u[i])]
    body: Stmt = seq(*[loop(i, 64, BufferStore(to, value, (i,))) for to, value in stages])
    body = Allocate(t, Allocate(u, body))
    for disabled, count in ((False, 1), (True, 2)):
        made = lowered(body, {"tir.disable_storage_rewrite": disabled})
        assert sum(isinstance(node, Allocate) for node in walk(made)) == count


def test_disable_assert() -> None:
    """The program's own assertions go; those that keep it inside its tensors stay."""
    n = te.var("n")
    tensor = tir.decl_buffer((n,), name="C")
    reach = BufferStore(tensor, const(0.0), (const(9),))
    body = AssertStmt(n > 10, "expected more", reach)
    program = function("f", tensor, body=body)
    for disabled, messages in ((False, 2), (True, 1)):
        with PassContext(config={"tir.disable_assert": disabled}):
            made = tvm.lower(program)["f"].body
        kept = [node.kind for node in walk(made) if isinstance(node, AssertStmt)]
        assert len(kept) == messages or kept == ["KernelError"]
        assert ("KernelError" in kept) is not disabled


def test_disable_assert_of_a_schedule() -> None:
    """What `extern` and hybrid functions assert goes before accesses are proved by it."""
    n = te.var("n")
    X = te.placeholder((n,), name="X")

    def reach(ins: Any, outs: Any) -> Stmt:
        copy = BufferStore(outs[0], ins[0][const(9)], (const(0),))
        return AssertStmt(ins[0].shape[0] > 10, "expected more", copy)

    Y = te.extern((1,), [X], reach, name="Y", dtype="float32")

    @te.hybrid.script
    def first(x: Any) -> Any:
        y = output_tensor((1,), "float32")  # type: ignore[name-defined]  # noqa: F821
        assert x[0] > 0.0, "expected more"
        y[0] = x[9]
        return y

    for out in (Y, first(X)):
        for disabled in (False, True):
            with PassContext(config={"tir.disable_assert": disabled}):
                made = tvm.lower(te.create_schedule(out.op), [X, out])["main"].body
            kinds = {node.kind for node in walk(made) if isinstance(node, AssertStmt)}
            assert ("KernelError" in kinds) is not disabled
            assert ("ValueError" in kinds) is (disabled or out is not Y)  # n > 9


def test_the_page_lists_the_passes() -> None:
    """All of them, in their order."""
    listed = re.findall(r"^\| `(\w+)` \| .* \|$", PAGE.read_text(encoding="utf-8"), re.M)
    config = PassConfig(program_assertions=False, vectorize=False, check_accesses=True)
    checked = [name for name, _ in pipeline(config, is_written=True, kind="llvm")]
    checked.insert(listed.index("join_indices"), "join_indices")  # which would hide an access
    assert listed == checked
    usual = [name for name, _ in pipeline(PassConfig(), is_written=False, kind="llvm")]
    only = {"remove_assertions", "check_bounds", "serialize_vectors", "check_accesses"}
    assert usual == [name for name in listed if name not in only]


def test_the_page_lists_the_options() -> None:
    """All keys, and of those that take a dict all members."""
    rows = re.findall(r"^\| (`tir\..*) \| (.*) \| .* \|$", PAGE.read_text(encoding="utf-8"), re.M)
    listed = {key: value for keys, value in rows for key in re.findall(r"`([\w.]+)`", keys)}
    assert set(listed) == set(_KEYS)
    for key, options in (
        ("tir.UnrollLoop", UnrollOptions),
        ("tir.LoopPartition", LoopPartitionOptions),
        ("tir.InjectDoubleBuffer", DoubleBufferOptions),
    ):
        members = re.findall(r"`(\w+)`", listed[key])
        assert sorted(members) == sorted(each.name for each in fields(options))


def test_only_loops_by_hand_pass_check_bounds() -> None:
    """Those of a schedule are checked where they are made."""
    with PassContext() as context:
        tvm.lower(func(VECTOR))
    assert "check_bounds" in context.timings
    T = te.compute((4,), lambda i: i * 2, name="T")
    with PassContext() as context:
        tvm.lower(te.create_schedule(T.op), [T])
    assert "check_bounds" not in context.timings


def test_debug_keep_trivial_loop() -> None:
    body = loop(i, 1, COPY)
    assert kinds(lowered(body, {})) == []
    assert kinds(lowered(body, {"tir.debug_keep_trivial_loop": True})) == [ForKind.SERIAL]


def test_add_lower_pass() -> None:
    """A pass of one's own sees the program at its phase."""
    seen: list[tuple[int, bool]] = []

    def watch(phase: int) -> Any:
        def look(program: PrimFunc) -> PrimFunc:
            simple = not any(isinstance(node, Call) for node in walk(program.body))
            seen.append((phase, simple))
            return program

        return look

    guarded = te.if_then_else(i < 64, A[i], 0.0)
    body = loop(i, 64, BufferStore(B, guarded, (i,)))
    lowered(body, {"tir.add_lower_pass": [(phase, watch(phase)) for phase in (3, 0, 1, 2)]})
    assert seen == [(0, False), (1, False), (2, True), (3, True)]


def test_an_added_pass_returns_a_function() -> None:
    with pytest.raises(TVMError, match=r"pass forget: expected a PrimFunc .* got NoneType"):

        def forget(program: PrimFunc) -> None: ...

        lowered(VECTOR, {"tir.add_lower_pass": [(0, forget)]})


@pytest.mark.parametrize(
    "config",
    [
        {"tir.LoopPartition": {"partition_const_loop": True}},
        {"tir.HoistIfThenElse": {"support_block_scope_hosting": True}},
        {"tir.Simplify": {"transitively_prove_inequalities": True}},
        {"tir.detect_global_barrier": False},
        {"tir.merge_static_smem": True},
        {"tir.is_entry_func": True},
        {"tir.noalias": True},
    ],
)
def test_accepted_and_without_effect(config: dict[str, Any]) -> None:
    assert str(lowered(VECTOR, config)) == str(lowered(VECTOR, {}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tir.UnrolLoop": {}}, r"expected an option among .*tir\.UnrollLoop.*, got 'tir\.UnrolLo"),
        ({"tir.UnrollLoop": 4}, r"expected a dict of auto_max_step, .*, got 4"),
        ({"tir.UnrollLoop": {"max": 4}}, r"expected options among auto_max_step, .*, got 'max'"),
        ({"tir.UnrollLoop": {"auto_max_step": -1}}, r"auto_max_step': expected an integer from 0"),
        ({"tir.UnrollLoop": {"auto_max_step": True}}, r"auto_max_step': expected an integer from"),
        ({"tir.UnrollLoop": {"explicit_unroll": 7}}, r"expected True or False, got 7"),
        ({"tir.disable_vectorize": "yes"}, r"expected True or False, got 'yes'"),
        ({"tir.noalias": False}, r"expected True, got False: a call refuses outputs that overlap"),
        ({"tir.usmp.enable": True}, r"expected none: memory planning for microcontrollers"),
        ({"relay.backend.use_auto_scheduler": True}, r"expected none: there are no graphs"),
        ({"tir.add_lower_pass": [(4, str)]}, r"phase from 0 to 3.* got \(4, <class 'str'>\)"),
        ({"tir.add_lower_pass": 1}, r"expected a list of \(phase"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(TVMError, match=message):
        parse_config(config)


def test_instruments_see_each_pass() -> None:
    class Names:
        def __init__(self) -> None:
            self.before: list[str] = []
            self.after: list[str] = []

        def run_before_pass(self, func: PrimFunc, info: PassInfo) -> None:
            self.before.append(info.name)

        def run_after_pass(self, func: PrimFunc, info: PassInfo) -> None:
            self.after.append(info.name)

    names = Names()
    with PassContext(opt_level=3, instruments=[names]) as context:
        tvm.lower(func(VECTOR))
    assert names.before == names.after == list(context.timings)


def test_the_program_before_the_first_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with PassContext(print_after=["schedule_ops"]):
        tvm.lower(func(loop(i, 1, COPY)))
    assert capsys.readouterr().err.startswith("# after schedule_ops\ndef f(")
    assert "for i in range(1)" not in str(tvm.lower(func(loop(i, 1, COPY)))["f"])


def test_timings_as_a_table() -> None:
    with PassContext() as context:
        tvm.lower(func(VECTOR))
    lines = context.render().splitlines()
    assert [line.split()[0] for line in lines] == ["pass", *context.timings, "all"]
    assert lines[-1].endswith("100 %")


@settings(deadline=None, max_examples=5)
@given(loop_nests(parallel=False))
def test_compiled_programs_do_what_they_did_before_all_passes(nest: Nest) -> None:
    check_compiled(nest)


@pytest.mark.wide
@settings(deadline=None, max_examples=500)
@given(loop_nests(parallel=False))
def test_many_compiled_programs_do_what_they_did(nest: Nest) -> None:
    check_compiled(nest)


def check_compiled(nest: Nest) -> None:
    found = nest.arguments()
    with PassContext(config={"tir.disable_vectorize": True}):  # not all of these loops may be
        tvm.build(nest.func)(*found)
    for made, expected in zip(found, nest.run(nest.func), strict=True):
        np.testing.assert_array_equal(made, expected)
