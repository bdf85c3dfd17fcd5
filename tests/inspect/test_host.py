"""The host part as text."""

from __future__ import annotations

from ptxtile.inspect.host import render_host
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)

M, N = Symbol("M"), Symbol("N")


def test_everything_is_shown() -> None:
    record = LaunchRecord(
        "add",
        (
            TensorArgument("A", "float32", (M, N), (N, 1), 16),
            TensorArgument("B", "float32", (M, N), (Symbol("s"), 1), 4, unused=True),
            ScalarArgument("scale", "bfloat16"),
        ),
        allocations=(Allocation("C", "float32", (M,)),),
        tensor_maps=(TensorMapRecord("A_map", "A", "float32", (N, M), (SizeOperation("mul", N, 4),), (32, 64), 128),),
        launches=(
            KernelLaunch(
                "add_kernel",
                (SizeOperation("floordiv", N, 64), M, 1),
                (128, 1, 1),
                32768,
                (
                    KernelParameter("pointer", "C"),
                    KernelParameter("tensor_map", "A_map"),
                    KernelParameter("scalar", "M", "int32", M),
                    KernelParameter("scalar", "scale", "bfloat16"),
                    KernelParameter("scalar", "rows", "int64", SizeOperation("mul", M, 2)),
                ),
                cluster=(2, 1, 1),
                cooperative=True,
                dependent_launch=True,
            ),
        ),
        returns=("C",),
        divisibilities=(Divisibility(N, 4),),
    )
    assert (
        render_host(record)
        == """\
host part of add
  arguments
    A: float32 (M, N), strides (N, 1), base aligned to 16 bytes; gives M, N
    B: float32 (M, N), strides (s, 1), base aligned to 4 bytes; gives s; may be None, never touched
    scale: bfloat16, a number
  checks
    N is a multiple of 4
  allocations
    C: float32 (M,), contiguous
  tensor maps
    A_map of A: float32, dimensions (N, M), strides ((N * 4),) bytes, box (32, 64), swizzle 128, L2 promotion 128 bytes
  launch 0: add_kernel
    grid ((N // 64), M, 1) CTAs, block (128, 1, 1) threads
    dynamic shared memory: 32768 bytes
    cluster (2, 1, 1) CTAs
    cooperative: all CTAs resident at once
    may start before the kernel ahead of it in the stream has ended
    parameter 0: address of C
    parameter 1: tensor map A_map, 128 bytes
    parameter 2: M: int32
    parameter 3: scale: bfloat16
    parameter 4: rows: int64 = (M * 2)
  returns
    C
"""
    )
