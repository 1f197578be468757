"""The prover: learns facts about the integers of a program, and proves inequalities from them.

Index arithmetic (:mod:`minitvm.tir.indices`) is exact, so it is read as arithmetic on mathematical
integers. All other arithmetic is data and may wrap: its ``+ - *`` is an atom unless the facts prove
that it doesn't wrap. So the form of :meth:`Prover.affine` has the value that the machine computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from minitvm.arith.facts import Interval, range_of_exact
from minitvm.arith.forms import Forms, only_atom
from minitvm.arith.linear import Affine, at_most, equal
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, IntImm, PrimExpr, Range, Var

_LARGEST = 1 << 62  # up to it, :mod:`limit_indices` makes sure that 64 bits suffice


class Prover(Forms):
    """Facts in nested scopes, and proofs from them. It is sound and incomplete.

    This class learns facts about variables. Its bases read expressions
    (:mod:`minitvm.arith.forms`), prove goals (:mod:`minitvm.arith.proofs`) and keep the facts
    (:mod:`minitvm.arith.facts`).
    """

    def can_prove(self, condition: PrimExpr) -> bool:
        """Whether `condition` surely holds."""
        if isinstance(condition, IntImm):
            return bool(condition.value)
        return all(self._refuted(s) for s in self.alternatives(condition, False)[0])

    def const_int_bound(self, expr: PrimExpr) -> Interval:
        """The least and the greatest value that `expr` may take, infinite where none is known."""
        return self.interval(self.affine(expr))

    @contextmanager
    def constraint(self, condition: PrimExpr) -> Iterator[None]:
        """`condition` holds inside."""
        with self.scope():
            self.assume(condition)
            yield

    def assume(self, condition: PrimExpr) -> None:
        """`condition` holds from here to the end of the scope."""
        alternatives, complete = self.alternatives(condition, True)
        self._learn(alternatives)
        self._known.complete = self._known.complete and complete

    def bind(self, var: Var, value: Range | PrimExpr) -> None:
        """Learns that `var` equals an expression, or lies in a range, which is then not empty."""
        if isinstance(value, Range):
            self.bind_loop(var, value.min, value.extent)
            return
        self._known.determined.add(var)
        if not self.is_index_arithmetic(value):
            self._add_data(var)
        if value.dtype.is_integral and not value.dtype.is_bool and value.dtype.lanes == 1:
            form = self.affine(value)
            self._read_anew()
            self._known.intervals[var] = self.interval(form)
            self._learn([equal(self.affine(var), form)])

    def bind_data(self, var: Var) -> None:
        """Learns that `var` is data without known bounds: arithmetic on it may wrap."""
        self._add_data(var)
        self.bind_unknown(var)

    def bind_unknown(self, var: Var) -> None:
        """Learns that `var` is a loop variable or a name without known bounds, not even the bounds
        of its dtype."""
        self._read_anew()
        self._known.determined.discard(var)
        self._known.intervals[var] = range_of_exact(var)

    def bind_size(self, size: PrimExpr) -> None:
        """Learns that `size`, a dimension, is zero or more."""
        self._learn([[self.affine(size)]])

    def bind_sizes(self, buffers: Iterable[Buffer]) -> None:
        """Learns that all dimensions of buffers are zero or more."""
        for buffer in buffers:
            for size in buffer.shape:
                self.bind_size(size)

    def bind_interval(self, var: Var, begin: PrimExpr, extent: PrimExpr) -> None:
        """Learns that the variable of a loop lies between constant bounds: weaker than
        :meth:`bind_loop`, and faster."""
        self._bind_between(var, begin, extent)

    def _bind_between(self, var: Var, begin: PrimExpr, extent: PrimExpr) -> tuple[Affine, Affine]:
        """See :meth:`bind_interval`. Returns the forms of `begin` and `extent`."""
        low, count = self.affine(begin), self.affine(extent)
        high = low + count - 1
        self._read_anew()
        bounds = self._known.intervals[var] = (self.interval(low)[0], self.interval(high)[1])
        if (bounds[0] < -_LARGEST or bounds[1] > _LARGEST) and not (
            self.is_index_arithmetic(begin) and self.is_index_arithmetic(extent)
        ):
            self._add_data(var)  # data may be so large that arithmetic on `var` wraps
        return low, count

    def bind_loop(self, var: Var, begin: PrimExpr, size: PrimExpr) -> None:
        """Learns that `var` counts through a loop, which is then not empty."""
        if isinstance(begin, IntImm) and isinstance(size, IntImm) and size.value > 0:
            self._learn_range(self.affine(var), int(begin.value), int(begin.value + size.value - 1))
            self._known.determined.add(var)
            return
        low, extent = self._bind_between(var, begin, size)
        self._known.determined.add(var)
        form = self.affine(var)
        self._learn([[at_most(low, form)]])
        self._learn([[at_most(form, low + extent - 1)]])
        if isinstance(size, IntImm) and size.value > 0:
            return
        self._learn([[extent - 1]])
        # A product of at least 1 has no factor 0.
        for factor in self._factors_in(size):
            if not factor.same_as(extent) and self.proves(factor):
                self._learn([[factor - 1]])

    def _factors_in(self, size: PrimExpr) -> Iterator[Affine]:
        """The factors of a product, and the factors in parts of it. An affine form multiplies these
        out."""
        match size:
            case e.Mul(a, b):
                yield from self._factors_in(a)
                yield from self._factors_in(b)
                yield self.affine(size)
            case e.Cast(_, value) if self.is_index_arithmetic(value):
                yield from self._factors_in(value)
            case e.FloorDiv(e.Add(a, IntImm(value=more)), IntImm(value=by)) if 0 <= more < by:
                yield from self._factors_in(a)  # if ceil(a / by) is 1 or more, so is a
            case _:
                form = self.affine(size)
                atom = only_atom(form)
                factors = () if atom is None else self._factors.get(atom, ())
                yield from map(Affine.of_atom, factors) if factors else (form,)
