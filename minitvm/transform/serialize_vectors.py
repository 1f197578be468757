"""Makes vectorised loops serial."""

from __future__ import annotations

from minitvm.tir import stmt as s
from minitvm.tir.functor import Mutator
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body


def serialize_vectors(func: PrimFunc) -> PrimFunc:
    """Makes VECTORIZED loops serial (``tir.disable_vectorize``).

    Before::

        for i in vectorized(8):
            B[i] = A[i]

    After::

        for i in range(8):
            B[i] = A[i]
    """
    return with_body(func, _Serialize().stmt(func.body))


class _Serialize(Mutator):
    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        if made.kind != ForKind.VECTORIZED:
            return made
        return s.For(made.loop_var, made.min, made.extent, ForKind.SERIAL, made.body)
