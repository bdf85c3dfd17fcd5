"""Launches the hand-written GEMM of ``gemm_probe.py`` through the CUDA driver's C interface."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from gemm_probe import COLUMNS, DEPTH_BYTES, ROWS, SHARED_BYTES, THREADS, Variant, ptx_of


def contender(variant: Variant, a: Any, b: Any, c: Any, multiprocessors: int) -> Callable[[], object]:
    """Launches a variant: a [M, K], b [N, K] → c [M, N] bfloat16. CUDA tensors, contiguous; ``variant.fits`` them."""
    import torch

    (m, k), n = a.shape, b.shape[0]
    driver, function = loaded(variant)
    part = COLUMNS // variant.cluster
    maps = [
        driver.tensor_map(a, (DEPTH_BYTES // a.element_size(), ROWS)),
        driver.tensor_map(b, (DEPTH_BYTES // b.element_size(), part)),
        driver.tensor_map(c, (64, 64)),
    ]
    scalars = [ctypes.c_int(size) for size in (m, n, k)]
    arguments = (ctypes.c_void_p * 6)(*(address for _, address in maps), *(ctypes.addressof(s) for s in scalars))
    ctas = multiprocessors // variant.cluster * variant.cluster
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def launch(keep: object = (a, b, c, maps, scalars)) -> None:
        driver.check(
            driver.cuda.cuLaunchKernel(
                function, ctas, 1, 1, THREADS, 1, 1, SHARED_BYTES, stream, arguments, None
            ),
            "cuLaunchKernel",
        )  # fmt: skip

    return launch


@functools.cache
def loaded(variant: Variant) -> tuple[Driver, ctypes.c_void_p]:
    """The kernel of a variant, compiled once for all sizes."""
    driver = Driver()
    return driver, driver.load(ptx_of(variant))


class Driver:
    """The few calls of the CUDA driver that the probe needs, in torch's context."""

    BFLOAT16, UINT8 = 9, 0
    """CUtensorMapDataType (cuda.h)."""
    SWIZZLE_128, L2_PROMOTE_128 = 3, 2
    """CUtensorMapSwizzle and CUtensorMapL2promotion (cuda.h)."""
    MAX_DYNAMIC_SHARED = 8
    """CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES (cuda.h)."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")

    @staticmethod
    def check(result: int, call: str) -> None:
        if result:
            raise RuntimeError(f"{call} of the probe: CUDA driver error {result}")

    def load(self, ptx: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), ptx.encode() + b"\0"), "cuModuleLoadData")
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"gemm"), "cuModuleGetFunction")
        self.check(self.cuda.cuFuncSetAttribute(function, self.MAX_DYNAMIC_SHARED, SHARED_BYTES), "cuFuncSetAttribute")
        return function

    def tensor_map(self, tensor: Any, box: tuple[int, int]) -> tuple[object, int]:
        """The map of a matrix, innermost dimension first, and its address, which is a multiple of 64."""
        rows, columns = tensor.shape
        room = ctypes.create_string_buffer(128 + 64)
        address = -(-ctypes.addressof(room) // 64) * 64
        kind = self.BFLOAT16 if tensor.element_size() == 2 else self.UINT8
        self.check(
            self.cuda.cuTensorMapEncodeTiled(
                ctypes.c_void_p(address), kind, 2, ctypes.c_void_p(tensor.data_ptr()),
                (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * tensor.element_size()),
                (ctypes.c_uint32 * 2)(*box), (ctypes.c_uint32 * 2)(1, 1), 0, self.SWIZZLE_128, self.L2_PROMOTE_128, 0,
            ),
            "cuTensorMapEncodeTiled",
        )  # fmt: skip
        return room, address
