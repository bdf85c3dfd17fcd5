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
from ptxtile.sim.check.naming import warps_in_words
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
    """The registers of all units of a group of CTAs, by the unit's key."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.flights: dict[int, list[InFlight]] = {}
        self.touched: dict[int, set[str]] = {}
        """Storages that a unit's threads read or wrote since their last wgmma.fence; missing before the first one."""
        self.quiet = False
        """Set while the instruction itself moves its operands."""

    # wgmma --------------------------------------------------------------------------------------------------------

    def fence(self, threads: CheckedThreads) -> None:
        self.touched[threads.key] = set()

    def check_fence(self, threads: CheckedThreads, op: Statement, names: list[str]) -> None:
        """wgmma.fence stands before the first wgmma, and between any access of its registers and it (PTX ISA,
        «wgmma.fence»)."""
        touched = self.touched.get(threads.key)
        dirty = names if touched is None else [name for name in names if name in touched]
        if dirty:
            message = f"{self._who(threads)} multiply with registers of {dirty[0]} that no wgmma.fence has handed over"
            hint = "wgmma.fence is missing before the first wgmma that uses these registers"
            self.watch.report(Finding("missing fence", message, (op.location,), hint))

    def launch(self, threads: CheckedThreads, flight: InFlight) -> None:
        self.flights.setdefault(threads.key, []).append(flight)

    def land(self, threads: CheckedThreads, last_done: int) -> None:
        """The groups up to ``last_done`` have been waited for."""
        known = self.flights.get(threads.key, [])
        self.flights[threads.key] = [flight for flight in known if flight.group > last_done]

    # Accesses -----------------------------------------------------------------------------------------------------

    def read(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if self.quiet:
            return
        self._touch(threads, buffer, index, dtype, mask, writing=False)
        first, last = _range(buffer, index, dtype, mask)
        if last == first + dtype.lanes - 1:  # the same element in all threads
            self.check_written(threads, buffer, first, last, mask)

    def check_written(self, threads: CheckedThreads, buffer: Buffer, first: int, last: int, mask: Mask) -> None:
        """Elements that no thread has written; what is out of bounds is somebody else's matter."""
        storage = threads.private.storages.get(buffer.storage.name)
        if storage is None or buffer.storage.name in threads.private.mixed or first < 0 or last >= len(storage.elements):
            return
        results = [f for f in self.flights.get(threads.key, ()) if f.accumulator and f.storage == buffer.storage.name]
        for place in range(first, last + 1):
            under_way = any(flight.first <= place <= flight.last for flight in results)
            if storage.elements[place] is None and not under_way:
                message = f"{self._who(threads)} read {buffer.name}[{place}], a register that nothing was written to"
                finding = Finding("uninitialised", message, (_location(threads),), "give it a value first")
                self.watch.report(finding)
                return

    def written(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if not self.quiet:
            self._touch(threads, buffer, index, dtype, mask, writing=True)

    def _touch(
        self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask, *, writing: bool
    ) -> None:
        touched = self.touched.get(threads.key)
        if touched is None:  # no wgmma so far
            return
        name = buffer.storage.name
        touched.add(name)
        flights = self.flights.get(threads.key)
        if not flights:
            return
        first, last = _range(buffer, index, dtype, mask)
        for flight in flights:
            if flight.storage == name and first <= flight.last and flight.first <= last:
                if writing or flight.accumulator:
                    self._report(threads, buffer, flight, "write" if writing else "read")
                    return

    def _report(self, threads: CheckedThreads, buffer: Buffer, flight: InFlight, verb: str) -> None:
        what = "accumulator" if flight.accumulator else "operand"
        message = f"{self._who(threads)} {verb} {buffer.name} while it is the {what} of a wgmma that nobody waited for"
        locations = (_location(threads), flight.statement.location)
        self.watch.report(Finding("in flight", message, locations, "wait for the wgmma group first"))

    def _who(self, threads: CheckedThreads) -> str:
        return warps_in_words(self.watch, threads.numbers(threads.everyone))


def _range(buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> tuple[int, int]:
    if isinstance(index, int):
        first = index * buffer.dtype.lanes
        return first, first + dtype.lanes - 1
    places = active(mask, np.asarray(index)) * buffer.dtype.lanes
    return int(places.min()), int(places.max()) + dtype.lanes - 1


def _location(threads: CheckedThreads) -> Location | None:
    return None if threads.statement is None else threads.statement.location
