"""Finding what the command line names: ``FILE.py:NAME`` with ``-D NAME=VALUE``, as a traced program."""

from __future__ import annotations

import ast
import importlib.util
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ptxtile import target
from ptxtile.ir.program import Program
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.target import Target


class UsageError(Exception):
    """The command line is wrong; ``str()`` says how."""


@record
class Subject:
    """What to compile. ``timings`` in seconds: loading the file, the steps of tracing."""

    program: Program
    target: Target
    options: Options
    timings: Mapping[str, float]


def parse_definitions(texts: Iterable[str]) -> dict[str, Any]:
    """``["M=1024", "dtype=float16", "causal=True"]`` → names and values.

    A value that reads as a Python literal is one (numbers, booleans, None, quoted strings, tuples); any other is a
    string.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip().isidentifier():
            raise UsageError(f"{text!r} is not NAME=VALUE")
        try:
            values[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            values[name.strip()] = {"true": True, "false": False, "none": None}.get(
                value.strip().lower(), value.strip()
            )
    return values


def with_options(base: Options, given: Mapping[str, Any]) -> Options:
    """``base`` with the options named on the command line."""
    known = {field.name: getattr(Options(), field.name) for field in fields(Options)}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"unknown option {name!r}; there are " + ", ".join(known))
        if not isinstance(value, bool) and value != known[name]:
            raise UsageError(
                f"option {name} is True or False{' or auto' if known[name] == 'auto' else ''}, not {value!r}"
            )
    return replace(base, **given)


def load_file(path: str) -> ModuleType:
    """The user's file as a module that is not ``__main__``: its guard keeps the script part from running."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path!r}")
    name = f"ptxtile_inspected_{file.stem}"
    specification = importlib.util.spec_from_file_location(name, file.resolve())
    if specification is None or specification.loader is None:
        raise UsageError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def named(text: str) -> tuple[Any, str]:
    """The object that ``FILE.py:NAME`` names, and NAME. UsageError when there is none."""
    path, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        raise UsageError(f"{text!r} is not FILE.py:NAME")
    module = load_file(path)
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{path} has no {name!r}; it has " + (", ".join(_candidates(module)) or "no kernels"))
    return getattr(found, "jitted", found), name  # what is tuned stands for itself with the arguments that are given


def find(text: str, definitions: Mapping[str, Any], arch: str | None, options: Mapping[str, Any]) -> Subject:
    """The program that ``FILE.py:NAME`` stands for. UsageError when there is none; errors of tracing are the tree's."""
    started = time.perf_counter()
    found, name = named(text)
    loaded = time.perf_counter()
    traced = trace(found, name, definitions, arch)
    timings = {"load the file": loaded - started, **traced.timings}
    return replace(traced, options=with_options(traced.options, options), timings=timings)


def trace(found: Any, name: str, definitions: Mapping[str, Any], arch: str | None) -> Subject:
    """The tile program of a jitted function, a kernel factory, a prim_func or a kernel, for ``arch`` where it is given.

    Sizes and factory arguments come from ``definitions``; a kernel or prim_func already has its own. Nothing is
    lowered: that happens for the view, with its target and options, and may fail after having shown something.
    """
    kernel = found
    if hasattr(type(found), "specialize"):
        kernel = found.specialize(**definitions)
    elif hasattr(type(found), "variant") or type(found).__module__.startswith("ptxtile."):
        if definitions:
            raise UsageError(f"{name!r} has all its sizes: -D cannot change it")
        if not hasattr(type(found), "variant"):
            import ptxtile

            kernel = ptxtile.compile(found)
    else:
        raise UsageError(f"{name!r} is {_described(found)}: decorate it with @ptxtile.jit or @T.prim_func")
    variant = kernel.variant
    chosen = target.get(arch) if arch else variant.target
    return Subject(variant.tile_program, chosen, variant.settings.options, variant.trace_timings)


def _described(found: Any) -> str:
    if callable(found) and hasattr(found, "__name__"):
        return f"a plain {type(found).__name__}"
    return f"an object of {type(found).__name__}"


def _candidates(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if type(value).__module__.startswith("ptxtile.")]
