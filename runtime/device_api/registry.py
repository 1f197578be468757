"""The devices of this process: their kinds, and the resources of each device."""

from __future__ import annotations

import atexit
import contextlib

from minitvm.runtime.device_api.cpu import HostMemory
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import REQUIRED, DeviceInterface
from minitvm.runtime.device_api.managed import ManagedDevice
from minitvm.runtime.device_type import DEVICE_TYPES, BareDevice, DeviceType, name_device_type
from minitvm.runtime.errors import DeviceError
from minitvm.runtime.lock import ForkLock

_drivers = {
    int(DeviceType.CPU): Driver("cpu", DeviceType.CPU, HostMemory()),
}
_managed: dict[BareDevice, ManagedDevice] = {}


# Held while a device is prepared.
_lock = ForkLock()


def register_device(
    name: str, interface: DeviceInterface, *, device_type: int | None = None
) -> int:
    """Adds a kind of device: ``tvm.device(name, 0)`` is then its first device, with arrays and
    streams.

    Parameters
    ----------
    name
        The name of the kind.
    interface
        The functions of the device: see :class:`DeviceInterface` and docs/devices.md.
    device_type
        Its number in DLPack, which other libraries use; by default a free number from 256 on.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        When `interface` is no DeviceInterface, or lacks a required function.
    ValueError
        When the name or the number is taken.
    DeviceError
        When it can't be initialised; nothing is registered then.
    """
    if not isinstance(name, str):
        raise TypeError(f"register_device: expected a name first, got {type(name).__name__}")
    if isinstance(interface, type) and issubclass(interface, DeviceInterface):
        raise TypeError(
            f"register_device: {name}: expected an instance, got the class "
            f"{interface.__name__}: pass {interface.__name__}()"
        )
    missing = [each for each in REQUIRED if not callable(getattr(interface, each, None))]
    if not isinstance(interface, DeviceInterface) or missing:
        lacking = f" without {', '.join(missing)}" if missing else ""
        raise TypeError(
            f"register_device: {name}: expected a DeviceInterface, got "
            f"{type(interface).__name__}{lacking}: derive it from DeviceInterface"
        )
    with _lock:
        number = name_device_type(name, device_type)
        driver = Driver(name, number, interface)
        try:
            driver.initialize()
        except BaseException:
            del DEVICE_TYPES[name]
            raise
        _drivers[number] = driver
    return number


def unregister_device(name: str) -> None:
    """Ends a kind of device that was registered.

    Raises
    ------
    ValueError
        When there is no kind of that name, or it has live arrays.
    DeviceError
        When it fails to end; it is unregistered nevertheless.
    """
    number = DEVICE_TYPES.get(name)
    if number is None or number not in _drivers or number in list(DeviceType):
        raise ValueError(f"unregister_device: expected a device that was registered, got {name!r}")
    with _lock:
        mine = _of_kind(number)
        for each in mine:
            if each.used_bytes:
                raise ValueError(
                    f"unregister_device: {each.device}: expected no array on it, found "
                    f"{each.used_bytes} bytes in use"
                )
        # Afterwards the name is free, even after a failure.
        with contextlib.ExitStack() as ends:
            ends.callback(_forget, name)
            ends.callback(_drivers[number].finalize)
            for each in mine:
                ends.callback(each.close)


def _forget(name: str) -> None:
    number = DEVICE_TYPES.pop(name)
    del _drivers[number]
    for each in _of_kind(number):
        del _managed[each.device]


def _of_kind(number: int) -> list[ManagedDevice]:
    return [each for each in _managed.values() if each.device.device_type == number]


def driver_of(device_type: int) -> Driver | None:
    """The driver of a kind of device, if there is one."""
    if device_type == DeviceType.EXT_DEV and device_type not in _drivers:
        # Most programs need no simulated device, nor its code.
        from minitvm.runtime.device_api.ext_dev import ExtDev

        _drivers.setdefault(device_type, Driver("ext_dev", device_type, ExtDev()))
    return _drivers.get(device_type)


def launches(name: str) -> bool:
    """Whether a kind of device, besides the CPU, launches code that was compiled for the CPU."""
    number = DEVICE_TYPES.get(name, DeviceType.CPU)
    driver = None if number == DeviceType.CPU else driver_of(number)
    return driver is not None and driver.provides("launch")


def kinds() -> list[str]:
    """The names of the registered kinds of devices."""
    driver_of(DeviceType.EXT_DEV)
    return [driver.name for driver in _drivers.values()]


def exists(device: BareDevice) -> bool:
    """Whether a device exists."""
    if device in _managed:
        return True
    driver = driver_of(device.device_type)
    try:
        return driver is not None and device.device_id in driver.get_device_list()
    except DeviceError:
        return False


def managed(device: BareDevice) -> ManagedDevice:
    """The resources of a device, which is prepared at its first use.

    Raises
    ------
    ValueError
        When there is no such device.
    """
    found = _managed.get(device)
    return _make_ready(device) if found is None else found


def _make_ready(device: BareDevice) -> ManagedDevice:
    with _lock:
        if device in _managed:
            return _managed[device]
        driver = driver_of(device.device_type)
        if driver is None or device.device_id not in driver.get_device_list():
            there = (
                BareDevice(number, each)
                for number, driver in _drivers.items()
                for each in driver.get_device_list()
            )
            raise ValueError(
                f"expected a device that is there ({', '.join(map(str, there))}), got {device}: "
                "minitvm.register_device and load_device_plugin add some"
            )
        driver.init_device(device)
        return _managed.setdefault(device, ManagedDevice(driver, device))


@atexit.register
def _close_all() -> None:
    """Ends all devices with the process; memory that arrays still have is left to the system."""
    with _lock:
        for number, driver in list(_drivers.items()):
            if number not in list(DeviceType):
                for each in _of_kind(number):
                    each.close()
                driver.finalize()
