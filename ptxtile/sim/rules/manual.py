"""What only users write: bar.arrive, mbarrier.expect_tx, assertions, and the inline PTX that can be simulated.

An instruction of :data:`INSTRUCTIONS` alone is carried out (PTX ISA, «Instruction Set»); any other text needs a card.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.manual_ops import BarArrive, DeviceAssert, InlinePtx, MbarrierExpectTx
from ptxtile.ir.types import DType
from ptxtile.sim.dtypes import as_array, from_memory, memory_dtype, to_memory
from ptxtile.sim.masks import Mask, split
from ptxtile.sim.rules import barriers, mbarriers

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


def arrive(threads: Threads, op: BarArrive, mask: Mask) -> None:
    """An arrival at a named barrier that nobody waits in."""
    barriers.sync(threads, BarSync(op.id, op.threads, location=op.location), mask)


def expect(threads: Threads, op: MbarrierExpectTx, mask: Mask) -> None:
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        counts = threads.lanes_per_cta(lanes)
        mbarrier.require_initialised(counts > 0, "told to expect bytes")
        mbarrier.add_transactions(counts * op.bytes)


def check(threads: Threads, op: DeviceAssert, mask: Mask) -> None:
    _, fails = split(mask, threads.evaluate(op.condition, mask))
    ctas, lanes = threads.active_lanes(fails)
    if len(ctas):
        where = f"thread {threads.first_thread + int(lanes[0])} of CTA {threads.group.block_index(int(ctas[0]))}"
        more = f" and {len(ctas) - 1} more" if len(ctas) > 1 else ""
        raise SimulationError(op.message or "a device assertion failed", got=f"a false condition in {where}{more}")


_Words = Callable[..., Any]
INSTRUCTIONS: dict[str, tuple[int, _Words]] = {
    "mov": (1, lambda a: a),
    "add": (2, np.add),
    "sub": (2, np.subtract),
    "mul.lo": (2, np.multiply),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
    "and": (2, np.bitwise_and),
    "or": (2, np.bitwise_or),
    "xor": (2, np.bitwise_xor),
    "not": (1, np.invert),
    "neg": (1, np.negative),
    "abs": (1, np.abs),
    "popc": (1, np.bitwise_count),
}
"""Mnemonic → number of sources, what it computes on words of its type."""

_INSTRUCTION = re.compile(r"\s*([a-z.]+?)\.([busf])(16|32|64)\s+\$0\s*((?:,\s*\$\d+\s*)+);?\s*")


def inline(threads: Threads, op: InlinePtx, mask: Mask) -> None:
    match = _INSTRUCTION.fullmatch(op.template)
    known = match is not None and match[1] in INSTRUCTIONS and len(op.results) == 1
    sources = [int(number) - 1 for number in re.findall(r"\$(\d+)", match[4])] if match and known else []
    if match is None or not known or len(sources) != INSTRUCTIONS[match[1]][0] or min(sources) < 0:
        raise SimulationError(
            "this inline PTX can only run on a card",
            expected=f"one instruction of {', '.join(INSTRUCTIONS)}, such as 'add.s32 $0, $1, $2;'",
            got=op.template.strip(),
        )
    letter, bits = match[2], int(match[3])
    words = np.dtype({"f": "float", "s": "int"}.get(letter, "uint") + str(bits))
    values = [_words(threads.evaluate(op.inputs[s], mask), op.inputs[s].dtype, words) for s in sources]
    result = np.asarray(INSTRUCTIONS[match[1]][1](*values))
    buffer = op.results[0]
    if match[1] == "popc":
        result = result.astype(memory_dtype(buffer.dtype))
    raw = np.ascontiguousarray(result).view(memory_dtype(buffer.dtype))
    shape = (threads.group.ctas, threads.lanes)
    threads.store(buffer, 0, np.broadcast_to(from_memory(raw, buffer.dtype), shape), buffer.dtype, mask)


def _words(value: Any, dtype: DType, words: np.dtype) -> np.ndarray:
    """The bits of a value as words of another type of the same width."""
    stored = np.ascontiguousarray(to_memory(as_array(value, dtype), dtype))
    if stored.dtype.itemsize != words.itemsize:
        raise SimulationError("an operand of inline PTX of another width", expected=str(words), got=str(dtype))
    return stored.reshape(stored.shape or (1,)).view(words).reshape(stored.shape)
