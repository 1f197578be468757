"""Loops written as Python: ``te.hybrid.script``, and the functions that such loops may use."""

from types import ModuleType

from minitvm.te.hybrid.function import HybridFunction as HybridFunction
from minitvm.te.hybrid.function import script as script
from minitvm.te.hybrid.intrinsics import acos as acos
from minitvm.te.hybrid.intrinsics import acosh as acosh
from minitvm.te.hybrid.intrinsics import allocate as allocate
from minitvm.te.hybrid.intrinsics import asin as asin
from minitvm.te.hybrid.intrinsics import asinh as asinh
from minitvm.te.hybrid.intrinsics import atan as atan
from minitvm.te.hybrid.intrinsics import atan2 as atan2
from minitvm.te.hybrid.intrinsics import atanh as atanh
from minitvm.te.hybrid.intrinsics import bind as bind
from minitvm.te.hybrid.intrinsics import ceil as ceil
from minitvm.te.hybrid.intrinsics import ceil_div as ceil_div
from minitvm.te.hybrid.intrinsics import clz as clz
from minitvm.te.hybrid.intrinsics import const_range as const_range
from minitvm.te.hybrid.intrinsics import copysign as copysign
from minitvm.te.hybrid.intrinsics import cos as cos
from minitvm.te.hybrid.intrinsics import cosh as cosh
from minitvm.te.hybrid.intrinsics import erf as erf
from minitvm.te.hybrid.intrinsics import exp as exp
from minitvm.te.hybrid.intrinsics import exp2 as exp2
from minitvm.te.hybrid.intrinsics import exp10 as exp10
from minitvm.te.hybrid.intrinsics import float16 as float16
from minitvm.te.hybrid.intrinsics import float32 as float32
from minitvm.te.hybrid.intrinsics import float64 as float64
from minitvm.te.hybrid.intrinsics import floor as floor
from minitvm.te.hybrid.intrinsics import fmod as fmod
from minitvm.te.hybrid.intrinsics import hypot as hypot
from minitvm.te.hybrid.intrinsics import int8 as int8
from minitvm.te.hybrid.intrinsics import int16 as int16
from minitvm.te.hybrid.intrinsics import int32 as int32
from minitvm.te.hybrid.intrinsics import int64 as int64
from minitvm.te.hybrid.intrinsics import isfinite as isfinite
from minitvm.te.hybrid.intrinsics import isinf as isinf
from minitvm.te.hybrid.intrinsics import isnan as isnan
from minitvm.te.hybrid.intrinsics import ldexp as ldexp
from minitvm.te.hybrid.intrinsics import likely as likely
from minitvm.te.hybrid.intrinsics import log as log
from minitvm.te.hybrid.intrinsics import log1p as log1p
from minitvm.te.hybrid.intrinsics import log2 as log2
from minitvm.te.hybrid.intrinsics import log10 as log10
from minitvm.te.hybrid.intrinsics import max_num_threads as max_num_threads
from minitvm.te.hybrid.intrinsics import nearbyint as nearbyint
from minitvm.te.hybrid.intrinsics import nextafter as nextafter
from minitvm.te.hybrid.intrinsics import output_tensor as output_tensor
from minitvm.te.hybrid.intrinsics import parallel as parallel
from minitvm.te.hybrid.intrinsics import popcount as popcount
from minitvm.te.hybrid.intrinsics import power as power
from minitvm.te.hybrid.intrinsics import rsqrt as rsqrt
from minitvm.te.hybrid.intrinsics import serial as serial
from minitvm.te.hybrid.intrinsics import sigmoid as sigmoid
from minitvm.te.hybrid.intrinsics import sin as sin
from minitvm.te.hybrid.intrinsics import sinh as sinh
from minitvm.te.hybrid.intrinsics import sqrt as sqrt
from minitvm.te.hybrid.intrinsics import tan as tan
from minitvm.te.hybrid.intrinsics import tanh as tanh
from minitvm.te.hybrid.intrinsics import trunc as trunc
from minitvm.te.hybrid.intrinsics import uint8 as uint8
from minitvm.te.hybrid.intrinsics import uint16 as uint16
from minitvm.te.hybrid.intrinsics import uint32 as uint32
from minitvm.te.hybrid.intrinsics import uint64 as uint64
from minitvm.te.hybrid.intrinsics import unroll as unroll
from minitvm.te.hybrid.intrinsics import vectorize as vectorize

# Every name that is imported here as itself.
__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and value is not ModuleType and not isinstance(value, ModuleType)
]
