"""mbarrier objects: init, arrive, expect_tx, complete_tx, wait (PTX ISA 9.7.13.15).

A phase completes when its pending arrivals and its transaction count are both zero; then the next phase begins with the
arrivals that init set. ``try_wait.parity`` of parity p succeeds while the current phase's parity is not p: the phase of
parity p has completed (or, just after init, parity 1 counts as completed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.dtypes import Value
from ptxtile.sim.masks import NO_LANES, Mask, active, split, uniform_integer

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

LARGEST_TRANSACTION_COUNT = (1 << 20) - 1
LARGEST_ARRIVAL_COUNT = (1 << 20) - 1
"""PTX ISA 9.7.13.15.2, «Contents of the mbarrier object»."""
MBARRIER_BYTES = 8


class Mbarrier:
    """The mbarrier at one shared-memory address in every CTA of a group; arrays over the CTAs."""

    def __init__(self, name: str, ctas: int) -> None:
        self.name = name
        self.initialised = np.zeros(ctas, dtype=bool)
        self.arrivals = np.zeros(ctas, dtype=np.int64)
        self.pending = np.zeros(ctas, dtype=np.int64)
        self.transactions = np.zeros(ctas, dtype=np.int64)
        self.phase = np.zeros(ctas, dtype=np.int64)

    def require_initialised(self, ctas: np.ndarray, verb: str) -> None:
        if not self.initialised[ctas].all():
            raise SimulationError(f"{self.name} is {verb} before mbarrier.init")

    def add_transactions(self, change: np.ndarray) -> None:
        """Adds bytes (negative: completed) for each CTA."""
        self.transactions += change
        if (np.abs(self.transactions) > LARGEST_TRANSACTION_COUNT).any():
            raise SimulationError(
                f"the transaction count of {self.name} overflows",
                expected=f"at most {LARGEST_TRANSACTION_COUNT} bytes in one phase",
                got=str(int(np.abs(self.transactions).max())),
            )

    def arrive(self, counts: np.ndarray) -> None:
        """``counts`` arrivals in each CTA, one after another, so that they may complete several phases."""
        left = counts.copy()
        while left.any():
            taken = np.minimum(left, self.pending)
            if ((left > 0) & (taken == 0)).any():
                raise SimulationError(
                    f"{self.name} gets more arrivals than its phase expects",
                    expected=f"{int(self.arrivals[(left > 0) & (taken == 0)][0])} arrivals",
                    got="one more, while the phase still waits for transactions",
                )
            self.pending -= taken
            left -= taken
            self.complete_phases()

    def complete_phases(self) -> None:
        done = self.initialised & (self.pending == 0) & (self.transactions == 0)
        self.phase += done
        self.pending[done] = self.arrivals[done]


class MbarrierWaiting(Wait):
    """``parities``: (mbarrier, parity, CTAs that wait)."""

    def __init__(self, threads: Threads, op: MbarrierWait, parts: list[tuple[Mbarrier, int, np.ndarray]]) -> None:
        self.threads, self.parts = threads, parts
        self.location = op.location

    def ready(self) -> bool:
        # A CTA that has seen its phase complete is done, whatever phases follow.
        for mbarrier, parity, waiting in self.parts:
            waiting &= (mbarrier.phase & 1) == parity
        return not any(waiting.any() for _, _, waiting in self.parts)

    def describe(self) -> list[str]:
        lines = []
        for mbarrier, parity, waiting in self.parts:
            if waiting.any():
                cta = int(np.flatnonzero(waiting)[0])
                seen = int(mbarrier.arrivals[cta] - mbarrier.pending[cta])
                lines.append(
                    f"{self.threads.describe(cta)} waits for {mbarrier.name} with parity {parity}: in phase "
                    f"{int(mbarrier.phase[cta])} (parity {int(mbarrier.phase[cta]) & 1}) {seen} of "
                    f"{int(mbarrier.arrivals[cta])} arrivals came, {int(mbarrier.pending[cta])} missing; "
                    f"{int(mbarrier.transactions[cta])} bytes outstanding"
                )
        return lines


def each(threads: Threads, barrier: Buffer, index: Expr, mask: Mask) -> Iterator[tuple[Mbarrier, Mask]]:
    """The mbarriers that the active lanes name, each with its lanes."""
    value = threads.evaluate(index, mask)
    position = uniform_integer(value, mask)
    if position is not None:
        yield find(threads, barrier, position), mask
        return
    for choice in np.unique(active(mask, value)):
        chosen, _ = split(mask, value == choice)
        yield find(threads, barrier, int(choice)), chosen


def find(threads: Threads, barrier: Buffer, position: int) -> Mbarrier:
    """The mbarrier ``position`` of a BARRIER buffer."""
    group = threads.group
    lowest, highest = group.shared.bounds(barrier)
    count = (highest - lowest) // MBARRIER_BYTES
    if not 0 <= position < count:
        raise SimulationError(
            f"{barrier.name} is accessed out of bounds", expected=f"barriers 0 to {count - 1}", got=str(position)
        )
    address = lowest + MBARRIER_BYTES * position
    if address % MBARRIER_BYTES:
        raise SimulationError(f"{barrier.name} is misaligned", expected="a multiple of 8 bytes", got=f"byte {address}")
    found = group.mbarriers.get(address)
    if found is None:
        found = group.mbarriers[address] = group.make_mbarrier(f"{barrier.name}[{position}]")
    return found


def initialise(threads: Threads, op: MbarrierInit, mask: Mask) -> None:
    if not 1 <= op.arrivals <= LARGEST_ARRIVAL_COUNT:
        raise SimulationError(
            "mbarrier.init with an illegal count", expected=f"1 to {LARGEST_ARRIVAL_COUNT}", got=str(op.arrivals)
        )
    for mbarrier, lanes in each(threads, op.barrier, op.index, mask):
        counts = threads.lanes_per_cta(lanes)
        if (counts > 1).any() or mbarrier.initialised[counts > 0].any():
            raise SimulationError(
                f"{mbarrier.name} is initialised more than once",
                expected="mbarrier.init by one thread, once",
                got=f"{int(counts.max())} threads" if (counts > 1).any() else "a live mbarrier",
            )
        chosen = counts > 0
        mbarrier.initialised |= chosen
        mbarrier.arrivals[chosen] = op.arrivals
        mbarrier.pending[chosen] = op.arrivals


def arrive(threads: Threads, op: MbarrierArrive, mask: Mask) -> None:
    for mbarrier, lanes in each(threads, op.barrier, op.index, mask):
        counts = threads.lanes_per_cta(lanes)
        mbarrier.require_initialised(counts > 0, "arrived at")
        mbarrier.arrive(counts)


def arrive_expecting(threads: Threads, op: MbarrierArriveExpectTx, mask: Mask) -> None:
    for mbarrier, lanes in each(threads, op.barrier, op.index, mask):
        counts = threads.lanes_per_cta(lanes)
        mbarrier.require_initialised(counts > 0, "arrived at")
        mbarrier.add_transactions(counts * op.bytes)
        mbarrier.arrive(counts)


def complete_transactions(mbarrier: Mbarrier, completed: np.ndarray) -> None:
    """complete_tx of so many bytes in each CTA, by the async engine."""
    mbarrier.add_transactions(-completed)
    mbarrier.complete_phases()


def wait(threads: Threads, op: MbarrierWait, mask: Mask) -> Wait | None:
    parity = threads.evaluate(op.parity, mask)
    parts = []
    for mbarrier, lanes in each(threads, op.barrier, op.index, mask):
        mbarrier.require_initialised(threads.lanes_per_cta(lanes) > 0, "waited for")
        for value, chosen in _by_parity(parity, lanes):
            parts.append((mbarrier, value, threads.lanes_per_cta(chosen) > 0))
    result = MbarrierWaiting(threads, op, parts)
    return None if result.ready() else result


def _by_parity(parity: Value, mask: Mask) -> Iterator[tuple[int, Mask]]:
    values = np.unique(active(mask, np.asarray(parity)))
    if not np.isin(values, (0, 1)).all():
        raise SimulationError("an mbarrier is waited for with a wrong parity", expected="0 or 1", got=str(values[-1]))
    for value in values:
        chosen, _ = split(mask, np.asarray(parity == value))
        if chosen is not NO_LANES:
            yield int(value), chosen
