"""The call plans of a kernel and the key that finds one: all of a call that a plan depends on, by cheap reads.

What has no key takes the full path, whose checks say what is wrong with it if anything is: keyword arguments, None,
other array types, NumPy numbers, subclasses of torch.Tensor except Parameter, tensors without memory of their own
(fake, functional, meta, sparse, under torch.func, zero tensors, without elements: all of these have no address, or
refuse to tell it), negative views. Conjugate views are complex, quantised tensors have dtypes of their own, and the
dtype is in the key: no call with one of them succeeds, so none has a plan. Whether a tensor requires grad changes
nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from operator import add, ge
from typing import Any

from ptxtile.launch_record import LaunchRecord, ScalarArgument, SizeOperation, Symbol, TensorArgument
from ptxtile.runtime.arguments import Binding
from ptxtile.runtime.call_plan import CallPlan, CheckedCall, passed_unchanged
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.executable import Executable
from ptxtile.runtime.symbols import symbols_of

PLANS_KEPT = 1024
"""Plans that a kernel remembers before the memory is cleared; one takes a few kilobytes."""

ALIGNMENT_IN_KEY = 16
"""Bytes: keys hold addresses modulo this, the largest alignment that a variant relies on."""

_NUMBERS = frozenset({int, float, bool})


class _Family:
    """The plans of calls with one key, by what costs more to read: which tensors overlap in memory, and the values of
    those integers that sizes depend on.

    ``extents``: bytes from the first to behind the last element of each tensor. ``sizing``: positions among the
    numbers.
    """

    __slots__ = ("extents", "latest", "plans", "sizing")

    def __init__(self, extents: Sequence[int], sizing: frozenset[int]) -> None:
        self.extents = extents
        self.sizing = tuple(sorted(sizing))
        self.plans: dict[tuple[Any, ...], CallPlan | CheckedCall] = {}
        self.latest: tuple[Sequence[int], tuple[int, ...]] = ((), ())

    def choice(self, addresses: Sequence[int], numbers: Sequence[int | float]) -> tuple[Any, ...]:
        before, overlaps = self.latest
        if addresses != before:
            overlaps = overlapping(addresses, self.extents)
            self.latest = (addresses, overlaps)  # one assignment: another thread sees both or none
        if self.sizing:
            return (overlaps, *[numbers[position] for position in self.sizing])
        return overlaps


class PlannedCalls:
    """Plans by key.

    A plan is worked out when its call comes a second time, so that calls whose sizes are always new do not pay for it.
    """

    def __init__(self) -> None:
        self._families: dict[tuple[Any, ...], _Family] = {}
        self._tensor_types: frozenset[type] = frozenset()
        self._sizing: dict[Executable, frozenset[int]] = {}
        self._count = 0
        self._lock = threading.Lock()
        _ALL.add(self)

    def __len__(self) -> int:
        return sum(len(family.plans) for family in self._families.values())

    def clear(self) -> None:
        self._families = {}
        self._count = 0

    def find(self, args: Sequence[Any]) -> tuple[CallPlan, list[int], list[int | float]] | None:
        """The plan for ``args``, and their addresses and numbers, which it takes; None when there is no plan."""
        families = self._families
        if not families:
            return None
        read = self._read(args)
        if read is None:
            return None
        key, addresses, numbers = read
        family = families.get(key)
        if family is None:
            return None
        choice = family.choice(addresses, numbers)
        plan = family.plans.get(choice)
        if plan is None:
            return None
        if isinstance(plan, CheckedCall):
            plan = family.plans[choice] = CallPlan(plan)  # two threads may each make one: either is right
        return plan, addresses, numbers

    def remember(self, args: Sequence[Any], executable: Executable, binding: Binding, owner: Any) -> None:
        """Note the call of ``executable`` with ``args`` that has just succeeded, if a plan can stand for it."""
        import torch

        self._tensor_types = frozenset({torch.Tensor, torch.nn.Parameter})
        read = self._read(args)
        if read is None or not _plannable(executable.record, args, binding):
            return
        key, addresses, numbers = read
        call = CheckedCall.of_binding(executable, binding, owner)
        with self._lock:
            if self._count >= PLANS_KEPT:
                self.clear()
            family = self._families.get(key)
            needed = self._sizing.get(executable)
            if needed is None:
                needed = self._sizing[executable] = sizing(executable.record)
            if family is None or not needed.issubset(family.sizing):
                extents = [extent(value) for value in args if isinstance(value, torch.Tensor)]
                family = _Family(extents, needed if family is None else needed.union(family.sizing))
                self._families[key] = family
            family.plans[family.choice(addresses, numbers)] = call
            self._count += 1

    def _read(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], list[int], list[int | float]] | None:
        """Key, addresses of the tensors, numbers; None for arguments that have no key."""
        parts: list[Any] = []
        addresses: list[int] = []
        numbers: list[int | float] = []
        tensor_types = self._tensor_types
        try:
            for value in args:
                kind = type(value)
                if kind in tensor_types:
                    address = value.data_ptr()
                    if not address or value.is_neg():
                        return None
                    parts += (value.dtype, value.shape, value.stride(), value.device, address & 15)
                    addresses.append(address)
                elif kind in _NUMBERS:
                    parts.append(kind)
                    numbers.append(value)
                else:
                    return None
        except RuntimeError:  # a tensor that does not say where its memory is
            return None
        if not addresses:
            parts.append(_current_device())
        return tuple(parts), addresses, numbers


def overlapping(addresses: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """The pairs of memory ranges that overlap, (i, j) with j < i written as i × count + j; empty when all are apart.

    All are apart when no range starts before all ranges but those behind it have stopped; that is checked on the sorted
    starts and stops, which needs no look at pairs.
    """
    count = len(addresses)
    if count < 2:
        return ()
    stops = list(map(add, addresses, extents))
    if all(map(ge, sorted(addresses)[1:], sorted(stops))):
        return ()
    return tuple(
        i * count + j for i in range(count) for j in range(i) if addresses[i] < stops[j] and addresses[j] < stops[i]
    )


def extent(tensor: Any) -> int:
    """Bytes from the first to behind the last element of a tensor that has elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _plannable(record: LaunchRecord, args: Sequence[Any], binding: Binding) -> bool:
    """Whether the key of ``args`` says all that the call's checks looked at."""
    import torch

    for argument, value in zip(record.arguments, args, strict=True):
        if isinstance(argument, ScalarArgument):
            if type(value) not in _NUMBERS:
                return False
            if type(value) is float and FORMATS[argument.dtype].kind in ("int", "uint"):
                return False  # a whole float is accepted for an integer; struct packs none
        elif type(value) in _NUMBERS or ALIGNMENT_IN_KEY % argument.alignment:
            return False
    made = [binding.tensors[allocation.name] for allocation in record.allocations]
    if any(type(tensor) is not torch.Tensor for tensor in made):  # made under a mode that gives other tensors
        return False
    return all(binding.tensors[tensor_map.tensor].numel() for tensor_map in record.tensor_maps) or binding.is_empty


def sizing(record: LaunchRecord) -> frozenset[int]:
    """Positions among the numbers of a call of the integers that a size of the record depends on."""
    sizes: list[int | Symbol | SizeOperation] = [d.size for d in record.divisibilities]
    for argument in record.arguments:
        if isinstance(argument, TensorArgument):
            sizes += (*argument.shape, *argument.strides)
    for allocation in record.allocations:
        sizes += allocation.shape
    for tensor_map in record.tensor_maps:
        sizes += (*tensor_map.dimensions, *tensor_map.strides)
    for launch in record.launches:
        sizes += launch.grid
        sizes += (p.value for p in launch.parameters if p.value is not None and not passed_unchanged(record, p))
    names = set(_names(sizes))
    numbers = [argument for argument in record.arguments if isinstance(argument, ScalarArgument)]
    return frozenset(position for position, number in enumerate(numbers) if number.name in names)


def _names(sizes: Iterable[int | Symbol | SizeOperation]) -> Iterable[str]:
    for size in sizes:
        yield from symbols_of(size)


def _current_device() -> int:
    """torch's current card, on which calls without tensors run; -1 while torch has not begun to use one."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else -1


_ALL: weakref.WeakSet[PlannedCalls] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child cannot use its parent's CUDA: without plans, each call takes the full path, which says so."""
    for planned in list(_ALL):
        planned.clear()


os.register_at_fork(after_in_child=_forget_in_child)
