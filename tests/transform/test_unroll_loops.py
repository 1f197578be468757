"""Which loops are written out: by pragma, by options, for buffers in registers."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm import tir
from minitvm.error import TVMError
from minitvm.tir.expr import Buffer, Var, const
from minitvm.tir.functor import walk
from minitvm.tir.stmt import Allocate, AttrStmt, BufferStore, For, ForKind, Stmt, seq
from minitvm.transform.unroll_loops import REGISTER_BYTES, UnrollOptions, unroll_loops
from tests.tir.programs import function, loop

i, j, k, n = (Var(name) for name in "ijkn")
B = tir.decl_buffer((64, 64), name="B")


def kinds(body: Stmt, options: UnrollOptions | None = None) -> str:
    """The loops of the result, in order: ``u`` if unrolled, else the first letter of the kind."""
    func = unroll_loops(function("f", n, B, body=body), options)
    found = [node for node in walk(func.body) if isinstance(node, For)]
    return "".join(node.kind.name[0].lower() for node in found)


def fill(*index: Any) -> Stmt:
    return BufferStore(B, const(0.0), index)


NEST = loop(i, 4, loop(j, 3, fill(i, j)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (UnrollOptions(), "ss"),
        (UnrollOptions(auto_max_step=2), "ss"),
        (UnrollOptions(auto_max_step=3), "su"),
        (UnrollOptions(auto_max_step=12), "uu"),
        (UnrollOptions(auto_max_step=12, auto_max_depth=0), "su"),
        (UnrollOptions(auto_max_extent=3), "su"),
        (UnrollOptions(auto_max_step=12, explicit_unroll=False), "ss"),
    ],
)
def test_options(options: UnrollOptions, expected: str) -> None:
    assert kinds(NEST, options) == expected


def test_pragmas_hold_inside_their_statement() -> None:
    other = loop(k, 4, fill(k, k))
    body = seq(AttrStmt(i, "pragma_auto_unroll_max_step", const(12), NEST), other)
    assert kinds(body) == "uus"
    inside = AttrStmt(i, "pragma_unroll_explicit", const(0), body)
    assert kinds(inside) == "sss"


def test_symbolic_and_parallel_loops_stay() -> None:
    options = UnrollOptions(auto_max_step=100)
    assert kinds(loop(i, n, fill(i, i)), options) == "s"
    assert kinds(loop(i, 4, fill(i, i), ForKind.PARALLEL), options) == "p"
    assert kinds(loop(i, 4, loop(j, n, fill(i, j))), options) == "ss"


def local(*shape: int, scope: str = "local") -> Buffer:
    return tir.decl_buffer(shape, name="acc", scope=scope)


def accumulate(acc: Buffer, rows: int, kind: ForKind = ForKind.SERIAL) -> Stmt:
    update = BufferStore(acc, acc[i, j] + B[k, j], (i, j))
    return Allocate(acc, loop(k, n, loop(i, rows, loop(j, 8, update, kind))))


def test_indices_of_registers_are_known() -> None:
    assert kinds(accumulate(local(4, 8), 4)) == "suu"
    assert kinds(accumulate(local(14, 8), 14, ForKind.VECTORIZED)) == "suv"


def test_what_does_not_fit_into_registers_stays_in_memory() -> None:
    assert kinds(accumulate(local(4, 8, scope="global"), 4)) == "sss"
    assert kinds(accumulate(local(REGISTER_BYTES // 32 + 1, 8), 4)) == "sss"
    assert kinds(accumulate(local(16, 8), 16)) == "ssu"  # 128 statements would be too many


def test_an_unrolled_loop_has_a_constant_extent() -> None:
    with pytest.raises(TVMError, match=r"loop i: expected a constant extent to unroll, found n"):
        kinds(loop(i, n, fill(i, i), ForKind.UNROLLED))
