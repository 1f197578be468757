"""Classic ``tvm.tir.transform``: the pipeline's passes by their classic names, and users' passes.

Each is a class or function that makes a pass: ``tir.transform.Simplify()(module)``. The pipeline
runs them where they belong; docs/pipeline.md shows the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.runtime.errors import CompileError as _CompileError
from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.tir.expr import described as _described
from minitvm.tir.stmt import IRModule as _IRModule
from minitvm.tir.stmt import PrimFunc as _PrimFunc
from minitvm.transform.check_accesses import check_accesses as _check_accesses
from minitvm.transform.hoist_conditions import hoist_conditions as _hoist_conditions
from minitvm.transform.inject_double_buffer import inject_double_buffer as _inject_double_buffer
from minitvm.transform.inject_prefetch import inject_prefetch as _inject_prefetch
from minitvm.transform.lower_intrinsics import lower_intrinsics as _lower_intrinsics
from minitvm.transform.partition_loops import partition_loops as _partition_loops
from minitvm.transform.pass_config import PassConfig as _PassConfig
from minitvm.transform.pass_context import PassContext as _PassContext
from minitvm.transform.pass_context import PassInfo as _PassInfo
from minitvm.transform.passes import ModulePass as _ModulePass
from minitvm.transform.passes import PrimFuncPass as PrimFuncPass
from minitvm.transform.passes import prim_func_pass as prim_func_pass
from minitvm.transform.remove_assertions import remove_assertions as _remove_assertions
from minitvm.transform.reuse_storage import reuse_storage as _reuse_storage
from minitvm.transform.serialize_vectors import serialize_vectors as _serialize_vectors
from minitvm.transform.simplify import simplify as _simplify
from minitvm.transform.unroll_loops import unroll_loops as _unroll_loops
from minitvm.transform.vectorize_loops import vectorize_loops as _vectorize_loops


def _made(name: str, run: Callable[[_PrimFunc, _PassConfig], _PrimFunc]) -> PrimFuncPass:
    """A pass that takes its options from the context."""
    return PrimFuncPass(
        lambda func, mod, context: run(func, context.config), _PassInfo(0, f"tir.{name}")
    )


def Simplify() -> PrimFuncPass:
    """Simplifies expressions: ``simplify``.

    >>> from minitvm import te, tir
    >>> A, i = tir.decl_buffer((4,), name="A"), te.var("i")
    >>> store = tir.BufferStore(A, 1.0, [(i * 6 + 2) // 6])
    >>> func = tir.PrimFunc([A], tir.For(i, 0, 4, tir.ForKind.SERIAL, store))
    >>> Simplify()(tir.IRModule.from_expr(func))
    def main(A: float32[4]):
        for i in range(4):
            A[i] = 1.0
    """
    return _made("Simplify", lambda f, c: _simplify(f, keep_trivial_loops=c.keep_trivial_loops))


def LoopPartition() -> PrimFuncPass:
    """Runs the iterations in which a guard surely holds without it: ``partition_loops``."""
    return _made("LoopPartition", lambda f, c: _partition_loops(f, c.partition))


def UnrollLoop() -> PrimFuncPass:
    """Marks the loops that are written out: ``unroll_loops``."""
    return _made("UnrollLoop", lambda f, c: _unroll_loops(f, c.unroll))


def VectorizeLoop(enable_vectorize: bool = True) -> PrimFuncPass:
    """Turns vectorized loops into vector code (``vectorize_loops``), or into serial loops
    (``serialize_vectors``)."""
    if not isinstance(enable_vectorize, bool):
        raise _CompileError(
            f"VectorizeLoop: expected True or False, got {_described(enable_vectorize)}: the pass "
            "is called with the module, as in VectorizeLoop()(module)"
        )
    run = _vectorize_loops if enable_vectorize else _serialize_vectors
    return _made("VectorizeLoop", lambda f, c: run(f))


def StorageRewrite() -> PrimFuncPass:
    """Lets buffers whose live ranges don't overlap share memory: ``reuse_storage``."""
    return _made("StorageRewrite", lambda f, c: _reuse_storage(f))


def InjectPrefetch() -> PrimFuncPass:
    """Requests the elements that a schedule's ``prefetch`` names ahead of their use:
    ``inject_prefetch``."""
    return _made("InjectPrefetch", lambda f, c: _inject_prefetch(f))


def InjectDoubleBuffer() -> PrimFuncPass:
    """Fills the buffers that ``double_buffer`` names one iteration ahead:
    ``inject_double_buffer``."""
    return _made("InjectDoubleBuffer", lambda f, c: _inject_double_buffer(f, c.double_buffer))


def HoistIfThenElse(variant: str | None = None) -> PrimFuncPass:
    """Moves conditions as far out as their variables allow: ``hoist_conditions``. The classic
    variants do the same."""
    return _made("HoistIfThenElse", lambda f, c: _hoist_conditions(f))


def SkipAssert() -> PrimFuncPass:
    """Removes the program's own assertions: ``remove_assertions``."""
    return _made("SkipAssert", lambda f, c: _remove_assertions(f))


def InstrumentBoundCheckers() -> PrimFuncPass:
    """Checks every access where it happens: ``check_accesses``."""
    return _made("InstrumentBoundCheckers", lambda f, c: _check_accesses(f))


def LowerIntrin(target: str = "llvm") -> PrimFuncPass:
    """Replaces calls by the rules of ``register_intrin_lowering`` for a kind of target."""
    return _made("LowerIntrin", lambda f, c: _lower_intrinsics(f, target))


def Apply(ftransform: Callable[[_PrimFunc], _PrimFunc]) -> PrimFuncPass:
    """A pass made from a function of one ``PrimFunc``."""
    return PrimFuncPass(lambda func, mod, context: ftransform(func), _PassInfo(0, "tir.Apply"))


def Filter(fcond: Callable[[_PrimFunc], Any]) -> _ModulePass:
    """A pass that keeps the functions for which a condition holds."""

    def keep(mod: _IRModule, context: _PassContext) -> _IRModule:
        return _IRModule({name: func for name, func in mod.functions.items() if fcond(func)})

    return _ModulePass(keep, _PassInfo(0, "tir.Filter"))


# Classic passes without a counterpart, and the reasons.
_SIMPLIFIED = "tir.transform.Simplify removes statements without effect"
_SHAPES = "buffers keep their shapes, and code generation computes addresses: leave it out"
_OF_BUILD = "build makes the entry that checks the arguments: leave it out"
_OF_DEVICES = "it is about kernels of GPUs, which are not made here"
_REASONS = {
    "RemoveNoOp": _SIMPLIFIED,
    "StorageFlatten": _SHAPES,
    "FlattenBuffer": _SHAPES,
    "TextureFlatten": _SHAPES,
    "NarrowDataType": "indices are of 32 bits where these suffice; widen_indices widens others",
    "ConvertSSA": "a variable has one definition here always: leave it out",
    "RewriteUnsafeSelect": "te.if_then_else evaluates one value, tir.Select both, as written",
    "InjectVirtualThread": "a stage's bind to a vthread is refused when it is scheduled",
    "BF16Legalize": "code generation computes bfloat16 in float32: leave it out",
    "LowerCustomDatatypes": "there are no dtypes of one's own",
    "LowerTVMBuiltin": _OF_BUILD,
    "MakePackedAPI": _OF_BUILD,
    "MakeUnpackedAPI": _OF_BUILD,
    "CombineContextCall": _OF_BUILD,
    "SplitHostDevice": _OF_DEVICES,
    "ThreadSync": _OF_DEVICES,
    "CoProcSync": _OF_DEVICES,
    "LiftAttrScope": _OF_DEVICES,
    "InferFragment": _OF_DEVICES,
    "InjectCopyIntrin": _OF_DEVICES,
    "LowerThreadAllreduce": _OF_DEVICES,
    "LowerWarpMemory": _OF_DEVICES,
    "LowerDeviceStorageAccessInfo": _OF_DEVICES,
    "VerifyMemory": _OF_DEVICES,
    "DecorateDeviceScope": _OF_DEVICES,
}


def __getattr__(name: str) -> Any:
    if name in _REASONS:
        raise AttributeError(f"tir.transform.{name}: not here: {_REASONS[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_hand_on(__name__)
