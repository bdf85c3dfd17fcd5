"""Names and types in C for what a description names."""

from __future__ import annotations

import re
from typing import Any

_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int int16_t int32_t
    int64_t int8_t long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename typeof uint16_t uint32_t uint64_t uint8_t
    union unsigned using virtual void volatile wchar_t while xor xor_eq NULL
"""
_TAKEN = frozenset(_WORDS.split())
"""Keywords of C and C++, and names that the headers use."""

C_TYPES = {
    "bool": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float32": "float", "float64": "double",
}  # fmt: skip
"""Of scalar arguments by dtype; other floats are passed as their bits."""

INTEGER_LIMITS = {
    "bool": (0, 1), **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}  # fmt: skip


def identifier(name: str) -> str:
    """``name`` as C and C++ take it: other letters than ASCII by their code, keywords with an underscore behind."""
    written = re.sub(r"[^A-Za-z0-9_]", lambda found: f"_u{ord(found[0]):04x}", name)
    return written + "_" if written in _TAKEN else written


def scalar_type(dtype: str, element_bytes: int) -> str:
    return C_TYPES.get(dtype, f"uint{8 * element_bytes}_t")


def size_expression(value: Any, symbols: str) -> str:
    """A size of a description as a C expression of int64_t; ``symbols``: what holds them, such as ``symbols->``."""
    if isinstance(value, int):
        return f"INT64_C({value})"
    if isinstance(value, str):
        return symbols + identifier(value)
    left, right = size_expression(value["left"], symbols), size_expression(value["right"], symbols)
    signs = {"add": "+", "sub": "-", "mul": "*"}
    if value["operator"] in signs:
        return f"({left} {signs[value['operator']]} {right})"
    return f"ptxtile_{value['operator']}({left}, {right})"


def size_text(value: Any) -> str:
    """A size for comments."""
    if isinstance(value, (int, str)):
        return str(value)
    signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
    left, right = size_text(value["left"]), size_text(value["right"])
    if value["operator"] in signs:
        return f"({left} {signs[value['operator']]} {right})"
    return f"{value['operator']}({left}, {right})"
