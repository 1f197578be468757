"""Shares loop nests that differ only in their buffers: one function, which LLVM compiles once.

A network has many layers of one kind. Their nests differ only in the buffers. LLVM takes most of
the time of a build, so it should compile each kind once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from minitvm.codegen.captures import Inside, captured_by, function_of
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.gil import needs_the_gil
from minitvm.codegen.llvm_text import Value
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import ForKind, Stmt

_MANY = 4  # nests: LLVM compiles fewer in about the time that the rest of a build takes


def nests_alike(body: Stmt) -> set[Stmt]:
    """The outermost serial loops that aren't the only ones of their kind."""
    nests = [each for each in _outermost(body) if not needs_the_gil(each)]
    if len(nests) < _MANY:
        return set()
    kinds = {each: _kind(each) for each in nests}
    counts = Counter(kinds.values())
    return {each for each, kind in kinds.items() if counts[kind] >= _MANY}


def _kind(nest: Stmt) -> int:
    """A number that is the same for nests of the same kind. Others seldom share it: each would then
    become a function of its own without need."""
    return hash(
        tuple(each.value if type(each) is e.IntImm else type(each) for each in walk_once(nest))
    )


def _outermost(body: Stmt) -> Iterator[s.For]:
    """The serial loops that are in no other loop or condition."""
    pending = [body]
    while pending:
        match pending.pop():
            case s.For(kind=ForKind.SERIAL) as loop:
                yield loop
            case s.SeqStmt(seq=seq):
                pending += seq
            case s.Allocate(body=inside) | s.LetStmt(body=inside) | s.AssertStmt(body=inside):
                pending.append(inside)


def call_nest(node: Stmt, outer: Emitter, failure: Value, emit: Callable[[Inside], Value]) -> Value:
    """Calls a nest as a function, and returns its status. `emit` emits the nest into the function
    and returns it; the function's last parameter is the memory for the values of a failed
    assertion."""
    text, captured = outer.text, captured_by(node, outer)
    name = next(name for n in itertools.count(1) if text.module.claim(name := f"nest.{n}"))
    inside = function_of(captured, outer, name, ("ptr noalias failure",), attributes="noinline ")
    arguments = [value for _, value in captured]
    status = text.call(emit(inside), "i32", [*arguments, failure])
    text.forget()  # the nest may have written to memory
    return status
