"""What a call takes and reaches: time, bandwidth, rate, and what of a multiprocessor its kernels use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.launch_record import KernelLaunch, evaluate_size
from ptxtile.records import record
from ptxtile.runtime.driver import Driver
from ptxtile.runtime.dtypes import FORMATS

if TYPE_CHECKING:
    from ptxtile.kernel import JITKernel
    from ptxtile.runtime.resources import KernelResources
    from ptxtile.target import Target


@record
class Occupancy:
    """blocks: CTAs of a kernel that run on one multiprocessor at the same time; warps: theirs together; share: of the
    warps that a multiprocessor has room for, 0 … 1. by_driver: the driver says so, with the kernel loaded; else it is
    counted from the figures of the assembler and the tables of the target."""

    blocks: int
    warps: int
    share: float
    by_driver: bool


@record
class Figures:
    """Of one call. latency: milliseconds. bytes, flops: of the call; None: not known. resources and occupancy: by
    kernel; empty where no card and no assembler can say."""

    latency: float
    bytes: int | None
    flops: int | None
    resources: Mapping[str, KernelResources]
    occupancy: Mapping[str, Occupancy]

    @property
    def gigabytes_per_second(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.latency / 1e6

    @property
    def teraflops(self) -> float | None:
        """10¹² operations a second."""
        return None if self.flops is None else self.flops / self.latency / 1e9

    def __str__(self) -> str:
        lines = [f"{self.latency:.4g} ms"]
        if self.gigabytes_per_second is not None:
            lines[0] += f", {self.gigabytes_per_second:.4g} GB/s"
        if self.teraflops is not None:
            lines[0] += f", {self.teraflops:.4g} TFLOP/s"
        for name, found in self.resources.items():
            spills = "unknown spills" if found.spill_stores is None else f"{found.spill_stores} bytes spilled"
            text = f"{name}: {found.registers} registers, {spills}, {found.shared_bytes} bytes shared"
            occupancy = self.occupancy.get(name)
            if occupancy is not None:
                text += f", {occupancy.blocks} CTAs on a multiprocessor ({occupancy.share:.0%} of its warps)"
            lines.append(text)
        return "\n".join(lines)


def figures(
    kernel: JITKernel,
    arguments: Sequence[Any],
    latency: float,
    *,
    bytes: int | None = None,
    flops: int | None = None,
) -> Figures:
    """Of a call with ``arguments`` that takes ``latency`` milliseconds; ``bytes`` are counted unless given."""
    from ptxtile.inspect.machine_code import ToolMissing

    variant = kernel.variant_for(*arguments)
    try:
        resources: Mapping[str, KernelResources] = variant.resources()
        occupancy = _occupancies(variant, resources)
    except ToolMissing:  # no card that can run it, and no ptxas either
        resources, occupancy = {}, {}
    moved = bytes_of(kernel, arguments) if bytes is None else bytes
    return Figures(latency, moved, flops, resources, occupancy)


def bytes_of(kernel: JITKernel, arguments: Sequence[Any]) -> int:
    """Bytes of the tensors of a call: each argument once, each allocated result once. A lower bound of what moves, but
    for arguments that are read and written, which count once."""
    import torch

    from ptxtile.runtime.arguments import bind

    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    device = tensors[0].device.type if tensors else "cpu"
    launch = kernel.variant_for(*arguments).launch_on(device)
    symbols = bind(launch, arguments, device_type=device).symbols
    for allocation in launch.allocations:
        if allocation.name in launch.returns:
            elements = prod(evaluate_size(size, symbols) for size in allocation.shape)
            total += elements * FORMATS[allocation.dtype].bytes
    return total


def _occupancies(variant: Any, resources: Mapping[str, KernelResources]) -> dict[str, Occupancy]:
    from ptxtile.runtime import context
    from ptxtile.runtime.device import card_for

    device = card_for(variant.target)
    if device is None:
        return {name: counted_occupancy(variant.target, found) for name, found in resources.items()}
    executable = variant.executable()
    loaded = executable.load(device)
    with context.current(device) as driver:
        return {
            launch.kernel: driver_occupancy(driver, device, loaded.functions[launch.kernel], launch)
            for launch in executable.record.launches
        }


def driver_occupancy(driver: Driver, device: int, function: Any, launch: KernelLaunch) -> Occupancy:
    """cuOccupancyMaxActiveBlocksPerMultiprocessor (CUDA driver API, «Occupancy»). Clusters are not considered."""
    threads = prod(launch.block)
    call = driver.bindings.cuOccupancyMaxActiveBlocksPerMultiprocessor
    blocks = driver.check(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", call(function, threads, launch.shared_bytes)
    )  # fmt: skip
    room = driver.device_attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR") // 32
    warps = int(blocks) * -(-threads // 32)
    return Occupancy(int(blocks), warps, warps / room, True)


def counted_occupancy(target: Target, found: KernelResources) -> Occupancy:
    """From registers, shared memory and threads (CUDA C++ Programming Guide, «Multiprocessor Level»): registers are
    given to warps in units, shared memory to CTAs with what the system takes for each."""
    warps = -(-found.threads // target.warp_size)
    unit = target.register_allocation_unit
    registers_of_warp = -(-found.registers * target.warp_size // unit) * unit
    shared = found.shared_bytes + target.reserved_shared_bytes
    blocks = min(
        target.max_threads_per_sm // (warps * target.warp_size),
        target.max_blocks_per_sm,
        target.shared_bytes_per_sm // shared,
        target.registers_per_sm // (registers_of_warp * warps),
    )
    return Occupancy(blocks, blocks * warps, blocks * warps * target.warp_size / target.max_threads_per_sm, False)
