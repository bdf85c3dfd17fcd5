"""Which traced programs cannot fit their target, seen in a moment and before anything is compiled.

Each bound is one that no lowering can get below, so nothing that would compile well is refused here; what only lowering
can know (a ring of stages beside a staged epilogue, say) it refuses itself, with a table of the buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Const
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import statements_in
from ptxtile.ir.statements import Allocate, For, LoopKind
from ptxtile.ir.tile_ops import Copy, Gemm
from ptxtile.target import Target


def why_not(program: Program, target: Target) -> str | None:
    """Why ``program`` (as traced) cannot run well on ``target``, None if nothing speaks against it."""
    for kernel in program.kernels:
        for reason in _reasons(kernel, target):
            return f"{kernel.name}: {reason}"
    return None


def _reasons(kernel: Kernel, target: Target) -> Iterator[str]:
    if kernel.threads > target.max_threads:
        yield f"{kernel.threads} threads, and {target} has {target.max_threads} at most"
    shared = max([_bytes(buffer) for buffer in _allocated(kernel, Scope.SHARED)], default=0)
    needed = max(shared, ring_bytes(kernel))
    if needed > target.max_shared_bytes:
        yield f"at least {needed} bytes of shared memory, and a CTA of {target} has {target.max_shared_bytes} at most"
    for accumulator in _accumulators(kernel):
        registers = -(-_bytes(accumulator) // (4 * kernel.threads))
        if registers >= target.max_registers_per_thread:
            yield (
                f"{accumulator.name} takes {registers} registers of each of {kernel.threads} threads, and there are "
                f"{target.max_registers_per_thread} for everything"
            )


def ring_bytes(kernel: Kernel) -> int:
    """Of the largest pipelined loop: what its stages of tiles from global memory take together."""
    most = 0
    for loop in statements_in(kernel.body):
        if not isinstance(loop, For) or loop.kind is not LoopKind.PIPELINED:
            continue
        stages = loop.option("num_stages")
        if not isinstance(stages, int) or stages < 2 or loop.option("stage") is not None:
            continue
        if isinstance(loop.start, Const) and isinstance(loop.stop, Const):
            stages = min(stages, max(1, int(loop.stop.value) - int(loop.start.value)))
        tiles = {
            node.destination.buffer.name: node.destination.buffer
            for node in statements_in(loop.body)
            if isinstance(node, Copy)
            and node.destination.buffer.scope is Scope.SHARED
            and node.source.buffer.scope is Scope.GLOBAL
        }
        most = max(most, stages * sum(map(_bytes, tiles.values())))
    return most


def _accumulators(kernel: Kernel) -> list[Buffer]:
    found = {
        node.accumulator.buffer.name: node.accumulator.buffer
        for node in statements_in(kernel.body)
        if isinstance(node, Gemm) and node.accumulator.buffer.scope is Scope.FRAGMENT
    }
    return list(found.values())


def _allocated(kernel: Kernel, scope: Scope) -> list[Buffer]:
    return [
        node.buffer for node in statements_in(kernel.body) if isinstance(node, Allocate) and node.buffer.scope is scope
    ]


def _bytes(buffer: Buffer) -> int:
    return buffer.storage.size or 0
