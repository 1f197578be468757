"""Statements, under the name of classic TVM: their nodes, and the functions that join them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minitvm.tir.node import Stmt as Stmt
from minitvm.tir.nodes import FEW as FEW
from minitvm.tir.nodes import INDEPENDENT as INDEPENDENT
from minitvm.tir.nodes import VIEW as VIEW
from minitvm.tir.nodes import Allocate as Allocate
from minitvm.tir.nodes import AssertStmt as AssertStmt
from minitvm.tir.nodes import AttrStmt as AttrStmt
from minitvm.tir.nodes import Buffer
from minitvm.tir.nodes import BufferStore as BufferStore
from minitvm.tir.nodes import Evaluate as Evaluate
from minitvm.tir.nodes import For as For
from minitvm.tir.nodes import ForKind as ForKind
from minitvm.tir.nodes import FuncAttrs as FuncAttrs
from minitvm.tir.nodes import IfThenElse as IfThenElse
from minitvm.tir.nodes import IRModule as IRModule
from minitvm.tir.nodes import LetStmt as LetStmt
from minitvm.tir.nodes import PrimFunc as PrimFunc
from minitvm.tir.nodes import SeqStmt as SeqStmt
from minitvm.tir.nodes import While as While


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """`func` with another body; `func` itself if the body is the same object."""
    return func.with_body(body)


def with_buffers(func: PrimFunc, body: Stmt, replaced: Mapping[Buffer, Buffer]) -> PrimFunc:
    """`func` with another body, in which some parameters have other buffers."""
    buffers = {param: replaced.get(b, b) for param, b in func.buffer_map.items()}
    attrs = func.attrs
    if attrs.outputs is not None:
        attrs = replace(attrs, outputs=frozenset(replaced.get(b, b) for b in attrs.outputs))
    return PrimFunc(func.params, body, buffers, func.name, attrs)


def seq(*statements: Stmt) -> Stmt:
    """Statements one after the other, nested sequences flattened.

    >>> seq().seq
    ()
    """
    flat: list[Stmt] = []
    for statement in statements:
        flat.extend(statement.seq if isinstance(statement, SeqStmt) else (statement,))
    return flat[0] if len(flat) == 1 else SeqStmt(tuple(flat))
