"""ptxtile: a tile-kernel language in Python whose compiler goes straight to PTX.

``import ptxtile`` is light: the compiler, torch and the CUDA bindings are loaded when they are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ptxtile import autotuner, carver, cuda, errors, language, layout, profile, profiler, testing, transform, utils
    from ptxtile.compiled_programs import disable_cache, enable_cache, is_cache_enabled
    from ptxtile.config import set_log_level
    from ptxtile.frontend.dtypes import DataType
    from ptxtile.host_arithmetic import cdiv, next_power_of_2
    from ptxtile.jit import compile, jit
    from ptxtile.jit_factory import JITFactory
    from ptxtile.jit_function import JITFunction
    from ptxtile.kernel import JITKernel
    from ptxtile.operators.register import torch_op
    from ptxtile.pass_configs import PassConfigKey
    from ptxtile.profile.supply import TensorSupplyType
    from ptxtile.tune.compile_many import compile_many, par_compile
    from ptxtile.tune.decorator import autotune

_WHERE = {
    "DataType": "ptxtile.frontend.dtypes",
    "JITFactory": "ptxtile.jit_factory",
    "JITFunction": "ptxtile.jit_function",
    "compile": "ptxtile.jit",
    "jit": "ptxtile.jit",
    "JITKernel": "ptxtile.kernel",
    "PassConfigKey": "ptxtile.pass_configs",
    "TensorSupplyType": "ptxtile.profile.supply",
    "autotune": "ptxtile.tune.decorator",
    "cdiv": "ptxtile.host_arithmetic",
    "compile_many": "ptxtile.tune.compile_many",
    "disable_cache": "ptxtile.compiled_programs",
    "enable_cache": "ptxtile.compiled_programs",
    "is_cache_enabled": "ptxtile.compiled_programs",
    "next_power_of_2": "ptxtile.host_arithmetic",
    "par_compile": "ptxtile.tune.compile_many",
    "set_log_level": "ptxtile.config",
    "torch_op": "ptxtile.operators.register",
}
_MODULES = (
    "autotuner", "carver", "cuda", "errors", "language", "layout", "profile", "profiler", "testing", "transform",
    "utils",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"ptxtile.{name}")
    if name == "tvm":
        raise ImportError(
            "there is no TVM in ptxtile: DataType is ptxtile.DataType, and what a kernel takes from tvm.tirx (const, "
            "Cast, reinterpret, Select, PrimExpr, Var) is in ptxtile.language: `import ptxtile.language as tirx`"
        )
    if name not in _WHERE:
        raise AttributeError(f"module 'ptxtile' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


__all__ = [
    "DataType", "JITFactory", "JITFunction", "JITKernel", "PassConfigKey", "TensorSupplyType", "__version__",
    "autotune", "autotuner", "carver", "cdiv", "compile", "compile_many", "cuda", "disable_cache", "enable_cache",
    "errors", "is_cache_enabled", "jit", "language", "layout", "next_power_of_2", "par_compile", "profile", "profiler",
    "set_log_level", "testing", "torch_op", "transform", "utils",
]  # fmt: skip
