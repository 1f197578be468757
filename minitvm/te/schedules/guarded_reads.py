"""The elements of a tensor that a stage reads, and their guards, which a copy of them needs as
well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.tensor import ComputeOp, Operation, Tensor, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import Node, children, contains, find, walk_once
from minitvm.tir.structural_equal import structural_equal

Guards: TypeAlias = tuple[PrimExpr, ...]
"""A conjunction of conditions; a condition may read elements that exist only where those before it
hold."""


@final
@record()
class Element:
    """The element of a tensor that a stage reads in an iteration.

    Attributes
    ----------
    value
        The read as the stage has it, or the lazy choice between the read and a number.
    copied
        The value where the read is inside of the tensor, and zero elsewhere.
    axes
        The stage's axes on which the value depends.
    """

    value: PrimExpr
    copied: PrimExpr
    axes: tuple[IterVar, ...]


def reads_of(op: ComputeOp, tensor: Tensor) -> list[ProducerLoad]:
    """The reads of a tensor in a stage, of each element once."""
    return _each_once(x for x in find(ProducerLoad, *op.body) if x.producer is tensor)


def all_reads(op: ComputeOp) -> dict[Tensor, list[ProducerLoad]]:
    """The reads of each tensor in a stage, of each element once."""
    found: dict[Tensor, list[ProducerLoad]] = {}
    for each in find(ProducerLoad, *op.body):
        found.setdefault(tensor_of(each), []).append(each)
    return {tensor: _each_once(loads) for tensor, loads in found.items()}


def _each_once(loads: Iterable[ProducerLoad]) -> list[ProducerLoad]:
    found: list[ProducerLoad] = []
    for each in loads:
        if not any(structural_equal(each, other) for other in found):
            found.append(each)
    return found


def dtype_read(op: Operation, tensor: Tensor) -> DType:
    """The dtype to which a stage casts each element of a tensor that it reads; the tensor's own if
    it uses an element in another way."""
    if not isinstance(op, ComputeOp) or not contains(e.Cast, *op.body):  # which takes no walk
        return tensor.dtype
    if any(_reads(each, tensor) for each in op.body):
        return tensor.dtype
    users = [
        node for node in walk_once(*op.body) if any(_reads(each, tensor) for each in children(node))
    ]
    dtypes = {each.dtype if isinstance(each, e.Cast) else tensor.dtype for each in users}
    return dtypes.pop() if len(dtypes) == 1 else tensor.dtype


def element_of(
    op: ComputeOp, tensor: Tensor, which: int | None = None, dtype: DType | None = None
) -> Element:
    """The element of a tensor that a stage reads in an iteration. If it reads several, `which` is
    the number of the element, in the order of the expression. `dtype`: the dtype to which the stage
    casts the element, if the value is to include the cast.

    Raises
    ------
    CompileError
        When the stage reads several elements, and `which` isn't given; when it reads fewer; when
        it uses the element without the cast.

    >>> from minitvm import te
    >>> A, W = te.placeholder((4,), name="A"), te.placeholder((3,), name="W")
    >>> k = te.reduce_axis((0, 3), name="k")
    >>> def product(i):
    ...     return te.sum(te.if_then_else(i + k < 4, A[i + k], 0.0) * W[k], axis=k)
    >>> found = element_of(te.compute((4,), product).op, A)
    >>> str(found.value), [axis.name for axis in found.axes]
    ('if_then_else(i + k < 4, A[i + k], 0.0)', ['i', 'k'])
    """
    loads = reads_of(op, tensor)
    if len(loads) != 1 if which is None else not 0 <= which < len(loads):
        elements = ", ".join(map(str, loads))
        wanted = "one element" if which is None else f"more than {which} elements"
        raise CompileError(
            f"cache_access of {tensor.name}: expected {op.name} to read {wanted} in each "
            f"iteration, got {elements}"
        )
    load = loads[which or 0]
    known = Analyzer()
    for axis in (*op.axis, *op.reduce_axis):
        assert axis.dom is not None
        known.bind(axis.var, axis.dom)
    value = _cast_element(op, load, dtype or load.dtype)
    while (wider := _choice_of(op, value, known)) is not None:
        value = wider
    copied = known.simplify(value)
    for guard in reversed(_guards_needed(op, load, value, known)):
        zero = e.const(0, value.dtype)
        copied = e.intrinsic("if_then_else", value.dtype, known.simplify(guard), copied, zero)
    # The copy has the dimensions that its readers expect, even if no element is inside of the
    # tensor.
    return Element(value, copied, _axes_in(op, copied, *map(known.simplify, load.indices)))


def _cast_element(op: ComputeOp, load: ProducerLoad, dtype: DType) -> PrimExpr:
    """The cast of an element to a dtype, around each use of it."""
    if load.dtype == dtype:
        return load
    value = e.cast(dtype, load)
    users = (x for x in walk_once(*op.body) if any(structural_equal(y, load) for y in children(x)))
    if not all(structural_equal(each, value) for each in users):
        raise CompileError(
            f"cache_access of {load.producer.name}: expected {op.name} to cast each element to "
            f"{dtype}, got a use of {load} as {load.dtype}, or as another dtype"
        )
    return value


def _reads(node: Node, tensor: Tensor) -> bool:
    return isinstance(node, ProducerLoad) and node.producer is tensor


def _axes_in(op: ComputeOp, *values: PrimExpr) -> tuple[IterVar, ...]:
    used = set(find(Var, *values))
    return tuple(axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used)


def _choice_of(op: ComputeOp, value: PrimExpr, known: Analyzer) -> e.Call | None:
    """The choice between a value and a number that surrounds each use of the value; None if there
    is no such choice, or its condition depends on further axes."""
    choices = (each for each in walk_once(*op.body) if is_lazy(each))
    found = next((each for each in choices if structural_equal(each.args[1], value)), None)
    if found is None:
        return None
    condition, _, other = found.args
    is_number = isinstance(other, e.IntImm | e.FloatImm)
    if not is_number or not is_pure(condition) or not _has_axes_of(op, condition, value, known):
        return None
    outside = _evaluated(op, lambda node: structural_equal(node, found))
    return None if any(structural_equal(node, value) for node, _ in outside) else found


def _has_axes_of(op: ComputeOp, condition: PrimExpr, value: PrimExpr, known: Analyzer) -> bool:
    """Whether a condition depends only on axes on which a value depends."""
    axes = _axes_in(op, known.simplify(value))
    return {*_axes_in(op, known.simplify(condition))} <= {*axes}


def choices_in(*roots: PrimExpr) -> Iterator[tuple[PrimExpr, PrimExpr, PrimExpr]]:
    """The choices in expressions: each one's condition, the value where it holds, and the other
    value."""
    for node in walk_once(*roots):
        if isinstance(node, e.Select):
            yield node.condition, node.true_value, node.false_value
        elif is_lazy(node):
            condition, value, other = node.args
            yield condition, value, other


def _guards_needed(op: ComputeOp, load: ProducerLoad, value: PrimExpr, known: Analyzer) -> Guards:
    """The guards of a value that its load needs to stay inside of the tensor: none, the guards on
    the load's own axes, or all."""
    found = [guards for node, guards in _evaluated(op) if structural_equal(node, value)]
    if not any(found):
        return ()
    inside: list[PrimExpr] = []
    chosen = value
    while isinstance(chosen, e.Call):
        condition, chosen, _ = chosen.args
        inside.append(condition)
    if _is_inside(load, inside, known):
        return ()
    guards = _common_guards(op, load, found)
    plain = [each for each in guards if not reads_tensors(each)]
    few = tuple(each for each in plain if _has_axes_of(op, each, value, known))
    if _is_inside(load, (*inside, *few), known):
        return few
    if not all(map(is_pure, guards)):
        raise CompileError(
            f"cache_access of {load}: expected it to be read under conditions that can be "
            f"evaluated again, got {', '.join(map(str, guards))}"
        )
    return guards


def _common_guards(op: ComputeOp, load: ProducerLoad, found: Sequence[Guards]) -> Guards:
    """The conditions under which a value is evaluated at any of its uses, given those of each."""
    first = found[0]
    if all(structural_equal(each, first) for each in found):
        return first
    if any(reads_tensors(*each) for each in found):
        raise CompileError(
            f"cache_access of {load}: expected it to be read under the same conditions wherever "
            f"{op.name} reads it, got {' and '.join(str([*map(str, each)]) for each in found)}"
        )
    anywhere: PrimExpr = e.const(False)
    for guards in found:
        held: PrimExpr = e.const(True)
        for each in guards:
            held = e.logical_and(held, each)
        anywhere = e.logical_or(anywhere, held)
    return (anywhere,)


def _is_inside(load: ProducerLoad, guards: Sequence[PrimExpr], known: Analyzer) -> bool:
    """Whether an access surely stays inside of its tensor where some conditions hold."""
    shape = tensor_of(load).shape
    with known.scope():
        for extent in shape:
            known.bind_size(extent)
        for guard in guards:
            known.assume(guard)
        pairs = zip(map(known.affine, load.indices), map(known.affine, shape), strict=True)
        return all(known.proves(index, extent - index - 1) for index, extent in pairs)


def _evaluated(
    op: ComputeOp, skip: Callable[[PrimExpr], bool] = lambda node: False
) -> Iterator[tuple[PrimExpr, Guards]]:
    """The reads, calls and casts of a stage, with the conditions under which they are evaluated.
    Those inside of the expressions `skip` are left out."""
    seen: set[tuple[int, ...]] = set()
    waiting: list[tuple[Node, Guards]] = [(each, ()) for each in op.body]
    while waiting:
        node, guards = waiting.pop()
        key = (id(node), *map(id, guards))
        if key in seen:
            continue
        seen.add(key)
        if isinstance(node, ProducerLoad | e.Call | e.Cast):
            if skip(node):
                continue
            yield node, guards
        waiting += _below(node, guards)


def _below(node: Node, guards: Guards) -> Iterator[tuple[Node, Guards]]:
    """The children of a node, with the conditions under which they are evaluated."""
    if is_lazy(node):
        condition, a, b = node.args
        yield condition, guards
        yield a, (*guards, *conjuncts(condition))
        yield b, (*guards, e.logical_not(condition))
    elif isinstance(node, Reduce):
        yield node.condition, guards
        always = e.const_int(node.condition) == 1
        where = guards if always else (*guards, *conjuncts(node.condition))
        yield from ((each, where) for each in (*node.source, *node.combiner.result))
        yield from ((each, guards) for each in (*node.init, *node.combiner.identity))
    else:
        yield from ((each, guards) for each in children(node))
