"""Functions of both IRs, under the names of classic TVM: ``minitvm.ir``."""

import typing as _typing
from typing import Any as _Any

from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.runtime.faces import on_demand as _on_demand
from minitvm.tir.expr import FloatImm as FloatImm
from minitvm.tir.expr import IntImm as IntImm
from minitvm.tir.expr import PrimExpr as PrimExpr
from minitvm.tir.expr import Range as Range
from minitvm.tir.names import GlobalVar as GlobalVar
from minitvm.tir.names import Op as Op
from minitvm.tir.registered import register_intrin_lowering as register_intrin_lowering
from minitvm.tir.registered import register_op_attr as register_op_attr
from minitvm.tir.stmt import IRModule as IRModule
from minitvm.tir.stmt import PrimFunc as PrimFunc
from minitvm.tir.structural_equal import structural_equal as structural_equal

if _typing.TYPE_CHECKING:
    from minitvm.tir.json import load_json as load_json
    from minitvm.tir.json import save_json as save_json
    from minitvm.tir.structural_hash import structural_hash as structural_hash

_ON_DEMAND = {
    "load_json": "minitvm.tir.json",
    "save_json": "minitvm.tir.json",
    "structural_hash": "minitvm.tir.structural_hash",
}
__getattr__ = _on_demand(__name__, _ON_DEMAND)


def assert_structural_equal(lhs: _Any, rhs: _Any, map_free_vars: bool = False) -> None:
    """Raises an error unless two programs are the same up to the names of their variables.

    Raises
    ------
    ValueError
        With both texts, when they differ.

    >>> from minitvm.tir.expr import Var
    >>> i = Var("i")
    >>> assert_structural_equal(i + 1, i + 1)
    """
    if not structural_equal(lhs, rhs, map_free_vars):
        raise ValueError(f"expected equal programs, got\n{lhs}\nand\n{rhs}")


_hand_on(__name__, *_ON_DEMAND)
