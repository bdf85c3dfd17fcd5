"""The configurations of a sweep: what a user gives, as a list of keyword arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ptxtile.errors import ArgumentError, TuningError

Configs = "Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Any]] | Callable[..., Any]"

PASS_CONFIGS = "pass_configs"
"""The key of a configuration that holds no argument of the function, but options of the compiler."""


def expand(configs: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """``configs`` as a list of dicts, each once, in the order given.

    A dict of lists stands for every combination, the last key changing fastest. A callable is called with the
    function's arguments, or with none where it takes none. TuningError when nothing is left.
    """
    if callable(configs):
        configs = _called(configs, args, dict(kwargs or {}))
    if isinstance(configs, Mapping):
        choices = [[(name, value) for value in _values(name, given)] for name, given in configs.items()]
        found = [dict(chosen) for chosen in itertools.product(*choices)]
    else:
        found = [dict(config) for config in configs]
    distinct = {identity(config): config for config in reversed(found)}
    result = [config for config in found if distinct[identity(config)] is config]
    if not result:
        raise TuningError("there is no configuration to try", expected="at least one", got=repr(configs)[:80])
    names = set(result[0]) - {PASS_CONFIGS}
    for config in result:
        if set(config) - {PASS_CONFIGS} != names:
            raise TuningError(
                "configurations name different arguments", expected=", ".join(sorted(names)),
                got=", ".join(sorted(map(str, config))),
            )  # fmt: skip
    return result


def _called(configs: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import inspect

    parameters = inspect.signature(configs).parameters
    return configs(*args, **kwargs) if parameters else configs()


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ArgumentError(f"the choices of {name!r}", expected="a list of values", got=repr(given))
    return list(given)


def identity(config: Mapping[str, Any]) -> str:
    """What tells configurations apart, in memory and on disk: names and values as text, in order of names."""
    return ", ".join(f"{name}={config[name]!r}" for name in sorted(config))
