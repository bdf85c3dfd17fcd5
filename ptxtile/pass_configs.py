"""TileLang's pass configurations: which of them steer something here, and which are accepted without effect."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any

from ptxtile import config
from ptxtile.errors import PtxtileError
from ptxtile.lower.options import Options


class PassConfigKey(StrEnum):
    """Keys of ``pass_configs``, by TileLang's names; their strings are accepted as well."""

    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_ENABLE_AUTO_WARP_SPECIALIZATION = "tl.enable_auto_warp_specialization"
    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_ENABLE_PTXAS_VERBOSE_OUTPUT = "tl.enable_ptxas_verbose_output"


_PREFIXES = ("tl.", "tir.", "tirx.", "cuda.")


def options_from(base: Options, pass_configs: Mapping[Any, Any] | None) -> Options:
    """``base`` with what ``pass_configs`` says: an option of ours by name, or TileLang's key.

    A key of TileLang's that has no meaning here is logged and has no effect; any other unknown key is an error.
    """
    values = {field.name: getattr(base, field.name) for field in fields(Options)}
    for key, value in (pass_configs or {}).items():
        name = str(getattr(key, "value", key))
        if name in values:
            values[name] = value
        elif name == "tl.disable_tma_lower":
            values["disable_tma"] = bool(value)
        elif name == "tl.disable_wgmma":
            values["disable_wgmma"] = bool(value)
        elif name == "tl.disable_warp_specialized":
            values["specialize_warps"] = False if value else values["specialize_warps"]
        elif name == "tl.enable_auto_warp_specialization":
            values["specialize_warps"] = "auto" if value else False
        elif name in ("tl.enable_fast_math", "tl.disable_fast_math"):
            values["fast_math"] = bool(value) == (name == "tl.enable_fast_math")
        elif name.startswith(_PREFIXES):
            config.logger().info("the pass config %s has no effect here", name)
        else:
            close = difflib.get_close_matches(name, [*values, *(k.value for k in PassConfigKey)], n=3)
            raise PtxtileError(
                f"unknown pass config {name!r}",
                expected="one of " + ", ".join(values) + ", or a key of ptxtile.PassConfigKey",
                hint="did you mean " + " or ".join(close) + "?" if close else None,
            )
    return Options(**values)
