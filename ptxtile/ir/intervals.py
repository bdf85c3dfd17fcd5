"""Interval arithmetic on integers: what range a result has when its operands have known ranges.

An interval is a pair ``(lower, upper)``, both inclusive. The functions compute over unbounded integers; :func:`wrapped`
then accounts for the width of the dtype. Division follows :mod:`ptxtile.ir.expressions`.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir.types import BY_NAME, DType

Interval = tuple[int, int]


_FULL = {name: (dtype.minimum, dtype.maximum) for name, dtype in BY_NAME.items()}


def full(dtype: DType) -> Interval:
    """Every value of an integer or bool dtype."""
    return _FULL[dtype.element_name]


def wrapped(interval: Interval, dtype: DType) -> Interval:
    """``interval`` when all of it fits into ``dtype``; else any value is possible after wrapping."""
    limits = full(dtype)
    return interval if limits[0] <= interval[0] and interval[1] <= limits[1] else limits


def intersect(a: Interval, b: Interval) -> Interval:
    """The values in both. When none is, the code at hand never runs, and ``a`` is as good an answer as any."""
    lower = a[0] if a[0] >= b[0] else b[0]
    upper = a[1] if a[1] <= b[1] else b[1]
    return (lower, upper) if lower <= upper else a


def hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def scale(a: Interval, factor: int) -> Interval:
    return (a[0] * factor, a[1] * factor) if factor >= 0 else (a[1] * factor, a[0] * factor)


def add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def subtract(a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def multiply(a: Interval, b: Interval) -> Interval:
    products = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(products), max(products)


def truncated_quotient(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def truncated_remainder(a: int, b: int) -> int:
    return a - b * truncated_quotient(a, b)


def _quotients(a: Interval, b: Interval, divide: Callable[[int, int], int]) -> Interval | None:
    """Both quotients are monotonic in each operand while the divisor keeps its sign, so the corners decide."""
    if b[0] <= 0 <= b[1]:
        return None  # a division by zero gives an unspecified value
    corners = [divide(x, y) for x in a for y in b]
    return min(corners), max(corners)


def floor_divide(a: Interval, b: Interval) -> Interval | None:
    return _quotients(a, b, lambda x, y: x // y)


def truncate_divide(a: Interval, b: Interval) -> Interval | None:
    return _quotients(a, b, truncated_quotient)


def floor_remainder(a: Interval, b: Interval) -> Interval | None:
    if b[0] > 0:
        if a[0] // b[0] == a[1] // b[0] and b[0] == b[1]:
            return a[0] % b[0], a[1] % b[0]
        if a[0] >= 0 and a[1] < b[0]:
            return a
        return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    if b[1] < 0:
        return b[0] + 1, 0
    return None


def truncate_remainder(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0 <= b[1]:
        return None
    bound = max(abs(b[0]), abs(b[1])) - 1
    lower = 0 if a[0] >= 0 else max(a[0], -bound)
    upper = 0 if a[1] <= 0 else min(a[1], bound)
    return lower, upper


def minimum(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def maximum(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def absolute(a: Interval) -> Interval:
    if a[0] >= 0:
        return a
    if a[1] <= 0:
        return -a[1], -a[0]
    return 0, max(-a[0], a[1])


def _all_ones(value: int) -> int:
    """The smallest 2**k − 1 that is at least ``value``."""
    return (1 << value.bit_length()) - 1


def bitwise_and(a: Interval, b: Interval) -> Interval | None:
    bounds = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(bounds)) if bounds else None


def bitwise_or(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return max(a[0], b[0]), _all_ones(max(a[1], b[1]))


def bitwise_xor(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return 0, _all_ones(max(a[1], b[1]))


def shift_left(a: Interval, count: Interval, bits: int) -> Interval | None:
    """Counts outside ``[0, bits)`` give 0, which a hull with 0 would cover; they are left to the caller."""
    if count[0] < 0 or count[1] >= bits:
        return None
    return multiply(a, (1 << count[0], 1 << count[1]))


def shift_right(a: Interval, count: Interval, bits: int) -> Interval | None:
    if count[0] < 0 or count[1] >= bits:
        return None
    return floor_divide(a, (1 << count[0], 1 << count[1]))
