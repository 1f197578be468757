"""Expressions of the loop IR, as LLVM values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.arith.fused_index import joined
from minitvm.codegen.conversion import Conversions
from minitvm.codegen.integers import Integers
from minitvm.codegen.llvm_intrinsics import check_intrinsic
from minitvm.codegen.llvm_text import (
    NULL,
    FunctionText,
    Value,
    element_type,
    floating,
    integer,
    lanes_of,
    vector_type,
    zero,
)
from minitvm.codegen.math import MathFunctions
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.types import memory_type, register_type
from minitvm.codegen.vector_folds import VectorFolds
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS
from minitvm.te.intrinsics.matrix_product import MATRIX_PRODUCTS
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferStore, PrimExpr, Var
from minitvm.tir.functor import walk_once
from minitvm.tir.intrinsics import INTRINSICS, VECTOR_FOLDS
from minitvm.transform.widen_indices import widened

_FLOAT_BINARY = {e.Add: "fadd", e.Sub: "fsub", e.Mul: "fmul", e.Div: "fdiv"}
_FLOAT_COMPARE = {e.EQ: "oeq", e.NE: "une", e.LT: "olt", e.LE: "ole", e.GT: "ogt", e.GE: "oge"}
_INT_COMPARE = {e.EQ: "eq", e.NE: "ne", e.LT: "lt", e.LE: "le", e.GT: "gt", e.GE: "ge"}


@final
@record()
class Address:
    """Where an access goes: a pointer, and for a vector access the step between its elements.

    `step` counts elements: 0 for the same in every lane, 1 for neighbours and -1 for neighbours
    from the last to the first, which is where `pointer` then is; None for one element or any
    others, whose distances from `pointer` are `offsets`, one a lane. `apart` is the step of these
    offsets where it is constant.
    """

    pointer: Value
    lanes: int = 1
    step: int | None = None
    offsets: Value | None = None
    apart: int | None = None


class ExpressionEmitter:
    """Emits expressions into one function.

    `variables` and `pointers` hold what is in scope: whoever emits statements fills them.
    """

    def __init__(self, text: FunctionText, options: CodegenOptions) -> None:
        self.text = text
        self.conversions = Conversions(text, options.target.has_float16_conversion)
        self.integers = Integers(text)
        self.math = MathFunctions(text, self.conversions, self.integers, options)
        self._folds = VectorFolds(text, self.conversions, self.integers, options.strict)
        self._has_mask_registers = options.target.has_mask_registers
        self._target = options.target
        self._contract = "" if options.strict else "contract"
        self.variables: dict[Var, Value] = {}
        self.pointers: dict[Buffer, Value] = {}
        self.no_wrap = "nsw"  # what is known of the products of dimensions
        self.has_called_out = False  # and so may have changed anything in memory
        self._strides: dict[Buffer, list[int | None]] = {}
        self._dimensions: dict[PrimExpr, PrimExpr] = {}
        self._changing: set[Var] = set()
        # The changing variables, and the memory of the buffers, in what is being emitted.
        self._needs: set[object] = set()
        self.calls: dict[str, Callable[[e.Call], Value]] = {
            "if_then_else": self._emit_if_then_else,
            "likely": lambda node: self.emit(node.args[0]),
            "reinterpret": self._emit_reinterpret,
            "isnullptr": lambda node: self.text.icmp("eq", self.emit(node.args[0]), NULL),
            "tvm_access_ptr": self._emit_access_ptr,
            "prefetch": self._emit_prefetch,
            "call_llvm_intrin": self._emit_llvm_intrinsic,
            "call_llvm_pure_intrin": self._emit_llvm_intrinsic,
            "call_extern": self._emit_extern,
            "vector_extract": self._emit_extract,
            "vector_shuffle": self._emit_shuffle,
            **dict.fromkeys(VECTOR_FOLDS, self._emit_fold),
        }
        binary: dict[type, Callable[[Any], Value]] = dict.fromkeys(
            (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max),
            self._emit_arithmetic,
        )
        compare: dict[type, Callable[[Any], Value]] = dict.fromkeys(
            _INT_COMPARE, self._emit_comparison
        )
        self._table: dict[type, Callable[[Any], Value]] = {
            **binary,
            **compare,
            e.Var: self._emit_var,
            e.IntImm: lambda node: integer(register_type(node.dtype), node.value),
            e.FloatImm: lambda node: floating(register_type(node.dtype), node.value),
            e.StringImm: lambda node: text.module.string(node.value),
            e.And: lambda node: text.binary("and", self.emit(node.a), self.emit(node.b)),
            e.Or: lambda node: text.binary("or", self.emit(node.a), self.emit(node.b)),
            e.Not: self._emit_not,
            e.Cast: lambda node: self.conversions.cast(
                self.emit(node.value), node.value.dtype, node.dtype
            ),
            e.Select: lambda node: text.select(
                self.emit(node.condition), self.emit(node.true_value), self.emit(node.false_value)
            ),
            e.Let: self._emit_let,
            e.Ramp: self._emit_ramp,
            e.Broadcast: lambda node: text.splat(self.emit(node.value), node.lanes),
            e.BufferLoad: self._emit_load,
            e.BufferRef: lambda node: self.pointer(node.buffer),
            e.Call: self._emit_call,
        }

    def emit(self, node: PrimExpr) -> Value:
        """The value of an expression: computed once, until a variable that may change
        (:meth:`bind_anew`) or a buffer in it does."""
        emit = self._table.get(type(node))
        if emit is None:
            raise e.unknown_node(node, "code generation")
        if type(node) in _LEAVES:
            return emit(node)
        known = self.text.recall(node)
        if known is not None:
            self._needs |= known[1]
            return known[0]
        outer, self._needs = self._needs, set()
        value = emit(node)
        self.text.remember(node, value, frozenset(self._needs))
        self._needs |= outer
        return value

    def bind_anew(self, var: Var, value: Value) -> None:
        """Gives a value to a variable that may have had another one in this scope."""
        self._changing.add(var)
        self.text.forget(var)
        self.variables[var] = value

    # -- leaves and operators --

    def _emit_var(self, node: Var) -> Value:
        if node not in self.variables:
            raise CompileError(
                f"variable {node.name}: expected one bound by an argument, a dimension or a loop, "
                "found it unbound: pass it to build, or use it as a dimension of an argument"
            )
        if node in self._changing:
            self._needs.add(node)
        return self.variables[node]

    def _emit_arithmetic(self, node: e.Arithmetic) -> Value:
        return self.arithmetic(node, self.emit(node.a), self.emit(node.b), self._contract)

    def arithmetic(self, node: e.Arithmetic, a: Value, b: Value, flags: str) -> Value:
        """`node` on operands already emitted, with LLVM's fast-math `flags` where it is of
        floats."""
        dtype = node.dtype
        if not dtype.is_float:
            return self.integers.binary(type(node).__name__, dtype.element, a, b)
        if type(node) in _FLOAT_BINARY:
            made = self.text.binary(_FLOAT_BINARY[type(node)], a, b, flags)
            return self.conversions.round(made, dtype)
        if isinstance(node, (e.Min, e.Max)):
            # NaN propagates; which of two zeros comes back is left open.
            name = "minimum" if isinstance(node, e.Min) else "maximum"
            return self.text.intrinsic(name, a.type, a, b, flags="nsz")
        raise CompileError(f"{type(node).__name__}: expected integers, got {dtype}")

    def _emit_comparison(self, node: e.Comparison) -> Value:
        if self._has_mask_registers and _chooses_first_lanes(node):
            return self._first_lanes(node.b)
        a, b = self.emit(node.a), self.emit(node.b)
        dtype = node.a.dtype
        if dtype.is_float:
            return self.text.fcmp(_FLOAT_COMPARE[type(node)], a, b)
        predicate = _INT_COMPARE[type(node)]
        if predicate not in ("eq", "ne"):
            predicate = ("s" if dtype.is_int else "u") + predicate
        return self.text.icmp(predicate, a, b)

    def _first_lanes(self, bound: PrimExpr) -> Value:
        """``ramp(0, 1) < bound`` by shifting bits: LLVM would repeat the comparison of vectors in
        each block that uses it, inside of loops too, and hold its operands in vector registers."""
        assert isinstance(bound, e.Broadcast)
        text, lanes, zero_bits = self.text, bound.lanes, integer("i64", 0)
        count = text.intrinsic("smax", "i64", self.index(bound.value), zero_bits)
        count = text.intrinsic("umin", "i64", count, integer("i64", lanes))
        # bzhi clears the bits from the count on, and none for a count of 64.
        bits = text.intrinsic("x86.bmi.bzhi.64", "i64", integer("i64", -1), count)
        return text.convert_whole(text.convert("trunc", bits, f"i{lanes}"), f"<{lanes} x i1>")

    def _emit_not(self, node: e.Not) -> Value:
        value = self.emit(node.a)
        return self.text.binary("xor", value, integer(value.type, 1))

    def _emit_let(self, node: e.Let) -> Value:
        """Lexically: where the body binds the variable again, as substitution can make it, the
        outer value comes back after."""
        value = self.emit(node.value)
        outer = self.variables.get(node.var)
        if outer is not None:
            self.text.forget()
        self.variables[node.var] = value
        with self.text.scope():
            result = self.emit(node.body)
        if outer is not None:
            self.text.forget()
            self.variables[node.var] = outer
        return result

    def _emit_ramp(self, node: e.Ramp) -> Value:
        steps = self._multiples(self.emit(node.stride), node.lanes)
        base = self.emit(node.base)
        return steps if base.text == "0" else self._add_to_each(base, steps)

    def _add_to_each(self, scalar: Value, vector: Value) -> Value:
        return self.text.binary("add", self.text.splat(scalar, lanes_of(vector.type)), vector)

    def _multiples(self, step: Value, lanes: int) -> Value:
        """0, `step`, twice `step`..."""
        known = _literal(step)
        numbers = range(lanes) if known is None else [lane * known for lane in range(lanes)]
        bits = int(step.type[1:])
        listed = ", ".join(f"{step.type} {_wrapped(number, bits)}" for number in numbers)
        constant = Value(vector_type(step.type, lanes), f"<{listed}>")
        if known is not None:
            return constant
        return self.text.binary("mul", constant, self.text.splat(step, lanes))

    # -- memory --

    def pointer(self, buffer: Buffer) -> Value:
        """The address of the buffer's first element."""
        if buffer not in self.pointers:
            raise CompileError(
                f"{buffer.name}: expected a buffer that is an argument or allocated, found neither"
            )
        pointer = self.pointers[buffer]
        if buffer.elem_offset is None:
            return pointer
        offset = self.dimension(buffer.elem_offset)
        return self.text.element_pointer(memory_type(buffer.dtype), pointer, offset)

    def strides(self, buffer: Buffer) -> list[Value]:
        """The distances, in elements, between neighbours along each dimension, as ``i64``; 0 along
        a dimension of one element that broadcasts."""
        extents = [self.dimension(extent) for extent in buffer.shape]
        if buffer.strides:
            made = [self.dimension(s) for s in buffer.strides]
        else:
            made = [integer("i64", 1)]
            for extent in extents[:0:-1]:
                made.append(self.times(extent, made[-1]))
            made = made[::-1][: len(extents)]
        if not buffer.auto_broadcast:
            return made
        none, one = integer("i64", 0), integer("i64", 1)
        return [
            self.text.select(self.text.icmp("eq", extent, one), none, stride)
            for extent, stride in zip(extents, made, strict=True)
        ]

    def index(self, node: PrimExpr) -> Value:
        """An integer expression as ``i64``, or a vector of it."""
        if isinstance(node, e.IntImm):
            return integer("i64", node.value)
        return self.conversions.cast(self.emit(node), node.dtype, INT64)

    def dimension(self, node: PrimExpr) -> Value:
        """The exact value of a dimension, a stride or an offset of a buffer, which no pass has
        widened, as ``i64``."""
        made = self._dimensions.get(node)
        if made is None:
            made = self._dimensions[node] = widened(node)
        return self.index(made)

    def times(self, a: Value, b: Value) -> Value:
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return integer("i64", x * y)
        if x in (0, 1) or y in (0, 1):
            return (b if x == 1 else a) if 1 in (x, y) else integer("i64", 0)
        return self.text.binary("mul", a, b, self.no_wrap)

    def _plus(self, a: Value, b: Value) -> Value:
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return integer("i64", x + y)
        if x == 0 or y == 0:
            return b if x == 0 else a
        return self.text.binary("add", a, b, "nsw")

    def _split(self, node: PrimExpr) -> tuple[Value, int]:
        """An index as ``i64``, and a constant to be added to it."""
        if isinstance(node, e.IntImm):
            return _ZERO_INDEX, node.value
        if node.dtype != INT64:
            return self.index(node), 0
        if isinstance(node, Var):
            value = self.emit(node)
            known = _literal(value)
            return (value, 0) if known is None else (_ZERO_INDEX, known)
        if isinstance(node, e.Add | e.Sub | e.Mul):
            (a, x), (b, y) = self._split(node.a), self._split(node.b)
            if isinstance(node, e.Add):
                return self._added(a, b), x + y
            if b is _ZERO_INDEX:
                return (a, x - y) if isinstance(node, e.Sub) else (self._scaled(a, y), x * y)
            if isinstance(node, e.Mul) and a is _ZERO_INDEX:
                return self._scaled(b, x), x * y
        return self.index(node), 0

    def _added(self, a: Value, b: Value, flags: str = "") -> Value:
        if a is _ZERO_INDEX or b is _ZERO_INDEX:
            return b if a is _ZERO_INDEX else a
        return self.text.binary("add", a, b, flags)

    def _scaled(self, a: Value, by: int, flags: str = "") -> Value:
        if a is _ZERO_INDEX or by in (0, 1):
            return a if by else _ZERO_INDEX
        return self.text.binary("mul", a, integer("i64", by), flags)

    def _constant_strides(self, buffer: Buffer) -> Sequence[int | None]:
        """The distances between neighbours along each dimension, None where they aren't known."""
        known = self._strides.get(buffer)
        if known is None:
            apart = list(buffer.strides) or [e.const(1)]
            known = [e.const_int(stride) for stride in apart]
            if not buffer.strides:
                for extent in buffer.shape[:0:-1]:
                    below, factor = known[0], e.const_int(extent)
                    known.insert(0, None if below is None or factor is None else below * factor)
            if buffer.auto_broadcast:
                known = [None] * len(known)
            self._strides[buffer] = known
        return known

    def address(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> Address:
        """Where ``buffer[indices]`` is."""
        offset, constant, step, constant_step, lanes = _ZERO_INDEX, 0, _ZERO_INDEX, 0, 1
        offsets: Value | None = None
        factors = self._constant_strides(buffer)
        strides = self.strides(buffer) if None in factors else ()
        for node, dim in joined(buffer, indices):
            factor = factors[dim]
            stride = strides[dim] if factor is None else integer("i64", factor)
            lanes = max(lanes, node.dtype.lanes)
            first = node
            if isinstance(node, e.Ramp):
                first, apart = node.base, e.const_int(node.stride)
                if apart is None or factor is None:
                    step = self._plus(step, self.times(self.index(node.stride), stride))
                else:
                    constant_step += apart * factor
            elif isinstance(node, e.Broadcast):
                first = node.value
            if first.dtype.lanes > 1:
                scaled = self.text.binary(
                    "mul", self.index(first), self.text.splat(stride, first.dtype.lanes)
                )
                offsets = scaled if offsets is None else self.text.binary("add", offsets, scaled)
            elif factor is None:
                offset = self._plus(offset, self.times(self.index(first), stride))
            else:
                value, more = self._split(first)
                offset = self._added(offset, self._scaled(value, factor, "nsw"), "nsw")
                constant += more * factor
        step = self._plus(step, integer("i64", constant_step))
        element = memory_type(buffer.dtype)
        pointer = self._shifted(element, self.pointer(buffer), offset, constant)
        if lanes == 1:
            return Address(pointer)
        if offsets is None and _literal(step) in (0, 1):
            return Address(pointer, lanes, _literal(step))
        if offsets is None and _literal(step) == -1:
            last = self.text.element_pointer(element, pointer, integer("i64", 1 - lanes))
            return Address(last, lanes, -1)
        ramp = self._multiples(step, lanes)
        return Address(
            pointer,
            lanes,
            None,
            ramp if offsets is None else self.text.binary("add", offsets, ramp),
            _literal(step) if offsets is None else None,
        )

    def _shifted(self, element: str, pointer: Value, offset: Value, constant: int) -> Value:
        """The element at ``offset + constant``. What is constant is added last: then unrolled loops
        share the rest, and it is part of the instruction that reads. Without it an address may be
        that of nothing."""
        if constant and _literal(offset) is None:
            pointer = self.text.element_pointer(element, pointer, offset, inbounds=False)
            rest = integer("i64", constant)
            return self.text.element_pointer(element, pointer, rest, inbounds=False)
        place = self._plus(offset, integer("i64", constant))
        return self.text.element_pointer(element, pointer, place)

    def _emit_load(self, node: e.BufferLoad) -> Value:
        self._needs.add(node.buffer.data)
        dtype = node.buffer.dtype
        predicate = _unless_all(node.predicate)
        if predicate is None:
            loaded = self._load(dtype, self.address(node.buffer, node.indices))
        elif _is_never(predicate):
            loaded = zero(vector_type(memory_type(dtype), predicate.dtype.lanes))
        elif predicate.dtype.lanes == 1:
            loaded = self._load_if(self.emit(predicate), node)
        else:
            mask = self.emit(predicate)
            loaded = self._load_masked(dtype, self.address(node.buffer, node.indices), mask)
        return self.conversions.from_memory(loaded, dtype)

    def _load(self, dtype: DType, where: Address) -> Value:
        align, scalar = dtype.element.itemsize, memory_type(dtype)
        if where.lanes == 1:
            return self.text.load(scalar, where.pointer, align)
        if where.step == 0:
            return self.text.splat(self.text.load(scalar, where.pointer, align), where.lanes)
        type = vector_type(scalar, where.lanes)
        if where.apart in _STRIDES:
            return self._load_apart(type, where.pointer, where.apart, align)
        if where.step is None:
            return self.text.gather(type, self._lane_pointers(where, scalar), align)
        loaded = self.text.load(type, where.pointer, align)
        return loaded if where.step == 1 else self.text.reverse(loaded)

    def _load_apart(
        self, type: str, pointer: Value, step: int, align: int, mask: Value | None = None
    ) -> Value:
        """Every `step`-th element, picked from vectors of neighbours: no gather is as fast. What is
        read lies between the first and the last of them, so it is the same object's; with a mask,
        just the elements themselves are."""
        lanes = lanes_of(type)
        last = (lanes - 1) * step + 1 - lanes  # where the last vector begins
        made: Value | None = None
        for begin in (*range(0, last, lanes), last):
            place = self.text.element_pointer(element_type(type), pointer, integer("i64", begin))
            if mask is None:
                part = self.text.load(type, place, align)
            else:
                here = range(begin, begin + lanes)
                wanted = [lanes if p % step else p // step for p in here]  # `lanes`: a zero
                part_mask = self.text.shuffle(mask, zero(mask.type), wanted)
                part = self.text.masked_load(type, place, align, part_mask)
            places = [lane * step - begin for lane in range(lanes)]
            chosen = [  # what came before, what is here, or what comes later
                lane if p < 0 else lanes + p if p < lanes else None for lane, p in enumerate(places)
            ]
            made = self.text.shuffle(part if made is None else made, part, chosen)
        assert made is not None
        return made

    def _load_masked(self, dtype: DType, where: Address, mask: Value) -> Value:
        align, scalar = dtype.element.itemsize, memory_type(dtype)
        type = vector_type(scalar, where.lanes)
        if where.step == 1:
            return self.text.masked_load(type, where.pointer, align, mask)
        if where.step == -1:
            reversed_mask = self.text.reverse(mask)
            loaded = self.text.masked_load(type, where.pointer, align, reversed_mask)
            return self.text.reverse(loaded)
        if where.apart in _STRIDES:
            loaded = self._load_apart(type, where.pointer, where.apart, align, mask)
            return self.text.select(mask, loaded, zero(type))
        return self.text.gather(type, self._lane_pointers(where, scalar), align, mask)

    def _load_if(self, holds: Value, node: e.BufferLoad) -> Value:
        """One element, read only where `holds`."""
        dtype = node.buffer.dtype
        read, join = self.text.block("read"), self.text.block("endif")
        before = self.text.current
        self.text.branch_if(holds, read, join)
        self.text.place(read)
        with self.text.scope():
            loaded = self._load(dtype, self.address(node.buffer, node.indices))
        came_from = self.text.current
        self.text.branch(join)
        self.text.place(join)
        nothing = Value(loaded.type, _ZERO[loaded.type[0]])
        return self.text.phi(loaded.type, (nothing, before), (loaded, came_from))

    def store(self, node: BufferStore, value: Value) -> None:
        """Stores `value`, which is in the buffer's own dtype."""
        predicate = _unless_all(node.predicate)
        if predicate is not None and _is_never(predicate):
            return
        memory = self.conversions.to_memory(value, node.buffer.dtype)
        align = node.buffer.dtype.element.itemsize
        if predicate is None:
            self._store(memory, self.address(node.buffer, node.indices), align)
        elif predicate.dtype.lanes == 1:
            write, join = self.text.block("write"), self.text.block("endif")
            self.text.branch_if(self.emit(predicate), write, join)
            self.text.place(write)
            with self.text.scope():
                self._store(memory, self.address(node.buffer, node.indices), align)
            self.text.branch(join)
            self.text.place(join)
        else:
            mask = self.emit(predicate)
            self._store_masked(memory, self.address(node.buffer, node.indices), align, mask)

    def _store(self, memory: Value, where: Address, align: int) -> None:
        if where.lanes == 1 or where.step == 1:
            self.text.store(memory, where.pointer, align)
        elif where.step == -1:
            self.text.store(self.text.reverse(memory), where.pointer, align)
        elif where.step == 0:  # the last lane is what remains
            self.text.store(self.text.extract(memory, where.lanes - 1), where.pointer, align)
        else:
            pointers = self._lane_pointers(where, element_type(memory.type))
            self.text.scatter(memory, pointers, align)

    def _store_masked(self, memory: Value, where: Address, align: int, mask: Value) -> None:
        if where.step == 1:
            self.text.masked_store(memory, where.pointer, align, mask)
        elif where.step == -1:
            turned, mask = self.text.reverse(memory), self.text.reverse(mask)
            self.text.masked_store(turned, where.pointer, align, mask)
        else:
            pointers = self._lane_pointers(where, element_type(memory.type))
            self.text.scatter(memory, pointers, align, mask)

    def _lane_pointers(self, where: Address, element: str) -> Value:
        type = vector_type("ptr", where.lanes)
        if where.offsets is None:
            return self.text.splat(where.pointer, where.lanes)
        return self.text.vector_of_pointers(type, element, where.pointer, where.offsets)

    # -- calls --

    def _emit_call(self, node: e.Call) -> Value:
        if node.op in INTRINSICS:
            args = [self.emit(a) for a in node.args]
            return self.math.emit(node.op, node.args[0].dtype.element, args)
        if node.op not in self.calls:
            raise CompileError(f"{node.op}: expected a call that minitvm knows, found {node}")
        self.has_called_out |= node.op in _CALLS_OUT
        return self.calls[node.op](node)

    def _emit_if_then_else(self, node: e.Call) -> Value:
        condition, *branches = node.args
        chosen = self.emit(condition)
        if lanes_of(chosen.type) > 1:
            raise CompileError(f"if_then_else: expected a scalar condition, got {condition}")
        if all(_is_cheap_and_safe(b) for b in branches):
            return self.text.select(chosen, self.emit(branches[0]), self.emit(branches[1]))
        yes, no, join = (self.text.block(name) for name in ("then", "else", "endif"))
        self.text.branch_if(chosen, yes, no)
        arrived = []
        for block, branch in ((yes, branches[0]), (no, branches[1])):
            self.text.place(block)
            with self.text.scope():
                value = self.emit(branch)
            arrived.append((value, self.text.current))
            self.text.branch(join)
        self.text.place(join)
        return self.text.phi(arrived[0][0].type, *arrived)

    def _emit_reinterpret(self, node: e.Call) -> Value:
        """Through memory's form, which is the bits that the dtype says. Neighbours in memory are
        loaded as what they are to be."""
        source, wanted = node.args[0], memory_type(node.dtype)
        if isinstance(source, e.BufferLoad) and _unless_all(source.predicate) is None:
            where = self.address(source.buffer, source.indices)
            if where.step == 1 and not source.dtype.is_bool:
                self._needs.add(source.buffer.data)
                loaded = self.text.load(wanted, where.pointer, source.buffer.dtype.itemsize)
                return self.conversions.from_memory(loaded, node.dtype)
        memory = self.conversions.to_memory(self.emit(source), source.dtype)
        bits = self.text.convert_whole(memory, wanted)
        return self.conversions.from_memory(bits, node.dtype)

    def _emit_extract(self, node: e.Call) -> Value:
        vector, lane = node.args
        if vector.dtype.lanes == 1:
            return self.emit(vector)
        return self.text.extract_at(self.emit(vector), self.index(lane))

    def _emit_shuffle(self, node: e.Call) -> Value:
        a, b, *lanes = node.args
        return self.text.shuffle(self.emit(a), self.emit(b), [e.const_int(each) for each in lanes])

    def _emit_fold(self, node: e.Call) -> Value:
        start, vector = node.args
        return self._folds.emit(node.op, node.dtype, self.emit(start), self.emit(vector))

    def _emit_access_ptr(self, node: e.Call) -> Value:
        reference, offset = node.args[0], node.args[1]
        assert isinstance(reference, e.BufferRef)
        pointer = self.pointer(reference.buffer)
        return self.text.element_pointer(
            memory_type(reference.buffer.dtype), pointer, self.index(offset)
        )

    def _emit_prefetch(self, node: e.Call) -> Value:
        """A request to read, for all levels of the cache. Its address is an integer on the way, so
        that it may lie outside of the buffer."""
        (load,) = node.args
        assert isinstance(load, e.BufferLoad)
        text, buffer = self.text, load.buffer
        size = integer("i64", buffer.dtype.itemsize)
        place = text.convert("ptrtoint", self.pointer(buffer), "i64")
        for index, stride in zip(load.indices, self.strides(buffer), strict=True):
            step = self.times(self.times(self.index(index), stride), size)
            place = text.binary("add", place, step)
        options = [integer("i32", number) for number in (0, 3, 1)]
        where = text.convert("inttoptr", place, "ptr")
        text.call(Value("ptr", "@llvm.prefetch.p0"), "void", [where, *options])
        return integer("i32", 0)

    def _emit_llvm_intrinsic(self, node: e.Call) -> Value:
        name = _string_argument(node)
        of_tiles = name.startswith("llvm.x86.") and name.endswith(".internal")
        lacking = _FEATURES.get(name, _AMX if of_tiles else frozenset()) - self._target.features
        if lacking:
            raise CompileError(
                f"{name}: expected a target with {', '.join(sorted(lacking))}, got "
                f"{str(self._target)!r}: another tensor intrinsic, or another -mcpu or -mattr"
            )
        if of_tiles:
            return self._emit_of_tiles(name, node)
        emit = self._emit_bits if name.startswith(_OF_TARGETS) else self.emit
        args = [emit(a) for a in node.args[1:]]
        if name not in _FEATURES:
            check_intrinsic(name, register_type(node.dtype), args, self._target)
        result = self.text.call(Value("ptr", f"@{name}"), register_type(node.dtype), args)
        return self.conversions.round(result, node.dtype) if node.dtype.is_float else result

    def _emit_of_tiles(self, name: str, node: e.Call) -> Value:
        """An instruction of AMX. A tile is a vector of 256 words here, and of a type of its own
        there, which can't be in memory: LLVM does away with the casts where it isn't."""
        text = self.text
        args = []
        for value in map(self.emit, node.args[1:]):
            if value.type == _TILE:
                cast = Value("ptr", "@llvm.x86.cast.vector.to.tile")
                value = text.call(cast, "x86_amx", [value])
            args.append(value)
        function = Value("ptr", f"@{name}")
        type = "x86_amx" if register_type(node.dtype) == _TILE else "void"
        check_intrinsic(name, type, args, self._target)
        tile = text.call(function, type, args)
        if type == "void":
            return integer(register_type(node.dtype), 0)
        return text.call(Value("ptr", "@llvm.x86.cast.tile.to.vector"), _TILE, [tile])

    def _emit_bits(self, node: PrimExpr) -> Value:
        """A value as a target's own instructions take it: 16-bit floats as they are in memory."""
        value, dtype = self.emit(node), node.dtype
        if not dtype.is_float or dtype.bits != 16:
            return value
        memory = self.conversions.to_memory(value, dtype)
        return self.text.convert("bitcast", memory, "bfloat" if dtype.is_bfloat16 else "half")

    def _emit_extern(self, node: e.Call) -> Value:
        """A C function, in the C calling convention: a ``bool`` is passed as a byte."""
        name = _string_argument(node)
        args: list[Value] = []
        for arg in node.args[1:]:
            dtype = arg.dtype
            if dtype.lanes > 1 or (dtype.is_float and dtype.bits == 16):
                raise CompileError(
                    f"call_extern {name!r}: C has no type for the argument of {dtype}"
                )
            args.append(self.conversions.to_memory(self.emit(arg), dtype))
        result = memory_type(node.dtype)
        params = ", ".join(a.type for a in args)
        function = self.text.module.external_function(name, f"{result} ({params})")
        made = self.text.call(function, result, args)
        self.text.forget()  # it may have written what was read before
        return self.conversions.from_memory(made, node.dtype)


def _string_argument(node: e.Call) -> str:
    first = node.args[0] if node.args else None
    if not isinstance(first, e.StringImm):
        raise CompileError(f"{node.op}: expected the name of a function first, got {first}")
    return first.value


def _unless_all(predicate: PrimExpr | None) -> PrimExpr | None:
    """`predicate`; None where it holds in every lane."""
    inner = predicate.value if isinstance(predicate, e.Broadcast) else predicate
    return None if isinstance(inner, e.IntImm) and inner.value else predicate


def _is_never(predicate: PrimExpr) -> bool:
    inner = predicate.value if isinstance(predicate, e.Broadcast) else predicate
    return isinstance(inner, e.IntImm)  # true ones are gone


# What the intrinsics of tensor intrinsics need of a target: without it LLVM ends the process.
_FEATURES = {each.llvm: each.features for each in (*DOT_PRODUCTS, *MATRIX_PRODUCTS)}
_AMX = frozenset({"amx-tile"})
_TILE = "<256 x i32>"  # a tile of AMX
_OF_TARGETS = ("llvm.x86.", "llvm.aarch64.")  # how the names of their own intrinsics begin
_ZERO_INDEX = integer("i64", 0)
_CALLS_OUT = ("call_packed", "call_extern", "call_llvm_intrin", "tvm_access_ptr", "prefetch")
_STRIDES = (2, 3, 4)  # steps that are read as neighbours
_ZERO = {"i": "0", "f": "0.0", "d": "0.0", "p": "null"}  # by the first letter of an LLVM type


def _chooses_first_lanes(node: e.Comparison) -> bool:
    """Whether a comparison is ``ramp(0, 1) < broadcast(n)``, of lanes that fill a register."""
    return (
        isinstance(node, e.LT)
        and isinstance(node.a, e.Ramp)
        and isinstance(node.b, e.Broadcast)
        and e.const_int(node.a.base) == 0
        and e.const_int(node.a.stride) == 1
        and node.a.dtype.is_int
        and node.a.lanes < node.a.dtype.max()
        and node.a.lanes in (8, 16, 32, 64)
    )


def _wrapped(number: int, bits: int) -> int:
    """`number` as a signed integer of as many bits."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def _literal(value: Value) -> int | None:
    digits = value.text
    if digits[0] == "%":
        return None
    return int(digits) if digits.lstrip("-").isdigit() else None


_LEAVES = (e.Var, e.IntImm, e.FloatImm, e.StringImm, e.BufferRef)
_CHEAP = (e.Var, e.IntImm, e.FloatImm, e.Add, e.Sub, e.Mul, e.Min, e.Max, e.Cast, e.EQ, e.NE, e.LT,
          e.LE, e.GT, e.GE, e.And, e.Or, e.Not, e.Broadcast, e.Ramp)  # fmt: skip


def _is_cheap_and_safe(node: PrimExpr) -> bool:
    """Whether evaluating `node` in vain costs little and can do no harm."""
    return all(isinstance(each, _CHEAP) for each in walk_once(node))
