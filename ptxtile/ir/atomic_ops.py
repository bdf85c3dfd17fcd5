"""Atomic accesses of global and shared memory: GPU ops that are legal from the tile stage on (PTX ISA 9.7.13.5 to
9.7.13.8).

``indices`` are those of a Store: one for each dimension, and one element offset at the gpu stage. ``result``: a LOCAL
buffer whose first elements take the value from before the operation. Each active thread that runs the op performs it
once. An atomic access is a side effect: nothing moves across it.

The scope is the device (``.gpu``). ``order`` names the memory order as C++ does; ``seq_cst`` is ``fence.sc`` and the
strongest form of the operation.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, float32

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class AtomicLoad(GpuOp):
    """ld.relaxed or ld.acquire (9.7.9.8)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    result: Buffer
    order: str = "seq_cst"


@dataclass(frozen=True, slots=True)
class AtomicStore(GpuOp):
    """st.relaxed or st.release (9.7.9.11)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    order: str = "seq_cst"


ATOMIC_OPS = (Atomic, AtomicLoad, AtomicStore)


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
