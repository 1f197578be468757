"""PassContext and the passes, one file each: from valid loops to valid loops."""

from minitvm.transform.pass_context import PassContext

__all__ = ["PassContext"]
