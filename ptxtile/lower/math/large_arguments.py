"""Reduction of huge arguments modulo π/2 (M. Payne, R. Hanek, «Radian reduction for trigonometric functions», 1983).

|x| = M·2^e with an integer mantissa M. Only a window of the bits of 2/π matters: higher ones contribute multiples of
four quarter turns, lower ones too little. Three words of the window times M, modulo four quarter turns, are the
quadrant and the fraction as one fixed-point number. The window is chosen by a tree of selects, so that no local memory
is needed.
"""

from __future__ import annotations

from ptxtile.ir.expressions import Call, Expr, binary, cast, constant, select
from ptxtile.ir.types import DType, float32, float64, int32, int64, uint32, uint64
from ptxtile.lower.math.builder import FunctionBuilder
from ptxtile.lower.math.coefficients import CONSTANTS, WORDS

Angle = tuple[Expr, Expr, Expr]
"""(r_high, r_low, quadrant): |x| = quadrant·π/2 + r_high + r_low modulo 2π, |r| ≤ π/4; the quadrant is an integer of
the format's width of which the low two bits count."""


def reduce_large(b: FunctionBuilder, magnitude: Expr) -> Angle:
    """The angle of a finite number ``magnitude`` ≥ 2."""
    return _reduce_float32(b, magnitude) if b.dtype == float32 else _reduce_float64(b, magnitude)


def _choose_window(b: FunctionBuilder, words: list[Expr], index: Expr, count: int) -> list[Expr]:
    """words[index : index + count] by halving: each bit of ``index``, highest first, drops the words that it rules
    out."""
    for bit in reversed(range((len(words) - count).bit_length())):
        step = 1 << bit
        skip = b.let("skip", (index & step).ne(0))
        kept = min(count + step - 1, len(words))
        words = [b.let("word", select(skip, words[min(k + step, len(words) - 1)], words[k])) for k in range(kept)]
    return words[:count]


def _window(b: FunctionBuilder, unsigned: DType, exponent: Expr) -> list[Expr]:
    """Three words of 2/π that start at the bit whose product with the mantissa's last bit weighs 2^(2 − 3·width).

    With x = M·2^(exponent + 1 − width) and 2/π = Σ bit_i·2^−i, bits before i = exponent − width contribute multiples
    of 4. A word of zeros in front makes that position exponent − 1, never negative.
    """
    width = unsigned.bits
    count = 18 if unsigned == uint64 else 6  # enough for the largest exponent: 1023, 127
    words = [constant(word, unsigned) for word in (0, *WORDS["two_over_pi", unsigned.name][:count])]
    position = b.let("position", exponent - 1)
    chosen = _choose_window(b, list(words), position >> (width.bit_length() - 1), 4)
    shift = b.let("shift", cast(position & (width - 1), unsigned))
    back = b.let("back", width - shift)  # for shift 0 a shift by the whole width, which gives 0
    return [b.let("window", (chosen[k] << shift) | (chosen[k + 1] >> back)) for k in range(3)]


def _reduce_float32(b: FunctionBuilder, magnitude: Expr) -> Angle:
    pattern = b.let("pattern", b.unsigned_bits(magnitude))
    mantissa = b.let("mantissa", cast((pattern << 8) | 0x80000000, uint64))
    w0, w1, w2 = _window(b, uint32, b.let("exponent", cast(pattern >> 23, int32) - 127))
    # The top 64 bits of M·window modulo 2^96: two bits of quadrant, 62 of fraction. Dropped: less than 2^-61.
    product = (cast(w0, uint64) * mantissa << 32) + cast(w1, uint64) * mantissa + (cast(w2, uint64) * mantissa >> 32)
    product = b.let("product", product)
    quadrant = b.let("quadrant", cast(product + (1 << 61) >> 62, int32))
    # The fraction as a signed number in [-1/2, 1/2) quarter turns; float64 so that r is rounded once.
    fraction = cast(cast(product << 2, int64), float64)
    quarter_turn = CONSTANTS["pi_over_2", "float64"][0] * 2.0**-64
    r = b.let("r", cast(fraction * quarter_turn, float32))
    return r, b.constant(0.0), quadrant


def _reduce_float64(b: FunctionBuilder, magnitude: Expr) -> Angle:
    pattern = b.let("pattern", b.unsigned_bits(magnitude))
    mantissa = b.let("mantissa", (pattern << 11) | (1 << 63))
    w0, w1, w2 = _window(b, uint64, b.let("exponent", cast(pattern >> 52, int32) - 1023))
    # The top 128 bits of M·window modulo 2^192: two bits of quadrant, 126 of fraction. Dropped: less than 2^-125.
    partial = b.let("partial", w1 * mantissa)
    low = b.let("low", partial + binary("mulhi", w2, mantissa))
    carry = b.choose(low.lt(partial), constant(1, uint64), 0)
    high = b.let("high", w0 * mantissa + binary("mulhi", w1, mantissa) + carry)
    quadrant = b.let("quadrant", cast(high + (1 << 61) >> 62, int64))
    # The fraction in [-1/2, 1/2) quarter turns as sign and 128-bit magnitude, then its 64 leading bits.
    top = b.let("top", (high << 2) | (low >> 62))
    bottom = b.let("bottom", low << 2)
    negative = b.let("negative", (top >> 63).ne(0))
    borrow = b.choose(bottom.eq(0), constant(1, uint64), 0)
    inverted_bits = constant((1 << 64) - 1, uint64)
    top = b.let("top", b.choose(negative, (top ^ inverted_bits) + borrow, top))
    bottom = b.let("bottom", b.choose(negative, (bottom ^ inverted_bits) + 1, bottom))
    zeros = b.let("zeros", Call("leading_zeros", (top,), uint64))
    leading = b.let("leading", (top << zeros) | (bottom >> (64 - zeros)))
    # leading·2^(-64 - zeros) in two exact parts, times π/2 as a pair.
    unit = b.let("unit", b.number(cast((1023 - 64) - zeros, int64) << 52))
    signed_unit = b.let("signed_unit", b.select(negative, -unit, unit))
    first = b.let("first", cast(cast(leading >> 11, int64), float64) * 2048.0)
    second = cast(cast(leading & 0x7FF, int64), float64)
    quarter_high, quarter_low, _ = b.split("pi_over_2")
    high_part, low_part = b.two_product("angle", first, quarter_high)
    low_part = b.let("angle_low", b.fma(first, quarter_low, b.fma(second, quarter_high, low_part)))
    r_high, r_low = b.fast_two_sum("r", high_part, low_part)
    return b.let("r", r_high * signed_unit), b.let("r_rest", r_low * signed_unit), quadrant
