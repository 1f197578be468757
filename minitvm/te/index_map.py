"""Classic ``tvm.tir.IndexMap``: maps of indices, the shapes that they give, and their inverses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.layout import Layout, indices_of, layout_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Range, Var, as_expr, const, const_int, described
from minitvm.tir.functor import free_vars, substitute
from minitvm.tir.op import all as all_of
from minitvm.tir.structural_equal import structural_equal

_Parameter = inspect.Parameter
_NEVER = const(False, "bool")


@final
class IndexMap:
    """A map from indices to indices, as from the indices of a tensor to the indices in its layout.

    :meth:`from_func` makes a map from a function.

    Parameters
    ----------
    initial_indices
        Variables, integers.
    final_indices
        Expressions of these.
    inverse_index_map
        The inverse, where the caller knows it.

    >>> packed = IndexMap.from_func(lambda i, j: [i // 4, j, i % 4])
    >>> packed
    index_map(lambda i, j: (i // 4, j, i % 4))
    >>> packed.map_shape([10, 6])
    [3, 6, 4]
    >>> packed.inverse([8, 6])
    index_map(lambda ax0, ax1, ax2: (ax0 * 4 + ax2, ax1))
    """

    __slots__ = ("final_indices", "initial_indices", "inverse_index_map")

    def __init__(
        self,
        initial_indices: Sequence[Any],
        final_indices: Sequence[Any],
        inverse_index_map: IndexMap | None = None,
    ) -> None:
        variables = tuple(as_expr(each) for each in initial_indices)
        for each in variables:
            if not isinstance(each, Var) or not each.dtype.is_integral:
                raise CompileError(f"IndexMap: expected integer variables, got {described(each)}")
        if len(set(variables)) != len(variables):
            raise CompileError("IndexMap: expected variables that differ, got one twice")
        with e.naming("IndexMap: expected expressions of indices"):
            indices = tuple(e.as_index(each) for each in final_indices)
        _check_inverse(inverse_index_map, len(indices), len(variables))
        self.initial_indices: tuple[Var, ...] = variables  # type: ignore[assignment]  # checked
        self.final_indices = indices
        self.inverse_index_map = inverse_index_map

    @staticmethod
    def from_func(
        mapping_function: Callable[..., Any],
        ndim: int | None = None,
        inverse_index_map: Callable[..., Any] | IndexMap | None = None,
        *,
        index_dtype: str = "int32",
    ) -> IndexMap:
        """The map of a Python function that takes indices and returns a list of indices, or one
        index.

        Parameters
        ----------
        mapping_function
            Takes the indices by position. Parameters behind ``*i`` get the last ones:
            ``lambda *i, n: [*i, n // 4, n % 4]``.
        ndim
            The number of indices, where the function has ``*i``.
        inverse_index_map
            The inverse, as a map or as a function like `mapping_function`, where the caller knows
            it.
        index_dtype
            The dtype of the variables.

        Raises
        ------
        CompileError
            When the function takes another number of indices, or returns something else.
        """
        names = _names_of(mapping_function, ndim)
        dtype = DType.of(index_dtype)
        variables = [Var(name, dtype) for name in names]
        indices = indices_of("IndexMap", mapping_function, variables)
        inverse = inverse_index_map
        if inverse is not None and not isinstance(inverse, IndexMap):
            inverse = IndexMap.from_func(inverse, len(indices), index_dtype=index_dtype)
        return IndexMap(variables, indices, inverse)

    def map_indices(self, indices: Sequence[Any]) -> list[PrimExpr]:
        """The new indices for some old ones.

        >>> i = Var("i")
        >>> IndexMap.from_func(lambda i: [i // 4, i % 4]).map_indices([i * 4 + 1])
        [i, 1]
        """
        return [Analyzer().simplify(each) for each in self._mapped("map_indices", indices)]

    def map_range(self, ranges: Sequence[Any]) -> list[Range]:
        """The smallest ranges of the new indices while the old indices run over `ranges`.

        Raises
        ------
        CompileError
            When no bounds of the new indices are known.
        """
        domain = self._domain("map_range", ranges)
        analyzer = _bound_to(domain)
        made = []
        for index in self.final_indices:
            found = analyzer.int_set(index, domain)
            if found.min_value is None or found.max_value is None:
                raise CompileError(
                    f"IndexMap.map_range: expected an index with bounds, found none for {index}"
                )
            extent = analyzer.simplify(found.max_value - found.min_value + 1)
            made.append(Range.from_min_extent(found.min_value, extent))
        return made

    def map_shape(self, shape: Sequence[Any]) -> list[PrimExpr]:
        """The shape of a tensor in the new layout: the extents of :meth:`map_range`."""
        return [each.extent for each in self.map_range(shape)]

    def inverse(self, shape: Sequence[Any]) -> IndexMap:
        """The map back, for a tensor of a shape (extents, or ranges that begin at 0).

        Raises
        ------
        CompileError
            When there is no inverse: two old places have the same new place, or a new place has no
            old one (see :meth:`non_surjective_inverse`), or the indices aren't sums of quotients
            and remainders by constants.
        """
        made, padding = self.non_surjective_inverse(shape)
        if const_int(padding) != 0:
            raise CompileError(
                f"IndexMap.inverse: expected a map that fills its new shape, found padding where "
                f"{padding}: use non_surjective_inverse"
            )
        return made

    def non_surjective_inverse(self, shape: Sequence[Any]) -> tuple[IndexMap, PrimExpr]:
        """The map back where the new shape has room for more elements; and the condition on the new
        indices under which their place is padding.

        >>> split = IndexMap.from_func(lambda i: [i // 4, i % 4])
        >>> split.non_surjective_inverse([6])
        (index_map(lambda ax0, ax1: (ax0 * 4 + ax1,)), ax0 * 4 + ax1 >= 6)
        """
        known = self.inverse_index_map
        if known is not None:
            self._domain("inverse", shape)
            return known, _NEVER
        layout = self._layout(shape)
        new = [axis.var for axis in layout.axis]
        analyzer = _bound_to({axis.var: axis.dom for axis in layout.axis})
        back = [analyzer.simplify(each) for each in layout.backward]
        padding = analyzer.simplify(e.Not(all_of(*layout.inside))) if layout.inside else _NEVER
        return IndexMap(new, back), padding

    def is_equivalent_to(self, other_map: IndexMap) -> bool:
        """Whether two maps are the same for all indices, as far as can be proved."""
        if not isinstance(other_map, IndexMap):
            raise CompileError(
                f"IndexMap.is_equivalent_to: expected an IndexMap, got {described(other_map)}"
            )
        sizes = len(self.initial_indices), len(self.final_indices)
        if sizes != (len(other_map.initial_indices), len(other_map.final_indices)):
            return False
        others = other_map._mapped("is_equivalent_to", self.initial_indices)
        analyzer = Analyzer()
        return all(
            structural_equal(analyzer.simplify(a), analyzer.simplify(b))
            or analyzer.can_prove_equal(a, b)
            for a, b in zip(self.final_indices, others, strict=True)
        )

    def __repr__(self) -> str:
        names = ", ".join(var.name for var in self.initial_indices)
        indices = ", ".join(map(str, self.final_indices))
        comma = "," if len(self.final_indices) == 1 else ""
        return f"index_map(lambda {names}: ({indices}{comma}))"

    def _mapped(self, what: str, indices: Sequence[Any]) -> list[PrimExpr]:
        given = list(indices)
        if len(given) != len(self.initial_indices):
            raise CompileError(
                f"IndexMap.{what}: expected {len(self.initial_indices)} indices, got {len(given)}"
            )
        with e.naming(f"IndexMap.{what}: expected indices"):
            values = [e.as_index(each) for each in given]
        places = dict(zip(self.initial_indices, values, strict=True))
        return [substitute(each, places) for each in self.final_indices]

    def _domain(self, what: str, ranges: Sequence[Any]) -> dict[Var, Range]:
        """The ranges of the old indices, given as extents or as ranges."""
        if isinstance(ranges, str) or not isinstance(ranges, Sequence):
            raise CompileError(f"IndexMap.{what}: expected a shape, got {described(ranges)}")
        if len(ranges) != len(self.initial_indices):
            raise CompileError(
                f"IndexMap.{what}: expected {len(self.initial_indices)} extents, got {len(ranges)}"
            )
        with e.naming(f"IndexMap.{what}: expected extents"):
            found = [
                each if isinstance(each, Range) else Range.from_min_extent(0, e.as_index(each))
                for each in ranges
            ]
        return dict(zip(self.initial_indices, found, strict=True))

    def _layout(self, shape: Sequence[Any]) -> Layout:
        axes = []
        for var, domain in self._domain("inverse", shape).items():
            if const_int(domain.min) != 0:
                raise CompileError(
                    f"IndexMap.inverse: expected ranges that begin at 0, got {domain} of {var.name}"
                )
            axes.append(IterVar(domain, var))
        used = {var for each in self.final_indices for var in free_vars(each)}
        if strange := used.difference(self.initial_indices):
            raise CompileError(
                f"IndexMap.inverse: expected indices of {self.initial_indices} alone, found "
                f"{sorted(var.name for var in strange)}"
            )
        return layout_of("IndexMap.inverse", axes, lambda *old: self._mapped("inverse", old))


def _bound_to(domain: Mapping[Var, Range | None]) -> Analyzer:
    analyzer = Analyzer()
    for var, values in domain.items():
        if values is not None and const_int(values.extent) != 0:  # an empty range gives no bounds
            analyzer.bind(var, values)
    return analyzer


def _check_inverse(inverse: object, inputs: int, outputs: int) -> None:
    if inverse is None:
        return
    if not isinstance(inverse, IndexMap):
        raise CompileError(f"IndexMap: expected an IndexMap as inverse, got {described(inverse)}")
    sizes = len(inverse.initial_indices), len(inverse.final_indices)
    if sizes != (inputs, outputs):
        raise CompileError(
            f"IndexMap: expected an inverse from {inputs} indices to {outputs}, got one from "
            f"{sizes[0]} to {sizes[1]}"
        )


def _names_of(mapping: Callable[..., Any], ndim: int | None) -> list[str]:
    """The names of the indices that a function takes."""
    try:
        parameters = list(inspect.signature(mapping).parameters.values())
    except (TypeError, ValueError):
        raise CompileError(
            f"IndexMap: expected a function of indices, got {described(mapping)}"
        ) from None
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = next((i for i, p in enumerate(parameters) if p.kind is _Parameter.VAR_POSITIONAL), None)
    if rest is None:
        if ndim is not None and ndim != len(named):
            raise CompileError(
                f"IndexMap: expected a function of {ndim} indices, got one of {len(named)}"
            )
        return named
    name = parameters[rest].name
    if ndim is None or ndim < len(named):
        found = "none" if ndim is None else ndim
        raise CompileError(
            f"IndexMap: expected ndim, the number of indices that *{name} and the others take, of "
            f"at least {len(named)}, got {found}"
        )
    more = [f"{name}_{i}" for i in range(ndim - len(named))]
    return [*named[:rest], *more, *named[rest:]]
