"""``@T.prim_func`` and ``@T.macro``: functions that are traced."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from ptxtile.errors import TraceError
from ptxtile.frontend.current import tracer_for
from ptxtile.frontend.dtypes import is_dtype
from ptxtile.frontend.locations import mark_macro_boundary
from ptxtile.frontend.rewrite_source import Rewritten, definition_location, rewrite


class UserFunction:
    """A user's function with its source rewritten on first use. ``rewrite_seconds``: how long that took."""

    def __init__(self, function: Callable[..., Any], scope: dict[str, Any] | None = None) -> None:
        self.function = function
        self.scope = scope or {}
        self.rewrite_seconds = 0.0
        self.__wrapped__ = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @cached_property
    def rewritten(self) -> Rewritten:
        started = time.perf_counter()
        rewritten = rewrite(self.function)
        self.rewrite_seconds = time.perf_counter() - started
        return rewritten

    @cached_property
    def python_signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The parameters' annotations, strings evaluated; those whose names are not known are left out."""
        result: dict[str, Any] = {}
        for name, parameter in self.python_signature.parameters.items():
            if parameter.annotation is not inspect.Parameter.empty:
                value = self._evaluate(parameter.annotation)
                if not _is_text(value):
                    result[name] = value
        return result

    def _evaluate(self, annotation: Any) -> Any:
        if not _is_text(annotation):
            return annotation
        function = self.function
        closure = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}  # type: ignore[attr-defined]
        try:
            value = eval(annotation, function.__globals__, {**self.scope, **closure})  # type: ignore[attr-defined]
        except (NameError, AttributeError):
            return annotation
        return self._evaluate(value) if _is_text(value) and value != annotation else value


def _is_text(annotation: Any) -> bool:
    """Whether an annotation is source text to be evaluated; dtypes are strings too."""
    return isinstance(annotation, str) and not is_dtype(annotation)


class PrimFunc(UserFunction):
    """A function whose signature declares its tensors and scalars; ``ptxtile.compile`` makes a kernel of it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TraceError(
            f"the prim_func {self.function.__name__} is called directly",
            location=definition_location(self.function),
            hint="ptxtile.compile(f, out_idx=[-1]) makes a kernel; to inline it into another function use @T.macro",
        )


class Macro(UserFunction):
    """A function that is inlined where a traced function calls it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = tracer_for(f"the macro {self.function.__name__}")
        pending, tracer.pending_name = tracer.pending_name, None
        result = self.rewritten.call(*args, **kwargs)
        tracer.pending_name = pending
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return BoundMacro(self, instance)


class BoundMacro:
    """A macro of a class, called on an instance."""

    def __init__(self, macro: Macro, instance: Any) -> None:
        self.macro = macro
        self.instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.macro(self.instance, *args, **kwargs)


mark_macro_boundary(Macro.__call__.__code__)


def _caller_scope(function: Callable[..., Any]) -> dict[str, Any]:
    """The local names where a function is decorated, which string annotations may mean but its closure may lack."""
    annotations = getattr(function, "__annotations__", {})
    if not any(_is_text(value) for value in annotations.values()):
        return {}
    scope: dict[str, Any] = {}
    frame = sys._getframe(2)
    while frame is not None and frame.f_locals is not frame.f_globals:
        scope = {**frame.f_locals, **scope}
        frame = frame.f_back if frame.f_back and frame.f_back.f_code.co_filename == frame.f_code.co_filename else None
    return scope


def prim_func(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Marks a function with annotated parameters as a kernel's source."""
    if function is None:
        scope_of = sys._getframe(1)
        return lambda f: PrimFunc(f, dict(scope_of.f_locals))
    return PrimFunc(function, _caller_scope(function))


def macro(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Marks a function to be inlined where a kernel calls it; buffers are passed by reference."""
    return Macro if function is None else Macro(function)
