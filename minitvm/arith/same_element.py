"""When two indices mean one element."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.arith.linear import Affine, equal
from minitvm.arith.prover import Prover
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr
from minitvm.tir.structural_equal import structural_equal


def same_element(prover: Prover, xs: Sequence[PrimExpr], ys: Sequence[PrimExpr]) -> list[Affine]:
    """The constraints that say that two indices of one buffer are equal in every dimension.

    Where two of the pairs are the quotient and the remainder of one number, the number is equal,
    too: so axes that were fused are seen through.
    """
    pairs = list(zip(xs, ys, strict=True))
    for x, y in pairs:  # and those added on the way
        if (
            isinstance(x, e.FloorDiv)
            and isinstance(y, e.FloorDiv)
            and structural_equal(x.b, y.b)
            and any(_is_remainder(prover, x, p) and _is_remainder(prover, y, q) for p, q in pairs)
        ):
            pairs.append((x.a, y.a))
    return [row for x, y in pairs for row in equal(prover.affine(x), prover.affine(y))]


def _is_remainder(prover: Prover, quotient: e.FloorDiv, other: PrimExpr) -> bool:
    """Whether `other` is the remainder of the same number by the same divisor."""
    return (
        isinstance(other, e.FloorMod)
        and structural_equal(quotient.a, other.a)
        and structural_equal(quotient.b, other.b)
        and prover.proves(prover.affine(quotient.b) - 1)
    )
