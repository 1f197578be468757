"""The emitter of expressions: the state that they share while one function is emitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from minitvm.arith.effects import SureChoices
from minitvm.codegen.conversion import Conversions
from minitvm.codegen.integers import Integers
from minitvm.codegen.llvm_text import FunctionText, Value, i64, literal
from minitvm.codegen.math import MathFunctions
from minitvm.codegen.options import CodegenOptions
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.transform.widen_indices import widened

_LEAVES = (e.Var, e.IntImm, e.FloatImm, e.StringImm, e.BufferRef)


@final
class Emitter:
    """Emits expressions into one function.

    `variables` and `pointers` hold the names in scope; the emitter of statements fills them.
    """

    def __init__(
        self,
        text: FunctionText,
        options: CodegenOptions,
        nodes: Mapping[type, Callable[[Emitter, Any], Value]],
        calls: Mapping[str, Callable[[Emitter, e.Call], Value]],
    ) -> None:
        """`nodes` emit the expressions of each class, and `calls` those of class Call by the names
        of their operators."""
        self.text = text
        self.target = options.target
        self.strict = options.strict
        self.calls = calls
        self.conversions = Conversions(text, options.target.has_float16_conversion)
        self.integers = Integers(text)
        self.math = MathFunctions(text, self.conversions, self.integers, options)
        self.variables: dict[Var, Value] = {}
        self.pointers: dict[Buffer, Value] = {}
        self.strides: dict[Buffer, list[int | None]] = {}  # the constant ones
        self.constants: dict[Var, list[int] | None] = {}  # the lanes of masks, where all are known
        # How many of the first lanes a mask chooses, where it chooses first ones.
        self.first_lanes: dict[Var, PrimExpr] = {}
        self.choices: SureChoices = {}
        self.stored: frozenset[Var] = frozenset()  # the memory that the function may write
        self.nontemporal: Buffer | None = None  # whose vectors are aligned, and bypass the caches
        self.stores_past_caches = False  # whether the function has such stores
        # Ends the function with a status unless a condition holds; None outside of statements.
        self.fail_unless: Callable[[Value, int], None] | None = None
        self.no_wrap = "nsw"  # the flag of the products of dimensions
        self.has_called_out = False  # a callee may have changed any memory
        # The variables that change, and the memory of the buffers, in the expression being emitted.
        self.needs: set[object] = set()
        self._nodes = nodes
        self._dimensions: dict[PrimExpr, PrimExpr] = {}
        self._changing: set[Var] = set()

    def emit(self, node: PrimExpr) -> Value:
        """The value of an expression: computed once, until a variable that may change
        (:meth:`bind_anew`) or a buffer in it does."""
        emit = self._nodes.get(type(node))
        if emit is None:
            raise e.unknown_node(node, "code generation")
        if type(node) in _LEAVES:
            return emit(self, node)
        known = self.text.recall(node)
        if known is not None:
            self.needs |= known[1]
            return known[0]
        outer, self.needs = self.needs, set()
        value = emit(self, node)
        self.text.remember(node, value, frozenset(self.needs))
        self.needs |= outer
        return value

    def bind_anew(self, var: Var, value: Value) -> None:
        """Gives a value to a variable that may have had another one in this scope."""
        self._changing.add(var)
        self.text.forget(var)
        self.variables[var] = value

    def value_of(self, var: Var) -> Value:
        """The value of a variable in scope."""
        if var not in self.variables:
            raise CompileError(
                f"variable {var.name}: expected one bound by an argument, a dimension or a loop, "
                "found it unbound: pass it to build, or use it as a dimension of an argument"
            )
        if var in self._changing:
            self.needs.add(var)
        return self.variables[var]

    def cast(self, node: PrimExpr, dtype: DType) -> Value:
        """An expression converted to a dtype."""
        return self.conversions.cast(self.emit(node), node.dtype, dtype)

    def index(self, node: PrimExpr) -> Value:
        """An integer expression as ``i64``, or a vector of it."""
        return i64(node.value) if isinstance(node, e.IntImm) else self.cast(node, INT64)

    def dimension(self, node: PrimExpr) -> Value:
        """The exact value of a dimension, a stride or an offset of a buffer, as ``i64``. No pass
        has widened these."""
        made = self._dimensions.get(node)
        if made is None:
            made = self._dimensions[node] = widened(node)
        return self.index(made)

    def sum(self, a: Value, b: Value, flags: str = "nsw") -> Value:
        """``a + b`` of ``i64``; no instruction if the sum is constant."""
        x, y = literal(a), literal(b)
        if x is not None and y is not None:
            return i64(x + y)
        if x == 0 or y == 0:
            return b if x == 0 else a
        return self.text.binary("add", a, b, flags)

    def product(self, a: Value, b: Value, flags: str | None = None) -> Value:
        """``a * b`` of ``i64``; no instruction if the product is constant."""
        x, y = literal(a), literal(b)
        if x is not None and y is not None:
            return i64(x * y)
        if x in (0, 1) or y in (0, 1):
            return (b if x == 1 else a) if 1 in (x, y) else i64(0)
        return self.text.binary("mul", a, b, self.no_wrap if flags is None else flags)
