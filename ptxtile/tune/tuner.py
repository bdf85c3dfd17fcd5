"""``AutoTuner``: a sweep set up step by step, as TileLang has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ptxtile.jit import jit
from ptxtile.jit_factory import JITFactory
from ptxtile.jit_function import JITFunction
from ptxtile.profile.supply import TensorSupplyType
from ptxtile.tune.configurations import expand
from ptxtile.tune.decorator import AutotunedFunction, note_on_kernel
from ptxtile.tune.given_inputs import get_autotune_inputs
from ptxtile.tune.results import TuningResult
from ptxtile.tune.subject import Subject
from ptxtile.tune.sweep import Sweep, SweepSettings


class AutoTuner:
    """Of a function that takes tuned arguments and returns a ``@T.prim_func``, or of a jitted function.

    ``AutoTuner.from_kernel(f, configs).set_compile_args(out_idx=[-1]).set_profile_args(ref_prog=…).run()``.
    """

    def __init__(self, fn: Any, configs: Any) -> None:
        self.fn = fn.subject.function if isinstance(fn, AutotunedFunction) else fn
        self.configs = configs
        self._settings = SweepSettings()
        self._compile_args: dict[str, Any] = {}

    @classmethod
    def from_kernel(cls, kernel: Any, configs: Any) -> AutoTuner:
        return cls(kernel, configs)

    def set_compile_args(
        self,
        out_idx: int | Sequence[int] | None = None,
        target: Any = None,
        execution_backend: Any = None,
        target_host: Any = None,
        verbose: bool | None = None,
        pass_configs: Mapping[Any, Any] | None = None,
    ) -> AutoTuner:
        """As for :func:`ptxtile.jit`; for a function that is jitted already they change nothing."""
        self._compile_args = {
            "out_idx": out_idx, "target": target, "verbose": verbose, "pass_configs": pass_configs,
        }  # fmt: skip
        return self

    def set_profile_args(
        self,
        warmup: float = 25,
        rep: float = 100,
        timeout: float | None = 30,
        supply_type: TensorSupplyType = TensorSupplyType.Auto,
        ref_prog: Callable[..., Any] | None = None,
        supply_prog: Callable[..., Sequence[Any]] | None = None,
        rtol: float = 1e-2,
        atol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
        skip_check: bool = False,
        manual_check_prog: Callable[..., Any] | None = None,
        cache_input_tensors: bool = False,
        backend: str = "event",
        **settings: Any,
    ) -> AutoTuner:
        """As for :func:`ptxtile.autotune`; ``settings`` are its others, such as ``executor`` and ``isolate``."""
        self._settings = SweepSettings(
            warmup=warmup, rep=rep, timeout=timeout, supply_type=supply_type, ref_prog=ref_prog,
            supply_prog=supply_prog, rtol=rtol, atol=atol, max_mismatched_ratio=max_mismatched_ratio,
            skip_check=skip_check, manual_check_prog=manual_check_prog, cache_input_tensors=cache_input_tensors,
            backend=backend, **settings,
        )  # fmt: skip
        return self

    def run(
        self,
        warmup: float | None = None,
        rep: float | None = None,
        timeout: float | None = None,
        *,
        early_stop: bool = False,
        early_stop_factor: float = 2.0,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> TuningResult:
        """The sweep. ``warmup``, ``rep``, ``timeout`` replace those of :meth:`set_profile_args`; ``args`` and
        ``kwargs`` are the function's arguments that are not tuned. TuningError when no configuration works."""
        given = {"warmup": warmup, "rep": rep, "timeout": timeout}
        settings = replace(
            self._settings, early_stop=early_stop, early_stop_factor=early_stop_factor,
            inputs=self._settings.inputs or get_autotune_inputs(),
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        configs = expand(self.configs, tuple(args), kwargs)
        sweep = Sweep(Subject(self._jitted()), configs, settings, tuple(args), dict(kwargs or {}))
        result = sweep.find() or sweep.run()
        note_on_kernel(result)
        return result

    def _jitted(self) -> JITFunction | JITFactory:
        if isinstance(self.fn, (JITFunction, JITFactory)):
            return self.fn
        return jit(self.fn, **self._compile_args)
