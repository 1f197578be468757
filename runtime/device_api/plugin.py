"""Plugins: devices in shared libraries with the C interface of PaddlePaddle's custom devices.

A library exports ``InitPlugin``, which fills in a table of functions. It is called with different
sizes until it does; 0 is a size that no table has::

    params.size   table.size
    0             0              it checks nothing
    0             1128 920 912   PaddlePaddle's check, which passes if one of both sizes is right
    96            0              it checks the first size
    96            1128 920       it checks both
    88            0
    88            912

Where it answers to 0, its table may be of any layout, and the members that differ between layouts
aren't called. The memory behind a table is marked, which shows one that is larger than any known.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from minitvm.runtime.device import Device
from minitvm.runtime.device_api import registry
from minitvm.runtime.device_api.interface import DeviceInterface, MemoryStats, Status
from minitvm.runtime.device_api.plugin_abi import (
    ABI,
    ABIS,
    COMMON_ABI,
    FLAG_PROPERTIES,
    MINIMUM_VERSION,
    REQUIRED,
    SIZE_PROPERTIES,
    CDevice,
    CustomRuntimeParams,
)
from minitvm.runtime.device_type import DEVICE_TYPES, BareDevice
from minitvm.runtime.errors import DeviceError, DeviceMemoryError

_ENTRY = "InitPlugin"
_LARGEST = max(abi.table_size for abi in ABIS)
_MARKED = 4096  # bytes behind a table, and behind the parameters
_ENDED = 0  # no process's number
_MARK = b"\xa5"
_MOST_DEVICES = 1 << 16


def _passed_on(name: str, by: str) -> Any:
    """A method that passes its arguments on to a function of the plugin, in which devices have
    another form."""

    def pass_on(self: PluginInterface, device: Device, *arguments: Any) -> Any:
        given = (device, *arguments)
        places = [self._at(each) if isinstance(each, BareDevice) else each for each in given]
        return getattr(self, by)(name, device, *places)

    return pass_on


@final
class PluginInterface(DeviceInterface):
    """The device of a library, filled in by its ``InitPlugin``."""

    def __init__(self, path: str, library: ctypes.CDLL) -> None:
        entry = getattr(library, _ENTRY, None)
        if entry is None:
            raise DeviceError(
                f"{path}: expected a device plugin, a library that exports {_ENTRY}, found none in "
                "it"
            )
        filled = fill(path, entry)
        self.path = path
        self.name = filled.device_type
        self.abi = filled.abi
        self.handle = library._handle
        self._kept = library, filled.table  # a plugin may keep the address of its table
        self._about: dict[str, object] = {
            "plugin": self.path,
            "plugin_version": ".".join(map(str, filled.version)),
            "plugin_abi": None if filled.abi is None else filled.abi.name,
            "sub_device_type": filled.sub_device_type,
        }
        self._functions = _functions_of(filled.table, filled.abi or COMMON_ABI)
        missing = [name for name in REQUIRED if name not in self._functions]
        if missing:
            raise DeviceError(
                f"{path}: {self.name}: expected a plugin with {', '.join(REQUIRED)}, "
                f"found NULL for {', '.join(missing)}"
            )
        self._devices: dict[int, CDevice] = {}
        self._ready: list[int] = []
        self._process = os.getpid()

    def provides(self, name: str) -> bool:
        return name in self._functions or name in ("initialize", "finalize", *_OURS)

    # ---- Calls -----------------------------------------------------------------------------------

    @property
    def _is_here(self) -> bool:
        """Whether the devices belong to this process and haven't ended."""
        return os.getpid() == self._process

    def _status(self, name: str, of: Device | None, *arguments: Any) -> int:
        if not self._is_here:
            ended = "that its device has ended"
            forked = (
                "one forked from it: start it with the method 'spawn', and load the plugin there"
            )
            raise DeviceError(
                f"{of or self.name}: {name}: expected the process that loaded the plugin, found "
                f"{ended if self._process == _ENDED else forked}"
            )
        return int(self._functions[name](*arguments))

    def _check(self, name: str, of: Device | None, status: int) -> None:
        if status == Status.SUCCESS:
            return
        said = f"{of or self.name}: {name}: {_said(status)}, in {self.path}"
        if status == Status.WARNING:
            warnings.warn(said, RuntimeWarning, stacklevel=4)
        elif name.endswith("_allocate"):
            raise DeviceMemoryError(said)
        else:
            raise DeviceError(said)

    def _call(self, name: str, of: Device | None, *arguments: Any) -> None:
        self._check(name, of, self._status(name, of, *arguments))

    def _release(self, name: str, of: Device | None, *arguments: Any) -> None:
        """Give a resource back. A forked child's resources belong to its parent, which gives them
        back; after the device has ended, no resource is left."""
        if self._is_here:
            self._call(name, of, *arguments)

    def _is_done(self, name: str, of: Device, *arguments: Any) -> bool:
        status = self._status(name, of, *arguments)
        if status == Status.FAILED:
            return False
        self._check(name, of, status)
        return True

    def _new(self, name: str, of: Device, place: CDevice, *arguments: Any) -> int:
        """The address or handle that a function writes; 0 if it writes none."""
        found = ctypes.c_void_p()
        self._call(name, of, place, found, *arguments)
        return found.value or 0

    def _number(self, name: str, of: Device, place: CDevice) -> int:
        found = ctypes.c_size_t()
        self._call(name, of, place, found)
        return found.value

    def _at(self, device: BareDevice) -> CDevice:
        try:
            return self._devices[device.device_id]
        except KeyError:
            listed = ", ".join(map(str, self._devices)) or "none"
            raise DeviceError(
                f"{device}: expected a device that the plugin lists, one of {listed}"
            ) from None

    # ---- Devices ---------------------------------------------------------------------------------

    def initialize(self) -> None:
        if "initialize" in self._functions:
            self._call("initialize", None)
        try:
            self._devices = {each: CDevice(each) for each in self._listed()}
        except BaseException:
            self.finalize()
            raise

    def _listed(self) -> list[int]:
        count = ctypes.c_size_t()
        self._call("get_device_count", None, count)
        if count.value > _MOST_DEVICES:
            raise DeviceError(
                f"{self.name}: get_device_count: expected at most {_MOST_DEVICES}, got "
                f"{count.value}, in {self.path}"
            )
        ids = (ctypes.c_size_t * max(1, count.value))()
        if count.value:
            self._call("get_device_list", None, ids)
        found = list(ids[: count.value])
        if len(set(found)) < len(found) or max(found, default=0) > 2**31 - 1:
            raise DeviceError(
                f"{self.name}: get_device_list: expected ids of 31 bits, each once, got {found}, "
                f"in {self.path}"
            )
        return found

    def finalize(self) -> None:
        if "finalize" in self._functions:
            self._release("finalize", None)
        self._process = _ENDED

    def init_device(self, device: Device) -> None:
        if "init_device" in self._functions:
            self._call("init_device", device, self._at(device))
        self._ready.append(device.device_id)

    def deinit_device(self, device: Device) -> None:
        if "deinit_device" in self._functions:
            self._release("deinit_device", device, self._at(device))

    def set_device(self, device: Device) -> None:
        # Another function raises the error if the devices aren't here.
        self._release("set_device", device, self._at(device))

    def get_device(self) -> int:
        found = CDevice(-1)
        self._call("get_device", None, found)
        known = (number for number, each in self._devices.items() if each.id == found.id)
        current = next(known, None)
        if current is None:
            raise DeviceError(
                f"{self.name}: get_device: expected a device that the plugin lists, got "
                f"{found.id}, in {self.path}"
            )
        return current

    def get_device_count(self) -> int:
        return len(self._devices)

    def get_device_list(self) -> Sequence[int]:
        return list(self._devices)

    def get_device_properties(self, device: Device) -> Mapping[str, object]:
        found = dict(self._about)
        for name in SIZE_PROPERTIES:
            if name in self._functions:
                found[name.removeprefix("get_")] = self._number(name, device, self._at(device))
        for name in FLAG_PROPERTIES:
            if name in self._functions:
                flag = ctypes.c_bool()
                self._call(name, device, self._at(device), flag)
                found[name] = flag.value
        return found

    def get_compute_capability(self) -> int:
        return self._version("get_compute_capability")

    def get_runtime_version(self) -> int:
        return self._version("get_runtime_version")

    def get_driver_version(self) -> int:
        return self._version("get_driver_version")

    def _version(self, name: str) -> int:
        found = ctypes.c_size_t()
        devices = (self._devices[each] for each in (*self._ready, *self._devices))
        takes_device = len(self._functions[name].argtypes) == 2
        self._call(name, None, *((next(devices),) if takes_device else ()), found)
        return found.value

    def device_memory_stats(self, device: Device) -> MemoryStats:
        total, free = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("device_memory_stats", device, self._at(device), total, free)
        return MemoryStats(total.value, free.value)

    device_memory_allocate = _passed_on("device_memory_allocate", "_new")
    device_memory_deallocate = _passed_on("device_memory_deallocate", "_release")


# The other functions pass their arguments on, each by a method of PluginInterface.
_PASSED_ON = {
    "_new": (
        "host_memory_allocate", "unified_memory_allocate", "create_stream", "create_event",
    ),
    "_release": (
        "host_memory_deallocate", "unified_memory_deallocate", "destroy_stream", "destroy_event",
    ),
    "_number": (
        "device_min_chunk_size", "device_max_chunk_size", "device_max_alloc_size",
        "device_extra_padding_size", "device_init_alloc_size", "device_realloc_size",
    ),
    "_is_done": ("query_stream", "query_event"),
    "_call": (
        "device_memory_set", "memory_copy_h2d", "memory_copy_d2h", "memory_copy_d2d",
        "memory_copy_p2p", "async_memory_copy_h2d", "async_memory_copy_d2h",
        "async_memory_copy_d2d", "async_memory_copy_p2p", "synchronize_device",
        "synchronize_stream", "synchronize_event", "stream_wait_event", "record_event",
    ),
}  # fmt: skip
for _by, _functions in _PASSED_ON.items():
    for _each in _functions:
        setattr(PluginInterface, _each, _passed_on(_each, _by))

# Our additions to a plugin's functions: they prepare its devices, and report their properties.
_OURS = ("init_device", "deinit_device", "get_device_properties")


def _said(status: int) -> str:
    names = {each.value: f"C_{each.name}" for each in Status}
    return f"failed with status {status}" + (f" ({names[status]})" if status in names else "")


# ---- The entry of a library ----------------------------------------------------------------------


class Filled(NamedTuple):
    """The members that an ``InitPlugin`` has filled in."""

    device_type: str
    sub_device_type: str
    version: tuple[int, int, int]
    table: ctypes.Array[ctypes.c_char]
    abi: ABI | None
    """None where it may be any."""


def fill(path: str, entry: Any) -> Filled:
    """Lets an ``InitPlugin`` fill in a table, with sizes that it accepts."""
    entry.restype = None
    offers: list[tuple[int, ABI | None]] = []
    for params_size in (0, *dict.fromkeys(abi.params_size for abi in ABIS)):
        fitting = [abi for abi in ABIS if params_size in (0, abi.params_size)]
        offers += [(params_size, abi) for abi in (None, *fitting)]
    for params_size, abi in offers:
        found = _ask(path, entry, params_size, abi)
        if found is not None:
            return found
    tables = ", ".join(f"{abi.table_size} ({abi.name})" for abi in ABIS)
    raise DeviceError(
        f"{path}: {_ENTRY}: expected it to fill in a table of one of the known sizes, {tables}, "
        "found that it fills in nothing"
    )


def _ask(path: str, entry: Any, params_size: int, abi: ABI | None) -> Filled | None:
    """The table that the entry fills in for these sizes; None if it refuses them. An `abi` of None
    is a table of size 0."""
    table_size = abi.table_size if abi else 0
    room = abi.table_size if abi else _LARGEST
    table = _marked(table_size.to_bytes(8, sys.byteorder) + bytes(room - 8))
    params_room = ctypes.sizeof(CustomRuntimeParams)
    memory = _marked(bytes(params_room))
    params = CustomRuntimeParams.from_buffer(memory)
    params.size = params_size
    params.interface = ctypes.addressof(table)
    entry(ctypes.byref(params))
    for what, buffer, limit in (("table", table, room), ("parameters", memory, params_room)):
        written = len(buffer.raw.rstrip(_MARK))
        if written > limit:
            raise DeviceError(
                f"{path}: {_ENTRY}: expected it to write at most {limit} bytes of its {what}, "
                f"found {written} written: it was made for a newer interface than minitvm knows"
            )
    if params.device_type is None and not any(table[8:room]):
        return None
    version = params.version.major, params.version.minor, params.version.patch
    if version < MINIMUM_VERSION:
        raise DeviceError(
            f"{path}: {_ENTRY}: expected version {_dotted(MINIMUM_VERSION)} or a later one, found "
            f"{_dotted(version)}"
        )
    device_type = _text(path, "device_type", params.device_type)
    if not device_type:
        raise DeviceError(f"{path}: {_ENTRY}: expected a device_type, found none")
    sub_device_type = _text(path, "sub_device_type", params.sub_device_type)
    return Filled(device_type, sub_device_type, version, table, abi)


def _marked(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content + _MARK * _MARKED, len(content) + _MARKED)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _text(path: str, field: str, found: bytes | None) -> str:
    try:
        return (found or b"").decode()
    except UnicodeDecodeError:
        raise DeviceError(
            f"{path}: {_ENTRY}: expected {field} to be UTF-8, found {found!r}"
        ) from None


def _functions_of(table: ctypes.Array[ctypes.c_char], abi: ABI) -> dict[str, Any]:
    """The functions of a table that exist and that we call, as functions of ctypes, which run
    without the GIL."""
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address)
        for name, arguments in abi.functions.items()
        for address in (ctypes.c_void_p.from_buffer(table, abi.offsets[name]).value,)
        if address
    }


# ---- Loading -------------------------------------------------------------------------------------

# The devices by the system's library handles: one library has one handle under all its paths.
_names: dict[int, str] = {}


def load_device_plugin(path: str | os.PathLike[str]) -> str:
    """Loads a library that adds a kind of device: a plugin for PaddlePaddle's custom devices.

    Parameters
    ----------
    path
        The path of the library; a name without a folder is searched by the system's rules, if there
        is no such file.

    Returns
    -------
    str
        The kind's name: ``tvm.device(name, 0)`` is the first of its devices. Loading a library
        again returns the same name.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        When there is another kind of device of that name.
    DeviceError
        When it is no plugin, or one that can't be used; nothing is registered then.

    Examples
    --------
    >>> load_device_plugin("nowhere/libnpu.so")
    Traceback (most recent call last):
        ...
    FileNotFoundError: load_device_plugin: expected a library, found no file nowhere/libnpu.so
    """
    library, where = _open(path)
    known = _names.get(library._handle)
    if known is not None and _brings(library, known):
        return known
    interface = PluginInterface(where, library)
    try:
        registry.register_device(interface.name, interface)
    except ValueError as error:
        if not _brings(library, interface.name):  # another thread may have loaded it
            raise ValueError(f"{where}: device_type {interface.name!r}: {error}") from None
    _names[library._handle] = interface.name
    return interface.name


def _open(path: str | os.PathLike[str]) -> tuple[ctypes.CDLL, str]:
    given: object = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(given, str):
        raise TypeError(
            f"load_device_plugin: expected the path of a library, got {type(given).__name__}"
        )
    is_file = os.path.exists(given)
    if not is_file and os.path.dirname(given):
        raise FileNotFoundError(f"load_device_plugin: expected a library, found no file {given}")
    where = os.path.abspath(given) if is_file else given
    try:
        return ctypes.CDLL(where), where
    except OSError as error:
        raise DeviceError(
            f"{given}: expected a device plugin, a library that can be loaded: {error}"
        ) from error


def _brings(library: ctypes.CDLL, name: str) -> bool:
    """Whether the kind of device of that name comes from this library."""
    number = DEVICE_TYPES.get(name)
    driver = None if number is None else registry.driver_of(number)
    interface = None if driver is None else driver.interface
    return isinstance(interface, PluginInterface) and interface.handle == library._handle
