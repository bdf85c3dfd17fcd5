"""A call plan as the words that native code reads (:class:`ptxtile.native.layout.Plan`)."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import PtxtileError
from ptxtile.launch_record import ScalarArgument
from ptxtile.native import torch_facts
from ptxtile.native.layout import (
    ADDRESS_CLASS,
    CONFIG_WORDS,
    MAP_WORDS,
    MAX_ALLOCATIONS,
    MAX_ARGUMENTS,
    MAX_FRAME_WORDS,
    MAX_LAUNCHES,
    WORD,
    Argument,
    Kind,
    Launch,
    Map,
    Number,
    Plan,
    View,
)
from ptxtile.native.torch_facts import Reading
from ptxtile.runtime import tensor_maps
from ptxtile.runtime.call_plan import CallPlan
from ptxtile.runtime.driver import ENCODE_TILED, GET_CONTEXT, LAUNCH_KERNEL, POP_CONTEXT, PUSH_CONTEXT
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.executable import launch_shape
from ptxtile.runtime.planned_calls import extent, overlapping, sizing

if TYPE_CHECKING:
    from ptxtile.native.calls import CallForm, Latest

_CUDA = 2
"""kDLCUDA (dlpack.h)."""
_COMPARED_BY_VALUE = frozenset({int, bool, str, bytes, float})
_FLOATS = {
    "float16": Number.FLOAT16, "bfloat16": Number.BFLOAT16, "float32": Number.FLOAT32, "tfloat32": Number.FLOAT32,
    "float64": Number.FLOAT64,
}  # fmt: skip


class Unsuitable(Exception):
    """Calls like this one are made from Python."""


class NativePlan:
    """The memory of a plan, at ``address``, and all that it names. ``number`` and ``latest``: what native code writes
    where when it has made a call."""

    def __init__(
        self, plan: CallPlan, form: CallForm, values: Sequence[Any], number: int, latest: Latest, reading: Reading
    ) -> None:
        self._plan = plan
        self._keep: list[Any] = [latest]
        self._reading = reading
        words = [0] * Plan.ARGUMENTS
        words[Plan.KEEPER] = id(self)
        words[Plan.LATEST_AT], words[Plan.NUMBER] = latest.address, number
        words[Plan.POSITIONAL], words[Plan.TOTAL] = form.positional, form.given
        _require(form.given <= MAX_ARGUMENTS and len(plan.allocators) <= MAX_ALLOCATIONS)
        _require(len(plan.launches) <= MAX_LAUNCHES)
        self._tensors = [values[place] for place in form.runtime if _is_tensor(values[place])]
        words[Plan.TENSORS] = len(self._tensors)
        self._shapes: list[tuple[int, tuple[int, ...]]] = []
        for argument in self._arguments(form, values):
            words += argument
        for at, content in self._shapes:
            words[at] = len(words)
            words += content
        self._append(words, Plan.NAMES_AT, [self._address(sys.intern(name)) for name in form.names])
        self._append(words, Plan.OVERLAPS_AT, self._overlaps())
        self._append(words, Plan.ALLOCATIONS_AT, self._allocations(words))
        places = _returned(plan.returned, form.runtime)
        words[Plan.RETURNS] = len(places)
        self._append(words, Plan.RETURNS_AT, places)
        self._append_values(words, [values[place] for place in form.runtime])
        self._append_launches(words, reading)
        _require(words[Plan.FRAME_WORDS] <= MAX_FRAME_WORDS)
        self._words = (ctypes.c_uint64 * len(words))(*[word & (1 << 64) - 1 for word in words])
        self.address = ctypes.addressof(self._words)
        del self._tensors, self._shapes

    def is_of(self, plan: CallPlan) -> bool:
        return self._plan is plan

    def _refused(self, position: int, result: int) -> None:
        """Raises the error of launch number ``position``, which gave the CUresult ``result``."""
        try:
            self._plan.raise_refused(position, result)
        except PtxtileError as error:
            raise error.with_traceback(None) from error.__cause__  # the user's lines are behind this one

    def _address(self, thing: Any) -> int:
        self._keep.append(thing)
        return id(thing)

    @staticmethod
    def _append(words: list[int], at: int, content: Sequence[int]) -> None:
        words[at] = len(words)
        words += content

    # -- what arguments are compared with

    def _arguments(self, form: CallForm, values: Sequence[Any]) -> list[list[int]]:
        """The words of each argument, by place. Defaults are never compared: they must not be able to change."""
        found: dict[int, list[int]] = {}
        numbers = 0
        must_be = sizing(self._plan.record)
        for argument, place in zip(self._plan.record.arguments, form.runtime, strict=True):
            if not isinstance(argument, ScalarArgument):
                _require(place < form.given)
                found[place] = self._tensor(values[place], argument.name, place)
            else:
                if place < form.given:
                    found[place] = self._number(values[place], argument, fixed=numbers in must_be)
                numbers += 1
        for place in form.python:
            if place < form.given:
                found[place] = self._chosen(values[place])
            else:
                _require(_is_hashable(values[place]))
        _require(len(found) == form.given)
        return [_filled(found[place]) for place in range(form.given)]

    def _tensor(self, tensor: Any, name: str, place: int) -> list[int]:
        try:
            view = torch_facts.view_of(self._reading.view, tensor)
        except (RuntimeError, TypeError, BufferError) as error:
            raise Unsuitable from error
        rank = view[View.RANK_AND_DTYPE] & 0xFFFFFFFF
        sizes = [
            ctypes.c_int64.from_address(view[which] + WORD * dimension).value
            for which in (View.SHAPE, View.STRIDES)
            for dimension in range(rank)
        ]
        _require(sizes == [*tensor.shape, *tensor.stride()])
        address = view[View.DATA] + view[View.BYTE_OFFSET]
        _require(address == tensor.data_ptr())
        self._shapes.append((Plan.ARGUMENTS + Argument.COUNT * place + Argument.FIFTH, tuple(sizes)))
        position = self._plan.layout.pointers[name]
        return [
            Kind.TENSOR, view[View.DEVICE], view[View.RANK_AND_DTYPE], address & ADDRESS_CLASS, rank, 0, position
        ]  # fmt: skip

    def _number(self, value: Any, argument: ScalarArgument, fixed: bool) -> list[int]:
        element, kind = FORMATS[argument.dtype], type(value)
        if element.kind == "float":
            _require(argument.dtype in _FLOATS)
            how, smallest, largest = _FLOATS[argument.dtype], 0, 0
        else:
            _require(kind is not float)  # for a bool, a whole one is accepted
            how, smallest, largest = Number.INTEGER, element.minimum, element.maximum
            if argument.dtype == "uint64":
                how, smallest, largest = Number.UNSIGNED64, 0, 0
        must_be = int(value) if fixed else 0
        _require(-(2**63) <= must_be < 2**63)
        at = self._plan.layout.number_at(argument)
        return [Kind.NUMBER, id(kind), how, at, element.bytes, smallest, largest, int(fixed), must_be]

    def _chosen(self, value: Any) -> list[int]:
        """A Python argument. Equal floats may differ (0.0 and -0.0): only those that cannot are compared by value."""
        _require(_is_hashable(value))
        kind = type(value)
        if kind in _COMPARED_BY_VALUE and (kind is not float or value):
            return [Kind.EQUAL, self._address(value), id(kind)]
        return [Kind.SAME, self._address(value)]

    def _overlaps(self) -> list[int]:
        """For each tensor its extent in bytes, and as bits the tensors before it that it overlaps."""
        extents, addresses = [extent(t) for t in self._tensors], [t.data_ptr() for t in self._tensors]
        count, bits = len(extents), [0] * len(extents)
        for pair in overlapping(addresses, extents):
            bits[pair // count] |= 1 << pair % count
        return [word for both in zip(extents, bits, strict=True) for word in both]

    # -- what a call does

    def _allocations(self, words: list[int]) -> list[int]:
        words[Plan.ALLOCATIONS] = len(self._plan.allocators)
        parts = ((a.func, a.args, dict(a.keywords)) for a in self._plan.allocators)
        return [self._address(part) for recipe in parts for part in recipe]

    def _append_values(self, words: list[int], arguments: Sequence[Any]) -> None:
        content = self._plan.template([value for value in arguments if not _is_tensor(value)])
        words[Plan.VALUES] = len(content) // WORD
        self._append(words, Plan.VALUES_AT, struct.unpack(f"<{len(content) // WORD}Q", content))

    def _append_launches(self, words: list[int], reading: Reading) -> None:
        plan = self._plan
        maps = plan.maps if plan.launches else ()
        map_places = {name: WORD * MAP_WORDS * position for position, (name, *_) in enumerate(maps)}
        values_at = WORD * MAP_WORDS * len(maps)
        pointers: list[int] = []
        launches: list[int] = []
        for position, (launch, grid) in enumerate(plan.launches):
            shape = launch_shape(launch, grid)
            config = plan.driver.launch_config(shape, plan.driver.launch_attributes(shape), 0)
            self._keep.append(config)
            launches += struct.unpack(f"<{CONFIG_WORDS}Q", ctypes.string_at(int(config.getPtr()), WORD * CONFIG_WORDS))
            launches += (int(plan.functions[launch.kernel]), len(pointers))
            pointers += (
                map_places[p.name] if p.kind == "tensor_map" else values_at + plan.layout.offset(position, p)
                for p in launch.parameters
            )
        assert len(launches) == Launch.COUNT * len(plan.launches)
        words[Plan.MAPS], words[Plan.POINTERS], words[Plan.LAUNCHES] = len(maps), len(pointers), len(plan.launches)
        words[Plan.FRAME_WORDS] = MAP_WORDS * len(maps) + words[Plan.VALUES] + len(pointers)
        self._append(words, Plan.MAPS_AT, [word for _map in maps for word in self._map(*_map)])
        self._append(words, Plan.POINTERS_AT, pointers)
        self._append(words, Plan.LAUNCHES_AT, launches)
        if plan.launches:
            self._name_driver(words, reading)

    def _map(self, name: str, tensor: str, tiled: tensor_maps.TiledMap, subject: str, offset: int) -> list[int]:
        arrays = tensor_maps.MapArrays(tiled)
        self._keep.append(arrays)
        found = [0] * Map.COUNT
        found[Map.DATA_TYPE], found[Map.RANK] = tiled.data_type, len(tiled.dimensions)
        found[Map.TENSOR], found[Map.OFFSET] = self._plan.layout.pointers[tensor], offset
        found[Map.SIZES], found[Map.STRIDES] = arrays.sizes_at, arrays.strides_at
        found[Map.BOX], found[Map.ELEMENT_STRIDES] = arrays.box_at, arrays.element_strides_at
        found[Map.SWIZZLE] = tensor_maps.SWIZZLES[tiled.swizzle]
        found[Map.PROMOTION] = tensor_maps.L2_PROMOTIONS[tiled.l2_promotion]
        return found

    def _name_driver(self, words: list[int], reading: Reading) -> None:
        driver, device = self._plan.driver, self._plan.device
        words[Plan.CONTEXT] = driver.primary_contexts[device]
        words[Plan.DEVICE_TYPE], words[Plan.DEVICE_INDEX], words[Plan.STREAM] = _CUDA, device, reading.stream
        for place, name in (
            (Plan.LAUNCH, LAUNCH_KERNEL), (Plan.ENCODE, ENCODE_TILED), (Plan.GET_CONTEXT, GET_CONTEXT),
            (Plan.PUSH_CONTEXT, PUSH_CONTEXT), (Plan.POP_CONTEXT, POP_CONTEXT),
        ):  # fmt: skip
            function = driver.by_address(name)
            self._keep.append(function)
            words[place] = ctypes.cast(function, ctypes.c_void_p).value or 0


def _filled(words: list[int]) -> list[int]:
    return words + [0] * (Argument.COUNT - len(words))


def _require(suitable: bool) -> None:
    if not suitable:
        raise Unsuitable


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _returned(returned: Sequence[int], runtime: Sequence[int]) -> list[int]:
    """Results as places of arguments, or ~ positions of allocations."""
    return [runtime[position] if position >= 0 else position for position in returned]
