"""Functions with fast arithmetic for nearly all arguments, and a slow path for single lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minitvm.codegen.lanes import Lanes
from minitvm.codegen.llvm_text import FunctionText, Value, element_type, poison

Function = Callable[..., Lanes]


def guarded(name: str, is_near: Value, near: Lanes, args: Sequence[Lanes], far: Function) -> Lanes:
    """`near` in the lanes where `is_near` holds, and `far` of single arguments in the others. `far`
    is a function of its own, which a program without such arguments never calls."""
    text = near.text
    slow, join = text.blocks("far", "endfar")
    before = text.current
    text.branch_if(near.is_every_lane(is_near), join, slow, likely=True)
    text.place(slow)
    with text.scope():
        type = near.value.type
        values = [arg.value for arg in args]
        exact = text.call(_in_lanes(name, args, far), type, values)
        mixed = text.select(is_near, near.value, exact)
    text.branch(join)
    text.place(join)
    return near.of(text.phi(type, (near.value, before), (mixed, slow)))


def mended(is_plain: Value, plain: Lanes, mend: Callable[[], Lanes]) -> Lanes:
    """`plain`, if `is_plain` holds in all lanes of a vector, and otherwise the vector that `mend`
    emits, which has the same values in such lanes. A single number isn't tested, so that LLVM can
    vectorise its loop."""
    text = plain.text
    if plain.lanes == 1:
        return mend()
    rare, join = text.blocks("mend", "mended")
    before = text.current
    text.branch_if(plain.is_every_lane(is_plain), join, rare, likely=True)
    text.place(rare)
    with text.scope():
        found = mend()
    last = text.current
    text.branch(join)
    text.place(join)
    return plain.of(text.phi(plain.value.type, (plain.value, before), (found.value, last)))


def _in_lanes(name: str, args: Sequence[Lanes], far: Function) -> Value:
    """``<4 x double> (<4 x double>)`` and its like, which calls the function of single numbers for
    each lane; added to the module once."""
    first = args[0]
    if first.lanes == 1:
        return _of_one(name, args, far)
    types = [arg.value.type for arg in args]

    def emit(text: FunctionText) -> Value:
        made = poison(types[0])
        for lane in range(first.lanes):
            single = [first.of(text.extract(each, lane)) for each in text.params]
            one = _of_one(name, single, far)
            found = text.call(one, element_type(types[0]), [each.value for each in single])
            made = text.insert(made, found, lane)
        return made

    return _added(name, first.text, types, emit)


def _of_one(name: str, args: Sequence[Lanes], far: Function) -> Value:
    """``double (double)`` and its like, added to the module once."""

    def emit(text: FunctionText) -> Value:
        return far(
            *(Lanes(text, each, args[0].fuses, args[0].takes_apart) for each in text.params)
        ).value

    return _added(name, args[0].text, [arg.value.type for arg in args], emit)


def _added(
    name: str, caller: FunctionText, types: Sequence[str], emit: Callable[[FunctionText], Value]
) -> Value:
    plain = "".join(c if c.isalnum() else "_" for c in types[0])
    symbol = f"minitvm.{name}.far.{plain}"
    if caller.module.claim(symbol):
        params = [f"{type} x{i}" for i, type in enumerate(types)]
        text = FunctionText(
            caller.module, symbol, types[0], params,
            linkage="internal", attributes="noinline cold ",
        )  # fmt: skip
        text.ret(emit(text))
        text.finish()
    return Value("ptr", f"@{symbol}")
