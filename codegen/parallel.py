"""Parallel loops: a region of the program as a function of its own, which the pool's threads call.

A region is a parallel loop, or a loop with ``pragma_parallel_launch_point`` around parallel loops.
It becomes ::

    int parallel.1(void* closure, int64_t task, int64_t tasks, void* region, int64_t* failure)

which the runtime calls once for each task (:mod:`minitvm.runtime.threads`). Every task goes through
the whole region, and takes its share of each parallel loop in it. With one task the function is the
serial program: so runs a region that is too small for threads, or inside another. Regions that do
the same with other buffers are one function, which LLVM compiles once.

A parallel loop has several tasks for each thread, as many as its work is worth, so that a slow
thread does fewer of them. A launch point has one for each, since tasks may wait for each other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TypeGuard, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import loads
from minitvm.arith.guards import conjuncts, form_of, quotient, variables
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.work import KnownWork, estimated_work
from minitvm.codegen.captures import Captured, Inside, captured_by, function_of
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.gil import needs_the_gil
from minitvm.codegen.llvm_text import (
    AS_IT_IS,
    NULL,
    FunctionText,
    Value,
    element_type,
    i64,
    lanes_of,
    literal,
)
from minitvm.runtime.dtype import INT64
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import children, find, free_vars, mentions, walk_once, with_fields
from minitvm.tir.intrinsics import FUNCTIONS
from minitvm.tir.stmt import ForKind, Stmt

# int parallel_for(function, void* closure, int64_t limit, int64_t worth, int64_t each,
#                  int64_t* failure)
PARALLEL_FOR = "minitvm_parallel_for"
# int barrier(void* region, int64_t tasks)
BARRIER = "minitvm_barrier"

# A C function may do any work: one that is counted as so many.
_MOST_C_FUNCTIONS = 64.0

LAUNCH_POINT = "pragma_parallel_launch_point"
BARRIER_WHEN_FINISH = "pragma_parallel_barrier_when_finish"
STRIDE_PATTERN = "pragma_parallel_stride_pattern"
_ENVIRONMENT = ("i64 task", "i64 tasks", "ptr region", "ptr noalias failure")


def tasks_worth(node: Stmt, target: Target, known: KnownWork | None = None) -> PrimExpr:
    """The number of tasks that the work of `node` is worth, in terms of variables outside of it.
    Threads share a loop from two tasks on. `known`: see :func:`estimated_work`."""
    work = estimated_work(node, known)
    if any(each.op == "call_extern" for each in find(e.Call, node)):
        work = work * _MOST_C_FUNCTIONS
    worth = e.cast(INT64, work * (1.0 / target.task_operations))
    return worth if free_vars(worth) else Analyzer().simplify(worth)


def stays_alone(worth: PrimExpr) -> bool:
    """Whether it is known that threads don't share work that is `worth` so many tasks."""
    known = e.const_int(worth)
    return known is not None and known < 2


@final
@record()
class Team:
    """The tasks of a region, as one of them sees them: ``i64``, ``i64`` and ``ptr``."""

    task: Value
    tasks: Value
    region: Value


def without_pragmas(node: Stmt) -> tuple[Stmt, frozenset[str]]:
    """The statement below its pragmas, and their keys."""
    pragmas: set[str] = set()
    while isinstance(node, s.AttrStmt) and node.attr_key.startswith("pragma_"):
        pragmas.add(node.attr_key)
        node = node.body
    return node, frozenset(pragmas)


def can_be_shared(node: Stmt) -> bool:
    """Whether all tasks may go through `node` side by side: outside its parallel loops it neither
    writes nor reads memory, so that all tasks see the same and nothing is done once a task."""
    if needs_the_gil(node) or not any(_is_parallel(each) for each in walk_once(node)):
        return False
    stack: list[Stmt | PrimExpr] = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, Stmt):
            if not isinstance(each, _CONTROL):
                return False
        elif isinstance(each, e.BufferLoad) or (
            isinstance(each, e.Call) and each.op not in FUNCTIONS
        ):
            return False
        parts = (each.min, each.extent) if _is_parallel(each) else children(each)
        stack.extend(parts)
    return True


_CONTROL = (s.For, s.LetStmt, s.IfThenElse, s.SeqStmt, s.AssertStmt, s.AttrStmt, s.Evaluate)


def _is_parallel(node: Stmt | PrimExpr) -> TypeGuard[s.For]:
    return isinstance(node, s.For) and node.kind == ForKind.PARALLEL


def share_of(
    team: Team, text: FunctionText, begin: Value, extent: Value, *, strided: bool
) -> tuple[Value, Value, Value]:
    """The share of a loop that a task executes: its begin, its end and its step. It is neighbouring
    iterations, at most one more than another task has; or, `strided`, iterations as far apart as
    there are tasks."""
    count = text.intrinsic("smax", "i64", extent, i64(0))
    flags = "" if literal(begin) is None else "nsw"
    if strided:
        first = text.binary("add", begin, team.task, flags)
        return first, text.binary("add", begin, count, flags), team.tasks
    least = text.binary("sdiv", count, team.tasks)
    rest = text.binary("srem", count, team.tasks)
    before = text.binary("mul", least, team.task, "nsw")
    before = text.binary("add", before, text.intrinsic("smin", "i64", team.task, rest), "nsw")
    more = text.convert("zext", text.icmp("slt", team.task, rest), "i64")
    first = text.binary("add", begin, before, flags)
    last = text.binary("add", first, text.binary("add", least, more, "nsw"), flags)
    return first, last, i64(1)


def divided(loop: s.For, first: PrimExpr, last: PrimExpr) -> list[tuple[s.For, PrimExpr, PrimExpr]]:
    """The loops that run the iterations of a loop from `first` to before `last`, each with its
    first iteration and its end.

    A parallel loop chooses in each iteration between a body for full vectors and one for the last
    elements (:mod:`minitvm.transform.partition_loops`). Two loops run without this choice.
    """
    choice = _choice_in(loop)
    if choice is None:
        return [(loop, first, last)]
    end, *bodies = choice
    end = e.maximum(e.minimum(end, e.cast(INT64, last)), e.cast(INT64, first))
    main, rest = (with_fields(loop, body=body) for body in bodies)
    return [(main, first, end), (rest, end, last)]


def _choice_in(loop: s.For) -> tuple[PrimExpr, Stmt, Stmt] | None:
    """The body of a loop, if it is a choice that changes once: the end of the iterations in which
    it is the first statement, that statement, and the other one."""
    body = loop.body
    condition: PrimExpr | None = None
    if isinstance(body, s.LetStmt) and isinstance(body.body, s.IfThenElse):
        if body.body.condition is body.var and not _mentions_name(body.body, body.var):
            condition, body = body.value, body.body
    elif isinstance(body, s.IfThenElse):
        condition = body.condition
    if condition is None or not isinstance(body, s.IfThenElse) or not loop.loop_var.dtype.is_int:
        return None
    prover, ends = Prover(), list[PrimExpr]()
    for each in conjuncts(condition):
        form = form_of(prover, each)
        factor = 0 if form is None else form.terms.get(loop.loop_var, 0)
        if form is None or factor >= 0 or loads(*form.terms):
            return None
        room = form - Affine({loop.loop_var: factor})
        if loop.loop_var in variables(room):
            return None
        ends.append(e.cast(INT64, quotient(prover, room - factor, -factor, INT64)))
    return functools.reduce(e.minimum, ends), body.then_case, body.else_case or s.seq()


def _mentions_name(choice: s.IfThenElse, name: e.Var) -> bool:
    cases = (choice.then_case, choice.else_case)
    return any(mentions(name, each) for each in cases if each is not None)


def launch(
    node: Stmt,
    outer: Emitter,
    limit: Value,
    worth: Value,
    each: int,
    failure: Value,
    emit_task: Callable[[Inside, Team], Value],
) -> Value:
    """Calls the tasks of a region, at most `limit` and `each` for a thread, and gives the status of
    the first that failed.

    Parameters
    ----------
    node
        The program of a task.
    outer
        The emitter around it, with the names in scope.
    worth
        The number of tasks that the work is worth.
    failure
        The memory for the values of a failed assertion.
    emit_task
        Writes `node` into the function of a task, and returns the function.
    """
    text, captured = outer.text, captured_by(node, outer)
    number = next(n for n in itertools.count(1) if text.module.claim(f"parallel.{n}"))
    inside = function_of(
        captured, outer, f"parallel.{number}.body", _ENVIRONMENT, has_barrier=_has_barrier(node)
    )
    task, tasks, region, _ = inside.text.params[len(captured) :]
    team = Team(inside.text.note_natural(task), inside.text.note_natural(tasks), region)
    made = emit_task(inside, team)
    function = _emit_entry(text, f"parallel.{number}", captured, made)

    status = _called(text, captured, function, made, (limit, worth, i64(each)), failure)
    text.forget()  # the tasks have written
    return status


def _called(
    text: FunctionText,
    captured: list[Captured],
    function: Value,
    body: Value,
    tasks: tuple[Value, Value, Value],
    failure: Value,
) -> Value:
    """The status of the `tasks`, their limit, their worth and the number for a thread: of a single
    one, that of its `body`, which is called as the runtime would call it."""
    limit, worth, _ = tasks
    alone, threads, done = text.blocks("alone", "threads", "done")
    most = text.intrinsic("smin", "i64", limit, worth)
    text.branch_if(text.icmp("slt", most, i64(2)), alone, threads)
    with text.inside(alone, done):
        values = [value for _, value in captured]
        status = text.call(body, "i32", [*values, i64(0), i64(1), NULL, failure])
    with text.inside(threads, done):
        *slots, total = _slots(captured)
        closure = text.alloca("i64", max(1, total), 64)
        for (_, value), slot in zip(captured, slots, strict=True):
            text.set_word(closure, slot, value)
        shared = text.call_external(PARALLEL_FOR, "i32", [function, closure, *tasks, failure])
    text.place(done)
    return text.phi("i32", (status, alone), (shared, threads))


def _emit_entry(outer: FunctionText, name: str, captured: list[Captured], body: Value) -> Value:
    """The function that the runtime calls; it reads the captured values from the closure."""
    text = FunctionText(
        outer.module, name, "i32", ["ptr closure", *_ENVIRONMENT], linkage="internal",
        attributes=AS_IT_IS, is_shared=True,
    )  # fmt: skip
    closure, *environment = text.params
    loaded = [
        text.word(closure, slot, value.type)
        for (_, value), slot in zip(captured, _slots(captured), strict=False)
    ]
    text.ret(text.call(body, "i32", [*loaded, *environment]))
    return text.finish()


def _has_barrier(node: Stmt) -> bool:
    """Whether tasks may read values that other tasks wrote in a loop that has ended."""
    return any(each.attr_key == BARRIER_WHEN_FINISH for each in find(s.AttrStmt, node))


def _slots(captured: list[Captured]) -> list[int]:
    """The first slot of each value in a closure of 8-byte slots, and the number of slots."""
    return list(itertools.accumulate((_size(v.type) for _, v in captured), initial=0))


def _size(type: str) -> int:
    """The 8-byte slots that a value takes."""
    element = element_type(type)
    bits = {"ptr": 64, "double": 64, "float": 32}.get(element) or max(8, int(element[1:]))
    return -(-bits * lanes_of(type) // 64)
