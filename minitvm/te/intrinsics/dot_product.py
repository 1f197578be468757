"""Dot-product instructions of CPUs, as tensor intrinsics.

LLVM finds none of them in loops over single elements, since they need neighbouring steps of the sum
next to each other in memory: ``k`` in *groups* of 4 bytes or 2 half words, ``w[k // 4, j * 4 + k %
4]``. An instruction is chosen by the features that it needs, never by the name of a CPU.

One instruction is left out: ``pmaddubsw``, since its sums of two products saturate at 16 bits, and
so are wrong for large operands. Without a better instruction bytes are widened to int16, for which
``pmaddwd`` is exact: its one overflow, of two products of -32768, wraps as 32-bit additions do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.intrinsics.instruction import Instruction, instruction_named
from minitvm.te.operation import compute, placeholder, reduce_axis
from minitvm.te.tensor_intrin import TensorIntrin, decl_tensor_intrin
from minitvm.tir import expr as e
from minitvm.tir import reducer
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.op import call_llvm_pure_intrin, reinterpret
from minitvm.tir.shuffles import Shuffles
from minitvm.tir.stmt import Stmt, seq

_GROUP_BITS = 32


@final
@record()
class DotProduct(Instruction):
    """An instruction that adds to each of `lanes` sums the products of a group of neighbours.

    Attributes
    ----------
    a, b
        The dtype of the operand that is the same in every lane, and the dtype of the other operand.
    lanes, group
        The number of sums, and the number of products added to each.
    form
        The form of the intrinsic's call: ``"a, b"`` for ``f(sums, a, b)``; ``"b, a"`` for ``f(sums,
        b, a)``; ``"add"`` for ``sums + f(a, b)``.
    """

    lanes: int
    group: int
    form: str = "a, b"


def _on(*features: str) -> frozenset[str]:
    return frozenset(features)


_VNNI, _VNNI_256, _INT8 = _on("avx512vnni"), _on("avxvnni"), _on("avxvnniint8")
_BUSD, _WSSD = "llvm.x86.avx512.vpdpbusd", "llvm.x86.avx512.vpdpwssd"
_NEON = "llvm.aarch64.neon"

# In order of preference: a target uses the first instruction for its dtypes that it has.
DOT_PRODUCTS = (
    DotProduct("vdpbf16ps_512", _on("avx512bf16"), "llvm.x86.avx512bf16.dpbf16ps.512",
               "bfloat16", "bfloat16", "float32", 16, 2),
    DotProduct("vpdpbusd_512", _VNNI, f"{_BUSD}.512", "uint8", "int8", "int32", 16, 4),
    DotProduct("vpdpbusd_512_s8u8", _VNNI, f"{_BUSD}.512", "int8", "uint8", "int32", 16, 4, "b, a"),
    DotProduct("vpdpwssd_512", _VNNI, f"{_WSSD}.512", "int16", "int16", "int32", 16, 2),
    DotProduct("vpmaddwd_512", _on("avx512bw"), "llvm.x86.avx512.pmaddw.d.512",
               "int16", "int16", "int32", 16, 2, "add"),
    DotProduct("vpdpbssd_256", _INT8, "llvm.x86.avx2.vpdpbssd.256",
               "int8", "int8", "int32", 8, 4),
    DotProduct("vpdpbusd_256", _VNNI_256, f"{_BUSD}.256", "uint8", "int8", "int32", 8, 4),
    DotProduct("vpdpbusd_256_s8u8", _VNNI_256, f"{_BUSD}.256", "int8", "uint8", "int32", 8, 4,
               "b, a"),
    DotProduct("vpdpwssd_256", _VNNI_256, f"{_WSSD}.256", "int16", "int16", "int32", 8, 2),
    DotProduct("vpmaddwd_256", _on("avx2"), "llvm.x86.avx2.pmadd.wd",
               "int16", "int16", "int32", 8, 2, "add"),
    DotProduct("pmaddwd_128", _on("sse2"), "llvm.x86.sse2.pmadd.wd",
               "int16", "int16", "int32", 4, 2, "add"),
    DotProduct("bfdot", _on("neon", "bf16"), f"{_NEON}.bfdot.v4f32.v8bf16",
               "bfloat16", "bfloat16", "float32", 4, 2),
    DotProduct("sdot", _on("neon", "dotprod"), f"{_NEON}.sdot.v4i32.v16i8",
               "int8", "int8", "int32", 4, 4),
    DotProduct("udot", _on("neon", "dotprod"), f"{_NEON}.udot.v4i32.v16i8",
               "uint8", "uint8", "int32", 4, 4),
    DotProduct("usdot", _on("neon", "i8mm"), f"{_NEON}.usdot.v4i32.v16i8",
               "uint8", "int8", "int32", 4, 4),
    DotProduct("usdot_s8u8", _on("neon", "i8mm"), f"{_NEON}.usdot.v4i32.v16i8",
               "int8", "uint8", "int32", 4, 4, "b, a"),
)  # fmt: skip


@lru_cache(maxsize=64)
def dot_product(name: str, columns: int, same: int | None = None) -> TensorIntrin:
    """A tensor intrinsic for ``tensorize``: a dot-product instruction on `columns` sums.

    It computes ``z[j] = sum over r < group of a[r].astype(sum) * w[j * group + r].astype(sum)``,
    where `a` and `w` lie in memory in the order of these indices.

    Parameters
    ----------
    name : str
        The instruction's name in ``DOT_PRODUCTS``.
    columns : int
        The number of sums, a multiple of the instruction's lanes.
    same : int, optional
        The value of all elements of `a`, which then isn't read.

    Raises
    ------
    CompileError
        When there is no such instruction, or `columns` is no multiple of its lanes.

    >>> dot_product("vpdpbusd_512", 32).inputs
    (Tensor(shape=[4], op.name=a), Tensor(shape=[128], op.name=w))
    >>> dot_product("vpdpbusd_512", 32, same=128).inputs
    (Tensor(shape=[128], op.name=w),)
    """
    instruction = instruction_named(DOT_PRODUCTS, name, "dot_product")
    if columns < 1 or columns % instruction.lanes:
        raise CompileError(
            f"dot_product: expected columns that are a multiple of {instruction.lanes}, the lanes "
            f"of {name}, got {columns}"
        )
    group = instruction.group
    a = placeholder((group,), instruction.a, "a")
    w = placeholder((columns * group,), instruction.b, "w")
    r = reduce_axis((0, group), "r")

    def product(j: Any) -> Any:
        other = w[j * group + r].astype(instruction.sum)
        mine = a[r].astype(instruction.sum) if same is None else e.const(same, instruction.sum)
        return reducer.sum(mine * other, axis=r)

    z = compute((columns,), product, "z")
    text = f"te.dot_product({name!r}, {columns}{'' if same is None else f', {same}'})"
    return decl_tensor_intrin(z.op, _Statements(instruction, columns, same).make, name=text)


@lru_cache(maxsize=64)
def dot_product_of_lanes(name: str) -> TensorIntrin:
    """A tensor intrinsic for ``tensorize``: a dot-product instruction whose operands both differ
    from lane to lane, for one sum whose steps are neighbours in both factors.

    It computes ``z[j] = sum over r < group of a[j * group + r].astype(sum) * w[j * group +
    r].astype(sum)`` for each lane j of the instruction.

    Parameters
    ----------
    name : str
        The instruction's name in ``DOT_PRODUCTS``.

    Raises
    ------
    CompileError
        When there is no such instruction.

    >>> dot_product_of_lanes("vdpbf16ps_512").inputs
    (Tensor(shape=[32], op.name=a), Tensor(shape=[32], op.name=w))
    """
    instruction = instruction_named(DOT_PRODUCTS, name, "dot_product_of_lanes")
    lanes, group = instruction.lanes, instruction.group
    a = placeholder((lanes * group,), instruction.a, "a")
    w = placeholder((lanes * group,), instruction.b, "w")
    r = reduce_axis((0, group), "r")

    def product(j: Any) -> Any:
        factors = (each[j * group + r].astype(instruction.sum) for each in (a, w))
        return reducer.sum(next(factors) * next(factors), axis=r)

    z = compute((lanes,), product, "z")
    text = f"te.dot_product_of_lanes({name!r})"
    made = _Statements(instruction, lanes, None, differs=True).make
    return decl_tensor_intrin(z.op, made, name=text)


class _Statements:
    """The statements of an instruction on vectors of sums. `differs`: both operands differ from
    lane to lane."""

    def __init__(
        self, instruction: DotProduct, columns: int, same: int | None, *, differs: bool = False
    ) -> None:
        self._by = instruction
        self._same = same
        self._differs = differs
        self._vectors = columns // instruction.lanes
        self._sums = DType.of(instruction.sum).with_lanes(instruction.lanes)

    def make(self, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> tuple[Stmt, Stmt, Stmt]:
        """The body, the reset and the update."""
        (z,) = outs
        zero = e.const(0, self._sums)
        places = [vector * self._by.lanes for vector in range(self._vectors)]
        before = [z.vload(place, self._sums) for place in places]
        return (
            seq(*self._stores(z, self._added(ins, [zero] * self._vectors))),
            seq(*self._stores(z, [zero] * self._vectors)),
            seq(*self._stores(z, self._added(ins, before))),
        )

    def _stores(self, z: Buffer, values: Sequence[PrimExpr]) -> Iterator[Stmt]:
        for vector, value in enumerate(values):
            yield z.vstore(vector * self._by.lanes, value)

    def _added(self, ins: Sequence[Buffer], sums: Sequence[PrimExpr]) -> list[PrimExpr]:
        *a, w = ins
        width = self._by.lanes * self._by.group
        if self._differs:
            same = a[0].vload(0, a[0].dtype.with_lanes(width))
        elif self._same is None:
            same = self._broadcast(a[0])
        else:
            same = e.const(self._same, DType.of(self._by.a).with_lanes(width))
        others = (w.vload(i * width, w.dtype.with_lanes(width)) for i in range(self._vectors))
        return [self._dot(*each) for each in zip(sums, [same] * self._vectors, others, strict=True)]

    def _broadcast(self, a: Buffer) -> PrimExpr:
        """A group of `a`, as 32 bits, in every lane."""
        by = self._by
        loaded = a.vload(0, a.dtype.with_lanes(by.group))
        same = e.Broadcast(reinterpret("int32", loaded), by.lanes)
        made: PrimExpr = reinterpret(a.dtype.with_lanes(by.lanes * by.group), same)
        return made

    def _dot(self, sums: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if self._by.form == "add":
            return sums + call_llvm_pure_intrin(self._sums, self._by.llvm, a, b)
        if self._by.form == "b, a":
            a, b = b, a
        return call_llvm_pure_intrin(self._sums, self._by.llvm, sums, a, b)


@lru_cache(maxsize=64)
def interleave(dtype: str, group: int, columns: int) -> TensorIntrin:
    """A tensor intrinsic for ``tensorize``: rows in the layout that :func:`dot_product` wants.

    It computes ``z[c] = w[c % group, c // group]``, that is ``z[j * group + r] = w[r, j]``, for a
    `group` of 2, 4 or 8, by interleaving vectors: element by element it would take many times
    longer.

    >>> interleave("int8", 4, 32).inputs
    (Tensor(shape=[4, 32], op.name=w),)
    """
    if group not in (2, 4, 8):
        raise CompileError(f"interleave: expected a group of 2, 4 or 8, got {group}")
    w = placeholder((group, columns), dtype, "w")
    z = compute((group * columns,), lambda c: w[c % group, c // group], "z")
    apart = decl_buffer(w.shape, w.dtype, "w", strides=[Var("stride"), e.const(1)])
    raw = DType.of(f"int{w.dtype.bits}")

    def statement(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        rows = [ins[0].vload((r, 0), w.dtype.with_lanes(columns)) for r in range(group)]
        if columns == 1:
            return seq(*(outs[0].vstore(r, row) for r, row in enumerate(rows)))
        bits = [reinterpret(raw.with_lanes(columns), row) for row in rows]
        while len(bits) > 1:
            half = len(bits) // 2
            bits = [_zip(bits[i], bits[i + half]) for i in range(half)]
        return outs[0].vstore(0, reinterpret(w.dtype.with_lanes(group * columns), bits[0]))

    text = f"te.interleave({dtype!r}, {group}, {columns})"
    return decl_tensor_intrin(z.op, statement, name=text, binds={w: apart})


@lru_cache(maxsize=64)
def interleave_rows(
    dtype: str, group: int, columns: int, groups: int | None = None
) -> TensorIntrin:
    """A tensor intrinsic for ``tensorize``: rows along the sum, in the layout that
    :func:`dot_product` wants.

    It computes ``z[g, c] = w[c // group, g * group + c % group]`` for 4, 8 or 16 `columns`, which
    are rows of `w`, and as many `groups` of them, or 4 or 8. A `group` has 4 bytes. The rows are
    transposed in registers, with a group as an element.

    >>> interleave_rows("bfloat16", 2, 16).inputs
    (Tensor(shape=[16, 32], op.name=w),)
    """
    element, groups = DType.of(dtype), columns if groups is None else groups
    sizes = (4, 8, 16)
    if group * element.bits != _GROUP_BITS or columns not in sizes or groups not in sizes:
        raise CompileError(
            f"interleave_rows: expected groups of {_GROUP_BITS} bits, and 4, 8 or 16 columns and "
            f"groups, got {group} of {dtype}, {columns} columns and {groups} groups"
        )
    if groups > columns:
        raise CompileError(
            f"interleave_rows: expected at most as many groups as columns, got {groups} groups of "
            f"{columns} columns"
        )
    w = placeholder((columns, groups * group), element, "w")
    z = compute((groups, columns * group), lambda g, c: w[c // group, g * group + c % group], "z")
    binds = {
        each: decl_buffer(each.shape, element, name, strides=[Var(f"{name}_stride"), e.const(1)])
        for name, each in (("w", w), ("z", z))
    }

    def statement(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        raw, wide = DType.of("int32").with_lanes(groups), element.with_lanes(groups * group)
        shuffles = Shuffles()
        rows = [
            shuffles.named("row", reinterpret(raw, ins[0].vload((r, 0), wide)))
            for r in range(columns)
        ]
        lanes = element.with_lanes(columns * group)
        stores = [
            outs[0].vstore((g, 0), reinterpret(lanes, column))
            for g, column in enumerate(shuffles.transposed(rows))
        ]
        return shuffles.around(seq(*stores))

    text = f"te.interleave_rows({dtype!r}, {group}, {columns}, {groups})"
    return decl_tensor_intrin(z.op, statement, name=text, binds=binds)


def _zip(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    made = a.dtype.with_lanes(2 * a.dtype.lanes)
    name = f"llvm.vector.interleave2.v{made.lanes}i{made.bits}"
    return call_llvm_pure_intrin(made, name, a, b)
