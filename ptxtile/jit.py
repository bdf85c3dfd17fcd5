"""``@ptxtile.jit`` and ``ptxtile.compile``: from a decorated function to kernels."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, TraceError
from ptxtile.frontend.functions import PrimFunc, UserFunction
from ptxtile.frontend.locations import user_location, without_our_frames
from ptxtile.jit_factory import JITFactory, kernel_of
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.lower.options import Options
from ptxtile.pass_configs import options_from
from ptxtile.variant import Settings

if TYPE_CHECKING:
    pass


def compile(
    func: PrimFunc | JITFunction | JITFactory,
    out_idx: int | Sequence[int] | None = None,
    target: Any = None,
    pass_configs: Mapping[Any, Any] | None = None,
    verbose: bool = False,
    execution_backend: Any = None,
    target_host: Any = None,
    **options: Any,
) -> JITKernel:
    """The kernel of a prim_func. ``out_idx``: parameters that the call allocates and returns. ``target``: an
    architecture such as ``"sm_90a"``, else that of the tensors' card. Options of the compiler by name."""
    try:
        settings = _settings(target, pass_configs, verbose, options)
        if isinstance(func, (JITFunction, JITFactory)):
            return func.compile()
        if not isinstance(func, PrimFunc):
            raise TraceError(
                f"ptxtile.compile of {func!r}", location=user_location(), expected="a function under @T.prim_func",
                got=type(func).__name__,
            )  # fmt: skip
        return kernel_of(func, out_idx, settings)
    except Exception as error:
        raise without_our_frames(error) from error.__cause__


def _settings(target: Any, pass_configs: Any, verbose: bool | None, options: Mapping[str, Any]) -> Settings:
    chosen = options_from(options_from(Options(), pass_configs), options)
    name = None if target in (None, "auto", "cuda") else getattr(target, "name", None) or str(target)
    if name is not None:
        from ptxtile.target import get

        name = get(name).name
    return Settings(chosen, name, bool(verbose))


def jit(
    func: Callable[..., Any] | None = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: Any = None,
    target_host: Any = None,
    execution_backend: Any = None,
    verbose: bool | None = False,
    pass_configs: Mapping[Any, Any] | None = None,
    debug_root_path: Any = None,
    mode: str | None = None,
    **options: Any,
) -> Any:
    """Makes a kernel of a function. Two forms:

    * eager: tensors are annotated in the body; a call compiles and runs, and returns what the function returns;
    * factory: the function takes sizes and returns a ``@T.prim_func``; a call gives a :class:`JITKernel`.

    Options of the compiler are given by name (``specialize_warps=True``, ``fast_math=True``) or in ``pass_configs``.
    """
    try:
        settings = _settings(target, pass_configs, verbose, options)
        if func is not None:
            return _jit(func, out_idx, mode, settings)
    except Exception as error:
        raise without_our_frames(error) from error.__cause__

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return _jit(function, out_idx, mode, settings)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    return decorate


def _jit(func: Callable[..., Any], out_idx: Any, mode: str | None, settings: Settings) -> Any:
    if isinstance(func, PrimFunc):
        return kernel_of(func, out_idx, settings)
    if mode not in (None, "auto", "lazy", "eager"):
        raise ArgumentError("mode of ptxtile.jit", expected="lazy or eager", got=repr(mode))
    factory = mode == "lazy" or (mode != "eager" and (out_idx is not None or _returns_prim_func(func)))
    return JITFactory(func, out_idx, settings) if factory else JITFunction(UserFunction(func), settings)


def _returns_prim_func(function: Callable[..., Any]) -> bool:
    """Whether the source defines a nested function under ``prim_func``, or declares no tensors and has no kernel."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False  # the trace says that there is no source
    nested = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)][1:]
    if any("prim_func" in ast.dump(decorator) for node in nested for decorator in node.decorator_list):
        return True
    parameters = set(inspect.signature(function).parameters)
    declared = (node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value is None)
    if any(isinstance(target, ast.Name) and target.id in parameters for target in declared):
        return False  # its kernel may be in a macro
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return "Kernel" not in names


class _CallableModule(ModuleType):
    """``ptxtile.jit`` is both this module, once somebody imports it by that name, and the decorator."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return jit(*args, **kwargs)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__


sys.modules[__name__].__class__ = _CallableModule
