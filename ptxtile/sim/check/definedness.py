"""Which registers have been written, thread by thread, and what was computed from those that have not.

A register that was not written may be copied and computed with, as long as the result goes nowhere: guarded code often
does. So what is computed from one carries that along, and is reported where it is stored to memory or decides a branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.records import record
from ptxtile.sim.dtypes import Value
from ptxtile.sim.private import PrivateStorage

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads


@record
class Undefined:
    """Threads ([CTA, lane]) in which a value depends on ``register``, which was not written."""

    lanes: np.ndarray
    register: str

    def joined(self, other: Undefined | None) -> Undefined:
        return self if other is None else Undefined(self.lanes | other.lanes, self.register)


class States:
    """Of each element of a private storage: True when all threads have written it, None when none has, else which
    ([CTA, lane]), with the register that what was written depends on. ``missing``: elements that are not True."""

    def __init__(self, storage: PrivateStorage, everyone: np.ndarray) -> None:
        self.everyone = everyone
        self.written: list[bool | np.ndarray | None] = [None] * len(storage.elements)
        self.missing = len(self.written)
        self.sources: dict[int, str] = {}

    def undefined(self, place: int, active: np.ndarray, name: str) -> Undefined | None:
        state = self.written[place]
        if state is True:
            return None
        lanes = active if state is None else active & ~np.asarray(state)
        return Undefined(lanes, self.sources.get(place, name)) if lanes.any() else None

    def store(self, place: int, active: np.ndarray | None, undefined: Undefined | None) -> None:
        """A store by the ``active`` threads, None: all."""
        state = self.written[place]
        if undefined is None:
            if state is True:
                return
            if active is not None:
                active = active if state is None else state | active
                if not bool((active | ~self.everyone).all()):
                    self.written[place] = active
                    return
            self.written[place] = True
            self.missing -= 1
            return
        self.missing += state is True
        active = self.everyone if active is None else active
        before = self.everyone if state is True else np.zeros_like(active) if state is None else np.asarray(state)
        self.written[place] = (before & ~active) | (active & ~undefined.lanes)
        self.sources[place] = undefined.register


def states_of(threads: CheckedThreads, name: str) -> States | None:
    """Those of the storage ``name`` as it is allocated now."""
    storage = threads.private.storages.get(name)
    if storage is None:
        return None
    found = storage.__dict__.get("states")
    if found is None:
        found = storage.__dict__["states"] = States(storage, threads.all_lanes)
    return found


class Variables(dict[str, Value]):
    """The scalars of a unit. Those that depend on registers that were not written are kept apart, so that the others
    are found as quickly as ever."""

    def __init__(self, threads: CheckedThreads, values: Variables | None = None) -> None:
        super().__init__(values or {})
        self.threads = threads
        self.unsure: dict[str, tuple[Value, Undefined]] = {} if values is None else dict(values.unsure)

    def __setitem__(self, name: str, value: Value) -> None:
        undefined = self.threads.take_undefined()
        if undefined is None:
            super().__setitem__(name, value)
            if self.unsure:
                self.unsure.pop(name, None)
        else:
            self.pop(name, None)
            self.unsure[name] = value, undefined

    def __missing__(self, name: str) -> Value:
        value, undefined = self.unsure[name]
        self.threads.note_undefined(undefined)
        return value
