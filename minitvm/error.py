"""The families of error, under the names of classic ``tvm.error``."""

from minitvm.runtime.errors import CompileError, InternalError, KernelError, LayoutError, TVMError

__all__ = ["CompileError", "InternalError", "KernelError", "LayoutError", "TVMError"]
