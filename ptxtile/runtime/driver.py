"""The CUDA driver API, through cuda-python's ``cuda.bindings.driver``: typed, checked, loaded when first asked for.

Nothing here runs at import. :func:`library` loads the bindings and libcuda; :func:`initialised` also calls cuInit and
is what everything that needs a card goes through. A failed call raises DriverError with the driver's name and text of
the error.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ptxtile.errors import DriverError
from ptxtile.records import record

ENCODE_TILED, LAUNCH_KERNEL, GET_CONTEXT = "cuTensorMapEncodeTiled", "cuLaunchKernelEx", "cuCtxGetCurrent"
PUSH_CONTEXT, POP_CONTEXT = "cuCtxPushCurrent", "cuCtxPopCurrent"
_PROTOTYPES = {
    ENCODE_TILED: ctypes.CFUNCTYPE(
        ctypes.c_int,  # CUresult
        ctypes.c_void_p,  # CUtensorMap*, 64-byte aligned
        ctypes.c_int,  # CUtensorMapDataType
        ctypes.c_uint32,  # rank
        ctypes.c_void_p,  # global address
        ctypes.c_void_p,  # const cuuint64_t dimensions[rank]
        ctypes.c_void_p,  # const cuuint64_t strides[rank - 1], bytes
        ctypes.c_void_p,  # const cuuint32_t box[rank]
        ctypes.c_void_p,  # const cuuint32_t element strides[rank]
        ctypes.c_int,  # CUtensorMapInterleave
        ctypes.c_int,  # CUtensorMapSwizzle
        ctypes.c_int,  # CUtensorMapL2promotion
        ctypes.c_int,  # CUtensorMapFloatOOBfill
    ),
    LAUNCH_KERNEL: ctypes.CFUNCTYPE(
        ctypes.c_int,  # CUresult
        ctypes.c_void_p,  # const CUlaunchConfig*
        ctypes.c_void_p,  # CUfunction
        ctypes.c_void_p,  # void* parameters[]
        ctypes.c_void_p,  # void* extra[]
    ),
    GET_CONTEXT: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),  # CUresult (CUcontext*)
    PUSH_CONTEXT: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),  # CUresult (CUcontext)
    POP_CONTEXT: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),  # CUresult (CUcontext*)
}
"""The functions of every launch, called by address, which takes a fifth of the time of a call through the bindings.
Besides, the bindings' CUtensorMap objects lie on 16-byte boundaries, and the driver wants 64."""


@record
class LaunchShape:
    """grid in CTAs, block in threads, dynamic shared memory in bytes, cluster in CTAs."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    dependent_launch: bool = False


class Driver:
    """Calls of the driver. ``bindings`` is the module ``cuda.bindings.driver`` (tests pass a stand-in).

    Handles are the bindings' own objects for modules and functions, plain integers for contexts, streams and addresses.
    ``primary_contexts``: by device, retained once for the life of the process (:mod:`ptxtile.runtime.context`).
    """

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings
        self.primary_contexts: dict[int, int] = {}
        self._by_address: dict[str, Any] = {}

    def check(self, call: str, returned: tuple[Any, ...]) -> Any:
        """The value of a call that returned ``(CUresult, value…)``. DriverError unless it is CUDA_SUCCESS (0)."""
        if returned[0] != 0:
            raise self.error(call, returned[0])
        if len(returned) == 2:
            return returned[1]
        return returned[1:] or None

    def error(self, call: str, result: Any) -> DriverError:
        name, text = self.describe(result)
        return DriverError(f"{call} failed: {name} ({int(result)}): {text}")

    def describe(self, result: Any) -> tuple[str, str]:
        """The driver's name and text for a result, such as CUDA_ERROR_INVALID_VALUE and «invalid argument»."""
        result = self.bindings.CUresult(result)
        parts = []
        for call in (self.bindings.cuGetErrorName, self.bindings.cuGetErrorString):
            status, text = call(result)
            parts.append(text.decode() if status == 0 and text else "")
        return parts[0] or result.name, parts[1] or "no description"

    # -- the driver and its devices

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that this driver supports, such as (13, 0). Needs no card."""
        version = self.check("cuDriverGetVersion", self.bindings.cuDriverGetVersion())
        return version // 1000, version % 1000 // 10

    def init(self) -> None:
        self.check("cuInit", self.bindings.cuInit(0))

    def device_count(self) -> int:
        return self.check("cuDeviceGetCount", self.bindings.cuDeviceGetCount())

    def device_attribute(self, device: int, name: str) -> int:
        """``name`` without its prefix CU_DEVICE_ATTRIBUTE_."""
        attribute = getattr(self.bindings.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name)
        handle = self.check("cuDeviceGet", self.bindings.cuDeviceGet(device))
        return self.check("cuDeviceGetAttribute", self.bindings.cuDeviceGetAttribute(attribute, handle))

    def device_name(self, device: int) -> str:
        handle = self.check("cuDeviceGet", self.bindings.cuDeviceGet(device))
        name = self.check("cuDeviceGetName", self.bindings.cuDeviceGetName(128, handle))
        return name.split(b"\0")[0].decode()

    def compute_capability(self, device: int) -> tuple[int, int]:
        return (
            self.device_attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            self.device_attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        )

    # -- contexts

    def retain_primary_context(self, device: int) -> int:
        """The device's primary context, the one that torch uses; it is made when nobody has made it yet."""
        handle = self.check("cuDeviceGet", self.bindings.cuDeviceGet(device))
        return int(self.check("cuDevicePrimaryCtxRetain", self.bindings.cuDevicePrimaryCtxRetain(handle)))

    def current_context(self) -> int:
        """The calling thread's context, 0: none."""
        return int(self.check("cuCtxGetCurrent", self.bindings.cuCtxGetCurrent()))

    def push_context(self, context: int) -> None:
        self.check("cuCtxPushCurrent", self.bindings.cuCtxPushCurrent(context))

    def pop_context(self) -> None:
        self.check("cuCtxPopCurrent", self.bindings.cuCtxPopCurrent())

    # -- memory and streams

    def device_of_pointer(self, address: int) -> int:
        """The number of the card that an address belongs to."""
        attribute = self.bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        call = f"cuPointerGetAttribute(DEVICE_ORDINAL, {address:#x})"
        return int(self.check(call, self.bindings.cuPointerGetAttribute(attribute, address)))

    def order_streams(self, producer: int, consumer: int) -> None:
        """Make what is enqueued on ``consumer`` from now on wait for what has been enqueued on ``producer``; the
        current context is that of ``consumer``."""
        bindings = self.bindings
        flags = int(bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = self.check("cuEventCreate", bindings.cuEventCreate(flags))
        try:
            self.check("cuEventRecord", bindings.cuEventRecord(event, producer))
            self.check("cuStreamWaitEvent", bindings.cuStreamWaitEvent(consumer, event, 0))
        finally:
            self.check("cuEventDestroy", bindings.cuEventDestroy(event))  # the wait keeps what it needs

    @contextmanager
    def captures_unharmed(self) -> Iterator[None]:
        """Inside, calls of this thread that a stream capture cannot record are allowed while one is under way: what
        they do is not part of the graph, and need not be (CUDA driver API, cuThreadExchangeStreamCaptureMode)."""
        exchange = self.bindings.cuThreadExchangeStreamCaptureMode
        relaxed = self.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.check("cuThreadExchangeStreamCaptureMode", exchange(relaxed))
        try:
            yield
        finally:
            self.check("cuThreadExchangeStreamCaptureMode", exchange(before))

    # -- modules

    def load_module(self, image: bytes, options: dict[str, Any]) -> tuple[Any, Any]:
        """(CUresult, module) of cuModuleLoadDataEx; ``options`` by name without the prefix CU_JIT_.

        PTX must end with a NUL byte. Log buffers are bytearrays that the driver writes into. The result is left to
        the caller: a refusal is a CompileError with the log.
        """
        names = [getattr(self.bindings.CUjit_option, "CU_JIT_" + name) for name in options]
        result, module = self.bindings.cuModuleLoadDataEx(image, len(names), names, list(options.values()))
        return result, module

    def get_function(self, module: Any, name: str) -> Any:
        return self.check(f"cuModuleGetFunction({name!r})", self.bindings.cuModuleGetFunction(module, name.encode()))

    def link(self, ptx: bytes, options: dict[str, Any]) -> bytes:
        """The cubin that the JIT makes of one PTX text (ending with a NUL byte); ``options`` as for
        :meth:`load_module`."""
        bindings = self.bindings
        names = [getattr(bindings.CUjit_option, "CU_JIT_" + name) for name in options]
        state = self.check("cuLinkCreate", bindings.cuLinkCreate(len(names), names, list(options.values())))
        try:
            kind = bindings.CUjitInputType.CU_JIT_INPUT_PTX
            self.check("cuLinkAddData", bindings.cuLinkAddData(state, kind, ptx, len(ptx), b"kernel", 0, [], []))
            address, size = self.check("cuLinkComplete", bindings.cuLinkComplete(state))
            return ctypes.string_at(int(address), size)  # the memory belongs to the link state
        finally:
            self.check("cuLinkDestroy", bindings.cuLinkDestroy(state))

    def unload_module(self, module: Any) -> None:
        self.check("cuModuleUnload", self.bindings.cuModuleUnload(module))

    def function_attribute(self, function: Any, name: str) -> int:
        """``name`` without its prefix CU_FUNC_ATTRIBUTE_."""
        attribute = getattr(self.bindings.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
        return self.check("cuFuncGetAttribute", self.bindings.cuFuncGetAttribute(attribute, function))

    def set_function_attribute(self, function: Any, name: str, value: int) -> None:
        attribute = getattr(self.bindings.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
        call = f"cuFuncSetAttribute({name}, {value})"
        self.check(call, self.bindings.cuFuncSetAttribute(function, attribute, value))

    # -- launching

    def launch_attributes(self, shape: LaunchShape) -> list[Any]:
        """The CUlaunchAttribute objects that ``shape`` asks for; they can be used for any number of launches."""
        bindings = self.bindings
        attributes = []
        if shape.cluster != (1, 1, 1):
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = shape.cluster
            attributes.append(attribute)
        if shape.cooperative:
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if shape.dependent_launch:
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        return attributes

    def launch_config(self, shape: LaunchShape, attributes: list[Any], stream: int) -> Any:
        """The CUlaunchConfig object of a launch; ``attributes`` must live as long."""
        config = self.bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared_bytes
        config.hStream = stream
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def launch(self, function: Any, shape: LaunchShape, attributes: list[Any], stream: int, parameters: int) -> Any:
        """cuLaunchKernelEx. ``parameters``: address of an array of pointers to the parameters. Returns the CUresult."""
        config = self.launch_config(shape, attributes, stream)
        return self.bindings.cuLaunchKernelEx(config, function, parameters, 0)[0]

    # -- calls by address

    def by_address(self, name: str) -> Any:
        """The driver's function ``name`` (one of the constants above) as a ctypes function that takes and returns plain
        integers. It gives up the interpreter's lock while it runs."""
        found = self._by_address.get(name)
        if found is None:
            asked = self.bindings.cuGetProcAddress(name.encode(), 12000, 0)
            address = self.check(f"cuGetProcAddress({name})", asked[:2])
            if not address:
                raise DriverError(f"this driver has no {name}", expected="a driver of CUDA 12.0 or newer")
            found = self._by_address[name] = _PROTOTYPES[name](int(address))
        return found


_lock = threading.Lock()
_library: Driver | None = None
_initialised_in: int | None = None


def library() -> Driver:
    """The driver library, loaded. DriverError when cuda-python or libcuda is missing."""
    global _library
    if _library is None:
        _library = Driver(_import_bindings())
        try:
            _library.version()
        except (RuntimeError, OSError) as error:  # cuda.bindings finds libcuda at its first call
            _library = None
            raise DriverError(
                "no CUDA driver on this machine",
                got=str(error).strip().split("\n")[0],
                hint="libcuda comes with the display driver; without it kernels compile, and run in the simulator",
            ) from error
    return _library


def initialised() -> Driver:
    """The driver after cuInit. DriverError when there is no card, or in a child forked from a process that used
    CUDA."""
    global _initialised_in
    if _initialised_in == os.getpid() and _library is not None:
        return _library
    if _initialised_in is not None:
        raise DriverError(
            "CUDA was first used before this process was forked, and cannot be used in a forked child",
            got=f"process {os.getpid()}, forked from {_initialised_in}",
            hint="start workers with the 'spawn' or 'forkserver' method of multiprocessing",
        )
    with _lock:
        driver = library()
        try:
            driver.init()
        except DriverError as error:
            raise DriverError(
                "there is no usable CUDA card", got=error.message, hint="run 'ptxtile doctor' to see what was found"
            ) from error
        _initialised_in = os.getpid()
    return driver


def _import_bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DriverError("cuda-python cannot be imported", got=str(error), hint="install cuda-python") from error
