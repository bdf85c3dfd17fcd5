"""What becomes of values from one iteration of a loop to the next: what repeats need not be followed for ever."""

from __future__ import annotations

from collections.abc import Mapping

from ptxtile.ir.expressions import Binary, Cast, Compare, Const, Expr, Load, LogicalAnd, LogicalOr, Unary, Var
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.statements import Store
from ptxtile.ir.types import int32
from ptxtile.lower.rehearsal_clocks import Unclear


class FillIn(Rewriter):
    """Fills in what elements of private storages are known to be, by the storage's name and the element."""

    def __init__(self, registers: Mapping[tuple[str, int], int]) -> None:
        self.registers = registers

    def rewrite_Load(self, node: Load) -> Expr:
        place = (*node.indices, Const(0, int32))[0] if len(node.indices) < 2 else None
        if isinstance(place, Const) and not node.dtype.is_float:
            value = self.registers.get((node.buffer.storage.name, int(place.value)))
            if value is not None:
                return Const(bool(value) if node.dtype.is_bool else value, node.dtype)
        return node


def repetition(expression: Expr) -> tuple[int, int]:
    """From which value of the variables on a parity or condition repeats, and after how many. Raises Unclear."""
    settled, period = 0, 2
    for node in walk(expression):
        match node:
            case Var() | Const() | Cast() | Unary("not", _, _):
                pass
            case Binary("floordiv" | "floormod" | "truncdiv" | "truncmod", _, Const(value=value), _) if value > 0:
                period *= int(value)
            case Binary("shr", _, Const(value=value), _) if 0 <= value < 16:
                period *= 1 << int(value)
            case Binary("and", _, Const(value=value), dtype) if not dtype.is_bool and value >= 0:
                period *= 1 << int(value).bit_length()
            case Binary("add" | "sub" | "mul" | "xor", _, _, dtype) if not dtype.is_float:
                pass
            case LogicalAnd() | LogicalOr():
                pass
            case Compare(_, left, right, _) if isinstance(right, Const) and isinstance(left, Var):
                settled = max(settled, abs(int(right.value)) + 1)
            case _:
                raise Unclear
    return settled, period


def is_toggle(node: Store) -> bool:
    """Whether a store done twice changes nothing: ``phase ^= 1``, ``phase = 1 - phase``."""
    match node.value:
        case Binary("xor", Load() as before, Const(), _) | Binary("sub", Const(), Load() as before, _):
            return before.buffer.storage.name == node.buffer.storage.name and before.indices == node.indices
        case Unary("not", Load() as before, _):
            return before.buffer.storage.name == node.buffer.storage.name and before.indices == node.indices
    return False
