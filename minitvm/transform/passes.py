"""Passes as objects, under the names of classic TVM: written by users, composed, applied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.tir.expr import described
from minitvm.tir.stmt import IRModule, PrimFunc
from minitvm.transform.pass_context import Pass as NamedPass
from minitvm.transform.pass_context import PassContext, PassInfo

_SIGNATURES = {"transform_function": "(func, mod, ctx)", "transform_module": "(mod, ctx)"}


class Pass:
    """A function from a module to a module, with a name: ``after = a_pass(before)``.

    It runs in the innermost ``PassContext``, whose instruments watch it.
    """

    def __init__(self, transform: Callable[..., Any], info: PassInfo) -> None:
        self._transform = transform
        self.info = info

    def __call__(self, mod: IRModule) -> IRModule:
        """The module after the pass.

        Raises
        ------
        CompileError
            When the argument, or the pass's result, is no program.
        """
        if not isinstance(mod, IRModule):
            raise CompileError(
                f"pass {self.info.name}: expected an IRModule, got {described(mod)}: "
                "IRModule.from_expr makes one of a PrimFunc"
            )
        context = PassContext.current()
        made: IRModule = context.applied(
            self.info, lambda before: self.transformed(before, context), mod
        )
        return made

    def transformed(self, mod: IRModule, context: PassContext) -> IRModule:
        """The module after the pass, without the context's instruments."""
        made = self._transform(mod, context)
        if not isinstance(made, IRModule):
            raise _wrong_result(self.info.name, "an IRModule", made)
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name!r}, opt_level={self.info.opt_level})"


class PrimFuncPass(Pass):
    """A pass that takes each function by itself: its function gets the function, the module and
    the context, and returns a function."""

    def transformed(self, mod: IRModule, context: PassContext) -> IRModule:
        made = [
            _function(self.info.name, self._transform(func, mod, context))
            for func in mod.functions.values()
        ]
        return IRModule({func.name: func for func in made})


class ModulePass(Pass):
    """A pass over whole modules: its function gets the module and the context."""


@final
class Sequential(Pass):
    """Passes one after the other, except for those that the context leaves out.

    Parameters
    ----------
    passes
        The passes. A pass whose `opt_level` is above the context's doesn't run.
    opt_level, name, required
        The properties of the sequence itself.

    >>> from minitvm import te, tir
    >>> A, i = tir.decl_buffer((4,), name="A"), te.var("i")
    >>> loop = tir.For(i, 0, 4, tir.ForKind.SERIAL, tir.BufferStore(A, 1.0, [(i * 4) // 4]))
    >>> both = Sequential([tir.transform.Simplify(), tir.transform.UnrollLoop()])
    >>> both(tir.IRModule.from_expr(tir.PrimFunc([A], loop)))
    def main(A: float32[4]):
        for i in range(4):
            A[i] = 1.0
    """

    def __init__(
        self,
        passes: Sequence[Pass] | None = None,
        opt_level: int = 2,
        name: str = "sequential",
        required: Sequence[str] | None = None,
    ) -> None:
        if passes is not None and not isinstance(passes, Sequence):
            raise CompileError(f"Sequential: expected a list of passes, got {described(passes)}")
        self.passes = list(passes or ())
        for each in self.passes:
            if not isinstance(each, Pass):
                raise CompileError(
                    f"Sequential: expected passes, got {described(each)}: a class of passes is "
                    "called first, as in tir.transform.Simplify()"
                )
        super().__init__(self._each, PassInfo(opt_level, name, tuple(required or ())))

    def _each(self, mod: IRModule, context: PassContext) -> IRModule:
        for each in self.passes:
            if context.is_enabled(each.info):
                mod = each(mod)
        return mod


def prim_func_pass(
    pass_func: Any = None,
    opt_level: int | None = None,
    name: str | None = None,
    required: Sequence[str] | None = None,
    traceable: bool = False,
) -> Any:
    """Makes a pass from a function of (function, module, context); or a class of passes from a
    class whose method `transform_function` is such a function.

    Parameters
    ----------
    pass_func
        The function or class; without it, a decorator.
    opt_level : int
        See :class:`Sequential`.
    name : str
        The function's own unless given.
    required
        There for classic programs; kept in ``info``.
    traceable
        There for classic programs; without effect.

    >>> from minitvm import tir
    >>> @prim_func_pass(opt_level=0)
    ... def rename(func, mod, ctx):
    ...     return func.with_attr("global_symbol", "renamed")
    >>> rename(tir.IRModule.from_expr(tir.PrimFunc((), tir.SeqStmt(()))))["renamed"].name
    'renamed'
    """
    return _decorated(PrimFuncPass, "transform_function", pass_func, opt_level, name, required)


def module_pass(
    pass_func: Any = None,
    opt_level: int | None = None,
    name: str | None = None,
    required: Sequence[str] | None = None,
    traceable: bool = False,
) -> Any:
    """As :func:`prim_func_pass`, from a function of (module, context), or from a class with the
    method `transform_module`."""
    return _decorated(ModulePass, "transform_module", pass_func, opt_level, name, required)


def PrintIR(header: str = "", show_meta_data: bool = False) -> ModulePass:
    """A pass that prints the module at this point, below a header, and changes nothing.

    `show_meta_data` is there for classic programs, and ignored: a module's text has no metadata.
    """

    def show(module: Any, context: PassContext) -> Any:
        print(f"PrintIR({header}):\n{module}")
        return module

    return ModulePass(show, PassInfo(0, "PrintIR"))


def _decorated(
    kind: type[Pass],
    method: str,
    pass_func: Any,
    opt_level: int | None,
    name: str | None,
    required: Sequence[str] | None,
) -> Any:
    if not isinstance(opt_level, int):
        where = kind.__name__
        raise CompileError(
            f"{where}: expected an opt_level, got {described(opt_level)}: 0 runs always"
        )

    def make(given: Any) -> Any:
        if not callable(given) or (inspect.isclass(given) and not hasattr(given, method)):
            raise CompileError(
                f"{kind.__name__}: expected a function of {_SIGNATURES[method]}, or a class with "
                f"such a method {method}, got {described(given)}"
            )
        info = PassInfo(opt_level, name or given.__name__, tuple(required or ()))
        if inspect.isclass(given):
            return _class_of_passes(kind, method, given, info)
        return kind(given, info)

    return make if pass_func is None else make(pass_func)


def _class_of_passes(kind: Any, method: str, given: type, info: PassInfo) -> type:
    """A class of passes; an instance has the attributes of one of `given`."""

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        instance = given(*args, **kwargs)
        kind.__init__(self, getattr(instance, method), info)
        self.instance = instance

    def attribute(self: Any, name: str) -> Any:
        return getattr(vars(self)["instance"], name)

    members = {"__init__": initialise, "__getattr__": attribute, "__doc__": given.__doc__}
    return type(given.__name__, (kind,), {**members, "__module__": given.__module__})


def _wrong_result(name: str, expected: str, made: Any) -> CompileError:
    return CompileError(
        f"pass {name}: expected {expected} as its result, got {described(made)}: return the "
        "program itself where there is nothing to change"
    )


def _function(name: str, made: Any) -> PrimFunc:
    if not isinstance(made, PrimFunc):
        raise _wrong_result(name, "a PrimFunc", made)
    return made


def added_pass(transform: Callable[..., Any]) -> NamedPass:
    """A user's pass from ``tir.add_lower_pass``: a pass object, or a function of a ``PrimFunc``."""
    if not isinstance(transform, Pass):
        name = getattr(transform, "__name__", type(transform).__name__)
        return name, lambda func: _function(name, transform(func))
    each = transform

    def run(func: PrimFunc) -> PrimFunc:
        module = IRModule({func.name: func})
        made = each.transformed(module, PassContext.current()).functions
        if len(made) != 1:
            raise CompileError(
                f"pass {each.info.name}: expected one function in place of {func.name}, got "
                f"{', '.join(made) or 'none'}: a pass in tir.add_lower_pass sees one at a time"
            )
        return next(iter(made.values()))

    return each.info.name, run
