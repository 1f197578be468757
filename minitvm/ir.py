"""What both IRs share, under the names of classic TVM: ``minitvm.ir``."""

from minitvm.expr import PrimExpr, Range
from minitvm.stmt import IRModule, PrimFunc
from minitvm.structural_equal import structural_equal

__all__ = ["IRModule", "PrimExpr", "PrimFunc", "Range", "structural_equal"]
