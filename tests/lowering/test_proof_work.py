"""How much the prover looks at, for programs in which cases could multiply: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith import linear

MOST_SYSTEMS = 4_000
MOST_ROWS = 200_000

Program = tuple[te.Schedule, list[Any], dict[Any, Any]]
n = te.var("n")
A = te.placeholder((n,), name="A")


def sizes(name: str, rank: int) -> list[tir.Var]:
    return [te.var(f"{name}{dim}") for dim in range(rank)]


def broadcast(rank: int, both: bool = False) -> Program:
    """``X + Y``, where Y, or each of them, may have extent 1 anywhere."""
    shape = sizes("n", rank)
    shapes = [sizes("x", rank) if both else shape, sizes("y", rank)]
    X, Y = (te.placeholder(each, name=name) for each, name in zip(shapes, "XY", strict=True))
    Z = te.compute(shape, lambda *i: X(*i) + Y(*i), name="Z")
    binds = {
        tensor: tir.decl_buffer(tensor.shape, name=tensor.name, buffer_type="auto_broadcast")
        for tensor in ([X, Y] if both else [Y])
    }
    return te.create_schedule(Z.op), [X, Y, Z], binds


def of_row(value: Callable[[Any], Any]) -> Program:
    """A row of elements of A, of which `value` gives the index, or the value itself."""

    def element(i: Any) -> Any:
        made = value(i)
        return A[te.min(te.max(made, 0), n - 1)] if made.dtype == "int32" else made

    B = te.compute((n,), element, name="B")
    return te.create_schedule(B.op), [A, B], {}


def repeated(step: Callable[[Any, int], Any], times: int) -> Program:
    def value(i: Any) -> Any:
        for count in range(times):
            i = step(i, count)
        return i

    return of_row(value)


def lazy(times: int) -> Program:
    def value(i: Any) -> Any:
        x = A[i]
        for k in range(times):
            x = te.if_then_else(te.all(i >= k, i < n - k), x + A[te.max(i - k, 0)], x * 2.0)
        return x

    return of_row(value)


def convolutions(count: int) -> Program:
    """Padded convolutions of padded convolutions."""
    h, w = te.var("h"), te.var("w")
    X = made = te.placeholder((h, w), name="X")
    for number in range(count):
        k, m, Y = te.reduce_axis((0, 3)), te.reduce_axis((0, 3)), made
        P = te.compute(
            (h + 2, w + 2),
            lambda i, j, Y=Y: te.if_then_else(
                te.all(i >= 1, i < h + 1, j >= 1, j < w + 1), Y[i - 1, j - 1], 0.0
            ),
            name=f"P{number}",
        )
        made = te.compute(
            (h, w),
            lambda i, j, P=P, k=k, m=m: te.sum(P[i + k, j + m], axis=[k, m]),
            name=f"Y{number}",
        )
    return te.create_schedule(made.op), [X, made], {}


def concatenated(count: int) -> Program:
    """Rows of any sizes, one after the other."""
    extents = sizes("n", count)
    rows = [te.placeholder((extent,), name=f"X{i}") for i, extent in enumerate(extents)]

    def element(i: Any) -> Any:
        begin: Any = 0
        cases = []
        for row, extent in zip(rows, extents, strict=True):
            cases.append((i < begin + extent, row, i - begin))
            begin = begin + extent
        _, row, place = cases[-1]
        made = row[place]
        for inside, row, place in cases[-2::-1]:
            made = te.if_then_else(inside, row[place], made)
        return made

    total: Any = sum(extents[1:], extents[0])
    Z = te.compute((total,), element, name="Z")
    return te.create_schedule(Z.op), [*rows, Z], {}


def padded(rank: int) -> Program:
    shape = sizes("n", rank)
    X = te.placeholder(shape, name="X")
    P = te.compute(
        [extent + 2 for extent in shape],
        lambda *i: te.if_then_else(
            te.all(*[te.all(x >= 1, x < d + 1) for x, d in zip(i, shape, strict=True)]),
            X(*[x - 1 for x in i]),
            0.0,
        ),
        name="P",
    )
    return te.create_schedule(P.op), [X, P], {}


def apart(count: int) -> Program:
    """Guards of two cases each."""

    def element(i: Any) -> Any:
        cases = [te.any(i < j * 3, i > j * 5 + n) for j in range(1, count + 1)]
        return te.if_then_else(te.all(*cases), A[i], A[0 * i])

    return of_row(element)


def sum_of_products(count: int) -> Program:
    """A shape whose product has 2**count terms."""
    extents = sizes("n", count)
    rows = [te.placeholder((extent,), name=f"X{i}") for i, extent in enumerate(extents)]
    size: Any = 1
    for extent in extents:
        size = size * (extent + 1)
    Z = te.compute((size,), lambda i: rows[0][te.min(i, extents[0] - 1)], name="Z")
    return te.create_schedule(Z.op), [*rows, Z], {}


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{f"broadcast, rank {r}": partial(broadcast, r) for r in (1, 3, 5)},
    **{f"both broadcast, rank {r}": partial(broadcast, r, both=True) for r in (2, 4)},
    "nested selects": lambda: repeated(
        lambda x, k: tir.Select(te.floormod(x, k + 2).equal(0), x + 1, te.max(x - k, 0)), 5
    ),
    "nested choices of values": lambda: lazy(8),
    "nested choices of indices": lambda: repeated(
        lambda x, k: te.if_then_else(x > 3, x - 1, x + 1), 8
    ),
    "nested minima": lambda: repeated(
        lambda x, k: te.min(te.max(x - 1, 0) + te.min(x, k), n - 1), 10
    ),
    "shared sums": lambda: repeated(lambda x, k: x + x, 24),
    "shared products": lambda: repeated(lambda x, k: x * x, 24),
    "shared maxima": lambda: repeated(lambda x, k: te.max(x // 2, x - 1), 16),
    **{f"padded convolutions, {k}": partial(convolutions, k) for k in (1, 2)},
    "concatenated": lambda: concatenated(5),
    "padded, rank 6": lambda: padded(6),
    "guards of two cases": lambda: apart(6),
    "products of sums": lambda: sum_of_products(8),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cases_do_not_multiply(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    eliminate, conflict = linear._eliminate, linear.conflict
    made = 0

    def counted(rows: Any, column: int) -> Any:
        nonlocal made
        result = eliminate(rows, column)
        made += 0 if result is None else len(result[0])
        return result

    def counted_conflict(rows: Any, work: linear.Work) -> Any:
        looked_at.append(len(rows))
        return conflict(rows, work)

    monkeypatch.setattr(linear, "_eliminate", counted)
    monkeypatch.setattr("minitvm.arith.proofs.conflict", counted_conflict)
    schedule, arguments, binds = PROGRAMS[name]()
    tvm.lower(schedule, arguments, binds=binds)
    assert len(looked_at) <= MOST_SYSTEMS
    assert made <= MOST_ROWS
