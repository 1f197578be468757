"""What a tensor expression means, by numpy: exactly, and how far off a computer's result may be.

Every element is a pair: its value in a wider type, and a bound of the error of a result whose every
operation is rounded once, in any order of the additions of a sum (a running error analysis: Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1 and 3.3). Where all terms of a
sum are small whole numbers nothing is rounded, and the bound is 0. Integers are exact, and wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from minitvm.runtime.dtype import DType
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var

Array = np.ndarray[Any, Any]
_FUNCTION_UNITS = 8  # ULP: more than docs/numerics.md promises of any function
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
_LEAST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


@dataclass(frozen=True)
class Value:
    """Elements, and how far off what is computed may be; 0 of integers and conditions."""

    exact: Array
    error: Any = 0


class Meaning:
    """The elements of tensors, given those of placeholders and the symbolic sizes.

    `wide` is the type that floats are computed in: of more digits than any in the program.
    """

    def __init__(
        self,
        given: Mapping[Tensor, Array],
        sizes: Mapping[Var, int],
        wide: type[np.floating[Any]] = np.longdouble,
    ) -> None:
        self._wide = wide
        self._known = {t: Value(self._widened(t.dtype, values)) for t, values in given.items()}
        self._sizes = {var: np.asarray(size, "int64") for var, size in sizes.items()}

    def of(self, tensor: Tensor) -> Value:
        if tensor not in self._known:
            self._known[tensor] = self._computed(tensor)
        return self._known[tensor]

    def _widened(self, dtype: DType, values: Array) -> Array:
        return values.astype(self._wide if dtype.is_float else str(dtype))

    def size(self, extent: PrimExpr) -> int:
        """The value of an extent."""
        return int(self._at(extent, self._sizes).exact)

    def _computed(self, tensor: Tensor) -> Value:
        op = tensor.op
        assert isinstance(op, ComputeOp)
        axes = (*op.axis, *op.reduce_axis)
        env = dict(self._sizes)
        within = np.asarray(True)  # where all axes are in their ranges, of which some are uneven
        for i, axis in enumerate(axes):
            assert axis.dom is not None
            first, extent = (self._at(x, env).exact for x in (axis.dom.min, axis.dom.extent))
            last = first + np.maximum(extent, 0)
            least, most = (first.min(), last.max()) if first.size and last.size else (0, 0)
            shape = [1] * len(axes)
            shape[i] = most - least
            here = env[axis.var] = np.arange(least, most).reshape(shape)
            within = within & (here >= first) & (here < last)
        body = op.body[tensor.value_index]
        shape = [env[axis.var].size for axis in axes]
        found = self._reduced(body, env, shape, within) if isinstance(body, e.Reduce) else None
        found = found or self._at(body, env)
        kept = shape[: len(op.axis)]
        exact, error = (_dropped(each, len(axes), len(kept)) for each in (found.exact, found.error))
        return Value(*(np.broadcast_to(each, kept) for each in (exact, error)))

    def _reduced(
        self, node: e.Reduce, env: Mapping[Var, Array], shape: list[int], within: Array
    ) -> Value:
        dtype = node.source[0].dtype
        axes = tuple(range(len(shape) - len(node.axis), len(shape)))
        used = np.broadcast_to(self._at(node.condition, env).exact & within, shape)
        if not isinstance(node.combiner.result[0], e.Add):
            return self._folded(node, env, axes, used)
        terms = self._at(node.source[0], env)
        exact, error = (np.where(used, each, 0) for each in (terms.exact, terms.error))
        if not dtype.is_float:
            return Value(exact.sum(axes, dtype=str(dtype), keepdims=True))
        size, total = (each.sum(axes, keepdims=True) for each in (abs(exact) + error, error))
        count = math.prod(shape[axis] for axis in axes)
        # Not gamma_k, which needs k u < 1, but what it is a bound of: (1 + u)^k - 1.
        growth = math.expm1(count * math.log1p(2.0 ** -_DIGITS[str(dtype)]))
        whole = np.all(exact * 4 == np.rint(exact * 4), axis=axes, keepdims=True)
        fits = size * 4 <= 2.0 ** _DIGITS[str(dtype)]
        rounding = np.where(
            whole & fits, 0, growth * size + count * np.finfo(self._wide).eps * size
        )
        return Value(exact.sum(axes, keepdims=True), total + rounding)

    def _folded(
        self, node: e.Reduce, env: Mapping[Var, Array], axes: tuple[int, ...], used: Array
    ) -> Value:
        """What a combiner makes of its sources, one after the other. Of floats it may choose."""
        combiner = node.combiner

        def steps(values: Any) -> Array:
            spread = np.broadcast_to(values, used.shape)
            return spread.reshape(*used.shape[: axes[0]], math.prod(used.shape[axes[0] :]))

        sources = [self._at(each, env) for each in node.source]
        terms = [(steps(each.exact), steps(each.error)) for each in sources]
        start = node.init or combiner.identity
        kept = [np.broadcast_to(self._at(each, env).exact, used.shape[: axes[0]]) for each in start]
        errors = [np.zeros(used.shape[: axes[0]])] * len(kept)
        where = steps(used)
        for step in range(where.shape[-1]):
            at = {**env, **dict(zip(combiner.lhs, kept, strict=True))}
            at |= {v: t[..., step] for v, (t, _) in zip(combiner.rhs, terms, strict=True)}
            made = [self._at(each, at).exact for each in combiner.result]
            held = where[..., step]
            kept = [np.where(held, *pair) for pair in zip(made, kept, strict=True)]
            # The greatest of some values is as far off as one of them is, at most.
            errors = [
                np.where(held, np.maximum(error, old), old)
                for old, (_, each) in zip(errors, terms, strict=True)
                for error in [each[..., step]]
            ]
        i = node.value_index
        is_chosen = isinstance(combiner.result[i], e.Max | e.Min)
        assert is_chosen or not any(error.any() for error in errors)
        shape = [*used.shape[: axes[0]], *(1 for _ in axes)]
        return Value(kept[i].reshape(shape), errors[i].reshape(shape))

    def _at(self, node: PrimExpr, env: Mapping[Var, Array]) -> Value:
        match node:
            case Var():
                return Value(env[node])
            case e.IntImm() | e.FloatImm():
                return Value(self._widened(node.dtype, np.asarray(node.value)))
            case e.ProducerLoad():
                return self._loaded(node, env)
            case e.Cast():
                return self._cast(node, self._at(node.value, env))
            case e.Select():
                return _chosen(*(self._at(each, env) for each in
                                 (node.condition, node.true_value, node.false_value)))  # fmt: skip
            case e.Call(op="if_then_else"):
                return _chosen(*(self._at(each, env) for each in node.args))
            case e.Call():
                return _function(node, self._at(node.args[0], env))
            case e.Not():
                return Value(~self._at(node.a, env).exact)
            case e.BinaryOp():
                a, b = self._at(node.a, env), self._at(node.b, env)
                if node.a.dtype.is_float:
                    return _rounded(node.dtype, _FLOAT[type(node)](a, b))
                with np.errstate(all="ignore"):
                    made = _INTEGER[type(node)](a.exact, b.exact)
                is_index = not node.dtype.is_bool and made.dtype == np.int64
                return Value(made if is_index else made.astype(str(node.dtype)))
        raise NotImplementedError(type(node).__name__)

    def _cast(self, node: e.Cast, value: Value) -> Value:
        exact = self._widened(node.dtype, value.exact)
        if node.dtype.is_float:
            return _rounded(node.dtype, Value(exact, value.error))
        assert not node.value.dtype.is_float, "rounding to integers has no bound of its error"
        return Value(exact)

    def _loaded(self, node: e.ProducerLoad, env: Mapping[Var, Array]) -> Value:
        values = self.of(cast(Tensor, node.producer))
        if not values.exact.size:
            return Value(np.zeros(np.broadcast_shapes(*(self._at(i, env).exact.shape
                                                        for i in node.indices)),
                                  values.exact.dtype))  # fmt: skip
        # What lies outside stands in a branch that isn't taken.
        indices = tuple(
            np.clip(self._at(index, env).exact, 0, extent - 1)
            for index, extent in zip(node.indices, values.exact.shape, strict=True)
        )
        return Value(
            values.exact[indices], np.broadcast_to(values.error, values.exact.shape)[indices]
        )


def _dropped(values: Any, ndim: int, kept: int) -> Array:
    """Without the axes that were summed."""
    array = np.asarray(values)
    return array.reshape(array.shape[:kept]) if array.ndim == ndim else array


def _rounded(dtype: DType, value: Value) -> Value:
    """After one rounding to a type."""
    digits, least, wide = _DIGITS[str(dtype)], _LEAST[str(dtype)], value.exact.dtype.type
    _, exponent = np.frexp(value.exact)
    spacing = np.maximum(np.ldexp(wide(1), exponent - digits), wide(least))
    kept = (value.exact == np.rint(value.exact / spacing) * spacing) & (
        np.asarray(value.error) == 0
    )
    unit = 2.0**-digits + 2 * float(np.finfo(wide).eps)
    return Value(value.exact, value.error + np.where(
        kept, 0, unit * (abs(value.exact) + value.error) + least))  # fmt: skip


def _product(a: Value, b: Value) -> Value:
    error = abs(a.exact) * b.error + abs(b.exact) * a.error + a.error * b.error
    return Value(a.exact * b.exact, error)


def _quotient(a: Value, b: Value) -> Value:
    exact, least = a.exact / b.exact, abs(b.exact) - b.error
    return Value(exact, (a.error + abs(exact) * b.error) / least)


_FLOAT: dict[type, Callable[[Value, Value], Value]] = {
    e.Add: lambda a, b: Value(a.exact + b.exact, a.error + b.error),
    e.Sub: lambda a, b: Value(a.exact - b.exact, a.error + b.error),
    e.Mul: _product,
    e.Div: _quotient,
    e.Max: lambda a, b: Value(np.maximum(a.exact, b.exact), np.maximum(a.error, b.error)),
    e.Min: lambda a, b: Value(np.minimum(a.exact, b.exact), np.maximum(a.error, b.error)),
}
_INTEGER: dict[type, Callable[[Array, Array], Array]] = {
    e.Add: np.add, e.Sub: np.subtract, e.Mul: np.multiply, e.FloorDiv: np.floor_divide,
    e.FloorMod: np.mod, e.Max: np.maximum, e.Min: np.minimum, e.EQ: np.equal, e.NE: np.not_equal,
    e.LT: np.less, e.LE: np.less_equal, e.GT: np.greater, e.GE: np.greater_equal,
    e.And: np.logical_and, e.Or: np.logical_or,
}  # fmt: skip
# Each with the most by which an error of its argument is multiplied, near a value.
_FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Value, Array], Any]]] = {
    "exp": (np.exp, lambda x, y: y * np.exp(x.error)),
    "tanh": (np.tanh, lambda x, y: 1),
    "erf": (np.vectorize(math.erf, ["float64"]), lambda x, y: 2 / math.sqrt(math.pi)),
}


def _function(node: e.Call, x: Value) -> Value:
    function, slope = _FUNCTIONS[node.op]
    exact = np.asarray(function(x.exact), x.exact.dtype)
    unit = _FUNCTION_UNITS * 2.0 ** (1 - _DIGITS[str(node.dtype)])
    return Value(exact, slope(x, exact) * x.error + unit * abs(exact))


def _chosen(condition: Value, a: Value, b: Value) -> Value:
    exact, error = (
        np.where(condition.exact, *each) for each in ((a.exact, b.exact), (a.error, b.error))
    )
    return Value(exact, error)
