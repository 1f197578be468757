"""The reference interpreter, imported when it is asked for: ``minitvm.interpreter.interpret``."""

from minitvm.tir.interpreter import interpret as interpret

__all__ = ["interpret"]
