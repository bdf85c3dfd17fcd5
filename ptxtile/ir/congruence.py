"""Congruences of integers: «value ≡ remainder (mod modulus)» through the operators.

A congruence is a pair ``(modulus, remainder)``. Modulus 0 means exactly the remainder; modulus 1 says nothing;
otherwise ``0 <= remainder < modulus``. The functions compute over unbounded integers; :func:`wrapped` weakens a result
that may have wrapped. (P. Granger, «Static analysis of arithmetical congruences», 1989.)
"""

from __future__ import annotations

from math import gcd

Congruence = tuple[int, int]

ANYTHING: Congruence = (1, 0)


def normal(modulus: int, remainder: int) -> Congruence:
    modulus = abs(modulus)
    return (modulus, remainder % modulus) if modulus else (0, remainder)


def wrapped(a: Congruence, bits: int) -> Congruence:
    """Holds for the value after it is reduced modulo 2**bits into the dtype's range."""
    if a == ANYTHING:
        return a
    return normal(gcd(a[0], 1 << bits), a[1])


def add(a: Congruence, b: Congruence) -> Congruence:
    return normal(gcd(a[0], b[0]), a[1] + b[1])


def scale(a: Congruence, factor: int) -> Congruence:
    return normal(a[0] * factor, a[1] * factor)


def multiply(a: Congruence, b: Congruence) -> Congruence:
    return normal(gcd(a[0] * b[0], a[0] * b[1], a[1] * b[0]), a[1] * b[1])


def join(a: Congruence, b: Congruence) -> Congruence:
    """Holds for a value that obeys ``a`` or ``b``."""
    return normal(gcd(a[0], b[0], a[1] - b[1]), a[1])


def meet(a: Congruence, b: Congruence) -> Congruence:
    """What is known of a value that obeys both. One of the two when the Chinese remainder theorem would be needed."""
    if a[0] == 0 or (b[0] and a[0] % b[0] == 0):
        return a
    if b[0] == 0 or b[0] % a[0] == 0:
        return b
    if a[1] == b[1] == 0:
        return normal(a[0] * b[0] // gcd(a[0], b[0]), 0)
    return max(a, b)


def floor_divide(a: Congruence, divisor: int) -> Congruence:
    """By a positive constant: x = m·k + r and divisor | m give x // divisor = (m/divisor)·k + r // divisor."""
    if a[0] % divisor == 0:
        return normal(a[0] // divisor, a[1] // divisor)
    return ANYTHING


def floor_remainder(a: Congruence, divisor: int) -> Congruence:
    """By a positive constant."""
    if a[0] % divisor == 0:
        return 0, a[1] % divisor
    return normal(gcd(a[0], divisor), a[1])


def _low_bits(a: Congruence) -> tuple[int, int]:
    """How many low bits are known, and their value; a constant knows all (many)."""
    if a[0] == 0:
        return 1 << 16, a[1]
    known = (a[0] & -a[0]).bit_length() - 1
    return known, a[1] & ((1 << known) - 1)


def _trailing_zeros(a: Congruence) -> int:
    known, value = _low_bits(a)
    return min(known, (value & -value).bit_length() - 1) if value else known


def bitwise(operator: str, a: Congruence, b: Congruence) -> Congruence:
    """and, or, xor: the low bits that both sides know; for ``and`` also the low zeros of either side."""
    known_a, value_a = _low_bits(a)
    known_b, value_b = _low_bits(b)
    known = min(known_a, known_b)
    value = {"and": value_a & value_b, "or": value_a | value_b, "xor": value_a ^ value_b}[operator]
    if operator == "and":
        zeros = max(_trailing_zeros(a), _trailing_zeros(b))
        if zeros > known:
            return normal(1 << min(zeros, 64), 0)
    if known >= 1 << 16:
        return 0, value
    return normal(1 << known, value)
