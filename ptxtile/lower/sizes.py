"""IR expressions over a program's symbols as host-side sizes."""

from __future__ import annotations

from ptxtile.errors import LoweringError
from ptxtile.ir.expressions import Binary, Cast, Const, Expr, Unary, Var
from ptxtile.launch_record import SIZE_OPERATORS, SizeOperation, Symbol, evaluate_size

_NAMES = {"floormod": "mod"}


def as_size(value: int | Expr) -> int | Symbol | SizeOperation:
    """``value`` as an integer expression of the launch record, folded when it is constant.

    Division at the host floors; sizes are not negative, so truncating division is the same.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, Var):
        return Symbol(value.name)
    if isinstance(value, Cast):
        return as_size(value.operand)
    if isinstance(value, Unary) and value.operator == "neg":
        return _fold(SizeOperation("sub", 0, as_size(value.operand)))
    if isinstance(value, Binary):
        operator = {"truncdiv": "floordiv", "truncmod": "mod"}.get(value.operator, value.operator)
        operator = _NAMES.get(operator, operator)
        if operator in SIZE_OPERATORS:
            return _fold(SizeOperation(operator, as_size(value.left), as_size(value.right)))
    raise LoweringError(
        "a size must be integer arithmetic over dimensions, strides and integer arguments",
        got=f"{type(value).__name__}",
    )


def _fold(size: SizeOperation) -> int | SizeOperation:
    if isinstance(size.left, int) and isinstance(size.right, int):
        return evaluate_size(size, {})
    return size
