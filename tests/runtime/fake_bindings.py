"""A stand-in for cuda.bindings.driver: real enumerations and structures, functions that record what they are given.

No libcuda is loaded. ``results`` chooses what a function returns as CUresult; ``calls`` lists every call in order.
"""

from __future__ import annotations

import ctypes
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


class FakeBindings:
    def __init__(self, version: int = 13000, info: str = "", errors: str = "", sizes: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: dict[str, real.CUresult] = {}
        self.stack: list[int] = []
        self.driver_version = version
        self.info, self.errors = info, errors
        self.parameter_sizes = sizes
        self.launched: list[dict[str, Any]] = []
        self.encoded: list[dict[str, Any]] = []
        self._encode = ctypes.CFUNCTYPE(ctypes.c_int, *_ENCODE_ARGUMENTS)(self._encode_tiled)

    def __getattr__(self, name: str) -> Any:
        """Enumerations and structures are the real ones; a function that is not faked is a mistake of the test."""
        if not name.startswith("CU"):
            raise AttributeError(name)
        return getattr(real, name)

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

    def cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Any], values: list[Any]) -> tuple[Any, ...]:
        given = {option.name.removeprefix("CU_JIT_"): value for option, value in zip(options, values, strict=True)}
        assert count == len(options)
        for name, text in (("INFO", self.info), ("ERROR", self.errors)):
            encoded = text.encode() + b"\0"
            assert len(given[f"{name}_LOG_BUFFER"]) == given[f"{name}_LOG_BUFFER_SIZE_BYTES"]
            given[f"{name}_LOG_BUFFER"][: len(encoded)] = encoded
        self.calls.append(("load", image, given, self.stack[-1] if self.stack else 0))
        return self._returns("cuModuleLoadDataEx", "module")

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        return self._returns("cuModuleGetFunction", "function " + name.decode())

    def cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple[Any, ...]:
        name = attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")
        return self._returns("cuFuncGetAttribute", FUNCTION_ATTRIBUTES[name])

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        self.calls.append(("set", function, attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return self._returns("cuFuncSetAttribute")

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[Any, ...]:
        pointers = (ctypes.c_void_p * len(self.parameter_sizes)).from_address(parameters)
        # Read now: the structures that config.attrs gives are views of memory that ends with the config.
        attributes = {}
        for attribute in config.attrs:
            name, value = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"), attribute.value
            cluster = (value.clusterDim.x, value.clusterDim.y, value.clusterDim.z)
            attributes[name] = cluster if name == "CLUSTER_DIMENSION" else value.cooperative
        assert config.numAttrs == len(attributes)
        self.launched.append(
            {
                "function": function,
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
                "shared": config.sharedMemBytes,
                "stream": int(config.hStream),
                "attributes": attributes,
                "context": self.stack[-1] if self.stack else 0,
                "parameters": [
                    ctypes.string_at(pointer, size)
                    for pointer, size in zip(pointers, self.parameter_sizes, strict=True)
                ],
                "alignments": [pointer % 64 for pointer in pointers],
            }
        )
        return self._returns("cuLaunchKernelEx")

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[Any, ...]:
        assert name == b"cuTensorMapEncodeTiled"
        return self._returns("cuGetProcAddress", ctypes.cast(self._encode, ctypes.c_void_p).value, 0)

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
        ctypes.memset(out, len(self.encoded), 128)  # map number n is filled with the byte n
        return int(self.results.get("cuTensorMapEncodeTiled", CODE))


_ENCODE_ARGUMENTS = (
    ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
)  # fmt: skip
