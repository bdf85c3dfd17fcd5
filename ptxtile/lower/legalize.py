"""Operators that no instruction has, spelled out; and the width of indices.

:func:`run` (gpu stage in and out):

* Integer ``floordiv``/``floormod`` by a power of two become an arithmetic shift and a mask, for any sign. Where the
  dividend is proven not negative and the divisor positive, they become ``truncdiv``/``truncmod``. What is left and
  small is spelled out; what is left and large keeps its operator, because spelling it out would repeat its operands
  (emitter and simulator know every operator).
* Float ``floordiv``/``floormod`` become calls of device functions with torch's meaning (:func:`float_division`).

:func:`index_dtype` and :func:`widen` are for the pass that turns multi-dimensional indices into offsets: a tensor whose
last element can lie past 2**31 − 1 is indexed with 64 bits, and then the *terms* are widened, not a wrapped result.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir import intervals
from ptxtile.ir.analysis import Analyzer, is_scalar_integer
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expression_table import has_load, map_operands, subexpressions
from ptxtile.ir.expressions import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    cast,
    constant,
    logical_and,
    select,
    unary,
)
from ptxtile.ir.program import Function, Program
from ptxtile.ir.simplify_expression import is_power_of_two
from ptxtile.ir.statements import Let, Seq
from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, bool_, float32, float64, int32, int64
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.target import Target

_LARGEST_REPEATED = 8  # nodes of an operand that may be repeated; LLVM merges the copies, the simulator does not


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, functions = [], {function.name: function for function in program.functions}
    for kernel in program.kernels:
        rewriter = _Legalization(analyzer_for(program, kernel), functions)
        body = rewriter.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
    if all(a is b for a, b in zip(kernels, program.kernels, strict=True)):
        return program
    return replace(program, kernels=tuple(kernels), functions=tuple(functions.values()))


class _Legalization(ScopedRewriter, kinds=(Binary,)):
    def __init__(self, analyzer: Analyzer, functions: dict[str, Function]) -> None:
        super().__init__(analyzer)
        self.functions = functions

    def expression(self, node: Expr) -> Expr:
        if not any(isinstance(e, Binary) and e.operator in ("floordiv", "floormod") for e in subexpressions(node)):
            return node
        return self._legal(node)

    def _legal(self, e: Expr) -> Expr:
        """Lazy operators tell their guarded side what holds there: ``x >= 0 and x // 3 < 5``."""
        if isinstance(e, Select):
            condition = self._legal(e.condition)
            if_true = self._legal_under(e.condition, True, e.if_true)
            if_false = self._legal_under(e.condition, False, e.if_false)
            if condition is e.condition and if_true is e.if_true and if_false is e.if_false:
                return e
            return Select(condition, if_true, if_false, e.dtype)
        if isinstance(e, (LogicalAnd, LogicalOr)):
            left = self._legal(e.left)
            right = self._legal_under(e.left, isinstance(e, LogicalAnd), e.right)
            return e if left is e.left and right is e.right else type(e)(left, right, e.dtype)
        # the analyzer is asked about the operands as they were: floordiv says more than what it is spelled out as
        original = e
        e = map_operands(e, self._legal)
        if isinstance(e, Binary) and isinstance(original, Binary) and e.operator in ("floordiv", "floormod"):
            if is_scalar_integer(e.dtype):
                return self._integer_division(e, original)
            if e.dtype in ARITHMETIC_FLOATS:
                return self._float_division(e)
        return e

    def _legal_under(self, condition: Expr, value: bool, e: Expr) -> Expr:
        with self.analyzer.scope():
            self.analyzer.assume(condition, value)
            return self._legal(e)

    def _integer_division(self, e: Binary, original: Binary) -> Expr:
        left, right, dtype = e.left, e.right, e.dtype
        quotient = e.operator == "floordiv"
        if isinstance(right, Const) and is_power_of_two(int(right.value)):
            divisor = int(right.value)
            if quotient:
                return Binary("shr", left, constant(divisor.bit_length() - 1, dtype), dtype)
            return Binary("and", left, constant(divisor - 1, dtype), dtype)
        if self.analyzer.is_nonnegative(original.left) and self.analyzer.is_nonnegative(original.right):
            # a divisor of 0 gives an unspecified value either way
            return Binary("truncdiv" if quotient else "truncmod", left, right, dtype)
        if all(_is_repeatable(side) for side in (left, right)):
            return spelled_out_division(e)
        return e

    def _float_division(self, e: Binary) -> Expr:
        function = float_division(e.operator, e.dtype)
        self.functions.setdefault(function.name, function)
        return Call(function.name, (e.left, e.right), e.dtype)


def _is_repeatable(e: Expr) -> bool:
    return not has_load(e) and sum(1 for _ in subexpressions(e)) <= _LARGEST_REPEATED


def spelled_out_division(e: Binary) -> Expr:
    """A signed floordiv or floormod by truncating division.

    By a positive constant b, with s the sign mask of a: floor(a / b) = ((a ^ s) / b) ^ s. In general the truncated
    quotient is one too large when the remainder is not 0 and its sign differs from the divisor's.
    """
    a, b, dtype = e.left, e.right, e.dtype
    if isinstance(b, Const) and b.value > 0:
        sign = a >> (dtype.bits - 1)
        quotient = Binary("truncdiv", a ^ sign, b, dtype) ^ sign
        return quotient if e.operator == "floordiv" else a - quotient * b
    remainder = Binary("truncmod", a, b, dtype)
    off_by_one = logical_and(remainder.ne(0), (remainder ^ b).lt(0))
    if e.operator == "floordiv":
        return Binary("truncdiv", a, b, dtype) - select(off_by_one, constant(1, dtype), constant(0, dtype))
    return remainder + select(off_by_one, b, constant(0, dtype))


def float_division(operator: str, dtype: DType) -> Function:
    """The device function for a float ``floordiv`` or ``floormod``, with the results of torch.floor_divide and
    torch.remainder (the remainder has the divisor's sign).

    With q = floor(a / b) rounded, ``fma(-q, b, a)`` is the exact remainder or one divisor off, as long as the quotient
    is below 2**24 (float64: 2**53); above, the remainder of rounded values is what is given. float16 and bfloat16
    compute in float32.
    """
    wide = dtype if dtype in (float32, float64) else float32
    name = f"{operator}_{dtype.name}"
    parameters = (Var(f"{name}_a", dtype), Var(f"{name}_b", dtype))
    a, b = (cast(parameter, wide) for parameter in parameters)
    zero, lets = constant(0.0, wide), []

    def let(part: str, value: Expr) -> Var:
        var = Var(f"{name}_{part}", value.dtype)
        lets.append(Let(var, value))
        return var

    divided = let("divided", a / b)
    quotient = let("quotient", unary("floor", divided))
    # a quotient of 0 means that a is the remainder, also for an infinite b, where 0 * b would be NaN
    left = select(quotient.eq(0.0), a, Call("fma", (-quotient, b, a), wide))
    remainder = let("remainder", left)
    # the rounded quotient may have reached the next integer, and then the remainder has the wrong sign
    wrong_sign = Binary("xor", remainder.lt(0.0), b.lt(0.0), bool_)
    crossed = let("crossed", logical_and(remainder.ne(0.0), wrong_sign))
    if operator == "floormod":
        exact_zero = select(remainder.eq(0.0), a * zero, remainder)  # fmod's zero has the sign of a
        result: Expr = select(crossed, remainder + b, exact_zero)
    else:
        fixed = select(crossed, quotient - constant(1.0, wide), quotient)
        # an infinite or NaN dividend makes the remainder NaN, and torch gives NaN; a zero divisor gives a / b
        result = select(b.eq(0.0), divided, select(remainder.eq(remainder), fixed, remainder))
    return Function(name, parameters, Seq(tuple(lets)), cast(result, dtype))


# -------------------------------------------------------------------- index width


def index_dtype(buffer: Buffer, analyzer: Analyzer) -> DType:
    """int64 where an element of a global buffer can lie 2**31 or more elements from the start of its storage, else
    int32."""
    if buffer.scope is not Scope.GLOBAL:
        return int32
    farthest = _magnitude(buffer.offset, analyzer)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        farthest += max(_magnitude(size, analyzer) - 1, 0) * _magnitude(stride, analyzer)
    return int32 if farthest <= int32.maximum else int64


def _magnitude(size: int | Expr, analyzer: Analyzer) -> int:
    """The largest absolute value of a size, computed without wrapping."""
    if isinstance(size, int):
        return abs(size)
    if isinstance(size, Binary) and size.operator == "mul":  # a stride: a product of sizes, which may itself wrap
        return _magnitude(size.left, analyzer) * _magnitude(size.right, analyzer)
    if isinstance(size, Cast) and is_scalar_integer(size.operand.dtype) and size.dtype.bits >= size.operand.dtype.bits:
        return _magnitude(size.operand, analyzer)
    low, high = analyzer.bounds(size)
    return max(abs(low), abs(high))


_WIDENED = ("add", "sub", "mul", "min", "max", "floordiv", "floormod", "truncdiv", "truncmod")


def widen(e: Expr, analyzer: Analyzer | None = None) -> Expr:
    """An index or size as int64, computed in 64 bits wherever 32 bits could wrap.

    With an analyzer, a part that is proven not to wrap is computed in 32 bits and then cast, which is cheaper. Where
    the 32-bit value would have wrapped, the result is the true sum or product instead: that is the purpose.
    """
    if e.dtype == int64:
        return map_operands(e, lambda x: widen(x, analyzer)) if isinstance(e, Binary) and e.operator in _WIDENED else e
    if isinstance(e, Const):
        return constant(e.value, int64)
    if analyzer is not None and never_wraps(e, analyzer):
        return Cast(e, int64)
    match e:
        case Binary() if e.operator in _WIDENED:
            return Binary(e.operator, widen(e.left, analyzer), widen(e.right, analyzer), int64)
        case Unary("neg"):
            return Unary("neg", widen(e.operand, analyzer), int64)
        case Select():
            return Select(e.condition, widen(e.if_true, analyzer), widen(e.if_false, analyzer), int64)
    return Cast(e, int64)


def never_wraps(e: Expr, analyzer: Analyzer) -> bool:
    """Whether no sum or product inside ``e`` can leave its dtype, so that its value is what integers would give."""
    return all(_keeps_within(part, analyzer) for part in subexpressions(e) if is_scalar_integer(part.dtype))


def _keeps_within(e: Expr, analyzer: Analyzer) -> bool:
    """Whether the operator of ``e`` does not wrap, given that its operands have not.

    Not :meth:`Analyzer.fits`: that is about a linear form whose coefficients are already reduced modulo 2**bits.
    """
    match e:
        case Binary("mul"):
            return analyzer.fits_product(e)
        case Binary("add" | "sub" | "shl"):
            left, right = analyzer.bounds(e.left), analyzer.bounds(e.right)
            exact = {"add": intervals.add, "sub": intervals.subtract, "shl": _shifted}[e.operator](left, right)
        case Unary("neg"):
            exact = intervals.scale(analyzer.bounds(e.operand), -1)
        case Cast() if is_scalar_integer(e.operand.dtype):
            exact = analyzer.bounds(e.operand)
        case _:
            return True
    return e.dtype.minimum <= exact[0] and exact[1] <= e.dtype.maximum


def _shifted(a: intervals.Interval, count: intervals.Interval) -> intervals.Interval:
    result = intervals.shift_left(a, count, 32)
    return (-(2**63), 2**63) if result is None else result
