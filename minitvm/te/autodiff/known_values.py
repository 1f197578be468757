"""Products in adjoints that the program computes anyway: they are read, and not multiplied again.

The adjoint of a softmax ``y = exp(x) / s``, by the rules of a quotient and of exp, is::

    a[i, j] = dy[i, j] / s[i] - t[i] / s[i]         t[i] = sum(dy[i, j] * y[i, j], j)
    dx[i, j] = a[i, j] * e[i, j]                    e[i, j] = exp(x[i, j])

The terms of `a` have a factor ``1 / s[i]`` in common, and ``e[i, j] / s[i]`` is the element of a
stage that the program computes anyway::

    dx[i, j] = y[i, j] * (dy[i, j] - t[i])

So an adjoint that has all factors of such a stage reads the stage's element instead, unless it also
reads these factors elsewhere. An adjoint that is read once, by one other adjoint, is treated as a
part of that adjoint.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.runtime.record import record
from minitvm.te.autodiff.products import Product, Products, factor_of
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import reading, rewritten
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import Mutator, contains, find, substitute, walk_once

_MOST_NODES = 300  # of an adjoint with the parts that it alone reads


def reading_values(adjoints: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The adjoints of a program, reading its values where they are products of these.

    Parameters
    ----------
    adjoints
        The adjoints of the program's inputs.
    results
        The program's outputs.

    >>> from minitvm import te
    >>> E, S = te.placeholder((4, 8), name="E"), te.placeholder((4,), name="S")
    >>> Y = te.compute((4, 8), lambda i, j: E[i, j] / S[i], name="Y")
    >>> D = te.compute((4, 8), lambda i, j: (S[i] - 1.0) / S[i] * E[i, j], name="D")
    >>> reading_values([D], [Y])[0].op.body[0]
    Y[i, j] * (S[i] - 1.0)
    """
    forward, backward = forward_and_backward(adjoints, results)
    known = [found for op in forward if (found := _known_of(op)) is not None]
    return _Rewriting(adjoints, backward, known).made() if known else [*adjoints]


def reading_adjoints(adjoints: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The adjoints of a program; others that read the same sum as one that is a multiple of it read
    that adjoint, and one that copies a sum is the sum. So all that read a sum stand between it and
    the last adjoint, and can be computed with it, row by row.

    >>> from minitvm import te
    >>> X, v, u = (te.placeholder((4, *more), name=x) for x, *more in (("X", 8), "v", "u"))
    >>> k = te.reduce_axis((0, 8), "k")
    >>> S = te.compute((4,), lambda i: te.sum(X[i, k], axis=k), name="S")
    >>> dV = te.compute((4,), lambda i: S[i] * v[i], name="dV")
    >>> t = te.compute((4,), lambda i: S[i] * v[i] * u[i], name="t")
    >>> dX = te.compute((4, 8), lambda i, j: X[i, j] + t[i], name="dX")
    >>> reading_adjoints([dX, dV], [])[0].op.body[0]
    X[i, j] + dV[i] * u[i]
    """
    adjoints = _without_copies(adjoints, forward_and_backward(adjoints, results)[1])
    _, backward = forward_and_backward(adjoints, results)
    sums = {x.output(0) for x in backward if isinstance(x, ComputeOp) and x.reduce_axis}
    known = [_known_of(each.op, sums) for each in adjoints if each.op in backward]
    found = [each for each in known if each is not None]
    if not found:
        return adjoints
    first = in_order([each.tensor.op for each in found])
    order = [op for op in dict.fromkeys((*first, *backward)) if op in backward]
    return _Rewriting(adjoints, order, found).made()


def _without_copies(adjoints: Sequence[Tensor], backward: Sequence[Operation]) -> list[Tensor]:
    """The adjoints, without stages that copy others. An adjoint that copies a stage takes its
    place."""
    sources, names = dict[Operation, Tensor](), dict[Tensor, str]()
    for op in backward:
        source = _copied(op)
        if source is None or source.op not in backward:
            continue
        source = sources.get(source.op, source)
        if op.output(0) in adjoints:
            if source in names or source in adjoints:
                continue  # two adjoints are two tensors
            names[source] = op.name
        sources[op] = source

    def made(op: Operation, now: Mapping[Tensor, Tensor]) -> Operation:
        if op in sources:
            return now.get(sources[op], sources[op]).op
        name = names.get(op.output(0))
        found = reading(op, now)
        return found if name is None else replace(cast(ComputeOp, found), name=name)

    return rewritten(adjoints, backward, made)


def _copied(op: Operation) -> Tensor | None:
    """The tensor of one output whose elements a stage copies, each to its own place."""
    if not isinstance(op, ComputeOp) or len(op.body) > 1:
        return None
    (load,), axes = op.body, [axis.var for axis in op.axis]
    if not isinstance(load, ProducerLoad) or not _is_anchor(load, axes, op):
        return None
    tensor = tensor_of(load)
    return tensor if isinstance(tensor.op, ComputeOp) and tensor.op.num_outputs == 1 else None


def forward_and_backward(
    adjoints: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[list[Operation], list[Operation]]:
    """The operations of a program whose values adjoints may read, and those of the adjoints alone,
    in order. A program with scans has none: the stages of a step have no values after it."""
    forward, both = (in_order([x.op for x in each]) for each in (results, adjoints))
    known = {*forward}
    backward = [op for op in both if op not in known]
    return [] if any(isinstance(op, ScanOp) for op in forward) else forward, backward


# -- Values of the program ------------------------------------------------------------------------


@final
@record()
class _Known:
    """A stage whose elements are products of several factors.

    Attributes
    ----------
    tensor
        Its tensor.
    product
        The product at the stage's axes.
    anchor
        A read in it of the element at these axes, of a tensor of the same shape: so where there is
        such an element, there is one of the stage.
    """

    tensor: Tensor
    product: Product
    anchor: ProducerLoad

    def at(self, indices: Sequence[PrimExpr]) -> Product:
        """The product for the element at some indices."""
        axes = [axis.var for axis in cast(ComputeOp, self.tensor.op).axis]
        values = dict(zip(axes, indices, strict=True))
        made = Product(self.product.number, {})
        for factor, power in self.product.powers.values():
            here = substitute(factor, values)
            made = made.times(Product(1.0, {structural_key(here): (here, power)}))
        return made


def _known_of(op: Operation, anchors: Collection[Tensor] | None = None) -> _Known | None:
    """A stage as a value that adjoints may read, if it is one; with an anchor in one of some
    tensors."""
    if not isinstance(op, ComputeOp) or len(op.body) > 1 or isinstance(op.body[0], Reduce):
        return None
    (body,) = op.body
    if not isinstance(body, e.Mul | e.Div) or not body.dtype.is_float or _is_large(body):
        return None
    product = Products().of(body)
    factors = [factor for factor, _ in product.powers.values()]
    if len(factors) < 2:
        return None
    axes = [axis.var for axis in op.axis]
    for node in walk_once(*factors):
        if not isinstance(node, ProducerLoad) or not _is_anchor(node, axes, op):
            continue
        if anchors is None or node.producer in anchors:
            return _Known(op.output(0), product, node)
    return None


def _is_anchor(load: ProducerLoad, axes: Sequence[Var], op: ComputeOp) -> bool:
    if len(load.indices) != len(axes) or not axes or not isinstance(load.producer, Tensor):
        return False
    if not all(map(operator.is_, load.indices, axes)):
        return False
    known = Analyzer()
    pairs = zip(load.producer.shape, op.output(0).shape, strict=True)
    return all(known.can_prove(e.equal(a, b)) for a, b in pairs)


def _is_large(*nodes: PrimExpr) -> bool:
    return sum(1 for _ in walk_once(*nodes)) > _MOST_NODES


# -- Adjoints -------------------------------------------------------------------------------------


@final
class _Rewriting:
    """The graph of adjoints, rewritten from the first to the last."""

    def __init__(
        self, adjoints: Sequence[Tensor], ops: Sequence[Operation], known: Sequence[_Known]
    ) -> None:
        self._adjoints = adjoints
        self._order = ops
        self._places = {op: place for place, op in enumerate(ops)}
        self._known = known
        readers = Counter(t for op in self._order for t in set(op.input_tensors))
        self._parts = {
            op.output(0): op
            for op in self._order
            if isinstance(op, ComputeOp)
            and _is_elementwise(op)
            and readers[op.output(0)] == 1
            and op.output(0) not in adjoints
        }
        self._sizes: dict[Operation, int] = {}  # of elementwise stages with their parts, in nodes
        for op in self._order:
            if isinstance(op, ComputeOp) and _is_elementwise(op):
                parts = [self._parts[t] for t in op.input_tensors if t in self._parts]
                own = sum(1 for _ in walk_once(*op.body))
                self._sizes[op] = own + sum(self._sizes[part] for part in parts)

    def made(self) -> list[Tensor]:
        return rewritten(self._adjoints, self._order, self._made)

    def _comes_before(self, known: Operation, op: Operation) -> bool:
        """Whether a stage is one of the program, or an adjoint before another one."""
        places = self._places
        return known not in places or places[known] < places[op]

    def _made(self, op: Operation, now: Mapping[Tensor, Tensor]) -> Operation:
        is_one = isinstance(op, ComputeOp) and _is_elementwise(op)
        return reading(self._rewritten(cast(ComputeOp, op)) if is_one else op, now)

    def _rewritten(self, op: ComputeOp) -> ComputeOp:
        """An elementwise stage, with its parts and reading known values; the stage itself, if there
        are none to read."""
        parts = {t: part for t, part in self._parts.items() if _is_cheap_in(op, part)}
        if self._sizes[op] > _MOST_NODES:
            return op
        whole = _with_parts(op.body[0], parts)
        body, products = whole, Products()
        for known in self._known:
            factor = known.anchor.producer
            if factor in _read(body) and self._comes_before(known.tensor.op, op):
                reading_it = _ReadValue(known, products).expr(body)
                # Where its factor is read anyway, the value would be one read more.
                body = body if factor in _read(reading_it) else reading_it
        return op if body is whole else replace(op, body=(body,))


def _is_elementwise(op: ComputeOp) -> bool:
    first = op.body[0]
    return len(op.body) == 1 and not isinstance(first, Reduce) and first.dtype.is_float


def _is_cheap_in(op: ComputeOp, part: ComputeOp) -> bool:
    """Whether a stage may compute the elements of another one each time that it reads them."""
    is_called = contains(e.Call, *part.body)
    return len(part.axis) == len(op.axis) or not is_called


def _read(node: PrimExpr) -> set[object]:
    return {each.producer for each in find(ProducerLoad, node)}


def _with_parts(node: PrimExpr, parts: Mapping[Tensor, ComputeOp]) -> PrimExpr:
    """An expression with the elements of `parts` written out that are read at one place alone."""
    reads = Counter(x.producer for x in find(ProducerLoad, node))
    once = {t: op for t, op in parts.items() if reads[t] == 1}
    return _Parts(once, parts).expr(node) if once else node


class _Parts(Mutator):
    def __init__(self, once: Mapping[Tensor, ComputeOp], parts: Mapping[Tensor, ComputeOp]) -> None:
        super().__init__()
        self._once = once
        self._all = parts

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        op = self._once.get(tensor_of(node))
        if op is None:
            return self.descend(node)
        body = _with_parts(op.body[0], self._all)
        return substitute(
            body, {axis.var: at for axis, at in zip(op.axis, node.indices, strict=True)}
        )


class _ReadValue(Mutator):
    """Replaces the factors of a known value, where a product has all of them."""

    def __init__(self, known: _Known, products: Products) -> None:
        super().__init__()
        self._known = known
        self._products = products
        self._loads: dict[PrimExpr, list[ProducerLoad]] = {}
        self._elements: dict[Hashable, Product] = {}

    def _replaced(self, node: PrimExpr) -> PrimExpr:
        if not node.dtype.is_float:
            return node
        product = self._products.of(node)
        found = self._reading(product)
        return self.descend(node) if found is product else self.descend(found.value(node))

    visit_Mul = visit_Div = visit_Add = visit_Sub = _replaced

    def _reading(self, product: Product) -> Product:
        while (indices := self._place_in(product)) is not None:
            read = factor_of(self._known.tensor(*indices))
            product = read.times(product.times(self._known.at(indices), -1))
        return product

    def _place_in(self, product: Product) -> Sequence[PrimExpr] | None:
        """The indices of an element of the known value that divides a product, if there is one."""
        for factor, _ in product.powers.values():
            if factor not in self._loads:
                found = find(ProducerLoad, factor)
                anchor = self._known.anchor.producer
                self._loads[factor] = [each for each in found if each.producer is anchor]
            for load in self._loads[factor]:
                if self._element(load).divides(product):
                    return load.indices
        return None

    def _element(self, load: ProducerLoad) -> Product:
        """The known value's element whose anchor is a read."""
        key = structural_key(load.indices)
        if key not in self._elements:
            self._elements[key] = self._known.at(load.indices)
        return self._elements[key]
