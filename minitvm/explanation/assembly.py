"""Reads assembly: the innermost loops of machine code, their registers, and their spills."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import final

from minitvm.runtime.record import record


@final
@record()
class InnerLoop:
    """An innermost loop of the machine code.

    Attributes
    ----------
    function
        The symbol of the function around the loop.
    instructions
        The number of instructions in one iteration.
    multiply_adds, arithmetic
        The number of vector instructions that multiply and add, and of all vector instructions that
        compute.
    loads, stores
        The number of instructions that read memory, and of those that write it. An instruction that
        reads may compute as well.
    registers, tiles
        The number of vector registers used, or parts of them, and of tile registers (AMX).
    bits
        The width of the widest vector or tile in which the loop computes, in bits; a scalar counts
        with its own width.
    spills
        The number of instructions that read or write a fixed place of the stack, which are mostly
        spills of registers.
    """

    function: str
    instructions: int
    multiply_adds: int
    arithmetic: int
    loads: int
    stores: int
    registers: int
    tiles: int
    bits: int
    spills: int


def inner_loops(assembly: str, arch: str) -> tuple[InnerLoop, ...]:
    """The innermost loops that compute in vectors; for each function, the one that computes most.

    >>> text = '''
    ... mm:
    ... .LBB0_1:
    ...     vmovups (%r9), %zmm17
    ...     vfmadd231ps 64(%rax), %zmm17, %zmm0
    ...     jne .LBB0_1
    ...     retq
    ... '''
    >>> (loop,) = inner_loops(text, "x86_64")
    >>> loop.multiply_adds, loop.loads, loop.registers, loop.bits
    (1, 2, 2, 512)
    """
    syntax = _AARCH64 if arch == "aarch64" else _X86
    hottest = []
    for name, lines in _functions(assembly, syntax):
        has_frame = any(syntax.frame.match(line) for line in lines)
        stack = syntax.stack_in_frame if has_frame else syntax.stack
        found = [_described(name, body, syntax, stack) for body in _innermost(lines)]
        best = max(found, key=lambda each: (each.multiply_adds, each.arithmetic), default=None)
        if best is not None and best.arithmetic:
            hottest.append(best)
    return tuple(hottest)


@final
@record()
class NestCode:
    """The machine code of a loop nest: its widest innermost loop, or all of it if it has none.

    Attributes
    ----------
    bits
        The width in bits of the widest vector in which the code computes, or that it moves if it
        computes in none. A scalar counts with its own width; 0 where no vector register is used.
    is_loop
        Whether it is a loop.
    """

    bits: int
    is_loop: bool


def definitions_of_marks(nests: int) -> str:
    """The LLVM IR of functions, ``nest.0`` and so on, whose calls mark where nests begin in
    assembly for x86-64; and of ``nest.-1``, which marks the end of any nest. Each function
    prefetches from an address that encodes its number: a prefetch changes nothing, and the compiler
    doesn't move it."""
    marks = (
        f'define linkonce_odr void @"nest.{nest}"() alwaysinline nounwind {{\n'
        f"  call void @llvm.prefetch.p0(ptr inttoptr (i64 {_MARKS + nest} to ptr), i32 0, i32 0, "
        "i32 1)\n  ret void\n}\n"
        for nest in range(-1, nests)
    )
    return "".join(marks) + "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"


def codes_of_nests(assembly: str) -> dict[int, NestCode]:
    """The machine code for x86-64 of the nests, each between its mark and the next one.

    >>> text = '''
    ... f:
    ...     prefetchnta 1845493760
    ... .LBB0_1:
    ...     vaddps (%rax), %ymm1, %ymm1
    ...     jne .LBB0_1
    ...     prefetchnta 1845493759
    ...     retq
    ... '''
    >>> codes_of_nests(text)[0].bits
    256
    """
    syntax = _X86
    found: dict[int, NestCode] = {}
    for _, lines in _functions(assembly, syntax):
        blocks, after = _blocks(lines)
        nests = _nests(blocks, after)
        loops = [sorted(loop) for loop in _innermost_blocks(after)]
        for is_loop, places in [*((True, each) for each in loops), (False, range(len(blocks)))]:
            bodies: dict[int, list[str]] = {}
            for place in places:
                for nest, line in zip(nests[place], blocks[place], strict=True):
                    bodies.setdefault(nest, []).append(line)
            for nest, body in bodies.items():
                before = found.get(nest)
                if before is None or not before.is_loop or is_loop:
                    same = before is not None and before.is_loop == is_loop
                    bits = max(_widest(body, syntax), before.bits if before and same else 0)
                    found[nest] = NestCode(bits, is_loop)
    found.pop(-1, None)
    return found


def _nests(blocks: Sequence[Sequence[str]], after: Sequence[Sequence[int]]) -> list[list[int]]:
    """The nest of each line of each block, found along the paths from the first block."""
    made: list[list[int]] = [[] for _ in blocks]
    begins, waiting = {0: -1}, [0]
    while waiting:
        place = waiting.pop()
        nest = begins[place]
        for line in blocks[place]:
            mark = _MARK.match(line)
            nest = int(mark[1]) - _MARKS if mark else nest
            made[place].append(nest)
        for other in after[place]:
            if other not in begins:
                begins[other] = nest
                waiting.append(other)
    for place, lines in enumerate(blocks):
        if place not in begins:
            made[place] = [-1] * len(lines)
    return made


def _widest(body: Sequence[str], syntax: _Syntax) -> int:
    in_vectors = [line for line in body if syntax.register.search(line)]
    computes = (syntax.multiply_add, syntax.arithmetic)
    computing = [line for line in in_vectors if any(each.match(line) for each in computes)]
    moving = [
        line
        for line in in_vectors
        if (syntax.load.match(line) or syntax.store.match(line)) and not _MOVES_A_SCALAR.match(line)
    ]
    return max((_bits(line, syntax) for line in computing or moving), default=0)


@final
@record()
class _Syntax:
    """The assembly syntax of an architecture; each instruction is a line."""

    comment: str
    register: re.Pattern[str]
    bits: dict[str, int]
    scalar: re.Pattern[str]
    multiply_add: re.Pattern[str]
    arithmetic: re.Pattern[str]
    load: re.Pattern[str]
    store: re.Pattern[str]
    stack: re.Pattern[str]
    frame: re.Pattern[str]
    stack_in_frame: re.Pattern[str]


# AT&T syntax: a memory operand has parentheses, and the operand that is written comes last.
_X86 = _Syntax(
    comment="#",
    register=re.compile(r"%([xyzt])mm(\d+)"),
    bits={"x": 128, "y": 256, "z": 512, "t": 8192},
    scalar=re.compile(r"(?!v?p|tdp)\w+s[sd]\b"),
    multiply_add=re.compile(r"(\{\w+\} )?(v?fn?m(add|sub)|v?pdp|vdpbf16|v?pmadd|tdp)"),
    arithmetic=re.compile(r"v?p?(add|sub|mul|div|max|min|sqrt|rsqrt|rcp)"),
    load=re.compile(r"(?!lea|prefetch|nop).*\(.*\).*,"),
    store=re.compile(r"(?!lea|prefetch|nop|cmp|test).*\([^()]*\)( \{.*\})?$"),
    stack=re.compile(r"\(%rsp\)"),
    frame=re.compile(r"movq %rsp, %rbp"),
    stack_in_frame=re.compile(r"\(%r[sb]p\)"),
)
_AARCH64 = _Syntax(
    comment="//",
    register=re.compile(r"\b([vqzds])(\d+)\b"),
    bits={"v": 128, "q": 128, "z": 128, "d": 64, "s": 32},
    scalar=re.compile(r"\w+ [sd]\d"),
    multiply_add=re.compile(r"f?ml[as]|fn?m(add|sub)|[us]+dot|bfdot|[us]+mmla|bfmmla"),
    arithmetic=re.compile(r"f?(add|sub|mul|div|max|min|sqrt)"),
    load=re.compile(r"ld"),
    store=re.compile(r"st"),
    stack=re.compile(r"\[sp(, #-?\d+)?\]"),
    frame=re.compile(r"(mov|add) x29, sp"),
    stack_in_frame=re.compile(r"\[(sp|x29)(, #-?\d+)?\]"),
)
_MARKS = 0x6E000000  # the address from which the first nest's mark prefetches
_MARK = re.compile(r"prefetchnta (\d{10})$")
_MOVES_A_SCALAR = re.compile(r"v?mov[dq] ")
_SYMBOL = re.compile(r"([A-Za-z_][\w.$]*|\"[^\"]+\"):")
_LABEL = re.compile(r"(\.?L\w+):")
_JUMP = re.compile(r"(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z) .*?(\.?L\w+)$")
_END = re.compile(r"(?:jmp|b|ret\w?|ud2|brk|br)(?: |$)")


def _functions(assembly: str, syntax: _Syntax) -> Iterator[tuple[str, list[str]]]:
    """The symbols, and the labels and instructions below each."""
    name, lines = "", list[str]()
    for line in assembly.splitlines():
        text = " ".join(line.split(syntax.comment, 1)[0].split())
        symbol = _SYMBOL.match(text)
        if symbol and not _LABEL.match(text):
            yield name, lines
            name, lines = symbol[1].strip('"'), []
        elif text and (not text.startswith(".") or _LABEL.match(text)):
            lines.append(text)
    yield name, lines


def _innermost(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The instructions of each loop that contains no other loop."""
    blocks, after = _blocks(lines)
    for inside in _innermost_blocks(after):
        yield [line for block in sorted(inside) for line in blocks[block]]


def _innermost_blocks(after: Sequence[Sequence[int]]) -> Iterator[set[int]]:
    """The blocks of each loop that contains no other loop."""
    before: list[list[int]] = [[] for _ in after]
    for place, others in enumerate(after):
        for other in others:
            before[other].append(place)
    loops: dict[int, set[int]] = {}  # for the target of jumps back, the blocks that lead there
    for latch, header in _jumps_back(after):
        inside = loops.setdefault(header, {header})
        waiting = [latch]
        while waiting:
            block = waiting.pop()
            if block not in inside:
                inside.add(block)
                waiting += before[block]
    for header, inside in loops.items():
        if not any(other in inside for other in loops if other != header):
            yield inside


def _blocks(lines: Sequence[str]) -> tuple[list[list[str]], list[list[int]]]:
    """The basic blocks, and for each block the blocks that may follow it."""
    blocks: list[list[str]] = [[]]
    labels: dict[str, int] = {}
    for line in lines:
        label = _LABEL.match(line)
        if label or (blocks[-1] and _JUMP.match(blocks[-1][-1])):
            blocks.append([])
        if label:
            labels[label[1]] = len(blocks) - 1
        else:
            blocks[-1].append(line)
    after: list[list[int]] = []
    for place, block in enumerate(blocks):
        last = block[-1] if block else ""
        jump, ends = _JUMP.match(last), _END.match(last)
        following = [] if ends or place + 1 == len(blocks) else [place + 1]
        after.append(following + ([labels[jump[1]]] if jump and jump[1] in labels else []))
    return blocks, after


def _jumps_back(after: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """The back edges: edges from a block to a block on the path to it, depth first from the
    entry."""
    done: set[int] = set()
    path: dict[int, Iterator[int]] = {0: iter(after[0])}
    while path:
        block = next(reversed(path))
        for other in path[block]:
            if other in path:
                yield block, other
            elif other not in done:
                path[other] = iter(after[other])
                break
        else:
            done.add(block)
            del path[block]


def _described(
    name: str, body: Sequence[str], syntax: _Syntax, stack: re.Pattern[str]
) -> InnerLoop:
    in_vectors = [line for line in body if syntax.register.search(line)]
    products = [line for line in in_vectors if syntax.multiply_add.match(line)]
    others = [line for line in in_vectors if syntax.arithmetic.match(line)]
    registers = {
        (kind == "t", number) for line in body for kind, number in syntax.register.findall(line)
    }
    tiles = sum(is_tile for is_tile, _ in registers)
    return InnerLoop(
        name,
        instructions=len(body),
        multiply_adds=len(products),
        arithmetic=len(products) + sum(not syntax.multiply_add.match(line) for line in others),
        loads=sum(bool(syntax.load.match(line)) for line in body),
        stores=sum(bool(syntax.store.match(line)) for line in body),
        registers=len(registers) - tiles,
        tiles=tiles,
        bits=max((_bits(line, syntax) for line in (*products, *others)), default=0),
        spills=sum(bool(stack.search(line)) for line in body),
    )


def _bits(line: str, syntax: _Syntax) -> int:
    """The width, in bits, of an instruction that computes."""
    if syntax.scalar.match(line):
        return 64 if line.split()[0].endswith("d") or " d" in line else 32
    return max(syntax.bits[kind] for kind, _ in syntax.register.findall(line))
