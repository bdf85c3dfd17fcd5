"""A compiled program that can run on a card: its PTX loaded once for each device, its launches prepared once.

:meth:`Executable.launch` is the way of a :class:`Binding` to the card; the calls that follow with arguments of the same
kind go through a :class:`~ptxtile.runtime.call_plan.CallPlan`, which does the same with less work.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ptxtile.errors import DriverError, LaunchError
from ptxtile.launch_record import KernelLaunch, LaunchRecord, TensorMapRecord
from ptxtile.runtime import context, module, tensor_maps
from ptxtile.runtime import driver as cuda
from ptxtile.runtime.arguments import Binding
from ptxtile.runtime.driver import Driver, LaunchShape
from ptxtile.runtime.module import LoadedModule
from ptxtile.runtime.parameters import ParameterLayout
from ptxtile.runtime.resources import KernelResources

STICKY = frozenset({700, 702, 714, 715, 716, 717, 718, 719})
"""CUresult values after which the context cannot be used any more, such as CUDA_ERROR_ILLEGAL_ADDRESS (CUDA driver API,
«CUresult»: «the process must be terminated and relaunched»). A launch reports them for work that was enqueued before
it."""

HINTS = {
    701: "fewer threads of a CTA, or fewer registers of a thread",
    720: "all CTAs of a kernel with T.sync_grid must fit on the card at the same time: launch fewer",
    912: "the grid must be a multiple of cluster_dims, and a cluster must fit on the card",
}
"""What to change, by CUresult: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
CUDA_ERROR_INVALID_CLUSTER_SIZE (CUDA driver API, «CUresult»)."""

MAPS_KEPT = 256
"""Encoded tensor maps that an executable remembers, for calls with tensors at the same addresses."""


def launch_shape(launch: KernelLaunch, grid: tuple[int, int, int]) -> LaunchShape:
    return LaunchShape(
        grid, launch.block, launch.shared_bytes, launch.cluster, launch.cooperative, launch.dependent_launch
    )


class _Launch:
    """What one KernelLaunch needs at every call, except values."""

    def __init__(self, launch: KernelLaunch) -> None:
        self.record = launch
        self.layout = ParameterLayout(launch)
        self._pointers = struct.Struct(f"{len(launch.parameters)}Q")
        self._attributes: list[Any] | None = None

    def attributes(self, driver: Driver) -> list[Any]:
        if self._attributes is None:
            self._attributes = driver.launch_attributes(self.shape((1, 1, 1)))
        return self._attributes

    def shape(self, grid: tuple[int, int, int]) -> LaunchShape:
        return launch_shape(self.record, grid)

    def memory(self, packed: bytes) -> tuple[Any, int]:
        """A block with the parameters and the array of pointers to them, and the array's address.

        A block of its own for each call: other threads launch the same kernel while the driver copies this one.
        """
        size = -(-len(packed) // 8) * 8
        room = ctypes.create_string_buffer(size + self._pointers.size + tensor_maps.ALIGNMENT)
        aligned = -ctypes.addressof(room) % tensor_maps.ALIGNMENT
        start = ctypes.addressof(room) + aligned
        ctypes.memmove(start, packed, len(packed))
        self._pointers.pack_into(room, aligned + size, *(start + offset for offset in self.layout.offsets))
        return room, start + size


def maps_used(maps: Sequence[TensorMapRecord], launches: Sequence[KernelLaunch]) -> tuple[TensorMapRecord, ...]:
    """Those of ``maps`` that are a parameter of one of ``launches``."""
    used = {p.name for launch in launches for p in launch.parameters if p.kind == "tensor_map"}
    return tuple(tensor_map for tensor_map in maps if tensor_map.name in used)


class KeptLogs(Protocol):
    """Where the JIT's log of one program is kept. ``assembler``: architecture of the card and CUDA version of the
    driver, a part of a file name."""

    def find(self, assembler: str) -> str: ...

    def keep(self, assembler: str, log: str) -> None: ...


class Executable:
    """``ptx`` with its launch record. ``image``: a cubin to load instead of the PTX, for the card that it was made
    for."""

    def __init__(
        self,
        ptx: str,
        record: LaunchRecord,
        target_name: str = "",
        *,
        image: bytes | None = None,
        line_info: bool = True,
        logs: KeptLogs | None = None,
    ) -> None:
        self.ptx = ptx
        self.record = record
        self.target_name = target_name
        self._image = image
        self._line_info = line_info
        self._logs = logs
        self._launches = tuple(_Launch(launch) for launch in record.launches)
        self._maps_used = maps_used(record.tensor_maps, record.launches)
        self._encoded: dict[tuple[Any, ...], bytes] = {}  # a map depends on nothing but its record, address and sizes
        self._loaded: dict[int, LoadedModule] = {}
        self._lock = threading.Lock()

    def __call__(self, binding: Binding) -> Any:
        """Launch everything on torch's current stream of the tensors' device; gives the call's results, not yet
        computed."""
        self.launch(binding)
        return binding.results

    def load(self, device: int) -> LoadedModule:
        """The module on ``device``, loaded at the first call. See :func:`ptxtile.runtime.module.load` for errors."""
        loaded = self._loaded.get(device)
        if loaded is None:
            with self._lock, context.current(device) as driver:
                loaded = self._loaded.get(device)
                if loaded is None:
                    loaded = self._load(driver, device)
                    self._loaded[device] = loaded
        return loaded

    def _load(self, driver: Driver, device: int) -> LoadedModule:
        assembler, known = "", ""
        if self._logs is not None:
            assembler = module.assembler_of(driver, device)
            known = self._logs.find(assembler)
        options = {"cubin": self._image, "line_info": self._line_info, "known_log": known}
        loaded = module.load(driver, device, self.ptx, self.record.launches, **options)
        if self._logs is not None and loaded.log not in ("", known):
            self._logs.keep(assembler, loaded.log)
        return loaded

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that the module is loaded on."""
        return tuple(self._loaded)

    def resources(self, device: int = 0) -> Mapping[str, KernelResources]:
        """Registers, spills, shared memory of each kernel on ``device``; loads the module."""
        return self.load(device).resources

    def log(self, device: int = 0) -> str:
        """What the driver's JIT said; empty when the driver took the code from its own cache."""
        return self.load(device).log

    def launch(self, binding: Binding) -> None:
        """Enqueue every launch of the record whose grid has a CTA, in order.

        LaunchError when the driver refuses one; DriverError when earlier work on the card has failed, there is no
        card, or the process was forked after CUDA was used.
        """
        if binding.is_empty:
            return
        device = binding.device.index or 0
        driver = cuda.initialised()
        pushed = context.enter(driver, device)
        try:
            loaded = self._loaded.get(device) or self.load(device)
            stream = context.current_stream(device)
            maps, keep = self._encode_maps(driver, binding)
            for launch, grid in zip(self._launches, binding.grids, strict=True):
                if 0 not in grid:
                    self._enqueue(driver, launch, grid, loaded.functions[launch.record.kernel], stream, binding, maps)
            del keep  # torch's allocator reuses memory in the order of the stream, so this may go once all is enqueued
        finally:
            if pushed:
                context.leave(driver)

    def _encode_maps(self, driver: Driver, binding: Binding) -> tuple[dict[str, bytes], list[Any]]:
        """The tensor maps by name, and what must stay alive until all is enqueued."""
        maps, keep = {}, []
        sizes = tuple(binding.symbols.items())
        for record in self._maps_used:
            tensor = binding.tensors[record.tensor]
            key = (record.name, tensor.data_ptr(), sizes)
            encoded = self._encoded.get(key)
            if encoded is None:
                encoded, kept = tensor_maps.of_binding(driver, record, tensor, binding.symbols, self.record.name)
                if kept is tensor:  # a map of other memory is of this call alone
                    if len(self._encoded) >= MAPS_KEPT:
                        self._encoded.clear()
                    self._encoded[key] = encoded
                keep.append(kept)
            maps[record.name] = encoded
        return maps, keep

    def _enqueue(
        self,
        driver: Driver,
        launch: _Launch,
        grid: tuple[int, int, int],
        function: Any,
        stream: int,
        binding: Binding,
        maps: Mapping[str, bytes],
    ) -> None:
        values: list[int | float | bytes] = []
        for parameter in launch.record.parameters:
            if parameter.kind == "pointer":
                tensor = binding.tensors.get(parameter.name)
                values.append(0 if tensor is None else tensor.data_ptr())
            elif parameter.kind == "tensor_map":
                values.append(maps[parameter.name])
            else:
                values.append(launch.layout.number(parameter, binding.scalars, binding.symbols))
        room, pointers = launch.memory(launch.layout.pack(values))
        shape = launch.shape(grid)
        result = driver.launch(function, shape, launch.attributes(driver), stream, pointers)
        del room  # the driver has copied the parameters
        if result != 0:
            raise self.refused(driver, result, launch.record, shape)

    def refused(
        self, driver: Driver, result: Any, launch: KernelLaunch, shape: LaunchShape
    ) -> LaunchError | DriverError:
        """The error for a launch that gave the CUresult ``result``."""
        name, text = driver.describe(result)
        if int(result) in STICKY:
            return DriverError(
                f"{self.record.name}: earlier work on the card failed: {name} ({int(result)}): {text}",
                hint="the error belongs to a kernel launched before; the process must be started again",
            )
        got = f"grid {shape.grid}, block {shape.block}, cluster {shape.cluster}, {shape.shared_bytes} bytes shared"
        return LaunchError(
            f"{self.record.name}: launch of kernel {launch.kernel!r} refused: {name} ({int(result)}): {text}", got=got,
            hint=HINTS.get(int(result)),
        )  # fmt: skip
