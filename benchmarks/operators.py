"""Operators of examples/operators, small and large, forward and backward, beside eager peers.

The peer is torch's own operator or, where torch has none, the example's `by_numpy`. Both are
called with the same arrays and allocate their results.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np

from benchmarks import peers
from benchmarks.measure import OURS, Row, Settings, calls, on_threads, paced

_BUDGET = 1.0  # seconds of measuring a row


@final
@dataclass(frozen=True, slots=True)
class Case:
    """An operator at one size: the arrays for the example's function `name`, and the call's
    options.

    `torch` is the peer, of torch and the same tensors. `trained` are the positions of the inputs
    that have a gradient; `output` is the result's shape.
    """

    name: str
    size: str
    arrays: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    torch: Callable[..., Any] | None = None
    trained: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


def rows(settings: Settings) -> Iterator[Row]:
    """Each operator whose name contains ``settings.only``, on one thread; small ones in a try."""
    rng = np.random.default_rng(0)
    for make, sizes in _OPERATORS.items():
        for size in sizes if settings.least else sizes[:1]:
            case = make(rng, *size)
            if settings.only in case.name:
                yield _forward(case, settings)
                if case.trained:
                    yield _backward(case, settings)


# -- Operators --


def _embedding_bag(rng: Any, bags: int, each: int, width: int, table: int) -> Case:
    arrays = (
        rng.standard_normal((table, width), dtype=np.float32),
        rng.integers(0, table, (bags, each)),
        rng.random((bags, each), dtype=np.float32),
    )

    def eager(torch: Any, table: Any, bags: Any, weights: Any) -> Any:
        bag = torch.nn.functional.embedding_bag
        return bag(bags, table, mode="sum", per_sample_weights=weights)

    size = f"{bags} bags of {each} x {width} of {table}"
    return Case("embedding_bag", size, arrays, {}, eager, (0, 2), (bags, width))


def _depthwise_convolution(rng: Any, n: int, c: int, h: int) -> Case:
    shape = (n, c, h, h)
    arrays = [rng.standard_normal(each, dtype=np.float32) for each in (shape, (c, 3, 3))]

    def eager(torch: Any, x: Any, kernel: Any) -> Any:
        return torch.nn.functional.conv2d(x, kernel[:, None], padding=1, groups=c)

    options = {"stride": 1, "padding": 1}
    size = f"3 x 3, {n} x {c} x {h} x {h}"
    return Case("depthwise_convolution", size, arrays, options, eager, (0, 1), shape)


def _heat(rng: Any, m: int, steps: int) -> Case:
    u = rng.random((m, m), dtype=np.float32)
    return Case("heat", f"{steps} steps on {m} x {m}", (u, 0.2), {"steps": steps})


def _kmeans_step(rng: Any, n: int, d: int, k: int) -> Case:
    x, centres = (rng.random(shape, dtype=np.float32) for shape in ((n, d), (k, d)))
    return Case("kmeans_step", f"{n} points of {d}, {k} centres", (x, centres))


def _edit_distance(rng: Any, n: int) -> Case:
    return Case("edit_distance", f"{n} letters", rng.integers(0, 4, (2, n), dtype=np.uint8))


def _sparse_product(rng: Any, m: int, n: int, p: int) -> Case:
    each = n // 50
    starts = np.arange(m + 1, dtype=np.int32) * each
    columns = np.sort(rng.integers(0, n // each, (m, each)) + np.arange(each) * (n // each))
    values = rng.standard_normal(m * each, dtype=np.float32)
    dense = rng.standard_normal((n, p), dtype=np.float32)

    def eager(torch: Any, starts: Any, columns: Any, values: Any, dense: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's: CSR is in beta
            return torch.sparse_csr_tensor(starts, columns, values, (m, n)) @ dense

    arrays = (starts, columns.astype(np.int32).ravel(), values, dense)
    return Case("sparse_product", f"{m} x {n}, 2 %, by {p}", arrays, {}, eager)


_OPERATORS: dict[Callable[..., Case], Sequence[tuple[int, ...]]] = {
    _embedding_bag: ((32, 8, 32, 500), (4096, 32, 128, 50000)),
    _depthwise_convolution: ((1, 8, 14), (8, 64, 56)),
    _heat: ((64, 1), (1024, 4)),
    _kmeans_step: ((256, 8, 8), (20000, 64, 64)),
    _edit_distance: ((64,), (2000,)),
    _sparse_product: ((100, 100, 8), (5000, 4000, 128)),
}
_FILES = {"heat": "heat_equation"}


# -- Rows --


def _module(case: Case) -> Any:
    return importlib.import_module(f"examples.operators.{_FILES.get(case.name, case.name)}")


def _tensors(case: Case, arrays: Sequence[Any]) -> list[Any]:
    """The arrays, of torch where torch is the peer."""
    torch = peers.peer("torch")
    if case.torch is None or torch is None:
        return list(arrays)
    return [torch.from_numpy(each) for each in arrays]


def _forward(case: Case, settings: Settings) -> Row:
    module, arrays = _module(case), _tensors(case, case.arrays)
    operator = getattr(module, case.name)
    found = {OURS: partial(operator, *arrays, **case.options)}
    if case.torch is None:
        found["numpy"] = partial(module.by_numpy, *arrays, *case.options.values())
    elif (torch := peers.peer("torch")) is not None:
        found["torch"] = partial(case.torch, torch, *arrays)
    operator.clear()  # so that extents are constants, at each size
    return _row(case, "forward", found, settings)


def _backward(case: Case, settings: Settings) -> Row:
    """The adjoints alone: torch records the forward run once."""
    operator = _module(case).backward
    adjoint = np.random.default_rng(1).standard_normal(case.output, dtype=np.float32)
    *arrays, head = _tensors(case, [*case.arrays, adjoint])
    found = {OURS: partial(operator, *arrays, head, **case.options)}
    if case.torch is not None and (torch := peers.peer("torch")) is not None:
        leaves = [each.detach().clone() for each in arrays]
        trained = [leaves[place].requires_grad_() for place in case.trained]
        output = case.torch(torch, *leaves)
        found["torch"] = partial(torch.autograd.grad, output, trained, head, retain_graph=True)
    operator.clear()
    return _row(case, "backward", found, settings)


def _row(
    case: Case, direction: str, contenders: Mapping[str, Callable[[], Any]], settings: Settings
) -> Row:
    """A row; a result that isn't the peer's is an error."""
    ours, *others = (contender() for contender in contenders.values())
    for other in others:
        for found, wanted in zip(_all(ours), _all(other), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)
    timers = {name: on_threads(1, calls(each)) for name, each in contenders.items()}
    missing = peers.missing(["torch"] if case.torch is not None else ["numpy"])
    name = f"{case.name} {direction}, {case.size}"
    return Row(name, "one call", paced(timers, settings, _BUDGET), missing)


def _all(results: Any) -> list[Any]:
    """One result or several, as arrays of numpy."""
    each = results if isinstance(results, tuple | list) else [results]
    return [np.asarray(array) for array in each]
