"""Python numbers as a kernel's parameters, in native code: the bits that :mod:`ptxtile.runtime.scalars` makes.

No floating-point constant occurs: it would lie in memory of its own.
"""

from __future__ import annotations

from ptxtile.native.layout import Argument, Number, Table
from ptxtile.native.llvm_text import Function

_SIGN = 1 << 31
_INFINITY = 0x7F800000
"""Bits of a binary32 (IEEE 754, 3.4)."""
_HALF_OVERFLOW = 0x477FF000
"""65520.0, the smallest binary32 that rounds to more than the largest binary16."""
_HALF_NORMAL = 0x38800000
"""2⁻¹⁴, the smallest normal binary16."""
_DOUBLE_INFINITY = 0x7FF << 52
_DOUBLE_MAGNITUDE = (1 << 63) - 1


def converted() -> Function:
    """Writes the bits of ``argument`` (an int, float or bool) among ``values`` as ``expected`` says; 0 when the
    parameter cannot hold it."""
    f = Function("converted", ("argument", "expected", "values", "table"))
    argument, expected, values, table = f.parameters
    kind, target = f.load(expected, Argument.SECOND), f.add(values, f.load(expected, Argument.THIRD))
    with f.when(f.is_("eq", kind, Number.INTEGER)):
        overflow = f.room(1)
        f.store(0, overflow)
        value = f.call(f.load(table, Table.AS_LONG_LONG), (argument, overflow))
        outside = f.or_(
            f.as_word(f.is_("slt", value, f.load(expected, Argument.FIFTH))),
            f.as_word(f.is_("sgt", value, f.load(expected, Argument.SIXTH))),
        )
        with f.when(f.is_("ne", f.or_(outside, f.load(overflow)), 0)):
            f.give(0)
        width = f.load(expected, Argument.FOURTH)
        for size in (1, 2, 4, 8):
            with f.when(f.is_("eq", width, size)):
                f.store_bits(value, target, 8 * size)
        f.give(1)
    with f.when(f.is_("eq", kind, Number.UNSIGNED64)):
        value = f.call(f.load(table, Table.AS_UNSIGNED_LONG_LONG), (argument,))
        with f.when(f.is_("eq", value, -1)):
            _give_misfit_after_error(f, table)
        f.store_bits(value, target, 64)
        f.give(1)
    _convert_float(f, argument, kind, target, table)
    return f


def _give_misfit_after_error(f: Function, table: str) -> None:
    with f.when(f.is_("ne", f.call(f.load(table, Table.ERROR_OCCURRED), ()), 0)):
        f.call(f.load(table, Table.CLEAR_ERROR), (), "void")
        f.give(0)


def _convert_float(f: Function, argument: str, kind: str, target: str, table: str) -> None:
    number = f.call(f.load(table, Table.AS_DOUBLE), (argument,), "double")
    wide = f.register(f"bitcast double {number} to i64")
    # An error gives -1.0, and so does -1.0.
    with f.when(f.is_("eq", wide, 0xBFF0 << 48)):
        _give_misfit_after_error(f, table)
    with f.when(f.is_("eq", kind, Number.FLOAT64)):
        f.store_bits(wide, target, 64)
        f.give(1)
    single = f.register(f"fptrunc double {number} to float")
    short = f.register(f"bitcast float {single} to i32")
    bits = f.register(f"zext i32 {short} to i64")
    magnitude, finite = f.and_(bits, _SIGN - 1), f.is_("ult", f.and_(wide, _DOUBLE_MAGNITUDE), _DOUBLE_INFINITY)
    with f.when(finite), f.when(f.is_("eq", magnitude, _INFINITY)):
        f.give(0)
    with f.when(f.is_("eq", kind, Number.FLOAT32)):
        f.store_bits(bits, target, 32)
        f.give(1)
    with f.when(f.is_("eq", kind, Number.FLOAT16)):
        _store_half(f, bits, magnitude, target)
    _store_bfloat(f, bits, magnitude, target)


def _store_half(f: Function, bits: str, magnitude: str, target: str) -> None:
    """Rounds to nearest, ties to even."""
    sign = f.shift_right(f.and_(bits, _SIGN), 16)
    half = f.variable(0x7C00)
    with f.when(f.is_("ugt", magnitude, _INFINITY)):
        half.set(0x7E00)
    with f.when(f.is_("ult", magnitude, _INFINITY)):
        with f.when(f.is_("ugt", magnitude, _HALF_OVERFLOW - 1)):
            f.give(0)
        with f.either(f.is_("ult", magnitude, _HALF_NORMAL)) as branches:
            next(branches)
            exponent = f.shift_right(magnitude, 23)
            mantissa = f.or_(f.and_(magnitude, (1 << 23) - 1), 1 << 23)
            half.set(0)
            with f.when(f.is_("ugt", exponent, 126 - 26)):  # below, less than half of the smallest binary16
                half.set(_rounded(f, mantissa, f.subtract(126, exponent)))
            next(branches)
            half.set(_rounded(f, f.subtract(magnitude, 112 << 23), 13))
    f.store_bits(f.or_(half.get(), sign), target, 16)
    f.give(1)


def _rounded(f: Function, value: str, dropped: str | int) -> str:
    """``value`` without its lowest ``dropped`` bits, to nearest, ties to even."""
    odd = f.and_(f.shift_right(value, dropped), 1)
    almost_half = f.subtract(f.shift_left(1, f.subtract(dropped, 1)), 1)
    return f.shift_right(f.add(f.add(value, almost_half), odd), dropped)


def _store_bfloat(f: Function, bits: str, magnitude: str, target: str) -> None:
    """The upper half of a binary32, rounded to nearest, ties to even; a NaN stays one, and is quiet."""
    with f.when(f.is_("ugt", magnitude, _INFINITY)):
        f.store_bits(f.or_(f.shift_right(bits, 16), 0x40), target, 16)
        f.give(1)
    upper = _rounded(f, bits, 16)
    finite = f.is_("ult", magnitude, _INFINITY)
    with f.when(finite), f.when(f.is_("eq", f.and_(upper, 0x7FFF), _INFINITY >> 16)):
        f.give(0)
    f.store_bits(upper, target, 16)
    f.give(1)
