"""Statements of the loop IR, as the body of an LLVM function.

The body returns a status: 0; -1 when something it called failed and has set the error; or the
number of the assertion that did not hold, whose values are then in the failure record. It never
touches Python, so that it can run without the GIL and on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from minitvm import expr as e
from minitvm import stmt as s
from minitvm.codegen.expression import ExpressionEmitter
from minitvm.codegen.llvm_text import NULL, Block, FunctionText, Value, integer
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.packed_call import PackedCalls
from minitvm.codegen.types import memory_type
from minitvm.expr import Buffer, PrimExpr
from minitvm.runtime.dtype import INT64
from minitvm.runtime.errors import CompileError
from minitvm.stmt import ForKind, Stmt
from minitvm.structural_equal import structural_equal

# Bytes up to which an allocation of constant size lives on the stack.
STACK_LIMIT = 16 * 1024
MAX_FAILURE_VALUES = 8


@final
@dataclass(frozen=True, slots=True)
class Assertion:
    """An assertion of the body, by its status: ``assertions[status - 1]``."""

    message: str
    kind: str
    values: int


class StatementEmitter:
    """Emits statements into one function."""

    def __init__(self, text: FunctionText, options: CodegenOptions, failure: Value) -> None:
        """`failure`: where the values of a failed assertion go, ``i64`` each."""
        self.text = text
        self.expressions = ExpressionEmitter(text, options)
        self.assertions: list[Assertion] = []
        self._failure = failure
        self._strict = options.strict
        # The blocks that free what is allocated here and end the function, innermost last.
        self._cleanups: list[Block] = []
        self._cleanup_code: list[tuple[Block, Value, Block]] = []
        self._status = text.alloca("i32", align=4)
        self._give_up = text.block("give_up")
        packed = PackedCalls(self.expressions, self.fail_unless)
        self.expressions.calls["call_packed"] = packed.emit
        self._table: dict[type, Callable[[Any], None]] = {
            s.For: self._emit_for,
            s.While: self._emit_while,
            s.BufferStore: self._emit_store,
            s.Allocate: self._emit_allocate,
            s.LetStmt: self._emit_let,
            s.IfThenElse: self._emit_if,
            s.SeqStmt: self._emit_seq,
            s.Evaluate: self._emit_evaluate,
            s.AssertStmt: self._emit_assert,
            s.AttrStmt: lambda node: self.emit(node.body),
        }

    def emit(self, node: Stmt) -> None:
        emit = self._table.get(type(node))
        if emit is None:
            raise e.unknown_node(node, "code generation")
        self.text.forget()  # a value is shared within one statement only
        emit(node)

    def finish(self) -> None:
        """Ends the function with status 0, and writes the ways out for failures."""
        text = self.text
        text.ret(integer("i32", 0))
        for block, memory, further in self._cleanup_code:
            text.place(block)
            self._free(memory)
            text.branch(further)
        text.place(self._give_up)
        text.ret(text.load("i32", self._status, 4))
        text.finish()

    def fail_unless(self, holds: Value, status: int, values: Sequence[Value] = ()) -> None:
        """Returns `status` unless `holds`, leaving `values` in the failure record, through the
        blocks that free what is allocated here."""
        failed, go_on = self.text.block("failed"), self.text.block("checked")
        self.text.branch_if(holds, go_on, failed, likely=True)
        self.text.place(failed)
        with self.text.scope():
            for position, value in enumerate(values):
                slot = self.text.element_pointer("i64", self._failure, integer("i64", position))
                self.text.store(value, slot, 8)
        self.text.store(integer("i32", status), self._status, 4)
        self.text.branch(self._cleanups[-1] if self._cleanups else self._give_up)
        self.text.place(go_on)

    def _emit_seq(self, node: s.SeqStmt) -> None:
        for child in node.seq:
            self.emit(child)

    def _emit_evaluate(self, node: s.Evaluate) -> None:
        self.expressions.emit(node.value)

    def _emit_let(self, node: s.LetStmt) -> None:
        self.expressions.variables[node.var] = self.expressions.emit(node.value)
        self.emit(node.body)

    # -- loops --

    def _emit_for(self, node: s.For) -> None:
        if node.kind == ForKind.UNROLLED:
            self._emit_unrolled(node)
            return
        if node.kind == ForKind.THREAD_BINDING:
            raise CompileError(f"loop {node.loop_var.name}: a CPU has no thread axes to bind")
        text = self.text
        trip_count = e.const_int(node.extent)
        if trip_count is not None and trip_count <= 0:
            return
        begin, extent = self.expressions.emit(node.min), self.expressions.emit(node.extent)
        end = self._sum(begin, extent)
        signed = node.loop_var.dtype.is_int
        less = "slt" if signed else "ult"
        loop, done = text.block(node.loop_var.name), text.block("done")
        latch = text.block("next")
        before = text.current
        if trip_count is None:
            text.branch_if(text.icmp(less, begin, end), loop, done)
        else:
            text.branch(loop)
        text.place(loop)
        with text.scope():
            counter, upcoming = text.phi_open(begin, before, latch)
            self.expressions.variables[node.loop_var] = counter
            self.emit(node.body)
            text.branch(latch)
            text.place(latch)
            text.count_up(upcoming, counter, signed=signed)
            text.branch_if(text.icmp(less, upcoming, end), loop, done)
        text.place(done)

    def _sum(self, a: Value, b: Value) -> Value:
        if a.text == "0":
            return b
        return self.text.binary("add", a, b)

    def _emit_unrolled(self, node: s.For) -> None:
        begin, extent = e.const_int(node.min), e.const_int(node.extent)
        if extent is None:
            raise CompileError(
                f"loop {node.loop_var.name}: expected a constant extent to unroll, "
                f"got {node.extent}"
            )
        first = self.expressions.emit(node.min)
        for step in range(extent):
            value = (
                self.text.binary("add", first, integer(first.type, step))
                if begin is None
                else integer(first.type, begin + step)
            )
            self.expressions.variables[node.loop_var] = value
            self.emit(node.body)

    def _emit_while(self, node: s.While) -> None:
        text = self.text
        head, body, done = (text.block(name) for name in ("while", "body", "done"))
        text.branch(head)
        text.place(head)
        with text.scope():
            condition = self.expressions.emit(node.condition)
            text.branch_if(condition, body, done)
            text.place(body)
            self.emit(node.body)
            text.branch(head)
        text.place(done)

    def _emit_if(self, node: s.IfThenElse) -> None:
        text = self.text
        then, otherwise, join = (text.block(name) for name in ("then", "else", "endif"))
        condition = self.expressions.emit(node.condition)
        text.branch_if(condition, then, join if node.else_case is None else otherwise)
        for block, case in ((then, node.then_case), (otherwise, node.else_case)):
            if case is None:
                continue
            text.place(block)
            with text.scope():
                self.emit(case)
            text.branch(join)
        text.place(join)

    # -- memory --

    def _emit_store(self, node: s.BufferStore) -> None:
        self.expressions.store(node, self._stored_value(node))

    def _stored_value(self, node: s.BufferStore) -> Value:
        """The value of a store; the step of a reduction may be reassociated."""
        value = node.value
        if self._strict or not isinstance(value, (e.Add, e.Mul)) or not value.dtype.is_float:
            return self.expressions.emit(value)
        if not any(_reads_back(node, side) for side in (value.a, value.b)):
            return self.expressions.emit(value)
        a, b = self.expressions.emit(value.a), self.expressions.emit(value.b)
        return self.expressions.arithmetic(value, a, b, "reassoc contract")

    def _emit_allocate(self, node: s.Allocate) -> None:
        size = _constant_size(node.buffer)
        if size is not None and size <= STACK_LIMIT:
            count = max(1, size // node.buffer.dtype.itemsize)
            memory = self.text.alloca(memory_type(node.buffer.dtype), count, 64)
            self.expressions.pointers[node.buffer] = memory
            self.emit(node.body)
            return
        memory = self._allocate(node.buffer)
        self.expressions.pointers[node.buffer] = memory
        cleanup = self.text.block("cleanup")
        further = self._cleanups[-1] if self._cleanups else self._give_up
        self._cleanup_code.append((cleanup, memory, further))
        self._cleanups.append(cleanup)
        self.emit(node.body)
        self._cleanups.pop()
        self._free(memory)

    def _allocate(self, buffer: Buffer) -> Value:
        """Memory aligned to a cache line. A size beyond 63 bits saturates, and is refused."""
        text = self.text
        size = integer("i64", buffer.dtype.itemsize)
        for extent in buffer.shape:
            factor = self.expressions.index(extent)
            size = text.intrinsic("smul.fix.sat", "i64", size, factor, integer("i32", 0))
        padded = text.intrinsic("uadd.sat", "i64", size, integer("i64", 63))
        rounded = text.binary("and", padded, integer("i64", -64))
        allocate = text.module.external_function("aligned_alloc", "ptr (i64, i64)")
        memory = text.call(allocate, "ptr", [integer("i64", 64), rounded])
        message = f"{buffer.name}: expected {{}} bytes of memory, found no block that large"
        failed = text.binary(
            "and", text.icmp("eq", memory, NULL), text.icmp("ne", size, integer("i64", 0))
        )
        holds = text.binary("xor", failed, integer("i1", 1))
        self._assert(holds, message, [size], "MemoryError")
        return memory

    def _free(self, memory: Value) -> None:
        self.text.call(self.text.module.external_function("free", "void (ptr)"), "void", [memory])

    # -- assertions --

    def _emit_assert(self, node: s.AssertStmt) -> None:
        values = [
            self.expressions.conversions.cast(self.expressions.emit(v), v.dtype, INT64)
            for v in node.values
        ]
        self._assert(self.expressions.emit(node.condition), node.message, values, node.kind)
        self.emit(node.body)

    def _assert(self, holds: Value, message: str, values: list[Value], kind: str) -> None:
        if message.count("{}") != len(values) or len(values) > MAX_FAILURE_VALUES:
            raise CompileError(
                f"assert: expected a value for each {{}} of {message!r}, at most "
                f"{MAX_FAILURE_VALUES}, got {len(values)}"
            )
        self.assertions.append(Assertion(message, kind, len(values)))
        self.fail_unless(holds, len(self.assertions), values)


def _reads_back(store: s.BufferStore, side: PrimExpr) -> bool:
    """Whether `side` reads the very element that `store` writes."""
    return (
        isinstance(side, e.BufferLoad)
        and side.buffer is store.buffer
        and (side.predicate is None or side.predicate is store.predicate)
        and all(
            a is b or structural_equal(a, b)
            for a, b in zip(side.indices, store.indices, strict=True)
        )
    )


def _constant_size(buffer: Buffer) -> int | None:
    """The bytes of a buffer whose shape is constant."""
    size = buffer.dtype.itemsize
    for extent in buffer.shape:
        known = e.const_int(extent)
        if known is None:
            return None
        size *= known
    return size
