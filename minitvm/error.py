"""The families of error, under the names of classic ``tvm.error``."""

from minitvm.runtime.errors import CompileError as CompileError
from minitvm.runtime.errors import InternalError as InternalError
from minitvm.runtime.errors import KernelError as KernelError
from minitvm.runtime.errors import LayoutError as LayoutError
from minitvm.runtime.errors import PerformanceWarning as PerformanceWarning
from minitvm.runtime.errors import TVMError as TVMError
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
