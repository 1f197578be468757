"""The digits of a loop that was fused from several: ``x // n`` and ``x % n`` of its variable x."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, final

from minitvm.arith.fused_index import joined
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, Node, children, contains, free_vars, with_fields
from minitvm.tir.stmt import Stmt
from minitvm.tir.structural_equal import structural_equal

_BLOCK = 16  # iterations


def symbolic_divisor(var: Var, body: Stmt) -> PrimExpr | None:
    """The expression by which `body` divides a loop's variable most often, of those that stay the
    same while the loop runs; None if there are none but constants and numbers of blocks, each of
    which takes long beside a division. Digits that are joined to one index are no divisions."""
    bound: set[Var] = set()
    found: list[PrimExpr] = []
    for each in _beside_joined(body):
        if isinstance(each, s.LetStmt | e.Let):
            bound.add(each.var)
        elif isinstance(each, s.For):
            bound.add(each.loop_var)
        elif isinstance(each, e.FloorDiv | e.FloorMod) and each.a is var:
            found.append(each.b)
    counts = Counter[int]()
    for each in found:
        is_size = not contains((e.BufferLoad, e.Call), each) and not _is_number_of_blocks(each)
        if e.const_int(each) is None and is_size and bound.isdisjoint(free_vars(each)):
            counts[next(i for i, x in enumerate(found) if structural_equal(x, each))] += 1
    return found[counts.most_common(1)[0][0]] if counts else None


def _is_number_of_blocks(divisor: PrimExpr) -> bool:
    """Whether a number is ``(n + 63) // 64``, for blocks of some size."""
    if not isinstance(divisor, e.FloorDiv) or not isinstance(divisor.a, e.Add):
        return False
    size = e.const_int(divisor.b) or 0
    return size >= _BLOCK and e.const_int(divisor.a.b) == size - 1


def _beside_joined(body: Stmt) -> Iterator[Node]:
    """The nodes of a statement, each once, without the indices that are joined to one. A digit may
    be a node of such an index and of another one."""
    stack, seen = list[Node]([body]), set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if not isinstance(node, e.BufferLoad | s.BufferStore) or not _is_joined(node):
            stack += children(node)
        elif isinstance(node, s.BufferStore):
            stack.append(node.value)


def with_digits(var: Var, divisor: PrimExpr, high: PrimExpr, low: PrimExpr, body: Stmt) -> Stmt:
    """`body` with `high` for ``var // divisor`` and `low` for ``var % divisor``."""
    return _Digits(var, divisor, high, low).stmt(body)


@final
class _Digits(Mutator):
    def __init__(self, var: Var, divisor: PrimExpr, high: PrimExpr, low: PrimExpr) -> None:
        super().__init__()
        self._var = var
        self._divisor = divisor
        self._digits = {e.FloorDiv: high, e.FloorMod: low}

    def _access(self, node: Any) -> Any:
        if not _is_joined(node):
            return self.descend(node)
        if isinstance(node, e.BufferLoad):
            return node
        return with_fields(node, value=self.expr(node.value))

    visit_BufferLoad = visit_BufferStore = _access

    def _digit(self, node: e.FloorDiv | e.FloorMod) -> PrimExpr:
        if node.a is self._var and structural_equal(node.b, self._divisor):
            return self._digits[type(node)]
        return self.descend(node)

    visit_FloorDiv = visit_FloorMod = _digit


def _is_joined(node: e.BufferLoad | s.BufferStore) -> bool:
    """Whether some indices of an access are one, as they stand in a compact buffer."""
    long = [extent for extent in node.buffer.shape if e.const_int(extent) != 1]
    return len(joined(node.buffer, node.indices)) < (len(long) or len(node.indices))
