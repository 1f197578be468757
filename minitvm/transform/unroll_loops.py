"""Decides which loops are unrolled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from minitvm.arith.work import code_size
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import constant_bytes
from minitvm.tir.expr import Buffer, BufferLoad
from minitvm.tir.functor import Mutator, mentions, walk_once
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, with_body

# The largest register file of the targets: 32 vectors of 64 bytes. A larger buffer stays in memory.
REGISTER_BYTES = 32 * 64
# Loops over a buffer in registers are unrolled up to this number of statements.
REGISTER_STATEMENTS = 64


@final
@record()
class UnrollOptions:
    """``tir.UnrollLoop`` of classic TVM.

    Serial loops of constant extent are written out, from the inside, while their statements are at
    most `auto_max_step` and the loops at most `auto_max_depth`, and in any case up to extent
    `auto_max_extent`. Without `explicit_unroll` these stay loops, for LLVM to unroll; loops that
    the schedule unrolls are always written out.
    """

    auto_max_step: int = 0
    auto_max_depth: int = 8
    auto_max_extent: int = 0
    explicit_unroll: bool = True


def unroll_loops(func: PrimFunc, options: UnrollOptions | None = None) -> PrimFunc:
    """Marks the loops to be written out when code is generated.

    Before::

        acc = allocate(float32[4], "local")
        for k in range(n):
            for i in range(4):
                acc[i] = acc[i] + A[k, i]

    After::

        acc = allocate(float32[4], "local")
        for k in range(n):
            for i in unrolled(4):
                acc[i] = acc[i] + A[k, i]

    These are the loops that the options or the pragmas ``auto_unroll_max_step`` and
    ``unroll_explicit`` ask for, and small loops whose variable is an index of a ``local`` buffer
    that fits into registers. An index that is known only at run time would keep the buffer in
    memory.

    Raises
    ------
    CompileError
        When an UNROLLED loop has no constant extent.
    """
    return with_body(func, _Unroll(options or UnrollOptions()).stmt(func.body))


class _Unroll(Mutator):
    """Counts loops on the way up, as classic TVM does."""

    def __init__(self, options: UnrollOptions) -> None:
        super().__init__()
        self._options = options
        self._registers: set[Buffer] = set()
        self._unrolled = 0  # the depth of the unrolled loops below
        self._plain = 0  # the depth of the other loops below

    @contextmanager
    def _with(self, options: UnrollOptions) -> Iterator[None]:
        outside, self._options = self._options, options
        yield
        self._options = outside

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        value = e.const_int(node.value)
        options = self._options
        if value is not None and node.attr_key == "pragma_auto_unroll_max_step":
            options = replace(options, auto_max_step=value)
        elif value is not None and node.attr_key == "pragma_unroll_explicit":
            options = replace(options, explicit_unroll=bool(value))
        else:
            return self.descend(node)
        with self._with(options):
            return self.stmt(node.body)

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        size = constant_bytes(node.buffer)
        if node.buffer.scope == "local" and size is not None and size <= REGISTER_BYTES:
            self._registers.add(node.buffer)
        return self.descend(node)

    def visit_SeqStmt(self, node: s.SeqStmt) -> Stmt:
        made = self._one_after_another(node.seq)
        return node if all(map(Stmt.same_as, made, node.seq)) else s.SeqStmt(made)

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        cases = (node.then_case,) if node.else_case is None else (node.then_case, node.else_case)
        made = self._one_after_another(cases)
        if all(map(Stmt.same_as, made, cases)):
            return node
        return s.IfThenElse(node.condition, *made)

    def _one_after_another(self, statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        made, unrolled, plain = [], 0, 0
        for each in statements:
            self._unrolled = self._plain = 0
            made.append(self.stmt(each))
            unrolled, plain = max(unrolled, self._unrolled), max(plain, self._plain)
        self._unrolled, self._plain = unrolled, plain
        return tuple(made)

    def visit_For(self, node: s.For) -> Stmt:
        self._unrolled = self._plain = 0
        body = self.stmt(node.body)
        extent = e.const_int(node.extent)
        if node.kind == ForKind.UNROLLED and extent is None:
            raise CompileError(
                f"loop {node.loop_var.name}: expected a constant extent to unroll, found "
                f"{node.extent}: unroll the inner loop of a split by a constant, or leave it serial"
            )
        kind = node.kind
        if kind == ForKind.SERIAL and extent is not None and self._pays(node, body, extent):
            kind = ForKind.UNROLLED
        if kind == ForKind.UNROLLED:
            self._unrolled += 1
        else:
            self._plain += 1
        if kind == node.kind and body is node.body:
            return node
        return s.For(node.loop_var, node.min, node.extent, kind, body, node.annotations)

    def _pays(self, node: s.For, body: Stmt, extent: int) -> bool:
        """Whether a serial loop becomes an unrolled one."""
        options = self._options
        steps = extent * code_size(body)
        asked = extent <= options.auto_max_extent or (
            self._plain == 0
            and self._unrolled <= options.auto_max_depth
            and steps <= options.auto_max_step
        )
        if asked and options.explicit_unroll:
            return True
        return steps <= REGISTER_STATEMENTS and self._indexes_registers(node)

    def _indexes_registers(self, node: s.For) -> bool:
        return bool(self._registers) and any(
            isinstance(each, BufferLoad | BufferStore)
            and each.buffer in self._registers
            and mentions(node.loop_var, *each.indices)
            for each in walk_once(node.body)
        )
