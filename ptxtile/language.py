"""The language of kernels: ``import ptxtile.language as T``. Names, argument order and meanings are TileLang's."""

from __future__ import annotations

from typing import Any

from ptxtile.frontend.allocation import (
    alloc_fragment,
    alloc_local,
    alloc_shared,
    alloc_var,
    empty,
    reshape,
    view,
)
from ptxtile.frontend.annotations import Buffer, StridedTensor, Tensor, const, dynamic, symbolic
from ptxtile.frontend.atomics import (
    atomic_add,
    atomic_addx2,
    atomic_addx4,
    atomic_and,
    atomic_exchange,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
    atomic_xor,
)
from ptxtile.frontend.dtypes import DATA_TYPES as _DATA_TYPES
from ptxtile.frontend.dtypes import DataType as dtype
from ptxtile.frontend.functions import macro, prim_func
from ptxtile.frontend.kernel_launch import (
    Kernel,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
)
from ptxtile.frontend.loops import (
    Parallel,
    Pipelined,
    Serial,
    Unroll,
    Vectorized,
    grid,
    parallel,
    serial,
    unroll,
    vectorized,
)
from ptxtile.frontend.mathematics import abs_ as abs
from ptxtile.frontend.mathematics import (
    acos,
    align_up,
    asin,
    atan,
    atan2,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cdiv,
    ceil,
    ceildiv,
    clamp,
    clz,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    exp10,
    expm1,
    fabs,
    floor,
    floordiv,
    floormod,
    fma,
    fmod,
    if_then_else,
    infinity,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    max_value,
    min_value,
    nearbyint,
    popcount,
    reinterpret,
    rint,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
)
from ptxtile.frontend.mathematics import cast_ as cast
from ptxtile.frontend.mathematics import if_then_else as Select
from ptxtile.frontend.mathematics import max_ as max
from ptxtile.frontend.mathematics import min_ as min
from ptxtile.frontend.mathematics import pow_ as pow
from ptxtile.frontend.mathematics import round_ as round
from ptxtile.frontend.gemm import GemmWarpPolicy, gemm
from ptxtile.frontend.tile_operations import clear, copy, fill
from ptxtile.frontend.tile_operations import print_ as print
from ptxtile.frontend.unavailable import refuse as _refuse

bool = _DATA_TYPES["bool"]
int4, int8, int16, int32, int64 = (_DATA_TYPES[f"int{bits}"] for bits in (4, 8, 16, 32, 64))
uint4, uint8, uint16, uint32, uint64 = (_DATA_TYPES[f"uint{bits}"] for bits in (4, 8, 16, 32, 64))
float16, bfloat16, float32, float64 = (_DATA_TYPES[name] for name in ("float16", "bfloat16", "float32", "float64"))
tfloat32 = _DATA_TYPES["tfloat32"]
float8_e4m3fn, float8_e5m2 = _DATA_TYPES["float8_e4m3fn"], _DATA_TYPES["float8_e5m2"]
float8_e8m0fnu, float4_e2m1fn = _DATA_TYPES["float8_e8m0fnu"], _DATA_TYPES["float4_e2m1fn"]
float8_e4m3 = float8_e4m3fn
int, float, half, double, long = int32, float32, float16, float64, int64


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    _refuse(name, globals())


__all__ = [
    "Buffer", "Kernel", "Parallel", "Pipelined", "Select", "Serial", "StridedTensor", "Tensor", "Unroll",
    "Vectorized", "abs", "acos", "align_up", "alloc_fragment", "alloc_local", "alloc_shared", "alloc_var", "asin",
    "atan", "atan2", "atomic_add", "atomic_addx2", "atomic_addx4", "atomic_and", "atomic_exchange", "atomic_load",
    "atomic_max", "atomic_min", "atomic_or", "atomic_store", "atomic_xor", "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "cast", "cdiv",
    "ceil", "ceildiv", "clamp", "clear", "clz", "const", "copy", "cos", "cosh", "double", "dtype", "dynamic",
    "empty", "erf", "exp", "exp10", "exp2", "expm1", "fabs", "fill", "float", "float16", "float32", "float4_e2m1fn",
    "float64", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "floor", "floordiv", "floormod",
    "fma", "fmod", "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents",
    "get_thread_binding", "get_thread_bindings", "get_thread_extent", "get_thread_extents", "grid", "half",
    "if_then_else", "infinity", "int", "int16", "int32", "int4", "int64", "int8", "isfinite", "isinf", "isnan",
    "log", "log10", "log1p", "log2", "long", "macro", "max", "max_value", "min", "min_value", "nearbyint",
    "parallel", "popcount", "pow", "prim_func", "print", "reinterpret", "reshape", "rint", "round", "rsqrt",
    "serial", "shift_left", "shift_right", "sigmoid", "sin", "sinh", "sqrt", "symbolic", "tan", "tanh", "tfloat32",
    "trunc", "truncdiv", "truncmod", "uint16", "uint32", "uint4", "uint64", "uint8", "unroll", "vectorized", "view",
]  # fmt: skip
