"""Replaces the functions of the language by IR arithmetic.

Input: GPU IR in which a Call may name a function of the language (``exp``, ``pow``…). Output: a Call names a function
of ``program.functions``, which hold the algorithms (:mod:`ptxtile.lower.math`), or one of HARDWARE_FUNCTIONS. float16
and bfloat16 arguments are widened to float32, and the result is rounded once. With ``fast_math``, float32 functions,
square roots and divisions become the card's approximate instructions where there are such.

Invariant: the bodies of device functions are final; no pass may contract or reorder their arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.errors import LoweringError
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Binary, Call, Expr, Unary, cast, unary
from ptxtile.ir.program import Function, Program
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.types import bfloat16, float16, float32
from ptxtile.lower.options import Options
from ptxtile.target import Target

_UNARY = {
    "sqrt": "sqrt", "abs": "abs", "fabs": "abs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
    "nearbyint": "rint",
}  # fmt: skip
"""Functions that are operators of the IR."""

_NARROW = (float16, bfloat16)


def run(program: Program, target: Target, options: Options) -> Program:
    calls = any(isinstance(node, Call) for kernel in program.kernels for node in walk(kernel.body))
    if not calls and not options.fast_math:
        return program
    expansion = _Expansion(program, options.fast_math)
    kernels = tuple(
        kernel if (body := expansion.visit(kernel.body)) is kernel.body else replace(kernel, body=body)
        for kernel in program.kernels
    )
    if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
        return program
    return replace(program, kernels=kernels, functions=tuple(expansion.functions.values()))


class _Expansion(Rewriter):
    def __init__(self, program: Program, fast_math: bool) -> None:
        self.fast_math = fast_math
        self.functions: dict[str, Function] = {function.name: function for function in program.functions}
        self.existing = frozenset(self.functions)
        # The algorithms are imported when a program needs one: most do not, and they are a tenth of the compiler.
        from ptxtile.lower import math
        from ptxtile.lower.math import fast

        self._math, self._fast = math, fast

    def rewrite_Call(self, node: Call) -> Expr:
        name = node.function
        if name in HARDWARE_FUNCTIONS or name in self.existing:
            return node
        if name in _UNARY:
            return self.rewrite_Unary(unary(_UNARY[name], node.arguments[0]))
        if name in self._math.IN_PLACE:
            return self._math.IN_PLACE[name](node.arguments[0])
        if name not in self._math.NAMES:
            raise LoweringError(
                f"there is no function {name!r}", expected=f"one of {', '.join(sorted(self._math.NAMES))}", got=name
            )
        element = node.dtype.element
        if element not in _NARROW:
            return self._expanded(name, node.arguments, node)
        wide = float32.with_lanes(node.dtype.lanes)
        arguments = tuple(cast(argument, wide) for argument in node.arguments)
        return cast(self._expanded(name, arguments, Call(name, arguments, wide)), node.dtype)

    def _expanded(self, name: str, arguments: tuple[Expr, ...], node: Call) -> Expr:
        """A call in float32 or float64, expanded. One of vectors stays one: it means a call for each lane."""
        if self.fast_math and node.dtype == float32 and name in self._fast.EXPANSIONS:
            result = self._fast.EXPANSIONS[name](*arguments)
            for inner in walk(result):
                if isinstance(inner, Call) and inner.function.startswith("math_fast_"):
                    self._need(self._math.closure_of(inner.function))
            return result
        functions = self._math.closure(name, node.dtype.element)
        self._need(functions)
        return Call(functions[-1].name, arguments, node.dtype)

    def _need(self, functions: tuple[Function, ...]) -> None:
        for function in functions:
            self.functions.setdefault(function.name, function)

    def rewrite_Unary(self, node: Unary) -> Expr:
        if self.fast_math and node.operator == "sqrt" and node.dtype == float32:
            return self._fast.EXPANSIONS["sqrt"](node.operand)
        return node

    def rewrite_Binary(self, node: Binary) -> Expr:
        if self.fast_math and node.operator == "div" and node.dtype == float32:
            return self._fast.approximate("div", node.left, node.right)
        return node
