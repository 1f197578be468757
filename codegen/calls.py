"""Emits calls in expressions: control, vectors, memory, LLVM's intrinsics and C functions."""

from __future__ import annotations

from collections.abc import Callable

from minitvm.arith.effects import choices_in_both
from minitvm.codegen.accesses import address, pointer_of, unless_all
from minitvm.codegen.choices import emit_branch
from minitvm.codegen.conversion import memory_type, register_type
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_intrinsics import check_intrinsic
from minitvm.codegen.llvm_text import NULL, Value, i32, integer, lanes_of
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS
from minitvm.te.intrinsics.matrix_product import MATRIX_PRODUCTS
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import walk_once
from minitvm.tir.intrinsics import INTRINSICS, VECTOR_FOLDS

# The features required by the LLVM intrinsics of tensor intrinsics: without them LLVM ends the
# process.
_FEATURES = {each.llvm: each.features for each in (*DOT_PRODUCTS, *MATRIX_PRODUCTS)}
_AMX = frozenset({"amx-tile"})
_TILE = "<256 x i32>"  # a tile of AMX
_OF_TARGETS = ("llvm.x86.", "llvm.aarch64.")  # the prefixes of their own intrinsics
# The functions that fold vectors to one value, by the names of VECTOR_FOLDS.
_OF_FLOATS = {"vector_reduce_add": "fadd", "vector_reduce_mul": "fmul"}
_FLOAT_EXTREMA = {"vector_reduce_min": "minimum", "vector_reduce_max": "maximum"}
_BITWISE = {"vector_reduce_and": "and", "vector_reduce_or": "or", "vector_reduce_xor": "xor"}
_CALLS_OUT = ("call_packed", "call_extern", "call_llvm_intrin", "tvm_access_ptr", "prefetch")
_CHEAP = (e.Var, e.IntImm, e.FloatImm, e.Add, e.Sub, e.Mul, e.Min, e.Max, e.Cast, e.EQ, e.NE, e.LT,
          e.LE, e.GT, e.GE, e.And, e.Or, e.Not, e.Broadcast, e.Ramp)  # fmt: skip


def emit_call(emitter: Emitter, node: e.Call) -> Value:
    """Emits a call, by the name of its operator."""
    if node.op in INTRINSICS:
        args = [emitter.emit(a) for a in node.args]
        return emitter.math.emit(node.op, node.args[0].dtype.element, args)
    if node.op not in emitter.calls:
        raise CompileError(f"{node.op}: expected a call that minitvm knows, found {node}")
    emitter.has_called_out |= node.op in _CALLS_OUT
    return emitter.calls[node.op](emitter, node)


def name_called(node: e.Call) -> str:
    """The first argument of a call that names a function."""
    first = node.args[0] if node.args else None
    if not isinstance(first, e.StringImm):
        raise CompileError(f"{node.op}: expected the name of a function first, got {first}")
    return first.value


# -- control and vectors --


def _emit_if_then_else(emitter: Emitter, node: e.Call) -> Value:
    text = emitter.text
    condition, *branches = node.args
    chosen = emitter.emit(condition)
    if lanes_of(chosen.type) > 1:
        raise CompileError(f"if_then_else: expected a scalar condition, got {condition}")
    if all(_is_cheap_and_safe(b) for b in branches):
        return text.select(chosen, *(emit_branch(emitter, condition, each) for each in branches))
    for each in choices_in_both(branches[0], branches[1], emitter.choices):
        emitter.emit(each)
    yes, no, join = text.blocks("then", "else", "endif")
    text.branch_if(chosen, yes, no)
    arrived = []
    for block, branch in ((yes, branches[0]), (no, branches[1])):
        with text.inside(block, join):
            arrived.append((emit_branch(emitter, condition, branch), text.current))
    text.place(join)
    return text.phi(arrived[0][0].type, *arrived)


def _is_cheap_and_safe(node: PrimExpr) -> bool:
    """Whether evaluating `node` in vain costs little and can do no harm."""
    return all(isinstance(each, _CHEAP) for each in walk_once(node))


def _emit_reinterpret(emitter: Emitter, node: e.Call) -> Value:
    """The memory form of a value, read as another dtype. Neighbours in memory are loaded in the
    other dtype directly."""
    source, wanted = node.args[0], memory_type(node.dtype)
    if isinstance(source, e.BufferLoad) and unless_all(source.predicate) is None:
        where = address(emitter, source.buffer, source.indices)
        if where.step == 1 and not source.dtype.is_bool:
            emitter.needs.add(source.buffer.data)
            loaded = emitter.text.load(wanted, where.pointer, source.buffer.dtype.itemsize)
            return emitter.conversions.from_memory(loaded, node.dtype)
    memory = emitter.conversions.to_memory(emitter.emit(source), source.dtype)
    bits = emitter.text.convert_whole(memory, wanted)
    return emitter.conversions.from_memory(bits, node.dtype)


def _emit_extract(emitter: Emitter, node: e.Call) -> Value:
    vector, lane = node.args
    if vector.dtype.lanes == 1:
        return emitter.emit(vector)
    return emitter.text.extract(emitter.emit(vector), emitter.index(lane))


def _emit_shuffle(emitter: Emitter, node: e.Call) -> Value:
    a, b, *lanes = node.args
    order = [e.const_int(each) for each in lanes]
    return emitter.text.shuffle(emitter.emit(a), emitter.emit(b), order)


def _emit_fold(emitter: Emitter, node: e.Call) -> Value:
    """The lanes of a vector, folded into a value of the node's dtype. Where floating point is
    strict, sums and products of floats are taken in the order of the lanes."""
    name, dtype, text = node.op, node.dtype, emitter.text
    start, vector = map(emitter.emit, node.args)

    def folded(operation: str, *values: Value, flags: str = "") -> Value:
        return text.intrinsic(f"vector.reduce.{operation}", start.type, *values, flags=flags)

    if name in _BITWISE:
        return text.binary(_BITWISE[name], start, folded(_BITWISE[name], vector))
    if not dtype.is_float:
        each = folded(_integer_fold(name, dtype), vector)
        return emitter.integers.binary(VECTOR_FOLDS[name], dtype, start, each)
    if name in _FLOAT_EXTREMA:
        operation = _FLOAT_EXTREMA[name]
        extremum = folded(f"f{operation}", vector, flags="nsz")
        return text.intrinsic(operation, start.type, start, extremum, flags="nsz")
    if dtype.bits != 16:
        flags = "" if emitter.strict else "reassoc"
        return folded(_OF_FLOATS[name], start, vector, flags=flags)
    for lane in range(lanes_of(vector.type)):  # 16-bit types are rounded after each step
        start = text.binary(_OF_FLOATS[name], start, text.extract(vector, lane))
        start = emitter.conversions.round(start, dtype)
    return start


def _integer_fold(name: str, dtype: DType) -> str:
    if name not in _FLOAT_EXTREMA:
        return VECTOR_FOLDS[name].lower()
    if dtype.is_bool:
        return "and" if name == "vector_reduce_min" else "or"
    return ("s" if dtype.is_int else "u") + VECTOR_FOLDS[name].lower()


# -- memory --


def _emit_access_ptr(emitter: Emitter, node: e.Call) -> Value:
    reference, offset = node.args[0], node.args[1]
    assert isinstance(reference, e.BufferRef)
    pointer = pointer_of(emitter, reference.buffer)
    element = memory_type(reference.buffer.dtype)
    return emitter.text.element_pointer(element, pointer, emitter.index(offset))


def _emit_are_apart(emitter: Emitter, node: e.Call) -> Value:
    found = {buffer.data: pointer for buffer, pointer in emitter.pointers.items()}
    a, b = (found[each] for each in node.args if isinstance(each, e.Var))
    return emitter.text.icmp("ne", a, b)


def _emit_prefetch(emitter: Emitter, node: e.Call) -> Value:
    """A request to read, for all levels of the cache. The address may lie outside of the buffer."""
    (load,) = node.args
    assert isinstance(load, e.BufferLoad)
    where = address(emitter, load.buffer, load.indices, inbounds=False).pointer
    emitter.text.call(Value("ptr", "@llvm.prefetch.p0"), "void", [where, i32(0), i32(3), i32(1)])
    return i32(0)


# -- functions of LLVM and C --


def _emit_llvm_intrinsic(emitter: Emitter, node: e.Call) -> Value:
    name = name_called(node)
    of_tiles = name.startswith("llvm.x86.") and name.endswith(".internal")
    lacking = _FEATURES.get(name, _AMX if of_tiles else frozenset()) - emitter.target.features
    if lacking:
        raise CompileError(
            f"{name}: expected a target with {', '.join(sorted(lacking))}, got "
            f"{str(emitter.target)!r}: another tensor intrinsic, or another -mcpu or -mattr"
        )
    if of_tiles:
        return _emit_of_tiles(emitter, name, node)
    of_target = name.startswith(_OF_TARGETS)
    args = [_emit_bits(emitter, a) if of_target else emitter.emit(a) for a in node.args[1:]]
    if name not in _FEATURES:
        check_intrinsic(name, register_type(node.dtype), args, emitter.target)
    result = emitter.text.call(Value("ptr", f"@{name}"), register_type(node.dtype), args)
    return emitter.conversions.round(result, node.dtype) if node.dtype.is_float else result


def _emit_of_tiles(emitter: Emitter, name: str, node: e.Call) -> Value:
    """An instruction of AMX. A tile is a vector of 256 words here, and has a type of its own there,
    whose values can't be in memory: LLVM removes the casts of tiles that aren't."""
    text = emitter.text
    args = []
    for value in map(emitter.emit, node.args[1:]):
        if value.type == _TILE:
            value = text.call(Value("ptr", "@llvm.x86.cast.vector.to.tile"), "x86_amx", [value])
        args.append(value)
    type = "x86_amx" if register_type(node.dtype) == _TILE else "void"
    check_intrinsic(name, type, args, emitter.target)
    tile = text.call(Value("ptr", f"@{name}"), type, args)
    if type == "void":
        return integer(register_type(node.dtype), 0)
    return text.call(Value("ptr", "@llvm.x86.cast.tile.to.vector"), _TILE, [tile])


def _emit_bits(emitter: Emitter, node: PrimExpr) -> Value:
    """A value as a target's own instructions take it: 16-bit floats in their memory form."""
    value, dtype = emitter.emit(node), node.dtype
    if not dtype.is_float or dtype.bits != 16:
        return value
    memory = emitter.conversions.to_memory(value, dtype)
    return emitter.text.convert("bitcast", memory, "bfloat" if dtype.is_bfloat16 else "half")


def _emit_extern(emitter: Emitter, node: e.Call) -> Value:
    """A C function, in the C calling convention: a ``bool`` is passed as a byte."""
    name, args = name_called(node), []
    for arg in node.args[1:]:
        if arg.dtype.lanes > 1 or (arg.dtype.is_float and arg.dtype.bits == 16):
            raise CompileError(
                f"call_extern {name!r}: C has no type for the argument of {arg.dtype}"
            )
        args.append(emitter.conversions.to_memory(emitter.emit(arg), arg.dtype))
    made = emitter.text.call_external(name, memory_type(node.dtype), args)
    emitter.text.forget()  # the callee may have written memory
    return emitter.conversions.from_memory(made, node.dtype)


CALLS: dict[str, Callable[[Emitter, e.Call], Value]] = {
    "if_then_else": _emit_if_then_else,
    "likely": lambda emitter, node: emitter.emit(node.args[0]),
    "reinterpret": _emit_reinterpret,
    "isnullptr": lambda emitter, node: emitter.text.icmp("eq", emitter.emit(node.args[0]), NULL),
    "are_apart": _emit_are_apart,
    "tvm_access_ptr": _emit_access_ptr,
    "prefetch": _emit_prefetch,
    "call_llvm_intrin": _emit_llvm_intrinsic,
    "call_llvm_pure_intrin": _emit_llvm_intrinsic,
    "call_extern": _emit_extern,
    "vector_extract": _emit_extract,
    "vector_shuffle": _emit_shuffle,
    **dict.fromkeys(VECTOR_FOLDS, _emit_fold),
}
