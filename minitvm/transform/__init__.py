"""The pipeline's options, under the names of classic ``tvm.transform``."""

from minitvm.transform.pass_context import PassContext

__all__ = ["PassContext"]
