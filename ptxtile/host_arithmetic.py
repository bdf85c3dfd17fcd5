"""Integer arithmetic of grids and block sizes on the host, under the names that TileLang's scripts use."""

from __future__ import annotations

from ptxtile.errors import ArgumentError


def cdiv(a: int, b: int) -> int:
    """⌈a / b⌉ for ``b`` > 0. ArgumentError for another ``b``."""
    if b <= 0:
        raise ArgumentError("cdiv: the divisor", expected="an integer > 0", got=repr(b))
    return -(-a // b)


def next_power_of_2(x: int) -> int:
    """The smallest power of two that is not less than ``x``; 1 for ``x`` ≤ 1."""
    return 1 << max(0, x - 1).bit_length()
