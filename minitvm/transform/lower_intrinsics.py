"""Replaces calls by the rules that users registered for a target."""

from __future__ import annotations

from collections.abc import Mapping

from minitvm.runtime.errors import CompileError
from minitvm.tir.expr import Call, PrimExpr, described
from minitvm.tir.functor import Mutator, walk_once
from minitvm.tir.registered import Rule, own_operators, rules_for
from minitvm.tir.stmt import PrimFunc, with_body


def lower_intrinsics(func: PrimFunc, kind: str = "llvm") -> PrimFunc:
    """Replaces the calls of operators that have a rule for a kind of target.

    Before, where the rule of ``mylog`` calls the C library::

        B[i] = mylog(A[i])

    After::

        B[i] = call_extern("logf", A[i])

    Raises
    ------
    CompileError
        When a user's operator remains, since it has no rule or its rule keeps it; when a rule
        returns no expression of the call's dtype.
    """
    rules, own = rules_for(kind), own_operators()
    body = _Lowered(func.name, rules).stmt(func.body) if rules else func.body
    for node in walk_once(body) if own else ():
        if isinstance(node, Call) and node.op in own:
            found = f"kept by its rule for {kind}" if node.op in rules else "without one"
            raise CompileError(
                f"{func.name}: {node.op}: expected a rule that replaces it for {kind}, found it "
                f"{found}, in {node}: register_intrin_lowering('tir.{node.op}', target='{kind}', "
                "f=rule)"
            )
    return with_body(func, body)


class _Lowered(Mutator):
    """Applies the rules, operands first. All other rules are applied to the result of a rule as
    well."""

    def __init__(self, name: str, rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self._name = name
        self._rules = rules

    def visit_Call(self, node: Call) -> PrimExpr:
        made: Call = self.descend(node)
        rule = self._rules.get(made.op)
        if rule is None:
            return made
        found = rule(made)
        if found is None or found is made:
            return made
        if not isinstance(found, PrimExpr) or found.dtype != made.dtype:
            given = f"one of {found.dtype}" if isinstance(found, PrimExpr) else described(found)
            raise CompileError(
                f"{self._name}: the rule of {made.op}: expected an expression of {made.dtype}, got "
                f"{given}"
            )
        others = {op: each for op, each in self._rules.items() if op != made.op}
        return _Lowered(self._name, others).expr(found)
