"""The verifier's rules for tensor-core, cp.async and cluster ops (invariants 43 to 47 of
:mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ptxtile.ir.async_copy_ops import CpAsync, CpAsyncCommitGroup, CpAsyncMbarrierArrive, CpAsyncWaitGroup
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.ir.expressions import Expr, constant_value
from ptxtile.ir.tensor_core_ops import (
    MMA_SHAPES,
    WARPGROUP,
    WGMMA_SHAPES,
    LoadMatrix,
    MmaSync,
    StoreMatrix,
    Wgmma,
    WgmmaCommitGroup,
    WgmmaFence,
    WgmmaWaitGroup,
    fragment_elements,
    matrix_elements,
)
from ptxtile.ir.types import DType, int32, int64, uint64
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier

COPY_BYTES = (4, 8, 16)


class TensorCoreOpVerifier:
    """``barrier`` checks that a node's ``barrier`` and ``index`` are one mbarrier."""

    def __init__(self, context: Context, expressions: ExpressionVerifier, barrier: Callable[[Any], None]) -> None:
        self.context = context
        self.fail = context.fail
        self.expressions = expressions
        self.barrier = barrier
        self.rules: dict[type, Callable[[Any], None]] = {
            LoadMatrix: self._matrix, StoreMatrix: self._matrix, MmaSync: self._mma, WgmmaFence: self._warpgroups,
            Wgmma: self._wgmma, WgmmaCommitGroup: self._warpgroups, WgmmaWaitGroup: self._wgmma_wait,
            CpAsync: self._copy, CpAsyncCommitGroup: self._nothing, CpAsyncWaitGroup: self._copy_wait,
            CpAsyncMbarrierArrive: barrier, MbarrierArriveRemote: self._arrive_remote, ClusterArrive: self._nothing,
            ClusterWait: self._nothing,
        }  # fmt: skip

    def _nothing(self, node: Any) -> None:
        """An op without operands that is legal everywhere."""

    # ---- operands

    def _shared(self, buffer: Buffer, invariant: int, what: str) -> None:
        self.context.check_buffer(buffer)
        if buffer.scope is not Scope.SHARED:
            self.fail(invariant, f"{what} is not in shared memory", "a shared buffer", buffer.scope.value)

    def _index(self, offset: Expr, invariant: int, what: str) -> None:
        self.expressions.check_typed(offset, (int32, int64), invariant, f"the offset into {what}")

    def _registers(self, buffer: Buffer, offset: Expr, count: int, invariant: int, dtypes: tuple[str, ...]) -> None:
        """``count`` elements of a REGISTER buffer of one of ``dtypes`` (none: of any)."""
        self.context.check_buffer(buffer)
        if buffer.scope is not Scope.REGISTER or (dtypes and buffer.dtype.name not in dtypes):
            expected, got = "registers" + (f" of {' or '.join(dtypes)}" if dtypes else ""), buffer.scope.value
            self.fail(invariant, f"{buffer.name} cannot be this operand", expected, f"{got} {buffer.dtype}")
        self._index(offset, invariant, buffer.name)
        first, size = constant_value(offset), (buffer.storage.size or 0) * 8 // buffer.dtype.bits
        if first is not None and not 0 <= first <= size - count:
            self.fail(invariant, f"a fragment leaves {buffer.name}", f"{count} elements of {size}", f"from {first} on")

    # ---- matrices

    def _matrix(self, node: LoadMatrix | StoreMatrix) -> None:
        buffer, offset = (
            (node.destination, node.destination_offset)
            if isinstance(node, LoadMatrix)
            else (node.source, node.source_offset)
        )
        if node.count not in (1, 2, 4):
            self.fail(43, "an impossible number of matrices", "1, 2 or 4", node.count)
        if buffer.dtype.bits * buffer.dtype.lanes not in (8, 16, 32) or buffer.dtype.is_bool:
            self.fail(43, f"{buffer.name} has elements of an impossible width", "8, 16 or 32 bits", buffer.dtype)
        self._registers(buffer, offset, matrix_elements(node), 43, ())
        self._shared(node.shared, 43, f"the matrix of {buffer.name}")
        self._index(node.offset, 43, node.shared.name)

    def _mma(self, node: MmaSync) -> None:
        dtypes = (node.dtype_a.name, node.dtype_b.name, node.dtype_accumulator.name)
        shapes = MMA_SHAPES.get(dtypes, ())
        if (node.m, node.n, node.k) not in shapes:
            expected = ", ".join(f"m{m}n{n}k{k}" for m, n, k in shapes) or "element types of MMA_SHAPES"
            self.fail(44, f"no mma.sync of {' × '.join(dtypes)}", expected, f"m{node.m}n{node.n}k{node.k}")
        a, b, c = fragment_elements(node)
        self._registers(node.a, node.a_offset, a, 44, operand_dtypes(node.dtype_a))
        self._registers(node.b, node.b_offset, b, 44, operand_dtypes(node.dtype_b))
        self._registers(node.accumulator, node.accumulator_offset, c, 44, ())

    def _warpgroups(self, node: Any) -> None:
        kernel = self.context.kernel
        if kernel is not None and kernel.threads % WARPGROUP:
            self.fail(45, "wgmma in a kernel that is not made of warpgroups", "multiples of 128", kernel.threads)

    def _wgmma(self, node: Wgmma) -> None:
        self._warpgroups(node)
        dtypes = (node.dtype_a.name, node.dtype_b.name, node.dtype_accumulator.name)
        if dtypes not in WGMMA_SHAPES:
            self.fail(45, f"no wgmma of {' × '.join(dtypes)}", "element types of WGMMA_SHAPES")
        k, sizes = WGMMA_SHAPES[dtypes]
        if node.k != k or node.n not in sizes:
            expected = f"k {k} and n of {sizes[0]} to 256 in the steps of the table"
            self.fail(45, "a wgmma of an impossible shape", expected, f"m64n{node.n}k{node.k}")
        a, _, c = fragment_elements(node)
        self._registers(node.accumulator, node.accumulator_offset, c, 45, ())
        self._shared_operand(node.shared_b, node.descriptor_b, node.dtype_b)
        from_registers = node.a is not None and node.a_offset is not None
        from_shared = node.shared_a is not None and node.descriptor_a is not None
        parts = (node.a, node.a_offset, node.shared_a, node.descriptor_a)
        if from_registers == from_shared or sum(part is not None for part in parts) != 2:
            self.fail(45, "A of a wgmma is neither in registers nor in shared memory, or is in both")
        if node.a is not None and node.a_offset is not None:
            self._registers(node.a, node.a_offset, a, 45, operand_dtypes(node.dtype_a))
        if node.shared_a is not None and node.descriptor_a is not None:
            self._shared_operand(node.shared_a, node.descriptor_a, node.dtype_a)
        transposes = node.transpose_a or node.transpose_b
        if (transposes and node.dtype_a.bits != 16) or (node.transpose_a and node.a is not None):
            expected = "16-bit elements in shared memory"
            self.fail(45, "a transposed operand that wgmma cannot take", expected, node.dtype_a)
        self.expressions.check_condition(node.accumulate, 45, "accumulate of a wgmma")

    def _shared_operand(self, buffer: Buffer, descriptor: Expr, dtype: DType) -> None:
        self._shared(buffer, 45, "an operand of wgmma")
        if buffer.dtype.bits * buffer.dtype.lanes != dtype.bits:
            self.fail(45, f"{buffer.name} has elements of another width than the operand", dtype.name, buffer.dtype)
        self.expressions.check_typed(descriptor, (uint64,), 45, f"the descriptor of {buffer.name}")

    def _wgmma_wait(self, node: WgmmaWaitGroup) -> None:
        self._warpgroups(node)
        self._wait(node.pending, node.retires)
        for buffer in (*node.accumulators, *node.fragments):
            self.context.check_buffer(buffer)
            in_registers = (
                (Scope.REGISTER,) if self.context.program.stage == "gpu" else (Scope.REGISTER, Scope.FRAGMENT)
            )
            if buffer.scope not in in_registers:
                self.fail(45, f"{buffer.name} is not in registers", "a register buffer", buffer.scope.value)

    def _wait(self, pending: int, retires: tuple[Buffer, ...]) -> None:
        if pending < 0:
            self.fail(36, "a wait that leaves a negative number of groups", got=pending)
        for buffer in retires:
            self.context.check_buffer(buffer)

    # ---- cp.async

    def _copy(self, node: CpAsync) -> None:
        self._shared(node.shared, 46, "the destination of cp.async")
        self.context.check_buffer(node.source)
        if node.source.scope is not Scope.GLOBAL:
            self.fail(46, "the source of cp.async is not in global memory", got=node.source.scope.value)
        if node.bytes not in COPY_BYTES or node.cache not in ("ca", "cg") or (node.cache == "cg" and node.bytes != 16):
            self.fail(46, "an impossible cp.async", "ca of 4, 8 or 16 bytes, cg of 16", f"{node.cache} of {node.bytes}")
        self._index(node.offset, 46, node.shared.name)
        self._index(node.index, 46, node.source.name)
        if node.valid_bytes is not None:
            self.expressions.check_typed(node.valid_bytes, (int32,), 46, "the valid bytes of cp.async")

    def _copy_wait(self, node: CpAsyncWaitGroup) -> None:
        self._wait(node.pending, node.retires)

    # ---- clusters

    def cluster_size(self) -> int:
        return prod(self.context.kernel.cluster) if self.context.kernel is not None else 1

    def multicast(self, mask: int | Expr) -> None:
        """The mask of CTAs of a TMA load."""
        if isinstance(mask, Expr):
            self.expressions.check_typed(mask, (int32,), 47, "a multicast mask")
        value = constant_value(mask)
        if value is not None and not 0 < value < 1 << self.cluster_size():
            self.fail(47, "a multicast to CTAs that the cluster lacks", f"a mask of {self.cluster_size()} CTAs", value)

    def _arrive_remote(self, node: MbarrierArriveRemote) -> None:
        self.barrier(node)
        self.expressions.check_typed(node.cta, (int32,), 47, "the rank of a CTA")
        rank = constant_value(node.cta)
        if rank is not None and not 0 <= rank < self.cluster_size():
            self.fail(47, "an arrival in a CTA that the cluster lacks", f"0 to {self.cluster_size() - 1}", rank)


def operand_dtypes(dtype: DType) -> tuple[str, ...]:
    """Element types of registers that an operand of ``dtype`` can stand in."""
    return ("tfloat32", "float32") if dtype.name == "tfloat32" else (dtype.name,)
