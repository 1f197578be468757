"""Emits the check whether arrays share memory, which decides from their ranges and strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minitvm.codegen.dltensor import Tensor
from minitvm.codegen.llvm_text import Block, FunctionText, ModuleText, Value, i32, i64, integer

# int share_memory(DLTensor* a, DLTensor* b): 1, 0, or -1 with an exception pending
SHARE_MEMORY = "minitvm_share_memory"

# The number of pairs of tensors up to which pairs are compared one by one.
_FEW_PAIRS = 32

# A row of the table of tensors: {DLTensor*, low, end}; and of the constants about them.
_TENSOR, _LOW, _END = _POINTERS = range(3)
_POSITION, _IS_OUTPUT, _IS_COMPACT = _NUMBERS = range(3)


def go_on_if_apart(text: FunctionText, tensors: Sequence[Tensor], meeting: Block) -> None:
    """Continues if no output's range of memory meets the range of another tensor; otherwise jumps
    to `meeting`, also if an empty range lies inside of another range."""
    pairs = [
        (a, b)
        for later, b in enumerate(tensors)
        for a in tensors[:later]
        if a.is_output or b.is_output
    ]
    if len(pairs) > _FEW_PAIRS:
        text.go_on_if(_ranges_apart_in_loops(text, tensors), meeting)
        return
    for a, b in pairs:
        apart = (text.icmp("ule", x.end, y.low) for x, y in ((a, b), (b, a)))
        text.go_on_if_any(apart, meeting)


def _ranges_apart_in_loops(text: FunctionText, tensors: Sequence[Tensor]) -> Value:
    """The same check by loops, which LLVM vectorizes: hundreds of unrolled pairs take LLVM
    seconds."""
    outputs_first = sorted(tensors, key=lambda tensor: not tensor.is_output)
    lows, ends = (text.alloca("i64", len(tensors)) for _ in range(2))
    for position, tensor in enumerate(outputs_first):
        for array, value in ((lows, tensor.low), (ends, tensor.end)):
            text.set_word(array, position, value)

    def range_of(position: Value) -> list[Value]:
        places = [text.element_pointer("i64", array, position) for array in (lows, ends)]
        return [text.load("i64", place, 8) for place in places]

    meeting = text.alloca("i64")
    text.store(i64(0), meeting, 8)
    outputs = sum(tensor.is_output for tensor in tensors)
    with _each(text, i64(outputs)) as (i, next_output):
        low, end = range_of(i)
        with _each(text, i64(len(tensors))) as (j, following):
            fine = text.icmp("eq", i, j)
            fine = text.binary("or", fine, _are_apart(text, low, end, *range_of(j)))
            met = text.convert("zext", text.icmp("eq", fine, integer("i1", 0)), "i64")
            text.store(text.binary("or", text.load("i64", meeting, 8), met), meeting, 8)
            text.branch(following)
        text.branch(next_output)
    return text.icmp("eq", text.load("i64", meeting, 8), i64(0))


def _are_apart(text: FunctionText, a: Value, a_end: Value, b: Value, b_end: Value) -> Value:
    return text.any_of(
        text.icmp("ule", a_end, b),
        text.icmp("ule", b_end, a),
        text.icmp("eq", a, a_end),  # empty
        text.icmp("eq", b, b_end),
    )


def tables_of(text: FunctionText, tensors: Sequence[Tensor]) -> list[Value]:
    """The tables of the tensors that the function of :func:`emit_overlap_check` reads."""
    pointers = [each for t in tensors for each in (t.handle, t.low, t.end)]
    names = [text.module.string(each.name) for each in tensors]
    numbers = [i64(n) for t in tensors for n in (t.position, t.is_output, t.is_compact)]
    return [text.table(each) for each in (pointers, names, numbers)]


def emit_overlap_check(module: ModuleText, name: str, report: str) -> None:
    """Adds a function of the tables of :func:`tables_of`, and the number of tensors::

        int name(int* ret_type_code, const char* function, void** pointers, const char** names,
                 int64_t* numbers, int64_t count)

    It is called for arguments whose ranges of memory meet, and finds exactly whether an output
    shares memory with another argument. For the first output that does, it returns the result of
    `report`; otherwise 0. Ranges may meet although no memory is shared, if arrays interleave, as
    the columns of a matrix do. The runtime decides such cases, which is not cheap.
    """
    params = ("ptr ret_type_code", "ptr function", "ptr pointers", "ptr names", "ptr numbers",
              "i64 count")  # fmt: skip
    text = FunctionText(module, name, "i32", params)
    count = text.params[-1]
    with _each(text, count) as (i, next_row):
        with _each(text, count) as (j, following):
            _check_pair(text, _Row(text, i), _Row(text, j), following, report)
        text.branch(next_row)
    text.ret(i32(0))
    text.finish()


def _check_pair(text: FunctionText, a: _Row, b: _Row, following: Block, report: str) -> None:
    """Reports that output `a` shares memory with `b`, or goes on to `following`."""
    ret_type_code, function, *_ = text.params
    checked_before = text.binary("and", b.is_set(_IS_OUTPUT), text.icmp("slt", b.row, a.row))
    passed_over = text.any_of(
        text.icmp("eq", a.row, b.row),
        checked_before,
        text.icmp("eq", a.number(_IS_OUTPUT), i64(0)),
        _are_apart(text, *(each.pointer(w) for each in (a, b) for w in (_LOW, _END))),
    )
    meeting, exact, shared = text.blocks("meeting", "exact", "shared")
    text.branch_if(passed_over, following, meeting)
    text.place(meeting)
    compact = text.binary("and", a.is_set(_IS_COMPACT), b.is_set(_IS_COMPACT))
    share_lowest = text.icmp("eq", a.pointer(_LOW), b.pointer(_LOW))  # an element of both is there
    text.branch_if(text.binary("or", compact, share_lowest), shared, exact)
    text.place(exact)
    tensors = [a.pointer(_TENSOR), b.pointer(_TENSOR)]
    answer = text.call_external(SHARE_MEMORY, "i32", tensors)
    failed, told = text.blocks("failed", "told")
    text.return_if(text.icmp("slt", answer, i32(0)), i32(-1), failed, told)
    text.branch_if(text.icmp("eq", answer, i32(0)), following, shared)
    text.place(shared)
    shown = [ret_type_code, function]
    for each in (a, b):
        shown += (text.convert("trunc", each.number(_POSITION), "i32"), each.name())
    text.ret(text.call(Value("ptr", f"@{report}"), "i32", shown))


@contextmanager
def _each(text: FunctionText, count: Value) -> Iterator[tuple[Value, Block]]:
    """A loop over the numbers below `count`, which is not 0. Returns the number, and the block to
    which the body must branch for the next one."""
    head, latch, done = text.blocks("each", "next", "done")
    with text.rounds((head, latch, done), i64(0), count, i64(1)) as number:
        yield number, latch


class _Row:
    """What the tables of :func:`tables_of` say about one tensor, in a function of them."""

    def __init__(self, text: FunctionText, row: Value) -> None:
        self.row = row
        self._text = text
        *_, self._pointers, self._names, self._numbers, _ = text.params

    def _word(self, table: Value, words: Sequence[int], word: int, type: str) -> Value:
        begin = self._text.binary("mul", self.row, i64(len(words)))
        return self._text.word(self._text.element_pointer("i64", table, begin), word, type)

    def pointer(self, word: int) -> Value:
        return self._word(self._pointers, _POINTERS, word, "ptr")

    def number(self, word: int) -> Value:
        return self._word(self._numbers, _NUMBERS, word, "i64")

    def name(self) -> Value:
        return self._text.word(self._names, self.row, "ptr")

    def is_set(self, word: int) -> Value:
        return self._text.icmp("ne", self.number(word), i64(0))


def own_elements_apart(text: FunctionText, tensor: Tensor) -> list[Value]:
    """For each dimension, whether its stride exceeds the reach of all smaller strides. If it does
    in all dimensions, no two elements share an address, as elements of a broadcast array would. In
    an empty array none do."""
    zero, one = i64(0), i64(1)
    strides = [text.intrinsic("abs", "i64", s, integer("i1", 0)) for s in tensor.strides]
    spans = [
        text.binary("mul", stride, text.binary("sub", extent, one))
        for stride, extent in zip(strides, tensor.extents, strict=True)
    ]
    empty = text.icmp("eq", tensor.low, tensor.end)
    found: list[Value] = []
    for dim, stride in enumerate(strides):
        reach = zero
        for other, span in enumerate(spans):
            if other == dim:
                continue
            # Of two equal strides the later one counts as the smaller, so that they collide.
            smaller = text.icmp("sle" if other > dim else "slt", strides[other], stride)
            counted = text.binary("and", smaller, text.icmp("sgt", span, zero))
            reach = text.binary("add", reach, text.select(counted, span, zero))
        single = text.icmp("sle", tensor.extents[dim], one)
        found.append(text.any_of(text.icmp("sgt", stride, reach), single, empty))
    return found
