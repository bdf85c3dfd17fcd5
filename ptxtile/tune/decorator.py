"""``@ptxtile.autotune``: a jitted function that finds its own configuration, once for each kind of arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import update_wrapper
from typing import Any

from ptxtile.errors import ArgumentError
from ptxtile.jit_factory import JITFactory
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.profile.clocks import Clock
from ptxtile.profile.supply import TensorSupplyType
from ptxtile.tune.configurations import PASS_CONFIGS, expand
from ptxtile.tune.given_inputs import get_autotune_inputs
from ptxtile.tune.results import TuningResult
from ptxtile.tune.subject import Subject, kind_of
from ptxtile.tune.sweep import Sweep, SweepSettings

_CALLS_KEPT = 4096
"""Exact calls whose configuration is remembered, before the memory is cleared."""


class AutotunedFunction:
    """A jitted function with its configurations.

    A call that names none of the tuned arguments takes the best configuration for arguments of its kind (dtypes,
    shapes, strides, device; values of all others): of this process, of an earlier one, or of a sweep that runs now. The
    eager form gives the call's results, the factory form the best kernel, with ``latency``, ``config`` and
    ``ref_latency``. A call that names one is a call of the jitted function.
    """

    def __init__(self, function: JITFunction | JITFactory, configs: Any, settings: SweepSettings) -> None:
        self.subject = Subject(function)
        self.configs = configs
        self.settings = settings
        self._found: dict[Any, TuningResult] = {}
        self._chosen: dict[Any, Mapping[str, Any]] = {}
        self._tuned: frozenset[str] | None = None
        self._is_factory = isinstance(function, JITFactory)
        self._lock = threading.RLock()  # threads that need a sweep at the same time share one
        update_wrapper(self, self.subject.user_function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = None if self._is_factory else _key_of_call(args, kwargs)
        chosen = None if key is None else self._chosen.get(key)
        if chosen is None:
            if self._is_steered(args, kwargs):
                return self.subject.function(*args, **kwargs)
            result = self.tune(*args, **kwargs)
            if self._is_factory:
                return result.kernel
            chosen = result.config
            if key is not None:
                if len(self._chosen) >= _CALLS_KEPT:
                    self._chosen.clear()
                self._chosen[key] = chosen
        return self.subject.call(args, kwargs, chosen)

    @property
    def jitted(self) -> JITFunction | JITFactory:
        """The function without its configurations."""
        return self.subject.function

    def tune(self, *args: Any, again: bool = False, **kwargs: Any) -> TuningResult:
        """What the sweep for these arguments found: now, or earlier unless ``again``. In the eager form sizes may be
        given instead of tensors, by name; then the tensors are made.

        TuningError when no configuration works.
        """
        inputs = get_autotune_inputs()
        key: Any = self.subject.kinds(args, kwargs, self.settings.do_not_specialize)
        if inputs is not None:
            key = (key, *[kind_of(value, type_only=True) for value in inputs])
        found = None if again else self._found.get(key)
        if found is None:
            with self._lock:
                found = None if again else self._found.get(key)
                if found is None:
                    sweep = self._sweep(args, kwargs, inputs, again)
                    found = self._found[key] = sweep.find() or sweep.run()
                    self._chosen.clear()
                    note_on_kernel(found)
        return found

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """The best kernel for these arguments: sizes or tensors in the eager form, the function's own in the factory
        form. With one of the tuned arguments, that of the jitted function."""
        if self._is_steered(args, kwargs):
            return self.subject.function.compile(*args, **kwargs)
        kernel = self.tune(*args, **kwargs).kernel
        if not kernel.variant.is_compiled:
            kernel.variant.compiled()
        return kernel

    def get_best_config(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """The configuration alone."""
        return self.tune(*args, **kwargs).config

    def _is_steered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call names a tuned argument."""
        if self._tuned is None:
            try:
                configs = expand(self.configs, tuple(args), kwargs)
            except TypeError:  # the function that gives them takes no tuned arguments, and here are some
                return True
            self._tuned = frozenset(configs[0]) - {PASS_CONFIGS}
        if not self._tuned.isdisjoint(kwargs):
            return True
        return not self._tuned.isdisjoint(self.subject.parameters[: len(args)])

    def _sweep(self, args: Any, kwargs: Mapping[str, Any], inputs: Sequence[Any] | None, again: bool) -> Sweep:
        settings = self.settings
        if inputs is not None:
            settings = replace(settings, inputs=inputs)
        if again:
            settings = replace(settings, resume=False)
        return Sweep(self.subject, expand(self.configs, tuple(args), kwargs), settings, tuple(args), dict(kwargs))


def _key_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the configuration of a call may depend on, by cheap reads; None for what has no hash."""
    import torch

    parts: list[Any] = [len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            parts += (value.dtype, value.shape, value.stride(), value.device)
        else:
            parts += (type(value), value)
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def note_on_kernel(result: TuningResult) -> None:
    """The kernel knows what tuning found."""
    result.kernel.latency = result.latency
    result.kernel.config = result.config
    result.kernel.ref_latency = result.ref_latency


def autotune(
    func: JITFunction | JITFactory | None = None,
    *,
    configs: Any,
    warmup: float = 25,
    rep: float = 100,
    timeout: float | None = 100,
    supply_type: TensorSupplyType = TensorSupplyType.Auto,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Sequence[Any]] | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Callable[..., Any] | None = None,
    cache_input_tensors: bool = False,
    do_not_specialize: Sequence[str] | None = None,
    early_stop: bool = False,
    early_stop_factor: float = 2.0,
    backend: str = "event",
    workers: int | None = None,
    executor: Executor | None = None,
    isolate: bool | None = None,
    clock: Callable[[], Clock] | None = None,
    progress: bool | None = None,
    verbose: bool = False,
) -> Any:
    """Above ``@ptxtile.jit``: tries configurations and keeps the fastest that is right.

    configs: a list of dicts of keyword arguments, a dict of lists (every combination), or a function that gives either,
    called with the call's arguments. The key ``pass_configs`` of a configuration holds options of the compiler.

    Configurations that cannot be compiled for the target, or do not fit it, are left out; the others are compiled side
    by side (``workers`` processes, or an ``executor`` of any kind) and measured one after another: ``warmup`` and
    ``rep`` milliseconds each, as ``backend`` of :func:`ptxtile.profile.do_bench` says. On a card this happens in a
    process of its own (``isolate``), which is killed after ``timeout`` seconds when a kernel hangs, and the sweep goes
    on. ``early_stop`` gives up what a first estimate finds ``early_stop_factor`` times slower than the best.

    Arguments are those of the call; in the factory form random ones (``supply_type``), what ``supply_prog`` makes of
    the list of parameters, or those of ``set_autotune_inputs``. Kernels run on copies, restored before each call where
    they change them. Results are compared with ``ref_prog``'s (``rtol``, ``atol``, ``max_mismatched_ratio``: see
    :func:`ptxtile.profile.comparison.difference`), or by ``manual_check_prog(results, wanted)``, which raises.

    Each row is kept on disk as it is measured, so that a sweep that was interrupted goes on, and the best is found
    again by other processes; what makes another program is measured anew. ``progress``: a bar, None: on a terminal;
    ``verbose``: log the table. ``do_not_specialize`` names arguments that make no sweep of their own: of these only
    dtype, rank and device count, or the type of a number; the first sweep's best then serves for all.
    """
    settings = SweepSettings(
        warmup, rep, backend, timeout, supply_type, supply_prog, None, ref_prog, manual_check_prog, skip_check, rtol,
        atol, max_mismatched_ratio, early_stop, early_stop_factor, cache_input_tensors, workers, executor, isolate,
        None, clock, progress, verbose, True, tuple(do_not_specialize or ()),
    )  # fmt: skip

    def decorate(function: Any) -> AutotunedFunction:
        if not isinstance(function, (JITFunction, JITFactory)):
            raise ArgumentError(
                f"@ptxtile.autotune of {getattr(function, '__name__', function)!r}",
                expected="a function under @ptxtile.jit", got=type(function).__name__,
                hint="write @ptxtile.autotune(configs=…) above @ptxtile.jit",
            )  # fmt: skip
        return AutotunedFunction(function, configs, settings)

    return decorate if func is None else decorate(func)
