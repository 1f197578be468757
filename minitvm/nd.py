"""Arrays, under the names of classic ``tvm.nd``."""

from minitvm.runtime.device import Device as Device
from minitvm.runtime.device import cpu as cpu
from minitvm.runtime.device import device as device
from minitvm.runtime.device import ext_dev as ext_dev
from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.runtime.interchange import from_dlpack as from_dlpack
from minitvm.runtime.ndarray import NDArray as NDArray
from minitvm.runtime.ndarray import array as array
from minitvm.runtime.ndarray import empty as empty

_hand_on(__name__)
