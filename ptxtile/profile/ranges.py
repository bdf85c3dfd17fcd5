"""Names for kernels in a profiler's timeline: an NVTX range around each call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.Lock()
_plain: Callable[..., Any] | None = None


def enable(kernel_class: Any = None) -> None:
    """From now on each call of a kernel is inside an NVTX range of its function's name (``PTXTILE_NVTX=1`` does it from
    the start). Calls are then made from Python; without ranges they take nothing more than ever."""
    global _plain
    with _lock:
        if _plain is None:
            found = kernel_class or _kernel_class()
            plain = found._run
            found._run = _with_range(plain)
            _plain = plain
            _forget_native_calls()


def disable() -> None:
    """Calls are plain again."""
    global _plain
    with _lock:
        if _plain is not None:
            _kernel_class()._run = _plain
            _plain = None


def _kernel_class() -> Any:
    from ptxtile.kernel import JITKernel

    return JITKernel


def _forget_native_calls() -> None:
    """Calls that are made in native code would have no range."""
    from ptxtile.native import calls

    calls.forget()


@contextlib.contextmanager
def named_ranges() -> Iterator[None]:
    """Calls inside of the block have a range each."""
    enable()
    try:
        yield
    finally:
        disable()


def _with_range(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_in_range(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *_: Any) -> Any:
        """Without the form of the call, so that native code does not take it over."""
        import torch

        if not torch.cuda.is_available():  # nor are there ranges, in a torch without CUDA
            return run(self, args, kwargs)
        torch.cuda.nvtx.range_push(self.function.function.__name__)
        try:
            return run(self, args, kwargs)
        finally:
            torch.cuda.nvtx.range_pop()

    return run_in_range
