"""The registry of users' operators: attributes of calls, and rules that replace calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from minitvm.runtime.dtype import INT32
from minitvm.runtime.errors import CompileError
from minitvm.tir.conversion import const_int
from minitvm.tir.described import described
from minitvm.tir.intrinsics import CALLS, INTRINSICS, Effect, define_call
from minitvm.tir.names import ATTRIBUTES, Registered, plain_name
from minitvm.tir.node import PrimExpr
from minitvm.tir.nodes import Call, IntImm

Rule = Callable[[Call], PrimExpr | None]
_RULE = ".FLowerIntrinsic"


@final
class CallEffectKind:
    """The effects of a call, by their classic names and numbers."""

    ExprAnnotation = IntImm(INT32, 0)
    Pure = IntImm(INT32, 1)
    ReadState = IntImm(INT32, 2)
    UpdateState = IntImm(INT32, 3)
    Opaque = UpdateState


_EFFECTS = (Effect.NONE, Effect.NONE, Effect.READS, Effect.ACTS)


_own: set[str] = set()  # operators that are registered here and that the language lacks


def register_op_attr(op_name: str, attr_key: str, value: Any = None, level: int = 10) -> Any:
    """Registers an attribute of an operator. An operator that doesn't exist yet is created.

    Parameters
    ----------
    op_name : str
        Its name, as in ``"tir.mylog"``.
    attr_key : str
        ``"TCallEffectKind"`` gives an operator of yours its effect, a member of
        :class:`CallEffectKind`; without this attribute a call may do anything.
        ``"llvm.FLowerIntrinsic"`` is a rule: see :func:`register_intrin_lowering`. Other attributes
        are kept for ``Op.get_attr``.
    value
        The value. Without it, the result is a decorator, and the decorated function is the value.
    level : int
        Of two registrations the one of the higher level counts, of equal levels the later one.

    Raises
    ------
    CompileError
        When an effect is no member of :class:`CallEffectKind`, or the operator belongs to the
        language, which knows its effect.
    """
    where = "register_op_attr"
    for what, given in (("op_name", op_name), ("attr_key", attr_key)):
        if not isinstance(given, str) or not given.removeprefix("tir."):
            raise CompileError(f"{where}: expected {what} to be a name, got {described(given)}")
    if not isinstance(level, int):
        raise CompileError(f"{where}: expected level to be an integer, got {described(level)}")

    def register(given: Any) -> Any:
        name = plain_name(op_name)
        effect = _effect(name, given) if attr_key == "TCallEffectKind" else None
        if attr_key.endswith(_RULE) and not callable(given):
            raise CompileError(f"{where}: {attr_key}: expected a function, got {described(given)}")
        if name not in INTRINSICS and name not in CALLS:
            _own.add(name)
            define_call(name, Effect.ACTS)
        known = ATTRIBUTES.get((name, attr_key))
        if known is None or known.level <= level:
            ATTRIBUTES[name, attr_key] = Registered(given, level)
            if effect is not None:
                define_call(name, effect)
        return given

    return register if value is None else register(value)


def _effect(name: str, value: Any) -> Effect:
    kind = const_int(value)
    if (name in INTRINSICS or name in CALLS) and name not in _own:
        raise CompileError(
            f"register_op_attr: {name}: its effect is known, and stays: leave it out"
        )
    if kind is None or not 0 <= kind < len(_EFFECTS):
        raise CompileError(
            f"register_op_attr: {name}: TCallEffectKind: expected a member of tir.CallEffectKind, "
            f"got {described(value)}"
        )
    return _EFFECTS[kind]


def register_intrin_lowering(
    op_name: str, target: str, *, f: Rule | None = None, level: int = 10
) -> Any:
    """Sets the rule that replaces the calls of an operator when code is made for a target.

    Parameters
    ----------
    op_name : str
        The operator: an operator of the language, ``"tir.exp"``, or one of yours.
    target : str
        The kind of target: ``"llvm"``; ``"default"`` for all. Rules for targets that don't exist
        here, such as ``"cuda"``, are kept.
    f : function
        Takes the call, and returns the expression that replaces it, or the call itself to leave it
        to other rules. Calls of the same operator in that expression are not replaced again.
        Without `f`, the result is a decorator.
    level : int
        See :func:`register_op_attr`.

    >>> from minitvm import tir
    >>> def rule(call):
    ...     return tir.call_pure_extern(call.dtype, "cbrtf", call.args[0])
    >>> _ = register_intrin_lowering("tir.my_cbrt", target="llvm", f=rule)
    >>> _ = register_op_attr("tir.my_cbrt", "TCallEffectKind", CallEffectKind.Pure)
    >>> tir.call_intrin("float32", "tir.my_cbrt", tir.const(8.0)).op.name
    'tir.my_cbrt'
    """
    if not isinstance(target, str) or not target:
        raise CompileError(
            f"register_intrin_lowering: expected the name of a target, as 'llvm', got "
            f"{described(target)}"
        )
    return register_op_attr(op_name, f"{target.split()[0]}{_RULE}", f, level)


def rules_for(kind: str) -> dict[str, Rule]:
    """The rules for a kind of target, by operator. The rules for this kind come before the rules
    for all kinds."""
    found: dict[str, Rule] = {}
    for target in ("default", kind):
        for (name, key), known in ATTRIBUTES.items():
            if key == target + _RULE:
                found[name] = known.value
    return found


def own_operators() -> frozenset[str]:
    """The user's operators, which the language lacks."""
    return frozenset(_own)
