"""Statements of the loop IR, as the body of an LLVM function.

The body returns a status: 0; -1 when a callee failed and has set the error; or the number of the
assertion that did not hold, whose values are then in the failure record. The body never touches
Python, so that it can run without the GIL and on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, TypeGuard, cast, final

from minitvm.arith.effects import is_stable
from minitvm.arith.fused_loop import symbolic_divisor, with_digits
from minitvm.arith.work import KnownWork, products_in
from minitvm.codegen.accesses import constant_lanes, emit_store, first_lanes, pointer_of
from minitvm.codegen.alike import call_nest
from minitvm.codegen.captures import Inside
from minitvm.codegen.conversion import memory_type
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.expression import arithmetic, expression_emitter
from minitvm.codegen.extrema import TOGETHER, extremum
from minitvm.codegen.gil import needs_the_gil
from minitvm.codegen.llvm_text import NULL, Block, FunctionText, Value, i32, i64, integer
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.packed_call import emit_packed, run_packed
from minitvm.codegen.parallel import (
    BARRIER,
    BARRIER_WHEN_FINISH,
    LAUNCH_POINT,
    STRIDE_PATTERN,
    Team,
    can_be_shared,
    divided,
    launch,
    share_of,
    stays_alone,
    tasks_worth,
    without_pragmas,
)
from minitvm.codegen.row_copies import emit_copy, is_whole
from minitvm.codegen.tile_blocks import is_part_of_tiles
from minitvm.codegen.versions import MOST, versions_of
from minitvm.runtime.dtype import INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.runtime.threads import TASKS
from minitvm.runtime.threads_text import MAX_FAILURE_VALUES
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import constant_bytes, size_factors
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import contains, mentions, rebuild, walk_once, with_fields
from minitvm.tir.stmt import ForKind, Stmt
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.reuse_storage import STACK_BYTES
from minitvm.transform.stream_stores import ALIGNMENT

# void* allocate(int64_t size), void give_back(void*): the workspaces of the runtime
ALLOCATE_WORKSPACE = "minitvm_allocate_workspace"
GIVE_BACK_WORKSPACE = "minitvm_give_back_workspace"

_WRITTEN_OUT = 4  # copies in a row, for which counting would take as long as copying


@final
@record()
class Assertion:
    """An assertion of the body, by its status: ``assertions[status - 1]``."""

    message: str
    kind: str
    values: int


class StatementEmitter:
    """Emits statements into one function."""

    def __init__(
        self,
        text: FunctionText,
        options: CodegenOptions,
        failure: Value,
        assertions: list[Assertion] | None = None,
        team: Team | None = None,
    ) -> None:
        """
        Parameters
        ----------
        failure
            The memory for the values of a failed assertion, ``i64`` each.
        assertions
            The assertions of the whole kernel, where the function is a task of it.
        team
            The tasks that share the region, where the function is one of them.
        """
        self.text = text
        calls = {"call_packed": emit_packed, "checked": self._emit_checked}
        self.expressions = expression_emitter(text, options, calls)
        self.expressions.fail_unless = self.fail_unless
        self.assertions: list[Assertion] = [] if assertions is None else assertions
        self._failure = failure
        self._options = options
        self._is_task = team is not None
        # The tasks that share the next parallel loop; within that loop it is None.
        self._team = team
        # The blocks that free the open allocations and end the function, innermost last.
        self._cleanups: list[Block] = []
        self._cleanup_code: list[tuple[Block, Value, Block]] = []
        self.apart: Set[Stmt] = frozenset()  # loops that are emitted as functions
        self.work: KnownWork = {}
        self.are_blocks_apart = False  # whether parts with blocks of tiles are emitted as functions
        self._status = text.alloca("i32", align=4)
        self._give_up = text.block("give_up")
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
            s.AttrStmt: self._emit_attr,
        }

    def emit(self, node: Stmt) -> None:
        emit = self._table.get(type(node))
        if emit is None:
            raise e.unknown_node(node, "code generation")
        if self.expressions.has_called_out:
            self.expressions.has_called_out = False
            self.text.forget()
        if self.are_blocks_apart and is_part_of_tiles(node):
            self._emit_apart(node)
        else:
            emit(node)

    def finish(self) -> Value:
        """Ends the function with status 0, writes the ways out for failures, and returns it."""
        text = self.text
        if self.expressions.stores_past_caches and self.expressions.target.arch == "x86_64":
            # Waits for stores past the caches, which other stores may overtake on x86.
            text.call_external("llvm.x86.sse.sfence", "void", [])
        text.ret(i32(0))
        for block, memory, further in self._cleanup_code:
            text.place(block)
            self._free(memory)
            text.branch(further)
        text.place(self._give_up)
        text.ret(text.load("i32", self._status, 4))
        return text.finish()

    def fail_unless(self, holds: Value, status: int | Value, values: Sequence[Value] = ()) -> None:
        """Returns `status` unless `holds`, leaving `values` in the failure record, through the
        blocks that free the open allocations."""
        text, returned = self.text, i32(status) if isinstance(status, int) else status
        with text.unless(holds):
            for position, value in enumerate(values):
                text.set_word(self._failure, position, value)
            text.store(returned, self._status, 4)
            text.branch(self._cleanups[-1] if self._cleanups else self._give_up)

    def _emit_seq(self, node: s.SeqStmt) -> None:
        for child in node.seq:
            self.emit(child)

    def _emit_evaluate(self, node: s.Evaluate) -> None:
        if isinstance(node.value, e.Call) and node.value.op == "call_packed":
            run_packed(self.expressions, node.value)  # whatever it returns
        else:
            self.expressions.emit(node.value)

    def _emit_let(self, node: s.LetStmt) -> None:
        self.expressions.bind_anew(node.var, self.expressions.emit(node.value))
        if node.var.dtype.is_bool and node.var.dtype.lanes > 1:
            known = constant_lanes(self.expressions, node.value)
            self.expressions.constants[node.var] = known
            count = first_lanes(self.expressions, node.value)
            if count is not None:
                self.expressions.first_lanes[node.var] = count
        self.emit(node.body)

    # -- loops --

    def _emit_for(self, node: s.For) -> None:
        if node.kind == ForKind.UNROLLED:
            self._emit_unrolled(node)
            return
        if node.kind == ForKind.THREAD_BINDING:
            axis = node.annotations.get("thread", "a thread axis")
            raise CompileError(
                f"loop {node.loop_var.name}: bound to {axis}: a CPU has no thread axes to bind: "
                "use parallel in place of bind, or leave the loop as it is"
            )
        if node.kind == ForKind.PARALLEL:
            self._emit_parallel(node, frozenset())
        elif node in self.apart:
            self._emit_apart(node)
        else:
            self._emit_versions(node, self._emit_serial)

    def _emit_serial(self, node: s.For) -> None:
        trip_count = e.const_int(node.extent)
        if trip_count is not None and trip_count <= 0:
            return
        if trip_count is not None and trip_count <= _WRITTEN_OUT and _is_copy(node.body):
            self._emit_unrolled(node)
            return
        if is_whole(node):
            emit_copy(self.expressions, node)
            return
        begin, extent = self.expressions.emit(node.min), self.expressions.emit(node.extent)
        end = extent if begin.text == "0" else self.text.binary("add", begin, extent)
        one, signed = integer(begin.type, 1), node.loop_var.dtype.is_int
        self._emit_loop(node, begin, end, one, signed=signed, runs=trip_count is not None)

    def _emit_loop(
        self, node: s.For, begin: Value, end: Value, step: Value, *, signed: bool, runs: bool
    ) -> None:
        """The body of `node` for each `step`-th number from `begin` to before `end`, in their type;
        `runs` says that there is one."""
        text = self.text
        text.module.has_plain_loops |= _is_plain(node)
        loop, done, latch = text.blocks(node.loop_var.name, "done", "next")
        blocks = (loop, latch, done)
        with text.rounds(blocks, begin, end, step, signed=signed, runs=runs) as counter:
            text.forget()  # what one round writes, the next reads
            self.expressions.variables[node.loop_var] = counter
            self.emit(node.body)
            text.branch(latch)

    def _emit_unrolled(self, node: s.For) -> None:
        begin, extent = e.const_int(node.min), e.const_int(node.extent)
        if extent is None:
            raise CompileError(
                f"loop {node.loop_var.name}: expected a constant extent to unroll, "
                f"got {node.extent}"
            )
        first = self.expressions.emit(node.min)
        fold, terms = _extremum_in(node), list[Value]()
        for step in range(extent):
            value = integer(first.type, step if begin is None else begin + step)
            if begin is None:
                value = self.text.binary("add", first, value)
            self.expressions.bind_anew(node.loop_var, value)
            if fold is None:
                self.emit(node.body)
                continue
            terms.append(self.expressions.emit(fold[1].b))
            if len(terms) == TOGETHER or step == extent - 1:
                self._emit_extremum(*fold, terms)
                terms.clear()

    def _emit_extremum(
        self, store: s.BufferStore, value: e.Min | e.Max, terms: Sequence[Value]
    ) -> None:
        """``C[i] = min(C[i], x)`` for several x."""
        known = self.expressions.emit(value.a)
        made = extremum(self.expressions, type(value), [known, *terms])
        emit_store(self.expressions, store, made)
        self.text.forget(store.buffer.data)

    # -- parallel loops --

    def _emit_attr(self, node: s.AttrStmt) -> None:
        if node.attr_key == "pragma_import_llvm":
            self._import(node.value)
            self.emit(node.body)
            return
        if node.attr_key in ALIGNMENT:
            self._emit_nontemporal(node)
            return
        if node.attr_key == s.VIEW:
            owner = cast(e.BufferRef, node.value).buffer
            self.expressions.pointers[node.node] = pointer_of(self.expressions, owner)
            self.emit(node.body)
            return
        program, pragmas = without_pragmas(node)
        launches = LAUNCH_POINT in pragmas and not self._is_task and can_be_shared(program)
        worth = tasks_worth(program, self._options.target) if launches else e.const(0)
        if not stays_alone(worth):
            everybody = i64(INT64.max())
            self._emit_region(program, pragmas - {LAUNCH_POINT}, everybody, worth, 1)
        elif isinstance(program, s.For) and program.kind == ForKind.PARALLEL:
            self._emit_parallel(program, pragmas)
        else:
            self.emit(node.body)

    def _import(self, text: PrimExpr) -> None:
        if not isinstance(text, e.StringImm):
            raise CompileError(f"pragma import_llvm: expected the text of LLVM IR, got {text}")
        if text.value not in self.text.module.imports:
            self.text.module.imports.append(text.value)

    def _emit_nontemporal(self, node: s.AttrStmt) -> None:
        """A statement whose stores to a buffer bypass the caches where the value of the attribute
        holds and the buffer is aligned."""
        text, emitter = self.text, self.expressions
        past, through, join = text.blocks("past_caches", "through_caches", "endif")
        text.branch_if(self._bypasses(node), past, through)
        with text.inside(past, join):
            emitter.nontemporal = node.node
            self.emit(node.body)
            emitter.nontemporal = None
        with text.inside(through, join):
            self.emit(node.body)
        text.place(join)

    def _bypasses(self, node: s.AttrStmt) -> Value:
        """Whether the stores under an attribute bypass the caches."""
        text, emitter = self.text, self.expressions
        pointer = text.convert("ptrtoint", pointer_of(emitter, node.node), "i64")
        place = text.binary("and", pointer, i64(ALIGNMENT[node.attr_key] - 1))
        is_aligned = text.icmp("eq", place, i64(0))
        return text.binary("and", is_aligned, emitter.emit(node.value))

    def _emit_versions(self, node: s.For, emit: Callable[[s.For], None], most: int = MOST) -> None:
        """A loop, in a version for each outcome of the choices that are the same in all
        iterations; `emit` writes a version. All have up to `most` statements."""
        found = versions_of(node, most)
        if found is None:
            emit(node)
            return
        text, choice = self.text, found.choice
        holds, fails, join = text.blocks("version", "other_version", "endif")
        if isinstance(choice, s.AttrStmt):
            text.branch_if(self._bypasses(choice), holds, fails)
            with text.inside(holds, join):
                self.expressions.nontemporal = choice.node
                emit(found.holds)
                self.expressions.nontemporal = None
        else:
            text.branch_if(self.expressions.emit(choice), holds, fails)
            with text.inside(holds, join):
                self._emit_versions(found.holds, emit, most // 2)
        with text.inside(fails, join):
            self._emit_versions(found.fails, emit, most // 2)
        text.place(join)

    def _emit_parallel(self, node: s.For, pragmas: frozenset[str]) -> None:
        """A parallel loop: of a team, a region of its own, or serial."""
        if self._team is not None:
            self._emit_share(node, pragmas, self._team)
            return
        is_free = not self._is_task and not needs_the_gil(node)
        worth = tasks_worth(node, self._options.target, self.work) if is_free else e.const(0)
        if stays_alone(worth):
            self._emit_alone(node)
            return
        bounds: dict[str, Any] = {}  # evaluated once, here
        for name in ("min", "extent"):
            bound = getattr(node, name)
            if e.const_int(bound) is None:
                bounds[name] = Var(name, bound.dtype)
                self.expressions.variables[bounds[name]] = self.expressions.emit(bound)
        evaluated = rebuild(node, bounds)
        extent = self.expressions.index(evaluated.extent)
        self._emit_region(evaluated, pragmas, extent, worth, TASKS)

    def _emit_alone(self, node: s.For) -> None:
        """A parallel loop that this thread runs alone."""
        for each, *ends in divided(node, node.min, node.min + node.extent):
            if each is node:
                self._emit_versions(node, self._emit_serial)
                continue
            begin, end = (e.cast(node.loop_var.dtype, place) for place in ends)
            self._emit_serial(with_fields(each, min=begin, extent=end - begin))

    def _emit_region(
        self, node: Stmt, pragmas: frozenset[str], limit: Value, worth: PrimExpr, each: int
    ) -> None:
        """Runs `node` as tasks of the pool's threads: at most `limit`, as many as the work is
        `worth`, and `each` for a thread. Less than two run on this thread alone."""
        number = self.expressions.emit(worth)

        def emit_task(inside: Inside, team: Team) -> Value:
            task = self._within(inside, team)
            task.are_blocks_apart = self.are_blocks_apart
            if isinstance(node, s.For) and node.kind == ForKind.PARALLEL:
                task._emit_parallel(node, pragmas)
            else:
                task.emit(node)
            return task.finish()

        status = launch(node, self.expressions, limit, number, each, self._failure, emit_task)
        self.fail_unless(self.text.icmp("eq", status, i32(0)), status)

    def _within(self, inside: Inside, team: Team | None = None) -> StatementEmitter:
        """An emitter into a function whose last parameter is the memory for a failure."""
        text = inside.text
        made = StatementEmitter(text, self._options, text.params[-1], self.assertions, team)
        made.expressions.variables.update(inside.variables)
        made.expressions.pointers.update(inside.pointers)
        made.expressions.nontemporal = self.expressions.nontemporal
        made.expressions.stored = self.expressions.stored
        return made

    def _emit_apart(self, node: Stmt) -> None:
        """A nest that is like others, or a part with blocks of tiles, as a function."""

        def emit(inside: Inside) -> Value:
            emitter = self._within(inside)
            if node in self.apart and isinstance(node, s.For):
                emitter.are_blocks_apart = self.are_blocks_apart
                emitter._emit_serial(node)
            else:
                emitter.emit(node)
            return emitter.finish()

        status = call_nest(node, self.expressions, self._failure, emit)
        self.fail_unless(self.text.icmp("eq", status, i32(0)), status)

    def _emit_share(self, node: s.For, pragmas: frozenset[str], team: Team) -> None:
        """The part of a parallel loop that is this task's."""
        begin, extent = self.expressions.index(node.min), self.expressions.index(node.extent)
        strided = STRIDE_PATTERN in pragmas
        first, last, step = share_of(team, self.text, begin, extent, strided=strided)
        self._team = None
        if strided:
            self._emit_part(node, first, last, step)
        else:
            bounds = Var("first", INT64), Var("last", INT64)
            self.expressions.variables.update(zip(bounds, (first, last), strict=True))
            for each, *ends in divided(node, *bounds):
                begin, end = map(self.expressions.index, ends)
                self._emit_share_in_order(each, begin, end, step)
        self._team = team
        if BARRIER_WHEN_FINISH not in pragmas:
            return
        status = self.text.call_external(BARRIER, "i32", [team.region, team.tasks])
        self.text.forget()  # the other tasks have written
        # Another task has failed, and has said so; this one has nothing to add.
        self.fail_unless(self.text.icmp("eq", status, i32(0)), 0)

    def _emit_share_in_order(self, node: s.For, first: Value, last: Value, step: Value) -> None:
        """The iterations of a parallel loop from `first` to before `last`."""

        def emit(loop: s.For) -> None:
            divisor = symbolic_divisor(loop.loop_var, loop.body)
            if divisor is None:
                self._emit_part(loop, first, last, step)
            else:
                self._emit_by_digits(loop, divisor, first, last)

        self._emit_versions(node, emit)

    def _emit_by_digits(self, node: s.For, divisor: PrimExpr, begin: Value, end: Value) -> None:
        """The body of a fused loop from `begin` to before `end`, without a division for each
        number::

            x = begin
            while x < end:
                q, r = x // n, x % n
                count = min(n - r, end - x) if n > 0 else 1
                for low in range(r, r + count):     # x // n is q, and x % n is low
                    ...
                x += count

        The digits of q are values outside of the inner loop.
        """
        text, emitter, var, body = self.text, self.expressions, node.loop_var, node.body
        x, wide, high = Var("x", INT64), Var(f"{var.name}.low", INT64), Var("high", var.dtype)
        head, latch, done = text.blocks(var.name, "next", "done")
        before = text.current
        text.branch_if(text.icmp("slt", begin, end), head, done)
        text.place(head)
        with text.scope():
            first, upcoming = text.phi_open(begin, before, latch)
            text.forget()
            emitter.bind_anew(x, first)
            size = e.cast(INT64, divisor)
            rest = e.floormod(x, size)
            emitter.bind_anew(high, emitter.cast(e.floordiv(x, size), var.dtype))
            here, number = emitter.emit(rest), emitter.emit(size)
            inside = text.binary("sub", number, here)
            left = text.intrinsic("smin", "i64", inside, text.binary("sub", end, first))
            count = text.select(text.icmp("sgt", number, i64(0)), left, i64(1))
            upto = text.binary("add", here, count)
            low = e.cast(var.dtype, wide)
            body = with_digits(var, divisor, high, low, body)
            while (further := symbolic_divisor(high, body)) is not None:
                digits = Var("high", var.dtype), Var("digit", var.dtype)
                for each, value in zip(digits, (e.floordiv, e.floormod), strict=True):
                    emitter.bind_anew(each, emitter.emit(value(high, further)))
                body = with_digits(high, further, *digits, body)
                high = digits[0]
            body = s.LetStmt(var, e.cast(var.dtype, x - rest + wide), body)
            inner = s.For(wide, rest, size, ForKind.SERIAL, body)
            self._emit_loop(inner, here, upto, i64(1), signed=True, runs=True)
            text.branch(latch)
            text.place(latch)
            beyond = text.binary("add", first, count)
            text.phi_close(upcoming, beyond)
            text.branch_if(text.icmp("slt", beyond, end), head, done)
        text.place(done)

    def _emit_part(self, node: s.For, first: Value, last: Value, step: Value) -> None:
        """Some iterations of a parallel loop, as a serial one."""
        wide = Var(node.loop_var.name, INT64)
        narrow = s.LetStmt(node.loop_var, e.cast(node.loop_var.dtype, wide), node.body)
        begin, count = e.cast(INT64, node.min), e.cast(INT64, node.extent)
        loop = s.For(wide, begin, count, ForKind.SERIAL, narrow)
        self._emit_loop(loop, first, last, step, signed=True, runs=False)

    def _emit_while(self, node: s.While) -> None:
        text = self.text
        text.needs_loop_passes = True
        head, body, done = text.blocks("while", "body", "done")
        text.branch(head)
        text.place(head)
        text.forget()
        with text.scope():
            condition = self.expressions.emit(node.condition)
            text.branch_if(condition, body, done)
            text.place(body)
            self.emit(node.body)
            text.branch(head)
        text.place(done)

    def _emit_if(self, node: s.IfThenElse) -> None:
        text = self.text
        then, otherwise, join = text.blocks("then", "else", "endif")
        condition = self.expressions.emit(node.condition)
        text.branch_if(condition, then, join if node.else_case is None else otherwise)
        for block, case in ((then, node.then_case), (otherwise, node.else_case)):
            if case is not None:
                with text.inside(block, join):
                    self.emit(case)
        text.place(join)

    # -- memory --

    def _emit_store(self, node: s.BufferStore) -> None:
        emit_store(self.expressions, node, self._stored_value(node))
        self.text.forget(node.buffer.data)

    def _stored_value(self, node: s.BufferStore) -> Value:
        """The value of a store; the step of a reduction may be reassociated."""
        value, emit = node.value, self.expressions.emit
        if (
            self._options.strict
            or not isinstance(value, (e.Add, e.Mul))
            or not value.dtype.is_float
            or not any(_reads_back(node, side) for side in (value.a, value.b))
        ):
            return emit(value)
        a, b = value.a, value.b
        if isinstance(value, e.Add) and _is_term_or_nothing(b):
            return emit(e.Select(b.condition, e.Add(a, b.true_value), a))
        made, products = emit(a), [*products_in(b)] if _is_in_registers(node) else []
        if isinstance(value, e.Mul) or len(products) < 2:
            return arithmetic(self.expressions, value, made, emit(b), "reassoc contract")
        for product, is_subtracted in products:
            step = (e.Sub if is_subtracted else e.Add)(a, product)
            made = arithmetic(self.expressions, step, made, emit(product), "reassoc contract")
        return made

    def _emit_allocate(self, node: s.Allocate) -> None:
        size = constant_bytes(node.buffer)
        if size is not None and size <= STACK_BYTES:
            count = max(1, size // node.buffer.dtype.itemsize)
            memory = self.text.alloca(memory_type(node.buffer.dtype), count, 64)
            self._point(node.buffer, memory)
            self.emit(node.body)
            return
        memory = self._allocate(node.buffer)
        self._point(node.buffer, memory)
        cleanup = self.text.block("cleanup")
        further = self._cleanups[-1] if self._cleanups else self._give_up
        self._cleanup_code.append((cleanup, memory, further))
        self._cleanups.append(cleanup)
        self.emit(node.body)
        self._cleanups.pop()
        self._free(memory)

    def _point(self, buffer: Buffer, memory: Value) -> None:
        """Gives a buffer its memory. It may have had other memory in this scope."""
        self.text.forget(buffer.data)
        self.expressions.pointers[buffer] = memory

    def _allocate(self, buffer: Buffer) -> Value:
        """A workspace, aligned to a cache line. A size beyond 63 bits saturates, and is refused."""
        text = self.text
        size = i64(buffer.dtype.itemsize)
        for extent in size_factors(buffer):
            factor = text.intrinsic("smax", "i64", self.expressions.dimension(extent), i64(0))
            size = text.intrinsic("smul.fix.sat", "i64", size, factor, i32(0))
        allocate = text.module.external_function(ALLOCATE_WORKSPACE, "noalias ptr (i64)")
        memory = text.call(allocate, "ptr", [size])
        message = (
            f"{buffer.name}: expected {{}} bytes of memory, found no block that large: pass "
            "smaller arrays, or schedule it to keep less"
        )
        self._assert(text.icmp("ne", memory, NULL), message, [size], "MemoryError")
        return memory

    def _free(self, memory: Value) -> None:
        self.text.call_external(GIVE_BACK_WORKSPACE, "void", [memory])

    # -- assertions --

    def _emit_assert(self, node: s.AssertStmt) -> None:
        values = self._shown(node.values)
        self._assert(self.expressions.emit(node.condition), node.message, values, node.kind)
        self.emit(node.body)

    def _emit_checked(self, emitter: Emitter, node: e.Call) -> Value:
        condition, message, value, *shown = node.args
        assert isinstance(message, e.StringImm)
        holds, values = emitter.emit(condition), self._shown(shown)
        self._assert(holds, message.value, values, "IndexError")
        return emitter.emit(value)

    def _shown(self, values: Sequence[PrimExpr]) -> list[Value]:
        """The values of a message, as the failure record holds them."""
        return [self.expressions.cast(each, INT64) for each in values]

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


def _is_in_registers(store: s.BufferStore) -> bool:
    """Whether a vector of results is kept in registers, with others beside it: one operation need
    not wait for the one before."""
    return store.value.dtype.lanes > 1 and store.buffer.scope == "local"


def _is_term_or_nothing(node: PrimExpr) -> TypeGuard[e.Select]:
    """Whether the terms of a vector are 0 in lanes where a condition doesn't hold: there sums stay
    as they are."""
    if not isinstance(node, e.Select) or not isinstance(node.false_value, e.Broadcast):
        return False
    nothing = node.false_value.value
    return isinstance(nothing, e.FloatImm) and nothing.value == 0.0


def _extremum_in(loop: s.For) -> tuple[s.BufferStore, e.Min | e.Max] | None:
    """The store of a loop whose iterations all combine one element with something by a minimum or
    maximum of floats, and this; None for any other loop."""
    store = _in_padding(loop.body)
    if not isinstance(store, s.BufferStore) or not isinstance(store.value, (e.Min, e.Max)):
        return None
    value = store.value
    if not value.dtype.is_float or not _reads_back(store, value.a):
        return None
    place = (value.a,) if store.predicate is None else (value.a, store.predicate)
    is_one = not mentions(loop.loop_var, *place) and is_stable(value.b, store)
    return (store, value) if is_one else None


def _is_copy(body: Stmt) -> bool:
    """Whether a statement does no more than copy an element or a vector."""
    store = _in_padding(body)
    return isinstance(store, s.BufferStore) and isinstance(store.value, e.BufferLoad)


def _in_padding(node: Stmt) -> Stmt:
    """A statement below the attributes of padded buffers."""
    while isinstance(node, s.AttrStmt) and node.attr_key == "padded_buffer":
        node = node.body
    return node


def _is_plain(loop: s.For) -> bool:
    """Whether there are neither loops nor vectors in a loop that stores something, as one of
    prefetches doesn't, and may have many iterations."""
    if loop.annotations.get(s.FEW) or not contains(s.BufferStore, loop.body):
        return False
    return not any(
        each.kind != ForKind.UNROLLED
        if isinstance(each, s.For)
        else isinstance(each, s.While) or (isinstance(each, PrimExpr) and each.dtype.lanes > 1)
        for each in walk_once(loop.body)
    )
