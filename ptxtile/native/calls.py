"""Callables whose repeated calls are made in native code: their blocks, and the plans in these.

A callable derives from :class:`NativeCallable` and makes its calls in ``_call_checked``. When such a call has gone by a
:class:`~ptxtile.runtime.call_plan.CallPlan`, it offers that plan with the form of the call. From then on, calls of the
same form whose arguments are of the same kind do not come to ``_call_checked`` any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptxtile import config
from ptxtile.native.layout import PLANS_IN_A_BLOCK, WORD, Block
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.native.plan import NativePlan
    from ptxtile.runtime.call_plan import CallPlan

_pointer = ctypes.c_void_p
_OFFERS_KEPT = 4096
_AGAIN = 64
"""A plan that was thrown out of a full block comes back once it was offered as often: making it takes longer than a
call from Python, which a caller of very many kinds of calls must not pay at each."""


@record
class CallForm:
    """How a call was written.

    ``positional``: number of arguments without a name; ``names`` of the others, in order. Places count the arguments of
    both kinds, then what the call left to defaults. ``runtime``: place of each argument of the record. ``python``:
    places of the arguments that chose the kernel.
    """

    positional: int
    names: tuple[str, ...]
    runtime: tuple[int, ...]
    python: tuple[int, ...] = ()

    @property
    def given(self) -> int:
        return self.positional + len(self.names)


class Latest:
    """Which variant the latest call ran: a number that native code writes, 0 before the first call."""

    def __init__(self) -> None:
        self._cell = ctypes.c_uint64(0)
        self.address = ctypes.addressof(self._cell)

    @property
    def number(self) -> int:
        return self._cell.value

    @number.setter
    def number(self, value: int) -> None:
        self._cell.value = value


class NativeCallable:
    """Base of callables. ``_block``: where native code finds the plans, 0 while there are none."""

    _block = 0
    _plans: _Plans | None = None

    def _call_checked(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _offer(self, plan: CallPlan, form: CallForm, values: Sequence[Any], number: int, latest: Latest) -> None:
        """A call has gone by ``plan``. ``values``: its arguments and defaults, by place. ``number``: of the variant."""
        plans = self._plans
        if plans is None:
            plans = self._plans = _Plans()
        if plans.wants(plan, form) and is_on():
            self._take_over(plans, plan, form, values, number, latest)

    def _take_over(
        self, plans: _Plans, plan: CallPlan, form: CallForm, values: Sequence[Any], number: int, latest: Latest
    ) -> None:
        from ptxtile.native import launcher
        from ptxtile.native.plan import NativePlan, Unsuitable

        made = launcher.get()
        if made is None or not made.install(type(self)):
            return
        with contextlib.suppress(Unsuitable):
            plans.add(NativePlan(plan, form, values, number, latest, made.reading), plan, form)
            self._block = plans.address


def is_on() -> bool:
    """Whether the user wants native code."""
    return config.read("PTXTILE_LAUNCHER") != "python"


def calls_without_python(callable_: NativeCallable) -> int:
    """How many calls of ``callable_`` native code has made."""
    return 0 if callable_._plans is None else callable_._plans.uses


class _Plans:
    """A block and the owners of the plans in it.

    Native code reads and reorders the block while it holds the interpreter's lock, between any two of the writes here:
    after each of them the block holds plans that live. One may be there twice then, or get lost; it is made again.
    """

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * (Block.PLANS + PLANS_IN_A_BLOCK))()
        self.address = ctypes.addressof(self._words)
        self._owners: dict[int, NativePlan] = {}
        self._offers: dict[tuple[int, int], int] = {}
        self._made: dict[tuple[int, int], int] = {}  # addresses of plans that may be gone
        self._lock = threading.Lock()
        _ALL.add(self)

    @property
    def uses(self) -> int:
        return self._words[Block.USES]

    def __len__(self) -> int:
        return self._words[Block.PLANS_COUNT]

    def wants(self, plan: CallPlan, form: CallForm) -> bool:
        if len(self._offers) >= _OFFERS_KEPT:
            self._offers.clear()
            self._made.clear()
        key = (id(form), id(plan))  # callables keep their forms, and their kernels the plans
        count = self._offers[key] = self._offers.get(key, 0) + 1
        if count % _AGAIN != 1:
            return False
        owner = self._owners.get(self._made.get(key, 0))
        return owner is None or not owner.is_of(plan)

    def add(self, made: NativePlan, plan: CallPlan, form: CallForm) -> None:
        with self._lock:
            self._owners[made.address] = made
            self._made[id(form), id(plan)] = made.address
            words, first = self._words, self.address + WORD * Block.PLANS
            kept = min(words[Block.PLANS_COUNT], PLANS_IN_A_BLOCK - 1)
            ctypes.pythonapi.memmove(_pointer(first + WORD), _pointer(first), ctypes.c_size_t(WORD * kept))
            words[Block.PLANS] = made.address
            words[Block.PLANS_COUNT] = kept + 1
            there = set(words[Block.PLANS : Block.PLANS + kept + 1])
            self._owners = {address: owner for address, owner in self._owners.items() if address in there}

    def clear(self) -> None:
        self._words[Block.PLANS_COUNT] = 0
        self._owners = {}
        self._offers.clear()
        self._made.clear()


_ALL: weakref.WeakSet[_Plans] = weakref.WeakSet()


def forget() -> None:
    """The next call of every kernel is made from Python, and plans are made anew. A forked child does it, which cannot
    use its parent's CUDA: the checked way says so."""
    for plans in list(_ALL):
        plans.clear()


os.register_at_fork(after_in_child=forget)
