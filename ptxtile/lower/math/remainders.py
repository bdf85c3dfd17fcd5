"""fmod: exact."""

from __future__ import annotations

from ptxtile.ir.expressions import Expr, binary, cast, constant, logical_and, logical_not, logical_or, select, unary
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, int32, uint64
from ptxtile.lower.math.builder import INFINITY, NAN, FunctionBuilder


def fmod(dtype: DType) -> Function:
    """x − n·y with n = trunc(x/y). One fma while the quotient has at most the format's precision, else long
    division."""
    b = FunctionBuilder("fmod", dtype, "x", "y")
    x, y = b.parameter("x"), b.parameter("y")
    size, divisor = b.let("size", b.absolute(x)), b.let("divisor", b.absolute(y))
    quotient = b.let("quotient", size / divisor)
    result = b.variable("result")
    # The rounded quotient is never below the true one's integer part, and above it by one at most.
    rest = b.let("rest", b.fma(-unary("trunc", quotient), divisor, size))
    result.set(b.select(size.lt(divisor), size, b.select(rest.lt(0.0), rest + divisor, rest)))
    with b.branch(logical_not(quotient.lt(2.0**b.format.mantissa_bits))):
        result.set(b.call("fmod_large", size, divisor))
    return b.finish(b.with_sign_of(result.value, x))


def _mantissa_and_exponent(b: FunctionBuilder, x: Expr) -> tuple[Expr, Expr]:
    """x ≥ 0 as integer·2^(exponent − bias − mantissa_bits), the exponent at least 1."""
    fmt = b.format
    pattern = b.let("pattern", cast(b.unsigned_bits(x), uint64))
    field = b.let("field", cast(pattern >> fmt.mantissa_bits, int32))
    fraction = pattern & ((1 << fmt.mantissa_bits) - 1)
    normal = b.let("normal", field.ne(0))
    hidden = select(normal, constant(1 << fmt.mantissa_bits, uint64), 0)
    return b.let("mantissa", fraction | hidden), b.let("exponent", select(normal, field, 1))


def fmod_large(dtype: DType) -> Function:
    """fmod of numbers ≥ 0 with a large quotient, or with arguments that have none: long division, as many bits a step
    as 64-bit integers allow."""
    b = FunctionBuilder("fmod_large", dtype, "x", "y")
    x, y = b.parameter("x"), b.parameter("y")
    valid = logical_and(x.lt(INFINITY), y.gt(0.0))
    result = b.variable("result")
    result.set(b.select(logical_or(logical_not(valid), y.ne(y)), NAN, x))
    with b.branch(logical_and(valid, y.lt(INFINITY))):
        most = 64 - b.format.precision
        mantissa, exponent = _mantissa_and_exponent(b, x)
        divisor, divisor_exponent = _mantissa_and_exponent(b, y)
        rest = b.variable("rest", uint64)
        rest.set(binary("truncmod", mantissa, divisor))
        places = b.let("places", exponent - divisor_exponent)
        with b.loop("round", binary("truncdiv", places + (most - 1), most)) as done:
            step = b.let("step", binary("min", places - done * most, most))
            rest.set(binary("truncmod", rest.value << cast(step, uint64), divisor))
        # rest·2^(divisor_exponent − bias − mantissa_bits), exact, by two factors that are normal numbers.
        power = b.let("power", divisor_exponent - (b.format.bias + b.format.mantissa_bits))
        half = b.let("half", power >> 1)
        first, second = (
            b.number(cast(part + b.format.bias, b.format.signed) << b.format.mantissa_bits)
            for part in (half, power - half)
        )
        result.set(cast(rest.value, dtype) * first * second)
    return b.finish(result.value, out_of_line=True)
