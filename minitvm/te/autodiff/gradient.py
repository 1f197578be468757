"""``te.gradient``: reverse-mode differentiation of the graph of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.errors import CompileError
from minitvm.te.autodiff.adjoint import Share, adjoint_of, zeros
from minitvm.te.autodiff.expression import read_adjoints
from minitvm.te.autodiff.folds import scan_of
from minitvm.te.autodiff.functions import where
from minitvm.te.autodiff.keeping import reading_kept
from minitvm.te.autodiff.known_sums import reading_sums
from minitvm.te.autodiff.known_values import reading_adjoints, reading_values
from minitvm.te.autodiff.moves import moves_of
from minitvm.te.autodiff.reductions import Term, chooses, is_fold, terms_of
from minitvm.te.autodiff.scans import (
    Adjoint,
    adjoints_of_scan,
    later,
    operations_of_step,
    step_at_all_times,
    steps_of,
)
from minitvm.te.autodiff.scatter import scatter_of
from minitvm.te.autodiff.shifts import cancels
from minitvm.te.autodiff.stages import computed
from minitvm.te.autodiff.support import shortens_sums, support_of
from minitvm.te.operation import placeholder
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    data_axes,
    domain_of,
    shape_text,
    tensor_of,
)
from minitvm.te.vmap import vmap
from minitvm.tir import expr as e
from minitvm.tir import op as language
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import PrimExpr, ProducerLoad, Reduce, Var, as_tuple, const_int, described
from minitvm.tir.functor import substitute


def gradient(
    outputs: Any, inputs: Any, head_adjoints: Any = None, *, head: Any = None
) -> list[Tensor]:
    """The adjoints of tensors: the derivatives of a program's outputs by each element of `inputs`,
    times the outputs' own adjoints, added up over all elements of the outputs.

    Parameters
    ----------
    outputs : Tensor, or a list of them
        The results, of floating-point dtypes.
    inputs : Tensor, or a list of them
        The tensors by which to differentiate, placeholders or computed ones, of floating-point
        dtypes.
    head_adjoints : Tensor, or a list with one for each output
        The adjoints of the outputs, each of the shape and dtype of its output; or of that shape
        with the same further dimensions in front, which the result then has in front, too. Unless
        given, that of one output is the identity, and the result its Jacobian, of shape
        ``output.shape + input.shape``; that of an output of rank 0 is the number 1.
    head
        Classic TVM's name of `head_adjoints`.

    Returns
    -------
    list of Tensor
        The adjoint of each of `inputs`, of its shape (behind any further dimensions) and dtype.

    Raises
    ------
    CompileError
        When an argument is none of these; when a result depends on an input by an operation that
        has no derivative, or its body is nested too deeply.

    >>> from minitvm import te
    >>> A, B = te.placeholder((4, 8), name="A"), te.placeholder((8, 3), name="B")
    >>> k = te.reduce_axis((0, 8), name="k")
    >>> C = te.compute((4, 3), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> dC = te.placeholder((4, 3), name="dC")
    >>> dA, dB = gradient(C, [A, B], dC)
    >>> dA.shape, dA.op.body[0].source[0]
    ((4, 8), dC[i0, j] * B[i1, j])
    """
    results = tensors_of_floats("gradient: outputs", outputs)
    wanted = tensors_of_floats("gradient: inputs", inputs)
    if head is not None and head_adjoints is not None:
        raise CompileError("gradient: expected head_adjoints or head, its classic name, got both")
    heads, leading = _heads(results, head if head_adjoints is None else head_adjoints)
    with deep_expressions("gradient"):
        if leading and any(map(_is_in_steps, in_order([result.op for result in results]))):
            return _batch_of_gradients(results, wanted, cast("list[Tensor]", heads), leading)
        backward = _Backward(wanted, leading)
        for result, adjoint in zip(results, heads, strict=True):
            backward.begin_with_head(result, adjoint)
        backward.run(in_order([result.op for result in results]))
        found = reading_sums(reading_values(backward.found(), results), results)
        return reading_adjoints(found, results)


def _is_in_steps(op: Operation) -> bool:
    """Whether the adjoint of an operation is a scan."""
    return isinstance(op, ScanOp) or (isinstance(op, ComputeOp) and is_fold(simplified(op)))


def _batch_of_gradients(
    results: list[Tensor],
    wanted: list[Tensor],
    heads: Sequence[Tensor],
    leading: Sequence[PrimExpr],
) -> list[Tensor]:
    """The gradients by head adjoints with further dimensions in front, which a batch adds."""
    given = [placeholder(each.shape, each.dtype, f"{each.op.name}_head") for each in results]
    made = gradient(results, wanted, given)
    for extent in reversed(leading):
        made, given = vmap(made, given, extent)
    return reading_kept(made, dict(zip(given, heads, strict=True)))


# -- Arguments ------------------------------------------------------------------------------------


def tensors_of_floats(what: str, given: Any) -> list[Tensor]:
    """A tensor of floats, or several, checked; `what` names the argument in messages."""
    listed = [given] if isinstance(given, Tensor) else list(as_tuple(given))
    if not listed:
        raise CompileError(f"{what}: expected at least one tensor, got none")
    several = isinstance(given, (list, tuple))
    for i, each in enumerate(listed):
        where = f"{what}[{i}]" if several else what
        if not isinstance(each, Tensor):
            raise CompileError(f"{where}: expected a tensor, got {described(each)}")
        if not each.dtype.is_float:
            raise CompileError(
                f"{where}: expected a tensor of floats, got {each.name} of {each.dtype}, which "
                "has no derivative"
            )
    return listed


def _heads(
    results: Sequence[Tensor], given: Any
) -> tuple[list[Tensor | None], tuple[PrimExpr, ...]]:
    """The adjoint of each output, None for the number 1, and their further dimensions."""
    if given is None and all(result.ndim == 0 for result in results):
        return [None] * len(results), ()
    if given is None:
        if len(results) > 1:
            raise CompileError(
                f"gradient: head_adjoints: expected one for each of {len(results)} outputs, got "
                "none: the Jacobian is that of one output"
            )
        return [_identity(results[0])], results[0].shape
    heads = [given] if isinstance(given, Tensor) else list(as_tuple(given))
    if len(heads) != len(results):
        raise CompileError(
            f"gradient: head_adjoints: expected one for each of {len(results)} outputs, got "
            f"{len(heads)}"
        )
    several = isinstance(given, (list, tuple))
    names = [f"gradient: head_adjoints{f'[{i}]' if several else ''}" for i in range(len(heads))]
    for name, head, result in zip(names, heads, results, strict=True):
        _check_head(name, head, result)
    leading = heads[0].shape[: heads[0].ndim - results[0].ndim]
    for name, head, result in zip(names, heads, results, strict=True):
        mine = head.shape[: head.ndim - result.ndim]
        if not is_same_shape(mine, leading):
            raise CompileError(
                f"{name}: expected the dimensions of the others, {shape_text(leading)}, before "
                f"those of {result.name}, got {shape_text(mine)}"
            )
    return [*heads], leading


def _check_head(name: str, head: Any, result: Tensor) -> None:
    if not isinstance(head, Tensor):
        raise CompileError(f"{name}: expected a tensor, got {described(head)}")
    if head.dtype is not result.dtype:
        raise CompileError(
            f"{name}: expected the dtype of {result.name}, {result.dtype}, got {head.dtype}"
        )
    last = head.shape[head.ndim - result.ndim :] if head.ndim >= result.ndim else ()
    if head.ndim < result.ndim or not is_same_shape(last, result.shape):
        raise CompileError(
            f"{name}: expected the shape of {result.name}, {shape_text(result.shape)}, or that "
            f"with further dimensions in front, got {shape_text(head.shape)}"
        )


def is_same_shape(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    known = Analyzer()
    return len(a) == len(b) and all(
        known.can_prove(e.equal(x, y)) for x, y in zip(a, b, strict=True)
    )


def _identity(result: Tensor) -> Tensor:
    """The derivatives of the elements of a tensor by themselves."""
    count = result.ndim
    zero, one = e.const(0, result.dtype), e.const(1, result.dtype)

    def element(place: tuple[Var, ...]) -> PrimExpr:
        same = [e.equal(a, b) for a, b in zip(place[:count], place[count:], strict=True)]
        return where(language.all(True, *same), one, zero)

    return computed(f"{result.op.name}_identity", (*result.shape, *result.shape), element)


# -- The graph ------------------------------------------------------------------------------------


@final
class _Backward:
    """Adjoints on the way from the outputs to the inputs, shared by all uses of a tensor."""

    def __init__(self, wanted: Sequence[Tensor], leading: Sequence[PrimExpr]) -> None:
        self._wanted = wanted
        self._leading = tuple(leading)
        self._variables = tuple(Var(f"h{i}", each.dtype) for i, each in enumerate(leading))
        self._shares: dict[Tensor, list[Share]] = {}
        self._adjoints: dict[Tensor, Tensor] = {}
        self._active: dict[Tensor, bool] = {}

    def begin_with_head(self, result: Tensor, head: Tensor | None) -> None:
        """Gives an output its adjoint, None for the number 1."""
        one, leading = e.const(1, result.dtype), self._variables
        self.begin(result, lambda place: one if head is None else head(*leading, *place))

    def begin(self, result: Tensor, adjoint: Adjoint) -> None:
        """Gives a tensor an adjoint."""
        axis = data_axes([f"i{i}" for i in range(result.ndim)], result.shape)
        place = tuple(each.var for each in axis)
        share = Share(place, adjoint(place), axis, (), self._variables)
        self._shares.setdefault(result, []).append(share)

    def run(self, order: Sequence[Operation]) -> None:
        """Goes through all operations, each after those that read its tensors."""
        self._find_active(order)
        for op in reversed(order):
            self._through(op)

    def _find_active(self, order: Sequence[Operation]) -> None:
        results = [*self._shares]
        for op in order:
            depends = any(self._active[tensor] for tensor in op.input_tensors)
            for tensor in op.outputs:
                self._active[tensor] = tensor in self._wanted or (
                    depends and not self._is_cancelled(tensor, results, order)
                )

    def _is_cancelled(
        self, tensor: Tensor, results: Sequence[Tensor], order: Sequence[Operation]
    ) -> bool:
        """Whether the outputs don't depend on the tensor of a maximum or minimum, whose gradient
        would be expensive."""
        op = tensor.op
        is_choice = isinstance(op, ComputeOp) and chooses(op)
        return is_choice and tensor not in results and cancels(tensor, results, order)

    def found(self) -> list[Tensor]:
        """The adjoints of the inputs: tensors of their own."""
        made: list[Tensor] = []
        for tensor in self._wanted:
            adjoint = self._adjoints.get(tensor)
            if adjoint is None:
                adjoint = zeros(tensor, self._leading)
            elif adjoint in made or isinstance(adjoint.op, PlaceholderOp):
                adjoint = _copy(f"{tensor.op.name}_grad", adjoint)
            made.append(adjoint)
        return made

    def _through(self, op: Operation) -> None:
        """Hands the adjoints of an operation's tensors on to the tensors that it reads."""
        if isinstance(op, ComputeOp) and self._pass_on(op):
            return
        mine: dict[int, Adjoint] = {}
        for tensor in op.outputs:
            shares = self._shares.pop(tensor, [])
            if shares and self._active[tensor]:
                mine[tensor.value_index] = self._adjoint(tensor, shares)
        if not mine or not any(self._active[tensor] for tensor in op.input_tensors):
            return
        if isinstance(op, ScanOp):
            self._through_scan(op, mine)
        elif isinstance(op, ComputeOp) and is_fold(simple := simplified(op)):
            self._through_fold(simple, mine)
        else:
            for term in _terms(op, mine):
                self._hand_on(op, term)

    def _pass_on(self, op: ComputeOp) -> bool:
        """Makes the shares of a stage that only moves elements those of the tensors behind it."""
        moved = op.outputs[0]
        shares = self._shares.get(moved, [])
        if moved in self._wanted or not shares or not self._active[moved]:
            return False
        moves = moves_of(op, self._is_wanted)
        if moves is None:
            return False
        del self._shares[moved]
        for move in moves:
            to = self._shares.setdefault(tensor_of(move.load), [])
            for share in shares:
                indices, more = move.at(op, share.indices)
                to.append(replace(share, indices=indices, conditions=(*share.conditions, *more)))
        return True

    def _adjoint(self, tensor: Tensor, shares: list[Share]) -> Adjoint:
        """The adjoint of each element of a tensor, from its shares."""
        if tensor not in self._wanted and len(shares) == 1 and _is_all_of(tensor, shares[0]):
            (share,) = shares
            # Sums would compute anything else once for each of their terms.
            if isinstance(share.value, ProducerLoad | e.FloatImm):
                variables = [axis.var for axis in share.axes]
                return lambda at: substitute(share.value, dict(zip(variables, at, strict=True)))
        made = self._adjoints[tensor] = adjoint_of(tensor, self._leading, shares)
        return lambda at: made(*self._variables, *at)

    def _hand_on(self, op: Operation, term: Term) -> None:
        known = None
        if term.output is not None:
            known = op.output(term.output)(*(axis.var for axis in term.axes))
        support = support_of(term.adjoint)
        if isinstance(op, ComputeOp) and isinstance(op.body[0], Reduce):
            support = tuple(filter(shortens_sums, support))
        for read in read_adjoints(op.name, term.value, term.adjoint, self._is_wanted, known):
            tensor = tensor_of(read.load)
            # A bare adjoint is 0 by itself outside of its support, and may be taken as it is.
            mine = () if read.value is term.adjoint else support
            conditions = tuple(
                each for each in (*mine, *term.conditions, *read.guards) if const_int(each) != 1
            )
            share = Share(read.load.indices, read.value, term.axes, conditions, self._variables)
            self._shares.setdefault(tensor, []).append(share)

    def _is_wanted(self, load: ProducerLoad) -> bool:
        return self._active.get(tensor_of(load), False)

    def _through_scan(self, scan: ScanOp, mine: Mapping[int, Adjoint]) -> None:
        """Hands the adjoints of a scan on to its first states, and to what its steps read."""
        self._check_scan(scan)
        heads = [mine.get(i) for i in range(len(scan.outputs))]
        adjoints = adjoints_of_scan(scan, heads, _differentiated)
        for init, adjoint in zip(scan.init, adjoints, strict=True):
            if self._active[init]:
                self.begin(init, adjoint)
        for result in scan.outputs:  # which steps only read from here on
            self._active[result] = False
        given, _ = steps_of(scan)
        updates = step_at_all_times(scan)
        for update, adjoint in zip(updates, adjoints, strict=True):
            self.begin(update, later(adjoint, given))
        order = in_order([each.op for each in updates])
        self.run([op for op in order if not {*op.outputs} <= self._active.keys()])

    def _through_fold(self, op: ComputeOp, mine: Mapping[int, Adjoint]) -> None:
        """Hands the adjoints of a reduction on through a scan, whose last step has its results."""
        scan = scan_of(op)
        last = scan.outputs[0].shape[0] - 1

        def at_last(adjoint: Adjoint, at: Sequence[PrimExpr]) -> PrimExpr:
            value = adjoint(at[1:])
            return where(e.equal(at[0], last), value, e.const(0, value.dtype))

        new = [each for each in in_order([scan]) if not {*each.outputs} <= self._active.keys()]
        self._find_active(new)
        self._through_scan(scan, {i: partial(at_last, each) for i, each in mine.items()})
        for each in reversed(new):
            self._through(each)

    def _check_scan(self, scan: ScanOp) -> None:
        inside = [tensor for op in operations_of_step(scan) for tensor in op.outputs]
        for tensor in (*scan.state_placeholder, *inside):
            if tensor in self._wanted:
                raise CompileError(
                    f"gradient: {tensor.name}: expected inputs outside of the scan {scan.name}, "
                    "found a tensor of its steps: differentiate by a tensor that the steps read"
                )


def _differentiated(
    results: Sequence[tuple[Tensor, Adjoint]], wanted: Sequence[Tensor]
) -> list[Tensor]:
    backward = _Backward(wanted, ())
    for result, adjoint in results:
        backward.begin(result, adjoint)
    backward.run(in_order([result.op for result, _ in results]))
    return backward.found()


def _is_all_of(tensor: Tensor, share: Share) -> bool:
    """Whether a share has one iteration for each element of a tensor, in order."""
    return (
        not share.conditions
        and len(share.axes) == tensor.ndim
        and all(axis.var is index for axis, index in zip(share.axes, share.indices, strict=True))
        and is_same_shape([domain_of(axis).extent for axis in share.axes], tensor.shape)
    )


def _terms(op: Operation, adjoints: Mapping[int, Adjoint]) -> list[Term]:
    """The values from which an operation computes its tensors, each with its adjoint."""
    sums = scatter_of(op)
    if sums is not None:
        return [Term(sums.value, adjoints[0](sums.indices), sums.loops, sums.conditions)]
    if not isinstance(op, ComputeOp):
        raise CompileError(
            f"gradient: {op.name}: expected tensors of te.compute or te.scan, found one of "
            f"{type(op).__name__}, which has no derivative here"
        )
    simple = simplified(op)
    place = [axis.var for axis in op.axis]
    return terms_of(simple, {index: adjoint(place) for index, adjoint in adjoints.items()})


def _copy(name: str, tensor: Tensor) -> Tensor:
    return computed(name, tensor.shape, lambda place: tensor(*place))
