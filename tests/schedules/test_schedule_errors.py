# ruff: noqa: E501  # tables: a refusal and its words on one line
"""What is refused, in which words; and that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir


@dataclass
class Program:
    """A, B = 2 A, E = extern(B), k sums of B: R; C reads B and R; `other` belongs elsewhere."""

    s: Any
    A: Any
    B: Any
    R: Any
    E: Any
    C: Any
    D: Any
    other: Any

    @property
    def i(self) -> Any:
        return self.C.op.axis[0]

    @property
    def j(self) -> Any:
        return self.C.op.axis[1]

    @property
    def k(self) -> Any:
        return self.R.op.reduce_axis[0]


def program() -> Program:
    a = te.placeholder((8, 6), name="A")
    b = te.compute((8, 6), lambda i, j: a[i, j] * 2.0, name="B")
    k = te.reduce_axis((0, 6), "k")
    r = te.compute((8,), lambda x: te.sum(b[x, k], axis=k), name="R")
    ext = te.extern((8,), [r], lambda ins, outs: outs[0].vstore(0, 1.0), name="E", dtype="float32")
    c = te.compute((8, 6), lambda i, j: b[i, j] + r[i], name="C")
    d = te.compute((8, 6), lambda p, q: c[p, q] + ext[p], name="D")
    other = te.compute((8,), lambda z: te.const(1.0), name="other")
    return Program(te.create_schedule(d.op), a, b, r, ext, c, d, other)


def state(s: te.Schedule) -> object:
    """All that was decided."""
    stages = [
        (
            each.op, each.is_output, each.inlined, each.scope, each.is_double_buffered,
            dict(each.storage_alignments), each.store_predicate, list(each.all_iter_vars),
            list(each.leaf_iter_vars), list(each.relations), each.attach_stage, each.attach_ivar,
            each.group,
            {
                axis: (a.kind, a.thread, a.intrin, list(a.pragmas), list(a.prefetches))
                for axis, a in each.iter_var_attrs.items()
            },
        )
        for each in s.stages
    ]  # fmt: skip
    return stages, s.outputs, dict(s.stage_map), list(s.groups), s.trace()


LOOPS = r"expected one of the loops of C \(i, j\), got "

REFUSED: dict[str, tuple[Callable[[Program], object], str]] = {
    # split
    "split_0": (lambda p: p.s[p.C].split(p.i, 0), "C: split of i: factor: expected 1 or more, got 0"),
    "split_less": (lambda p: p.s[p.C].split(p.i, nparts=-1), "C: split of i: nparts: expected 1 or more, got -1"),
    "split_half": (lambda p: p.s[p.C].split(p.i, 2.5), "C: split of i: factor: expected an integer expression, got 2.5"),
    "split_text": (lambda p: p.s[p.C].split(p.i, "4"), "C: split of i: factor: expected an integer expression"),
    "split_type": (lambda p: p.s[p.C].split(p.i, int), "C: split of i: factor: expected an expression or a number"),
    "split_huge": (lambda p: p.s[p.C].split(p.i, 2**31), r"C: split of i: factor: expected 2147483647 at most, which i can count"),
    "split_neither": (lambda p: p.s[p.C].split(p.i), "C: split of i: expected either factor or nparts, got neither"),
    "split_both": (lambda p: p.s[p.C].split(p.i, 2, 2), "C: split of i: expected either factor or nparts, got both"),
    "split_loop": (lambda p: p.s[p.C].split(p.i, p.j), "C: split of i: factor: expected no loop variable in it, got j"),
    "split_none": (lambda p: p.s[p.C].split(None, 2), f"C: split: {LOOPS}None"),
    "split_foreign_axis": (lambda p: p.s[p.C].split(p.B.op.axis[0], 2), f"C: split: {LOOPS}axis i, which is one of B"),
    "split_foreign_tensor": (lambda p: p.s[p.other], "schedule: expected a tensor among A, B, R, C, E, D, got Tensor"),
    "schedule_namesake": (lambda p: p.s[program().C], r"schedule: expected a tensor among .*: another tensor is named C here$"),
    "schedule_item": (lambda p: p.s[[p.A]], "schedule: expected a tensor among A, B, R, C, E, D, got "),
    "split_extern": (lambda p: p.s[p.E].split(p.i, 2), r"E: split: expected one of the loops of E \(it has none\)"),
    # fuse, reorder, tile
    "fuse_apart": (lambda p: p.s[p.C].fuse(p.j, p.i), "C: fuse: expected loops each directly inside of the one before, got j, i where the loops are i, j"),
    "fuse_twice": (lambda p: p.s[p.C].fuse(p.i, p.i), "C: fuse: expected loops each directly inside of the one before, got i, i"),
    "fuse_mixed": (lambda p: p.s[p.R].fuse(p.R.op.axis[0], p.k), "R: fuse: expected either data axes or reduce axes, got both: x, k"),
    "reorder_twice": (lambda p: p.s[p.C].reorder(p.i, p.j, p.i), "C: reorder: expected each loop once, got i again"),
    "reorder_list": (lambda p: p.s[p.C].reorder([p.i, p.j]), r"C: reorder: " + LOOPS + r"\["),
    "tile_twice": (lambda p: p.s[p.C].tile(p.i, p.i, 2, 2), "C: tile: expected two loops, got i twice"),
    "tile_none": (lambda p: p.s[p.C].tile(p.i, p.j, 2, None), "C: tile: expected a factor for j, got None"),
    "tile_0": (lambda p: p.s[p.C].tile(p.i, p.j, 2, 0), "C: split of j: factor: expected 1 or more, got 0"),
    # compute_at, compute_inline, compute_root
    "at_itself": (lambda p: p.s[p.C].compute_at(p.s[p.C], p.i), "C: compute_at: expected a stage that reads C, directly or through others, got C, which does not: C is read by D"),
    "at_cycle": (lambda p: (p.s[p.B].compute_at(p.s[p.C], p.i), p.s[p.C].compute_at(p.s[p.B], p.B.op.axis[0]))[1], "C: compute_at: expected a stage that reads C"),
    "at_no_stage": (lambda p: p.s[p.B].compute_at(p.C, p.i), r"B: compute_at: expected a stage such as s\[C\], got Tensor"),
    "at_other_schedule": (lambda p: p.s[p.B].compute_at(te.create_schedule(p.D.op)[p.C], p.i), "B: compute_at: expected a stage of this schedule, got another's"),
    "at_no_loop": (lambda p: p.s[p.B].compute_at(p.s[p.C], "i"), f"B: compute_at: {LOOPS}'i'"),
    "at_placeholder": (lambda p: p.s[p.A].compute_at(p.s[p.C], p.i), "A: compute_at: expected a computed tensor, got a placeholder"),
    "at_output": (lambda p: p.s[p.D].compute_at(p.s[p.C], p.i), "D: compute_at: expected a stage that others read, got an output"),
    "inline_output": (lambda p: p.s[p.D].compute_inline(), "D: compute_inline: expected a stage that others read, got an output"),
    "inline_reduction": (lambda p: p.s[p.R].compute_inline(), "R: compute_inline: expected no reduction, got one over k: use compute_at"),
    "inline_extern": (lambda p: p.s[p.E].compute_inline(), "E: compute_inline: expected the elements of te.compute, got ExternOp"),
    # compute_ahead
    "ahead_output": (lambda p: p.s[p.D].compute_ahead(), "D: compute_ahead: expected a stage that others read, got an output"),
    "ahead_placeholder": (lambda p: p.s[p.A].compute_ahead(), "A: compute_ahead: expected a computed tensor, got a placeholder"),
    "ahead_extern": (lambda p: p.s[p.E].compute_ahead(), r"E: compute_ahead: expected to be computed from one placeholder, but it is from PlaceholderOp\(A\) and ExternOp\(E\)"),
    "ahead_shared": (lambda p: p.s[p.R].compute_ahead(), "R: compute_ahead: expected B to be there for R alone, but it is read by C"),
    # kinds of loops
    "vectorize_foreign": (lambda p: p.s[p.C].vectorize(p.k), f"C: vectorize: {LOOPS}axis k, which is one of R"),
    "unroll_none": (lambda p: p.s[p.C].unroll(None), f"C: unroll: {LOOPS}None"),
    "parallel_reduction": (lambda p: p.s[p.R].parallel(p.k), "R: parallel: expected a loop over data, got the reduction over k"),
    "bind_number": (lambda p: p.s[p.C].bind(p.i, 3), "C: bind: expected an axis of te.thread_axis, got 3"),
    "bind_data_axis": (lambda p: p.s[p.C].bind(p.i, p.j), "C: bind: expected an axis of te.thread_axis, got iter_var"),
    "pragma_name": (lambda p: p.s[p.C].pragma(p.i, "unrol"), "C: pragma: expected one of auto_unroll_max_step, .*, got 'unrol'"),
    "pragma_value": (lambda p: p.s[p.C].pragma(p.i, "unroll_explicit", [1]), "C: pragma unroll_explicit: expected an expression or a number"),
    "prefetch_unread": (lambda p: p.s[p.C].prefetch(p.A, p.i, 1), "C: prefetch: expected a tensor that C reads or computes, got Tensor"),
    "prefetch_offset": (lambda p: p.s[p.C].prefetch(p.B, p.i, None), "C: prefetch: offset: expected an expression or a number"),
    "tensorize_text": (lambda p: p.s[p.C].tensorize(p.i, "vadd"), "C: tensorize: expected an intrinsic made by te.decl_tensor_intrin, got 'vadd'"),
    # memory
    "scope_number": (lambda p: p.s[p.B].set_scope(3), 'B: set_scope: expected a scope, "global", "local" .registers., "shared" or "warp"'),
    "scope_unknown": (lambda p: p.s[p.B].set_scope("locals"), 'B: set_scope: expected a scope, .*perhaps with a tag, as in "local.acc", got str \'locals\''),
    "scope_output": (lambda p: p.s[p.D].set_scope("local"), "D: set_scope: expected a stage inside of the program, got an output"),
    "scope_placeholder": (lambda p: p.s[p.A].set_scope("local"), "A: set_scope: expected a stage inside of the program, got a placeholder"),
    "predicate_none": (lambda p: p.s[p.C].set_store_predicate(None), "C: set_store_predicate: expected an expression or a number"),
    "predicate_axis": (lambda p: p.s[p.C].set_store_predicate(p.k < 3), r"C: set_store_predicate: expected a condition on the axes of C \(i, j\), or on thread axes that they are bound to, found k"),
    "align_axis": (lambda p: p.s[p.R].storage_align(p.k, 4, 0), r"R: storage_align: expected one of its data axes \(x\), got iter_var"),
    "align_0": (lambda p: p.s[p.B].storage_align(p.B.op.axis[0], 0, 0), "B: storage_align: expected whole numbers, got 0, 0"),
    "align_half": (lambda p: p.s[p.B].storage_align(p.B.op.axis[0], 8, 0.5), "B: storage_align: expected whole numbers, got 8, 0.5"),
    "double_output": (lambda p: p.s[p.D].double_buffer(), "D: double_buffer: expected a stage that others read, got an output"),
    # transform_layout
    "layout_arity": (lambda p: p.s[p.C].transform_layout(lambda i: i), "C: transform_layout: expected a function of 2 indices"),
    "layout_none": (lambda p: p.s[p.C].transform_layout(None), "C: transform_layout: expected a function of 2 indices"),
    "layout_type": (lambda p: p.s[p.C].transform_layout(int), "C: transform_layout: expected a function of 2 indices"),
    "layout_returns": (lambda p: p.s[p.C].transform_layout(lambda i, j: [i, "j"]), "C: transform_layout: expected the function to return indices"),
    "layout_lost": (lambda p: p.s[p.C].transform_layout(lambda i, j: [i, j // 2]), "C: transform_layout: expected a map that can be inverted, .* found no way back for j"),
    "layout_offset": (lambda p: p.s[p.C].transform_layout(lambda i, j: [i + 1, j]), "C: transform_layout: expected a map that can be inverted"),
    "layout_overlap": (lambda p: p.s[p.C].transform_layout(lambda i, j: [i * 2 + j]), "C: transform_layout: expected a map that can be inverted"),
    "layout_product": (lambda p: p.s[p.C].transform_layout(lambda i, j: [i * j, j]), "C: transform_layout: expected a map that can be inverted"),
    "layout_extern": (lambda p: p.s[p.E].transform_layout(lambda i: [i]), "E: transform_layout: expected a tensor of te.compute or te.placeholder, got one of ExternOp"),
    "layout_whole": (lambda p: p.s[p.R].transform_layout(lambda i: [i // 2, i % 2]), "R: transform_layout: expected to be read element by element, but E reads R as a whole"),
    # caches
    "cache_read_no_tensor": (lambda p: p.s.cache_read("A", "local", [p.B]), "cache_read: expected a tensor, got 'A'"),
    "cache_read_scope": (lambda p: p.s.cache_read(p.A, None, [p.B]), "cache_read: expected a scope, .*, got None"),
    "cache_read_empty_scope": (lambda p: p.s.cache_read(p.A, "", [p.B]), 'cache_read: expected a scope, .*, got str \'\''),
    "cache_read_unknown_scope": (lambda p: p.s.cache_read(p.A, "shared2", [p.B]), "cache_read: expected a scope, .*, got str 'shared2'"),
    "cache_write_unknown_scope": (lambda p: p.s.cache_write(p.B, "Local"), "cache_write: expected a scope, .*, got str 'Local'"),
    "cache_read_nobody": (lambda p: p.s.cache_read(p.A, "local", []), "cache_read of A: expected readers, got none"),
    "cache_read_other": (lambda p: p.s.cache_read(p.A, "local", [p.B, p.C]), r"cache_read of A: expected stages that read it \(B\), got C"),
    "cache_access_other": (lambda p: p.s.cache_access(p.A, "local", p.C), "cache_access of A: expected a stage that reads its elements, got C"),
    "cache_write_none": (lambda p: p.s.cache_write([], "local"), "cache_write: expected a tensor, got none"),
    "cache_write_input": (lambda p: p.s.cache_write(p.A, "local"), "cache_write of A: expected a tensor of te.compute, got one of PlaceholderOp"),
    "cache_write_two": (lambda p: p.s.cache_write([p.B, p.C], "local"), r"cache_write of B: expected all outputs of one operation \(B\), got B, C"),
    "cache_write_scope": (lambda p: p.s.cache_write(p.B, 1), 'cache_write: expected a scope, .*, got int 1'),
    # rfactor
    "rfactor_plain": (lambda p: p.s.rfactor(p.C, p.i), "rfactor of C: expected a reduction, got C, which has none"),
    "rfactor_data": (lambda p: p.s.rfactor(p.R, p.R.op.axis[0]), r"rfactor of R: expected a loop over a reduce axis \(k\), got x"),
    "rfactor_none": (lambda p: p.s.rfactor(p.R, None), r"rfactor of R: expected one of the loops of R \(x, k\), got None"),
    "rfactor_axis": (lambda p: p.s.rfactor(p.R, p.k, 2), r"rfactor of R: expected factor_axis in \[-2, 1\], got 2"),
    "rfactor_axis_half": (lambda p: p.s.rfactor(p.R, p.k, 0.5), r"rfactor of R: expected factor_axis in \[-2, 1\], got 0\.5"),
    # find_block, mirror
    "find_block_sum": (lambda p: p.s.find_block(p.R, 2), "find_block of R: expected a reduction of tuples that chooses the place of a step by the other components, as an argmax does"),
    "mirror_one": (lambda p: p.s.mirror(p.R, [p.R.op.axis[0]], 2), "mirror of R: expected two of its data axes that can be exchanged without another result, got x"),
    # repeat_rows
    "repeat_rows_unread": (lambda p: p.s.repeat_rows(p.A, p.D, 2), "repeat_rows of A: expected a stage that reads its elements, got D"),
    "repeat_rows_extern": (lambda p: p.s.repeat_rows(p.D, p.E, 2), "repeat_rows of D: expected a stage that reads its elements, got E"),
    "repeat_rows_one_axis": (lambda p: p.s.repeat_rows(p.B, p.R, 2), "repeat_rows of B: expected a tensor with rows, and a reader with two axes or more, got 2 dimensions and 1 axes of R"),
    "repeat_rows_never": (lambda p: p.s.repeat_rows(p.B, p.C, 0), "repeat_rows of B: expected 1 copy or more of each row, got 0"),
    "repeat_rows_half": (lambda p: p.s.repeat_rows(p.B, p.C, 1.5), "repeat_rows of B: expected 1 copy or more of each row, got 1.5"),
    # factor_out
    "factor_out_plain": (lambda p: p.s.factor_out(p.C, [p.i]), "factor_out of C: expected a reduction, got C, which has none"),
    "factor_out_data": (lambda p: p.s.factor_out(p.R, [p.R.op.axis[0]]), r"factor_out of R: expected some of its reduce axes \(k\), got \['x'\]"),
    "factor_out_none": (lambda p: p.s.factor_out(p.R, []), r"factor_out of R: expected some of its reduce axes \(k\), got \[\]"),
    "factor_out_nothing": (lambda p: p.s.factor_out(p.R, [p.k]), "factor_out of R: expected terms with a factor that they don't change, and one that they do, found none for k"),
    # join
    "join_one": (lambda p: p.s.join([p.R]), "join of R: expected two or more reductions with one result each"),
    "join_same": (lambda p: p.s.join([p.R, p.R]), "join of R, R: expected "),
    "join_elementwise": (lambda p: p.s.join([p.R, p.B]), "join of B: expected a reduction, got B, which has none"),
    # hoist
    "hoist_input": (lambda p: p.s.hoist(p.A, [p.i]), "hoist of A: expected a tensor of te.compute, got one of PlaceholderOp"),
    "hoist_nothing": (lambda p: p.s.hoist(p.C, [p.i]), "hoist of C: expected a computed value that changes along i and no other axis, .* found none in"),
    "hoist_no_axes": (lambda p: p.s.hoist(p.C, []), "hoist of C: expected one or more axes along which the part changes, got none"),
    "hoist_no_axis": (lambda p: p.s.hoist(p.C, "i"), "hoist of C: expected"),
    # unstack
    "unstack_input": (lambda p: p.s.unstack(p.A, p.i), "unstack of A: expected a tensor of te.compute, got one of PlaceholderOp"),
    "unstack_reduced": (lambda p: p.s.unstack(p.R, p.k), r"unstack of R: expected one of its data axes \(x\), got "),
    # compute_with
    "with_text": (lambda p: p.s[p.C].compute_with("D", p.i), "C: compute_with: expected another stage of this schedule, got 'D'"),
    "with_itself": (lambda p: p.s[p.C].compute_with(p.s[p.C], p.i), r"C: compute_with: expected another stage of this schedule, got stage\(C\)"),
    "with_read": (lambda p: p.s[p.D].compute_with(p.s[p.C], p.i), "D: compute_with: expected stages that don't depend on each other, but D reads C"),
    "with_input": (lambda p: p.s[p.A].compute_with(p.s[p.C], p.i), "A: compute_with: expected a computed tensor, got a placeholder"),
    # groups
    "group_empty": (lambda p: p.s.create_group(p.B, p.B), "create_group: expected stages between inputs and outputs, got none"),
    "group_inputs": (lambda p: p.s.create_group(p.B, p.A, "yes"), "create_group: include_inputs: expected True or False, got str 'yes'"),
    "group_foreign": (lambda p: p.s.create_group(p.other, p.A), "schedule: expected a tensor among"),
    # schedules
    "schedule_none": (lambda p: te.create_schedule([]), "create_schedule: expected at least one operation, got none"),
    "schedule_text": (lambda p: te.create_schedule(cast(Any, "C")), "create_schedule: expected operations, got 'C'"),
    "replay_none": (lambda p: te.replay(None, p.D), r"replay: expected the text of s.trace\(\), got None"),  # type: ignore[arg-type]  # that is the test
    "replay_nothing": (lambda p: te.replay("t = 1", p.D), r"replay: expected a text that makes a schedule s"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_changes_nothing(case: str) -> None:
    call, message = REFUSED[case]
    p = program()
    if case == "at_cycle":
        p.s[p.B].compute_at(p.s[p.C], p.i)
    before = state(p.s)
    with pytest.raises(tvm.CompileError, match=f"^{message}"):
        call(p)
    if case != "at_cycle":  # its first half is no mistake
        assert state(p.s) == before


def test_axes_that_became_others() -> None:
    p = program()
    stage = p.s[p.C]
    outer, inner = stage.split(p.i, 2)
    with pytest.raises(
        tvm.CompileError, match=r"got axis i, which was split into i\.outer, i\.inner$"
    ):
        stage.unroll(p.i)
    fused = stage.fuse(outer, inner)
    with pytest.raises(tvm.CompileError, match=r"which was fused into i\.outer\.i\.inner\.fused$"):
        stage.split(inner, 2)
    stage.vectorize(fused)
    calls: list[Callable[[], object]] = [
        lambda: stage.split(fused, 2),
        lambda: stage.fuse(fused, p.j),
    ]
    for again in calls:
        with pytest.raises(tvm.CompileError, match=r"\.fused is vectorized already: \w+ first$"):
            again()


def test_a_combination_that_is_no_operator_has_no_lanes() -> None:
    """What LLVM adds up across lanes are the terms, and not their absolute values."""
    a, k = te.placeholder((8,), name="A"), te.reduce_axis((0, 8), "k")
    far = te.comm_reducer(lambda x, y: te.abs(x) + te.abs(y), lambda t: te.const(0, t), name="far")
    b = te.compute((1,), lambda i: far(a[k], axis=k), name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(
        tvm.CompileError, match=r"^B: vectorize: expected a loop over data, or a sum"
    ):
        s[b].vectorize(k)


def test_a_tuple_reduction_has_no_lanes() -> None:
    a = te.placeholder((8,), "int32", name="A")
    k = te.reduce_axis((0, 8), "k")
    both = te.comm_reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), lambda s, t: (0, 0))
    b, _ = te.compute((1,), lambda i: both((a[k], a[k] * 2), axis=k), name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(
        tvm.CompileError, match=r"^B: vectorize: expected a loop over data, or a sum"
    ):
        s[b].vectorize(k)
    with pytest.raises(tvm.CompileError, match=r"^cache_write of B: expected all outputs"):
        s.cache_write(b, "local")


def test_a_stage_is_in_one_group() -> None:
    p = program()
    group = p.s.create_group(p.C, p.A)
    with pytest.raises(
        tvm.CompileError,
        match=r"^create_group: expected stages without a group, got \w of group\(B, R, C\)$",
    ):
        p.s.create_group(p.R, p.A)
    with pytest.raises(tvm.CompileError, match=r"^group_B_R_C: compute_at: expected a stage that"):
        group.compute_at(p.s[p.C], p.i)


def test_a_predicate_and_new_axes() -> None:
    p = program()
    p.s[p.B].set_store_predicate(p.B.op.axis[0] < 3)
    calls: list[Callable[[], object]] = [
        lambda: p.s.cache_write(p.B, "local"),
        lambda: p.s[p.B].transform_layout(lambda i, j: [j, i]),
    ]
    for call in calls:
        with pytest.raises(tvm.CompileError, match=r"B.*: expected no store predicate, whose axes"):
            call()


def test_layouts_of_scheduled_stages_and_without_inverse() -> None:
    p = program()
    p.s[p.C].split(p.i, 2)
    with pytest.raises(
        tvm.CompileError, match=r"^C: transform_layout: expected a stage whose loops "
    ):
        p.s[p.C].transform_layout(lambda i, j: [j, i])
    b = te.compute((te.var("n"),), lambda i: i, name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(tvm.CompileError, match=r"^B: transform_layout: expected a map that can be"):
        s[b].transform_layout(lambda i: [i % 4 * 8 + i // 4])  # the rest has no end


# -- Found when lowered ---------------------------------------------------------------------------

LOWERED: dict[str, tuple[Callable[[Program], object], str]] = {
    "reader_outside": (lambda p: p.s[p.B].compute_at(p.s[p.C], p.i), "B: computed at loop i of C, but it is read by R, too, which is outside of that loop: compute it at the root, or compute R inside"),
    "reader_extern": (lambda p: p.s[p.R].compute_at(p.s[p.C], p.i), "R: computed at loop i of C, but it is read by E, too, which is outside"),
    "place_inlined": (lambda p: (p.s[p.B].compute_at(p.s[p.C], p.i), p.s[p.C].compute_inline()), "B: computed at loop i of C, which is inlined and has no loops: compute B elsewhere, or C at the root"),
    "inlined_place": (lambda p: (p.s[p.C].compute_inline(), p.s[p.B].compute_at(p.s[p.C], p.i)), "B: computed at loop i of C, which is inlined"),
    "place_cached": (lambda p: (p.s[p.B].compute_at(p.s[p.C], p.s[p.C].fuse()), p.s.cache_write(p.C, "local")), r"B: computed at loop singleton of C, whose loops began anew since \(i, j\)"),
    "place_factored": (lambda p: (p.s[p.B].compute_at(p.s[p.R], p.k), p.s.rfactor(p.R, p.k)), r"B: computed at loop k of R, whose loops began anew since \(x, k.v\)"),
    "place_in_a_layout": (lambda p: (p.s[p.B].compute_at(p.s[p.C], p.i), p.s[p.C].transform_layout(lambda i, j: [j, i])), "B: computed at loop i of C, whose loops began anew since"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOWERED)
def test_found_when_lowered(case: str) -> None:
    call, message = LOWERED[case]
    p = program()
    call(p)
    before = state(p.s)
    with pytest.raises(tvm.CompileError, match=f"^{message}"):
        tvm.lower(p.s, [p.A, p.D])
    assert state(p.s) == before


def test_a_range_inside_of_what_it_depends_on() -> None:
    a = te.placeholder((7, 7), name="A")
    b = te.compute(
        (7,), lambda i: te.sum(a[i, k := te.reduce_axis((0, i + 1), "k")], axis=k), name="B"
    )
    s = te.create_schedule(b.op)
    (i,), (k,) = b.op.axis, b.op.reduce_axis
    with pytest.raises(tvm.CompileError, match=r"^rfactor of B: expected a loop of one length for"):
        s.rfactor(b, k)
    s[b].reorder(k, i)
    with pytest.raises(
        tvm.CompileError, match=r"^B: loop k: expected its range to depend on loops"
    ):
        tvm.lower(s, [a, b])


def test_what_a_reduction_begins_from_is_computed_before() -> None:
    a = te.placeholder((6, 5), name="A")
    d = te.compute((6,), lambda i: a[i, 0] * 3.0, name="D")
    k = te.reduce_axis((0, 5), "k")
    b = te.compute((6,), lambda i: te.sum(a[i, k], axis=k, init=d[i]), name="B")
    s = te.create_schedule(b.op)
    s[d].compute_at(s[b], k)
    with pytest.raises(
        tvm.CompileError, match=r"^D: computed at loop k of B, which is inside of the"
    ):
        tvm.lower(s, [a, b])


def test_a_stage_that_no_iteration_reads_is_computed_whole() -> None:
    a = te.placeholder((6, 5), "int32", name="A")
    d = te.compute((6, 5), lambda i, j: a[i, j] * 3, name="D")
    k = te.reduce_axis((0, 5), "k")
    b = te.compute((6,), lambda i: te.sum(d[i, k], axis=k, where=tir.const(False)), name="B")
    s = te.create_schedule(b.op)
    s[d].compute_at(s[b], b.op.axis[0])
    found = np.ones(6, "int32")
    tvm.build(s, [a, b])(np.ones((6, 5), "int32"), found)
    assert (found == 0).all()


# -- Scans ----------------------------------------------------------------------------------------


def scanned() -> tuple[Any, Any, Any, Any, Any]:
    x = te.placeholder((6, 4), name="X")
    state = te.placeholder((6, 4), name="state")
    first = te.compute((1, 4), lambda _, i: x[0, i], name="first")
    step = te.compute((6, 4), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    return x, state, first, step, te.scan(first, step, state, name="R")


SCANS: dict[str, tuple[Callable[..., object], str]] = {
    "split": (lambda s, step, r: s[r].split(r.op.scan_axis, 2), r"R: split: expected a loop whose iterations may be regrouped, got the scan over R\.idx"),
    "fuse": (lambda s, step, r: s[r].fuse(r.op.scan_axis), "R: fuse: expected a loop whose iterations may be regrouped"),
    "fuse_nothing": (lambda s, step, r: s[r].fuse(), "R: fuse: expected a loop whose iterations may be regrouped, got a scan"),
    "vectorize": (lambda s, step, r: s[r].vectorize(r.op.scan_axis), "R: vectorize: expected a loop whose iterations are independent, got the scan over"),
    "parallel": (lambda s, step, r: s[r].parallel(r.op.scan_axis), "R: parallel: expected a loop whose iterations are independent"),
    "inline": (lambda s, step, r: s[step].compute_inline(), "step: compute_inline: expected a stage that can be moved, got the update of a scan"),
    "at": (lambda s, step, r: s[step].compute_at(s[r], r.op.scan_axis), "step: compute_at: expected a stage that can be moved"),
    "cache_write": (lambda s, step, r: s.cache_write(r, "local"), "cache_write of R: expected a tensor of te.compute, got one of ScanOp"),
    "layout": (lambda s, step, r: s[r].transform_layout(lambda t, i: [i, t]), "R: transform_layout: expected a tensor of te.compute or te.placeholder, got one of ScanOp"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCANS)
def test_scans_refuse(case: str) -> None:
    call, message = SCANS[case]
    *_, step, r = scanned()
    s = te.create_schedule(r.op)
    before = state(s)
    with pytest.raises(tvm.CompileError, match=f"^{message}"):
        call(s, step, r)
    assert state(s) == before


def test_the_first_parts_are_computed_before_the_scan() -> None:
    x, _, first, _, r = scanned()
    s = te.create_schedule(r.op)
    s[first].compute_at(s[r], r.op.scan_axis)
    with pytest.raises(
        tvm.CompileError, match=r"^first: computed at loop R\.idx of R, which begins"
    ):
        tvm.lower(s, [x, r])


def test_parts_of_a_scan_are_no_arguments_and_read_by_it_only() -> None:
    x, state, first, step, r = scanned()
    with pytest.raises(
        tvm.CompileError, match=r"^R: expected \w+, which is part of a scan, to be no"
    ):
        tvm.lower(te.create_schedule(r.op), [x, state, r])
    both = te.compute((6, 4), lambda t, i: r[t, i] + step[t, i], name="both")
    with pytest.raises(
        tvm.CompileError,
        match=r"^R: expected its update step to be read by the scan and its other updates",
    ):
        tvm.lower(te.create_schedule(both.op), [x, both])
    peek = te.compute((6, 4), lambda t, i: r[t, i] + state[t, i], name="peek")
    with pytest.raises(
        tvm.CompileError, match=r"^peek: expected the state of R to be read by its up"
    ):
        tvm.lower(te.create_schedule(peek.op), [x, peek])
    half = te.compute((6, 4), lambda t, i: state[t - 1, i] / 2, name="half")
    next_step = te.compute((6, 4), lambda t, i: half[t, i] + x[t, i], name="next_step")
    halved = te.scan(first, next_step, state, name="halved")
    between = "half: expected a tensor between the state of halved and its update to be read by the"
    with pytest.raises(tvm.CompileError, match=f"^{between} update only, found it an output, too"):
        tvm.lower(te.create_schedule([halved.op, half.op]), [x, halved, half])
    also = te.compute((6, 4), lambda t, i: halved[t, i] + half[t, i], name="also")
    with pytest.raises(tvm.CompileError, match=f"^{between} update only, found it read by also"):
        tvm.lower(te.create_schedule(also.op), [x, also])
    now = te.compute((6, 4), lambda t, i: state[t, i] + x[t, i], name="now")
    late = te.scan(first, now, state, name="late")
    with pytest.raises(
        tvm.CompileError, match=r"^now: expected to read state at a time step before"
    ):
        tvm.lower(te.create_schedule(late.op), [x, late])


def test_the_steps_that_a_scan_reads_are_known() -> None:
    """Those of a stage between state and update, which are all that it computes."""
    x, state, first, *_ = scanned()
    lengths = te.placeholder((4,), "int32", name="lengths")
    half = te.compute((6, 4), lambda t, i: state[t - 1, i] / 2, name="half")

    def row(t: Any, i: Any) -> Any:
        k = te.reduce_axis((0, lengths[i]), "k")
        return te.sum(half[t - k, i], axis=k)

    step = te.compute((6, 4), row, name="step")
    r = te.scan(first, step, state, name="R")
    with pytest.raises(
        tvm.CompileError, match=r"^step: expected to read half at a time step that is known"
    ):
        tvm.lower(te.create_schedule(r.op), [x, lengths, r])


MADE: dict[str, tuple[Callable[..., object], str]] = {
    "tensors": (lambda f, u, s: te.scan(3, u, s), "scan: init: expected tensors, got 3"),
    "numbers": (lambda f, u, s: te.scan([f], [u, u], [s]), "scan: expected as many init as update as state_placeholder, at least one, got 1, 2, 1"),
    "state": (lambda f, u, s: te.scan(f, u, u), "scan: state_placeholder: expected a te.placeholder that stands for the result, got step"),
    "update": (lambda f, u, s: te.scan(f, s, s), "scan: update: expected a tensor of te.compute, whose first axis is time, got state of PlaceholderOp"),
    "dtype": (lambda f, u, s: te.scan(te.compute((1, 4), lambda i, j: i, name="f"), u, s), "scan: expected one dtype, got init of int32, update of float32"),
    "update_dtype": (lambda f, u, s: te.scan(f, te.compute(u.shape, lambda i, j: i, name="u"), s), "scan: expected one dtype, got init of float32, update of int32, state_placeholder of float32"),
    "state_dtype": (lambda f, u, s: te.scan(f, u, te.placeholder(s.shape, "int32", name="s")), "scan: expected one dtype, got init of float32, update of float32, state_placeholder of int32"),
    "inputs": (lambda f, u, s: te.scan(f, u, s, inputs=cast(Any, [1])), "scan: inputs: expected tensors, got 1"),
    "shape": (lambda f, u, s: te.scan(f, te.compute((5, 4), lambda i, j: 1.0, name="u"), s), r"scan: expected update of the shape of its state \(6, 4\), got \(5, 4\)"),
    "init": (lambda f, u, s: te.scan(te.compute((1, 5), lambda i, j: 1.0, name="f"), u, s), r"scan: expected init of the shape of its state \(6, 4\), but for the first dimension, time, got \(1, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_scans_that_cannot_be(case: str) -> None:
    call, message = MADE[case]
    _, state, first, step, _ = scanned()
    with pytest.raises(tvm.CompileError, match=f"^{message}"):
        call(first, step, state)


def test_other_numbers_of_arguments_are_refused_by_the_name_of_the_primitive() -> None:
    p: Any = program()
    with pytest.raises(TypeError, match=r"^unroll\(\) takes 2 positional arguments but 3 were"):
        p.s[p.C].unroll(p.i, p.j)
    with pytest.raises(TypeError, match=r"^compute_at\(\) missing 1 required .*: 'scope'"):
        p.s[p.B].compute_at(p.i)
