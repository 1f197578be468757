"""Simplification of expressions: normal forms of sums, quotients and comparisons, then the rules.

A sum of integers is kept as coefficients of shared terms, which holds modulo 2**bits and so for
data, too. Quotients and comparisons look into a sum only where it can't wrap
(:meth:`~minitvm.arith.prover.Prover.is_exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from operator import is_
from typing import Any

from minitvm.arith.atoms import Atoms, Terms, is_impure, structural_key
from minitvm.arith.effects import SureChoices, choices_in_both, outermost_choices
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.rules import CONSTANTS, RULES, Rule
from minitvm.arith.scopes import ScopedMutator
from minitvm.runtime.dtype import DType
from minitvm.tir import expr as e
from minitvm.tir.expr import (
    BufferLoad,
    Call,
    FloatImm,
    IntImm,
    PrimExpr,
    ProducerLoad,
    Var,
    const,
)
from minitvm.tir.functor import (
    CHILDREN,
    LEAVES,
    children,
    contains,
    substitute,
    walk_once,
    with_fields,
)
from minitvm.tir.indices import is_wide, wraps


def _is_equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two expressions are the same tree. Only integer expressions need the comparison: an
    expression of floats has changed if it is another object."""
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Any, Any]] = [(a, b)]
    while stack:
        x, y = stack.pop()
        if x is y or (id(x), id(y)) in seen:
            continue
        seen.add((id(x), id(y)))
        if type(x) is not type(y) or not isinstance(x, PrimExpr) or isinstance(x, Var | Call):
            return False
        if isinstance(x, IntImm | FloatImm):
            if structural_key(x) != structural_key(y):
                return False
            continue
        mine, others = children(x), children(y)
        if x.dtype != y.dtype or len(mine) != len(others):
            return False
        if isinstance(x, e.BufferLoad) and x.buffer is not y.buffer:
            return False
        stack += zip(mine, others, strict=True)
    return True


_MAX_FACTORS = 64  # of a product; one with more stays as it is
_MAX_SCOPES = 6  # of nested choices; in deeper ones, conditions add no facts


class Simplifier(ScopedMutator):
    """Rewrites expressions to simpler ones of the same value, given what `prover` knows.

    An expression that can't be simplified comes back as the same object.
    """

    def __init__(self, prover: Prover) -> None:
        super().__init__(prover)
        self._pure: dict[PrimExpr, bool] = {}
        self._terms = Terms()
        self._values: dict[int, PrimExpr] = {}  # by the numbers of their terms
        self._choices: SureChoices = {}
        self._scopes = 0  # the number of choices around the current part of the expression
        self._in_choice = False

    @property
    def prover(self) -> Prover:
        """The facts."""
        return self._prover

    def expr(self, node: PrimExpr) -> PrimExpr:
        if type(node) in LEAVES:
            return node
        made = self._made.get(node)
        if made is None:
            made = self._methods[type(node)](self, node)
            if made is not node and made.dtype.is_float:
                made = self._values.setdefault(self._terms.number(made), made)
            elif made is not node and (_is_equal(made, node) or self._would_not_wrap(node, made)):
                made = node
            self._made[node] = self._made[made] = made
        return made

    def _would_not_wrap(self, node: PrimExpr, made: PrimExpr) -> bool:
        """Whether `node` is arithmetic of data, which wraps, and `made` of indices, which would
        leave the dtype: ``x - x + n * n``, where x is data and n a size, is not ``n * n``."""
        if not wraps(node) or node.dtype.lanes > 1 or not is_wide(node.dtype):
            return False
        if not self._prover.is_index_arithmetic(made) or self._prover.is_index_arithmetic(node):
            return False
        low, high = self._prover.const_int_bound(made)
        return low < node.dtype.min() or high > node.dtype.max()

    def descend(self, node: Any) -> Any:
        """`node` with simplified children, then rewritten by the rules."""
        node = super().descend(node)
        return self._by_rules(node) if isinstance(node, PrimExpr) else node

    def _operands_done(self, node: e.BinaryOp) -> PrimExpr:
        """`node` with simplified operands, folded where they are constants or an identity holds."""
        a, b = self.expr(node.a), self.expr(node.b)
        if a is node.a and b is node.b and not (is_constant(a) and is_constant(b)):
            return node
        fold = _FOLD.get(type(node))
        return fold(a, b) if fold else e.compare(type(node), a, b)

    def _binary(self, node: Any) -> PrimExpr:
        return self._by_rules(self._operands_done(node))

    visit_Min = visit_Max = visit_And = visit_Or = visit_Div = visit_Mod = _binary

    # -- Sums -------------------------------------------------------------------------------------

    def _arithmetic(self, original: Any) -> PrimExpr:
        node = self._operands_done(original)
        if not isinstance(node, e.Add | e.Sub | e.Mul) or not self._is_pure(node):
            return node
        if not node.dtype.is_integral or node.dtype.lanes > 1:
            return self._by_rules(node)
        made = self._sum(self._collect(node, exact=False), node.dtype)
        return node if made is None else made

    visit_Add = visit_Sub = visit_Mul = _arithmetic

    def _collect(
        self, node: PrimExpr, exact: bool, collected: dict[PrimExpr, Affine] | None = None
    ) -> Affine:
        """`node` as coefficients of terms; with `exact`, arithmetic that may wrap is a term.
        `collected` are the forms of shared subexpressions."""
        collected = {} if collected is None else collected
        form = collected.get(node)
        if form is None:
            form = collected[node] = self._collect_new(node, exact, collected)
        return form

    def _collect_new(
        self, node: PrimExpr, exact: bool, collected: dict[PrimExpr, Affine]
    ) -> Affine:
        if isinstance(node, IntImm):
            return Affine({}, int(node.value))
        if isinstance(node, e.Add | e.Sub | e.Mul) and not (
            exact and not self._prover.is_exact(node)
        ):
            a = self._collect(node.a, exact, collected)
            b = self._collect(node.b, exact, collected)
            if isinstance(node, e.Add):
                return a + b
            if isinstance(node, e.Sub):
                return a - b
            if not a.terms or not b.terms:
                return b * a.constant if not a.terms else a * b.constant
            return self._product(node)
        return Affine.of_atom(self._prover.atoms.shared(node))

    def _product(self, node: PrimExpr) -> Affine:
        """A product of terms: its constant factors gathered, the others in canonical order."""
        coefficient = 1
        factors: list[PrimExpr] = []
        stack = [node]
        while stack:
            top = stack.pop()
            if len(factors) + len(stack) > _MAX_FACTORS:
                return Affine.of_atom(self._prover.atoms.shared(node))
            if isinstance(top, e.Mul):
                stack += [top.b, top.a]
            elif isinstance(top, IntImm):
                coefficient *= int(top.value)
            else:
                factors.append(self._prover.atoms.shared(top))
        factors.sort(key=self._prover.atoms.order)
        made = factors[0]
        for factor in factors[1:]:
            made = e.Mul(made, factor)
        return Affine.of_atom(self._prover.atoms.shared(made)) * coefficient

    def _sum(self, form: Affine, dtype: DType) -> PrimExpr | None:
        """The expression of a form; None when `dtype` can't hold a coefficient of an index."""
        form = self._recombined(form)
        constants = [form.constant, *form.terms.values()]
        half = 1 << (dtype.bits - 1)
        if any(not -half <= c < half for c in constants):
            if dtype.is_int and dtype.bits >= 32:
                return None
            form = _reduced(form, 2 * half)
        order = self._prover.atoms.order
        terms = sorted(form.terms.items(), key=lambda t: (t[1] < 0, order(t[0])))
        constant = form.constant
        total: PrimExpr | None = None
        for atom, coefficient in terms:
            if total is None and coefficient < 0 and (constant > 0 or dtype.is_uint):
                total, constant = _plus_constant(None, constant, dtype), 0
            total = _plus(total, coefficient, atom, dtype)
        return _plus_constant(total, constant, dtype)

    def _recombined(self, form: Affine) -> Affine:
        """``x // c * c + x % c`` is x."""
        for atom, coefficient in form.terms.items():
            if not isinstance(atom, e.FloorMod):
                continue
            if not isinstance(atom.b, IntImm):
                whole = self._multiple(form, atom, coefficient)
                if whole is not None:
                    rest = form - whole + self._collect(atom.a, exact=False) * coefficient
                    return self._recombined(rest)
                continue
            for each in (e.FloorDiv(atom.a, atom.b), self._of_nested(atom.a, int(atom.b.value))):
                quotient = None if each is None else self._prover.atoms.shared(self.expr(each))
                if quotient is None or not atom.b.value:
                    continue
                if form.terms.get(quotient) == coefficient * atom.b.value:
                    whole = Affine({atom: coefficient, quotient: coefficient * int(atom.b.value)})
                    rest = form - whole + self._collect(atom.a, exact=False) * coefficient
                    return self._recombined(rest)
        return form

    def _multiple(self, form: Affine, remainder: e.FloorMod, coefficient: int) -> Affine | None:
        """The terms ``x // n * n + x % n`` of a form, given the remainder; None without them."""
        by = self._prover.atoms.shared(remainder.b)
        if not self._prover.proves(self._prover.affine(by) - 1):
            return None
        quotient = self._prover.atoms.shared(self.expr(e.FloorDiv(remainder.a, remainder.b)))
        for atom, each in form.terms.items():
            factor = self._without_factor(atom, by) if each == coefficient else None
            if factor is not None and self._prover.atoms.shared(factor) is quotient:
                return Affine({remainder: coefficient, atom: coefficient})
        return None

    def _of_nested(self, node: PrimExpr, divisor: int) -> PrimExpr | None:
        """``(y + x // 3) // 3`` as ``(3*y + x) // 9``; None for other quotients of `node`."""
        form = self._collect(node, exact=True)
        quotients = [atom for atom in form.terms if isinstance(atom, e.FloorDiv)]
        if len(quotients) != 1 or len(form.terms) < 2 or form.terms[quotients[0]] != 1:
            return None
        (inner,) = quotients
        by = e.const_int(inner.b)
        if by is None or by <= 0:
            return None
        others = (form - Affine.of_atom(inner)) * by
        numerator = self._simple_sum(others + self._collect(inner.a, exact=True), node.dtype)
        if numerator is None or not self._prover.is_exact(numerator):
            return None
        return e.FloorDiv(numerator, const(by * divisor, node.dtype))

    # -- Quotients and remainders -----------------------------------------------------------------

    def _division(self, original: Any) -> PrimExpr:
        node = self._operands_done(original)
        if not isinstance(node, e.FloorDiv | e.FloorMod) or not self._is_pure(node):
            return node
        divisor = e.const_int(node.b)
        if (divisor is not None and divisor <= 0) or node.dtype.lanes > 1:
            return self._by_rules(node)
        if divisor is not None:
            made = self._divided(node, divisor)
        else:
            made = self._by_symbol(node) if node.dtype.is_integral else None
        return self._by_rules(node) if made is None else made

    visit_FloorDiv = visit_FloorMod = _division

    def _divided(self, node: e.FloorDiv | e.FloorMod, divisor: int) -> PrimExpr | None:
        """``(c*x + r) // c`` is ``x + r // c`` and ``(c*x + r) % c`` is ``r % c``."""
        form = self._collect(node.a, exact=True)
        whole = form.multiples(divisor)
        rest_form = form - whole * divisor
        rest = self._sum(rest_form, node.dtype)
        if rest is None or not self._prover.is_exact(rest):
            return None
        known = self._prover.affine(rest)
        inside = self._prover.proves(known, -known + (divisor - 1))
        if isinstance(node, e.FloorMod):
            if inside:
                return self.expr(rest)
            if whole.terms or whole.constant:
                return self._by_rules(e.FloorMod(rest, node.b))
            return self._remainder_of_parts(rest_form, divisor, node.dtype)
        if inside:
            return self._simple_sum(whole, node.dtype)
        common = self._common(rest_form, divisor)
        if not whole.terms and not whole.constant and common == 1:
            return None
        numerator = self._simple_sum(rest_form.multiples(common), node.dtype)
        if numerator is None:
            return None
        quotient = self.expr(e.floordiv(numerator, const(divisor // common, node.dtype)))
        return self._simple_sum(whole + self._collect(quotient, exact=False), node.dtype)

    def _by_symbol(self, node: e.FloorDiv | e.FloorMod) -> PrimExpr | None:
        """``(x*n + r) // n`` is ``x + r // n``, unless n may be 0, and ``(x*n + r) % n`` is
        ``r % n``; where r is 0 to ``n - 1``, or -n to -1, both are simpler."""
        by, form = self._prover.atoms.shared(node.b), self._collect(node.a, exact=True)
        whole, rest = Affine(), form
        for atom, coefficient in form.terms.items():
            quotient = self._without_factor(atom, by) if self._prover.is_exact(atom) else None
            if quotient is not None:
                whole += self._collect(quotient, exact=True) * coefficient
                rest -= Affine.of_atom(atom) * coefficient
        left = self._sum(rest, node.dtype)
        if rest is form or left is None or not self._prover.is_exact(left):
            return None
        if isinstance(node, e.FloorMod) and e.const_int(left) == 0:
            return left
        below, divisor = self._prover.affine(left), self._prover.affine(by)
        for less in (0, 1):
            if self._prover.proves(below, divisor - below - 1):
                if isinstance(node, e.FloorDiv):
                    return self._simple_sum(whole - less, node.dtype)
                return self._simple_sum(rest + Affine.of_atom(by) * less, node.dtype)
            below += divisor
        if not whole.terms and not whole.constant:
            return None
        by_rest = with_fields(node, a=left)
        if isinstance(node, e.FloorMod):
            return self.expr(by_rest)
        if not self._prover.proves(divisor - 1):
            return None  # by 0, the quotient is 0
        return self._simple_sum(whole + self._collect(self.expr(by_rest), exact=False), node.dtype)

    def _without_factor(self, node: PrimExpr, factor: PrimExpr) -> PrimExpr | None:
        """A product without one of its factors; None if it hasn't that factor."""
        if self._prover.atoms.shared(node) is factor:
            return e.const(1, node.dtype)
        if not isinstance(node, e.Mul):
            return None
        a, b = (self._without_factor(each, factor) for each in (node.a, node.b))
        if b is not None:
            return e.multiply(node.a, b)
        return None if a is None else e.multiply(a, node.b)

    def _remainder_of_parts(self, form: Affine, divisor: int, dtype: DType) -> PrimExpr | None:
        """``(8*x + r) % 56`` is ``x % 7 * 8 + r`` where r is 0 to 7."""
        common = self._common(form, divisor)
        low = Affine({a: c for a, c in form.terms.items() if c % common}, form.constant % common)
        if common == 1 or not low.terms:
            return None
        numerator = self._simple_sum(form.multiples(common), dtype)
        if numerator is None:
            return None
        high = self.expr(e.floormod(numerator, const(divisor // common, dtype)))
        return self._simple_sum(self._collect(high, exact=False) * common + low, dtype)

    def _common(self, form: Affine, divisor: int) -> int:
        """The greatest divisor of `divisor` that divides the terms of `form`, except for terms
        whose sum stays below it: ``(8*x + r) // 56`` is ``x // 7`` where r is 0 to 7."""
        for common in sorted({gcd(divisor, c) for c in form.terms.values()}, reverse=True):
            below = Affine({}, form.constant % common)
            for atom, coefficient in form.terms.items():
                if coefficient % common:
                    below += self._prover.affine(atom) * coefficient
            low, high = self._prover.interval(below)
            if low >= 0 and high < common:
                return common
        return gcd(divisor, *form.terms.values())

    def _simple_sum(self, form: Affine, dtype: DType) -> PrimExpr | None:
        made = self._sum(form, dtype)
        return None if made is None else self.expr(made)

    # -- Comparisons ------------------------------------------------------------------------------

    def _comparison(self, original: Any) -> PrimExpr:
        node = self._operands_done(original)
        if not isinstance(node, e.Comparison) or not self._is_pure(node):
            return node
        made = self._by_rules(node)
        dtype = node.a.dtype
        if made is not node or dtype.is_bool or not dtype.is_integral or dtype.lanes > 1:
            return made
        return self._balanced(node)

    visit_EQ = visit_NE = visit_LT = visit_LE = visit_GT = visit_GE = _comparison

    def _balanced(self, node: e.Comparison) -> PrimExpr:
        """Like terms on one side, the constant on the right, nothing to divide by."""
        dtype = node.a.dtype
        a, b = self._collect(node.a, exact=True), self._collect(node.b, exact=True)
        form = a - b
        if not form.terms:
            return node
        cls: type[e.BinaryOp] = type(node)
        if all(c < 0 for c in form.terms.values()):
            cls, form = _MIRRORED[cls], -form
        common = gcd(*form.terms.values())
        if form.constant % common and cls in (e.EQ, e.NE):
            return const(cls is e.NE, node.dtype)
        up = cls in (e.LE, e.GT)
        constant = -(-form.constant // common) if up else form.constant // common
        left = {a: c // common for a, c in form.terms.items() if c > 0}
        right = {a: -c // common for a, c in form.terms.items() if c < 0}
        to_left = constant if dtype.is_uint and constant > 0 else 0
        a_side = self._sum(Affine(left, to_left), dtype)
        b_side = self._sum(Affine(right, to_left - constant), dtype)
        if a_side is None or b_side is None:
            return node
        if not self._prover.is_exact(a_side) or not self._prover.is_exact(b_side):
            return node
        made = e.compare(cls, a_side, b_side)
        return node if self._prover.atoms.are_equal(made, node) else made

    # -- Choices, bindings, calls -----------------------------------------------------------------

    def visit_Select(self, node: e.Select) -> PrimExpr:
        """Simplifies each value under the condition that chooses it, unless it loads: both values
        are evaluated, so a load must stay inside of its buffer in either case."""
        condition = self.expr(node.condition)
        if contains((BufferLoad, ProducerLoad), node):
            a, b = self.expr(node.true_value), self.expr(node.false_value)
        else:
            a, b = self._branches(node.condition, condition, node.true_value, node.false_value)
        if condition is node.condition and a is node.true_value and b is node.false_value:
            return self._by_rules(node)
        return self._by_rules(e.Select(condition, a, b))

    def _is_pure(self, node: PrimExpr) -> bool:
        """Whether `node` may be evaluated any number of times, and its parts in any order: a call
        of a function outside of the program may write memory that is read around it."""
        if not contains(Call, node):
            return True
        known = self._pure.get(node)
        if known is None:
            known = not is_impure(node) and all(map(self._is_pure, children(node)))
            self._pure[node] = known
        return known

    def _branches(
        self, original: PrimExpr, condition: PrimExpr, a: PrimExpr, b: PrimExpr
    ) -> tuple[PrimExpr, PrimExpr]:
        """The values of a choice, by its condition before and after simplification."""
        if condition.dtype.lanes > 1 or isinstance(condition, IntImm):
            return self.expr(a), self.expr(b)
        done = {each: self.expr(each) for each in outermost_choices(original)}
        done |= {each: self.expr(each) for each in choices_in_both(a, b, self._choices)}
        return self._where(condition, a, done), self._where(e.logical_not(condition), b, done)

    def _where(
        self, condition: PrimExpr, value: PrimExpr, done: Mapping[PrimExpr, PrimExpr]
    ) -> PrimExpr:
        """`value`, simplified under `condition`. The choices that the condition contains, or both
        branches, are `done`: without them, the time for a chain of choices, each with the one
        before in its condition or in its branches, would grow exponentially, and both branches
        would compute the one before in a way of their own."""
        outermost = not self._in_choice
        self._scopes = 0 if outermost else self._scopes + 1
        is_stable = self._prover.effects.is_stable(condition, value)
        if self._scopes > _MAX_SCOPES or not is_stable:
            return self.expr(value)
        self._in_choice = True
        with self.assuming(condition, value):
            self._made.update(done)
            made = self.expr(value)
        self._in_choice = not outermost
        return made

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op == "if_then_else" and len(node.args) == 3:
            original, *values = node.args
            condition = self.expr(original)
            args: tuple[PrimExpr, ...] = (condition, *self._branches(original, condition, *values))
        else:
            args = tuple(map(self.expr, node.args))
        if all(map(is_, node.args, args)):
            return self._by_rules(node)
        made = e.intrinsic(node.op, node.dtype, *args)
        return self._by_rules(made)

    def visit_BufferLoad(self, node: e.BufferLoad) -> PrimExpr:
        """Removes a predicate that always holds; a load whose predicate never holds is 0."""
        made: e.BufferLoad = self.descend(node)
        if made.predicate is None or (known := constant_in_all_lanes(made.predicate)) is None:
            return made
        return e.BufferLoad(made.buffer, made.indices) if known else const(0, made.dtype)

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        value = self.expr(node.value)
        if value is not node.value or value.dtype == node.dtype or isinstance(value, IntImm):
            made = e.cast(node.dtype, value)
            return self._by_rules(made) if isinstance(made, e.Cast) else made
        return self._by_rules(node)

    def visit_Let(self, node: e.Let) -> PrimExpr:
        value = self.expr(node.value)
        if is_trivial(value):
            return self.expr(substitute(node.body, {node.var: value}))
        with self.binding(node.var, value, node.body):
            body = self.expr(node.body)
        if not any(each is node.var for each in walk_once(body)) and self._is_pure(value):
            return body
        return with_fields(node, value=value, body=body)

    # -- Rules ------------------------------------------------------------------------------------

    def _by_rules(self, node: PrimExpr) -> PrimExpr:
        """`node`, or the simplified result of the first rule that matches."""
        if not self._is_pure(node):
            return node
        for rule in RULES.get(type(node), ()):
            for bound in _matches(rule.left, node, {}, self._prover.atoms):
                match = _Match(node, bound, self._prover)
                if rule.when(match) and (made := match.right(rule)) is not None:
                    return self.expr(made)
        return node


class _Match:
    """A term that matches a rule's left side, with the values of the wildcards."""

    def __init__(self, node: PrimExpr, bound: dict[Var, PrimExpr], prover: Prover) -> None:
        self.node = node
        self._bound = bound
        self._prover = prover

    def __getitem__(self, wildcard: Var) -> PrimExpr:
        return self._bound[wildcard]

    def value(self, constant: Var) -> int:
        return e.const_int(self._bound[constant]) or 0

    def proves(self, condition: PrimExpr) -> bool:
        return self._prover.can_prove(self._made(condition))

    def implies(self, premise: PrimExpr, conclusion: PrimExpr) -> bool:
        made = self._made(premise)
        if made.dtype.lanes > 1:
            return False
        with self._prover.constraint(made):
            return self._prover.can_prove(self._made(conclusion))

    def right(self, rule: Rule) -> PrimExpr | None:
        """The right side, None where it would change the dtype."""
        if isinstance(rule.right, IntImm):
            return const(rule.right.value, self.node.dtype)
        if isinstance(rule.right, e.Cast):
            return e.cast(self.node.dtype, self._made(rule.right.value))
        made = self._made(rule.right)
        return made if made.dtype == self.node.dtype else None

    def _made(self, pattern: PrimExpr) -> PrimExpr:
        """`pattern` with the terms that its wildcards stand for."""
        if isinstance(pattern, Var):
            return self._bound[pattern]
        if isinstance(pattern, IntImm):
            return pattern
        if isinstance(pattern, e.Select):
            parts = (pattern.condition, pattern.true_value, pattern.false_value)
            return e.Select(*map(self._made, parts))
        if isinstance(pattern, e.Not):
            return e.logical_not(self._made(pattern.a))
        if isinstance(pattern, e.BinaryOp):
            a, b = self._made(pattern.a), self._made(pattern.b)
            fold = _FOLD.get(type(pattern))
            return fold(a, b) if fold else e.compare(type(pattern), a, b)
        raise e.unknown_node(pattern, "right side of a rule")


def _matches(
    pattern: PrimExpr, node: PrimExpr, bound: dict[Var, PrimExpr], atoms: Atoms
) -> Iterator[dict[Var, PrimExpr]]:
    """The ways in which `node` is an instance of `pattern`, given the wildcards bound already."""
    if isinstance(pattern, Var):
        if pattern in bound:
            if atoms.are_equal(bound[pattern], node):
                yield bound
        elif (node.dtype.is_bool == pattern.dtype.is_bool or not pattern.dtype.is_bool) and (
            pattern not in _CONSTANT_WILDCARDS or isinstance(node, IntImm)
        ):
            yield {**bound, pattern: node}
        return
    if isinstance(pattern, IntImm):
        if _is_constant(node, int(pattern.value), pattern.dtype.is_bool):
            yield bound
        return
    if type(pattern) is not type(node) or (
        isinstance(pattern, Call) and isinstance(node, Call) and pattern.op != node.op
    ):
        return
    theirs = _operands(node)
    yield from _match_all(_operands(pattern), theirs, bound, atoms)
    if isinstance(pattern, _COMMUTATIVE):
        yield from _match_all(_operands(pattern), theirs[::-1], bound, atoms)


def _match_all(
    patterns: tuple[PrimExpr, ...],
    nodes: tuple[PrimExpr, ...],
    bound: dict[Var, PrimExpr],
    atoms: Atoms,
) -> Iterator[dict[Var, PrimExpr]]:
    if len(patterns) != len(nodes):
        return
    if not patterns:
        yield bound
        return
    for more in _matches(patterns[0], nodes[0], bound, atoms):
        yield from _match_all(patterns[1:], nodes[1:], more, atoms)


def _operands(node: Any) -> tuple[PrimExpr, ...]:
    if isinstance(node, Call):
        return node.args
    return tuple([getattr(node, name) for name in CHILDREN[type(node)]])


def _is_constant(node: PrimExpr, value: int, is_bool: bool) -> bool:
    if isinstance(node, e.Broadcast):
        node = node.value
    if isinstance(node, IntImm):
        return node.dtype.is_bool == is_bool and int(node.value) == value
    return isinstance(node, FloatImm) and node.value.hex() == float(value).hex()


def constant_in_all_lanes(value: PrimExpr) -> int | None:
    """The integer or bool that `value` has in every lane; None where it is no such constant."""
    return e.const_int(value.value if isinstance(value, e.Broadcast) else value)


def is_constant(value: PrimExpr) -> bool:
    """Whether a value is a number."""
    return isinstance(value, IntImm | FloatImm)


def is_trivial(value: PrimExpr) -> bool:
    """Whether a value is as cheap to repeat as to name."""
    return isinstance(value, IntImm | FloatImm | Var)


def _reduced(form: Affine, modulus: int) -> Affine:
    """The form with its coefficients modulo `modulus`, in the symmetric range."""

    def reduce(value: int) -> int:
        return (value + modulus // 2) % modulus - modulus // 2

    terms = {a: reduce(c) for a, c in form.terms.items()}
    return Affine({a: c for a, c in terms.items() if c}, reduce(form.constant))


def _plus(total: PrimExpr | None, coefficient: int, atom: PrimExpr, dtype: DType) -> PrimExpr:
    if total is None:
        return e.multiply(atom, const(coefficient, dtype))
    if coefficient < 0 and -coefficient <= dtype.max():
        return e.Sub(total, e.multiply(atom, const(-coefficient, dtype)))
    return e.Add(total, e.multiply(atom, const(coefficient, dtype)))


def _plus_constant(total: PrimExpr | None, constant: int, dtype: DType) -> PrimExpr:
    if total is None:
        return const(constant % (1 << dtype.bits) if dtype.is_uint else constant, dtype)
    if constant < 0 and -constant <= dtype.max():
        return e.Sub(total, const(-constant, dtype))
    return e.add(total, const(constant, dtype))


def _divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return e.divide(a, b) if a.dtype.is_float else e.truncdiv(a, b)


_COMMUTATIVE = (e.Add, e.Mul, e.Min, e.Max, e.EQ, e.NE, e.And, e.Or)
_CONSTANT_WILDCARDS = frozenset(CONSTANTS)
_MIRRORED: dict[type[e.BinaryOp], type[e.BinaryOp]] = {
    e.LT: e.GT, e.GT: e.LT, e.LE: e.GE, e.GE: e.LE, e.EQ: e.EQ, e.NE: e.NE,
}  # fmt: skip
# The functions that make a node from new operands, constants folded.
_FOLD: dict[type[PrimExpr], Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    e.Add: e.add, e.Sub: e.subtract, e.Mul: e.multiply, e.FloorDiv: e.floordiv,
    e.FloorMod: e.floormod, e.Min: e.minimum, e.Max: e.maximum, e.And: e.logical_and,
    e.Or: e.logical_or, e.Div: _divide, e.Mod: e.truncmod,
}  # fmt: skip
