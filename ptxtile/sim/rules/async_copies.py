"""cp.async: copies of 4, 8 or 16 bytes from global to shared memory, in groups of each thread (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.async_copy_ops import CpAsync, CpAsyncCommitGroup, CpAsyncMbarrierArrive, CpAsyncWaitGroup
from ptxtile.sim.async_effects import AsyncEffect, Touch
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import mbarriers

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

ENGINE = "cp_async"


def _require(wrong: np.ndarray, places: np.ndarray, name: str, verb: str, expected: str) -> None:
    if wrong.any():
        got = f"byte {int(places[wrong][0])}"
        raise SimulationError(f"cp.async {verb} {name} at an impossible address", expected=expected, got=got)


def copy(threads: Threads, op: CpAsync, mask: Mask) -> None:
    ctas, _ = threads.active_lanes(mask)
    width, tensor, shared = op.bytes, threads.group.tensor(op.source.storage.name), threads.group.shared
    sources = tensor.base + threads.on_active_lanes(op.index, mask) * op.source.dtype.itemsize
    lowest, highest = shared.bounds(op.shared)
    targets = lowest + threads.on_active_lanes(op.offset, mask) * op.shared.dtype.itemsize
    if op.valid_bytes is None:
        valid = np.full(len(ctas), width)
    else:
        valid = threads.on_active_lanes(op.valid_bytes, mask)
    if ((valid < 0) | (valid > width)).any():
        raise SimulationError("cp.async reads an impossible number of bytes", expected=f"0 to {width}", got=str(valid))
    reads = valid > 0
    _require(reads & ((sources < 0) | (sources + valid > tensor.data.size)), sources, op.source.name, "reads",
             f"bytes 0 to {tensor.data.size - 1}")  # fmt: skip
    _require(reads & ((sources + tensor.address) % width != 0), sources + tensor.address, op.source.name, "reads",
             f"a multiple of {width} bytes")  # fmt: skip
    _require((targets < lowest) | (targets + width > highest), targets, op.shared.name, "writes",
             f"bytes {lowest} to {highest - 1}")  # fmt: skip
    _require(targets % width != 0, targets, op.shared.name, "writes", f"a multiple of {width} bytes")

    def read() -> np.ndarray:
        inside = np.arange(width)[None, :] < valid[:, None]
        places = np.where(inside, sources[:, None] + np.arange(width)[None, :], 0)
        if tensor.observer is not None:
            tensor.observer.access("read", "generic", op.source, places, 1, inside)
        return np.where(inside, tensor.data[places], 0).astype(np.uint8)

    def write(data: np.ndarray) -> None:
        if shared.observer is not None:
            shared.observer.access("write", "generic", op.shared, targets, width, None)
        shared.data[ctas[:, None], targets[:, None] + np.arange(width)[None, :]] = data

    def touches() -> list[Touch]:
        target = Touch(shared, True, op.shared.storage.name, ctas, targets[:, None], width)
        if (valid == width).all():
            return [Touch(tensor, False, op.source.name, ctas, sources[:, None], width), target]
        inside = np.arange(width)[None, :] < valid[:, None]
        places = sources[:, None] + np.arange(width)[None, :]
        return [Touch(tensor, False, op.source.name, ctas, places, 1, inside), target]

    threads.group.effects.issue(threads, AsyncEffect(ENGINE, read, write, lambda: None, touches), mask)


def commit(threads: Threads, op: CpAsyncCommitGroup, mask: Mask) -> None:
    threads.group.effects.commit_group(threads, ENGINE, mask)


def wait(threads: Threads, op: CpAsyncWaitGroup, mask: Mask) -> Wait | None:
    return threads.group.effects.wait_group(threads, ENGINE, op.pending, mask)


def arrive(threads: Threads, op: CpAsyncMbarrierArrive, mask: Mask) -> None:
    """The copies are completed here, which is a legal moment, and then the arrival is an ordinary one."""
    threads.group.effects.complete(threads, ENGINE, mask)
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        counts = threads.lanes_per_cta(lanes)
        mbarrier.require_initialised(counts > 0, "arrived at")
        mbarrier.arrive(counts)
