"""One call prepared for being repeated: everything that follows from the kinds of its arguments is worked out once.

A plan is made from a call that has passed every check and holds for all calls with the same key
(:mod:`ptxtile.runtime.planned_calls`): the key fixes dtypes, shapes, strides, devices, alignments and overlaps, so what
is left to do is to read addresses, allocate, fill in the parameters and launch. Its contract is that of
:func:`ptxtile.runtime.arguments.bind` followed by :meth:`ptxtile.runtime.executable.Executable.launch`; a launcher in
native code takes the place of :meth:`CallPlan.run` and keeps it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.launch_record import KernelLaunch, KernelParameter, LaunchRecord, ScalarArgument, Symbol, evaluate_size
from ptxtile.records import record
from ptxtile.runtime import context, tensor_maps
from ptxtile.runtime import driver as cuda
from ptxtile.runtime.arguments import Binding, subject_of
from ptxtile.runtime.driver import GET_CONTEXT, LAUNCH_KERNEL
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.executable import Executable, launch_shape, maps_used
from ptxtile.runtime.parameters import POINTER_BYTES
from ptxtile.runtime.scalars import accept, encode

if TYPE_CHECKING:
    import torch

UNFIT = object()
"""What :meth:`CallPlan.run` gives when a number is not one that its parameter can hold: the checks shall say so."""

_PACKED_EXACTLY = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_PACKED_AS_FLOATS = frozenset({"float32", "float64"})
"""Formats that ``struct`` packs with the bits, and the refusals, of :mod:`ptxtile.runtime.scalars`."""


@record
class CheckedCall:
    """What a plan takes from a call that has passed every check. No tensor is in it, so that none is kept alive.

    symbols, scalars, grids: as in :class:`Binding`. allocated: shape and dtype of each allocation of the record.
    mapped: addresses of the tensors that have a tensor map. ``owner``: whatever the caller keeps with the plan.
    """

    executable: Executable
    symbols: Mapping[str, int]
    scalars: Mapping[str, int | float]
    grids: tuple[tuple[int, int, int], ...]
    device: torch.device
    allocated: tuple[tuple[torch.Size, torch.dtype], ...]
    mapped: Mapping[str, int]
    owner: Any

    @classmethod
    def of_binding(cls, executable: Executable, binding: Binding, owner: Any) -> CheckedCall:
        record, tensors = executable.record, binding.tensors
        made = [tensors[allocation.name] for allocation in record.allocations]
        return cls(
            executable,
            binding.symbols,
            binding.scalars,
            binding.grids,
            binding.device,
            tuple([(tensor.shape, tensor.dtype) for tensor in made]),
            {tensor_map.tensor: tensors[tensor_map.tensor].data_ptr() for tensor_map in record.tensor_maps},
            owner,
        )


class CallPlan:
    """Calls like ``call``.

    Any number of threads may run a plan at once: each takes a :class:`_Frame`, memory for one call, from the plan's
    stack of free ones.
    """

    def __init__(self, call: CheckedCall) -> None:
        record = call.executable.record
        self.owner = call.owner
        self.record = record
        self._executable = call.executable
        self.device = call.device.index or 0
        self.launches = tuple(
            (launch, grid) for launch, grid in zip(record.launches, call.grids, strict=True) if 0 not in grid
        )
        self.layout = _ValueLayout(record, call, self.launches)
        self._pack_into = self.layout.packing.pack_into
        self._conversions = _conversions(record, self.layout)
        self.allocators = tuple(_allocator(shape, dtype, call.device) for shape, dtype in call.allocated)
        self.returned = _returned(record)
        self._plain_tensor = _plain_tensor()
        self._frames: list[_Frame] = []
        if self.launches:
            self._prepare(call)

    def _prepare(self, call: CheckedCall) -> None:
        driver = self.driver = cuda.initialised()
        self.functions = self._executable.load(self.device).functions
        self.maps = _maps(self._executable.record, self.launches, call)
        self._context = driver.primary_contexts[self.device]
        self._read_context = driver.by_address(GET_CONTEXT)
        self._launch_kernel = driver.by_address(LAUNCH_KERNEL)
        self._stream = context.stream_reader()

    def run(self, args: Sequence[Any], addresses: Sequence[int], numbers: Sequence[int | float]) -> Any:
        """Allocate, launch everything on torch's current stream, give the call's results.

        ``addresses`` of the tensors and ``numbers`` among ``args``, each in order. :data:`UNFIT` when a number does not
        fit; errors as :meth:`Executable.launch`.
        """
        made = [allocate() for allocate in self.allocators]
        for tensor in made:
            if type(tensor) is not self._plain_tensor:  # made under a mode that gives tensors without memory
                return UNFIT
        values = [*addresses, *[tensor.data_ptr() for tensor in made], *numbers]
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(self)
        try:
            for position, convert in self._conversions:
                values[position] = convert(values[position])
            self._pack_into(frame.room, frame.values_at, *values)
        except (struct.error, OverflowError, ArgumentError):
            return UNFIT
        if frame.launches:
            self._launch(frame, values)
        self._frames.append(frame)
        returned = self.returned
        if not returned:
            return None
        results = [args[position] if position >= 0 else made[~position] for position in returned]
        return results[0] if len(results) == 1 else tuple(results)

    def _launch(self, frame: _Frame, values: Sequence[Any]) -> None:
        pushed = False
        if self._read_context(frame.context_address) or frame.context.value != self._context:
            pushed = context.enter(self.driver, self.device)
        try:
            stream = self._stream(self.device)
            if stream != frame.stream:
                frame.use_stream(stream)
            for encoder, position in frame.maps:
                address = values[position]
                if address != encoder.address:
                    encoder.encode(address)
            launch_kernel = self._launch_kernel
            for config, function, parameters in frame.launches:
                result = launch_kernel(config, function, parameters, 0)
                if result:
                    self.raise_refused([address for address, _, _ in frame.launches].index(config), result)
        finally:
            if pushed:
                context.leave(self.driver)

    def template(self, numbers: Sequence[int | float]) -> bytes:
        """A frame's values for a call with ``numbers``, addresses as 0."""
        values: list[int | float] = [0] * len(self.layout.pointers) + list(numbers)
        for position, convert in self._conversions:
            values[position] = convert(values[position])
        content = bytearray(self.layout.bytes)
        self.layout.packing.pack_into(content, 0, *values)
        for offset, constant in self.layout.constants:
            content[offset : offset + len(constant)] = constant
        return bytes(content)

    def raise_refused(self, position: int, result: int) -> None:
        """The error of launch number ``position`` of :attr:`launches`, for which the driver gave ``result``."""
        launch, grid = self.launches[position]
        raise self._executable.refused(self.driver, result, launch, launch_shape(launch, grid))


class _Frame:
    """The memory of one call: encoded maps (64-byte aligned), parameters, arrays of pointers to them, launch
    configurations. The driver copies parameters and maps in cuLaunchKernelEx, so a frame is free again after it."""

    __slots__ = ("_configs", "context", "context_address", "launches", "maps", "room", "stream", "values_at")

    def __init__(self, plan: CallPlan) -> None:
        layout = plan.layout
        maps = plan.maps if plan.launches else ()
        map_bytes = tensor_maps.BYTES * len(maps)
        pointers = sum(len(launch.parameters) for launch, _ in plan.launches)
        size = map_bytes + layout.bytes + POINTER_BYTES * pointers
        self.room = ctypes.create_string_buffer(size + tensor_maps.ALIGNMENT)
        maps_at = -ctypes.addressof(self.room) % tensor_maps.ALIGNMENT
        self.values_at = maps_at + map_bytes
        start = ctypes.addressof(self.room)
        for offset, content in layout.constants:
            struct.pack_into(f"{len(content)}s", self.room, self.values_at + offset, content)
        self.maps: tuple[tuple[tensor_maps.MapEncoder, int], ...] = tuple(
            (
                tensor_maps.MapEncoder(plan.driver, tiled, subject, start + maps_at + tensor_maps.BYTES * n, offset),
                layout.pointers[tensor],
            )
            for n, (_, tensor, tiled, subject, offset) in enumerate(maps)
        )
        map_offsets = {name: maps_at + tensor_maps.BYTES * n for n, (name, *_) in enumerate(maps)}
        self.stream: int | None = None
        self.context = ctypes.c_void_p(0)
        self.context_address = ctypes.addressof(self.context)
        self._configs, self.launches = [], []
        array_at = self.values_at + layout.bytes
        for position, (launch, grid) in enumerate(plan.launches):
            places = [
                map_offsets[parameter.name]
                if parameter.kind == "tensor_map"
                else self.values_at + layout.offset(position, parameter)
                for parameter in launch.parameters
            ]
            struct.pack_into(f"{len(places)}Q", self.room, array_at, *(start + place for place in places))
            shape = launch_shape(launch, grid)
            attributes = plan.driver.launch_attributes(shape)
            config = plan.driver.launch_config(shape, attributes, 0)
            self._configs.append((config, attributes))
            self.launches.append((int(config.getPtr()), int(plan.functions[launch.kernel]), start + array_at))
            array_at += POINTER_BYTES * len(places)

    def use_stream(self, stream: int) -> None:
        for config, _ in self._configs:
            config.hStream = stream
        self.stream = stream


class _ValueLayout:
    """Where addresses and numbers lie in a frame.

    First what changes with every call, which ``packing`` writes at once: the addresses of the tensors that are passed
    and of those that are allocated, then the numbers that are passed, each in the order of the record. Then what the
    key fixes, ``constants`` as (offset, bytes). Each value at its natural alignment.
    """

    def __init__(
        self, record: LaunchRecord, call: CheckedCall, launches: Sequence[tuple[KernelLaunch, tuple[int, ...]]]
    ) -> None:
        tensors = [argument.name for argument in record.arguments if not isinstance(argument, ScalarArgument)]
        tensors += [allocation.name for allocation in record.allocations]
        self.pointers = {name: position for position, name in enumerate(tensors)}
        self.numbers = [argument for argument in record.arguments if isinstance(argument, ScalarArgument)]
        code, end = f"<{len(tensors)}Q", POINTER_BYTES * len(tensors)
        self._numbers: dict[tuple[str, str], int] = {}
        for argument in self.numbers:
            element = FORMATS[argument.dtype]
            padding = -end % element.bytes
            code += f"{padding}x{element.packing}" if padding else element.packing
            self._numbers[argument.name, argument.dtype] = end + padding
            end += padding + element.bytes
        self.packing = struct.Struct(code)
        self.constants: list[tuple[int, bytes]] = []
        self._constants: dict[tuple[int, str], int] = {}
        for position, (launch, _) in enumerate(launches):
            for parameter in launch.parameters:
                if parameter.kind == "scalar" and self._passed(parameter) is None:
                    end += -end % 8
                    self._constants[position, parameter.name] = end
                    content = _constant(parameter, call)
                    self.constants.append((end, content))
                    end += len(content)
        self.bytes = end + -end % 8

    def _passed(self, parameter: KernelParameter) -> int | None:
        """The offset of a scalar parameter that is a number of the call, unchanged."""
        if parameter.value is None:
            return self._numbers.get((parameter.name, parameter.dtype))
        if isinstance(parameter.value, Symbol):
            return self._numbers.get((parameter.value.name, parameter.dtype))
        return None

    def number_at(self, argument: ScalarArgument) -> int:
        """Where a number of the call lies."""
        return self._numbers[argument.name, argument.dtype]

    def offset(self, launch: int, parameter: KernelParameter) -> int:
        """Where a pointer or scalar parameter of launch number ``launch`` lies."""
        if parameter.kind == "pointer":
            return POINTER_BYTES * self.pointers[parameter.name]
        passed = self._passed(parameter)
        return self._constants[launch, parameter.name] if passed is None else passed


def passed_unchanged(record: LaunchRecord, parameter: KernelParameter) -> bool:
    """Whether a scalar parameter is a number of the call in its own dtype, so that it needs no plan for each value."""
    name = parameter.name if parameter.value is None else getattr(parameter.value, "name", None)
    return any(
        isinstance(argument, ScalarArgument) and (argument.name, argument.dtype) == (name, parameter.dtype)
        for argument in record.arguments
    )


def _constant(parameter: KernelParameter, call: CheckedCall) -> bytes:
    element = FORMATS[parameter.dtype]
    if parameter.value is None:
        value = encode(call.scalars[parameter.name], element)
    else:
        value = evaluate_size(parameter.value, call.symbols)
    return struct.pack("<" + element.packing, value)


def _conversions(record: LaunchRecord, layout: _ValueLayout) -> tuple[tuple[int, Callable[[Any], int | float]], ...]:
    """(position among the values, what makes the value that ``struct`` packs) for the numbers that need it."""
    found = []
    subjects = {argument.name: subject_of(record, position) for position, argument in enumerate(record.arguments)}
    for position, argument in enumerate(layout.numbers, start=len(layout.pointers)):
        if argument.dtype not in _PACKED_EXACTLY | _PACKED_AS_FLOATS:
            found.append((position, _converter(argument.dtype, subjects[argument.name])))
    return tuple(found)


def _converter(dtype: str, subject: str) -> Callable[[Any], int | float]:
    return lambda value: encode(accept(value, dtype, subject), FORMATS[dtype])


def _maps(
    record: LaunchRecord, launches: Sequence[tuple[KernelLaunch, tuple[int, ...]]], call: CheckedCall
) -> tuple[tuple[str, str, tensor_maps.TiledMap, str, int], ...]:
    """(name, tensor, the map of this call's tensor, how errors start, offset in bytes) of the maps that are used."""
    found = []
    for tensor_map in maps_used(record.tensor_maps, [launch for launch, _ in launches]):
        tiled = tensor_maps.describe(tensor_map, call.mapped[tensor_map.tensor], call.symbols, record.name)
        subject = f"{record.name}: the tensor map of {tensor_map.tensor!r}"
        found.append((tensor_map.name, tensor_map.tensor, tiled, subject, tensor_map.offset))
    return tuple(found)


def _allocator(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> partial[torch.Tensor]:
    """What makes a new contiguous tensor.

    empty_strided takes half the time of empty. It needs no stand-in, which empty_like would: one made while a CUDA
    graph is captured would hold memory of the graph's own pool, and torch.compile's graphs refuse what they don't know.
    """
    import torch

    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    dense = tuple(reversed(strides[: len(shape)]))
    return partial(torch.empty_strided, tuple(shape), dense, dtype=dtype, device=device)


def _plain_tensor() -> type:
    import torch

    return torch.Tensor


def _returned(record: LaunchRecord) -> tuple[int, ...]:
    """For each result the position of the argument, or ``~`` the position of the allocation."""
    arguments = [argument.name for argument in record.arguments]
    allocations = [allocation.name for allocation in record.allocations]
    return tuple(arguments.index(name) if name in arguments else ~allocations.index(name) for name in record.returns)
