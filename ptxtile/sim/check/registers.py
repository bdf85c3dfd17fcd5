"""Registers under the checker: read before anything was written, or while wgmma still works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.statements import Statement
from ptxtile.ir.types import DType
from ptxtile.records import record
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.dtypes import Value
from ptxtile.sim.masks import Mask, active

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads
    from ptxtile.sim.check.watch import Watch


@record
class InFlight:
    """Elements ``first`` to ``last`` of a storage that group ``group`` of a warpgroup's wgmmas reads or writes."""

    storage: str
    first: int
    last: int
    group: int
    accumulator: bool
    statement: Statement


class Registers:
    """The registers of all units of a group of CTAs; ``flights`` by the unit's first thread."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.flights: dict[int, list[InFlight]] = {}
        self.touched: dict[int, set[str]] = {}
        """Storages that a unit's threads read or wrote since their last wgmma.fence; missing before the first one."""
        self.quiet = False
        """Set while the instruction itself moves its operands."""

    def fence(self, threads: CheckedThreads) -> None:
        self.touched[threads.first_thread] = set()

    def check_fence(self, threads: CheckedThreads, op: Statement, names: list[str]) -> None:
        """wgmma.fence stands before the first wgmma, and between any access of its registers and it (PTX ISA,
        «wgmma.fence»)."""
        touched = self.touched.get(threads.first_thread)
        dirty = names if touched is None else [name for name in names if name in touched]
        if dirty:
            message = f"{_who(threads)} multiplies with registers of {dirty[0]} that no wgmma.fence has handed over"
            self.watch.report(Finding("missing fence", message, (op.location,)))

    def launch(self, threads: CheckedThreads, flight: InFlight) -> None:
        self.flights.setdefault(threads.first_thread, []).append(flight)

    def land(self, threads: CheckedThreads, last_done: int) -> None:
        """The groups up to ``last_done`` have been waited for."""
        known = self.flights.get(threads.first_thread, [])
        self.flights[threads.first_thread] = [flight for flight in known if flight.group > last_done]

    def read(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if self.quiet:
            return
        self.touched.get(threads.first_thread, set()).add(buffer.storage.name)
        found = self._flight(threads, buffer, index, dtype, mask, writing=False)
        if found is not None:
            self._report(threads, buffer, found, "read")
            return
        storage = threads.private.storages.get(buffer.storage.name)
        if storage is None or buffer.storage.name in threads.private.mixed:
            return
        first, last = _range(buffer, index, dtype, mask)
        if first >= 0 and last < len(storage.elements) and first == last - dtype.lanes + 1:
            if all(storage.elements[place] is None for place in range(first, last + 1)):
                message = f"{_who(threads)} reads {buffer.name}[{first}], a register that nothing was written to"
                self.watch.report(Finding("uninitialised", message, (_location(threads),)))

    def written(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if not self.quiet:
            self.touched.get(threads.first_thread, set()).add(buffer.storage.name)
            found = self._flight(threads, buffer, index, dtype, mask, writing=True)
            if found is not None:
                self._report(threads, buffer, found, "written")

    def _flight(
        self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask, *, writing: bool
    ) -> InFlight | None:
        known = self.flights.get(threads.first_thread)
        if not known:
            return None
        first, last = _range(buffer, index, dtype, mask)
        for flight in known:
            touched = flight.storage == buffer.storage.name and first <= flight.last and flight.first <= last
            if touched and (writing or flight.accumulator):
                return flight
        return None

    def _report(self, threads: CheckedThreads, buffer: Buffer, flight: InFlight, verb: str) -> None:
        what = "accumulator" if flight.accumulator else "operand"
        message = f"{buffer.name} is {verb} by {_who(threads)} while it is the {what} of a wgmma that nobody waited for"
        self.watch.report(Finding("in flight", message, (_location(threads), flight.statement.location)))


def _range(buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> tuple[int, int]:
    places = active(mask, np.asarray(index)) * buffer.dtype.lanes
    return int(places.min()), int(places.max()) + dtype.lanes - 1


def _who(threads: CheckedThreads) -> str:
    return f"{threads.name} (threads {threads.thread_range})"


def _location(threads: CheckedThreads) -> Location | None:
    return None if threads.statement is None else threads.statement.location
