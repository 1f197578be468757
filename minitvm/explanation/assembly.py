"""Reads the machine code: the innermost loops, their registers, and their spills."""

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
        The number of vector instructions that multiply and add, and of all that compute.
    loads, stores
        The number of instructions that read and that write memory; those that read may compute as
        well.
    registers, tiles
        The number of vector registers used, or parts of them, and of tile registers (AMX).
    bits
        The width of the widest vector or tile that the loop computes in; of a scalar, its own
        width.
    spills
        The number of instructions that read or write a fixed place of the stack, as for want of
        registers.
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
    before: list[list[int]] = [[] for _ in blocks]
    for place, others in enumerate(after):
        for other in others:
            before[other].append(place)
    loops: dict[int, set[int]] = {}  # of all jumps back to one block, the blocks that lead there
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
            yield [line for block in sorted(inside) for line in blocks[block]]


def _blocks(lines: Sequence[str]) -> tuple[list[list[str]], list[list[int]]]:
    """Instructions that run one after the other, and which blocks may follow each block."""
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
    """The edges from a block to one by which it was reached, depth first from the entry."""
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
