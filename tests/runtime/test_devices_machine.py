"""Arrays on devices against numpy: any operations in any order, with streams and faults."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

import minitvm as tvm
from minitvm import te
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.ext_dev import ExtDev, Usage
from minitvm.runtime.device_api.registry import register_device, unregister_device
from minitvm.runtime.device_api.streams import Stream
from minitvm.runtime.errors import DeviceError
from minitvm.runtime.ndarray import NDArray
from tests.runtime.device_faults import check, outcome

SHAPE = (6, 4)
# Parts of an array, each of the same shape in every array.
PARTS: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: x,
    "rows": lambda x: x[1:4],
    "every other row": lambda x: x[::2],
    "columns": lambda x: x[:, 1:3],
    "every other column": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1],
    "none": lambda x: x[2:2],
}
_NAME, _NUMBER = "machine", 301


@functools.cache
def minus() -> Any:
    x = te.placeholder(SHAPE, "int32", name="X")
    y = te.compute(SHAPE, lambda i, j: -x[i, j], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], target=_NAME, name="minus")


class Known:
    """An array, what it holds, and the streams that still use it."""

    def __init__(self, array: NDArray, values: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.values = values
        self.streams: list[Stream] = []

    def settle(self) -> None:
        """Wait for the streams, as whoever reads memory of the CPU has to."""
        for each in self.streams:
            each.synchronize()
        self.streams = []

    def follow(self, stream: Stream) -> None:
        """Have a stream wait for the others, and use the array."""
        for each in self.streams:
            if each is not stream:
                stream.wait(each.record())
        self.streams = [stream]


class Arrays(RuleBasedStateMachine):
    """Three arrays at least, on the CPU and on two devices."""

    arrays = Bundle("arrays")
    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.ext = ExtDev(capacity=1 << 24)
        register_device(_NAME, self.ext, device_type=_NUMBER)
        self.devices = [tvm.cpu(0), Device(_NUMBER, 0), Device(_NUMBER, 1)]
        self.alive: list[Known] = []
        self.lanes: list[Stream] = []
        self.draw = np.random.default_rng(0)

    def values(self) -> np.ndarray[Any, Any]:
        return self.draw.integers(0, 1 << 30, SHAPE, np.int32)

    def known(self, array: NDArray, values: np.ndarray[Any, Any]) -> Known:
        self.alive.append(Known(array, values))
        return self.alive[-1]

    # ---- Arrays ----------------------------------------------------------------------------------

    @rule(target=arrays, where=st.integers(0, 2))
    def make(self, where: int) -> Known:
        values = self.values()
        return self.known(tvm.nd.array(values, self.devices[where]), values.copy())

    @rule(target=arrays, where=st.integers(0, 2))
    def make_empty(self, where: int) -> Known:
        array, values = tvm.nd.empty(SHAPE, "int32", self.devices[where]), self.values()
        array.copyfrom(values)
        return self.known(array, values)

    @rule(target=arrays, source=arrays, where=st.integers(0, 2))
    def make_copy(self, source: Known, where: int) -> Known:
        source.settle()
        return self.known(source.array.copyto(self.devices[where]), source.values.copy())

    @rule(where=st.integers(0, 2))
    def make_nothing(self, where: int) -> None:
        with self.ext.record() as calls:
            nothing = tvm.nd.empty((0, 4), "int32", self.devices[where])
            nothing.copyto(self.devices[1]).copyto(self.devices[2]).copyto(nothing)
            assert nothing.numpy().shape == (0, 4)
        assert not [each for each in calls if "allocate" in each or "copy" in each]

    @rule(array=consumes(arrays))
    def drop(self, array: Known) -> None:
        """Perhaps while streams use it; only memory of the CPU is then the streams' to keep."""
        self.alive.remove(array)
        del array.array, array.streams

    @rule(target=arrays, array=arrays)
    def look(self, array: Known) -> Any:
        array.settle()
        np.testing.assert_array_equal(array.array.numpy(), array.values)
        return multiple()

    # ---- Copies ----------------------------------------------------------------------------------

    @rule(source=arrays, into=arrays, part=st.sampled_from(sorted(PARTS)))
    def copy(self, source: Known, into: Known, part: str) -> None:
        for each in (source, into):
            each.settle()
        take = PARTS[part]
        take(source.array).copyto(take(into.array))
        take(into.values)[...] = take(source.values)

    @rule(source=arrays, into=arrays)
    def copy_transposed(self, source: Known, into: Known) -> None:
        if source is into:
            return
        for each in (source, into):
            each.settle()
        source.array[:4].T.copyto(into.array[:4])
        into.values[:4] = source.values[:4].T

    @rule(into=arrays, part=st.sampled_from(sorted(PARTS)))
    def assign(self, into: Known, part: str) -> None:
        into.settle()
        values = PARTS[part](self.values())
        PARTS[part](into.array).copyfrom(values)
        PARTS[part](into.values)[...] = values

    @rule(
        source=arrays,
        into=arrays,
        stream=streams,
        part=st.sampled_from(sorted(PARTS)),
        fails=st.booleans(),
    )
    def copy_on_stream(
        self, source: Known, into: Known, stream: int, part: str, fails: bool
    ) -> None:
        take, lane = PARTS[part], self.lanes[stream]
        to, start = take(into.array), take(source.array)
        if lane.device not in (to.device, start.device):
            with pytest.raises(ValueError, match="expected a stream of"):
                start.copyto(to, stream=lane)
            return
        source.follow(lane)
        into.follow(lane)
        if not fails:
            start.copyto(to, stream=lane)
            take(into.values)[...] = take(source.values)
            return
        with self.ext.inject(on_stream=True) as fault, contextlib.suppress(DeviceError):
            start.copyto(to, stream=lane)
            start.copyto(to, stream=lane)  # not run, as it is behind the first
        if fault.hits:
            with contextlib.suppress(DeviceError):
                lane.synchronize()
        self.believe(into, take, source)

    @rule(source=arrays, into=arrays, part=st.sampled_from(sorted(PARTS)), after=st.integers(0, 5))
    def copy_fails(self, source: Known, into: Known, part: str, after: int) -> None:
        """The elements of the part are the old ones or the new ones; others are untouched."""
        for each in (source, into):
            each.settle()
        take = PARTS[part]
        with self.ext.inject(after=after), outcome() as found:
            take(source.array).copyto(take(into.array))
        check(found)
        self.believe(into, take, source)

    def believe(self, into: Known, take: Callable[[Any], Any], source: Known) -> None:
        """What an interrupted copy left in its into."""
        expected, found = into.values.copy(), into.array.numpy()
        new = into.values.copy()
        take(new)[...] = take(source.values)
        assert ((found == expected) | (found == new)).all()
        into.values[...] = found

    # ---- Streams ---------------------------------------------------------------------------------

    @rule(target=streams, where=st.integers(1, 2))
    def make_stream(self, where: int) -> int:
        self.lanes.append(self.devices[where].create_stream())
        return len(self.lanes) - 1

    @rule(stream=streams)
    def synchronize(self, stream: int) -> None:
        self.lanes[stream].synchronize()
        assert self.lanes[stream].query()

    @rule(stream=streams, other=streams)
    def wait(self, stream: int, other: int) -> None:
        self.lanes[stream].wait(self.lanes[other].record())

    @rule(array=arrays, stream=streams)
    def negate(self, array: Known, stream: int) -> None:
        """A kernel that writes where it reads."""
        lane = self.lanes[stream]
        if array.array.device != lane.device:
            with pytest.raises(ValueError, match="expected an array on"):
                minus()(array.array, tvm.nd.empty(SHAPE, "int32", lane.device))
            return
        array.follow(lane)
        with lane:
            minus()(array.array, array.array)
        array.values *= -1

    @rule(where=st.integers(1, 2))
    def synchronize_device(self, where: int) -> None:
        self.devices[where].sync()

    @rule()
    def synchronize_devices(self) -> None:
        for device in self.devices[1:]:
            device.sync()
        for device in self.devices[1:]:
            assert device.memory_stats().requested == self.requested(device)

    @rule(where=st.integers(1, 2))
    def empty_cache(self, where: int) -> None:
        self.devices[where].empty_cache()

    def requested(self, device: Device) -> int:
        return sum(each.values.nbytes for each in self.alive if each.array.device == device)

    @invariant()
    def what_lives_is_there(self) -> None:
        """And what streams keep until they are done."""
        for device in self.devices[1:]:
            assert device.memory_stats().requested >= self.requested(device)

    def teardown(self) -> None:
        for array in self.alive:
            self.look(array)
            del array.array, array.streams
        self.lanes.clear()
        unregister_device(_NAME)
        assert self.ext.usage() == Usage()


def test_arrays_on_devices_are_those_of_numpy() -> None:
    run_state_machine_as_test(
        Arrays,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.wide
def test_many_arrays_on_devices_are_those_of_numpy() -> None:
    run_state_machine_as_test(
        Arrays,
        settings=settings(
            max_examples=2000,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )
