"""Arithmetic on integers: affine forms, facts, proofs, simplification, and memory accesses."""

from minitvm.arith.analyzer import Analyzer as Analyzer
from minitvm.arith.analyzer import ConstIntBound as ConstIntBound
from minitvm.arith.analyzer import ModularSet as ModularSet
from minitvm.arith.clip_bounds import detect_clip_bound as detect_clip_bound
from minitvm.arith.intervals import DomainTouched as DomainTouched
from minitvm.arith.intervals import IntervalSet as IntervalSet
from minitvm.arith.intervals import detect_linear_equation as detect_linear_equation
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
