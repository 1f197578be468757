"""The reference interpreter of the loop IR, slow and obviously right, which defines its meaning.

:func:`interpret` runs a function on numpy arrays. The meaning of scalars is that of
:mod:`minitvm.tir.scalars`, on Python's ``bool``, ``int`` and ``float``; a vector is a tuple of
them. Every loop runs serially, in order. Passes, schedules and compiled code are tested against it.

The tree is compiled once to closures: a node becomes a function of the environment, which maps
variables to values and buffers to memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np

from minitvm.runtime.dtype import BOOL, FLOAT32, FLOAT64, INT64, DType
from minitvm.runtime.errors import RAISABLE, CompileError
from minitvm.runtime.values import number_as
from minitvm.tir import expr as e
from minitvm.tir import indices, scalars
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.intrinsics import INTRINSICS, VECTOR_FOLDS, fold
from minitvm.tir.scalars import Scalar
from minitvm.tir.stmt import PrimFunc, Stmt
from minitvm.tir.unwritten import Unwritten, result_of
from minitvm.tir.verify import verify


def interpret(
    func: PrimFunc, *args: Any, packed: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """Runs a function of the loop IR, writing to the arrays among its arguments.

    Parameters
    ----------
    func : PrimFunc
        Valid loop IR.
    args
        One for each parameter: for a tensor a numpy array of its shape and dtype, of any strides
        (for ``bfloat16`` of numpy's ``uint16``, holding the bit patterns, or of an extension dtype
        of that name); for a scalar a Python or numpy number.
    packed : mapping of str to callable
        The functions that ``call_packed`` calls. A buffer arrives as a numpy array. A result that
        is used must be a number that the call's dtype holds.

    Raises
    ------
    TypeError, ValueError
        When the arguments don't fit the parameters.
    IndexError
        When an access leaves its buffer.
    InternalError
        When `func` is not valid, or its results depend on an element of an ``Allocate`` that was
        never written.

    >>> import numpy as np
    >>> from minitvm.tir.expr import IntImm, Var
    >>> from minitvm.tir.buffer import decl_buffer
    >>> from minitvm.tir.stmt import BufferStore, For, ForKind, PrimFunc
    >>> x, i, n = Var("x", "handle"), Var("i"), Var("n")
    >>> X = decl_buffer((n,), "float32", "X")
    >>> body = For(i, IntImm("int32", 0), n, ForKind.SERIAL, BufferStore(X, X[i] * 2.0, (i,)))
    >>> array = np.arange(3, dtype="float32")
    >>> interpret(PrimFunc((x,), body, {x: X}, "double"), array)
    >>> array
    array([0., 2., 4.], dtype=float32)
    """
    verify(func)
    compiler = _Compiler(func.name, packed or {})
    body = compiler.stmt(func.body)
    body(_bound_arguments(compiler, func, args))


Value = Any  # a Scalar, a tuple of them (a vector), a str, a _Memory, an address
Environment = dict[Any, Any]  # the values of variables, and the memory of buffers
Evaluator = Callable[[Environment], Value]
Runner = Callable[[Environment], None]


class _Memory:
    """The elements of a buffer: an array, and flags of the written elements.

    `written` is None for an argument, whose elements all count as written.
    """

    __slots__ = ("_array", "_broadcasts", "_decode", "_encode", "_label", "_written", "argument")

    def __init__(self, label: str, buffer: Buffer, argument: Any, fresh: bool = False) -> None:
        dtype = buffer.dtype
        self.argument = argument
        self._label = label
        self._broadcasts = buffer.auto_broadcast and 1 in argument.shape
        self._array = argument.view(np.uint16) if dtype.is_bfloat16 else argument
        self._written = np.zeros(argument.shape, bool) if fresh else None
        self._decode = partial(scalars.from_bits, dtype) if dtype.is_bfloat16 else None
        self._encode = partial(scalars.to_bits, dtype) if dtype.is_bfloat16 else None

    def read(self, index: tuple[int, ...]) -> Scalar | Unwritten:
        index = self._checked(index)
        if self._written is not None and not self._written[index]:
            return Unwritten(self._at(index))
        value: Scalar = self._array.item(index)
        return value if self._decode is None else self._decode(int(value))

    def write(self, index: tuple[int, ...], value: Scalar | Unwritten) -> None:
        index = self._checked(index)
        if isinstance(value, Unwritten):
            if self._written is None:
                value.use()
            self._written[index] = False
            return
        self._array[index] = value if self._encode is None else self._encode(float(value))
        if self._written is not None:
            self._written[index] = True

    def viewed(self, label: str, buffer: Buffer, shape: Sequence[int]) -> _Memory:
        """The same elements, of a compact array, in another shape."""
        if not self.argument.flags.c_contiguous:
            raise ValueError(
                f"{self._label}: expected a compact array, whose memory {buffer.name} has in "
                f"another shape, got strides {self.argument.strides}: pass a copy"
            )
        made = _Memory(label, buffer, self.argument.reshape(shape))
        made._written = None if self._written is None else self._written.reshape(shape)
        return made

    def passed_on(self) -> Any:
        """The array, for a callee that may write all of it."""
        if self._written is not None:
            self._written[...] = True
        return self.argument

    def address(self, offset: int) -> int:
        """The address of the element `offset` elements behind the first in memory."""
        return int(self.passed_on().ctypes.data + offset * self._array.itemsize)

    def _checked(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """`index`, which must be inside; where the buffer broadcasts, 0 along an extent of 1."""
        if self._broadcasts:
            shape = self._array.shape
            index = tuple([0 if n == 1 else i for i, n in zip(index, shape, strict=True)])
        for position, (i, extent) in enumerate(zip(index, self._array.shape, strict=True)):
            if not 0 <= i < extent:
                raise IndexError(
                    f"{self._at(index)}: expected index {position} from 0 to {extent - 1}, got {i}"
                )
        return index

    def _at(self, index: tuple[int, ...]) -> str:
        return f"{self._label}[{', '.join(map(str, index))}]"


def _numpy_dtype(buffer: Buffer) -> np.dtype[Any]:
    if buffer.dtype.lanes > 1:
        raise CompileError(
            f"{buffer.name}: expected a scalar element to interpret, got {buffer.dtype}"
        )
    return np.dtype(np.uint16) if buffer.dtype.is_bfloat16 else buffer.dtype.to_numpy()


# -- Arguments ------------------------------------------------------------------------------------


def _bound_arguments(compiler: _Compiler, func: PrimFunc, args: Sequence[Any]) -> Environment:
    """The environment of a call: scalars, memory, and the variables of the tensors' layouts."""
    if len(args) != len(func.params):
        raise TypeError(f"{func.name}: expected {len(func.params)} arguments, got {len(args)}")
    env: Environment = {}
    tensors: list[tuple[str, Buffer, Any]] = []
    for position, (param, arg) in enumerate(zip(func.params, args, strict=True)):
        buffer = func.buffer_map.get(param)
        name = param.name if buffer is None else buffer.name
        where = f"{func.name}: argument {position} '{name}'"
        if buffer is None:
            env[param] = _scalar_argument(where, param.dtype, arg)
            continue
        _check_array(where, buffer, arg)
        memory = _Memory(f"{func.name}: {buffer.name}", buffer, arg)
        env[param] = env[buffer] = env[buffer.data] = memory
        tensors.append((where, buffer, arg))
    for _, buffer, array in tensors:  # variables first: shapes share them
        _bind_layout(env, buffer, array)
    for where, buffer, array in tensors:
        _check_shape(compiler, env, where, buffer, array)
    return env


def _scalar_argument(where: str, dtype: DType, arg: Any) -> Any:
    if dtype.is_handle:
        return arg
    wanted = (int, float, np.number, np.bool_) if dtype.is_float else (int, np.integer, np.bool_)
    if not isinstance(arg, wanted):
        raise TypeError(f"{where}: expected a number of {dtype}, got {type(arg).__name__}")
    value = arg.item() if isinstance(arg, np.generic) else arg
    if dtype.is_integral and not dtype.min() <= value <= dtype.max():
        raise ValueError(
            f"{where}: expected a value from {dtype.min()} to {dtype.max()}, got {value}"
        )
    return scalars.cast(dtype, value)


def _check_array(where: str, buffer: Buffer, arg: Any) -> None:
    if not isinstance(arg, np.ndarray):
        raise TypeError(f"{where}: expected a numpy array, got {type(arg).__name__}")
    extension = buffer.dtype.is_bfloat16 and arg.dtype.name == "bfloat16"
    if not extension and arg.dtype != _numpy_dtype(buffer):
        raise TypeError(f"{where}: expected dtype {buffer.dtype}, got {arg.dtype}")
    if arg.ndim != buffer.ndim:
        raise ValueError(f"{where}: expected {buffer.ndim} dimensions, got {arg.ndim}")


def _bind_layout(env: Environment, buffer: Buffer, array: Any) -> None:
    """Binds the variables that are a dimension, a stride or the offset of an argument."""
    strides = [stride // array.itemsize for stride in array.strides]
    for dimension, found in zip(buffer.shape, array.shape, strict=True):
        if isinstance(dimension, Var):
            env.setdefault(dimension, found)
    for dimension, found in zip(buffer.strides, strides, strict=False):  # none if compact
        if isinstance(dimension, Var):
            env.setdefault(dimension, found)
    if isinstance(buffer.elem_offset, Var):
        env.setdefault(buffer.elem_offset, 0)


def _check_shape(
    compiler: _Compiler, env: Environment, where: str, buffer: Buffer, array: Any
) -> None:
    for i, (dimension, found) in enumerate(zip(buffer.shape, array.shape, strict=True)):
        expected = compiler.exact(dimension)(env)
        if expected != found:
            raise ValueError(f"{where}: expected shape[{i}] == {expected}, got {found}")


# -- Compilation to closures ----------------------------------------------------------------------


class _Compiler:
    """Makes each distinct node of a function into a closure, once."""

    def __init__(self, name: str, packed: Mapping[str, Callable[..., Any]]) -> None:
        self.name = name
        self.packed = packed
        self.data: set[Var] = set()  # names for values that aren't index arithmetic
        self._made: dict[PrimExpr, Evaluator] = {}

    def exact(self, node: PrimExpr) -> Evaluator:
        """The value of a node. The value of index arithmetic is exact, and may exceed its dtype."""
        if node not in self._made:
            self._made[node] = _EXPRESSIONS[type(node)](self, node)
        return self._made[node]

    def expr(self, node: PrimExpr) -> Evaluator:
        """The value of a node as data, modulo 2**bits."""
        value, element = self.exact(node), node.dtype.element
        if not indices.is_wide(element) or isinstance(node, e.IntImm):
            return value
        into_range = _rounded(element)
        assert into_range is not None
        return _lifted(into_range, value, lanes=node.dtype.lanes)

    def exprs(self, nodes: Sequence[PrimExpr]) -> list[Evaluator]:
        return [self.expr(node) for node in nodes]

    def exacts(self, nodes: Sequence[PrimExpr]) -> list[Evaluator]:
        return [self.exact(node) for node in nodes]

    def shown(self, nodes: Sequence[PrimExpr]) -> list[Evaluator]:
        """The integers in a message, of 64 bits."""
        return [_lifted(partial(scalars.wrap, INT64), self.exact(node), lanes=1) for node in nodes]

    def bind(self, var: Var, value: PrimExpr) -> Evaluator:
        """The value of a name, which is bound before its uses are compiled."""
        if not indices.is_index_arithmetic(value, self.data):
            self.data.add(var)
        return self.exact(value)

    def stmt(self, node: Stmt) -> Runner:
        return _STATEMENTS[type(node)](self, node)


def _lifted(function: Callable[..., Scalar], *args: Evaluator, lanes: int) -> Evaluator:
    """`function` of the values of some expressions, for each lane of vectors. Where nothing wrote
    one of them, the result is no value either."""
    if lanes > 1:
        each = partial(result_of, function)
        return lambda env: tuple(map(each, *[arg(env) for arg in args]))
    if len(args) == 2:
        first, second = args
        return lambda env: result_of(function, first(env), second(env))
    return lambda env: result_of(function, *[arg(env) for arg in args])


def _constant(compiler: _Compiler, node: e.IntImm | e.FloatImm | e.StringImm) -> Evaluator:
    value = node.value
    return lambda env: value


def _variable(compiler: _Compiler, node: Var) -> Evaluator:
    return lambda env: env[node]


def _rounded(dtype: DType) -> Callable[[Any], Scalar] | None:
    """The function that brings a result into the range of a scalar type; None where no rounding is
    needed."""
    if dtype.is_float:
        return None if dtype == FLOAT64 else partial(scalars.round_float, dtype)
    low, high = dtype.min(), dtype.max()
    if dtype.is_bool:
        return bool
    return lambda value: value if low <= value <= high else scalars.wrap(dtype, value)


def _arithmetic(compiler: _Compiler, node: e.Arithmetic) -> Evaluator:
    element, name = node.dtype.element, type(node).__name__
    table: Mapping[str, Callable[[Any, Any], Scalar]] = (
        scalars.FLOAT_BINARY if element.is_float else scalars.INT_BINARY
    )
    operation, into_range = table[name], _rounded(element)
    args = compiler.exacts((node.a, node.b))
    if into_range is None or _is_exact(compiler, node):
        return _lifted(operation, *args, lanes=node.dtype.lanes)
    return _lifted(lambda a, b: into_range(operation(a, b)), *args, lanes=node.dtype.lanes)


def _is_exact(compiler: _Compiler, node: PrimExpr) -> bool:
    """Whether an operator on exact values gives an exact value."""
    if not indices.is_wide(node.dtype.element):
        return False
    return not indices.wraps(node) or indices.is_index_arithmetic(node, compiler.data)


def _comparison(compiler: _Compiler, node: e.Comparison) -> Evaluator:
    operation = scalars.COMPARE[type(node).__name__]
    return _lifted(operation, *compiler.exacts((node.a, node.b)), lanes=node.dtype.lanes)


def _not(compiler: _Compiler, node: e.Not) -> Evaluator:
    return _lifted(lambda a: not a, compiler.expr(node.a), lanes=node.dtype.lanes)


def _select(compiler: _Compiler, node: e.Select) -> Evaluator:
    values = compiler.exacts((node.condition, node.true_value, node.false_value))
    return _lifted(_chosen, *values, lanes=node.condition.dtype.lanes)


def _chosen(condition: bool, true_value: Value, false_value: Value) -> Value:
    return true_value if condition else false_value


def _cast(compiler: _Compiler, node: e.Cast) -> Evaluator:
    convert = partial(scalars.cast, node.dtype.element)
    value = (compiler.expr if node.dtype.is_float else compiler.exact)(node.value)
    return _lifted(convert, value, lanes=node.dtype.lanes)


def _let(compiler: _Compiler, node: e.Let | s.LetStmt) -> Callable[[Environment], Any]:
    var, value = node.var, compiler.bind(node.var, node.value)
    body: Callable[[Environment], Any]
    body = compiler.exact(node.body) if isinstance(node, e.Let) else compiler.stmt(node.body)

    def evaluate(env: Environment) -> Any:
        env[var] = value(env)
        return body(env)

    return evaluate


def _ramp(compiler: _Compiler, node: e.Ramp) -> Evaluator:
    element, lanes = node.dtype.element, range(node.lanes)
    exact = indices.is_index_arithmetic(node.base + node.stride, compiler.data)

    def steps(base: int, stride: int) -> Value:
        made = [base + i * stride for i in lanes]
        return tuple(made if exact else [scalars.wrap(element, each) for each in made])

    return _lifted(steps, *compiler.exacts((node.base, node.stride)), lanes=1)


def _broadcast(compiler: _Compiler, node: e.Broadcast) -> Evaluator:
    value, lanes = compiler.exact(node.value), node.lanes
    return lambda env: (value(env),) * lanes


def _indices(compiler: _Compiler, nodes: Sequence[PrimExpr], lanes: int) -> list[Evaluator]:
    """The indices of an access, scalars among vectors repeated."""
    if lanes == 1:
        return compiler.exacts(nodes)
    return compiler.exacts([n if n.dtype.lanes > 1 else e.Broadcast(n, lanes) for n in nodes])


def _load(compiler: _Compiler, node: e.BufferLoad) -> Evaluator:
    buffer, lanes = node.buffer, node.dtype.lanes
    indices = _indices(compiler, node.indices, lanes)

    def load(env: Environment) -> Value:
        return env[buffer].read(tuple([index(env) for index in indices]))

    def load_vector(env: Environment) -> Value:
        each_lane = zip(*[index(env) for index in indices], strict=True)
        return tuple(map(env[buffer].read, each_lane))

    if node.predicate is not None:
        return _predicated_load(compiler, node, node.predicate)
    return load if lanes == 1 else load_vector


def _predicated_load(compiler: _Compiler, node: e.BufferLoad, where: PrimExpr) -> Evaluator:
    buffer, lanes, predicate = node.buffer, node.dtype.lanes, compiler.expr(where)
    indices, zero = _indices(compiler, node.indices, lanes), scalars.cast(node.dtype.element, 0)

    def load(env: Environment) -> Value:
        if not predicate(env):
            return zero
        return env[buffer].read(tuple([index(env) for index in indices]))

    def load_vector(env: Environment) -> Value:
        memory = env[buffer]
        each_lane = zip(*[index(env) for index in indices], strict=True)
        chosen = zip(predicate(env), each_lane, strict=True)
        return tuple([memory.read(index) if holds else zero for holds, index in chosen])

    return load if lanes == 1 else load_vector


def _buffer_ref(compiler: _Compiler, node: e.BufferRef) -> Evaluator:
    buffer = node.buffer
    return lambda env: env[buffer]


# -- Calls ----------------------------------------------------------------------------------------


def _call(compiler: _Compiler, node: e.Call) -> Evaluator:
    if node.op in _CALLS:
        return _CALLS[node.op](compiler, node)
    if node.op not in INTRINSICS:
        raise CompileError(f"{compiler.name}: {node.op}: only compiled code gives it a meaning")
    if node.op in _EXACT_CALLS and indices.is_exact_call(node) and _is_exact(compiler, node):
        values = compiler.exacts(node.args)
        return _lifted(_EXACT_CALLS[node.op], *values, lanes=node.dtype.lanes)
    meaning, element = INTRINSICS[node.op].meaning, node.args[0].dtype.element
    args = compiler.exprs(node.args)
    return _lifted(partial(meaning, element), *args, lanes=node.dtype.lanes)


# The calls that are index arithmetic if their arguments are.
_EXACT_CALLS: dict[str, Callable[..., int]] = {
    "shift_left": lambda a, b: a << b,
    "shift_right": lambda a, b: a >> b,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_not": lambda a: ~a,
}


def _if_then_else(compiler: _Compiler, node: e.Call) -> Evaluator:
    condition, true_value, false_value = compiler.exacts(node.args)
    return lambda env: true_value(env) if condition(env) else false_value(env)


def _first_argument(compiler: _Compiler, node: e.Call) -> Evaluator:
    return compiler.exact(node.args[0])


def _checked(compiler: _Compiler, node: e.Call) -> Evaluator:
    condition, message, value = compiler.exacts(node.args[:3])
    shown = compiler.shown(node.args[3:])

    def evaluate(env: Environment) -> Value:
        if not condition(env):
            raise IndexError(_filled(message(env), [each(env) for each in shown]))
        return value(env)

    return evaluate


def _is_null(compiler: _Compiler, node: e.Call) -> Evaluator:
    value = compiler.expr(node.args[0])
    return lambda env: value(env) in (None, 0)


def _are_apart(compiler: _Compiler, node: e.Call) -> Evaluator:
    a, b = compiler.exprs(node.args)
    return lambda env: a(env).address(0) != b(env).address(0)


def _reinterpret(compiler: _Compiler, node: e.Call) -> Evaluator:
    given, wanted, value = node.args[0].dtype, node.dtype, compiler.expr(node.args[0])

    def evaluate(env: Environment) -> Value:
        lanes = value(env) if given.lanes > 1 else (value(env),)
        bits = 0  # of the whole vector, the first lane lowest (as in little-endian memory)
        unwritten = dict[int, Unwritten]()  # by the first of their bits
        for i, lane in enumerate(lanes):
            if isinstance(lane, Unwritten):
                unwritten[i * given.bits] = lane
            else:
                bits |= _bits(given.element, lane) << (i * given.bits)
        shifts = range(0, wanted.lanes * wanted.bits, wanted.bits)
        made: list[Any] = [_from_bits(wanted.element, bits >> shift) for shift in shifts]
        for i, shift in enumerate(shifts):
            for first, lane in unwritten.items():
                if first < shift + wanted.bits and shift < first + given.bits:
                    made[i] = lane
        return tuple(made) if wanted.lanes > 1 else made[0]

    return evaluate


def _bits(dtype: DType, value: Scalar) -> int:
    if dtype.is_float:
        return scalars.to_bits(dtype, float(value))
    return int(value) & ((1 << dtype.bits) - 1)


def _from_bits(dtype: DType, bits: int) -> Scalar:
    bits &= (1 << dtype.bits) - 1
    return scalars.from_bits(dtype, bits) if dtype.is_float else scalars.wrap(dtype, bits)


def _extract(compiler: _Compiler, node: e.Call) -> Evaluator:
    vector, lane = compiler.exprs(node.args)
    if node.args[0].dtype.lanes == 1:
        return vector
    return lambda env: vector(env)[lane(env)]


def _shuffle(compiler: _Compiler, node: e.Call) -> Evaluator:
    a, b = compiler.exprs(node.args[:2])
    pick = itemgetter(*[e.const_int(each) for each in node.args[2:]])

    return lambda env: pick((*a(env), *b(env)))


def _fold(compiler: _Compiler, node: e.Call) -> Evaluator:
    name, dtype, (start, vector) = node.op, node.dtype, compiler.exprs(node.args)
    return lambda env: result_of(
        lambda first, *lanes: fold(name, dtype, first, lanes), start(env), *vector(env)
    )


def _nothing_to_do(compiler: _Compiler, node: e.Call) -> Evaluator:
    return lambda env: 0


def _access_ptr(compiler: _Compiler, node: e.Call) -> Evaluator:
    memory, offset, *_ = compiler.exacts(node.args)
    return lambda env: memory(env).address(offset(env))


def _region(compiler: _Compiler, node: e.Call) -> Evaluator:
    """A part of an array: its first index in each dimension, and the extents of the last ones."""
    reference = node.args[0]
    assert isinstance(reference, e.BufferRef)
    memory, *numbers = compiler.exacts(node.args)
    ndim = reference.buffer.ndim
    begins, extents = numbers[:ndim], numbers[ndim:]

    def evaluate(env: Environment) -> Value:
        first = [begin(env) for begin in begins]
        dropped = ndim - len(extents)
        kept = zip(first[dropped:], extents, strict=True)
        slices = [slice(low, low + extent(env)) for low, extent in kept]
        index = (*first[:dropped], *slices, ...)
        return memory(env).passed_on()[index]

    return evaluate


def _call_packed(compiler: _Compiler, node: e.Call) -> Evaluator:
    run = _run_packed(compiler, node)
    return lambda env: number_as(node.dtype, run(env))


def _run_packed(compiler: _Compiler, node: e.Call) -> Callable[[Environment], Any]:
    name = str(compiler.expr(node.args[0])({}))
    function = compiler.packed.get(name)
    if function is None:
        known = ", ".join(compiler.packed) or "nothing"
        raise ValueError(f"{compiler.name}: expected {name!r} in packed, found {known}")
    args = compiler.exprs(node.args[1:])

    return lambda env: function(*[_passed(arg(env)) for arg in args])


def _passed(value: Value) -> Any:
    if isinstance(value, Unwritten):
        value.use()
    return value.passed_on() if isinstance(value, _Memory) else value


def _call_extern(compiler: _Compiler, node: e.Call) -> Evaluator:
    """A C function of this process, such as those of libm."""
    name, *args = compiler.exprs(node.args)
    function = getattr(ctypes.CDLL(None), str(name({})), None)
    if function is None:
        raise CompileError(f"{compiler.name}: expected a C symbol, found none named {name({})!r}")
    function.argtypes = [_c_type(arg.dtype) for arg in node.args[1:]]
    function.restype = _c_type(node.dtype)

    def call(env: Environment) -> Value:
        values = [arg(env) for arg in args]
        return function(*[v.address(0) if isinstance(v, _Memory) else _passed(v) for v in values])

    return call


def _c_type(dtype: DType) -> Any:
    if dtype.is_handle:
        return ctypes.c_void_p
    if dtype.is_float and dtype.bits > 16:
        return ctypes.c_float if dtype == FLOAT32 else ctypes.c_double
    if dtype.is_integral and dtype.lanes == 1:
        return getattr(ctypes, f"c_{dtype}")
    raise CompileError(f"call_extern: expected C's types, got {dtype}")


_CALLS: dict[str, Callable[[_Compiler, e.Call], Evaluator]] = {
    "if_then_else": _if_then_else,
    "likely": _first_argument,
    "checked": _checked,
    "prefetch": _nothing_to_do,
    "isnullptr": _is_null,
    "are_apart": _are_apart,
    "reinterpret": _reinterpret,
    "tvm_access_ptr": _access_ptr,
    "tvm_stack_make_array": _region,
    "call_packed": _call_packed,
    "call_extern": _call_extern,
    "vector_extract": _extract,
    "vector_shuffle": _shuffle,
    **dict.fromkeys(VECTOR_FOLDS, _fold),
}

_EXPRESSIONS: dict[type, Callable[[_Compiler, Any], Evaluator]] = {
    e.Var: _variable,
    **dict.fromkeys((e.IntImm, e.FloatImm, e.StringImm), _constant),
    **dict.fromkeys(
        (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max), _arithmetic
    ),
    **dict.fromkeys((e.EQ, e.NE, e.LT, e.LE, e.GT, e.GE, e.And, e.Or), _comparison),
    e.Not: _not,
    e.Select: _select,
    e.Cast: _cast,
    e.Let: _let,
    e.Ramp: _ramp,
    e.Broadcast: _broadcast,
    e.BufferLoad: _load,
    e.BufferRef: _buffer_ref,
    e.Call: _call,
}


# -- Statements -----------------------------------------------------------------------------------


def _for(compiler: _Compiler, node: s.For) -> Runner:
    var, low, extent = node.loop_var, compiler.exact(node.min), compiler.exact(node.extent)
    body = compiler.stmt(node.body)

    def run(env: Environment) -> None:
        begin = low(env)
        for value in range(begin, begin + extent(env)):
            env[var] = value
            body(env)

    return run


def _while(compiler: _Compiler, node: s.While) -> Runner:
    condition, body = compiler.expr(node.condition), compiler.stmt(node.body)

    def run(env: Environment) -> None:
        while condition(env):
            body(env)

    return run


def _store(compiler: _Compiler, node: s.BufferStore) -> Runner:
    buffer, value, lanes = node.buffer, compiler.expr(node.value), node.value.dtype.lanes
    indices = _indices(compiler, node.indices, lanes)
    always = e.const(True, BOOL.with_lanes(lanes))
    predicate = compiler.expr(always if node.predicate is None else node.predicate)

    def store(env: Environment) -> None:
        stored = value(env)
        env[buffer].write(tuple([index(env) for index in indices]), stored)

    def store_vector(env: Environment) -> None:
        which, memory = predicate(env), env[buffer]
        stored = value(env)
        each_lane = zip(*[index(env) for index in indices], strict=True)
        for index, lane, holds in zip(each_lane, stored, which, strict=True):
            if holds:
                memory.write(index, lane)

    def store_if(env: Environment) -> None:
        stored = value(env)
        if predicate(env):
            env[buffer].write(tuple([index(env) for index in indices]), stored)

    if lanes == 1:
        return store if node.predicate is None else store_if
    return store_vector


def _allocate(compiler: _Compiler, node: s.Allocate) -> Runner:
    buffer, dtype = node.buffer, _numpy_dtype(node.buffer)
    shape, body = compiler.exacts(buffer.shape), compiler.stmt(node.body)
    label = f"{compiler.name}: {buffer.name}"

    def run(env: Environment) -> None:
        array = np.empty([max(extent(env), 0) for extent in shape], dtype)
        array.reshape(-1).view(np.uint8)[...] = _POISON
        env[buffer] = env[buffer.data] = _Memory(label, buffer, array, fresh=True)
        body(env)

    return run


_POISON = 0xFF  # in each byte of fresh memory: NaN as a float, -1 as an integer


def _if(compiler: _Compiler, node: s.IfThenElse) -> Runner:
    condition, then_case = compiler.expr(node.condition), compiler.stmt(node.then_case)
    else_case = compiler.stmt(node.else_case or s.seq())

    def run(env: Environment) -> None:
        (then_case if condition(env) else else_case)(env)

    return run


def _seq(compiler: _Compiler, node: s.SeqStmt) -> Runner:
    runners = [compiler.stmt(each) for each in node.seq]

    def run(env: Environment) -> None:
        for runner in runners:
            runner(env)

    return run


def _evaluate(compiler: _Compiler, node: s.Evaluate) -> Runner:
    called = isinstance(node.value, e.Call) and node.value.op == "call_packed"
    value = _run_packed(compiler, node.value) if called else compiler.expr(node.value)  # type: ignore[arg-type]  # a Call

    def run(env: Environment) -> None:
        made = value(env)
        if isinstance(made, Unwritten):
            made.use()

    return run


def _assert(compiler: _Compiler, node: s.AssertStmt) -> Runner:
    condition, body = compiler.expr(node.condition), compiler.stmt(node.body)
    values = compiler.shown(node.values)

    def run(env: Environment) -> None:
        if not condition(env):
            raise RAISABLE[node.kind](_filled(node.message, [value(env) for value in values]))
        body(env)

    return run


def _filled(message: str, values: Sequence[int]) -> str:
    """`message` with each ``{}`` replaced, and every other brace as it is."""
    first, *rest = message.split("{}")
    return first + "".join(f"{value}{part}" for value, part in zip(values, rest, strict=True))


def _attr(compiler: _Compiler, node: s.AttrStmt) -> Runner:
    body = compiler.stmt(node.body)
    if node.attr_key != s.VIEW:
        return body
    view, owner = node.node, cast(e.BufferRef, node.value).buffer
    shape, label = compiler.exacts(view.shape), f"{compiler.name}: {view.name}"

    def run(env: Environment) -> None:
        extents = [max(extent(env), 0) for extent in shape]
        env[view] = env[owner].viewed(label, view, extents)
        body(env)

    return run


_STATEMENTS: dict[type, Callable[[_Compiler, Any], Runner]] = {
    s.For: _for,
    s.While: _while,
    s.BufferStore: _store,
    s.Allocate: _allocate,
    s.LetStmt: _let,
    s.IfThenElse: _if,
    s.SeqStmt: _seq,
    s.Evaluate: _evaluate,
    s.AssertStmt: _assert,
    s.AttrStmt: _attr,
}
