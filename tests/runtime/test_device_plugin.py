"""Devices of plugins in C: `tests/plugin/plugin.c`, compiled in each layout of the interface."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.runtime.device import Device
from minitvm.runtime.device_api import plugin as plugin_module
from minitvm.runtime.device_api import registry
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import Handle, MemoryStats
from minitvm.runtime.device_api.plugin import fill, load_device_plugin
from minitvm.runtime.device_api.plugin_abi import ABI, ABIS, REQUIRED
from minitvm.runtime.errors import DeviceError, DeviceMemoryError, UnsupportedByDevice
from tests.forks import assert_in_child
from tests.plugin import DEVICES, FOLDER, SOURCE, TestPlugin, compile_c, compile_for_paddle

LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "3.3": lambda made: compile_c(SOURCE, made),
    "3.0": lambda made: compile_c(SOURCE, made, "-DMINITVM_PLUGIN_ABI=300"),
    "paddle": lambda made: compile_for_paddle(SOURCE, made),
}
LATEST = next(abi for abi in ABIS if abi.name == "3.3")
COPIES = ("memory_copy_h2d", "memory_copy_d2h")
OPTIONAL = sorted(
    {
        *LATEST.functions,
        "stream_add_callback",
    }
    - {*REQUIRED, "get_max_threads_per_mp", "get_max_threads_per_block"}
)
ONLY_3_3 = {"get_multi_process", "is_float16_supported", "is_bfloat16_supported"}
STATUSES = {2: "C_FAILED", 3: "C_ERROR", 4: "C_INTERNAL_ERROR", 77: "77"}


class Plugins:
    """Makes plugins for a test, and ends their devices after it."""

    def __init__(self, compiled: Callable[[str], Path], folder: Path) -> None:
        self._compiled = compiled
        self._folder = folder
        self.loaded: list[TestPlugin] = []

    def new(self, layout: str = "3.3") -> TestPlugin:
        return TestPlugin(self._compiled(layout), self._folder)

    def load(self, plugin: TestPlugin) -> Driver:
        assert load_device_plugin(plugin.path) == plugin.name
        self.loaded.append(plugin)
        driver = registry.driver_of(tvm.device(plugin.name, 0).device_type)
        assert driver is not None
        return driver

    def end(self) -> None:
        """Nothing lives on the devices any longer."""
        while self.loaded:
            plugin = self.loaded.pop()
            registry.unregister_device(plugin.name)
            live = plugin.live()
            if "destroy_stream" in plugin.left_out:
                del live["streams"]
            assert not any(live.values()), live


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def give(layout: str) -> Path:
        if layout not in made:
            made[layout] = LAYOUTS[layout](tmp_path_factory.mktemp("plugin") / "plugin.so")
        return made[layout]

    return give


@pytest.fixture
def plugins(compiled: Callable[[str], Path], tmp_path: Path) -> Iterator[Plugins]:
    made = Plugins(compiled, tmp_path)
    yield made
    made.end()


@pytest.fixture
def plugin(plugins: Plugins) -> TestPlugin:
    return plugins.new()


def devices(plugin: TestPlugin) -> list[Device]:
    """The devices, ready."""
    found = [tvm.device(plugin.name, each) for each in range(DEVICES)]
    for each in found:
        registry.managed(each)
    return found


# -- What a driver does with them -----------------------------------------------------------------

SIZE = 4096


def exercise(driver: Driver, mine: list[Device]) -> list[bytes]:
    """Bytes after copies of all kinds; everything is given back."""
    first, second = mine[:2]
    source = np.random.default_rng(3).integers(0, 256, SIZE, "uint8")
    results = [np.zeros(SIZE, "uint8") for _ in range(7)]
    a, b, c = (driver.device_memory_allocate(each, SIZE) for each in (first, first, second))
    out = iter(results)

    def read(device: Device, address: int) -> None:
        driver.memory_copy_d2h(device, next(out).ctypes.data, address, SIZE)

    driver.memory_copy_h2d(first, a, source.ctypes.data, SIZE)
    read(first, a)
    driver.memory_copy_d2d(first, b, a + 1024, SIZE - 1024)
    driver.device_memory_set(first, b + SIZE - 1024, 0x3C, 1024)
    read(first, b)
    driver.memory_copy_p2p(second, first, c, b, SIZE)
    read(second, c)

    stream, other = driver.create_stream(first), driver.create_stream(second)
    event = driver.create_event(first)
    turned = source[::-1].copy()
    driver.async_memory_copy_h2d(first, stream, a, turned.ctypes.data, SIZE)
    driver.async_memory_copy_d2d(first, stream, b, a, SIZE // 2)
    driver.record_event(first, stream, event)
    driver.stream_wait_event(second, other, event, first)
    driver.async_memory_copy_p2p(second, first, other, c, b, SIZE)
    driver.async_memory_copy_d2h(second, other, next(out).ctypes.data, c, SIZE)
    called: list[int] = []
    driver.stream_add_callback(second, other, lambda: called.append(1))
    driver.synchronize_stream(second, other)
    assert called == [1]
    driver.synchronize_event(first, event)
    assert driver.query_event(first, event)
    assert driver.query_stream(second, other)
    driver.synchronize_device(first)
    read(first, b)
    read(second, c)
    driver.destroy_event(first, event)
    driver.destroy_stream(second, other)
    driver.destroy_stream(first, stream)
    for device, address in ((first, a), (first, b), (second, c)):
        driver.device_memory_deallocate(device, address, SIZE)
    return [each.tobytes() for each in results]


def expected() -> list[bytes]:
    source = np.random.default_rng(3).integers(0, 256, SIZE, "uint8")
    b = np.concatenate([source[1024:], np.full(1024, 0x3C, "uint8")])
    turned = source[::-1]
    b2 = np.concatenate([turned[: SIZE // 2], b[SIZE // 2 :]])
    zero = np.zeros(SIZE, "uint8")
    return [each.tobytes() for each in (source, b, b, b2, b2, b2, zero)]


@cache
def doubling() -> tvm.runtime.Module:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * 2.0, name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], name="twice")


X = np.random.default_rng(5).random((6, 20), dtype="float32")


def exercise_arrays(mine: list[Device]) -> list[object]:
    """What arrays hold after copies of all kinds; they are gone when it returns."""
    first, second = mine[:2]
    for each in (first, second):
        each.empty_cache()  # so that memory is asked for
    found = []
    a = tvm.nd.array(X, first)
    found.append(a.numpy())
    b = a.copyto(second)
    found.append(b.copyto(tvm.cpu(0)).numpy())
    spread = tvm.nd.array(np.zeros((6, 40), "float32"), second)
    b.copyto(spread[:, ::2])
    found.append(spread.numpy())
    stream = first.create_stream()
    c = tvm.nd.empty(X.shape, "float32", first)
    c.copyfrom(X + 1, stream)
    back = tvm.nd.empty(X.shape)
    c.copyto(back, stream)
    stream.synchronize()
    found.append(back.numpy().copy())
    with stream:
        d = tvm.nd.array(X[::-1], first)
        other = second.create_stream()
        other.wait(stream.record())
    found.append(d.copyto(second).numpy())
    d.copyto(c)
    found.append(c.numpy())
    found.append(tvm.nd.empty((0, 3), "float32", first).numpy())
    inputs, outputs = a.reshape(120).copyto(tvm.cpu(0)), tvm.nd.empty((120,))
    doubling()(inputs, outputs)
    found.append(outputs.copyto(first).numpy())
    first.sync()
    second.sync()
    return [each.tolist() for each in found]


def expected_arrays() -> list[object]:
    spread = np.zeros((6, 40), "float32")
    spread[:, ::2] = X
    found = [X, X, spread, X + 1, X[::-1], X[::-1], np.zeros((0, 3)), (X * 2).reshape(-1)]
    return [each.tolist() for each in found]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_works_in_each_layout(plugins: Plugins, layout: str) -> None:
    plugin = plugins.new(layout)
    driver = plugins.load(plugin)
    mine = devices(plugin)
    assert [each.exist for each in (*mine, tvm.device(plugin.name, DEVICES))] == [True] * 3 + [
        False
    ]
    assert exercise(driver, mine) == expected()
    assert exercise_arrays(mine) == expected_arrays()
    for each in mine:
        each.empty_cache()
    assert driver.device_memory_stats(mine[0]) == MemoryStats(64 << 20, 64 << 20)
    sizes = ("min_chunk", "max_chunk", "max_alloc", "init_alloc", "realloc", "extra_padding")
    found = [getattr(driver, f"device_{each}_size")(mine[2]) for each in sizes]
    assert found == [256, 8 << 20, 32 << 20, 1 << 20, 2 << 20, 32]
    driver.set_device(mine[2])
    assert driver.get_device() == 2
    for name in COPIES:
        assert plugin.calls(name) > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_are_told_apart(plugins: Plugins, layout: str) -> None:
    plugin = plugins.new(layout)
    driver = plugins.load(plugin)
    properties = tvm.device(plugin.name, 1).properties  # the other devices were not used
    is_new = layout != "3.0"
    assert properties["plugin_abi"] == ("3.3" if is_new else "3.0")
    assert properties["plugin_version"] == "0.1.1"
    assert properties["plugin"] == str(plugin.path)
    assert properties["sub_device_type"] == "v1"
    assert ("multi_process" in properties) == is_new
    assert properties.get("is_float16_supported") == (True if is_new else None)
    assert properties.get("is_bfloat16_supported") == (False if is_new else None)
    versions = driver.get_compute_capability(), driver.get_runtime_version()
    assert (*versions, driver.get_driver_version()) == (75, 11020, 11040)


@pytest.mark.parametrize("name", OPTIONAL)
def test_each_optional_function_can_be_missing(plugins: Plugins, name: str) -> None:
    plugin = plugins.new()
    plugin.leave_out(name)
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()
    assert exercise_arrays(devices(plugin)) == expected_arrays()
    assert plugin.calls(name) == 0


@given(st.sets(st.sampled_from(OPTIONAL)), st.sampled_from(["3.3", "3.0"]))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_optional_functions_can_be_missing(
    plugins: Plugins, names: set[str], layout: str
) -> None:
    missing = names - (ONLY_3_3 if layout == "3.0" else set())
    for name in COPIES:
        if {name, f"async_{name}"} <= missing or {name, "create_stream"} <= missing:
            missing.remove(name)
    plugin = plugins.new(layout)
    plugin.leave_out(*missing)
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()
    assert exercise_arrays(devices(plugin)) == expected_arrays()
    plugins.end()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("copies", [COPIES, tuple(f"async_{each}" for each in COPIES)])
def test_the_fewest_functions_that_copy(
    plugins: Plugins, layout: str, copies: tuple[str, ...]
) -> None:
    plugin = plugins.new(layout)
    kept = {*copies, *(("create_stream",) if "async" in copies[0] else ())}
    there = set(OPTIONAL) - (ONLY_3_3 if layout == "3.0" else set())
    plugin.leave_out(*(there - kept))
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()
    assert exercise_arrays(devices(plugin)) == expected_arrays()


def test_the_required_functions_alone(plugins: Plugins, plugin: TestPlugin) -> None:
    plugin.leave_out(*OPTIONAL)
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    address = driver.device_memory_allocate(first, SIZE)
    driver.synchronize_device(first)
    host = np.zeros(SIZE, "uint8").ctypes.data
    for name in COPIES:
        with pytest.raises(UnsupportedByDevice, match=rf"^{plugin.name}\(0\): {name}: "):
            getattr(driver, name)(first, address, host, SIZE)
    for name in ("host_memory_allocate", "unified_memory_allocate"):
        with pytest.raises(UnsupportedByDevice, match=rf"^{plugin.name}\(0\): {name}: "):
            getattr(driver, name)(first, SIZE)
    with pytest.raises(UnsupportedByDevice, match="get_driver_version"):
        driver.get_driver_version()
    assert driver.device_memory_stats(first) is None
    driver.device_memory_deallocate(first, address, SIZE)


def test_callbacks_are_not_given_to_a_plugin(plugins: Plugins, plugin: TestPlugin) -> None:
    """Some take the address of their data for an object of PaddlePaddle's."""
    driver = plugins.load(plugin)
    exercise(driver, devices(plugin))
    assert plugin.calls("stream_add_callback") == 0


def test_memory_of_the_host_and_of_both(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    for kind in ("host", "unified"):
        address = getattr(driver, f"{kind}_memory_allocate")(first, 64)
        ctypes.memset(address, 7, 64)
        assert ctypes.string_at(address, 64) == b"\7" * 64
        getattr(driver, f"{kind}_memory_deallocate")(first, address, 64)


def test_the_memories_are_apart(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first, second = devices(plugin)[:2]
    host = np.zeros(64, "uint8").ctypes.data
    address = driver.device_memory_allocate(first, 64)
    wrongs: list[Callable[[], None]] = [
        lambda: driver.memory_copy_h2d(first, host, host, 64),
        lambda: driver.memory_copy_h2d(first, address, address, 64),
        lambda: driver.memory_copy_d2h(first, address, address, 64),
        lambda: driver.memory_copy_h2d(second, address, host, 64),
        lambda: driver.memory_copy_h2d(first, address + 1, host, 64),
        lambda: driver.device_memory_deallocate(first, address, 65),
        lambda: driver.device_memory_deallocate(second, address, 64),
    ]
    for wrong in wrongs:
        with pytest.raises(DeviceError, match=r"failed with status 3 \(C_ERROR\)"):
            wrong()
    driver.device_memory_deallocate(first, address, 64)


def test_handles_that_are_not_written(plugins: Plugins, plugin: TestPlugin) -> None:
    plugin.set("plugin_leaves_handles", 1)
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()
    assert exercise_arrays(devices(plugin)) == expected_arrays()


def test_an_event_comes_after_what_was_before_it(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    address = driver.device_memory_allocate(first, SIZE)
    source = np.arange(SIZE).astype("uint8")
    stream, event = driver.create_stream(first), driver.create_event(first)
    plugin.set("plugin_microseconds", 20000)
    driver.async_memory_copy_h2d(first, stream, address, source.ctypes.data, SIZE)
    driver.record_event(first, stream, event)
    asked = [driver.query_event(first, event), driver.query_stream(first, stream)]
    driver.synchronize_event(first, event)
    plugin.set("plugin_microseconds", 0)
    assert asked == [False, False]
    assert driver.query_event(first, event)
    driver.destroy_event(first, event)
    driver.destroy_stream(first, stream)
    driver.device_memory_deallocate(first, address, SIZE)


# -- Failures -------------------------------------------------------------------------------------

FAILING = sorted(
    {*LATEST.functions}
    - {"get_max_threads_per_mp", "get_max_threads_per_block", "initialize", "finalize"}
    - {"init_device", "deinit_device", "get_device_count", "get_device_list"}
)


class Calls:
    """A call of each function, with what it needs."""

    def __init__(self, driver: Driver, mine: list[Device]) -> None:
        self.driver = driver
        self.first, self.second = mine[:2]
        self.host = np.zeros(64, "uint8")
        self.memory = {each: driver.device_memory_allocate(each, 64) for each in mine[:2]}
        self.kept: dict[str, int] = {}
        self.stream: Handle = driver.create_stream(self.first)
        self.event: Handle = driver.create_event(self.first)

    def call(self, name: str) -> None:
        """Calls a function by the driver; what it gave, and a call before it, is given back."""
        driver, first, stream, event = self.driver, self.first, self.stream, self.event
        target, other, host = self.memory[first], self.memory[self.second], self.host.ctypes.data
        on = (stream,) if name.startswith("async_") else ()
        match name.removeprefix("async_"):
            case "memory_copy_d2h":
                getattr(driver, name)(first, *on, host, target, 64)
            case "memory_copy_h2d":
                getattr(driver, name)(first, *on, target, host, 64)
            case "memory_copy_d2d":
                getattr(driver, name)(first, *on, target, target, 64)
            case "memory_copy_p2p":
                getattr(driver, name)(first, self.second, *on, target, other, 64)
            case "device_memory_set":
                driver.device_memory_set(first, target, 1, 64)
            case "create_stream":
                driver.destroy_stream(first, driver.create_stream(first))
            case "create_event":
                driver.destroy_event(first, driver.create_event(first))
            case "destroy_stream":
                driver.destroy_stream(first, stream)
                self.stream = driver.create_stream(first)
            case "destroy_event":
                driver.destroy_event(first, event)
                self.event = driver.create_event(first)
            case "query_stream" | "synchronize_stream":
                getattr(driver, name)(first, stream)
            case "query_event" | "synchronize_event":
                getattr(driver, name)(first, event)
            case "record_event":
                driver.record_event(first, stream, event)
            case "stream_wait_event":
                driver.stream_wait_event(first, stream, event, first)
            case "get_device" | "get_compute_capability" | "get_runtime_version":
                getattr(driver, name)()
            case "get_driver_version":
                driver.get_driver_version()
            case "get_multi_process" | "is_float16_supported" | "is_bfloat16_supported":
                driver.get_device_properties(first)
            case _ if "_memory_" in name and "stats" not in name:
                kind = name.rpartition("_")[0]
                if kind not in self.kept:
                    self.kept[kind] = getattr(driver, f"{kind}_allocate")(first, 32)
                getattr(driver, f"{kind}_deallocate")(first, self.kept[kind], 32)
                del self.kept[kind]
            case _:
                getattr(driver, name)(first)

    def close(self) -> None:
        self.driver.synchronize_device(self.first)
        self.driver.destroy_event(self.first, self.event)
        self.driver.destroy_stream(self.first, self.stream)
        for device, address in self.memory.items():
            self.driver.device_memory_deallocate(device, address, 64)


@pytest.mark.parametrize("status", STATUSES)
def test_each_function_fails_in_turn(plugins: Plugins, plugin: TestPlugin, status: int) -> None:
    """An exception that names device and function, and the next call works."""
    driver = plugins.load(plugin)
    calls = Calls(driver, devices(plugin))
    for name in FAILING:
        if name.startswith("query_") and status == 2:
            continue  # not done yet
        plugin.fail(name, status)
        kind = DeviceMemoryError if name.endswith("_allocate") else DeviceError
        of = plugin.name if name.startswith("get_") and "multi" not in name else f"{calls.first}"
        said = f"^{of}: {name}: failed with status {status}".replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(kind, match=said) as raised:
            calls.call(name)
        assert STATUSES[status] in str(raised.value)
        assert str(plugin.path) in str(raised.value)
        calls.call(name)
    calls.close()


SITES = [
    "async_memory_copy_d2h",
    "async_memory_copy_h2d",
    "create_event",
    "create_stream",
    "memory_copy_d2d",
    "memory_copy_d2h",
    "memory_copy_h2d",
    "memory_copy_p2p",
    "record_event",
    "stream_wait_event",
    "synchronize_device",
    "synchronize_stream",
]


@pytest.mark.parametrize("name", SITES)
def test_each_call_fails_in_turn(plugins: Plugins, plugin: TestPlugin, name: str) -> None:
    """Arrays and streams, with one call of a function after the other failing."""
    plugins.load(plugin)
    mine = devices(plugin)
    exercise_arrays(mine)
    before = plugin.calls(name)
    exercise_arrays(mine)
    calls = plugin.calls(name) - before
    assert calls
    for after in range(calls):
        plugin.fail(name, 2, after)
        if name != "device_memory_allocate":  # which the allocator asks again, for less
            with pytest.raises(DeviceError, match=name):
                exercise_arrays(mine)
        assert exercise_arrays(mine) == expected_arrays()


@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d", "p2p"])
def test_a_failure_on_a_stream_is_told_by_who_waits(
    plugins: Plugins, plugin: TestPlugin, direction: str
) -> None:
    driver = plugins.load(plugin)
    calls = Calls(driver, devices(plugin))
    for wait in ("synchronize_stream", "synchronize_device"):
        plugin.fail(f"async_memory_copy_{direction}", 4, later=True)
        calls.call(f"async_memory_copy_{direction}")
        with pytest.raises(DeviceError, match=rf"{wait}: failed with status 4 \(C_INTERNAL_ERROR"):
            calls.call(wait)
        calls.call(wait)
    calls.close()


def test_memory_that_is_used_up(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    with pytest.raises(DeviceMemoryError, match=r"device_memory_allocate: failed with status 2"):
        driver.device_memory_allocate(first, 65 << 20)
    with pytest.raises(MemoryError, match=rf"{plugin.name}\(0\)"):
        tvm.nd.empty((65 << 20,), "uint8", first)
    plugin.set("plugin_gives_null", 1)
    with pytest.raises(DeviceMemoryError, match=r"\(0\): device_memory_allocate: no memory for 64"):
        driver.device_memory_allocate(first, 64)
    for each in devices(plugin):
        each.empty_cache()
    with pytest.raises(DeviceMemoryError, match=rf"{plugin.name}\(0\)"):
        exercise_arrays(devices(plugin))
    plugin.set("plugin_gives_null", 0)
    assert exercise(driver, devices(plugin)) == expected()
    assert exercise_arrays(devices(plugin)) == expected_arrays()


@pytest.mark.parametrize("status", STATUSES)
def test_an_allocation_that_fails_once(plugins: Plugins, plugin: TestPlugin, status: int) -> None:
    """Less is asked for, or the cache given back, and then it works."""
    plugins.load(plugin)
    mine = devices(plugin)
    for after in range(3):
        for each in mine:
            each.empty_cache()
        plugin.fail("device_memory_allocate", status, after)
        assert exercise_arrays(mine) == expected_arrays()


def test_a_warning_is_one(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    plugin.fail("synchronize_device", 1)
    with pytest.warns(RuntimeWarning, match=r"\(0\): synchronize_device: .*status 1 \(C_WARNING"):
        driver.synchronize_device(first)


def test_a_query_that_fails_is_no_answer(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    calls = Calls(driver, devices(plugin))
    for name in ("query_stream", "query_event"):
        handle = calls.stream if name == "query_stream" else calls.event
        assert getattr(driver, name)(calls.first, handle) is True
        plugin.fail(name, 2)
        assert getattr(driver, name)(calls.first, handle) is False
        plugin.fail(name, 3)
        with pytest.raises(DeviceError, match=name):
            getattr(driver, name)(calls.first, handle)
    calls.close()


# -- Loading --------------------------------------------------------------------------------------


def refuses(plugin: TestPlugin, message: str, kind: type[Exception] = DeviceError) -> None:
    """Loading it is an error of that text, after its path, and registers nothing."""
    with pytest.raises(kind, match=message) as raised:
        load_device_plugin(plugin.path)
    assert str(plugin.path) in str(raised.value)
    with pytest.raises(ValueError, match="expected a device among"):
        tvm.device(plugin.name, 0)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a library, found no file .*libx.so"):
        load_device_plugin(tmp_path / "libx.so")
    with pytest.raises(DeviceError, match=r"^libnowhere_to_be_found.so: expected a device plugin"):
        load_device_plugin("libnowhere_to_be_found.so")


@pytest.mark.parametrize("wrong", [None, 3, b"libx.so", ["libx.so"]])
def test_no_path(wrong: object) -> None:
    with pytest.raises(TypeError, match="load_device_plugin: expected the path of a library, got"):
        load_device_plugin(wrong)  # type: ignore[arg-type]  # the mistake


def test_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(b"int main;")
    for each in (path, tmp_path):
        with pytest.raises(DeviceError, match=f"^{each}: expected a device plugin, a library that"):
            load_device_plugin(each)


def test_a_library_without_its_entry(compiled: Callable[[str], Path], tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")
    made = compile_c(source, tmp_path / "libempty.so")
    with pytest.raises(DeviceError, match=r"libempty.so: expected .* that exports InitPlugin"):
        load_device_plugin(made)


def test_a_library_that_lacks_a_symbol(tmp_path: Path) -> None:
    source = tmp_path / "lacks.c"
    source.write_text("void elsewhere(void);\nvoid InitPlugin(void* p);\n"
                      "void InitPlugin(void* p) { (void)p; elsewhere(); }\n")  # fmt: skip
    made = compile_c(source, tmp_path / "liblacks.so")
    with pytest.raises(DeviceError, match=r"liblacks.so: expected a device plugin.*elsewhere"):
        load_device_plugin(made)


def test_an_entry_that_fills_nothing_in(plugin: TestPlugin) -> None:
    plugin.set("plugin_fills_nothing", 1)
    refuses(plugin, r"expected it to fill in a table of one of .* 1128 \(3.3\), 920 \(3.0\), 912")


@pytest.mark.parametrize("size", [1129, 2048, 5000])
def test_a_table_of_an_unknown_size(plugin: TestPlugin, size: int) -> None:
    plugin.set("plugin_clears", size, ctypes.c_size_t)
    refuses(plugin, f"at most 1128 bytes of its table, found {min(size, 1128 + 4096)} written")


def test_parameters_of_an_unknown_size(tmp_path: Path) -> None:
    source = tmp_path / "entry.c"
    source.write_text(
        "#include <minitvm/device_plugin.h>\n#include <string.h>\n"
        "void InitPlugin(CustomRuntimeParams* params) { memset((char*)params + 96, 0, 8); }\n"
    )
    made = compile_c(source, tmp_path / "entry.so")
    with pytest.raises(DeviceError, match="at most 96 bytes of its parameters, found 104 written"):
        load_device_plugin(made)


@pytest.mark.parametrize("version", [(0, 0, 0), (0, 1, 0), (0, 0, 9)])
def test_an_old_version(plugin: TestPlugin, version: tuple[int, ...]) -> None:
    for number, value in enumerate(version):
        (ctypes.c_size_t * 3).in_dll(plugin.library, "plugin_version")[number] = value
    refuses(plugin, f"expected version 0.1.1 or a later one, found {'.'.join(map(str, version))}")


@pytest.mark.parametrize("version", [(0, 1, 2), (0, 2, 0), (1, 0, 0)])
def test_a_later_version(plugins: Plugins, plugin: TestPlugin, version: tuple[int, ...]) -> None:
    for number, value in enumerate(version):
        (ctypes.c_size_t * 3).in_dll(plugin.library, "plugin_version")[number] = value
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_function_is_missing(plugin: TestPlugin, name: str) -> None:
    plugin.leave_out(name)
    refuses(plugin, f"found NULL for {name}$")


def test_all_that_is_missing_is_named(plugin: TestPlugin) -> None:
    plugin.leave_out("get_device", "create_event")
    refuses(plugin, "found NULL for get_device, create_event$")


@pytest.mark.parametrize(
    ("text", "message", "kind"),
    [
        (b"", "expected a device_type, found none", DeviceError),
        (b"\xff\xfe", "expected device_type to be UTF-8", DeviceError),
        (b"cpu", "device_type 'cpu': expected a name for a new kind of device", ValueError),
        (b"cuda", "device_type 'cuda': expected a name for a new kind of device", ValueError),
        (b"my npu", "device_type 'my npu': expected a name such as", ValueError),
    ],
)
def test_names(plugin: TestPlugin, text: bytes, message: str, kind: type[Exception]) -> None:
    plugin.set_text("plugin_type", text)
    refuses(plugin, message, kind)


def test_a_name_that_another_plugin_has(plugins: Plugins, plugin: TestPlugin) -> None:
    plugins.load(plugin)
    second = plugins.new()
    second.set_text("plugin_type", plugin.name.encode())
    refuses(second, "expected a name for a new kind of device", ValueError)
    assert exercise_arrays(devices(plugin)) == expected_arrays()


@pytest.mark.parametrize("name", ["initialize", "get_device_count", "get_device_list"])
def test_a_plugin_that_cannot_begin(plugins: Plugins, plugin: TestPlugin, name: str) -> None:
    plugin.fail(name, 4)
    refuses(plugin, f"{name}: failed with status 4")
    assert plugin.calls("finalize") == (name != "initialize")
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()


@pytest.mark.parametrize("found", [1 << 60, 65537])
def test_devices_without_number(plugin: TestPlugin, found: int) -> None:
    plugin.set("plugin_device_count", found, ctypes.c_size_t)
    refuses(plugin, f"get_device_count: expected at most 65536, got {found}")


def test_no_devices(plugins: Plugins, plugin: TestPlugin) -> None:
    plugin.set("plugin_device_count", 0, ctypes.c_size_t)
    plugins.load(plugin)
    assert not tvm.device(plugin.name, 0).exist
    with pytest.raises(ValueError, match="expected a device that is there"):
        tvm.nd.array(X, tvm.device(plugin.name, 0))


def test_a_device_that_cannot_begin(plugins: Plugins, plugin: TestPlugin) -> None:
    plugins.load(plugin)
    plugin.fail("init_device", 4)
    with pytest.raises(DeviceError, match=r"\(0\): init_device: failed with status 4"):
        devices(plugin)
    assert exercise_arrays(devices(plugin)) == expected_arrays()


def test_the_same_library_is_the_same_device(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    link = plugin.path.with_name("other_name.so")
    link.symlink_to(plugin.path)
    plugin.set("plugin_fills_nothing", 1)
    for path in (plugin.path, str(plugin.path), link):
        assert load_device_plugin(path) == plugin.name
    assert registry.driver_of(tvm.device(plugin.name, 0).device_type) is driver
    assert plugin.calls("initialize") == 1


def test_a_library_that_another_thread_loads(
    plugins: Plugins, plugin: TestPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when this thread looked, and is when it is registered."""
    plugins.load(plugin)
    monkeypatch.setattr(plugin_module, "_names", {})
    assert load_device_plugin(plugin.path) == plugin.name


def test_what_is_left_of_a_device_that_has_ended(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    stream, event = first.create_stream(), first.create_event()
    plugins.loaded.clear()
    registry.unregister_device(plugin.name)
    with pytest.raises(DeviceError, match=r"stream: expected .*, found that its device has ended"):
        driver.query_stream(first, stream.handle)
    del stream, event
    assert [plugin.calls(each) for each in ("destroy_stream", "destroy_event")] == [0, 0]


def test_threads_load_a_library_at_once(plugins: Plugins, plugin: TestPlugin) -> None:
    barrier = threading.Barrier(8)

    def load(_: int) -> str:
        barrier.wait()
        return load_device_plugin(plugin.path)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(load, range(8))) == {plugin.name}
    plugins.load(plugin)
    assert plugin.calls("initialize") == 1


def test_a_library_is_loaded_again_after_its_end(plugins: Plugins, plugin: TestPlugin) -> None:
    plugins.load(plugin)
    assert exercise_arrays(devices(plugin)) == expected_arrays()
    plugins.end()
    ends = ("deinit_device", "finalize")
    assert [plugin.calls(each) for each in ends] == [DEVICES, 1]
    plugins.load(plugin)
    assert exercise_arrays(devices(plugin)) == expected_arrays()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_entry_that_checks_no_sizes(plugins: Plugins, layout: str) -> None:
    """Its table may be of any layout: what differs between them is not called."""
    plugin = plugins.new(layout)
    plugin.set("plugin_does_not_check", 1)
    driver = plugins.load(plugin)
    assert exercise(driver, devices(plugin)) == expected()
    assert devices(plugin)[0].properties["plugin_abi"] is None
    for name in ("get_compute_capability", "get_runtime_version", "get_driver_version"):
        with pytest.raises(UnsupportedByDevice, match=name):
            getattr(driver, name)()
        assert plugin.calls(name) == 0


CHECKS = {
    "both sizes": "params->size != {params} || params->interface->size != {table}",
    "one of both": "params->size != {params} && params->interface->size != {table}",
    "the table's": "params->interface->size != {table}",
    "the parameters'": "params->size != {params}",
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.name)
@pytest.mark.parametrize("clears", [False, True])
def test_entries_that_check_sizes(
    tmp_path: Path, compiled: Callable[[str], Path], abi: ABI, check: str, clears: bool
) -> None:
    """Whatever they check, and whether they clear the table, which loses its size."""
    condition = CHECKS[check].format(params=abi.params_size, table=abi.table_size)
    clear = f"memset(params->interface, 0, {abi.table_size});" if clears else ""
    source = tmp_path / "entry.c"
    source.write_text(
        f"""
        #include <minitvm/device_plugin.h>
        #include <string.h>
        static C_Status fail(C_Device device) {{ (void)device; return C_ERROR; }}
        void InitPlugin(CustomRuntimeParams* params) {{
          if ({condition}) return;
          {clear}
          params->version.minor = params->version.patch = 1;
          params->device_type = (char*)"never_registered";
          params->interface->set_device = fail;
        }}
        """
    )
    made = compile_c(source, tmp_path / "entry.so")
    found = fill(str(made), ctypes.CDLL(str(made)).InitPlugin)
    assert found.device_type == "never_registered"
    assert found.abi == (None if check == "the parameters'" else abi)


def test_the_documented_plugin(tmp_path: Path) -> None:
    """The C code of docs/device_plugins.md, and its commands."""
    if not all(map(shutil.which, ("sh", "cc"))):
        pytest.skip("needs a C compiler")
    page = (FOLDER.parent.parent / "docs" / "device_plugins.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```c\n(.*?)^```$", page, re.M | re.S)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    source = tmp_path / "simple.c"
    source.write_text(code)
    compile_c(source, tmp_path / "checked.so")  # without warnings
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    (said,) = re.findall(r"# (.*)", commands)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")


def test_a_plugin_is_finalized_at_the_end(plugin: TestPlugin) -> None:
    """Also with arrays and streams that live until then."""
    code = f"""
import ctypes, atexit
library = ctypes.CDLL({str(plugin.path)!r})
ends = b"deinit_device", b"finalize"
atexit.register(lambda: print([library.plugin_calls(each) for each in ends]))
import numpy as np, minitvm as tvm
device = tvm.device(tvm.load_device_plugin({str(plugin.path)!r}), 1)
kept = [tvm.nd.array(np.ones(3), device), device.create_stream(), device.create_event()]
kept.append(kept)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 1]\n", "")


def test_a_forked_child_has_no_devices(plugins: Plugins, plugin: TestPlugin) -> None:
    driver = plugins.load(plugin)
    first = devices(plugin)[0]
    array = tvm.nd.array(X, first)
    stream, address = driver.create_stream(first), driver.device_memory_allocate(first, 64)
    host = np.zeros(64, "uint8")
    before = plugin.live()

    def check() -> bool:
        with pytest.raises(DeviceError, match=r"\(0\): memory_copy_d2h: expected the process that"):
            driver.memory_copy_d2h(first, host.ctypes.data, address, 64)
        driver.device_memory_deallocate(first, address, 64)
        driver.destroy_stream(first, stream)
        return plugin.live() == before

    assert_in_child(check)
    assert array.numpy().tolist() == X.tolist()
    driver.device_memory_deallocate(first, address, 64)
    driver.destroy_stream(first, stream)


@pytest.mark.parametrize("missing", [(), ("synchronize_device",), ("stream_wait_event",)])
def test_threads(plugins: Plugins, plugin: TestPlugin, missing: tuple[str, ...]) -> None:
    """Each has its current device, and streams that others don't wait for after their end."""
    plugin.leave_out(*missing)
    plugins.load(plugin)
    mine = devices(plugin)
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda n: exercise_arrays([mine[n % 3], mine[(n + 1) % 3]]), range(32))
        )
    assert all(each == expected_arrays() for each in found)
