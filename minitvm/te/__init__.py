"""The expression language and its schedules: ``from minitvm import te``."""

import typing as _typing

from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.runtime.faces import on_demand as _on_demand
from minitvm.te.intrinsics.dot_product import dot_product as dot_product
from minitvm.te.intrinsics.dot_product import dot_product_of_lanes as dot_product_of_lanes
from minitvm.te.intrinsics.dot_product import interleave as interleave
from minitvm.te.intrinsics.dot_product import interleave_rows as interleave_rows
from minitvm.te.intrinsics.matrix_product import matrix_product as matrix_product
from minitvm.te.operation import compute as compute
from minitvm.te.operation import extern as extern
from minitvm.te.operation import placeholder as placeholder
from minitvm.te.operation import reduce_axis as reduce_axis
from minitvm.te.operation import size_var as size_var
from minitvm.te.operation import thread_axis as thread_axis
from minitvm.te.operation import var as var
from minitvm.te.scan import scan as scan
from minitvm.te.schedules.replay import replay as replay
from minitvm.te.schedules.schedule import Schedule as Schedule
from minitvm.te.schedules.schedule import create_schedule as create_schedule
from minitvm.te.schedules.stage import Stage as Stage
from minitvm.te.tag import tag_scope as tag_scope
from minitvm.te.tensor import ComputeOp as ComputeOp
from minitvm.te.tensor import ExternOp as ExternOp
from minitvm.te.tensor import Operation as Operation
from minitvm.te.tensor import PlaceholderOp as PlaceholderOp
from minitvm.te.tensor import ScanOp as ScanOp
from minitvm.te.tensor import Tensor as Tensor
from minitvm.te.tensor import TensorSlice as TensorSlice
from minitvm.te.tensor_intrin import TensorIntrin as TensorIntrin
from minitvm.te.tensor_intrin import decl_tensor_intrin as decl_tensor_intrin
from minitvm.te.vmap import vmap as vmap
from minitvm.tir.buffer import decl_buffer as decl_buffer
from minitvm.tir.expr import add as add
from minitvm.tir.expr import cast as cast
from minitvm.tir.expr import const as const
from minitvm.tir.expr import floordiv as floordiv
from minitvm.tir.expr import floormod as floormod
from minitvm.tir.expr import multiply as multiply
from minitvm.tir.expr import power as power
from minitvm.tir.expr import subtract as subtract
from minitvm.tir.expr import truncdiv as truncdiv
from minitvm.tir.expr import truncmod as truncmod
from minitvm.tir.numpy_functions import OTHERWISE as _OTHERWISE
from minitvm.tir.op import abs as abs
from minitvm.tir.op import acos as acos
from minitvm.tir.op import acosh as acosh
from minitvm.tir.op import all as all
from minitvm.tir.op import any as any
from minitvm.tir.op import asin as asin
from minitvm.tir.op import asinh as asinh
from minitvm.tir.op import atan as atan
from minitvm.tir.op import atan2 as atan2
from minitvm.tir.op import atanh as atanh
from minitvm.tir.op import ceil as ceil
from minitvm.tir.op import ceildiv as ceildiv
from minitvm.tir.op import clz as clz
from minitvm.tir.op import convert as convert
from minitvm.tir.op import copysign as copysign
from minitvm.tir.op import cos as cos
from minitvm.tir.op import cosh as cosh
from minitvm.tir.op import div as div
from minitvm.tir.op import erf as erf
from minitvm.tir.op import exp as exp
from minitvm.tir.op import exp2 as exp2
from minitvm.tir.op import exp10 as exp10
from minitvm.tir.op import expm1 as expm1
from minitvm.tir.op import floor as floor
from minitvm.tir.op import fmod as fmod
from minitvm.tir.op import hypot as hypot
from minitvm.tir.op import if_then_else as if_then_else
from minitvm.tir.op import indexdiv as indexdiv
from minitvm.tir.op import indexmod as indexmod
from minitvm.tir.op import infinity as infinity
from minitvm.tir.op import isfinite as isfinite
from minitvm.tir.op import isinf as isinf
from minitvm.tir.op import isnan as isnan
from minitvm.tir.op import ldexp as ldexp
from minitvm.tir.op import likely as likely
from minitvm.tir.op import log as log
from minitvm.tir.op import log1p as log1p
from minitvm.tir.op import log2 as log2
from minitvm.tir.op import log10 as log10
from minitvm.tir.op import max_value as max_value
from minitvm.tir.op import min_value as min_value
from minitvm.tir.op import nearbyint as nearbyint
from minitvm.tir.op import nextafter as nextafter
from minitvm.tir.op import popcount as popcount
from minitvm.tir.op import pow as pow
from minitvm.tir.op import reinterpret as reinterpret
from minitvm.tir.op import round as round
from minitvm.tir.op import rsqrt as rsqrt
from minitvm.tir.op import sigmoid as sigmoid
from minitvm.tir.op import sin as sin
from minitvm.tir.op import sinh as sinh
from minitvm.tir.op import sqrt as sqrt
from minitvm.tir.op import tan as tan
from minitvm.tir.op import tanh as tanh
from minitvm.tir.op import trunc as trunc
from minitvm.tir.reducer import comm_reducer as comm_reducer
from minitvm.tir.reducer import max as max
from minitvm.tir.reducer import min as min
from minitvm.tir.reducer import prod as prod
from minitvm.tir.reducer import sum as sum

if _typing.TYPE_CHECKING:
    from minitvm.te import hybrid as hybrid
    from minitvm.te.autodiff.gradient import gradient as gradient
    from minitvm.te.autodiff.pushforward import jvp as jvp

__getattr__ = _on_demand(
    __name__,
    {
        "gradient": "minitvm.te.autodiff.gradient",
        "hybrid": "minitvm.te.hybrid",
        "jvp": "minitvm.te.autodiff.pushforward",
    },
    _OTHERWISE,
)
_hand_on(__name__, "gradient", "jvp")
