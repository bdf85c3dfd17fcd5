"""Atomic accesses of global and shared memory: GPU ops that are legal from the tile stage on (PTX ISA 9.7.13.5 to
9.7.13.8).

``indices`` are those of a Store: one for each dimension, and one element offset at the gpu stage. ``result``: a LOCAL
buffer whose first elements take the value from before the operation. Each active thread that runs the op performs it
once. An atomic access is a side effect: nothing moves across it.

The scope is the device (``.gpu``). ``order`` names the memory order as C++ does; ``seq_cst`` is ``fence.sc`` and the
strongest form of the operation.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, float32
from ptxtile.records import record

OPERATORS = ("add", "min", "max", "and", "or", "xor", "exchange")
COMMUTATIVE = ("add", "min", "max", "and", "or", "xor")
"""Any order of several of one of these leaves the same value (of floats: up to rounding)."""

ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
LOAD_ORDERS = ("relaxed", "acquire", "seq_cst")
STORE_ORDERS = ("relaxed", "release", "seq_cst")
ACQUIRING = ("acquire", "acq_rel", "seq_cst")
"""Later accesses of the thread stay after an operation of one of these orders."""
RELEASING = ("release", "acq_rel", "seq_cst")
"""Earlier accesses of the thread stay before an operation of one of these orders."""


@record
class Atomic(GpuOp):
    """atom or red (9.7.13.5, 9.7.13.7): ``buffer[indices] = operator(buffer[indices], value)``; ``exchange`` stores
    ``value``.

    Dtypes without an instruction go through a loop of compare-and-swap. ``min`` and ``max`` propagate NaN, as the
    operators do; an addition of float32 in global memory flushes subnormals (PTX ISA, «atom»). A vector value (``add``
    only, see :func:`vector_lanes`) is as many operations on consecutive elements, aligned to the whole.
    """

    operator: str
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    order: str = "relaxed"
    result: Buffer | None = None


@record
class AtomicLoad(GpuOp):
    """ld.relaxed or ld.acquire (9.7.9.8)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    result: Buffer
    order: str = "seq_cst"


@record
class AtomicStore(GpuOp):
    """st.relaxed or st.release (9.7.9.11)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    order: str = "seq_cst"


ATOMIC_OPS = (Atomic, AtomicLoad, AtomicStore)

_UNSIGNED = {"int32": "uint32", "int64": "uint64"}
_WORDS = ("int32", "uint32", "int64", "uint64")
_HALVES = ("float16", "bfloat16")
TMA_REDUCTIONS: dict[str, dict[str, str]] = {
    "add": {name: _UNSIGNED.get(name, name) for name in (*_WORDS, *_HALVES, "float32", "float64")},
    **{name: {element: element for element in (*_WORDS, *_HALVES)} for name in ("min", "max")},
    **{name: {element: _UNSIGNED.get(element, element) for element in _WORDS} for name in ("and", "or", "xor")},
}
"""By operator: element dtype → element type of the tensor map (PTX ISA 9.7.9.27.1.3 with the types of 9.7.9.25.4.2,
«cp.reduce.async.bulk», to global memory: ``.add`` of s32, u32, u64, f16, bf16, f32, f64; ``.min`` and ``.max`` of s32,
u32, s64, u64, f16, bf16; ``.and``, ``.or``, ``.xor`` of b32, b64). Where signed and unsigned words give the same bits
the unsigned type is taken, which all of these have. What ``min`` and ``max`` make of a NaN is left open."""


def is_legal_operator(operator: str, dtype: DType) -> bool:
    """Whether ``operator`` is defined for elements of ``dtype``."""
    if operator == "exchange":
        return dtype.bits >= 8
    if operator in ("and", "or", "xor"):
        return dtype.is_bool or (dtype.is_integer and dtype.bits >= 8)
    return dtype in ARITHMETIC_FLOATS or (dtype.is_integer and dtype.bits >= 8)


def vector_lanes(operator: str, buffer: Buffer) -> int:
    """The most consecutive elements that one instruction of some card takes (PTX ISA, «red»: ``.v2``, ``.v4``,
    ``.f16x2``)."""
    if operator != "add" or buffer.scope.value != "global":
        return 1
    if buffer.dtype == float32:
        return 4
    return 8 if buffer.dtype in ARITHMETIC_FLOATS and buffer.dtype.bits == 16 else 1
