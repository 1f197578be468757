"""Python functions of tensors as operators that return their outputs: `jit`."""

from minitvm.operators.jit import jit as jit
from minitvm.operators.operator import Operator as Operator
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
