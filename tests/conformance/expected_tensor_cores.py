"""What the programs of tensor cores, cp.async, clusters and warps leave in their tensors (see expected.py)."""

from __future__ import annotations

import torch

from tests.conformance.expected import Tensors, expects, wrap


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


# --- matrices --------------------------------------------------------------------------------------------------------


def matrices_of(a: torch.Tensor) -> torch.Tensor:
    """[warp, matrix, row, 8] of the rows that the threads of two warps name, in order."""
    return a.reshape(2, 4, 8, 8)


def fragments_of(matrices: torch.Tensor, count: int, transposed: bool) -> torch.Tensor:
    """[warp, thread, 2 · count]: thread t's part of each of the first ``count`` matrices."""
    result = torch.zeros(2, 32, 2 * count, dtype=matrices.dtype)
    for matrix in range(count):
        for thread in range(32):
            for element in range(2):
                row, column = thread // 4, 2 * (thread % 4) + element
                if transposed:
                    row, column = column, row
                result[:, thread, 2 * matrix + element] = matrices[:, matrix, row, column]
    return result


@expects
def load_matrix(A, B, C, D) -> Tensors:
    found = matrices_of(A)
    ways = [(count, transposed) for count in (1, 2, 4) for transposed in (False, True)]
    for position, (count, transposed) in enumerate(ways):
        B[position, :, : 2 * count] = fragments_of(found, count, transposed).reshape(64, -1)
    whole, turned = (fragments_of(found, 4, transposed).reshape(64, 8).contiguous() for transposed in (False, True))
    return {"B": B, "C": whole.view(torch.int8), "D": turned.view(torch.int32)}


@expects
def store_matrix(A, B) -> Tensors:
    registers = A.reshape(2, 32, 8)
    B[:] = -7
    ways = [(1, False, 1), (1, True, 2), (2, False, 2), (2, True, 0)] + [(4, False, 0), (4, True, 0)] * 2
    for region, (count, transposed, first) in enumerate(ways):
        for matrix in range(count):
            for thread in range(32):
                for element in range(2):
                    row, column = thread // 4, 2 * (thread % 4) + element
                    if transposed:
                        row, column = column, row
                    place = (8 * matrix + row) ^ 5  # lane 8 · matrix + row gives the address of that row
                    B[region, :, place, column] = registers[:, thread, 2 * (first + matrix) + element]
    return {"B": B}


@expects
def mma_sync(A, B, C) -> Tensors:
    return {"C": product(A, B.T)}


@expects
def wgmma(A, B, C) -> Tensors:
    return {"C": product(A, B.T)}


@expects
def gemm_cluster(A, B, C) -> Tensors:
    return {"C": product(A, B.T)}


@expects
def wgmma_wait_group(A, B, C) -> Tensors:
    return {"C": product(A.T, B)}


@expects
def wgmma_commit_group(A, B, E, C, D) -> Tensors:
    return {"C": product(A, B.T), "D": product(A, E[:, :40])}


@expects
def wgmma_fence(A, B, E, C) -> Tensors:
    first = C + product((A.float() + 1).bfloat16(), B.T)
    return {"C": first * 0.5 + product((A.float() * 2).bfloat16(), E.T)}


# --- cp.async --------------------------------------------------------------------------------------------------------


@expects
def cp_async(A, B) -> Tensors:
    flat, source = B.reshape(8, 256), A.tolist() + [0] * 512
    flat[:] = -1
    as_bytes = A.view(torch.uint8)
    for t in range(64):
        flat[0, t] = source[511 - t]
        flat[1, 2 * t : 2 * t + 2] = A[2 * t : 2 * t + 2]
        flat[2, (t ^ 3) * 4 : (t ^ 3) * 4 + 4] = A[4 * t : 4 * t + 4]
        flat[3, 4 * t : 4 * t + 4] = A[(63 - t) * 8 : (63 - t) * 8 + 4]
        flat[4, t] = source[480 + t] if t < 32 else 0
        flat[5, 2 * t : 2 * t + 2] = torch.tensor([source[2 * t + i] if i < t % 3 else 0 for i in range(2)])
        part = torch.zeros(16, dtype=torch.uint8)
        part[: t % 17] = as_bytes[16 * t : 16 * t + t % 17]
        flat[6, 4 * t : 4 * t + 4] = part.view(torch.int32)
        flat[7, 4 * t : 4 * t + 4] = torch.tensor(source[300 + 4 * t : 304 + 4 * t], dtype=torch.int64).int()
    return {"B": flat}


@expects
def cp_async_commit_group(A, B) -> Tensors:
    B[0], B[1], B[2] = A[0] + A[1], A[0].flip(0), A[2].flip(0)
    B[3] = A[3].reshape(32, 2).flip(1).reshape(-1)
    return {"B": B}


@expects
def cp_async_wait_group(A, B) -> Tensors:
    return {"B": A.flip(1)}


@expects
def cp_async_mbarrier_arrive(A, B) -> Tensors:
    return {"B": A.flip(1)}


# --- clusters --------------------------------------------------------------------------------------------------------


@expects
def cluster_arrive(A, W, B) -> Tensors:
    written = A + torch.arange(8, dtype=torch.int32)[:, None]
    other = written.reshape(4, 2, 64).flip(1).reshape(8, 64).flip(1)
    W[:, :32], W[:, 32:] = 7, torch.arange(32, 64, dtype=torch.int32)
    return {"W": W, "B": other * 2 + A.reshape(8, 32, 2).flip(2).reshape(8, 64)}


@expects
def cluster_wait(A, W) -> Tensors:
    W[0] = A
    for i in range(3):
        for x in range(4):
            for y in range(4):
                one, two = W[i, (y ^ i % 2) * 4 + (x ^ 1)], W[i, (y ^ 1) * 4 + x]
                W[i + 1, y * 4 + x] = one.reshape(16, 2).flip(1).reshape(-1) + two
    return {"W": W}


@expects
def mbarrier_arrive_remote(W, B) -> Tensors:
    return {"B": torch.arange(8, dtype=torch.int32)[:, None] * 100 + torch.arange(32, dtype=torch.int32)[None, :]}


@expects
def tma_multicast(A, B) -> Tensors:
    square, cube = A.reshape(32, 32), A.reshape(8, 8, 16)
    four, five = A.reshape(4, 4, 8, 8), A.reshape(2, 4, 4, 4, 8)
    for cta in range(4):
        even, odd, other = cta // 2 * 2, cta // 2 * 2 + 1, cta ^ 1
        boxes = (
            A[even * 64 + 4 : even * 64 + 68],
            square[even + 3 : even + 7, 8:24],
            cube[odd : odd + 2, 2:6, 4:12],
            four[1:3, 2:4, 1:5, 4:8],
            five[0:2, 2:4, 1:3, 2:4, 0:4],
            square[other * 4 + 8 : other * 4 + 12, 16:32],
            square[cta * 4 + 8 : cta * 4 + 12, 0:16],
        )
        B[cta] = torch.cat([box.reshape(-1) for box in boxes])
    return {"B": B}


# --- warps -----------------------------------------------------------------------------------------------------------


def segment(lane: int, width: int) -> tuple[int, int]:
    """First and last lane of a lane's segment."""
    return lane // width * width, lane // width * width + width - 1


@expects
def shuffle(A, L, B, H, G, D, E, P, Q, F) -> Tensors:
    a = A.tolist()
    for t in range(64):
        warp, lane, n = t // 32 * 32, t % 32, L[t].item() & 31

        def moved(source: int, width: int, lane: int = lane, warp: int = warp) -> int:
            first, last = segment(lane, width)
            return warp + (source if first <= source <= last else lane)

        first8, _ = segment(lane, 8)
        B[0, t] = a[warp + n]
        B[1, t] = a[warp + first8 + n % 8]
        B[2, t] = a[warp + (lane ^ 21)]
        beyond = (lane ^ n) > segment(lane, 8)[1]  # shfl's xor only looks at the segment's end
        B[3, t] = wrap(a[warp + (lane if beyond else lane ^ n)] * 3)
        B[4, t] = a[moved(lane - n, 32)]
        B[5, t] = a[moved(lane - 3, 8)]
        B[6, t] = a[moved(lane + n, 32)]
        B[7, t] = a[moved(lane + 3, 8)]
        B[8, t] = a[t]
        B[9, t] = wrap(sum(a[warp : warp + 32]))
        G[t], E[t], Q[t], F[t] = H[t ^ 1], D[t ^ 2], P[t ^ 4], A[t ^ 8] > 0
    return {"B": B, "G": G, "E": E, "Q": Q, "F": F}


@expects
def vote(A, B, C) -> Tensors:
    holds = (A > 0).reshape(2, 32)
    ballot = [sum(int(bit) << lane for lane, bit in enumerate(row.tolist())) for row in holds]
    B[0] = torch.tensor([ballot[0]] * 32 + [ballot[1]] * 32, dtype=torch.int64).to(torch.uint32)
    B[1] = torch.tensor([0xFFFFFFFF] * 32 + [0xFF] * 32, dtype=torch.int64).to(torch.uint32)
    by_warp = [(False, True), tuple(holds.any(1).tolist()), tuple(holds.all(1).tolist()), (True, False), (True, False),
               (False, False)]  # fmt: skip
    for row, (first, second) in enumerate(by_warp):
        C[row, :32], C[row, 32:] = first, second
    return {"B": B, "C": C}


@expects
def sync_warp(A, B) -> Tensors:
    values = A.reshape(2, 32)
    for _ in range(5):
        values = values + values.roll(-1, 1)
    return {"B": values.reshape(-1)}


@expects
def elect_one(A, B) -> Tensors:
    return {"B": B + 3 * A}
