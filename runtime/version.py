"""The version of minitvm, which saved code is for."""

VERSION = "0.1.0"
