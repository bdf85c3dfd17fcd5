"""Names that TileLang has and this language has not: which never will be, and which are not there yet."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

from ptxtile.errors import TraceError
from ptxtile.frontend.locations import user_location

_CPP_SOURCE = frozenset((
    "call_extern", "call_pure_extern", "import_source", "CUDASourceCodeKernel", "call_packed", "call_cpacked",
    "call_llvm_intrin", "call_llvm_pure_intrin", "annotate_compile_flags", "call_intrin",
))  # fmt: skip
_LATER = frozenset((
    "gemm_sp", "gemm_blockscaled", "tcgen05_gemm", "reduce", "reduce_sum", "reduce_max", "reduce_min",
    "reduce_abssum", "reduce_absmax", "reduce_bitand", "reduce_bitor", "reduce_bitxor", "cumsum", "cummax",
    "any_of", "all_of", "warp_reduce_sum", "warp_reduce_max", "warp_reduce_min", "warp_reduce_bitand",
    "warp_reduce_bitor", "finalize_reducer", "alloc_reducer", "alloc_global", "alloc_tmem", "copy_cluster",
    "transpose", "access_ptr", "ptr", "make_tensor", "make_tensor_from_addr",
    "match_buffer", "acosh", "asinh", "atanh", "hypot", "copysign", "ldexp", "nextafter", "fast_rcp", "ieee_add",
    "ieee_sub", "ieee_mul", "ieee_fmaf", "ieee_frcp", "ieee_fsqrt", "ieee_frsqrt", "ieee_fdiv", "add2", "sub2",
    "mul2", "fma2", "max2", "min2", "abs2", "dp4a", "rng_init", "rng_rand", "rng_rand_float",
    "annotate_restrict_buffers", "tma_gather4", "tma_scatter4", "tma_load_2sm", "clc_try_cancel",
    "tcgen05_mma_arrive", "tcgen05_gemm_sp", "tcgen05_gemm_blockscaled", "wgmma_gemm_sp", "mma_gemm_blockscaled",
    "PartialFragment", "reducer_init", "reducer_update",
))  # fmt: skip
_INSTEAD = {
    "loop_break": "write `break`",
    "break_loop": "write `break`",
    "continue_loop": "write `continue`",
    "thread_return": "put the rest under a condition",
    "wgmma_gemm": "T.gemm, which the compiler lets run on over the iterations of T.Pipelined",
    "wait_wgmma": "nothing: T.gemm is waited for where its result is needed",
    "warpgroup_arrive": "nothing: T.gemm does it",
    "warpgroup_commit_batch": "nothing: T.gemm does it",
    "warpgroup_wait": "nothing: T.gemm is waited for where its result is needed",
    "warpgroup_fence_operand": "nothing: T.gemm does it",
    "async_copy": "T.copy in T.Pipelined, with num_stages or with order and stage",
    "ptx_cp_async": "T.copy in T.Pipelined, with num_stages or with order and stage",
    "ptx_commit_group": "T.copy in T.Pipelined, with num_stages or with order and stage",
    "ptx_wait_group": "T.copy in T.Pipelined, with num_stages or with order and stage",
    "tma_load": "T.tma_copy, with a barrier",
    "create_tma_descriptor": "T.copy or T.tma_copy, which make it",
    "create_barriers": "T.alloc_barrier",
    "ptx_init_barrier_thread_count": "T.alloc_barrier, with the number of arrivals",
    "ptx_arrive_barrier": "T.barrier_arrive",
    "ptx_arrive_barrier_expect_tx": "T.mbarrier_expect_tx and T.barrier_arrive",
    "ptx_wait_barrier": "T.barrier_wait",
    "ptx_fence_barrier_init": "nothing: T.alloc_barrier does it",
    "annotate_producer_reg_dealloc": "nothing: the compiler counts registers; in T.ws, T.set_max_nreg",
    "annotate_consumer_reg_alloc": "nothing: the compiler counts registers; in T.ws, T.set_max_nreg",
    "annotate_ws_pipeline_depth": "T.Pipelined, with num_stages",
    "annotate_ws_schedule": "T.Pipelined, with order and stage, or T.ws",
    "PersistentTileScheduler": "T.Persistent, or a loop over tiles",
    "PipelinedPersistent": "T.Persistent around T.Pipelined",
    "evaluate": "the call alone, as a statement",
    "attr": "nothing: leave it out",
    "comm_reducer": "T.shfl_xor in a loop over the lanes, or T.atomic_add on a shared buffer",
    "tvm_thread_allreduce": "T.shfl_xor in a loop over the lanes, or T.atomic_add on a shared buffer",
    "launch_thread": "T.get_thread_binding, with the threads in T.Kernel",
    "alloc_buffer": "T.alloc_shared, T.alloc_fragment or T.alloc_local",
    "handle": "T.Tensor(shape, dtype) as the annotation of the parameter",
    "cp_async_barrier_noinc": "T.tma_copy with a barrier, or T.copy",
    "float8_e4m3fnuz": "T.float8_e4m3fn; e4m3fnuz is AMD's",
    "float8_e5m2fnuz": "T.float8_e5m2; e5m2fnuz is AMD's",
    "tvm_storage_sync": "T.sync_threads",
    "tvm_warp_activemask": "T.activemask",
    "ptx_mma": "T.gemm",
    "ptx_ldmatrix": "T.gemm",
}
"""What a kernel of this language has in place of a name of TileLang's."""
_WIDE_ACCESSES = (
    "plain accesses such as A[i] = x; those of T.Parallel and T.vectorized loops are as wide as they can be"
)
_INSTEAD |= dict.fromkeys(
    ("__ldg", *(f"{name}{bits}" for name in ("ldg", "stg", "lds", "sts") for bits in (32, 64, 128, 256))),
    _WIDE_ACCESSES,
)
_VECTOR = re.compile(r"(u?int|b?float)\d+\w*x\d+")


class LanguageNameError(TraceError, AttributeError):
    """A name that the language does not have; an AttributeError too, so that ``hasattr`` works."""


def refuse(name: str, known: Iterable[str]) -> NoReturn:
    """Raises for ``T.<name>`` with what can be done about it."""
    location = user_location()
    if name in _CPP_SOURCE:
        raise LanguageNameError(
            f"T.{name} uses C++ or CUDA source, which ptxtile cannot have: it compiles straight to PTX",
            location=location,
            hint="write what the source does with T operations, in a @T.macro",
        )
    if name in _INSTEAD:
        message = f"the language has no T.{name}"
        raise LanguageNameError(message, location=location, hint=f"in its place: {_INSTEAD[name]}")
    if name in _LATER:
        raise LanguageNameError(f"T.{name} is not supported yet", location=location)
    if _VECTOR.fullmatch(name):
        raise LanguageNameError(
            f"the language has no vector dtypes such as T.{name}", location=location,
            hint="write a T.vectorized loop over the elements",
        )  # fmt: skip
    close = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], n=3)
    raise LanguageNameError(
        f"the language has no T.{name}",
        location=location,
        hint="did you mean " + " or ".join(f"T.{match}" for match in close) + "?" if close else None,
    )
