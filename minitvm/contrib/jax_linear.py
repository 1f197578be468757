"""Linear maps of JAX, each with its transpose, from which JAX builds derivatives.

JAX differentiates a function by the rule of its tangents, and finds gradients by transposing the
computation of that rule. A custom call can't be transposed, so both maps are given::

    push:   residuals, tangents    ->  the values of the map
    pull:   residuals, gradients   ->  the values of the transposed map
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from minitvm.contrib.imported import imported
from minitvm.runtime.record import record


class LinearMap(Protocol):
    """A linear map for each value of `residuals`, with its transpose. Maps that compute the same
    compare equal, so that JAX finds the code that it has compiled."""

    def push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        """The values of the map."""

    def pull(self, residuals: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        """The values of the transposed map."""


def linear_call(
    linear: LinearMap, residuals: Sequence[Any], tangents: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """The values of a linear map, of the shapes and dtypes of `like`."""
    made: list[Any] = _primitive().bind(
        *residuals,
        *tangents,
        linear=linear,
        count=len(residuals),
        outputs=tuple((tuple(each.shape), each.dtype) for each in like),
    )
    return made


@record()
class _Batch:
    """A linear map of each element of a batch. An argument whose axis isn't None has the batch
    dimension at that axis."""

    linear: LinearMap
    residual_axes: tuple[int | None, ...]
    tangent_axes: tuple[int | None, ...]

    def push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        jax = imported("jax", "jax_op")
        axes = (list(self.residual_axes), list(self.tangent_axes))
        made: Sequence[Any] = jax.vmap(lambda r, t: list(self.linear.push(r, t)), axes)(
            list(residuals), list(tangents)
        )
        return made

    def pull(self, residuals: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        jax = imported("jax", "jax_op")
        axes = (list(self.residual_axes), [0] * len(gradients))
        made = jax.vmap(lambda r, g: list(self.linear.pull(r, g)), axes)(
            list(residuals), list(gradients)
        )
        return [
            each.sum(0) if axis is None else jax.numpy.moveaxis(each, 0, axis)
            for each, axis in zip(made, self.tangent_axes, strict=True)
        ]


@cache
def _primitive() -> Any:
    jax = imported("jax", "jax_op")
    extend = imported("jax.extend.core", "jax_op")
    ad, batching, mlir = (
        imported(f"jax.interpreters.{name}", "jax_op") for name in ("ad", "batching", "mlir")
    )

    def run(*args: Any, linear: LinearMap, count: int, outputs: object) -> Sequence[Any]:
        return list(linear.push(args[:count], args[count:]))

    def shapes(*args: Any, linear: LinearMap, count: int, outputs: Any) -> Sequence[Any]:
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in outputs]

    def differentiate(primals: Any, tangents: Any, **given: Any) -> Any:
        moving = [ad.instantiate_zeros(each) for each in tangents]
        return jax.jvp(lambda *args: run(*args, **given), tuple(primals), tuple(moving))

    def transpose(
        gradients: Sequence[Any], *args: Any, linear: LinearMap, count: int, outputs: Any
    ) -> Sequence[Any]:
        given = [ad.instantiate_zeros(each) for each in gradients]
        found = linear.pull(args[:count], given)
        wanted = map(ad.is_undefined_primal, args[count:])
        pulled = (
            each if is_wanted else None for each, is_wanted in zip(found, wanted, strict=True)
        )
        return [*([None] * count), *pulled]

    def batch(
        args: Sequence[Any], axes: Sequence[Any], *, linear: LinearMap, count: int, outputs: Any
    ) -> tuple[Sequence[Any], Sequence[int]]:
        size = next(
            arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None
        )
        made = primitive.bind(
            *args,
            linear=_Batch(linear, tuple(axes[:count]), tuple(axes[count:])),
            count=count,
            outputs=tuple(((size, *shape), dtype) for shape, dtype in outputs),
        )
        return made, [0] * len(made)

    primitive = extend.Primitive("minitvm_linear")
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = differentiate
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    return primitive
