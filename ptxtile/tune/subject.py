"""What is tuned: a jitted function of either form, and the kernel that it makes of one configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ptxtile.errors import TuningError
from ptxtile.jit_factory import JITFactory
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.pass_configs import options_from
from ptxtile.tune.configurations import PASS_CONFIGS
from ptxtile.variant import Settings


class Subject:
    """``function``: what :func:`ptxtile.jit` gives, in the eager or the factory form."""

    def __init__(self, function: JITFunction | JITFactory) -> None:
        self.function = function
        self._steered: dict[str, JITFunction | JITFactory] = {}

    @property
    def user_function(self) -> Callable[..., Any]:
        return self.function.function.function if isinstance(self.function, JITFunction) else self.function.function

    @property
    def name(self) -> str:
        return self.user_function.__name__

    @property
    def settings(self) -> Settings:
        return self.function.settings

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.user_function).parameters)

    @cached_property
    def _runtime(self) -> frozenset[str]:
        """Parameters whose values no kernel depends on."""
        return frozenset(self.function.tensor_parameters if isinstance(self.function, JITFunction) else ())

    def source(self) -> str:
        """The text that a sweep is known by; without source the name of the place."""
        function = self.user_function
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):
            text = repr(function.__code__)
        return f"{function.__module__}.{function.__qualname__}\n{text}"

    def check(self, configs: Sequence[Mapping[str, Any]]) -> None:
        """TuningError for a configuration of something that the function does not take."""
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.user_function).parameters.values()):
            return
        unknown = [name for name in configs[0] if name not in self.parameters and name != PASS_CONFIGS]
        if unknown:
            raise TuningError(
                f"{self.name} has no argument {unknown[0]!r} to tune", expected=", ".join(self.parameters),
                got=", ".join(configs[0]),
            )  # fmt: skip

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; what is no parameter (a size, in the eager form) keeps its name."""
        return {**dict(zip(self.parameters, args, strict=False)), **kwargs}

    def kinds(self, args: Sequence[Any], kwargs: Mapping[str, Any], loose: Sequence[str] = ()) -> tuple[Any, ...]:
        """What of a call's arguments a sweep is for: a tensor's dtype, shape, strides and device, the type of a number
        that is passed at run time, and the value of anything else. Of those named in ``loose`` only dtype, rank and
        device, or the type. Plain values, equal and printed alike in every process."""
        return tuple(
            [
                (name, kind_of(value, name in loose, name in loose or name in self._runtime))
                for name, value in self.given(args, kwargs).items()
            ]
        )

    def kernel(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], config: Mapping[str, Any]
    ) -> tuple[JITKernel, tuple[Any, ...] | None]:
        """The kernel for a call with ``config`` added, and the tensors and numbers of the call that the kernel takes;
        None where there are none, and they have to be made."""
        function = self._with_pass_configs(config.get(PASS_CONFIGS))
        chosen = {name: value for name, value in config.items() if name != PASS_CONFIGS}
        if isinstance(function, JITFactory):
            return function(*args, **{**kwargs, **chosen}), None
        given = self.given(args, {**kwargs, **chosen})
        if all(name in given for name in function.tensor_parameters):
            return function.kernel_for(*args, **{**kwargs, **chosen})
        return function.specialize(**given), None

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """What a call of the function gives with ``config`` added."""
        if PASS_CONFIGS not in config:
            return self.function(*args, **kwargs, **config)
        function = self._with_pass_configs(config[PASS_CONFIGS])
        return function(*args, **kwargs, **{n: value for n, value in config.items() if n != PASS_CONFIGS})

    def _with_pass_configs(self, pass_configs: Mapping[Any, Any] | None) -> JITFunction | JITFactory:
        if not pass_configs:
            return self.function
        key = repr(sorted((str(name), repr(value)) for name, value in pass_configs.items()))
        if key not in self._steered:
            settings = replace(self.settings, options=options_from(self.settings.options, pass_configs))
            steered = (
                JITFactory(self.function.function, self.function.out_idx, settings)
                if isinstance(self.function, JITFactory)
                else JITFunction(self.function.function, settings)
            )
            self._steered[key] = steered
        return self._steered[key]


def kind_of(value: Any, loose_shape: bool = False, type_only: bool = False) -> Any:
    """See :meth:`Subject.kinds`."""
    import torch

    if isinstance(value, torch.Tensor):
        place = (str(value.dtype), str(value.device))
        return (*place, value.dim()) if loose_shape else (*place, tuple(value.shape), value.stride())
    return type(value).__name__ if type_only else repr(value)
