"""Names that TileLang has and this language has not: which never will be, and which are not there yet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from ptxtile.errors import TraceError
from ptxtile.frontend.locations import user_location

_CPP_SOURCE = frozenset((
    "call_extern", "call_pure_extern", "import_source", "CUDASourceCodeKernel", "call_packed", "call_cpacked",
    "call_llvm_intrin", "call_llvm_pure_intrin", "annotate_compile_flags", "call_intrin",
))  # fmt: skip
_LATER = frozenset((
    "gemm_sp", "gemm_blockscaled", "wgmma_gemm", "tcgen05_gemm", "reduce", "reduce_sum",
    "reduce_max", "reduce_min", "reduce_abssum", "reduce_absmax", "reduce_bitand", "reduce_bitor", "reduce_bitxor",
    "cumsum", "cummax", "any_of", "all_of", "warp_reduce_sum", "warp_reduce_max", "warp_reduce_min",
    "warp_reduce_bitand", "warp_reduce_bitor", "finalize_reducer", "alloc_reducer",
    "alloc_global", "alloc_tmem", "async_copy", "copy_cluster", "im2col",
    "c2d_im2col", "transpose", "ldg32", "ldg64", "ldg128", "ldg256", "stg32", "stg64", "stg128", "stg256",
    "pdl_trigger", "pdl_sync",
    "annotate_l2_hit_ratio", "access_ptr", "ptr",
    "make_tensor", "make_tensor_from_addr", "match_buffer",
    "acosh", "asinh", "atanh", "hypot", "copysign", "ldexp", "nextafter", "fast_rcp", "ieee_add", "ieee_sub",
    "ieee_mul", "ieee_fmaf", "ieee_frcp", "ieee_fsqrt", "ieee_frsqrt", "ieee_fdiv", "add2", "sub2", "mul2", "fma2",
    "max2", "min2", "abs2", "dp4a", "rng_init", "rng_rand", "rng_rand_float", "__exp", "__exp10", "__log", "__log2",
    "__log10", "__sin", "__cos", "__tan", "__ldg", "loop_break",
))  # fmt: skip


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
    if name in _LATER:
        raise LanguageNameError(f"T.{name} is not supported yet", location=location)
    close = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], n=3)
    raise LanguageNameError(
        f"the language has no T.{name}",
        location=location,
        hint="did you mean " + " or ".join(f"T.{match}" for match in close) + "?" if close else None,
    )
