"""The error bound of every function: the largest distance, in ulp, between a result and the correctly rounded one.

Source: CUDA C++ Programming Guide, «Mathematical Functions Appendix», tables «Single-Precision» and «Double-Precision
Mathematical Standard Library Functions with Maximum ULP Error», which define the error this way. sigmoid is not in
them; its bound is that of a quotient of numbers within 1 ulp. float16 and bfloat16 results are float32 results rounded
once, so that they differ from the correctly rounded ones only where those lie next to the middle of two numbers: 1 ulp.
"""

from __future__ import annotations

_BOUNDS: dict[str, tuple[int, int]] = {
    # name: (float32, float64)
    "exp": (1, 1), "exp2": (2, 1), "exp10": (2, 1), "expm1": (1, 1), "sigmoid": (2, 2),
    "log": (1, 1), "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1),
    "sin": (2, 2), "cos": (2, 2), "tan": (4, 2),
    "asin": (2, 2), "acos": (2, 2), "atan": (2, 2), "atan2": (3, 2),
    "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2),
    "erf": (2, 2), "pow": (4, 2), "rsqrt": (2, 1), "hypot": (3, 2),
    "fmod": (0, 0), "round": (0, 0), "copysign": (0, 0),
}  # fmt: skip

ULP: dict[tuple[str, str], int] = {
    (name, dtype): bound
    for name, (single, double) in _BOUNDS.items()
    for dtype, bound in (
        ("float32", single), ("float64", double), ("float16", min(single, 1)), ("bfloat16", min(single, 1))
    )
}  # fmt: skip
"""(function, dtype) → ulp."""
