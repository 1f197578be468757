"""The version of minitvm, by which saved code is recognised."""

VERSION = "0.1.0"
