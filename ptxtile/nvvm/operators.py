"""Rules for the operators of the IR on scalars, with the exact semantics of :mod:`ptxtile.ir.expressions`.

No fast-math flag is ever set, and no nsw or nuw on arithmetic of the user: the IR wraps.
"""

from __future__ import annotations

from ptxtile.ir.types import DType, Kind
from ptxtile.nvvm.dtypes import intrinsic_suffix, value_type
from ptxtile.nvvm.folding import fold_binary, fold_compare
from ptxtile.nvvm.function import FunctionWriter, Value, constant_value

_NARROW = ("half", "bfloat")
_FLOAT_OPERATORS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def binary(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    dtype = left.dtype
    if left.constant is not None and right.constant is not None:
        folded = fold_binary(operator, left.constant, right.constant, dtype)
        if folded is not None:
            return constant_value(folded, dtype)
    if dtype.kind is Kind.FLOAT:
        return _float_binary(writer, operator, left, right)
    if dtype.kind is Kind.BOOL:
        return _bool_binary(writer, operator, left, right)
    simple = _identity(operator, left, right)
    if simple is not None:
        return simple
    rule = _INTEGER_RULES.get(operator)
    if rule is None:
        raise writer.error(f"{operator} of {dtype} is not defined")
    return rule(writer, operator, left, right)


# -- floats ----------------------------------------
def _float_binary(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    dtype, kind = left.dtype, value_type(left.dtype)
    if kind.startswith("i"):
        raise writer.error(f"{dtype} has no arithmetic: cast to float32 first")
    if operator in ("min", "max"):
        name = f"llvm.{operator}imum.{intrinsic_suffix(kind)}"
        return Value(writer.call_intrinsic(name, left.text, right.text), dtype)
    if (
        operator == "div" and kind in _NARROW
    ):  # rounding the float32 quotient again is exact: 24 ≥ 2·11 + 2 bits (Figueroa)
        wide = writer.register(f"fdiv float {_widen(writer, left)}, {_widen(writer, right)}")
        return writer.value(f"fptrunc float {wide} to {kind}", dtype)
    if operator in _FLOAT_OPERATORS:
        return writer.value(f"{_FLOAT_OPERATORS[operator]} {kind} {left.text}, {right.text}", dtype)
    raise writer.error(
        f"{operator} of {dtype} reached code generation",
        hint="floating-point division with rounding is expanded before",
    )


def _widen(writer: FunctionWriter, value: Value) -> str:
    return writer.register(f"fpext {value_type(value.dtype)} {value.text} to float")


# -- bools ----------------------------------------
def _bool_binary(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    instruction = {"and": "and", "or": "or", "xor": "xor", "min": "and", "max": "or"}.get(operator)
    if instruction is None:
        raise writer.error(f"{operator} of bool is not defined")
    return writer.value(f"{instruction} i1 {left.text}, {right.text}", left.dtype)


# -- integers ----------------------------------------
def _identity(operator: str, left: Value, right: Value) -> Value | None:
    """The operands that an operator leaves as they are: x+0, x·1, x·0, x/1, x mod 1, x << 0."""
    a, b = left.constant, right.constant
    if operator == "add" and a == 0:
        return right
    if b == 0 and operator in ("add", "sub", "or", "xor", "shl", "shr"):
        return left
    if operator == "mul" and (a == 0 or b == 0):
        return constant_value(0, left.dtype)
    if operator == "mul" and a == 1:
        return right
    if b == 1 and operator in ("mul", "floordiv", "truncdiv"):
        return left
    if b == 1 and operator in ("floormod", "truncmod"):
        return constant_value(0, left.dtype)
    return None


def _add(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    """Sums keep their constant part apart (see :class:`Value`); adding it last changes nothing, for addition wraps."""
    dtype, kind = left.dtype, value_type(left.dtype)
    if right.constant is not None:
        step = int(right.constant) if operator == "add" else -int(right.constant)
        return Value(left.text, dtype, None, left.offset + step)
    if left.constant is not None and operator == "add":
        return Value(right.text, dtype, None, right.offset + int(left.constant))
    offset = left.offset + (right.offset if operator == "add" else -right.offset)
    return Value(writer.register(f"{operator} {kind} {left.text}, {right.text}"), dtype, None, offset)


def _multiply(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    if left.constant is not None:
        left, right = right, left
    kind = value_type(left.dtype)
    if right.constant is not None:
        product = writer.register(f"mul {kind} {left.text}, {right.text}")
        return Value(product, left.dtype, None, left.offset * int(right.constant))
    return writer.value(f"mul {kind} {writer.operand(left)}, {writer.operand(right)}", left.dtype)


def _plain(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    return writer.value(
        f"{operator} {value_type(left.dtype)} {writer.operand(left)}, {writer.operand(right)}", left.dtype
    )


def _minmax(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    sign = "s" if left.dtype.is_signed else "u"
    name = f"llvm.{sign}{operator}.{value_type(left.dtype)}"
    return Value(writer.call_intrinsic(name, writer.operand(left), writer.operand(right)), left.dtype)


def _mulhi(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    """The upper half of the double-width product; NVPTX turns the widening multiplication into mul.hi."""
    dtype, kind = left.dtype, value_type(left.dtype)
    wide, extend = f"i{2 * dtype.bits}", "sext" if dtype.is_signed else "zext"
    a = writer.register(f"{extend} {kind} {writer.operand(left)} to {wide}")
    b = writer.register(f"{extend} {kind} {writer.operand(right)} to {wide}")
    product = writer.register(f"mul {wide} {a}, {b}")
    upper = writer.register(f"lshr {wide} {product}, {dtype.bits}")
    return writer.value(f"trunc {wide} {upper} to {kind}", dtype)


def _shift(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    """A count outside [0, bits) is poison in LLVM, and means 0 or the sign here."""
    dtype, kind = left.dtype, value_type(left.dtype)
    arithmetic = operator == "shr" and dtype.is_signed
    instruction = "shl" if operator == "shl" else "ashr" if arithmetic else "lshr"
    a = writer.operand(left)
    if right.constant is not None:
        count = int(right.constant)
        if not 0 <= count < dtype.bits:
            if not arithmetic:
                return constant_value(0, dtype)
            count = dtype.bits - 1
        return writer.value(f"{instruction} {kind} {a}, {count}", dtype)
    b = writer.operand(right)
    inside = writer.register(f"icmp ult {kind} {b}, {dtype.bits}")
    if arithmetic:
        count = writer.register(f"select i1 {inside}, {kind} {b}, {kind} {dtype.bits - 1}")
        return writer.value(f"{instruction} {kind} {a}, {count}", dtype)
    # Not the select again: LLVM 22 folds select(b < 64, a << b, 0) into PTX's clamping shift, whose count it cuts to
    # 32 bits first, so that a count of 2³² shifted by 0 (seen on an H200).
    count = writer.register(f"and {kind} {b}, {dtype.bits - 1}")
    shifted = writer.value(f"{instruction} {kind} {a}, {count}", dtype)
    return writer.value(f"select i1 {inside}, {kind} {shifted.text}, {kind} 0", dtype)


def _divide(writer: FunctionWriter, operator: str, left: Value, right: Value) -> Value:
    """Division and remainder. LLVM may assume that no divisor is 0 and that MIN / -1 does not happen; both are kept
    away."""
    dtype = left.dtype
    a, b = writer.operand(left), writer.operand(right)
    if not dtype.is_signed:
        quotient, remainder = _unsigned_division(writer, dtype, a, b, right.constant)
        return Value(quotient if operator.endswith("div") else remainder, dtype)
    quotient, remainder = _signed_division(writer, dtype, a, b, right.constant)
    if operator == "truncdiv":
        return Value(quotient, dtype)
    if operator == "truncmod":
        return Value(remainder, dtype)
    return _floored(writer, operator, dtype, quotient, remainder, b)


def _unsigned_division(writer: FunctionWriter, dtype: DType, a: str, b: str, known: int | None) -> tuple[str, str]:
    kind = value_type(dtype)
    if not known:
        zero = writer.register(f"icmp eq {kind} {b}, 0")
        b = writer.register(f"select i1 {zero}, {kind} 1, {kind} {b}")
    return writer.register(f"udiv {kind} {a}, {b}"), writer.register(f"urem {kind} {a}, {b}")


def _signed_division(writer: FunctionWriter, dtype: DType, a: str, b: str, known: int | None) -> tuple[str, str]:
    kind = value_type(dtype)
    if known and known != -1:
        return writer.register(f"sdiv {kind} {a}, {b}"), writer.register(f"srem {kind} {a}, {b}")
    zero = writer.register(f"icmp eq {kind} {b}, 0")
    minus = writer.register(f"icmp eq {kind} {b}, -1")
    special = writer.register(f"or i1 {zero}, {minus}")
    safe = writer.register(f"select i1 {special}, {kind} 1, {kind} {b}")
    quotient = writer.register(f"sdiv {kind} {a}, {safe}")
    remainder = writer.register(f"srem {kind} {a}, {safe}")  # 0 for a divisor of -1, as it should be
    negated = writer.register(f"sub {kind} 0, {a}")
    return writer.register(f"select i1 {minus}, {kind} {negated}, {kind} {quotient}"), remainder


def _floored(writer: FunctionWriter, operator: str, dtype: DType, quotient: str, remainder: str, b: str) -> Value:
    """Rounds toward minus infinity: one step down when the remainder is not 0 and differs in sign from the divisor."""
    kind = value_type(dtype)
    inexact = writer.register(f"icmp ne {kind} {remainder}, 0")
    signs = writer.register(f"xor {kind} {remainder}, {b}")
    differ = writer.register(f"icmp slt {kind} {signs}, 0")
    adjust = writer.register(f"and i1 {inexact}, {differ}")
    if operator == "floormod":
        moved = writer.register(f"add {kind} {remainder}, {b}")
        return writer.value(f"select i1 {adjust}, {kind} {moved}, {kind} {remainder}", dtype)
    moved = writer.register(f"add {kind} {quotient}, -1")
    return writer.value(f"select i1 {adjust}, {kind} {moved}, {kind} {quotient}", dtype)


_INTEGER_RULES = {
    "add": _add, "sub": _add, "mul": _multiply, "mulhi": _mulhi, "min": _minmax, "max": _minmax,
    "and": _plain, "or": _plain, "xor": _plain, "shl": _shift, "shr": _shift,
    "floordiv": _divide, "floormod": _divide, "truncdiv": _divide, "truncmod": _divide,
}  # fmt: skip


# -- comparisons ----------------------------------------
def compare(writer: FunctionWriter, operator: str, left: Value, right: Value, result: DType) -> Value:
    dtype, kind = left.dtype, value_type(left.dtype)
    if left.constant is not None and right.constant is not None:
        return constant_value(fold_compare(operator, left.constant, right.constant), result)
    if dtype.kind is Kind.FLOAT:
        if kind.startswith("i"):
            raise writer.error(f"{dtype} has no comparison: cast to float32 first")
        predicate = {"eq": "oeq", "ne": "une"}.get(operator, "o" + operator)
        return writer.value(f"fcmp {predicate} {kind} {left.text}, {right.text}", result)
    predicate = operator if operator in ("eq", "ne") else ("s" if dtype.is_signed else "u") + operator
    return writer.value(f"icmp {predicate} {kind} {writer.operand(left)}, {writer.operand(right)}", result)


# -- unary ----------------------------------------
def unary(writer: FunctionWriter, operator: str, value: Value) -> Value:
    if value.dtype.kind is Kind.FLOAT:
        return _float_unary(writer, operator, value)
    dtype, kind = value.dtype, value_type(value.dtype)
    if value.constant is not None and operator in ("neg", "not", "abs") and dtype.is_integer:
        number = int(value.constant)
        return constant_value({"neg": -number, "not": ~number, "abs": abs(number)}[operator], dtype)
    if operator == "not":
        if value.constant is not None:
            return constant_value(not value.constant, dtype)
        ones = "true" if dtype.kind is Kind.BOOL else "-1"
        return writer.value(f"xor {kind} {writer.operand(value)}, {ones}", dtype)
    if operator == "neg" and dtype.is_integer:
        return writer.value(f"sub {kind} 0, {writer.operand(value)}", dtype)
    if operator == "abs" and dtype.is_integer:
        if not dtype.is_signed:
            return value
        return Value(writer.call_intrinsic(f"llvm.abs.{kind}", writer.operand(value), "false"), dtype)
    raise writer.error(f"{operator} of {dtype} is not defined")


_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "roundeven"}


def _float_unary(writer: FunctionWriter, operator: str, value: Value) -> Value:
    dtype, kind = value.dtype, value_type(value.dtype)
    if kind.startswith("i"):
        raise writer.error(f"{dtype} has no arithmetic: cast to float32 first")
    if operator == "neg":
        return writer.value(f"fneg {kind} {value.text}", dtype)
    suffix = intrinsic_suffix(kind)
    if operator == "abs":
        return Value(writer.call_intrinsic(f"llvm.fabs.{suffix}", value.text), dtype)
    if operator in _ROUNDING:
        return Value(writer.call_intrinsic(f"llvm.{_ROUNDING[operator]}.{suffix}", value.text), dtype)
    if operator != "sqrt":
        raise writer.error(f"{operator} of {dtype} is not defined")
    if kind in _NARROW:  # exact for the reason given at the division
        root = writer.call_intrinsic("llvm.sqrt.f32", _widen(writer, value))
        return writer.value(f"fptrunc float {root} to {kind}", dtype)
    return Value(writer.call_intrinsic(f"llvm.sqrt.{suffix}", value.text), dtype)
