"""Loop IR written as Python: loops are ``with`` blocks, stores are assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, final

from minitvm.runtime.dtype import DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import op
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import (
    Buffer,
    BufferLoad,
    BufferRef,
    PrimExpr,
    Var,
    as_condition,
    as_expr,
    as_index,
    as_name,
    as_size,
    as_tuple,
    cast,
    const_int,
    described,
    naming,
    promote,
    valued,
)
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
    seq,
)

_KINDS = {
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorize": ForKind.VECTORIZED,
    "vectorized": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
    "unrolled": ForKind.UNROLLED,
}
# A statement, or the function that makes one around the rest of its block.
_Item = Stmt | Callable[[Stmt], Stmt]


@final
@record(eq=False)
class BufferVar:
    """A buffer as the builder shows it: ``p[i]`` reads and ``p[i] = value`` writes.

    There is one index for each dimension, or a single index, which counts elements in row-major
    order.
    """

    buffer: Buffer
    _emit: Callable[[Stmt], None] = field(repr=False)

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def asobject(self) -> PrimExpr:
        """The whole buffer, as an argument of a call."""
        return BufferRef(self.buffer)

    def __getitem__(self, index: Any) -> PrimExpr:
        return BufferLoad(self.buffer, self._indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        indices = self._indices(index)
        lanes = max((i.dtype.lanes for i in indices), default=1)
        wanted = self.dtype.with_lanes(self.dtype.lanes * lanes)
        with naming(self.buffer.name):
            made = valued(wanted, value)
        self._emit(BufferStore(self.buffer, made, indices))

    def _indices(self, index: Any) -> tuple[PrimExpr, ...]:
        given = index if isinstance(index, tuple) else (index,)
        with naming(self.buffer.name):
            made = tuple(map(as_index, given))
        if len(made) == 1 and self.buffer.ndim != 1:
            return _unravelled(made[0], self.buffer.shape)
        if len(made) != self.buffer.ndim:
            raise CompileError(
                f"{self.buffer.name}: expected {self.buffer.ndim} indices, or one, got {len(made)}"
            )
        return made


def _unravelled(index: PrimExpr, shape: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    """The indices of the element of a row-major position."""
    made: list[PrimExpr] = []
    for extent in reversed(shape[1:]):
        made.append(op.indexmod(index, extent))
        index = op.indexdiv(index, extent)
    return (index, *reversed(made)) if shape else ()


class IRBuilder:
    """Collects the statements of a program, block by block. Made by :func:`create`.

    >>> ib = create()
    >>> buffer = decl_buffer((8,), "float32", name="A")
    >>> A = ib.buffer_ptr(buffer)
    >>> with ib.for_range(0, 8, name="i") as i:
    ...     A[i] = A[i] + 1.0
    >>> type(ib.get()).__name__
    'For'
    """

    def __init__(self) -> None:
        self._blocks: list[list[_Item]] = [[]]

    def emit(self, stmt: Any) -> None:
        """Adds a statement, a call to evaluate, or a function that makes a statement from the rest
        of this block."""
        if isinstance(stmt, PrimExpr):
            stmt = Evaluate(stmt)
        if not isinstance(stmt, Stmt) and not callable(stmt):
            raise CompileError(
                f"ir_builder: emit: expected a statement or a call, got {type(stmt).__name__}"
            )
        self._blocks[-1].append(stmt)

    def get(self) -> Stmt:
        """The whole program; the builder is empty afterwards."""
        if len(self._blocks) > 1:
            raise CompileError("ir_builder: expected every scope to be closed before get()")
        made = _joined(self._blocks[0])
        self._blocks = [[]]
        return made

    @contextmanager
    def _block(self, make: Callable[[Stmt], Stmt]) -> Iterator[None]:
        """A block, from which `make` makes the emitted statement."""
        self._blocks.append([])
        try:
            yield
        finally:
            items = self._blocks.pop()
        self.emit(make(_joined(items)))

    @contextmanager
    def for_range(
        self,
        begin: Any,
        end: Any,
        name: str = "i",
        dtype: DTypeLike | None = None,
        kind: str = "serial",
    ) -> Iterator[Var]:
        """A loop from `begin` to `end`, without `end`; gives its variable.

        Parameters
        ----------
        begin, end : int or expression
            The range.
        name : str
            The variable's.
        dtype : dtype
            The variable's; the dtype of `begin` and `end` unless given.
        kind : str
            ``"serial"``, ``"parallel"``, ``"vectorize"`` or ``"unroll"``.

        Raises
        ------
        CompileError
            When there is no such kind.
        """
        if not isinstance(kind, str) or kind not in _KINDS:
            raise CompileError(
                f"for_range: expected kind among {', '.join(_KINDS)}, got {described(kind)}"
            )
        with naming("for_range"):
            as_name(name)
            low, high = promote(as_size(begin), as_size(end))
            if dtype is not None:
                low, high = cast(dtype, low), cast(dtype, high)
                as_size(low)
        extent = high if const_int(low) == 0 else high - low
        loop_var = Var(name, low.dtype)
        with self._block(lambda body: For(loop_var, low, extent, _KINDS[kind], body)):
            yield loop_var

    @contextmanager
    def while_loop(self, condition: Any) -> Iterator[None]:
        """A loop that runs while a condition holds."""
        with naming("while_loop"):
            held = as_condition(condition)
        with self._block(lambda body: While(held, body)):
            yield

    @contextmanager
    def if_scope(self, cond: Any) -> Iterator[None]:
        """A block that runs if a condition holds."""
        with naming("if_scope"):
            held = as_condition(cond)
        with self._block(lambda body: IfThenElse(held, body)):
            yield

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """A block that runs if the condition of the ``if_scope`` right before did not hold."""
        before = self._blocks[-1][-1] if self._blocks[-1] else None
        if not isinstance(before, IfThenElse) or before.else_case is not None:
            raise CompileError("else_scope: expected an if_scope right before it, found none")
        self._blocks[-1].pop()
        with self._block(lambda body: IfThenElse(before.condition, before.then_case, body)):
            yield

    def let(self, var_name: str, value: Any) -> Var:
        """A variable that stands for a value in the rest of this block."""
        with naming("let"):
            made = as_expr(value)
            var = Var(as_name(var_name), made.dtype)
        self.emit(lambda body: LetStmt(var, made, body))
        return var

    def allocate(
        self, dtype: DTypeLike, shape: Any, name: str = "buf", scope: str = ""
    ) -> BufferVar:
        """A buffer, of undefined contents, for the rest of this block.

        Parameters
        ----------
        dtype : dtype
            The dtype of its elements.
        shape : int or expression, or a tuple of them
            Its dimensions, in elements.
        """
        buffer = decl_buffer(shape, dtype, name, scope=scope)
        self.emit(lambda body: Allocate(buffer, body))
        return self.buffer_ptr(buffer)

    def buffer_ptr(self, buf: Buffer, shape: Sequence[Any] | None = None) -> BufferVar:
        """A buffer, to be read and written in this program.

        `shape` is there for classic programs, and must have the buffer's own rank.
        """
        if not isinstance(buf, Buffer):
            raise CompileError(f"buffer_ptr: expected a buffer, got {type(buf).__name__}")
        rank = buf.ndim if shape is None else len(as_tuple(shape))
        if rank != buf.ndim:
            raise CompileError(
                f"{buf.name}: expected a shape of rank {buf.ndim}, got one of rank {rank}"
            )
        return BufferVar(buf, self.emit)

    def scope_attr(self, node: Any, attr_key: str, value: Any) -> None:
        """Annotates the rest of this block."""
        with naming("scope_attr"):
            made = as_expr(value)
            as_name(attr_key)
        self.emit(lambda body: AttrStmt(node, attr_key, made, body))

    def likely(self, expr: Any) -> Any:
        """A condition marked as one that mostly holds."""
        return op.likely(expr)


def _joined(items: Sequence[_Item]) -> Stmt:
    """The statements of a block. A statement that encloses the rest of the block is put around
    it."""
    made = seq()
    for item in reversed(items):
        made = seq(item, made) if isinstance(item, Stmt) else item(made)
    return made


def create() -> IRBuilder:
    """A builder of an empty program."""
    return IRBuilder()
