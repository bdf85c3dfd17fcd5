"""The verifier's rules for GPU ops (invariants 33 to 36 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ptxtile.ir.atomic_ops import TMA_REDUCTIONS
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import constant_value
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    FenceMbarrierInit,
    FenceProxyAsync,
    GpuOp,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    PrefetchTensorMap,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.types import int32
from ptxtile.ir.verify_atomic_ops import AtomicOpVerifier
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier
from ptxtile.ir.verify_manual_ops import ManualOpVerifier
from ptxtile.ir.verify_tensor_core_ops import TensorCoreOpVerifier
from ptxtile.ir.verify_warp_ops import WarpOpVerifier
from ptxtile.launch_record import TensorMapRecord

MOST_ARRIVALS = (1 << 20) - 1
"""Of one phase, and the limit of the transaction count (PTX ISA, 9.7.13.15.1)."""
NAMED_BARRIERS = 16
COORDINATE_BYTES = 16
"""The innermost coordinate of a box is a multiple of so many bytes (:class:`ptxtile.ir.gpu_ops.TmaLoad`)."""
TMA_ALIGNMENT = 128
"""Bytes, of a shared-memory address of cp.async.bulk.tensor (PTX ISA, 9.7.9.27)."""


class GpuOpVerifier:
    def __init__(self, context: Context, expressions: ExpressionVerifier) -> None:
        self.context = context
        self.fail = context.fail
        self.expressions = expressions
        self.tensor_maps = {record.name: record for record in context.program.tensor_maps}
        self._rules: dict[type, Callable[[Any], None]] = {
            MbarrierInit: self._mbarrier_init, MbarrierArriveExpectTx: self._expect_tx, MbarrierArrive: self.barrier,
            MbarrierWait: self._wait, TmaLoad: self._tma_load, TmaStore: self._tma_store,
            BulkWaitGroup: self._bulk_wait,
            PrefetchTensorMap: self._prefetch, FenceProxyAsync: self._fence, BarSync: self._bar_sync,
            FenceMbarrierInit: self._nothing, BulkCommitGroup: self._nothing,
        }  # fmt: skip
        self.tensor_cores = TensorCoreOpVerifier(context, expressions, self.barrier)
        self._rules |= self.tensor_cores.rules
        self._rules |= AtomicOpVerifier(context, expressions).rules()
        warps = WarpOpVerifier(context, expressions)
        self._rules |= warps.rules()
        self._rules |= ManualOpVerifier(context, expressions, self._bar_sync, self._expect_tx, warps.result).rules()

    def check(self, node: GpuOp) -> None:
        rule = self._rules.get(type(node))
        if rule is None:
            self.fail(27, f"the verifier has no rule for {type(node).__name__}")
        rule(node)

    def _nothing(self, node: GpuOp) -> None:
        """An op without operands."""

    def barrier(self, node: Any) -> None:
        """``node.barrier[node.index]`` is one mbarrier."""
        self.context.check_buffer(node.barrier)
        if node.barrier.scope is not Scope.BARRIER:
            self.fail(34, f"{node.barrier.name} holds no mbarriers", "a barrier buffer", node.barrier.scope.value)
        self.expressions.check_typed(node.index, (int32,), 34, "the index of an mbarrier")

    def _mbarrier_init(self, node: MbarrierInit) -> None:
        self.barrier(node)
        if not 1 <= node.arrivals <= MOST_ARRIVALS:
            self.fail(34, "an mbarrier with an impossible arrival count", "1 to 2²⁰ − 1", node.arrivals)

    def _expect_tx(self, node: MbarrierArriveExpectTx) -> None:
        self.barrier(node)
        if not 0 <= node.bytes <= MOST_ARRIVALS:
            self.fail(34, "an mbarrier cannot expect so many bytes", "0 to 2²⁰ − 1", node.bytes)

    def _wait(self, node: MbarrierWait) -> None:
        self.barrier(node)
        self.expressions.check_typed(node.parity, (int32,), 34, "the parity of a wait")
        if constant_value(node.parity) not in (None, 0, 1):
            self.fail(34, "a parity that is neither 0 nor 1", got=constant_value(node.parity))
        self._retires(node.retires)

    def _retires(self, buffers: tuple[Buffer, ...]) -> None:
        for buffer in buffers:
            self.context.check_buffer(buffer)

    def _map(self, name: str) -> TensorMapRecord:
        if name not in self.tensor_maps:
            self.fail(35, f"the program has no tensor map {name}")
        self.context.used_tensor_maps.add(name)
        return self.tensor_maps[name]

    def _tma_load(self, node: TmaLoad) -> None:
        self._tma(node, node.shared.dtype.name)
        self.barrier(node)
        if node.multicast is not None:
            self.tensor_cores.multicast(node.multicast)

    def _tma_store(self, node: TmaStore) -> None:
        if not node.operator:
            self._tma(node, node.shared.dtype.name)
            return
        types = TMA_REDUCTIONS.get(node.operator, {})
        if node.shared.dtype.name not in types:
            what = f"TMA cannot combine the elements of {node.shared.name} with {node.operator!r}"
            self.fail(35, what, ", ".join(types) or ", ".join(TMA_REDUCTIONS), node.shared.dtype)
        self._tma(node, types[node.shared.dtype.name])

    def _tma(self, node: TmaLoad | TmaStore, element: str) -> None:
        """``element``: the type of the tensor map's elements."""
        record = self._map(node.tensor_map)
        if len(node.coordinates) != record.rank:
            self.fail(35, f"{record.name} has another rank", f"{record.rank} coordinates", len(node.coordinates))
        for coordinate in node.coordinates:
            self.expressions.check_typed(coordinate, (int32,), 35, f"a coordinate of {record.name}")
        first_column = constant_value(node.coordinates[0])
        if first_column is not None and first_column * node.shared.dtype.bits % (8 * COORDINATE_BYTES):
            expected = f"a multiple of {COORDINATE_BYTES} bytes"
            self.fail(35, f"a box of {record.name} starts at an impossible column", expected, first_column)
        self.context.check_buffer(node.shared)
        self.expressions.check_typed(node.offset, (int32,), 35, f"the offset into {node.shared.name}")
        if node.shared.scope is not Scope.SHARED or element != record.dtype:
            self.fail(35, f"{record.name} does not fit {node.shared.name}", f"a shared buffer of {record.dtype}",
                      f"{node.shared.scope.value} {node.shared.dtype}")  # fmt: skip
        offset = constant_value(node.offset)
        if offset is not None:
            first = offset * node.shared.dtype.bits // 8
            last = first + prod(record.box) * node.shared.dtype.bits // 8
            if first < 0 or first % TMA_ALIGNMENT or last > (node.shared.storage.size or 0):
                expected = f"a multiple of 128 bytes, at most {node.shared.storage.size}"
                self.fail(35, f"a box of {record.name} is not in {node.shared.name}", expected, f"{first} to {last}")

    def _bulk_wait(self, node: BulkWaitGroup) -> None:
        if node.pending < 0:
            self.fail(36, "a wait that leaves a negative number of groups", got=node.pending)
        self._retires(node.retires)

    def _prefetch(self, node: PrefetchTensorMap) -> None:
        self._map(node.tensor_map)

    def _fence(self, node: FenceProxyAsync) -> None:
        if node.space not in ("shared", "global"):
            self.fail(36, "a proxy fence for an unknown space", "shared or global", node.space)

    def _bar_sync(self, node: BarSync) -> None:
        kernel = self.context.kernel
        assert kernel is not None
        if not 0 <= node.id < NAMED_BARRIERS:
            self.fail(33, "bar.sync with an impossible id", "0 to 15", node.id)
        most = -(-kernel.threads // 32) * 32  # the hardware counts whole warps
        if node.threads <= 0 or node.threads % 32 or node.threads > most:
            self.fail(33, "bar.sync with an impossible thread count", f"a multiple of 32 up to {most}", node.threads)
