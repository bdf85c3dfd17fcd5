"""GPU ops of the tensor cores: ldmatrix, stmatrix, mma.sync, wgmma, and the shapes that each takes (PTX ISA 9.0
numbering).

Fragments are typed: an operand in registers is a REGISTER buffer of the operand's own element type, and a thread's
elements stand in it in the manual's order a0, a1, …; the emitter packs consecutive elements into 32-bit registers, two
of 16 bits or four of 8 bits. A tfloat32 fragment is a buffer of float32 (or tfloat32), of which the hardware ignores
the lowest 13 bits. Offsets into registers count elements and are constants once unrolled loops are expanded.

An op of this file is run by whole warps (ldmatrix, stmatrix, mma.sync) or whole warpgroups of 128 consecutive threads
(wgmma), each on its own.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Const, Expr, binary, cast, constant
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.types import DType, bool_, uint64
from ptxtile.records import record

WARP, WARPGROUP = 32, 128
ALWAYS = Const(True, bool_)


@record
class LoadMatrix(GpuOp):
    """ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 (9.7.14.5.15): ``count`` (1, 2, 4) matrices of 8 rows of 16 bytes.

    ``offset`` is, in each thread, the element offset into ``shared`` of one row: threads 8·q to 8·q + 7 of the warp
    give the rows of matrix q (other threads' offsets do not matter). Thread t gets of each matrix, in order, the 4
    bytes from 4·(t % 4) on of row t // 4; ``transposed``: the 16-bit elements t // 4 of rows 2·(t % 4) and 2·(t % 4) +
    1. ``destination``: a REGISTER buffer of 8-, 16- or 32-bit elements, 4 bytes for each matrix.
    """

    destination: Buffer
    destination_offset: Expr
    shared: Buffer
    offset: Expr
    count: int
    transposed: bool = False


@record
class StoreMatrix(GpuOp):
    """stmatrix.sync.aligned.m8n8.x{count}.shared.b16 (9.7.14.5.16): the inverse of :class:`LoadMatrix`."""

    source: Buffer
    source_offset: Expr
    shared: Buffer
    offset: Expr
    count: int
    transposed: bool = False


@record
class MmaSync(GpuOp):
    """mma.sync.aligned.m{m}n{n}k{k}.row.col (9.7.14.5.14): accumulator += A · B, for the shapes of :data:`MMA_SHAPES`.

    Fragments of thread t, with g = t // 4, q = t % 4 and p elements in a 32-bit register (1 for 64-bit ones): register
    r of A holds row g + 8·(r % 2), columns 4·p·(r // 2) + p·q + {0 … p−1} (m8n8k4: row g, column q); register r of B
    holds rows 4·p·r + p·q + {0 … p−1} of column g; element i of the accumulator is row g + 8·(i // 2), column
    2·q + i % 2. Integer sums wrap.
    """

    accumulator: Buffer
    accumulator_offset: Expr
    a: Buffer
    a_offset: Expr
    b: Buffer
    b_offset: Expr
    m: int
    n: int
    k: int
    dtype_a: DType
    dtype_b: DType

    @property
    def dtype_accumulator(self) -> DType:
        return self.accumulator.dtype


@record
class WgmmaFence(GpuOp):
    """wgmma.fence.sync.aligned (9.7.15.7.1): before the first :class:`Wgmma`, and whenever registers that it uses were
    written since."""


@record
class Wgmma(GpuOp):
    """wgmma.mma_async.sync.aligned.m64n{n}k{k} (9.7.15.5.2): accumulator = A · B (+ accumulator where ``accumulate``).

    A (64 × k) comes from shared memory through ``descriptor_a`` or from registers ``a``; B (k × n) from shared memory.
    The descriptors are uint64 (:func:`matrix_descriptor`), the same in all threads of the warpgroup; ``shared_a`` and
    ``shared_b`` name what they point into. ``transpose_a``/``transpose_b``: the operand is M-major or N-major in shared
    memory, for 16-bit elements only. ``accumulate`` is one bool for the warpgroup.

    It runs asynchronously, in the async proxy: shared memory and the registers of ``a`` must stay as they are, and the
    accumulator is not to be touched, until a :class:`WgmmaWaitGroup`. Element i of the accumulator in thread t of the
    warpgroup: row 16·(t // 32) + t % 32 // 4 + 8·(i // 2 % 2), column 8·(i // 4) + 2·(t % 4) + i % 2. Register r of A:
    as for :class:`MmaSync`, warp w having the rows from 16·w.
    """

    accumulator: Buffer
    accumulator_offset: Expr
    n: int
    k: int
    dtype_a: DType
    dtype_b: DType
    shared_b: Buffer
    descriptor_b: Expr
    shared_a: Buffer | None = None
    descriptor_a: Expr | None = None
    a: Buffer | None = None
    a_offset: Expr | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    accumulate: Expr = ALWAYS

    @property
    def dtype_accumulator(self) -> DType:
        return self.accumulator.dtype


@record
class WgmmaCommitGroup(GpuOp):
    """wgmma.commit_group.sync.aligned (9.7.15.7.2)."""


@record
class WgmmaWaitGroup(GpuOp):
    """wgmma.wait_group.sync.aligned (9.7.15.7.3): at most ``pending`` groups of the warpgroup remain unfinished.

    ``accumulators``: REGISTER buffers that go through the wait, so that nothing reads them before it; all of those that
    groups under way write. ``fragments``: A operands in registers, which must live until here. ``retires``: the shared
    buffers whose reads this wait completes.
    """

    pending: int
    accumulators: tuple[Buffer, ...] = ()
    retires: tuple[Buffer, ...] = ()
    fragments: tuple[Buffer, ...] = ()


# --- shapes ----------------------------------------------------------------------------------------------------------

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_BYTES = ("int8", "uint8")

MMA_SHAPES: dict[tuple[str, str, str], tuple[tuple[int, int, int], ...]] = {
    ("float16", "float16", "float16"): ((16, 8, 8), (16, 8, 16)),
    ("float16", "float16", "float32"): ((16, 8, 8), (16, 8, 16)),
    ("bfloat16", "bfloat16", "float32"): ((16, 8, 8), (16, 8, 16)),
    ("tfloat32", "tfloat32", "float32"): ((16, 8, 4), (16, 8, 8)),
    ("float64", "float64", "float64"): ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
    **{(a, b, "int32"): ((16, 8, 16), (16, 8, 32)) for a in _BYTES for b in _BYTES},
    **{(a, b, "float32"): ((16, 8, 32),) for a in _FLOAT8 for b in _FLOAT8},
}
"""Shapes (m, n, k) of mma.sync by element types of A, B and the accumulator (9.7.14.5, tables of fragments)."""

_HALF_SHAPES = tuple(range(8, 257, 8))
_BYTE_SHAPES = (8, 16, 24, *range(32, 257, 16))

WGMMA_SHAPES: dict[tuple[str, str, str], tuple[int, tuple[int, ...]]] = {
    ("float16", "float16", "float16"): (16, _HALF_SHAPES),
    ("float16", "float16", "float32"): (16, _HALF_SHAPES),
    ("bfloat16", "bfloat16", "float32"): (16, _HALF_SHAPES),
    ("tfloat32", "tfloat32", "float32"): (8, _HALF_SHAPES),
    **{(a, b, d): (32, _HALF_SHAPES) for a in _FLOAT8 for b in _FLOAT8 for d in ("float16", "float32")},
    **{(a, b, "int32"): (32, _BYTE_SHAPES) for a in _BYTES for b in _BYTES},
}
"""k and the possible n of wgmma by element types of A, B and the accumulator (9.7.15.5.2)."""


def fragment_elements(op: MmaSync | Wgmma) -> tuple[int, int, int]:
    """A thread's elements of A, B and the accumulator (for wgmma, B is never in registers)."""
    if isinstance(op, MmaSync):
        return op.m * op.k // WARP, op.k * op.n // WARP, op.m * op.n // WARP
    return 64 * op.k // WARPGROUP, 0, 64 * op.n // WARPGROUP


def matrix_elements(op: LoadMatrix | StoreMatrix) -> int:
    """A thread's elements of the register buffer: 4 bytes for each matrix."""
    buffer = op.destination if isinstance(op, LoadMatrix) else op.source
    return op.count * 32 // buffer.dtype.bits


# --- descriptors -----------------------------------------------------------------------------------------------------

SWIZZLE_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
"""Bits 62 and 63 of a matrix descriptor by the swizzle's span in bytes (9.7.15.5.1.2.2, «Matrix Descriptor Format»)."""


def matrix_descriptor(address: Expr, leading_bytes: int, stride_bytes: int, swizzle: int) -> Expr:
    """The uint64 descriptor of a matrix in shared memory (9.7.15.5.1.2).

    ``address``: uint32, a :class:`~ptxtile.ir.expressions.SharedAddress`, 16-byte aligned; a swizzled tile starts at a
    multiple of 1024, 512 or 256 bytes, and a k step inside the swizzled row only adds its bytes to the address.
    K-major: ``stride_bytes`` from 8 rows to the next 8; ``leading_bytes`` from one 16-byte column to the next without a
    swizzle, unused (16) with one. M- or N-major: with a swizzle ``leading_bytes`` from one span of the swizzle to the
    next along M or N, ``stride_bytes`` from 8 rows of k to the next 8; without one, ``stride_bytes`` from one 16-byte
    piece of M or N to the next, ``leading_bytes`` from 8 rows of k to the next 8.
    """
    fixed = (leading_bytes >> 4 & 0x3FFF) << 16 | (stride_bytes >> 4 & 0x3FFF) << 32 | SWIZZLE_MODES[swizzle] << 62
    start = binary("shr", binary("and", address, 0x3FFFF), 4)
    return binary("or", cast(start, uint64), constant(fixed, uint64))


def advanced_descriptor(descriptor: Expr, bytes_: int) -> Expr:
    """``descriptor`` with ``bytes_`` (a multiple of 16) added to its start address."""
    return binary("add", descriptor, bytes_ >> 4) if bytes_ else descriptor
