"""Writes a device function as one reads a numerical paper: named intermediate values, polynomials, selects, branches.

    b = FunctionBuilder("exp", float32, "x")
    x = b.parameter("x")
    t = b.let("t", b.fma(x, log2_e, magic))
    ...
    function = b.finish(result)

Every helper keeps dtypes strict, as the IR does; Python numbers take the dtype of the other operand. All names inside a
function carry the function's name, so that they stay unique in a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import (
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_expr,
    binary,
    bitcast,
    constant,
    load,
    select,
    unary,
)
from ptxtile.ir.program import Function
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Seq, Statement, Store
from ptxtile.ir.types import DType, float32, float64, int32, int64, uint32, uint64
from ptxtile.lower.math.coefficients import CONSTANTS, POLYNOMIALS
from ptxtile.records import record


@record
class Format:
    """An IEEE 754 binary format: ``precision`` counts the hidden bit, ``bias`` is the exponent's."""

    dtype: DType
    signed: DType
    unsigned: DType
    precision: int
    bias: int

    @property
    def mantissa_bits(self) -> int:
        """Bits of the fraction field, which is also where the exponent field starts."""
        return self.precision - 1

    @property
    def sign_mask(self) -> int:
        return 1 << (self.dtype.bits - 1)

    @property
    def infinity_bits(self) -> int:
        """The bit pattern of +inf, which is also the mask of the exponent field."""
        return self.sign_mask - (1 << self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def rounding_shift(self) -> float:
        """1.5 · 2^mantissa_bits: adding it rounds to an integer, which is then in the low bits of the sum's pattern."""
        return 1.5 * 2.0**self.mantissa_bits


FORMATS = {
    float32: Format(float32, int32, uint32, 24, 127),
    float64: Format(float64, int64, uint64, 53, 1023),
}

INFINITY = float("inf")
NAN = float("nan")


def function_name(name: str, dtype: DType) -> str:
    """The device function's name: with a prefix, so that a user's kernel ``exp_float32`` does not collide with it."""
    return f"math_{name}_{dtype.name}"


class Variable:
    """A scalar that changes: a LOCAL buffer of one element."""

    def __init__(self, builder: FunctionBuilder, name: str, dtype: DType) -> None:
        self._builder = builder
        self._buffer = allocate(builder.unique(name), Scope.LOCAL, dtype, (1,), alignment=dtype.itemsize)
        builder.append(Allocate(self._buffer))

    @property
    def value(self) -> Load:
        return load(self._buffer, (constant(0),))

    def set(self, value: Expr | int | float) -> None:
        value = as_expr(value, self._buffer.dtype)
        assert value.dtype == self._buffer.dtype
        self._builder.append(Store(self._buffer, (constant(0),), value))


class FunctionBuilder:
    """Collects the body of the function ``name`` for ``dtype``; the device function is called
    ``math_<name>_<dtype>``."""

    def __init__(self, name: str, dtype: DType, *parameters: str, types: Sequence[DType] | None = None) -> None:
        self.name = function_name(name, dtype)
        self.dtype = dtype
        self.format = FORMATS[dtype]
        self._names: set[str] = set()
        self._statements: list[Statement] = []
        kinds = types or [dtype] * len(parameters)
        self._parameters = {p: Var(self.unique(p), kind) for p, kind in zip(parameters, kinds, strict=True)}

    # --- names, statements -------------------------------------------------------------------------------------------

    def unique(self, name: str) -> str:
        candidate, count = f"{self.name}_{name}", 1
        while candidate in self._names:
            count += 1
            candidate = f"{self.name}_{name}_{count}"
        self._names.add(candidate)
        return candidate

    def append(self, statement: Statement) -> None:
        self._statements.append(statement)

    def parameter(self, name: str) -> Var:
        return self._parameters[name]

    def let(self, name: str, value: Expr) -> Expr:
        """``value`` computed once, here. A constant or a variable stays what it is."""
        if isinstance(value, (Const, Var)):
            return value
        var = Var(self.unique(name), value.dtype)
        self.append(Let(var, value))
        return var

    def variable(self, name: str, dtype: DType | None = None) -> Variable:
        return Variable(self, name, dtype or self.dtype)

    @contextmanager
    def _block(self) -> Iterator[list[Statement]]:
        outer, self._statements = self._statements, []
        try:
            yield self._statements
        finally:
            self._statements = outer

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """The statements inside run when ``condition`` holds."""
        with self._block() as inside:
            yield
        self.append(If(condition, Seq(tuple(inside))))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the branch just before."""
        with self._block() as inside:
            yield
        last = self._statements.pop()
        assert isinstance(last, If) and last.otherwise is None
        self.append(If(last.condition, last.then, Seq(tuple(inside))))

    @contextmanager
    def loop(self, name: str, count: Expr) -> Iterator[Var]:
        """The statements inside run ``count`` times, with the variable 0, 1, …"""
        var = Var(self.unique(name), count.dtype)
        with self._block() as inside:
            yield var
        self.append(For(var, constant(0, count.dtype), count, 1, LoopKind.SERIAL, Seq(tuple(inside))))

    def finish(self, result: Expr, out_of_line: bool = False) -> Function:
        """The function; ``out_of_line`` for a rare path that its callers should not inline."""
        body = Seq(tuple(self._statements))
        return Function(self.name, tuple(self._parameters.values()), body, result, out_of_line)

    # --- expressions -------------------------------------------------------------------------------------------------

    def constant(self, value: float) -> Const:
        return constant(value, self.dtype)

    def fma(self, a: Expr | float, b: Expr | float, c: Expr | float) -> Call:
        """a·b + c with one rounding."""
        dtype = next(operand.dtype for operand in (a, b, c) if isinstance(operand, Expr))
        return Call("fma", (as_expr(a, dtype), as_expr(b, dtype), as_expr(c, dtype)), dtype)

    def poly(self, x: Expr, coefficients: Sequence[float]) -> Expr:
        """Σ coefficients[k]·x^k by Horner's rule in fma; lowest power first."""
        result: Expr = constant(coefficients[-1], x.dtype)
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def polynomial(self, name: str, x: Expr) -> Expr:
        """The fitted polynomial ``name`` of coefficients.py at x."""
        return self.poly(x, POLYNOMIALS[name, self.dtype.name])

    def split(self, name: str) -> tuple[float, ...]:
        """A constant of coefficients.py as an unevaluated sum."""
        return CONSTANTS[name, self.dtype.name]

    def select(self, condition: Expr, if_true: Expr | float, if_false: Expr | float) -> Select:
        return select(condition, as_expr(if_true, self.dtype), as_expr(if_false, self.dtype))

    def choose(self, condition: Expr, if_true: Expr, if_false: Expr | int | float) -> Select:
        """:meth:`select` for another dtype than the function's."""
        return select(condition, if_true, if_false)

    def absolute(self, x: Expr) -> Expr:
        return unary("abs", x)

    def sqrt(self, x: Expr) -> Expr:
        return unary("sqrt", x)

    def call(self, name: str, *arguments: Expr, dtype: DType | None = None) -> Call:
        """A call of another math function of the same dtype."""
        return Call(function_name(name, self.dtype), arguments, dtype or self.dtype)

    # --- bit patterns ------------------------------------------------------------------------------------------------

    def bits(self, x: Expr) -> Expr:
        """The pattern of a float as a signed integer of the same width."""
        return bitcast(x, self.format.signed)

    def unsigned_bits(self, x: Expr) -> Expr:
        return bitcast(x, self.format.unsigned)

    def number(self, pattern: Expr) -> Expr:
        """The float with an integer's bit pattern."""
        return bitcast(pattern, self.dtype)

    def sign_of(self, x: Expr) -> Expr:
        """The sign bit of x, in place."""
        return self.unsigned_bits(x) & self.format.sign_mask

    def with_sign_of(self, magnitude: Expr, x: Expr) -> Expr:
        """``magnitude`` (not negative, or of x's sign already) with the sign bit of x: keeps the sign of zero."""
        return self.number(self.unsigned_bits(magnitude) | self.sign_of(x))

    def flip_sign(self, x: Expr, sign: Expr) -> Expr:
        """x, negated where the sign bit ``sign`` (in place) is set."""
        return self.number(self.unsigned_bits(x) ^ sign)

    def clamp(self, x: Expr, low: float, high: float) -> Expr:
        """x held within [low, high]; NaN stays NaN. PTX has no NaN-propagating min for float64, so compare there."""
        if self.dtype == float32:
            return binary("min", binary("max", x, low), high)
        return self.select(x.gt(high), high, self.select(x.lt(low), low, x))

    # --- pairs: unevaluated sums high + low --------------------------------------------------------------------------

    def two_sum(self, name: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """a + b exactly (Knuth's TwoSum)."""
        high = self.let(f"{name}_high", a + b)
        part = self.let(f"{name}_part", high - a)
        return high, self.let(f"{name}_low", (a - (high - part)) + (b - part))

    def fast_two_sum(self, name: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """a + b exactly where |a| ≥ |b| or a = 0 (Dekker's Fast2Sum)."""
        high = self.let(f"{name}_high", a + b)
        return high, self.let(f"{name}_low", b - (high - a))

    def two_product(self, name: str, a: Expr, b: Expr | float) -> tuple[Expr, Expr]:
        """a·b exactly, barring underflow."""
        high = self.let(f"{name}_high", a * b)
        return high, self.let(f"{name}_low", self.fma(a, b, -high))
