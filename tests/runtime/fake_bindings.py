"""A stand-in for cuda.bindings.driver: real enumerations and structures, functions that record what they are given.

No libcuda is loaded. ``results`` chooses what a function returns as CUresult; ``calls`` lists every call in order.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import zlib
from typing import Any

from cuda.bindings import driver as real

FUNCTION_ATTRIBUTES = {
    "NUM_REGS": 40,
    "LOCAL_SIZE_BYTES": 16,
    "SHARED_SIZE_BYTES": 64,
    "CONST_SIZE_BYTES": 400,
    "MAX_THREADS_PER_BLOCK": 1024,
}
DEVICE_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}
PRIMARY = 0x1000
CODE = real.CUresult.CUDA_SUCCESS


ATTRIBUTES = {2: "COOPERATIVE", 4: "CLUSTER_DIMENSION", 6: "PROGRAMMATIC_STREAM_SERIALIZATION"}
"""CUlaunchAttributeID (cuda.h)."""


class FakeFunction(str):
    """A CUfunction that shows its name."""

    def __int__(self) -> int:
        return zlib.crc32(self.encode())


class FakeBindings:
    def __init__(self, version: int = 13000, info: str = "", errors: str = "", sizes: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: dict[str, real.CUresult] = {}
        self._of_thread = threading.local()
        self.driver_version = version
        self.info, self.errors = info, errors
        self.parameter_sizes = sizes
        self.sizes_of: dict[str, tuple[int, ...]] = {}  # by kernel, where they differ
        self.device_of_pointers = 0
        self.capture_mode = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self.modes_of_loads: list[str] = []
        self.launched: list[dict[str, Any]] = []
        self.encoded: list[dict[str, Any]] = []
        self.handles: dict[int, FakeFunction] = {}
        self._by_address = {
            b"cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(ctypes.c_int, *_ENCODE_ARGUMENTS)(self._encode_tiled),
            b"cuLaunchKernelEx": self.function_of("cuLaunchKernelEx", self._launch),
            b"cuCtxGetCurrent": self.function_of("cuCtxGetCurrent", self._get_current),
            b"cuCtxPushCurrent": self.function_of("cuCtxPushCurrent", self._push),
            b"cuCtxPopCurrent": self.function_of("cuCtxPopCurrent", self._pop),
        }

    def __getattr__(self, name: str) -> Any:
        """Enumerations and structures are the real ones; a function that is not faked is a mistake of the test."""
        if not name.startswith("CU"):
            raise AttributeError(name)
        return getattr(real, name)

    @property
    def stack(self) -> list[int]:
        """The calling thread's contexts."""
        if not hasattr(self._of_thread, "stack"):
            self._of_thread.stack = []
        return self._of_thread.stack

    def _returns(self, call: str, *values: Any) -> tuple[Any, ...]:
        return (self.results.get(call, CODE), *values)

    def cuGetErrorName(self, error: real.CUresult) -> tuple[Any, ...]:
        return CODE, error.name.encode()

    def cuGetErrorString(self, error: real.CUresult) -> tuple[Any, ...]:
        return CODE, f"text of {error.name}".encode()

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        self.calls.append(("cuInit",))
        return self._returns("cuInit")

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return self._returns("cuDriverGetVersion", self.driver_version)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return self._returns("cuDeviceGet", ordinal)

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return self._returns("cuDeviceGetAttribute", DEVICE_ATTRIBUTES[name])

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.calls.append(("retain", int(device)))
        return self._returns("cuDevicePrimaryCtxRetain", PRIMARY + int(device))

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return self._returns("cuCtxGetCurrent", self.stack[-1] if self.stack else 0)

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        self.calls.append(("push", context))
        self.stack.append(context)
        return self._returns("cuCtxPushCurrent")

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        self.calls.append(("pop",))
        return self._returns("cuCtxPopCurrent", self.stack.pop())

    def cuPointerGetAttribute(self, attribute: Any, address: int) -> tuple[Any, ...]:
        assert attribute.name == "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"
        return self._returns("cuPointerGetAttribute", self.device_of_pointers)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        assert flags == real.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self._returns("cuEventCreate", "event")

    def cuEventRecord(self, event: str, stream: int) -> tuple[Any, ...]:
        self.calls.append(("record", stream))
        return self._returns("cuEventRecord")

    def cuStreamWaitEvent(self, stream: int, event: str, flags: int) -> tuple[Any, ...]:
        assert flags == 0
        self.calls.append(("wait", stream, self.stack[-1] if self.stack else 0))
        return self._returns("cuStreamWaitEvent")

    def cuEventDestroy(self, event: str) -> tuple[Any, ...]:
        return self._returns("cuEventDestroy")

    def cuThreadExchangeStreamCaptureMode(self, mode: real.CUstreamCaptureMode) -> tuple[Any, ...]:
        before, self.capture_mode = self.capture_mode, mode
        return self._returns("cuThreadExchangeStreamCaptureMode", before)

    def cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Any], values: list[Any]) -> tuple[Any, ...]:
        given = {option.name.removeprefix("CU_JIT_"): value for option, value in zip(options, values, strict=True)}
        assert count == len(options)
        for name, text in (("INFO", self.info), ("ERROR", self.errors)):
            encoded = text.encode() + b"\0"
            assert len(given[f"{name}_LOG_BUFFER"]) == given[f"{name}_LOG_BUFFER_SIZE_BYTES"]
            given[f"{name}_LOG_BUFFER"][: len(encoded)] = encoded
        self.calls.append(("load", image, given, self.stack[-1] if self.stack else 0))
        self.modes_of_loads.append(self.capture_mode.name.removeprefix("CU_STREAM_CAPTURE_MODE_"))
        return self._returns("cuModuleLoadDataEx", "module")

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        function = FakeFunction("function " + name.decode())
        self.handles[int(function)] = function
        return self._returns("cuModuleGetFunction", function)

    def cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple[Any, ...]:
        name = attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")
        return self._returns("cuFuncGetAttribute", FUNCTION_ATTRIBUTES[name])

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        self.calls.append(("set", function, attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return self._returns("cuFuncSetAttribute")

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[Any, ...]:
        assert config.numAttrs == len(config.attrs)
        self._launch(config.getPtr(), int(function), parameters, extra)
        return self._returns("cuLaunchKernelEx")

    def _launch(self, config: int, function: int, parameters: int, extra: int) -> int:
        """The C function. CUlaunchConfig: grid, block, shared bytes, stream, attributes, their number;
        CUlaunchAttribute: id, padding to 8, 64 bytes of value (cuda.h)."""
        assert not extra
        *dimensions, shared, stream, attributes_at, count = struct.unpack("7I4xQQI", ctypes.string_at(config, 52))
        attributes: dict[str, Any] = {}
        for index in range(count):
            kind, x, y, z = struct.unpack("I4x3I", ctypes.string_at(attributes_at + 72 * index, 20))
            attributes[ATTRIBUTES[kind]] = (x, y, z) if ATTRIBUTES[kind] == "CLUSTER_DIMENSION" else x
        sizes = self.sizes_of.get(self.handles[function].removeprefix("function "), self.parameter_sizes)
        pointers = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        self.launched.append(
            {
                "function": self.handles[function],
                "grid": tuple(dimensions[:3]),
                "block": tuple(dimensions[3:]),
                "shared": shared,
                "stream": stream,
                "attributes": attributes,
                "context": self.stack[-1] if self.stack else 0,
                "parameters": [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)],
                "alignments": [pointer % 64 for pointer in pointers],
            }
        )
        return int(self.results.get("cuLaunchKernelEx", CODE))

    def map_of(self, content: bytes) -> dict[str, Any]:
        """What was encoded into these 128 bytes."""
        word = int.from_bytes(content[:4], "little")
        assert content == content[:4] * 32 and word
        return self.encoded[(word if word % 0x01010101 else word & 0xFF) - 1]

    @staticmethod
    def function_of(name: str, function: Any) -> Any:
        """A C function that does ``function``, with the arguments of the driver's function ``name``."""
        pointer = ctypes.c_void_p
        kinds = {"cuLaunchKernelEx": (pointer,) * 4}
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds.get(name, (pointer,)))(function)

    def _push(self, context: int) -> int:
        return int(self.cuCtxPushCurrent(context)[0])

    def _pop(self, out: int) -> int:
        result, context = self.cuCtxPopCurrent()
        ctypes.c_void_p.from_address(out).value = context
        return int(result)

    def _get_current(self, out: int) -> int:
        result = self.results.get("cuCtxGetCurrent", CODE)
        if result == 0:
            ctypes.c_void_p.from_address(out).value = self.stack[-1] if self.stack else 0
        return int(result)

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[Any, ...]:
        return self._returns("cuGetProcAddress", ctypes.cast(self._by_address[name], ctypes.c_void_p).value, 0)

    def _encode_tiled(self, out: int, kind: int, rank: int, address: int, sizes: int, strides: int, *rest: int) -> int:
        box, element_strides, interleave, swizzle, promotion, fill = rest
        self.encoded.append(
            {
                "aligned": out % 64 == 0,
                "data_type": kind,
                "address": address,
                "dimensions": tuple((ctypes.c_uint64 * rank).from_address(sizes)),
                "strides": tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)),
                "box": tuple((ctypes.c_uint32 * rank).from_address(box)),
                "element_strides": tuple((ctypes.c_uint32 * rank).from_address(element_strides)),
                "modes": (interleave, swizzle, promotion, fill),
            }
        )
        number = len(self.encoded)  # map number n is filled with the byte n, from 256 with the 32-bit word n
        word = number * 0x01010101 if number < 256 else number
        ctypes.memmove(out, struct.pack("32I", *(word,) * 32), 128)
        return int(self.results.get("cuTensorMapEncodeTiled", CODE))


_ENCODE_ARGUMENTS = (
    ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
)  # fmt: skip
