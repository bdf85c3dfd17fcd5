"""Roles, barriers and TMA copies by hand, persistent loops, the order of blocks, safe values, warps, inline PTX."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-8, 9, shape)).to(dtype)


# --- roles ----------------------------------------------------------------------------------------------------------


@ptxtile.jit
def ring(A, C, stages=2, groups=1, registers=True):
    """The tiles of a column are added up by ``groups`` warpgroups, and loaded by one more through a ring of stages."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    C: T.Tensor((64, N), T.float32)
    consumers = 128 * groups
    with T.Kernel(N // 64, threads=consumers + 128) as bx:
        S = T.alloc_shared((stages, 64, 64), T.float32)
        full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([consumers] * stages)
        with T.ws(groups):
            if registers:
                T.dec_max_nreg(40)
            for k in range(M // 64):
                T.barrier_wait(empty[k % stages], ((k // stages) & 1) ^ 1)
                T.tma_copy(A[k * 64, bx * 64], S[k % stages, :, :], barrier=full[k % stages])
                if T.shuffle_elect(128):
                    T.barrier_arrive(full[k % stages])
        with T.ws(*range(groups)):
            if registers:
                T.inc_max_nreg(200 if groups == 1 else 160)
            total = T.alloc_fragment((64, 64), T.float32)
            T.clear(total)
            for k in range(M // 64):
                T.mbarrier_wait_parity(full[k % stages], k // stages)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += S[k % stages, i, j]
                T.mbarrier_arrive(empty[k % stages])
            T.copy(total, C[0, bx * 64])


@cases(CASES, card=True, rows=[{"stages": s, "groups": g, "tiles": t} for s, g, t in
       ((1, 1, 3), (2, 1, 1), (2, 1, 5), (3, 2, 7), (4, 1, 4), (3, 1, 0))])  # fmt: skip
def rings(generator, stages, groups, tiles):
    a = integers(generator, (64 * tiles, 128))
    expected = a.reshape(tiles, 64, 128).sum(0)
    blank = torch.full((64, 128), 9.0)
    return Call(lambda *args: ring(*args, stages=stages, groups=groups), (a, blank), changes={1: expected})


@ptxtile.jit
def multiply(A, B, C, stages=2):
    """A gemm whose loads and tensor-core work are roles by hand."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((K, N), T.bfloat16)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(N // 128, M // 128, threads=256) as (bx, by):
        left, right = T.alloc_shared((stages, 128, 64), T.bfloat16), T.alloc_shared((stages, 64, 128), T.bfloat16)
        full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([128] * stages)
        with T.ws(1):
            T.dec_max_nreg(40)
            for k in range(K // 64):
                T.barrier_wait(empty[k % stages], ((k // stages) & 1) ^ 1)
                T.tma_copy(A[by * 128, k * 64], left[k % stages, :, :], barrier=full[k % stages])
                T.tma_copy(B[k * 64, bx * 128], right[k % stages, :, :], barrier=full[k % stages])
                if T.shuffle_elect(128):
                    T.barrier_arrive(full[k % stages])
        with T.ws(0):
            T.inc_max_nreg(240)
            total = T.alloc_fragment((128, 128), T.float32)
            T.clear(total)
            for k in range(K // 64):
                T.barrier_wait(full[k % stages], (k // stages) & 1)
                T.gemm(left[k % stages, :, :], right[k % stages, :, :], total)
                T.barrier_arrive(empty[k % stages])
            T.copy(total, C[by * 128, bx * 128])


@cases(CASES, card=True, stages=[2, 3])
def gemm_by_hand(generator, stages):
    a, b = integers(generator, (128, 320), torch.bfloat16), integers(generator, (320, 256), torch.bfloat16)
    c = torch.zeros(128, 256)
    return Call(lambda *args: multiply(*args, stages=stages), (a, b, c), changes={2: a.float() @ b.float()})


@cases(CASES, card=True)
def roles_of_generic_accesses(generator):
    """One warpgroup writes tiles with ordinary stores, another one reads them; no TMA."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((4, 1024), T.float32)
        B: T.Tensor((4, 1024), T.float32)
        with T.Kernel(1, threads=256):
            S = T.alloc_shared((1024,), T.float32)
            full, empty = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                for k in range(4):
                    T.barrier_wait(empty, (k & 1) ^ 1)
                    for i in T.Parallel(1024):
                        S[1023 - i] = A[k, i] * 2
                    T.barrier_arrive(full)
            with T.ws(1):
                for k in range(4):
                    T.barrier_wait(full, k & 1)
                    for i in T.Parallel(1024):
                        B[k, i] = S[i] + 1
                    T.barrier_arrive(empty)

    a = integers(generator, (4, 1024))
    return Call(kernel, (a, torch.zeros(4, 1024)), changes={1: a.flip(1) * 2 + 1})


@cases(CASES, card=True, arrive=[False, True])
def named_barriers(generator, arrive):
    """Two warpgroups meet at named barriers, or one of them only arrives; in a role T.sync_threads is its own."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((256,), T.int32)
        B: T.Tensor((384,), T.int32)
        with T.Kernel(1, threads=256):
            S = T.alloc_shared((256,), T.int32)
            R = T.alloc_shared((128,), T.int32)
            tx = T.get_thread_binding()
            with T.ws(0):
                for i in T.Parallel(128):
                    S[i] = A[i] * 3
                    S[128 + i] = A[128 + i] * 5
                if arrive:
                    T.named_barrier_arrive(5, 256)
                else:
                    T.sync_threads(5, 256)
                R[127 - tx] = tx
                T.sync_threads()
                B[256 + tx] = R[tx]
            with T.ws(1):
                T.sync_threads(5, 256)
                for i in T.Parallel(256):
                    B[i] = S[255 - i]

    a = integers(generator, (256,), torch.int32)
    doubled = torch.cat([a[:128] * 3, a[128:] * 5])
    expected = torch.cat([doubled.flip(0), torch.arange(127, -1, -1).int()])
    return Call(kernel, (a, torch.zeros(384, dtype=torch.int32)), changes={1: expected})


@cases(CASES, card=True, wait_for_reads=[False, True])
def tma_by_hand(generator, wait_for_reads):
    """Loads onto one barrier, a store in its own group, no roles."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((128, 128), T.float16)
        B: T.Tensor((128, 128), T.float16)
        with T.Kernel(2, 2, threads=128) as (bx, by):
            S, R = T.alloc_shared((64, 64), T.float16), T.alloc_shared((64, 64), T.float16)
            ready = T.alloc_barrier(1)
            T.tma_copy(A[by * 64, bx * 64], S, barrier=ready)
            if T.shuffle_elect(0):
                T.barrier_arrive(ready)
            T.barrier_wait(ready, 0)
            for i, j in T.Parallel(64, 64):
                R[i, j] = S[i, j] * 2
            T.tma_copy(R, B[by * 64, bx * 64])
            if wait_for_reads:
                T.tma_store_wait()

    a = integers(generator, (128, 128), torch.float16)
    return Call(kernel, (a, torch.zeros(128, 128, dtype=torch.float16)), changes={1: a * 2})


@cases(CASES, card=True)
def expected_bytes(generator):
    """Bytes announced for several copies at once."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((128, 32), T.float32)
        B: T.Tensor((128, 32), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((2, 64, 32), T.float32)
            ready = T.alloc_barrier([1, 1])
            for half in range(2):
                T.tma_copy(A[half * 64, 0], S[half, :, :], barrier=ready[half])
                if T.get_thread_binding() == 0:
                    T.mbarrier_arrive_expect_tx(ready[half], 0)
            for half in range(2):
                T.barrier_wait(ready[half], 0)
                for i, j in T.Parallel(64, 32):
                    B[half * 64 + i, j] = S[half, 63 - i, j]

    a = integers(generator, (128, 32))
    return Call(kernel, (a, torch.zeros(128, 32)), changes={1: a.reshape(2, 64, 32).flip(1).reshape(128, 32)})


@cases(CASES, card=True)
def threads_meet(generator):
    """Per-thread code with T.sync_threads, in a loop, and with warps of its own."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((96,), T.int32)
        B: T.Tensor((96,), T.int32)
        with T.Kernel(1, threads=96):
            S = T.alloc_shared((96,), T.int32)
            tx = T.get_thread_binding()
            S[tx] = A[tx]
            T.sync_threads()
            for step in range(5):
                moved = S[(tx + 1) % 96]
                T.sync_threads()
                S[tx] = moved + step
                T.sync_threads()
            if tx < 64:
                T.sync_threads(2, 64)
            T.sync_warp()
            B[tx] = S[tx]

    a = integers(generator, (96,), torch.int32)
    return Call(kernel, (a, torch.zeros(96, dtype=torch.int32)), changes={1: torch.roll(a, -5) + 10})


# --- the order of blocks --------------------------------------------------------------------------------------------


@ptxtile.jit
def visited(C, order, panel=3, direction="row"):
    """Each block marks its place, and when it was launched."""
    M, N = T.const("M, N")
    C: T.Tensor((M, N), T.int32)
    order: T.Tensor((M, N), T.int32)
    with T.Kernel(N, M, threads=32) as (bx, by):
        T.use_swizzle(panel, order=direction)
        C[by, bx] += 1
        order[by, bx] = bx * 1000 + by


def panels(rows: int, columns: int, panel: int) -> list[tuple[int, int]]:
    """(row, column) in the order of launch: panels of rows, column by column, there and back."""
    found = []
    for number, start in enumerate(range(0, rows, panel)):
        through = range(columns) if number % 2 == 0 else range(columns - 1, -1, -1)
        found += [(row, column) for column in through for row in range(start, min(start + panel, rows))]
    return found


@cases(CASES, card=True, shape=[(7, 5), (8, 8), (1, 9), (9, 1)], panel=[1, 3, 4, 10],
       direction=["row", "column"])  # fmt: skip
def swizzles(generator, shape, panel, direction):
    rows, columns = shape
    place = torch.arange(columns)[None] * 1000 + torch.arange(rows)[:, None]
    changes = {0: torch.ones(shape, dtype=torch.int32), 1: place.int()}
    blank = torch.zeros(shape, dtype=torch.int32)
    return Call(lambda *args: visited(*args, panel=panel, direction=direction), (blank, blank.clone()), changes=changes)


@cases(CASES, card=True)
def swizzled_copies(generator):
    """The renumbered indices are still known to be in the grid: tiles by TMA and by vectors."""
    M, N = T.dynamic("M"), T.dynamic("N")

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((M, N), T.float32)
        B: T.Tensor((M, N), T.float32)
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
            T.use_swizzle(4)
            S = T.alloc_shared((32, 32), T.float32)
            T.copy(A[by * 32, bx * 32], S)
            for i, j in T.Parallel(32, 32):
                S[i, j] += 1
            T.copy(S, B[by * 32, bx * 32])

    a = integers(generator, (300, 136))
    return Call(kernel, (a, torch.zeros(300, 136)), changes={1: a + 1})


@cases(CASES, card=True, rows=[{"domain": d, "group": g, "blocks": b} for d, g, b in (
    ((10, 7), 4, 4), ((5, 5), 4, 3), ((3, 4, 6), 2, 7), ((9,), 8, 2), ((4, 4), 1, 20), ((2, 3, 2, 5), 3, 6)
)])  # fmt: skip
def persistent(generator, domain, group, blocks):
    """Every tile once, whatever the sizes; numbered as TileLang does where the group divides the last dimension."""

    @ptxtile.jit
    def kernel(A):
        A: T.Tensor(domain, T.int32)
        with T.Kernel(blocks, threads=32) as block:
            if len(domain) == 1:
                for i in T.Persistent(domain, blocks, block, group):
                    A[i] += i + 1
            elif len(domain) == 2:
                for i, j in T.Persistent(domain, blocks, block, group):
                    A[i, j] += i * 100 + j
            elif len(domain) == 3:
                for i, j, k in T.Persistent(domain, blocks, block, group):
                    A[i, j, k] += i * 100 + j * 10 + k
            else:
                for i, j, k, m in T.Persistent(domain, blocks, block, group):
                    A[i, j, k, m] += i * 1000 + j * 100 + k * 10 + m

    a = integers(generator, domain, torch.int32)
    grid = torch.meshgrid(*(torch.arange(n) for n in domain), indexing="ij")
    weights = {1: [1], 2: [100, 1], 3: [100, 10, 1], 4: [1000, 100, 10, 1]}[len(domain)]
    added = sum(w * g for w, g in zip(weights, grid, strict=True)) + (len(domain) == 1)
    return Call(kernel, (a,), changes={0: a + added.int()})


@cases(CASES, card=True)
def persistent_gather(generator):
    """What is carried through the rounds, and tile operations in them, with sizes known at launch."""
    M = T.dynamic("M")

    @ptxtile.jit
    def kernel(A, B, count):
        A: T.Tensor((M, 64), T.float32)
        B: T.Tensor((M, 64), T.float32)
        count: T.Tensor((3,), T.int32)
        with T.Kernel(3, threads=64) as bx:
            seen = T.alloc_var(T.int32, 0)
            for i, j in T.Persistent([T.ceildiv(M, 16), 2], 3, bx, 2):
                tile = T.alloc_shared((16, 32), T.float32)
                T.copy(A[i * 16, j * 32], tile)
                for r, c in T.Parallel(16, 32):
                    tile[r, c] *= 2
                T.copy(tile, B[i * 16, j * 32])
                seen += 1
            count[bx] = seen

    a = integers(generator, (70, 64))
    return Call(kernel, (a, torch.zeros(70, 64), torch.zeros(3, dtype=torch.int32)),
                changes={1: a * 2, 2: torch.tensor([4, 3, 3], dtype=torch.int32)})  # fmt: skip


# --- annotations ----------------------------------------------------------------------------------------------------


@cases(CASES, card=True, value=[0.0, -1.5, float("-inf")], through=["shared", "fragment", "element"])
def safe_values(generator, value, through):
    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((30, 20), T.float32)
        B: T.Tensor((32, 32), T.float32)
        with T.Kernel(1, threads=64):
            T.annotate_safe_value({A: value})
            T.annotate_min_blocks_per_sm(2)
            if through == "element":
                for i, j in T.Parallel(32, 32):
                    B[i, j] = A[i, j]
            else:
                allocate = T.alloc_shared if through == "shared" else T.alloc_fragment
                tile = allocate((32, 32), "float32")
                T.copy(A[0, 0], tile)
                T.copy(tile, B)

    a = integers(generator, (30, 20))
    expected = torch.full((32, 32), value)
    expected[:30, :20] = a
    return Call(kernel, (a, torch.zeros(32, 32)), changes={1: expected})


@cases(CASES, card=True)
def assumptions_and_assertions(generator):
    n = T.dynamic("n")

    @ptxtile.jit
    def kernel(A, first: T.int32):
        A: T.Tensor((n,), T.float32)
        with T.Kernel(1, threads=64):
            T.assume(n % 4 == 0)
            T.assume(first >= 0)
            T.device_assert(first < n, "first is out of range")
            for i in T.Parallel(64):
                T.device_assert(i < 64)
                if first + i < n:
                    A[first + i] += 1

    a = integers(generator, (80,))
    expected = a.clone()
    expected[40:80] += 1
    return Call(lambda a: kernel(a, 40), (a,), changes={0: expected})


# --- warps and PTX --------------------------------------------------------------------------------------------------


@cases(CASES, card=True, dtype=[torch.float32, torch.int32, torch.float16, torch.int64, torch.uint8])
def warp_functions(generator, dtype):
    @ptxtile.jit
    def kernel(A, B, C, dtype=dtype):
        A: T.Tensor((64,), dtype)
        B: T.Tensor((6, 64), dtype)
        C: T.Tensor((5, 64), T.int64)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            x = A[tx]
            B[0, tx] = T.shfl_xor(x, 5)
            B[1, tx] = T.shfl_down(x, 2)
            B[2, tx] = T.shfl_up(x, 3)
            B[3, tx] = T.shfl_sync(x, 7)
            B[4, tx] = T.shfl_down(x, 1, width=8)
            B[5, tx] = T.shfl_sync(x, tx % 4, width=4)
            C[0, tx] = T.any_sync(x == A[3])
            C[1, tx] = T.all_sync(x < 100)
            C[2, tx] = T.cast(T.ballot(tx % 3 == 0), T.int64)
            C[3, tx] = T.get_lane_idx() * 100 + T.get_warp_idx() * 10 + T.get_warp_group_idx(32, 1)
            C[4, tx] = T.shuffle_elect(32)

    a = inputs.moderate(generator, (64,), dtype)
    lanes, t = a.reshape(2, 32), torch.arange(64)
    lane = t % 32
    segments = a.reshape(8, 8)

    def taken(source: torch.Tensor) -> torch.Tensor:
        return lanes[t // 32, source]

    b = torch.stack([
        taken(lane ^ 5), taken(torch.where(lane + 2 < 32, lane + 2, lane)),
        taken(torch.where(lane >= 3, lane - 3, lane)), taken(torch.full((64,), 7)),
        torch.cat([segments[:, 1:], segments[:, 7:]], 1).reshape(64), a[t // 4 * 4 + t % 4],
    ])  # fmt: skip
    same = lanes.double() == float(a[3])
    ballot = [sum(1 << k for k in range(32) if (32 * w + k) % 3 == 0) for w in range(2)]
    c = torch.stack([
        same.any(1).repeat_interleave(32), (lanes.double() < 100).all(1).repeat_interleave(32),
        torch.tensor(ballot).repeat_interleave(32), lane * 100 + t // 32 * 10 + t // 32, lane == 0,
    ])  # fmt: skip
    zeros = (torch.zeros(6, 64, dtype=dtype), torch.zeros(5, 64, dtype=torch.int64))
    return Call(kernel, (a, *zeros), changes={1: b, 2: c.long()})


@cases(CASES, card=True)
def inline_ptx(generator):
    """Single instructions, which the simulator knows too."""

    @ptxtile.jit
    def kernel(A, F, B, G):
        A: T.Tensor((64,), T.int32)
        F: T.Tensor((64,), T.float32)
        B: T.Tensor((4, 64), T.int32)
        G: T.Tensor((2, 64), T.float32)
        with T.Kernel(1, threads=64):
            y = T.alloc_var(T.int32, 0)
            for i in T.Parallel(64):
                B[0, i] = T.ptx("add.s32 $0, $1, $2;", T.int32, [A[i], 7])
                B[1, i] = T.ptx("popc.b32 $0, $1;", T.int32, [A[i]])
                B[2, i] = T.ptx("mul.lo.s32 $0, $1, $1;", [T.int32], A[i])
                G[0, i] = T.ptx("max.f32 $0, $1, $2;", T.float32, [F[i], 0.5])
                G[1, i] = T.ptx("xor.b32 $0, $1, $2;", "float32", [F[i], T.uint32(1 << 31)])
            T.ptx("mov.b32 $0, $1;", [y], [41])
            B[3, 0] = y

    a, f = inputs.moderate(generator, (64,), torch.int32), inputs.moderate(generator, (64,))
    b = torch.zeros(4, 64, dtype=torch.int32)
    counts = torch.tensor([(int(x) & 0xFFFFFFFF).bit_count() for x in a])
    expected = torch.stack([a + 7, counts.int(), a * a, torch.zeros_like(a)])
    expected[3, 0] = 41
    return Call(kernel, (a, f, b, torch.zeros(2, 64)), changes={2: expected, 3: torch.stack([f.clamp(min=0.5), -f])})
