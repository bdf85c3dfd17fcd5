"""GPU ops that only users write: barriers in two halves, assertions, inline PTX (PTX ISA 9.0 numbering)."""

from __future__ import annotations

import re

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.types import DType
from ptxtile.records import record


@record
class BarArrive(GpuOp):
    """bar.arrive id, threads (9.7.13.1): arrives at a named barrier that ``threads`` threads meet at, and goes on."""

    id: int
    threads: int


@record
class BarAt(GpuOp):
    """bar.sync or, if nobody ``waits`` in it, bar.arrive (9.7.13.1) at the barrier with the id ``index``, an int32 from
    0 to 15 that all threads of a warp have in common; ``threads`` meet there."""

    index: Expr
    threads: int
    waits: bool = True


REDUCE_MODES = ("popc", "and", "or")


@record
class BarReduce(GpuOp):
    """barrier.red (9.7.13.1): all ``threads`` threads meet as in bar.sync, and each learns in
    ``destination[destination_offset]`` of how many of them ``condition`` (a bool) holds (``popc``, uint32), or whether
    of all (``and``) or of some (``or``; bools)."""

    destination: Buffer
    destination_offset: Expr
    condition: Expr
    mode: str
    id: int
    threads: int


@record
class GridSync(GpuOp):
    """All threads of all CTAs of the grid meet; what any of them did to global memory before is visible to all after.

    The launch is cooperative, so that all CTAs run at the same time. Thread 0 of each CTA adds to a counter that the
    driver provides for the launch (``driver_abi.h`` of CUDA's cooperative groups: the 64-bit address of
    %envreg1:%envreg2, plus 4) and waits until its highest bit has changed; the CTA meets before and after. Accesses of
    TMA are ordered by what :mod:`ptxtile.lower.order_grid_barriers` puts in front.
    """


@record
class MbarrierExpectTx(GpuOp):
    """mbarrier.expect_tx (9.7.13.15.11): adds ``bytes`` to the phase's pending transactions, without an arrival."""

    barrier: Buffer
    index: Expr
    bytes: int


@record
class DeviceAssert(GpuOp):
    """Stops the kernel with ``message`` when ``condition`` does not hold in some thread (vprintf, then trap,
    9.7.20.4)."""

    condition: Expr
    message: str = ""


@record
class InlinePtx(GpuOp):
    """The user's own PTX. ``$0``, ``$1``… in ``template`` are the first elements of ``results`` (LOCAL buffers), then
    ``inputs``; ``$$`` is a dollar sign and ``${:uid}`` a number of this use, for labels.

    Operands are numbers of 16, 32 or 64 bits. The op has effects that nothing is known about, and all threads that
    reach it run it together.
    """

    template: str
    results: tuple[Buffer, ...] = ()
    inputs: tuple[Expr, ...] = ()


MANUAL_OPS = (BarArrive, BarAt, BarReduce, GridSync, MbarrierExpectTx, DeviceAssert, InlinePtx)

_REFERENCE = re.compile(r"\$(\$|\{:uid\}|\d+)?")


def template_problem(template: str, operands: int) -> str:
    """What is wrong with a template for so many operands; empty when nothing is.

    LLVM ends the process on a ``$`` that it cannot read, so every one is checked here.
    """
    used: set[int] = set()
    for match in _REFERENCE.finditer(template):
        reference = match[1]
        if reference is None:
            return f"a $ that is followed by {template[match.end() : match.end() + 1]!r}: write $$ for a dollar sign"
        if reference.isdigit():
            used.add(int(reference))
    if any(number >= operands for number in used):
        return f"${max(used)} where there are {operands} operands"
    missing = sorted(set(range(operands)) - used)
    if missing:
        return f"the operand ${missing[0]} is not used"
    if any(ord(character) > 126 or (ord(character) < 32 and character not in "\n\t") for character in template):
        return "a character that PTX does not have"
    return ""


def is_operand(dtype: DType) -> bool:
    """Whether a PTX register holds a value of ``dtype``."""
    return dtype.lanes == 1 and dtype.bits in (16, 32, 64) and not dtype.is_bool
