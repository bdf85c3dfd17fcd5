"""Makes a failing random program smaller: drops statements and replaces expressions while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from tests.random_programs import model as m
from tests.random_programs.runner import check


def reduce(
    program: m.Program, error: BaseException, ptx: bool = False, seconds: float = 120.0
) -> tuple[m.Program, BaseException]:
    """The smallest program found that still fails with an error of the same kind, and its error."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for smaller in _variants(program):
            if time.monotonic() > deadline:
                break
            found = _failure(smaller, ptx)
            if found is not None and _kind(found) == _kind(error):
                program, error, progress = smaller, found, True
                break
    return program, error


def _kind(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error).partition("\n")[0][:25] if type(error).__name__ != "Mismatch" else ""


def _failure(program: m.Program, ptx: bool) -> BaseException | None:
    try:
        check(program, ptx=ptx)
    except Exception as error:
        return error
    return None


def _variants(program: m.Program) -> Iterator[m.Program]:
    if len(program.kernels) > 1:
        for position in range(len(program.kernels)):
            yield replace(program, kernels=program.kernels[:position] + program.kernels[position + 1 :])
    for position, kernel in enumerate(program.kernels):
        for body in _smaller_blocks(kernel.body):
            kernels = list(program.kernels)
            kernels[position] = replace(kernel, body=body)
            yield replace(program, kernels=tuple(kernels))
    for position in range(len(program.options)):
        if program.options[position][0] != "target":
            yield replace(program, options=program.options[:position] + program.options[position + 1 :])


def _smaller_blocks(body: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    half = len(body) // 2
    while half > 1:
        for start in range(0, len(body), half):
            yield body[:start] + body[start + half :]
        half //= 2
    for position in reversed(range(len(body))):
        yield body[:position] + body[position + 1 :]
    for position, node in enumerate(body):
        for smaller in _smaller(node):
            yield (*body[:position], *(smaller if isinstance(smaller, tuple) else (smaller,)), *body[position + 1 :])


def _smaller(node: Any) -> Iterator[Any]:
    if isinstance(node, (m.If, m.Loop)):
        yield node.then if isinstance(node, m.If) else node.body
    if isinstance(node, m.Expression):
        for field in fields(node):  # type: ignore[arg-type]
            child = getattr(node, field.name)
            if isinstance(child, m.Expression) and not isinstance(child, m.Number):
                yield child
        if not isinstance(node, (m.Number, m.Name)):
            yield m.Number(1 if node.dtype not in ("bool",) else True, node.dtype)
    if isinstance(node, (m.Buffer, m.Region)) or not is_dataclass(node):
        return
    for field in fields(node):
        child = getattr(node, field.name)
        if field.name in ("body", "then", "otherwise"):
            for smaller in _smaller_blocks(child):
                yield replace(cast(Any, node), **{field.name: smaller})
        elif isinstance(child, m.Expression):
            for smaller in _smaller(child):
                if field.name not in ("condition",) or smaller.dtype == "bool":
                    yield replace(cast(Any, node), **{field.name: smaller})
