"""Matrix-product instructions of CPUs, as tensor intrinsics.

They multiply two small matrices and add the product to a third: AMX a tile of 16 rows by one of 16
columns, in registers of 1 KB each; AArch64 two rows by two columns, in a vector register. An
intrinsic is a block of such products over a whole sum, since the sums in between lie as the
instruction has them: in tile registers, or as two rows and columns in each vector.

As for dot products (:mod:`dot_product`), neighbouring steps of the sum lie in *groups* next to each
other in the columns' factor, ``w[k // 4, j * 4 + k % 4]``; the rows' factor is read as it lies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, final

from minitvm.runtime.dtype import INT32, INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.intrinsics.instruction import Instruction, instruction_named
from minitvm.te.operation import compute, placeholder, reduce_axis
from minitvm.te.tensor_intrin import TensorIntrin, decl_tensor_intrin
from minitvm.tir import expr as e
from minitvm.tir import reducer
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Call, PrimExpr, Var
from minitvm.tir.op import call_llvm_intrin, call_llvm_pure_intrin, reinterpret
from minitvm.tir.stmt import Allocate, Evaluate, For, ForKind, LetStmt, Stmt, seq


@final
@record()
class MatrixProduct(Instruction):
    """An instruction that adds the product of two matrices to a matrix of sums.

    Attributes
    ----------
    a, b
        The dtypes of the rows' factor and of the columns' factor.
    rows, columns, depth
        The sizes of the matrices: one of `rows` by `depth`, and one of `depth` by `columns`.
    exact
        Whether a block must consist of whole matrices; otherwise it may end with fewer rows and
        columns.
    group
        The number of neighbouring steps of the sum that lie together in the columns' factor.
    registers
        The number of registers for sums and factors together.
    under_way
        The number of independent products in flight that hide the latency of one.
    share
        The share of products that must not be padding for the instruction to be faster than a dot
        product.
    cycles
        The cycles from one product to the next; None if a cycle begins as many products as
        multiply-adds.
    swapped
        Whether the intrinsic takes its factors in reverse order, and gives columns for rows.
    """

    rows: int
    columns: int
    depth: int
    exact: bool
    group: int
    registers: int
    under_way: int
    share: float
    cycles: int | None = None
    swapped: bool = False


def _amx(name: str, feature: str, a: str, b: str, sum: str) -> MatrixProduct:
    group = 32 // DType.of(a).bits
    features = frozenset({"amx-tile", feature})
    return MatrixProduct(
        name, features, f"llvm.x86.{name}.internal", a, b, sum,
        rows=16, columns=16, depth=16 * group, exact=False, group=group,
        registers=8, under_way=4, share=0.25, cycles=16,
    )  # fmt: skip


def _neon(
    name: str, feature: str, a: str, b: str, sum: str, llvm: str, *, swapped: bool = False
) -> MatrixProduct:
    group = 64 // DType.of(a).bits
    return MatrixProduct(
        name, frozenset({"neon", feature}), f"llvm.aarch64.neon.{llvm}", a, b, sum,
        rows=2, columns=2, depth=group, exact=True, group=group,
        registers=32, under_way=8, share=0.6, swapped=swapped,
    )  # fmt: skip


# In order of preference: a target uses the first instruction for its dtypes that it has.
MATRIX_PRODUCTS = (
    _amx("tdpbssd", "amx-int8", "int8", "int8", "int32"),
    _amx("tdpbsud", "amx-int8", "int8", "uint8", "int32"),
    _amx("tdpbusd", "amx-int8", "uint8", "int8", "int32"),
    _amx("tdpbuud", "amx-int8", "uint8", "uint8", "int32"),
    _amx("tdpbf16ps", "amx-bf16", "bfloat16", "bfloat16", "float32"),
    _amx("tdpfp16ps", "amx-fp16", "float16", "float16", "float32"),
    _neon("smmla", "i8mm", "int8", "int8", "int32", "smmla.v4i32.v16i8"),
    _neon("ummla", "i8mm", "uint8", "uint8", "int32", "ummla.v4i32.v16i8"),
    _neon("usmmla", "i8mm", "uint8", "int8", "int32", "usmmla.v4i32.v16i8"),
    _neon("usmmla_s8u8", "i8mm", "int8", "uint8", "int32", "usmmla.v4i32.v16i8", swapped=True),
    _neon("bfmmla", "bf16", "bfloat16", "bfloat16", "float32", "bfmmla"),
)


@lru_cache(maxsize=64)
def matrix_product(
    name: str, rows: int, columns: int, depth: int | None = None, prefetch: bool = True
) -> TensorIntrin:
    """A tensor intrinsic for ``tensorize``: a block of sums by a matrix-product instruction.

    It computes::

        z[i, j] = sum over r < depth of
                  a[i, r].astype(sum) * w[r // group, j * group + r % group].astype(sum)

    where rows of `a` and of `w` may lie apart in memory. The sums stay in registers, if the
    registers hold the whole block.

    Parameters
    ----------
    name : str
        The instruction's name in ``MATRIX_PRODUCTS``.
    rows, columns, depth : int
        The depth is a multiple of the instruction's, and of AArch64's rows and columns are as well.
        Without a depth, the intrinsic is as deep as the sum, which may be symbolic.
    prefetch : bool
        Whether each step of AMX prefetches the rows of `a` for the next one. Rows so far apart that
        their lines evict each other from the L1 cache had better not be.

    Raises
    ------
    CompileError
        When there is no such instruction, or the block is no multiple of its matrices.

    >>> matrix_product("tdpbusd", 32, 32, 512).inputs
    (Tensor(shape=[32, 512], op.name=a), Tensor(shape=[128, 128], op.name=w))
    """
    by = instruction_named(MATRIX_PRODUCTS, name, "matrix_product")
    sizes = (rows, columns, by.depth if depth is None else depth)
    units = (by.rows if by.exact else 1, by.columns if by.exact else 1, by.depth)
    if any(size < 1 or size % unit for size, unit in zip(sizes, units, strict=True)):
        raise CompileError(
            f"matrix_product: expected rows, columns and a depth that are multiples of {units}, "
            f"as {name} needs them, got {sizes}"
        )
    group = by.group
    # A depth that isn't given is a number of products.
    products = Var("products", INT64)
    steps = e.as_expr(products * by.depth if depth is None else depth)
    a = placeholder((rows, steps), by.a, "a")
    w = placeholder((steps // group, columns * group), by.b, "w")
    r = reduce_axis((0, steps), "r")

    def element(i: Any, j: Any) -> Any:
        mine, other = a[i, r], w[r // group, j * group + r % group]
        return reducer.sum(mine.astype(by.sum) * other.astype(by.sum), axis=r)

    z = compute((rows, columns), element, "z")
    apart = {}
    for each, letter in ((a, "a"), (w, "w"), (z, "z")):
        strides = [Var(f"{letter}_row", INT64), e.const(1)]
        apart[each] = decl_buffer(each.shape, each.dtype, letter, strides=strides)
    listed = ", ".join(map(str, (rows, columns) if depth is None else (rows, columns, depth)))
    text = f"te.matrix_product({name!r}, {listed}{'' if prefetch else ', prefetch=False'})"
    count = e.cast(INT64, products if depth is None else e.const(depth // by.depth))
    block = (_Pairs if by.exact else _Tiles)(by, rows, columns, count, prefetches=prefetch)
    scalars = (products,) if depth is None else ()
    return decl_tensor_intrin(z.op, block.make, name=text, binds=apart, scalar_params=scalars)


class _Block(ABC):
    """The statements of an instruction on a block of sums.

    A *cell* is the result of one instruction, a value of the dtype `kept`. All cells, row after
    row, are in a local buffer, which becomes registers.
    """

    def __init__(
        self,
        by: MatrixProduct,
        rows: int,
        columns: int,
        products: PrimExpr,
        *,
        prefetches: bool,
    ) -> None:
        self.by, self.kept = by, self.cell_of(by)
        self.rows, self.columns, self.products = rows, columns, products
        self.prefetches = prefetches

    def make(
        self, ins: Sequence[Buffer], outs: Sequence[Buffer], scalars: Sequence[Var] = ()
    ) -> tuple[Stmt, Stmt, Stmt]:
        """The body, the reset and the update."""
        (a, w), (z,) = ins, outs
        places = list(product(self.cell_rows(), self.cell_columns()))
        lanes = self.kept.lanes
        sums = decl_buffer((len(places) * lanes,), self.kept.element, "sums", scope="local")
        held = [sums.vload(n * lanes, self.kept) for n in range(len(places))]

        def stored(cells: Sequence[PrimExpr]) -> Stmt:
            return seq(*(
                self.store(z, *place, cell) for place, cell in zip(places, cells, strict=True)
            ))  # fmt: skip

        def block(begin: Sequence[PrimExpr]) -> Stmt:
            begun = (sums.vstore(n * lanes, value) for n, value in enumerate(begin))
            return Allocate(sums, seq(*begun, self._products(a, w, sums, held), stored(held)))

        zeros = [self.zero(*place) for place in places]
        return block(zeros), stored(zeros), block([self.load(z, *place) for place in places])

    def _products(self, a: Buffer, w: Buffer, sums: Buffer, held: list[PrimExpr]) -> Stmt:
        """The loop over the sum: each part of a factor is loaded once, and each part of the rows'
        factor multiplied by each part of the columns' factor."""
        k = Var("k", INT64)
        row_values = {row: self.load_a(a, row, k) for row in self.cell_rows()}
        column_values = {column: self.load_w(w, column, k) for column in self.cell_columns()}
        rows = {row: Var(f"a{row}", value.dtype) for row, value in row_values.items()}
        columns = {column: Var(f"w{column}", v.dtype) for column, v in column_values.items()}
        requests = self.requests(a, k)
        share = -(-len(requests) // len(held))
        stores = list[Stmt]()
        for n, (row, column) in enumerate(product(rows, columns)):
            added = self.add(row, column, held[n], rows[row], columns[column])
            stores.append(sums.vstore(n * self.kept.lanes, added))
            stores += requests[n * share :][:share]
        body = seq(*stores)
        for names, values in ((columns, column_values), (rows, row_values)):
            for place in reversed(names):
                body = LetStmt(names[place], values[place], body)
        return For(k, e.const(0, INT64), self.products, ForKind.SERIAL, body)

    def cell_rows(self) -> range:
        """The rows at which cells begin."""
        return range(0, self.rows, self.by.rows)

    def cell_columns(self) -> range:
        """The columns at which cells begin."""
        return range(0, self.columns, self.by.columns)

    @abstractmethod
    def cell_of(self, by: MatrixProduct) -> DType:
        """The dtype of a cell."""

    @abstractmethod
    def zero(self, row: int, column: int) -> PrimExpr:
        """The cell that begins at a row and a column, of zeros."""

    @abstractmethod
    def load(self, z: Buffer, row: int, column: int) -> PrimExpr:
        """Loads the cell that begins at a row and a column."""

    @abstractmethod
    def store(self, z: Buffer, row: int, column: int, cell: PrimExpr) -> Stmt:
        """Stores the cell that begins at a row and a column."""

    @abstractmethod
    def load_a(self, a: Buffer, row: int, k: Var) -> PrimExpr:
        """The part of the rows' factor for cells at `row` in step `k`."""

    @abstractmethod
    def load_w(self, w: Buffer, column: int, k: Var) -> PrimExpr:
        """The part of the columns' factor for cells at `column` in step `k`."""

    def requests(self, a: Buffer, k: Var) -> list[Stmt]:
        """Requests of what the step after `k` loads of the rows' factor; none by default."""
        return []

    @abstractmethod
    def add(self, row: int, column: int, cell: PrimExpr, a: PrimExpr, w: PrimExpr) -> PrimExpr:
        """The cell that begins at a row and a column, with the product of the loaded parts
        added."""


@final
class _Tiles(_Block):
    """AMX: a cell is a tile of up to 16 rows of up to 64 bytes. LLVM assigns the tile registers,
    and writes and releases their configuration. The columns' factor passes through the L1 cache,
    in which the rows' factor stays: it is loaded as one that isn't read again soon. A load of a
    tile waits for its lines, which lie apart in the rows' factor: they are requested a step
    before."""

    def cell_of(self, by: MatrixProduct) -> DType:
        return DType.of("int32x256")

    def zero(self, row: int, column: int) -> PrimExpr:
        shape = self._rows_from(row), self._bytes_from(column)
        return call_llvm_pure_intrin(self.kept, "llvm.x86.tilezero.internal", *shape)

    def load(self, z: Buffer, row: int, column: int) -> PrimExpr:
        shape = self._rows_from(row), self._bytes_from(column)
        return self._load(z, row * z.strides[0] + column, *shape)

    def store(self, z: Buffer, row: int, column: int, cell: PrimExpr) -> Stmt:
        shape = self._rows_from(row), self._bytes_from(column)
        place = z.access_ptr("w", offset=row * z.strides[0] + column)
        name = "llvm.x86.tilestored64.internal"
        return Evaluate(call_llvm_intrin("int32", name, *shape, place, _row_bytes(z), cell))

    def load_a(self, a: Buffer, row: int, k: Var) -> PrimExpr:
        offset = row * a.strides[0] + k * self.by.depth
        return self._load(a, offset, self._rows_from(row), _WHOLE)

    def load_w(self, w: Buffer, column: int, k: Var) -> PrimExpr:
        offset = k * self.by.rows * w.strides[0] + column * self.by.group
        return self._load(w, offset, _ROWS, self._bytes_from(column), "tileloaddt164")

    def requests(self, a: Buffer, k: Var) -> list[Stmt]:
        # The last element is in the next line, wherever in a line rows begin.
        last = (k + 2) * self.by.depth - 1
        are_wanted = self.prefetches and e.const_int(self.products) != 1
        rows = range(self.rows if are_wanted else 0)
        return [Evaluate(Call(INT32, "prefetch", (a.vload((row, last)),))) for row in rows]

    def add(self, row: int, column: int, cell: PrimExpr, a: PrimExpr, w: PrimExpr) -> PrimExpr:
        shape = self._rows_from(row), self._bytes_from(column), _WHOLE
        return call_llvm_pure_intrin(self.kept, self.by.llvm, *shape, cell, a, w)

    def _load(
        self,
        buffer: Buffer,
        offset: PrimExpr,
        rows: PrimExpr,
        columns: PrimExpr,
        load: str = "tileloadd64",
    ) -> PrimExpr:
        place = buffer.access_ptr("r", offset=offset)
        name = f"llvm.x86.{load}.internal"
        return call_llvm_intrin(self.kept, name, rows, columns, place, _row_bytes(buffer))

    def _rows_from(self, row: int) -> PrimExpr:
        return e.const(min(self.by.rows, self.rows - row), "int16")

    def _bytes_from(self, column: int) -> PrimExpr:
        return e.const(4 * min(self.by.columns, self.columns - column), "int16")


_ROWS, _WHOLE = e.const(16, "int16"), e.const(64, "int16")  # of a tile: its rows, a row's bytes


def _row_bytes(buffer: Buffer) -> PrimExpr:
    return e.cast(INT64, buffer.strides[0]) * buffer.dtype.itemsize


@final
class _Pairs(_Block):
    """AArch64: a cell is a vector of two rows by two columns, ``[z00, z01, z10, z11]``. A load
    takes 16 bytes of a factor: the next steps of two rows, or of two columns."""

    def cell_of(self, by: MatrixProduct) -> DType:
        return DType.of(by.sum).with_lanes(4)

    def zero(self, row: int, column: int) -> PrimExpr:
        return e.const(0, self.kept)

    def load(self, z: Buffer, row: int, column: int) -> PrimExpr:
        upper, lower = (z.vload((row + i, column), self.kept.with_lanes(2)) for i in range(2))
        return _shuffle(upper, lower, (0, 2, 1, 3) if self.by.swapped else range(4))

    def store(self, z: Buffer, row: int, column: int, cell: PrimExpr) -> Stmt:
        orders = ((0, 2), (1, 3)) if self.by.swapped else ((0, 1), (2, 3))
        return seq(*(
            z.vstore((row + i, column), _shuffle(cell, cell, order))
            for i, order in enumerate(orders)
        ))  # fmt: skip

    def load_a(self, a: Buffer, row: int, k: Var) -> PrimExpr:
        steps = a.dtype.with_lanes(self.by.depth)
        bits = DType.of(f"int{a.dtype.bits}").with_lanes(self.by.depth)
        upper, lower = (
            reinterpret(bits, a.vload((row + i, k * self.by.depth), steps)) for i in range(2)
        )
        both = _shuffle(upper, lower, range(2 * self.by.depth))
        made: PrimExpr = reinterpret(a.dtype.with_lanes(2 * self.by.depth), both)
        return made

    def load_w(self, w: Buffer, column: int, k: Var) -> PrimExpr:
        return w.vload((k, column * self.by.group), w.dtype.with_lanes(2 * self.by.group))

    def add(self, row: int, column: int, cell: PrimExpr, a: PrimExpr, w: PrimExpr) -> PrimExpr:
        factors = (w, a) if self.by.swapped else (a, w)
        return call_llvm_pure_intrin(self.kept, self.by.llvm, cell, *factors)


def _shuffle(a: PrimExpr, b: PrimExpr, lanes: Sequence[int]) -> PrimExpr:
    chosen = (e.const(lane) for lane in lanes)
    return Call(a.dtype.with_lanes(len(lanes)), "vector_shuffle", (a, b, *chosen))
