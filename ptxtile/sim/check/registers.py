"""Registers under the checker: read before anything was written, or while wgmma still works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.statements import Statement
from ptxtile.ir.tensor_core_ops import Wgmma
from ptxtile.ir.types import DType
from ptxtile.records import record
from ptxtile.sim.check.definedness import states_of
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.naming import is_several, warps_in_words
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
    statement: Wgmma


def _adds_in_turn(one: InFlight, other: InFlight) -> bool:
    """Whether two wgmmas accumulate in the same registers and in the same shape."""
    shapes = [(f.first, f.last, f.statement.n, f.statement.k) for f in (one, other)]
    return one.accumulator and other.accumulator and shapes[0] == shapes[1]


class Registers:
    """The registers of all units of a group of CTAs, by the unit's key."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.flights: dict[int, list[InFlight]] = {}
        self.touched: dict[int, set[str]] = {}
        """Storages that a unit's threads read or wrote since their last wgmma.fence; missing before the first one."""
        self.quiet = False
        """Set while an instruction of the tensor cores moves its operands itself."""

    # wgmma --------------------------------------------------------------------------------------------------------

    def fence(self, threads: CheckedThreads) -> None:
        self.touched[threads.key] = set()

    def check_fence(self, threads: CheckedThreads, op: Statement, names: list[str]) -> None:
        """wgmma.fence stands before the first wgmma, and between any access of its registers and it (PTX ISA,
        «wgmma.fence»)."""
        touched = self.touched.get(threads.key)
        dirty = names if touched is None else [name for name in names if name in touched]
        if dirty:
            who = self._who(threads, "multipl", "ies", "y")
            message = f"{who} with registers of {dirty[0]} that no wgmma.fence has handed over"
            hint = "wgmma.fence is missing before the first wgmma that uses these registers"
            self.watch.report(Finding("missing fence", message, (op.location,), hint))

    def launch(self, threads: CheckedThreads, buffer: Buffer, flight: InFlight) -> None:
        """A wgmma sets out with registers of ``buffer``. Others under way may read them too, or add to them in the same
        shape (PTX ISA, «wgmma.fence»)."""
        known = self.flights.setdefault(threads.key, [])
        for other in known:
            meets = other.storage == flight.storage and other.first <= flight.last and flight.first <= other.last
            if meets and (other.accumulator or flight.accumulator) and not _adds_in_turn(other, flight):
                self._report_flight(threads, buffer, other, "write" if flight.accumulator else "read")
                break
        known.append(flight)

    def land(self, threads: CheckedThreads, last_done: int) -> None:
        """The groups up to ``last_done`` have been waited for."""
        known = self.flights.get(threads.key, [])
        self.flights[threads.key] = [flight for flight in known if flight.group > last_done]

    def touch(self, threads: CheckedThreads, buffer: Buffer, first: int, last: int, *, writing: bool) -> None:
        """Elements are accessed, which no wgmma may be at work on."""
        touched = self.touched.get(threads.key)
        if touched is None:  # no wgmma so far
            return
        name = buffer.storage.name
        touched.add(name)
        for flight in self.flights.get(threads.key, ()):
            if flight.storage == name and first <= flight.last and flight.first <= last:
                if writing or flight.accumulator:
                    self._report_flight(threads, buffer, flight, "write" if writing else "read")
                    return

    def _report_flight(self, threads: CheckedThreads, buffer: Buffer, flight: InFlight, verb: str) -> None:
        what = "accumulator" if flight.accumulator else "operand"
        message = f"{self._who(threads, verb)} {buffer.name} while it is the {what} of a wgmma that nobody waited for"
        locations = (_location(threads), flight.statement.location)
        self.watch.report(Finding("in flight", message, locations, "wait for the wgmma group first"))

    # Accesses -----------------------------------------------------------------------------------------------------

    def read(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if self.quiet:
            return
        first, last = _range(buffer, index, dtype, mask)
        self.touch(threads, buffer, first, last, writing=False)
        if _is_uniform(index):
            self.use(threads, buffer, first, last, mask)

    def use(self, threads: CheckedThreads, buffer: Buffer, first: int, last: int, mask: Mask) -> None:
        """What is computed next depends on these elements."""
        states = states_of(threads, buffer.storage.name)
        if states is None or not states.missing or first < 0:
            return
        lanes, scale = None, _scale(threads, buffer)
        for place in range(first * scale, min((last + 1) * scale, len(states.written))):
            if states.written[place] is not True:
                lanes = threads.lanes_of(mask) if lanes is None else lanes
                undefined = states.undefined(place, lanes, f"{buffer.name}[{place // scale}]")
                if undefined is not None:
                    threads.note_undefined(undefined)

    def written(self, threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> None:
        if self.quiet:
            return
        first, last = _range(buffer, index, dtype, mask)
        self.touch(threads, buffer, first, last, writing=True)
        states, undefined = states_of(threads, buffer.storage.name), threads.take_undefined()
        if states is None or first < 0 or (undefined is None and not states.missing):
            return
        lanes = None if mask is threads.everyone else threads.lanes_of(mask)
        scale = _scale(threads, buffer)
        for place in range(first * scale, min((last + 1) * scale, len(states.written))):
            states.store(place, lanes, undefined)

    def check_written(self, threads: CheckedThreads, buffer: Buffer, first: int, last: int) -> None:
        """Operands of the tensor cores: elements that no thread has written."""
        states = states_of(threads, buffer.storage.name)
        scale = _scale(threads, buffer)
        if states is None or not states.missing or first < 0 or (last + 1) * scale > len(states.written):
            return
        for place in range(first * scale, (last + 1) * scale):
            if states.written[place] is None:
                message = self._who(threads, "read") + f" {buffer.name}[{place // scale}], a register that nothing was "
                finding = Finding(
                    "uninitialised", message + "written to", (_location(threads),), "give it a value first"
                )
                self.watch.report(finding)
                return

    def mark_written(self, threads: CheckedThreads, buffer: Buffer, first: int, last: int, mask: Mask) -> None:
        """Results of the tensor cores, from the moment on at which they are under way."""
        states, scale = states_of(threads, buffer.storage.name), _scale(threads, buffer)
        if states is not None and states.missing:
            lanes = None if mask is threads.everyone else threads.lanes_of(mask)
            for place in range(first * scale, min((last + 1) * scale, len(states.written))):
                states.store(place, lanes, None)

    def _who(self, threads: CheckedThreads, verb: str, of_one: str = "s", of_several: str = "") -> str:
        numbers = threads.numbers(threads.everyone)
        return f"{warps_in_words(self.watch, numbers)} {verb}{of_several if is_several(numbers) else of_one}"


def _range(buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> tuple[int, int]:
    if isinstance(index, int):
        first = index * buffer.dtype.lanes
        return first, first + dtype.lanes - 1
    places = active(mask, np.asarray(index)) * buffer.dtype.lanes
    return int(places.min()), int(places.max()) + dtype.lanes - 1


def _is_uniform(index: Value) -> bool:
    """Whether all threads access the same elements; a table that each thread reads elsewhere is not followed."""
    if isinstance(index, int):
        return True
    places = np.asarray(index)
    return bool((places == places.flat[0]).all())


def _scale(threads: CheckedThreads, buffer: Buffer) -> int:
    """Elements of the storage for each of the buffer: those viewed with several dtypes are kept as bytes."""
    return buffer.dtype.element.itemsize if buffer.storage.name in threads.private.mixed else 1


def _location(threads: CheckedThreads) -> Location | None:
    return None if threads.statement is None else threads.statement.location
