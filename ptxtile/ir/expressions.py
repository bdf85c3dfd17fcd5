"""Expressions of the IR: typed, pure trees of scalars (or short vectors, by the lanes of their dtype).

The only effect that an expression can have is to read memory (:class:`Load`). :class:`Select`, :class:`LogicalAnd` and
:class:`LogicalOr` are lazy: the side that is not taken is not evaluated, so its loads do not happen. Python operators
on expressions build nodes and insist on equal dtypes, except that a Python number takes the dtype of the other side;
dtype promotion for users is the frontend's work.

Semantics (the same for the simulator and for the emitted code):

* Integer arithmetic wraps. ``floordiv``/``floormod`` round toward minus infinity, ``truncdiv``/``truncmod`` toward
  zero. Division by zero gives an unspecified value and no trap. Shift counts are taken modulo nothing: a count outside
  ``[0, bits)`` gives 0 (``shl``, logical ``shr``) or the sign (arithmetic ``shr``).
* Floating point is IEEE 754, round to nearest even, subnormals kept. float16 and bfloat16 results are rounded after
  each operation. ``min``/``max`` propagate NaN, as torch.minimum/maximum do. Comparisons with NaN are false, except
  ``ne``.
* :class:`Cast` is torch's conversion. float → integer truncates toward zero; out of range, the value saturates at
  int32/uint32/int64/uint64 and NaN gives 0; narrower integers are first converted to int32 (uint8/uint16: int64) and
  then wrapped. Anything → bool is ``!= 0``. integer → narrower integer wraps. float → narrower float rounds to nearest
  even, overflowing to infinity (float8_e4m3fn: to NaN, as torch does).
* :class:`Bitcast` reinterprets bits between types of equal width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxtile.ir.nodes import Node
from ptxtile.ir.types import DType, Kind, bool_, int32, int64, uint32, wrap_integer
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.ir.buffers import Buffer

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max", "mulhi")
BITWISE = ("and", "or", "xor", "shl", "shr")
BINARY_OPERATORS = ARITHMETIC + BITWISE
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY_OPERATORS = ("neg", "abs", "not", "sqrt", "floor", "ceil", "trunc", "rint")
"""``not`` inverts bits (of a bool: its truth). ``rint`` rounds half to even. ``sqrt`` is correctly rounded."""


@record
class Expr(Node):
    """Base of all expressions; every subclass has a ``dtype``."""

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...

    def __add__(self, other: Expr | int | float) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: int | float) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Expr | int | float) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: int | float) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Expr | int | float) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: int | float) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Expr | int | float) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: int | float) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary("floormod", self, other)

    def __and__(self, other: Expr | int) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Expr | int) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: Expr | int) -> Expr:
        return binary("xor", self, other)

    def __lshift__(self, other: Expr | int) -> Expr:
        return binary("shl", self, other)

    def __rshift__(self, other: Expr | int) -> Expr:
        return binary("shr", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def eq(self, other: Expr | int | float) -> Expr:
        return compare("eq", self, other)

    def ne(self, other: Expr | int | float) -> Expr:
        return compare("ne", self, other)

    def lt(self, other: Expr | int | float) -> Expr:
        return compare("lt", self, other)

    def le(self, other: Expr | int | float) -> Expr:
        return compare("le", self, other)

    def gt(self, other: Expr | int | float) -> Expr:
        return compare("gt", self, other)

    def ge(self, other: Expr | int | float) -> Expr:
        return compare("ge", self, other)


@record
class Const(Expr):
    """A number. ``value`` is a Python int (integers), bool (bool) or float (floats), representable in ``dtype``.

    Two NaN constants are equal as nodes; their payload is not kept.
    """

    value: int | float | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        return repr(self.value) == repr(other.value)  # tells -0.0 from 0.0 and lets NaN equal NaN

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@record
class Var(Expr):
    """A scalar that is bound once: a loop index, a ``Let``, a block or thread index, a symbol. Unique by name."""

    name: str
    dtype: DType


@record
class Binary(Expr):
    operator: str
    left: Expr
    right: Expr
    dtype: DType


@record
class Compare(Expr):
    operator: str
    left: Expr
    right: Expr
    dtype: DType


@record
class Unary(Expr):
    operator: str
    operand: Expr
    dtype: DType


@record
class LogicalAnd(Expr):
    """``left and right``, right only evaluated when left holds."""

    left: Expr
    right: Expr
    dtype: DType = bool_


@record
class LogicalOr(Expr):
    """``left or right``, right only evaluated when left does not hold."""

    left: Expr
    right: Expr
    dtype: DType = bool_


@record
class Select(Expr):
    """``if_true if condition else if_false``, lazily. The condition is one bool, also for vector values."""

    condition: Expr
    if_true: Expr
    if_false: Expr
    dtype: DType


@record
class Cast(Expr):
    operand: Expr
    dtype: DType


@record
class Bitcast(Expr):
    operand: Expr
    dtype: DType


@record
class Load(Expr):
    """A read of ``buffer``; with a vector dtype, of consecutive elements from the index on (last dimension, stride
    1)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: DType


@record
class Call(Expr):
    """A function of the language (``exp``, ``sin``, ``fma``…) or, after ``expand_math``, a function of the program.

    ``fma`` (three operands, one rounding) is known to simulator and emitter directly; so are the names of
    :data:`HARDWARE_FUNCTIONS`, the card's approximate instructions, which only ``fast_math`` asks for.
    """

    function: str
    arguments: tuple[Expr, ...]
    dtype: DType


@record
class Broadcast(Expr):
    """A vector whose lanes are all ``operand``."""

    operand: Expr
    dtype: DType


@record
class SharedAddress(Expr):
    """The address in the window of shared memory (uint32, bytes) of element ``offset`` of a SHARED or BARRIER buffer.

    Dynamic shared memory starts at a multiple of 1024 bytes; the simulator takes it to start at 0.
    """

    buffer: Buffer
    offset: Expr
    dtype: DType = uint32


HARDWARE_FUNCTIONS = {
    "fma": 3,
    "approx_ex2": 1, "approx_lg2": 1, "approx_sin": 1, "approx_cos": 1, "approx_tanh": 1,
    "approx_rcp": 1, "approx_rsqrt": 1, "approx_sqrt": 1, "approx_div": 2,
    "popcount": 1, "leading_zeros": 1,
}  # fmt: skip
"""Names that a Call may keep to the end, with their argument counts; float32 for the approx_* ones (PTX ISA, 9.7.3)."""


def constant(value: int | float | bool, dtype: DType = int32) -> Const:
    """A Const with ``value`` converted to the Python type that ``dtype`` wants; integers wrap to the width."""
    if dtype.kind is Kind.FLOAT:
        return Const(float(value), dtype)
    if dtype.kind is Kind.BOOL:
        return Const(bool(value), dtype)
    return Const(wrap_integer(int(value), dtype), dtype)


def as_expr(value: Expr | int | float | bool, dtype: DType | None = None) -> Expr:
    """``value`` as an expression; without a ``dtype`` a number is int32, or int64 if it does not fit."""
    if isinstance(value, Expr):
        return value
    if dtype is None:
        dtype = int32 if int32.minimum <= value <= int32.maximum else int64
    return constant(value, dtype)


def _pair(left: Expr | int | float, right: Expr | int | float) -> tuple[Expr, Expr]:
    if isinstance(left, Expr):
        right = as_expr(right, left.dtype)
    elif isinstance(right, Expr):
        left = constant(left, right.dtype)
    else:
        left, right = constant(left), constant(right)
    if left.dtype != right.dtype:
        raise TypeError(f"operands of different dtypes: {left.dtype} and {right.dtype}")
    return left, right


def binary(operator: str, left: Expr | int | float, right: Expr | int | float) -> Binary:
    assert operator in BINARY_OPERATORS, operator
    left, right = _pair(left, right)
    return Binary(operator, left, right, left.dtype)


def compare(operator: str, left: Expr | int | float, right: Expr | int | float) -> Compare:
    assert operator in COMPARISONS, operator
    left, right = _pair(left, right)
    return Compare(operator, left, right, bool_.with_lanes(left.dtype.lanes))


def unary(operator: str, operand: Expr) -> Unary:
    assert operator in UNARY_OPERATORS, operator
    return Unary(operator, operand, operand.dtype)


def logical_and(left: Expr, right: Expr) -> Expr:
    return LogicalAnd(left, right)


def logical_or(left: Expr, right: Expr) -> Expr:
    return LogicalOr(left, right)


def logical_not(operand: Expr) -> Expr:
    return Unary("not", operand, bool_)


def select(condition: Expr, if_true: Expr, if_false: Expr | int | float) -> Select:
    if_false = as_expr(if_false, if_true.dtype)
    if if_true.dtype != if_false.dtype:
        raise TypeError(f"branches of different dtypes: {if_true.dtype} and {if_false.dtype}")
    return Select(condition, if_true, if_false, if_true.dtype)


def cast(operand: Expr, dtype: DType) -> Expr:
    """``operand`` as ``dtype``; the same object when it has that dtype, a constant when it is an integer constant."""
    if operand.dtype == dtype:
        return operand
    if isinstance(operand, Const) and operand.dtype.is_integer and dtype.is_integer:
        return constant(operand.value, dtype)
    return Cast(operand, dtype)


def bitcast(operand: Expr, dtype: DType) -> Expr:
    if operand.dtype == dtype:
        return operand
    assert operand.dtype.bits * operand.dtype.lanes == dtype.bits * dtype.lanes
    return Bitcast(operand, dtype)


def load(buffer: Buffer, indices: tuple[Expr, ...], lanes: int = 1) -> Load:
    return Load(buffer, indices, buffer.dtype.with_lanes(buffer.dtype.lanes * lanes))


def call(function: str, *arguments: Expr, dtype: DType | None = None) -> Call:
    return Call(function, arguments, dtype or arguments[0].dtype)


def constant_value(value: Expr | int) -> int | None:
    """The integer that ``value`` is, when it is a constant."""
    if isinstance(value, int):
        return value
    if isinstance(value, Const) and isinstance(value.value, int):
        return int(value.value)
    return None
