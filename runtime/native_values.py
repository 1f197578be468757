"""The expressions of native code as LLVM IR (:mod:`minitvm.runtime.native_language`)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from minitvm.runtime.native_names import (
    BYTE,
    POINTER,
    TRUTH,
    TYPES,
    VOID,
    WORD,
    Function,
    Names,
    Type,
    Value,
    number,
    pointer_to,
    refused,
)

# Of signed and unsigned numbers.
_ARITHMETIC = {
    ast.Add: ("add", "add"),
    ast.Sub: ("sub", "sub"),
    ast.Mult: ("mul", "mul"),
    ast.FloorDiv: ("sdiv", "udiv"),
    ast.Mod: ("srem", "urem"),
    ast.BitAnd: ("and", "and"),
    ast.BitOr: ("or", "or"),
    ast.BitXor: ("xor", "xor"),
    ast.LShift: ("shl", "shl"),
    ast.RShift: ("ashr", "lshr"),
}
_COMPARISONS = {
    ast.Eq: ("eq", "eq"),
    ast.NotEq: ("ne", "ne"),
    ast.Lt: ("slt", "ult"),
    ast.LtE: ("sle", "ule"),
    ast.Gt: ("sgt", "ugt"),
    ast.GtE: ("sge", "uge"),
}
# LLVM's names, "*" for the sign.
_OF_NUMBERS = {
    "add_saturating": "*add.sat",
    "ctlz": "ctlz",
    "cttz": "cttz",
    "max": "*max",
    "min": "*min",
    "sub_saturating": "*sub.sat",
}
_NOTHING = Value(VOID, "")


class NativeValues(ast.NodeVisitor):
    """The values of a function, its variables, and the blocks in which it computes them.

    Variables live in memory, and the result of each expression is a value of its own: LLVM's
    optimiser makes registers of the variables.
    """

    def __init__(self, names: Names, node: ast.FunctionDef) -> None:
        self._names = names
        self._node = node
        self._function = names.functions[node.name]
        self._lines: list[str] = []
        self._slots: list[str] = []  # the memory of the variables
        self._variables: dict[str, Value] = {}  # their addresses
        self._fixed: dict[str, Value] = {}  # parameters that stay as they are
        self._globals: set[str] = set()  # that are assigned to
        self._values = self._blocks = 0
        self._is_open = True  # whether the last block has no end yet
        self._reached: set[str] = set()  # labels to which something jumps
        self._loops: list[tuple[str, str]] = []  # where `continue` and `break` go

    def generic_visit(self, node: ast.AST) -> Any:
        raise refused(node)

    # ---- Lines and blocks ------------------------------------------------------------------------
    def _emit(self, line: str) -> None:
        if self._is_open:  # else nothing reaches it
            self._lines.append(f"  {line}")
            self._is_open = not line.startswith(("ret ", "br ", "switch "))

    def _value(self, kind: Type, operation: str) -> Value:
        self._values += 1
        self._emit(f"%t{self._values} = {operation}")
        return Value(kind, f"%t{self._values}")

    def _label(self) -> str:
        self._blocks += 1
        return f"b{self._blocks}"

    def _go(self, label: str) -> None:
        if self._is_open:
            self._reached.add(label)
            self._emit(f"br label %{label}")

    def _split(self, truth: Value, yes: str, no: str) -> None:
        if self._is_open:
            self._reached.update((yes, no))
            self._emit(f"br {truth}, label %{yes}, label %{no}")

    def _start(self, label: str) -> None:
        """A block begins here, unless nothing jumps to it."""
        self._go(label)
        if label in self._reached:
            self._lines.append(f"{label}:")
            self._is_open = True

    def _slot(self, kind: Type, name: str) -> Value:
        self._values += 1
        self._slots.append(f"  %{name}.{self._values} = alloca {kind.text}")
        return Value(pointer_to(kind), f"%{name}.{self._values}")

    # ---- Memory ------------------------------------------------------------------------------
    def _assign(self, name: str, value: Value) -> None:
        if name not in self._variables:
            assert value.type is not None
            self._variables[name] = self._slot(value.type, name)
        slot = self._variables[name]
        self._emit(f"store {self._typed(value, self._pointed(slot), self._node)}, {slot}")

    def _pointed(self, pointer: Value, node: ast.AST | None = None) -> Type:
        """The type to which a pointer points."""
        if pointer.type is None or pointer.type.of is None:
            raise refused(node or self._node, "expected a pointer with a type")
        return pointer.type.of

    def _read(self, place: Value, notes: str = "") -> Value:
        kind = self._pointed(place)
        if kind.is_in_memory:
            return self._start_of(place)
        return self._value(kind, f"load {kind.text}, {place}{notes}")

    def _start_of(self, place: Value) -> Value:
        """The address of a place; of an array, that of its first element."""
        kind = self._pointed(place)
        return Value(pointer_to(kind.of), place.text) if kind.text[0] == "[" and kind.of else place

    def _write(self, place: Value, node: ast.expr) -> None:
        self._emit(f"store {self._of(self._pointed(place), node)}, {place}")

    def _place(self, node: ast.expr) -> Value:
        """The address of a variable, a field or an element."""
        if isinstance(node, ast.Name) and node.id in self._variables:
            return self._variables[node.id]
        if isinstance(node, ast.Name) and node.id in self._names.variables:
            return Value(pointer_to(self._names.variables[node.id]), f"@{node.id}")
        if isinstance(node, ast.Attribute):
            base = self._expression(node.value)
            structure = self._pointed(base, node).text
            fields = self._names.structures[structure.removeprefix("%")]
            if node.attr not in fields:
                raise refused(node, f"{structure} has no such field")
            index, kind = fields[node.attr]
            at = f"getelementptr {structure}, {base}, i32 0, i32 {index}"
            return self._value(pointer_to(kind), at)
        if isinstance(node, ast.Subscript):
            return self._moved(self._expression(node.value), self._expression(node.slice), node)
        raise refused(node, "expected a place in memory")

    def _moved(self, base: Value, steps: Value, node: ast.expr) -> Value:
        """A pointer moved by elements."""
        kind = (base.type.of if base.type else None) or BYTE
        steps = self._typed(steps, steps.type or WORD, node)
        assert base.type is not None and steps.type is not None
        if not steps.type.is_signed:
            steps = self._converted(steps, WORD)
        return self._value(base.type, f"getelementptr {kind.text}, {base}, {steps}")

    # ---- Expressions -----------------------------------------------------------------------------
    def _expression(self, node: ast.expr) -> Value:
        value: Value = self.visit(node)
        return value

    def _of(self, kind: Type, node: ast.expr) -> Value:
        """An expression that must have a type."""
        value = self._choice(node, kind) if isinstance(node, ast.IfExp) else self._expression(node)
        return self._typed(value, kind, node)

    def _typed(self, value: Value, kind: Type | None, node: ast.AST) -> Value:
        assert kind is not None
        both_point = value.type is not None and value.type.is_pointer and kind.is_pointer
        if value.type in (None, kind) or both_point:
            return Value(kind, value.text)
        raise refused(node, f"expected {kind}, got {value.type}")

    def _alike(self, *nodes: ast.expr) -> list[Value]:
        """Expressions of one type."""
        values = [self._expression(each) for each in nodes]
        kind = next((each.type for each in values if each.type is not None), WORD)
        return [self._typed(each, kind, node) for each, node in zip(values, nodes, strict=True)]

    def visit_Constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, bool):
            return Value(TRUTH, str(value).lower())
        if isinstance(value, str):
            return Value(POINTER, f"@{self._names.text(value)}")
        return Value(POINTER, "null") if value is None else Value(None, str(value))

    def visit_Name(self, node: ast.Name) -> Value:
        if node.id in self._fixed:
            return self._fixed[node.id]
        if node.id in self._variables or node.id in self._names.variables:
            return self._read(self._place(node))
        return Value(POINTER, f"@{self._names.function(node.id, node).name}")

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        return self._read(self._place(node))

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        return self._read(self._place(node))

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        return self._choice(node)

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self._expression(node.left), self._expression(node.right)
        if left.type and left.type.is_pointer:
            if isinstance(node.op, ast.Sub):
                right = self._value(WORD, f"sub i64 0, {self._typed(right, WORD, node).text}")
            return self._moved(left, right, node)
        kind = left.type or right.type
        if kind is None:
            return Value(None, str(number(node)))
        operation = _ARITHMETIC[type(node.op)][not kind.is_signed]
        other = self._typed(right, kind, node).text
        return self._value(kind, f"{operation} {self._typed(left, kind, node)}, {other}")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self._value(TRUTH, f"xor {self._truth(node.operand)}, true")
        value = self._expression(node.operand)
        if not isinstance(node.op, ast.USub):
            raise refused(node)
        if value.type is None:
            return Value(None, f"-{value.text}")
        return self._value(value.type, f"sub {value.type.text} 0, {value.text}")

    def visit_Compare(self, node: ast.Compare) -> Value:
        left, right = self._alike(node.left, node.comparators[0])
        assert left.type is not None
        is_unsigned = left.type.is_pointer or not left.type.is_signed
        operation = _COMPARISONS[type(node.ops[0])][is_unsigned]
        return self._value(TRUTH, f"icmp {operation} {left}, {right.text}")

    def _truth(self, node: ast.expr) -> Value:
        value = self._expression(node)
        if value.type == TRUTH:
            return value
        zero = "null" if value.type and value.type.is_pointer else "0"
        return self._value(TRUTH, f"icmp ne {value}, {zero}")

    def _branch(self, node: ast.expr, yes: str, no: str) -> None:
        """Goes to a block where an expression is true, and to another where it isn't."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._branch(node.operand, no, yes)
        elif isinstance(node, ast.Constant) and node.value is True:
            self._go(yes)
        elif isinstance(node, ast.BoolOp):
            for each in node.values[:-1]:
                on = self._label()
                is_or = isinstance(node.op, ast.Or)
                self._branch(each, yes if is_or else on, on if is_or else no)
                self._start(on)
            self._branch(node.values[-1], yes, no)
        else:
            self._split(self._truth(node), yes, no)

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        whole = ast.IfExp(node, ast.Constant(True), ast.Constant(False))
        return self._choice(ast.copy_location(whole, node), TRUTH)

    def _choice(self, node: ast.IfExp, wanted: Type = WORD) -> Value:
        """The values of two branches; two literals have the wanted type."""
        yes, no, end = self._label(), self._label(), self._label()
        self._branch(node.test, yes, no)
        values, ends = [], []
        for label, branch in ((yes, node.body), (no, node.orelse)):
            self._start(label)
            values.append(self._expression(branch))
            ends.append(self._label())
            self._start(ends[-1])
            self._go(end)
        kinds = [each.type for each in values if each.type is not None]
        kind = next((each for each in kinds if each != POINTER), (kinds or [wanted])[0])
        both = [self._typed(each, kind, node).text for each in values]
        self._start(end)
        pairs = ", ".join(f"[ {each}, %{block} ]" for each, block in zip(both, ends, strict=True))
        return self._value(kind, f"phi {kind.text} {pairs}")

    # ---- Calls -----------------------------------------------------------------------------------
    def visit_Call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        own: Callable[..., Value] | None = getattr(self, f"call_{name}", None)
        if own is not None:
            return own(node.args)
        if name in _OF_NUMBERS:
            return self._of_numbers(_OF_NUMBERS[name], node.args)
        if not name or name in TYPES:
            return self._converted(self._expression(node.args[0]), self._names.type(node.func))
        action, _, which = name.partition("_")
        if action in ("load", "store", "fetch"):
            return self._atomic(action, which, node.args)
        function = self._names.function(name, node)
        values = [self._expression(each) for each in node.args]
        if len(values) == len(function.parameters) - 1 and name in ("memcpy", "memset"):
            values.append(Value(TRUTH, "false"))  # not volatile
        if len(values) < len(function.parameters):
            raise refused(node, f"expected {len(function.parameters)} arguments")
        for place, (kind, value) in enumerate(zip(function.parameters, values, strict=False)):
            is_foreign = name not in self._names.functions
            if is_foreign and value.type and value.type.text == kind.text:  # C's: of either sign
                value = Value(kind, value.text)
            values[place] = self._typed(value, kind, node)
        head = function.head if function.is_variadic else function.result.text
        return self._called(function.result, head, f"@{function.name}", values)

    def _called(self, result: Type, head: str, target: str, values: list[Value]) -> Value:
        listed = ", ".join(str(Value(each.type or WORD, each.text)) for each in values)
        if result == VOID:
            self._emit(f"call {head} {target}({listed})")
            return _NOTHING
        return self._value(result, f"call {head} {target}({listed})")

    def call_call(self, nodes: list[ast.expr]) -> Value:
        """``call(T, f, ...)``."""
        kind, target = self._names.type(nodes[0]), self._expression(nodes[1])
        values = [self._expression(each) for each in nodes[2:]]
        return self._called(TRUTH if kind.bits == 1 else kind, kind.text, target.text, values)

    def _intrinsic(self, name: str, result: Type, kind: Type, values: list[Value]) -> Value:
        """A function of LLVM's for numbers of every type."""
        symbol = f"llvm.{name}.{kind.text}"
        types = tuple(each.type or WORD for each in values)
        self._names.declare(Function(symbol, result, types))
        return self._called(result, result.text, f"@{symbol}", values)

    def _of_numbers(self, name: str, nodes: list[ast.expr]) -> Value:
        values = self._alike(*nodes)
        kind = values[0].type
        assert kind is not None
        if name in ("ctlz", "cttz"):
            values.append(Value(TRUTH, "true"))  # the result for 0 is never used
        return self._intrinsic(name.replace("*", sign(kind)), kind, kind, values)

    def _converted(self, value: Value, kind: Type) -> Value:
        before = value.type
        if before is None or (before.is_pointer and kind.is_pointer):
            return Value(kind, value.text)
        if before.is_pointer or kind.is_pointer:
            operation = "ptrtoint" if before.is_pointer else "inttoptr"
        elif before.bits == kind.bits:
            return Value(kind, value.text)
        elif before.is_float:
            operation = "fpext" if kind.bits > before.bits else "fptrunc"
        elif before.bits > kind.bits:
            operation = "trunc"
        else:
            operation = "sext" if before.is_signed and before.bits > 1 else "zext"
        return self._value(kind, f"{operation} {value} to {kind.text}")

    # ---- The language's own functions ------------------------------------------------------------
    def call_bits(self, nodes: list[ast.expr]) -> Value:
        return self._value(WORD, f"bitcast {self._expression(nodes[0])} to i64")

    def call_at(self, nodes: list[ast.expr]) -> Value:
        return self._start_of(self._place(nodes[0]))

    def call_sizeof(self, nodes: list[ast.expr]) -> Value:
        kind = self._names.type(nodes[0]).text
        return Value(WORD, f"ptrtoint (ptr getelementptr ({kind}, ptr null, i32 1) to i64)")

    def call_alloca(self, nodes: list[ast.expr]) -> Value:
        kind = self._names.type(nodes[0])
        if len(nodes) == 1:
            return self._start_of(self._slot(kind, "memory"))
        return self._value(pointer_to(kind), f"alloca {kind.text}, {self._of(WORD, nodes[1])}")

    def call_load(self, nodes: list[ast.expr]) -> Value:
        """``load(T, address)``, and with an alignment."""
        kind, address = self._names.type(nodes[0]), self._expression(nodes[1])
        notes = f", align {number(nodes[2])}" if len(nodes) > 2 else ""
        return self._read(Value(pointer_to(kind), address.text), notes)

    def call_store(self, nodes: list[ast.expr]) -> Value:
        """``store(value, address)``."""
        value, address = self._expression(nodes[0]), self._expression(nodes[1])
        self._emit(f"store {value}, ptr {address.text}")
        return _NOTHING

    def _atomic(self, action: str, which: str, nodes: list[ast.expr]) -> Value:
        """``load_acquire(place)``, ``store_release(value, place)``, and ``fetch_add(place, value,
        order)``, which gives the value before."""
        place = self._place(nodes[-1] if action == "store" else nodes[0])
        kind = self._pointed(place)
        size = kind.bits // 8 or 8
        if action == "load":
            return self._value(kind, f"load atomic {kind.text}, {place} {which}, align {size}")
        if action == "fetch":
            notes = f"{ast.unparse(nodes[2])}, align {size}"
            more = self._of(kind, nodes[1])
            return self._value(kind, f"atomicrmw {which} {place}, {more} {notes}")
        self._emit(f"store atomic {self._of(kind, nodes[0])}, {place} {which}, align {size}")
        return _NOTHING

    def call_exchanges(self, nodes: list[ast.expr]) -> Value:
        place = self._place(nodes[0])
        kind = self._pointed(place)
        values = f"{self._of(kind, nodes[1])}, {self._of(kind, nodes[2])}"
        notes = f"{ast.unparse(nodes[3])} monotonic, align {kind.bits // 8}"
        pair = Type(f"{{ {kind.text}, i1 }}")
        done = self._value(pair, f"cmpxchg {place}, {values} {notes}")
        return self._value(TRUTH, f"extractvalue {done}, 1")


def sign(kind: Type) -> str:
    return "s" if kind.is_signed else "u"
