"""LLVM IR as text: the one file that writes it.

Values know their LLVM types, so an operation's text needs no type from its caller. Equal pure
values in one scope are shared. The text goes to LLVM's parser, which names the intrinsics'
overloads (``@llvm.sqrt`` on a ``float`` is ``@llvm.sqrt.f32``) and checks every line.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache, partial, reduce
from typing import NamedTuple, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.runtime.values import text_for_c


@final
class Value(NamedTuple):
    """An operand: its LLVM type and its text (``%7``, ``42``, ``@name``)."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


@final
@record()
class Block:
    """A basic block's label."""

    label: str


@lru_cache(maxsize=4096)
def integer(type: str, value: int) -> Value:
    """An integer constant; of a vector type, the same in every lane.

    >>> str(integer("<4 x i32>", 3))
    '<4 x i32> splat (i32 3)'
    """
    is_bit = element_type(type) == "i1"
    return _splat(type, str(bool(value)).lower() if is_bit else f"{int(value)}")  # or an IntEnum


def floating(type: str, value: float) -> Value:
    """A ``float`` or ``double`` constant, given exactly; of a vector type, in every lane."""
    exact = math.nan if value != value else value  # every NaN becomes the quiet one without payload
    return _splat(type, f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}")


def float_literal(value: Value) -> float | None:
    """The number that a float is known to be, in every lane.

    >>> float_literal(floating("<4 x float>", -1.5)), float_literal(Value("float", "%7"))
    (-1.5, None)
    """
    digits = value.text.removesuffix(")").rsplit(" ", 1)[-1]
    is_known = digits.startswith("0x") and element_type(value.type) in ("float", "double")
    return struct.unpack("<d", struct.pack("<Q", int(digits, 16)))[0] if is_known else None


def all_ones(type: str) -> Value:
    """The quiet NaN whose bits are all set, in every lane of ``float`` or ``double``."""
    return _splat(type, f"0x{'FFFFFFFFE0000000' if element_type(type) == 'float' else 'F' * 16}")


def is_constant_number(value: Value) -> bool:
    """Whether a float is a constant, and not NaN."""
    return value.text[0] != "%" and "0x7FF8000000000000" not in value.text


def _splat(type: str, text: str) -> Value:
    element = element_type(type)
    return Value(type, text if element == type else f"splat ({element} {text})")


def literal(value: Value) -> int | None:
    """The number that a scalar is known to be."""
    digits = value.text
    if digits[0] == "%":
        return None
    return int(digits) if digits.lstrip("-").isdigit() else None


def wrapped(number: int, bits: int) -> int:
    """`number` as a signed integer of as many bits."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def i32(value: int) -> Value:
    """A constant of 32 bits."""
    return integer("i32", value)


def i64(value: int) -> Value:
    """A constant of 64 bits."""
    return integer("i64", value)


NULL = Value("ptr", "null")


def poison(type: str) -> Value:
    """A value on which nothing may depend."""
    return Value(type, "poison")


def zero(type: str) -> Value:
    """The value of a type with all bits zero."""
    return Value(type, "zeroinitializer")


def _without_attributes(param: str) -> str:
    """The type of a parameter's ``ptr noalias`` or ``<4 x float>``."""
    return param if param.startswith("<") else param.split(" ")[0]


_VECTOR = re.compile(r"<(\d+) x (\w+)>")


@cache
def element_type(type: str) -> str:
    """The type of one lane."""
    match = _VECTOR.fullmatch(type)
    return match.group(2) if match else type


@cache
def lanes_of(type: str) -> int:
    """The number of lanes of a type; a scalar has one."""
    match = _VECTOR.fullmatch(type)
    return int(match.group(1)) if match else 1


def vector_type(element: str, lanes: int) -> str:
    """The type of `lanes` lanes; one lane is the scalar itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def like(type: str, element: str) -> str:
    """`element` with the lanes of `type`."""
    return vector_type(element, lanes_of(type))


def _encoded(text: str) -> bytes:
    """A name or message of the program."""
    try:
        return text_for_c(text)
    except ValueError as error:
        raise CompileError(f"name or text of the program: {error}") from None


def _quote(text: bytes) -> str:
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text)
    return "".join(plain)


class ModuleText:
    """A module under construction: globals, declarations and functions."""

    def __init__(self, name: str, triple: str, data_layout: str) -> None:
        self.imports: list[str] = []  # the user's LLVM IR, to be linked in
        self.has_plain_loops = False  # innermost scalar loops, which LLVM may vectorise
        self.with_loop_passes: set[str] = set()  # the functions that need LLVM's passes over loops
        self._header = (
            f'source_filename = "{_quote(_encoded(name))}"\n'
            f'target datalayout = "{data_layout}"\n'
            f'target triple = "{triple}"\n'
        )
        self._globals: list[str] = []
        self._declarations: dict[str, str] = {}
        self._functions: list[str] = []
        self._strings: dict[bytes, Value] = {}
        self._tables: dict[str, Value] = {}
        self._claimed: set[str] = set()
        self._shared: dict[str, str] = {}
        self.lines_of: dict[str, int] = {}  # the lines of code that was emitted inline

    def string(self, text: str) -> Value:
        """A pointer to a constant, zero-terminated string."""
        data = _encoded(text) + b"\0"
        if data not in self._strings:
            name = f"@.str.{len(self._strings)}"
            self._globals.append(
                f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{_quote(data)}"'
            )
            self._strings[data] = Value("ptr", name)
        return self._strings[data]

    def string_table(self, name: str, strings: Sequence[str]) -> Value:
        """A constant array of pointers to strings."""
        table = Value("ptr", f"@{symbol(name)}")
        line = ", ".join(str(self.string(s)) for s in strings)
        if self.claim(name):
            self._globals.append(
                f"{table.text} = private unnamed_addr constant [{len(strings)} x ptr] [{line}]"
            )
        return table

    def table(self, values: Sequence[Value]) -> Value:
        """A constant array of values of 8 bytes, all of one type, which are constants."""
        line = ", ".join(map(str, values))
        if line not in self._tables:
            name = f"@.table.{len(self._tables)}"
            shape = f"[{len(values)} x {values[0].type}]"
            self._globals.append(f"{name} = private unnamed_addr constant {shape} [{line}]")
            self._tables[line] = Value("ptr", name)
        return self._tables[line]

    def constants(self, name: str, words: Sequence[int]) -> Value:
        """A constant array of words of 64 bits."""
        if self.claim(name):
            listed = ", ".join(f"i64 {word}" for word in words)
            self._globals.append(
                f"@{symbol(name)} = private unnamed_addr constant [{len(words)} x i64] [{listed}]"
            )
        return Value("ptr", f"@{symbol(name)}")

    def external_function(self, name: str, signature: str) -> Value:
        """A function that the loader provides; `signature` is ``i32 (ptr, ...)``."""
        result, _, params = signature.partition(" (")
        self._declarations[name] = f"declare {result} @{symbol(name)}({params}"
        return Value("ptr", f"@{symbol(name)}")

    def external_global(self, name: str) -> Value:
        """The address of a variable that the loader provides."""
        self._declarations[name] = f"@{symbol(name)} = external global ptr"
        return Value("ptr", f"@{symbol(name)}")

    def add_function(self, text: str) -> None:
        self._functions.append(text)

    def shared(self, name: str, text: str) -> str:
        """The name of the first function with this text, apart from the names of blocks: `name`,
        unless there is an earlier one."""
        return self._shared.setdefault(_HINT.sub(r"\1.\2", text), name)

    def claim(self, name: str) -> bool:
        """Whether the caller is the first to ask for `name`, and so the one to define it."""
        if name in self._claimed:
            return False
        self._claimed.add(name)
        return True

    def __str__(self) -> str:
        parts = [self._header, *self._globals, *self._declarations.values(), *self._functions]
        return "\n".join(parts) + "\n"


def symbol(name: str) -> str:
    """A name as LLVM's grammar wants it after ``@``, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z_.$][\w.$]*", name) else f'"{_quote(_encoded(name))}"'


AS_IT_IS = "nounwind noinline optnone "
"""The attributes of a function whose text needs no optimisation by LLVM."""

OWN_COPIES = 'nounwind "no-builtin-memcpy" "no-builtin-memmove" '
"""The attributes of a function of loops, which LLVM doesn't replace by calls of ``memcpy``."""

_LONGEST_HINT = 64  # characters of a name; LLVM refuses those of more than 1024
_OWN_FILLS = '"no-builtin-memset" '  # of a function with tiles, which every call loses

_KEEPING = ("sdiv", "srem")  # give numbers that aren't negative from such numbers
_BETWEEN = {"smin": all, "smax": any}  # the arguments that must not be negative for such a result
_KNOWN = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}  # of constants
_TRAPS = ("sdiv", "srem", "udiv", "urem")  # where the divisor is 0
_OPERAND = re.compile(r"%[\w.]+")
_HINT = re.compile(r"(^|%)[\w.$]+\.(\d+)\b", re.MULTILINE)  # a name, and the number behind it
_NOTHING: frozenset[object] = frozenset()
_Remembered = dict[object, tuple[Value, frozenset[object]]]  # by key; each with its conditions


@final
@record()
class _Preheader:
    """The place before a loop, where the loop's invariants are computed: its lines so far, and the
    values that it and all following code of its scope share."""

    lines: list[str]
    shared: dict[str, Value]


class FunctionText:
    """A function under construction, with a current block, and a method for each kind of operation.

    Pure operations are shared: the same text is emitted once within a :meth:`scope` and the scopes
    around it. A scope must be opened wherever control may skip the emitted code. What doesn't
    change in the :meth:`rounds` of a loop is computed before the loop:

        for i: for j: x[i * 8 + j]   ->   for i: t = i * 8; for j: x[t + j]
    """

    def __init__(
        self,
        module: ModuleText,
        name: str,
        result: str,
        params: Sequence[str],
        *,
        linkage: str = "",
        attributes: str = "",
        is_shared: bool = False,
    ) -> None:
        """Each of `params` is an LLVM type, with its attributes, and a name. `is_shared`: an equal
        function may stand for this one."""
        self.module = module
        self._called, self._is_shared = name, is_shared
        pairs = [each.rsplit(" ", 1) for each in params]
        self.params = tuple(Value(_without_attributes(t), f"%{name}") for t, name in pairs)
        listed = ", ".join(f"{type} %{name}" for type, name in pairs)
        self._head = f"define {linkage} {result} @{symbol(name)}"
        self._signature = f"({listed}) {attributes}"
        self._allocas: list[str] = []
        self._lines: list[str | list[str]] = []  # a list: a preheader's, which may still grow
        self._preheaders: list[_Preheader] = []  # of the open loops, outermost first
        self._outermost = 0  # the first preheader in the current block
        self._depths: dict[str, int] = {}  # of values in loops: how many loops are around them
        self.needs_loop_passes = False  # LLVM's, to bring the invariants of loops out of them
        self._places: dict[str, str] = {}  # the stack memory of a pointer to a constant place in it
        self._in_loops: set[str] = set()  # stack memory of which loops use a constant place
        self._indexed: set[str] = set()  # stack memory with other places: it is no register
        self._rare: list[str | list[str]] = []  # the lines of blocks that stand at the end
        self._counter = 0
        self._scopes: list[dict[str, Value]] = [{}]
        self._remembered: list[_Remembered] = [{}]
        self._needing: dict[object, list[tuple[_Remembered, object]]] = {}
        self._natural: set[str] = set()  # the signed integers that are known not to be negative
        self.current = Block("entry")

    def finish(self) -> Value:
        """Adds the finished function to its module, and returns it. A shared function returns the
        first equal one, if the module has it already."""
        lines = _flat([*self._lines, *self._rare])
        body = "\n".join(["entry:", *self._allocas, *lines, "}"])
        fills = _OWN_FILLS if "@llvm.x86.tile" in body else ""
        text = f"{self._signature}{fills}{{\n{body}"
        name = self.module.shared(self._called, text) if self._is_shared else self._called
        if name == self._called:
            self.module.add_function(self._head + text)
            if self.needs_loop_passes or self._in_loops & self._indexed:
                self.module.with_loop_passes.add(name)
        return Value("ptr", f"@{symbol(name)}")

    # -- blocks --

    def block(self, hint: str) -> Block:
        """A new block, not yet placed."""
        self._counter += 1
        plain = re.sub(r"^(?=\d)|[^\w.$]", "_", hint[:_LONGEST_HINT], flags=re.ASCII)
        return Block(f"{plain}.{self._counter}")

    def blocks(self, *hints: str) -> list[Block]:
        """New blocks, not yet placed."""
        return [self.block(hint) for hint in hints]

    def place(self, block: Block) -> None:
        """Continues at the start of `block`."""
        self._lines.append(f"{block.label}:")
        self.current = block

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A scope of shared operations: code behind it doesn't reuse the values computed inside."""
        self._scopes.append({})
        self._remembered.append({})
        yield
        self._scopes.pop()
        self._remembered.pop()

    @contextmanager
    def inside(self, block: Block, then: Block | None = None) -> Iterator[None]:
        """A scope in a new block, which continues at `then`, unless the code ends the block
        itself. Nothing is computed before the block, since control may skip it."""
        self.place(block)
        around, self._outermost = self._outermost, len(self._preheaders)
        with self.scope():
            yield
        self._outermost = around
        if then is not None:
            self.branch(then)

    @contextmanager
    def aside(self, block: Block) -> Iterator[None]:
        """A scope in a new block that leaves the function and seldom runs. It is placed at the end,
        so that the usual path has no jumps."""
        usual, current, self._lines = self._lines, self.current, []
        with self._in_place(), self.inside(block):
            yield
        self._rare += self._lines
        self._lines, self.current = usual, current

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Rare code: nothing of it is computed before the loops around it."""
        around, self._preheaders = (self._preheaders, self._outermost), []
        self._outermost = 0
        yield
        self._preheaders, self._outermost = around

    @contextmanager
    def when(self, condition: Value, block: Block, after: Block) -> Iterator[None]:
        """Opens `block`, which runs if a condition holds; `after` follows."""
        self.branch_if(condition, block, after)
        with self.inside(block, after):
            yield
        self.place(after)

    @contextmanager
    def unless(self, holds: Value) -> Iterator[None]:
        """Opens a block that leaves the function, for the rare case that a condition doesn't hold;
        the following code is placed behind it."""
        block, after = self.blocks("failed", "checked")
        self.branch_if(holds, after, block, likely=True)
        with self._in_place(), self.inside(block):
            yield
        self.place(after)

    def go_on_if(self, condition: Value, otherwise: Block) -> None:
        """Continues in a new block if a condition holds, which is the usual case; otherwise jumps
        to `otherwise`."""
        after = self.block("right")
        self.branch_if(condition, after, otherwise, likely=True)
        self.place(after)

    def go_on_if_any(self, conditions: Iterable[Value], otherwise: Block) -> None:
        """As :meth:`go_on_if`, if one of some conditions holds. Each is evaluated only if the ones
        before it don't hold."""
        after = self.block("right")
        with self.scope():
            for condition in conditions:
                following = self.block("or")
                self.branch_if(condition, after, following)
                self.place(following)
            self.branch(otherwise)
        self.place(after)

    def return_if(self, condition: Value, status: Value, block: Block, after: Block) -> None:
        """Returns `status` if a condition holds; `after` follows."""
        self.branch_if(condition, block, after)
        with self.inside(block):
            self.ret(status)
        self.place(after)

    def remember(self, key: object, value: Value, needs: frozenset[object] = _NOTHING) -> None:
        """Keeps a value for `key` in this scope, until :meth:`forget` drops all values or one of
        its `needs`."""
        known = self._remembered[-1]
        known[key] = value, needs
        for need in needs:
            self._needing.setdefault(need, []).append((known, key))

    def recall(self, key: object) -> tuple[Value, frozenset[object]] | None:
        """The value kept for `key`, if any, and its needs."""
        for known in reversed(self._remembered):
            found = known.get(key)
            if found is not None:
                return found
        return None

    def forget(self, need: object = None) -> None:
        """Drops the remembered values, since memory may have changed: all, or those that need
        `need`."""
        if need is None:
            self._remembered = [{} for _ in self._remembered]
            self._needing.clear()
            return
        for known, key in self._needing.pop(need, ()):
            known.pop(key, None)

    def branch(self, target: Block) -> None:
        self._lines.append(f"  br label %{target.label}")

    def branch_if(self, condition: Value, yes: Block, no: Block, *, likely: bool = False) -> None:
        """`likely`: `yes` is taken nearly always."""
        weights = ', !prof !{!"branch_weights", i32 1048575, i32 1}' if likely else ""
        self._lines.append(
            f"  br i1 {condition.text}, label %{yes.label}, label %{no.label}{weights}"
        )

    def switch(self, value: Value, default: Block, cases: Sequence[tuple[int, Block]]) -> None:
        listed = " ".join(f"{value.type} {n}, label %{b.label}" for n, b in cases)
        self._lines.append(f"  switch {value}, label %{default.label} [ {listed} ]")

    def ret(self, value: Value | None = None) -> None:
        self._lines.append(f"  ret {'void' if value is None else value}")

    def phi(self, type: str, *incoming: tuple[Value, Block]) -> Value:
        """A value that depends on the block from which control came."""
        listed = ", ".join(f"[ {v.text}, %{b.label} ]" for v, b in incoming)
        return self._define(type, f"phi {type} {listed}")

    def phi_open(self, begin: Value, came_from: Block, latch: Block) -> tuple[Value, Value]:
        """A loop's variable that starts at `begin`; and its value in the next iteration, which
        :meth:`phi_close` defines before `latch`'s end."""
        upcoming = self._name(begin.type)
        return self.phi(begin.type, (begin, came_from), (upcoming, latch)), upcoming

    def phi_close(self, upcoming: Value, value: Value) -> None:
        """Defines the second result of :meth:`phi_open` as a copy of `value`, which LLVM's first
        pass removes."""
        self._lines.append(f"  {upcoming.text} = select i1 true, {value}, {value}")

    def count_up(self, upcoming: Value, counter: Value, step: Value, *, signed: bool) -> None:
        """Defines the second result of :meth:`phi_open` as ``counter + step``, which can't wrap."""
        flags = "nsw" if signed else "nuw"
        if signed and self.is_natural(counter) and self.is_natural(step):
            flags = "nuw nsw"
        self._lines.append(f"  {upcoming.text} = add {flags} {counter}, {step.text}")

    @contextmanager
    def rounds(
        self,
        blocks: Sequence[Block],
        begin: Value,
        end: Value,
        step: Value,
        *,
        signed: bool = True,
        runs: bool = True,
    ) -> Iterator[Value]:
        """A loop over each `step`-th number from `begin` to before `end`, in their type; `runs`:
        there is at least one such number. The `blocks` are the body, the block that counts, to
        which the body branches, and the block behind the loop."""
        less = "slt" if signed else "ult"
        head, latch, done = blocks
        if not runs:
            enter = self.block("enter")
            self.branch_if(self.icmp(less, begin, end), enter, done)
            self.place(enter)
        with nullcontext() if runs else self.scope(), self._before_loop():
            before = self.current
            self.branch(head)
            self.place(head)
            with self.scope():
                counter, upcoming = self.phi_open(begin, before, latch)
                if signed and self.is_natural(begin) and self.is_natural(step):
                    self.note_natural(counter)
                yield counter
                self.place(latch)
                self.count_up(upcoming, counter, step, signed=signed)
                further = "ne" if literal(step) == 1 else less
                self.branch_if(self.icmp(further, upcoming, end), head, done)
        self.place(done)

    @contextmanager
    def _before_loop(self) -> Iterator[None]:
        """A loop, before which its invariants are computed."""
        preheader = _Preheader([], self._scopes[-1])
        self._lines.append(preheader.lines)
        self._preheaders.append(preheader)
        yield
        self._preheaders.pop()

    # -- pure operations, shared --

    def is_natural(self, value: Value) -> bool:
        """Whether a signed integer is known not to be negative."""
        known = literal(value)
        return value.text in self._natural if known is None else known >= 0

    def note_natural(self, value: Value) -> Value:
        """Notes that a signed integer isn't negative."""
        self._natural.add(value.text)
        return value

    def binary(self, opcode: str, a: Value, b: Value, flags: str = "") -> Value:
        """``opcode`` on two values of one type: ``add``, ``fmul``, ``and``..."""
        if opcode in _KNOWN:
            x, y = literal(a), literal(b)
            if x is not None and y is not None:
                return integer(a.type, wrapped(_KNOWN[opcode](x, y), int(a.type[1:])))
        grows = flags == "nsw" and opcode in ("add", "mul")
        if (grows or opcode in _KEEPING) and self.is_natural(a) and self.is_natural(b):
            # With both flags, LLVM doesn't try to prove them, which takes a fifth of its time.
            both = "nuw nsw " if grows else ""
            return self.note_natural(self._pure(a.type, f"{opcode} {both}{a}, {b.text}"))
        return self._pure(a.type, f"{opcode} {flags + ' ' if flags else ''}{a}, {b.text}")

    def all_of(self, conditions: Iterable[Value]) -> Value:
        """Whether all of some conditions hold."""
        return reduce(partial(self.binary, "and"), conditions)

    def any_of(self, *conditions: Value) -> Value:
        """Whether one of some conditions holds."""
        return reduce(partial(self.binary, "or"), conditions)

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        return self._pure(like(a.type, "i1"), f"icmp {predicate} {a}, {b.text}")

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        return self._pure(like(a.type, "i1"), f"fcmp {predicate} {a}, {b.text}")

    def fneg(self, a: Value) -> Value:
        return self._pure(a.type, f"fneg {a}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self._pure(yes.type, f"select {condition}, {yes}, {no}")

    def convert(self, opcode: str, value: Value, element: str) -> Value:
        """``sext``, ``fptosi``, ``bitcast``... of every lane to `element`."""
        wanted = like(value.type, element)
        known = literal(value) if opcode in ("trunc", "sext") else None
        if known is not None:
            return integer(wanted, wrapped(known, int(wanted[1:])))
        return value if wanted == value.type else self._converted(opcode, value, wanted)

    def _converted(self, opcode: str, value: Value, wanted: str) -> Value:
        made = self._pure(wanted, f"{opcode} {value} to {wanted}")
        is_natural = opcode == "zext" or (opcode == "sext" and self.is_natural(value))
        return self.note_natural(made) if is_natural else made

    def convert_whole(self, value: Value, type: str) -> Value:
        """The bits of a value as another type of the same width."""
        return self._pure(type, f"bitcast {value} to {type}")

    def intrinsic(self, name: str, type: str, *args: Value, flags: str = "") -> Value:
        """A pure LLVM intrinsic, ``llvm.`` and overload left out: ``intrinsic("sqrt", ...)``."""
        listed = ", ".join(map(str, args))
        prefix = flags + " " if flags else ""
        made = self._pure(type, f"call {prefix}{type} @llvm.{name}({listed})")
        is_natural = name in _BETWEEN and _BETWEEN[name](map(self.is_natural, args))
        return self.note_natural(made) if is_natural else made

    def element_pointer(
        self, type: str, pointer: Value, index: Value, *, inbounds: bool = True
    ) -> Value:
        """The address of element `index` of an array of `type` at `pointer`; unless it is
        `inbounds`, the element need not exist."""
        if index.text == "0":
            return pointer
        flag = "inbounds " if inbounds else ""
        made = self._pure("ptr", f"getelementptr {flag}{type}, {pointer}, {index}")
        memory = self._places.get(pointer.text)
        if memory is None:
            return made
        if literal(index) is None:
            self._indexed.add(memory)
        else:
            self._places[made.text] = memory
        return made

    def vector_of_pointers(self, type: str, element: str, base: Value, offsets: Value) -> Value:
        """The addresses of the elements at `offsets`, one a lane, from `base`."""
        return self._pure(type, f"getelementptr inbounds {element}, {base}, {offsets}")

    def extract(self, vector: Value, lane: int | Value) -> Value:
        """One lane of a vector; a scalar is its own only lane."""
        if lanes_of(vector.type) == 1:
            return vector
        number = i32(lane) if isinstance(lane, int) else lane
        return self._pure(element_type(vector.type), f"extractelement {vector}, {number}")

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int | None]) -> Value:
        """A vector of lanes, given by their numbers; the lanes of `b` are numbered behind those of
        `a`. None stands for any value."""
        order = ", ".join("i32 poison" if lane is None else f"i32 {lane}" for lane in lanes)
        type = vector_type(element_type(a.type), len(lanes))
        return self._pure(type, f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{order}>")

    def reverse(self, vector: Value) -> Value:
        """The lanes in the opposite order."""
        return self.shuffle(vector, poison(vector.type), range(lanes_of(vector.type))[::-1])

    def insert(self, vector: Value, element: Value, lane: int) -> Value:
        """`vector` with one lane replaced."""
        return self._pure(vector.type, f"insertelement {vector}, {element}, i32 {lane}")

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector of copies of a scalar."""
        if lanes == 1:
            return value
        type = vector_type(value.type, lanes)
        if value.text[0] not in "%@":
            return Value(type, f"splat ({value})")
        first = self.insert(poison(type), value, 0)
        mask = zero(vector_type("i32", lanes))
        return self._pure(type, f"shufflevector {first}, {type} poison, {mask}")

    # -- memory and calls, never shared --

    def alloca(self, type: str, count: int = 1, align: int = 8) -> Value:
        """Stack memory for the whole call, in the entry block."""
        self._counter += 1
        name = f"%stack.{self._counter}"
        # An array type: LLVM's first pass puts no `alloca type, i32 count` into registers.
        self._allocas.append(f"  {name} = alloca [{count} x {type}], align {align}")
        self._places[name] = name
        return Value("ptr", name)

    def load(self, type: str, pointer: Value, align: int, mask: Value | None = None) -> Value:
        """Loads a value; the lanes of a vector that `mask` leaves out are 0."""
        self._note_access(pointer)
        if mask is None:
            return self._define(type, f"load {type}, {pointer}, align {align}")
        return self._define(
            type,
            f"call {type} @llvm.masked.load({pointer.type} align {align} {pointer.text}, "
            f"{mask}, {zero(type)})",
        )

    def store(self, value: Value, pointer: Value, align: int, mask: Value | None = None) -> None:
        """Stores a value; of a vector, only the lanes that `mask` chooses."""
        self._note_access(pointer)
        if mask is None:
            self._lines.append(f"  store {value}, {pointer}, align {align}")
            return
        self._lines.append(
            f"  call void @llvm.masked.store({value}, {pointer.type} align {align} "
            f"{pointer.text}, {mask})"
        )

    def _note_access(self, pointer: Value) -> None:
        """Notes whether each round of a loop uses the same memory, which then belongs in a
        register: LLVM's first pass puts known places on the stack there, its loop passes others."""
        if self._depths.get(pointer.text, 0) >= len(self._preheaders):
            return
        memory = self._places.get(pointer.text)
        if memory is None:
            self.needs_loop_passes = True
        else:
            self._in_loops.add(memory)

    def store_past_caches(self, value: Value, pointer: Value, align: int) -> None:
        """Stores a value past the caches."""
        self._lines.append(f"  store {value}, {pointer}, align {align}, !nontemporal !{{i32 1}}")

    def word(self, table: Value, position: Value | int, type: str = "i64") -> Value:
        """A value of 8 bytes in a table of such values."""
        where = i64(position) if isinstance(position, int) else position
        return self.load(type, self.element_pointer("i64", table, where), 8)

    def set_word(self, table: Value, position: int, value: Value) -> None:
        """Sets a value of 8 bytes in a table of such values."""
        self.store(value, self.element_pointer("i64", table, i64(position)), 8)

    def table(self, values: Sequence[Value]) -> Value:
        """Values of 8 bytes and of one type one after another: on the stack, unless they are
        constants."""
        if values and all(value.text[0] != "%" for value in values):
            return self.module.table(values)
        table = self.alloca("i64", max(1, len(values)))
        for position, value in enumerate(values):
            self.set_word(table, position, value)
        return table

    def gather(self, type: str, pointers: Value, align: int, mask: Value | None = None) -> Value:
        """A vector whose lanes are read from a vector of addresses, 0 in the lanes that `mask`
        leaves out."""
        chosen = integer(like(type, "i1"), 1) if mask is None else mask
        otherwise = poison(type) if mask is None else zero(type)
        return self._define(
            type,
            f"call {type} @llvm.masked.gather({pointers.type} align {align} {pointers.text}, "
            f"{chosen}, {otherwise})",
        )

    def scatter(self, value: Value, pointers: Value, align: int, mask: Value | None = None) -> None:
        """Writes the lanes of a vector to a vector of addresses, the first lane first."""
        mask = integer(like(value.type, "i1"), 1) if mask is None else mask
        self._lines.append(
            f"  call void @llvm.masked.scatter({value}, {pointers.type} align {align} "
            f"{pointers.text}, {mask})"
        )

    def call(
        self, function: Value, type: str, args: Sequence[Value], *, signature: str = ""
    ) -> Value:
        """A call with effects. A variadic callee needs its `signature`, ``i32 (ptr, ...)``."""
        listed = ", ".join(map(str, args))
        text = f"call {signature or type} {function.text}({listed})"
        if type == "void":
            self._lines.append(f"  {text}")
            return Value("void", "")
        return self._define(type, text)

    def call_external(self, name: str, type: str, args: Sequence[Value]) -> Value:
        """A call of a C function that the loader provides."""
        params = ", ".join(arg.type for arg in args)
        function = self.module.external_function(name, f"{type} ({params})")
        return self.call(function, type, args)

    def outlined(
        self, name: str, result: str, args: Sequence[Value], emit: Callable[..., Value]
    ) -> Value:
        """Calls a pure function of `args`; the first call in the module defines the function.
        `emit` gets the text of the function and its parameters."""
        if self.module.claim(name):
            function = FunctionText(
                self.module, name, result, [f"{arg.type} x{i}" for i, arg in enumerate(args)],
                linkage="internal", attributes="noinline nounwind willreturn memory(none) ",
            )  # fmt: skip
            function.ret(emit(function, *function.params))
            function.finish()
        return self._pure(result, f"call {result} @{symbol(name)}({', '.join(map(str, args))})")

    def inline_or_outlined(
        self, name: str, result: str, args: Sequence[Value], emit: Callable[..., Value], lines: int
    ) -> Value:
        """As :meth:`outlined`, but the code is emitted inline if the module doesn't have it yet, or
        if it has at most `lines` lines. The value for the same `args` is computed once."""
        term = f"{name}({', '.join(map(str, args))})"
        known = self._known(term)
        if known is not None:
            return known
        written = self.module.lines_of.get(name, 0)
        if written > lines:
            return self.outlined(name, result, args, emit)
        before = len(self._lines)
        made = emit(self, *args)
        self.module.lines_of[name] = max(written, len(self._lines) - before)
        self._scopes[-1][term] = made
        return made

    def _name(self, type: str) -> Value:
        self._counter += 1
        name = f"%v{self._counter}"
        if self._preheaders:
            self._depths[name] = len(self._preheaders)
        return Value(type, name)

    def _define(self, type: str, text: str) -> Value:
        value = self._name(type)
        self._lines.append(f"  {value.text} = {text}")
        return value

    def _known(self, term: str) -> Value | None:
        """The value of a shared operation, if this scope or one around it has computed it."""
        for known in reversed(self._scopes):
            found = known.get(term)
            if found is not None:
                return found
        return None

    def _pure(self, type: str, text: str) -> Value:
        value = self._known(text)
        if value is not None:
            return value
        depth = self._depth_of(text)
        if depth < len(self._preheaders):
            if not _may_run_early(text):
                self.needs_loop_passes = True
            elif self._outermost < len(self._preheaders):
                return self._define_before_loop(type, text, max(depth, self._outermost))
        value = self._define(type, text)
        self._scopes[-1][text] = value
        return value

    def _depth_of(self, text: str) -> int:
        """With how many of the open loops an operation changes."""
        depth, known, most = 0, self._depths, len(self._preheaders)
        if most:
            for each in _OPERAND.findall(text):
                depth = max(depth, known.get(each, 0))
                if depth >= most:
                    return depth
        return depth

    def _define_before_loop(self, type: str, text: str, depth: int) -> Value:
        """A value that changes with at most `depth` of the open loops: before the next one."""
        value, preheader = self._name(type), self._preheaders[depth]
        preheader.lines.append(f"  {value.text} = {text}")
        preheader.shared[text] = value
        self._depths[value.text] = depth
        return value


def _may_run_early(text: str) -> bool:
    """Whether a pure operation may be computed where the program wouldn't: it can't trap, and takes
    no tile register."""
    if text.startswith(_TRAPS):
        divisor = text.rsplit(" ", 1)[1]
        return divisor.isdigit() and divisor != "0"
    return not text.startswith("call") or ("@llvm." in text and "x86_amx" not in text)


def _flat(lines: Iterable[str | list[str]]) -> Iterator[str]:
    """The lines in order, those of preheaders in their place."""
    for each in lines:
        if isinstance(each, str):
            yield each
        else:
            yield from each
