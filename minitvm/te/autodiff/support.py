"""The support of an adjoint: the places where it can differ from 0.

The adjoint of a masked tensor is 0 outside of the mask, and so are the adjoints computed from it
there. A sum over such adjoints leaves these terms out; a product with a triangle has half as many
steps::

    dS[i, j] = dP[i, j] * P[i, j] if j <= i else 0
    dQ[i, c] = sum(dS[i, j] * K[j, c], j, where=j <= i)

Outside of the mask nothing is evaluated, so that overflows there, as of the exponentials of masked
scores, do no harm.
"""

from __future__ import annotations

from minitvm.arith.guards import conjuncts
from minitvm.te.autodiff.functions import number
from minitvm.te.autodiff.stages import reads
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import GE, GT, LE, LT, Call, PrimExpr, ProducerLoad, Select, Var
from minitvm.tir.functor import find, substitute


def support_of(adjoint: PrimExpr) -> tuple[PrimExpr, ...]:
    """The conditions on the place of an element without which an adjoint is 0 there.

    >>> from minitvm import te
    >>> D = te.placeholder((4, 4), name="D")
    >>> L = te.compute((4, 4), lambda i, j: te.if_then_else(j <= i, D[i, j], 0.0), name="L")
    >>> a, b = te.var("a"), te.var("b")
    >>> support_of(L[a, b])
    (b <= a,)
    """
    if not isinstance(adjoint, ProducerLoad) or not isinstance(adjoint.producer, Tensor):
        return ()
    op = adjoint.producer.op
    if not isinstance(op, ComputeOp):
        return ()
    match op.body[adjoint.producer.value_index]:
        case Call(op="if_then_else", args=(condition, _, otherwise)) if number(otherwise) == 0:
            pass
        case Select(condition, _, otherwise) if number(otherwise) == 0:
            pass
        case _:
            return ()
    place = dict(zip((axis.var for axis in op.axis), adjoint.indices, strict=True))
    return tuple(substitute(each, place) for each in conjuncts(condition) if not reads(each))


def shortens_sums(condition: PrimExpr) -> bool:
    """Whether a sum over an adjoint should leave out the terms in which `condition` fails: terms
    beyond a diagonal, for example. A padded adjoint is read faster with its zeros, and so are
    single elements."""
    variables = set(find(Var, condition))
    return isinstance(condition, LT | LE | GT | GE) and len(variables) > 1
