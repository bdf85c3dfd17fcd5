"""The language of kernels: ``import ptxtile.language as T``. Names, argument order and meanings are TileLang's.

Names with two underscores in front (``T.__exp``) are the functions without them: approximate instructions are an option
of a whole kernel, ``fast_math=True``.
"""

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
from ptxtile.frontend.annotate_layouts import annotate_layout
from ptxtile.frontend.annotations import Buffer, StridedTensor, Tensor, const, dynamic, symbolic
from ptxtile.frontend.annotations import SizeVariable as Var
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
from ptxtile.frontend.block_functions import sync_grid, syncthreads_and, syncthreads_count, syncthreads_or
from ptxtile.frontend.clusters import (
    alloc_cluster_barrier,
    block_rank_in_cluster,
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_sync,
    cluster_wait,
    get_cluster_dims,
    get_cluster_extent,
    get_cluster_extents,
    get_cluster_id,
    get_cluster_ids,
    get_cluster_size,
    ptx_arrive_cluster_barrier,
)
from ptxtile.frontend.convolution import im2col
from ptxtile.frontend.dtypes import DATA_TYPES as _DATA_TYPES
from ptxtile.frontend.dtypes import DataType as dtype
from ptxtile.frontend.functions import macro, prim_func
from ptxtile.frontend.gemm import GemmWarpPolicy, gemm
from ptxtile.frontend.inline_ptx import ptx
from ptxtile.frontend.kernel_annotations import (
    annotate_l2_hit_ratio,
    annotate_min_blocks_per_sm,
    annotate_safe_value,
    assume,
    device_assert,
    disable_warp_group_reg_alloc,
    no_set_max_nreg,
    pdl_sync,
    pdl_trigger,
    use_swizzle,
)
from ptxtile.frontend.kernel_launch import (
    ClusterKernel,
    Kernel,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
    thread_binding,
)
from ptxtile.frontend.layouts import Fragment, Layout
from ptxtile.frontend.loops import (
    Parallel,
    Persistent,
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
from ptxtile.frontend.manual_control import (
    WarpSpecialize,
    alloc_barrier,
    barrier_arrive,
    barrier_wait,
    dec_max_nreg,
    fence_proxy_async,
    inc_max_nreg,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_wait_parity,
    named_barrier_arrive,
    set_max_nreg,
    shuffle_elect,
    sync_threads,
    tma_copy,
    tma_store_arrive,
    tma_store_wait,
    ws,
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
from ptxtile.frontend.mathematics import ffs as _ffs
from ptxtile.frontend.mathematics import if_then_else as Select
from ptxtile.frontend.mathematics import max_ as max
from ptxtile.frontend.mathematics import min_ as min
from ptxtile.frontend.mathematics import pow_ as pow
from ptxtile.frontend.mathematics import round_ as round
from ptxtile.frontend.mathematics import typed_cast as Cast
from ptxtile.frontend.swizzles import get_swizzle_layout, make_mma_swizzle_layout
from ptxtile.frontend.tile_operations import clear, copy, fill
from ptxtile.frontend.tile_operations import print_ as print
from ptxtile.frontend.unavailable import refuse as _refuse
from ptxtile.frontend.values import Value as PrimExpr
from ptxtile.frontend.warp_functions import (
    activemask,
    all_sync,
    any_sync,
    ballot,
    ballot_sync,
    get_lane_idx,
    get_warp_group_idx,
    get_warp_idx,
    get_warp_idx_sync,
    match_all_sync,
    match_any_sync,
    shfl_down,
    shfl_sync,
    shfl_up,
    shfl_xor,
    sync_warp,
    tvm_warp_shuffle,
)

bool = _DATA_TYPES["bool"]
int4, int8, int16, int32, int64 = (_DATA_TYPES[f"int{bits}"] for bits in (4, 8, 16, 32, 64))
uint4, uint8, uint16, uint32, uint64 = (_DATA_TYPES[f"uint{bits}"] for bits in (4, 8, 16, 32, 64))
float16, bfloat16, float32, float64 = (_DATA_TYPES[name] for name in ("float16", "bfloat16", "float32", "float64"))
tfloat32 = _DATA_TYPES["tfloat32"]
float8_e4m3fn, float8_e5m2 = _DATA_TYPES["float8_e4m3fn"], _DATA_TYPES["float8_e5m2"]
float8_e8m0fnu, float4_e2m1fn = _DATA_TYPES["float8_e8m0fnu"], _DATA_TYPES["float4_e2m1fn"]
float8_e4m3 = float8_e4m3fn
int, float, half, double, long = int32, float32, float16, float64, int64
short, ushort, uint, ulong = int16, uint16, uint32, uint64
__exp, __exp10, __log, __log2, __log10, __sin, __cos, __tan = exp, exp10, log, log2, log10, sin, cos, tan
__ffs = _ffs
c2d_im2col = im2col
SharedBuffer = FragmentBuffer = LocalBuffer = Tensor  # annotations of macros, which take any buffer


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    _refuse(name, globals())


__all__ = [
    "Buffer", "Cast", "ClusterKernel", "Fragment", "FragmentBuffer", "GemmWarpPolicy", "Kernel", "Layout",
    "LocalBuffer", "Parallel", "Persistent", "Pipelined", "PrimExpr", "Select", "Serial", "SharedBuffer",
    "StridedTensor", "Tensor", "Unroll", "Var", "Vectorized", "WarpSpecialize", "abs", "acos", "activemask",
    "align_up", "all_sync", "alloc_barrier", "alloc_cluster_barrier", "alloc_fragment", "alloc_local",
    "alloc_shared", "alloc_var", "annotate_l2_hit_ratio", "annotate_layout", "annotate_min_blocks_per_sm",
    "annotate_safe_value", "any_sync", "asin", "assume", "atan", "atan2", "atomic_add", "atomic_addx2",
    "atomic_addx4", "atomic_and", "atomic_exchange", "atomic_load", "atomic_max", "atomic_min", "atomic_or",
    "atomic_store", "atomic_xor", "ballot", "ballot_sync", "barrier_arrive", "barrier_wait", "bfloat16",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "block_rank_in_cluster", "bool", "c2d_im2col",
    "cast", "cdiv", "ceil", "ceildiv", "clamp", "clear", "cluster_arrive", "cluster_arrive_relaxed", "cluster_sync",
    "cluster_wait", "clz", "const", "copy", "cos", "cosh", "dec_max_nreg", "device_assert",
    "disable_warp_group_reg_alloc", "double", "dtype", "dynamic", "empty", "erf", "exp", "exp10", "exp2", "expm1",
    "fabs", "fence_proxy_async", "fill", "float", "float16", "float32", "float4_e2m1fn", "float64", "float8_e4m3",
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "floor", "floordiv", "floormod", "fma", "fmod", "gemm",
    "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents", "get_cluster_dims",
    "get_cluster_extent", "get_cluster_extents", "get_cluster_id", "get_cluster_ids", "get_cluster_size",
    "get_lane_idx", "get_swizzle_layout", "get_thread_binding", "get_thread_bindings", "get_thread_extent",
    "get_thread_extents", "get_warp_group_idx", "get_warp_idx", "get_warp_idx_sync", "grid", "half", "if_then_else",
    "im2col", "inc_max_nreg", "infinity", "int", "int16", "int32", "int4", "int64", "int8", "isfinite", "isinf",
    "isnan", "log", "log10", "log1p", "log2", "long", "macro", "make_mma_swizzle_layout", "match_all_sync",
    "match_any_sync", "max", "max_value", "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx",
    "mbarrier_wait_parity", "min", "min_value", "named_barrier_arrive", "nearbyint", "no_set_max_nreg", "parallel",
    "pdl_sync", "pdl_trigger", "popcount", "pow", "prim_func", "print", "ptx", "ptx_arrive_cluster_barrier",
    "reinterpret", "reshape", "rint", "round", "rsqrt", "serial", "set_max_nreg", "shfl_down", "shfl_sync",
    "shfl_up", "shfl_xor", "shift_left", "shift_right", "short", "shuffle_elect", "sigmoid", "sin", "sinh", "sqrt",
    "symbolic", "sync_grid", "sync_threads", "sync_warp", "syncthreads_and", "syncthreads_count", "syncthreads_or",
    "tan", "tanh", "tfloat32", "thread_binding", "tma_copy", "tma_store_arrive", "tma_store_wait", "trunc",
    "truncdiv", "truncmod", "tvm_warp_shuffle", "uint", "uint16", "uint32", "uint4", "uint64", "uint8", "ulong",
    "unroll", "use_swizzle", "ushort", "vectorized", "view", "ws",
]  # fmt: skip
