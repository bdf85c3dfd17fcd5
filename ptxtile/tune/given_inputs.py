"""Tensors that a user gives for a sweep, for kernels that random ones would not show at work."""

from __future__ import annotations

import contextvars
from typing import Any

_given: contextvars.ContextVar[tuple[Any, ...] | None] = contextvars.ContextVar("ptxtile_autotune_inputs", default=None)


class set_autotune_inputs:
    """``with set_autotune_inputs(a, b):`` sweeps inside of the block call kernels with these arguments (or with those
    of one list)."""

    def __init__(self, *args: Any) -> None:
        self._args = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        self._tokens: list[contextvars.Token[tuple[Any, ...] | None]] = []

    def __enter__(self) -> set_autotune_inputs:
        self._tokens.append(_given.set(self._args))
        return self

    def __exit__(self, *_: object) -> None:
        _given.reset(self._tokens.pop())


def get_autotune_inputs() -> tuple[Any, ...] | None:
    """What the innermost block gives; None outside of any."""
    return _given.get()
