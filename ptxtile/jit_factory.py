"""``@ptxtile.jit`` in the factory form: the function takes sizes and returns a prim_func, a call gives a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, PtxtileError, TraceError
from ptxtile.frontend.functions import PrimFunc
from ptxtile.frontend.locations import without_our_frames
from ptxtile.frontend.rewrite_source import definition_location
from ptxtile.frontend.trace import runtime_parameters
from ptxtile.jit_function import frozen
from ptxtile.kernel import JITKernel
from ptxtile.variant import Settings

if TYPE_CHECKING:
    pass


class JITFactory:
    """A function in the factory form: it takes sizes and returns a prim_func; a call gives a kernel."""

    def __init__(self, function: Callable[..., Any], out_idx: Any, settings: Settings) -> None:
        self.function = function
        self.out_idx = out_idx
        self.settings = settings
        self._kernels: dict[Any, JITKernel] = {}
        self._keep: list[Any] = []
        self._lock = threading.RLock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> JITKernel:
        key = (frozen(args), frozen(kwargs))
        kernel = self._kernels.get(key)
        if kernel is None:
            with self._lock:  # threads that call it at the same time share one kernel
                kernel = self._kernels.get(key)
                if kernel is None:
                    try:
                        kernel = self._kernels[key] = self._make(args, kwargs)
                    except Exception as error:
                        raise without_our_frames(error) from error.__cause__
                    self._keep.append((args, kwargs))
        return kernel

    def __reduce__(self) -> str:
        """Pickled by name, as functions are: a worker process imports its module, and finds it there."""
        return self.function.__qualname__

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """The kernel for factory arguments, compiled now."""
        kernel = self(*args, **kwargs)
        try:
            kernel.variant.compiled()
        except Exception as error:
            raise without_our_frames(error) from error.__cause__
        return kernel

    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any] | Sequence[Any]],
        num_workers: int | None = None,
        ignore_error: bool = False,
    ) -> list[JITKernel | PtxtileError]:
        """The kernels for several factory arguments (by name or in order), compiled side by side: see
        :func:`ptxtile.compile_many`."""
        from ptxtile.tune.compile_many import compile_many

        makers = [
            lambda given=given: self(**given) if isinstance(given, Mapping) else self(*given) for given in configs
        ]
        return compile_many(makers, workers=num_workers, ignore_error=ignore_error)

    def specialize(self, *args: Any, **kwargs: Any) -> JITKernel:
        """The kernel for factory arguments, before anything of it is traced or compiled."""
        return self(*args, **kwargs)

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The PTX of the kernel for factory arguments."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JITKernel:
        made = self.function(*args, **kwargs)
        if not isinstance(made, PrimFunc):
            raise TraceError(
                f"{self.function.__name__} under @jit returned {type(made).__name__}",
                location=definition_location(self.function), expected="a function under @T.prim_func",
                hint="in the eager form, annotate each tensor parameter in the body: `A: T.Tensor((M, N), T.float32)`",
            )  # fmt: skip
        return kernel_of(made, self.out_idx, self.settings)


def _outputs(function: PrimFunc, out_idx: Any) -> tuple[str, ...]:
    """The names of the output parameters that ``out_idx`` (an int or ints, negative from the end) means."""
    if out_idx is None:
        return ()
    indices = [out_idx] if isinstance(out_idx, int) else list(out_idx)
    names = tuple(function.python_signature.parameters)
    result = []
    for index in indices:
        if not isinstance(index, int) or not -len(names) <= index < len(names):
            raise ArgumentError(
                f"out_idx of {function.function.__name__}", got=repr(index),
                expected=f"{-len(names)} … {len(names) - 1} for its {len(names)} parameters",
            )  # fmt: skip
        result.append(names[index])
    return tuple(result)


def kernel_of(function: PrimFunc, out_idx: Any, settings: Settings) -> JITKernel:
    kernel = JITKernel(function, {}, settings, _outputs(function, out_idx))
    runtime = set(runtime_parameters(function))
    missing = [name for name in function.python_signature.parameters if name not in runtime]
    if missing:
        raise TraceError(
            f"the parameter {missing[0]} of the prim_func {function.function.__name__} has no annotation",
            location=function.rewritten.location, expected="T.Tensor(shape, dtype) or a dtype such as T.int32",
        )  # fmt: skip
    _ = kernel.signature
    return kernel
