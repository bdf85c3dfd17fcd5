"""From a user's function to one whose control flow and assignments go through the tracer.

The source is parsed, rewritten, compiled with the original file name and positions, and joined with the original
globals and closure cells. What each construct becomes is said at the visitor; the run-time side is
:mod:`ptxtile.frontend.frame_tracer`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from ptxtile.errors import Location, TraceError
from ptxtile.frontend.rewrite_statements import FunctionRewriter
from ptxtile.frontend.syntax import FRAME_FACTORY

_rewritten_codes: set[CodeType] = set()


@dataclass(frozen=True)
class Rewritten:
    """A rewritten function. ``annotated``: parameters annotated in the body (``A: T.Tensor(...)``), in order."""

    call: Callable[..., Any]
    annotated: tuple[str, ...]
    location: Location


def is_rewritten(code: CodeType) -> bool:
    """Whether ``code`` belongs to a rewritten function (nested functions, lambdas and comprehensions included)."""
    return code in _rewritten_codes


def definition_location(function: Callable[..., Any]) -> Location:
    code = function.__code__  # type: ignore[attr-defined]
    return Location(code.co_filename, code.co_firstlineno, function=code.co_name)


def _parse(function: FunctionType) -> ast.FunctionDef:
    """The AST of the function with the positions of its file."""
    location = definition_location(function)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise TraceError(
            f"the source of {function.__name__} is not available",
            location=location,
            expected="a function defined in a file or notebook cell",
            got=f"a function from {function.__code__.co_filename!r} ({error})",
            hint="kernels are traced from their source: put the function in a .py file "
            "(functions made by exec() or typed at the plain Python prompt have none)",
        ) from None
    source, above = "".join(lines), "\n" * (first - 1)
    indented = source[:1] in (" ", "\t")
    try:
        tree = ast.parse(above[1:] + "if True:\n" + source if indented else above + source)
    except SyntaxError:
        tree, indented = ast.parse(above + textwrap.dedent(source)), False
    body = tree.body[0].body if indented and isinstance(tree.body[0], ast.If) else tree.body
    definition = body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TraceError(
            f"{function.__name__} is not defined by a plain `def`",
            location=location,
            expected="def f(...): ...",
            got="a lambda or async function",
        )
    return definition


def rewrite(function: Callable[..., Any]) -> Rewritten:
    """The rewritten form of ``function``; TraceError when its source is not available or cannot be traced."""
    if not isinstance(function, FunctionType):
        raise TraceError(f"{function!r} is not a Python function", expected="a function defined by `def`")
    definition = _parse(function)
    filename = function.__code__.co_filename
    rewriter = FunctionRewriter(filename, function.__name__)
    annotated = rewriter.annotated_parameters(definition)
    definition = rewriter.rewrite(definition)
    code = _compile(definition, function)
    return Rewritten(_assemble(code, function), annotated, definition_location(function))


def _compile(definition: ast.FunctionDef, function: FunctionType) -> CodeType:
    """Compiles the definition inside of a factory whose parameters are its free names, and takes its code out."""
    free = [name for name in function.__code__.co_freevars if name != FRAME_FACTORY]
    names = [FRAME_FACTORY, *free]
    parameters = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    keep = ast.Return(ast.Name(definition.name, ast.Load()))
    factory = ast.FunctionDef("__factory__", parameters, [definition, keep], [], None)
    if "type_params" in ast.FunctionDef._fields:
        factory.type_params = []  # type: ignore[attr-defined]
    ast.copy_location(factory, definition)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    code = compile(module, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    outer = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    inner = next(
        constant
        for constant in outer.co_consts
        if isinstance(constant, CodeType) and constant.co_name == definition.name
    )
    _register(inner)
    return inner


def _future_flags() -> int:
    import __future__

    result = 0
    for name in __future__.all_feature_names:
        result |= getattr(__future__, name).compiler_flag
    return result


_FUTURE_FLAGS = _future_flags()


def _register(code: CodeType) -> None:
    _rewritten_codes.add(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _register(constant)


def _assemble(code: CodeType, function: FunctionType) -> Callable[..., Any]:
    """The code with the original function's globals, defaults and closure cells."""
    from ptxtile.frontend.frame_tracer import open_frame

    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(
        CellType(open_frame) if name == FRAME_FACTORY else cells.get(name, CellType()) for name in code.co_freevars
    )
    result = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    result.__qualname__ = function.__qualname__
    return result
