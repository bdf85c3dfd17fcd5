"""Contracts a multiplication that feeds one addition into a fused multiply-add, as nvcc does by default.

Input and output: gpu stage. Only with ``options.contract``. Contraction changes rounding (one instead of two), so it is
a pass of its own with fixed rules, not left to LLVM: simulator and card then compute the same bits.

* ``a*b + c`` and ``c + a*b`` become ``fma(a, b, c)``; ``a*b - c`` becomes ``fma(a, b, -c)``; ``c - a*b`` becomes
  ``fma(-a, b, c)``. A negated product counts as a product. Negation is exact.
* When both operands are products, the left one is contracted.
* float16, bfloat16, float32 and float64, scalars and vectors alike. Both operations must have the same dtype: a cast
  between them keeps them apart.
* The product must be an operand of the addition itself. A product bound to a name that is used more than once, or
  stored first, stays a product (``simplify`` has moved the ones that are used once).
* The program's device functions are left alone: their authors chose every rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.expression_table import map_operands
from ptxtile.ir.expressions import Binary, Call, Const, Expr, Unary
from ptxtile.ir.fold_constants import fold_unary
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import map_children
from ptxtile.ir.types import ARITHMETIC_FLOATS
from ptxtile.lower.options import Options
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    if not options.contract:
        return program
    bodies = [map_children(kernel.body, _visit) for kernel in program.kernels]
    if all(body is kernel.body for body, kernel in zip(bodies, program.kernels, strict=True)):
        return program
    kernels = (replace(kernel, body=body) for kernel, body in zip(program.kernels, bodies, strict=True))
    return replace(program, kernels=tuple(kernels))


def _visit(node: Any) -> Any:
    return contract(node) if isinstance(node, Expr) else map_children(node, _visit)


def contract(e: Expr) -> Expr:
    """The expression with every contraction of the rules above; the same object when there is none."""
    e = map_operands(e, contract)
    if not isinstance(e, Binary) or e.operator not in ("add", "sub") or e.dtype.element not in ARITHMETIC_FLOATS:
        return e
    factors = _factors(e.left)
    if factors is not None:
        addend = e.right if e.operator == "add" else _negated(e.right)
        return Call("fma", (*factors, addend), e.dtype)
    factors = _factors(e.right)
    if factors is not None:
        a, b = factors
        return Call("fma", (a if e.operator == "add" else _negated(a), b, e.left), e.dtype)
    return e


def _factors(e: Expr) -> tuple[Expr, Expr] | None:
    """The factors of a product, a minus sign moved to the first."""
    if isinstance(e, Unary) and e.operator == "neg":
        inner = _factors(e.operand)
        return None if inner is None else (_negated(inner[0]), inner[1])
    return (e.left, e.right) if isinstance(e, Binary) and e.operator == "mul" else None


def _negated(e: Expr) -> Expr:
    if isinstance(e, Unary) and e.operator == "neg":
        return e.operand
    folded = fold_unary("neg", e) if isinstance(e, Const) else None
    return Unary("neg", e, e.dtype) if folded is None else folded
