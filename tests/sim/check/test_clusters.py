"""CTAs of a cluster: remote arrivals, multicast, and CTAs that end while others still need their shared memory.

PTX ISA, «barrier.cluster», «mapa», «cp.async.bulk.tensor» (multicast): a remote address is valid once its CTA has
started and until it ends, so a cluster barrier stands before the first and behind the last remote access.
"""

# ruff: noqa: E501  (lines of IR text)

from __future__ import annotations

import pytest

from tests.sim.check.faults import Pair, expect

TENSORS = """
    A = tensor(int32, (256,))
    B = tensor(int32, (256,))
    TensorMapRecord(name="A_map", tensor="A", dtype="int32", dimensions=(256,), strides=(), box=(64,))
"""
S = "S = allocate_shared(int32, (128,), storage_offset=0, storage_alignment=128)"
BARS = "full = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=1024)"
MEET = "cluster_arrive()\n        cluster_wait()"

PAIRS = {
    "a remote arrival before the init is known": Pair("uninitialised", r"full\[0\]", f"""
        {BARS}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=2)
            fence_mbarrier_init()
        cluster_arrive()  # right
        cluster_wait()  # right
        bar_sync(id=0, threads=64)  # wrong
        if tx < 2:
            mbarrier_arrive_remote(barrier=full, index=0, cta=tx)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        {MEET}
        """, TENSORS, grid=2, cluster=2, also=("illegal", "deadlock", "race")),
    "a remote arrival without fence.mbarrier_init": Pair("missing fence", r"full\[0\].*fence.mbarrier_init", f"""
        {BARS}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=2)
            fence_mbarrier_init()  # right
        {MEET}
        if tx < 2:
            mbarrier_arrive_remote(barrier=full, index=0, cta=tx)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        {MEET}
        """, TENSORS, grid=2, cluster=2),
    "a CTA that ends before another one's arrival": Pair("unfinished", r"CTA \(0, 0, 0\) may end before", f"""
        {BARS}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            fence_mbarrier_init()
        {MEET}
        if bx % 2 == 1 and tx == 0:
            mbarrier_arrive_remote(barrier=full, index=0, cta=0)  # later
        cluster_arrive()  # right
        cluster_wait()  # right
        """, TENSORS, grid=2, cluster=2),
    "a multicast before the other CTA's init is known": Pair("uninitialised", r"full\[0\]", f"""
        {S}
        {BARS}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
        cluster_arrive()  # right
        cluster_wait()  # right
        bar_sync(id=0, threads=64)  # wrong
        if tx == 0 and bx % 2 == 0:
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0, multicast=3)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        B[bx * 64 + tx] = S[tx] if bx == 0 else 0
        {MEET}
        """, TENSORS, grid=2, cluster=2, also=("illegal", "deadlock", "race")),
    "a multicast into a stage that the other CTA still reads": Pair("race", r"S\[\d+\]", f"""
        {S}
        {BARS}
        empty = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1040)
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            mbarrier_init(barrier=empty, index=0, arrivals=64)  # wrong
            mbarrier_init(barrier=empty, index=0, arrivals=128)  # right
            fence_mbarrier_init()
        {MEET}
        for i in serial(0, 2):
            if tx == 0:
                mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            if tx == 0 and bx % 2 == 0:
                mbarrier_wait(barrier=empty, index=0, parity=i ^ 1)
                tma_load(tensor_map="A_map", coordinates=(i * 64,), shared=S, offset=0, barrier=full, index=0, multicast=3)  # later
            mbarrier_wait(barrier=full, index=0, parity=i)
            B[bx * 64 + tx] = S[63 - tx]  # earlier
            fence_proxy_async()
            mbarrier_arrive_remote(barrier=empty, index=0, cta=0)  # right
            if bx % 2 == 0:  # wrong
                mbarrier_arrive(barrier=empty, index=0)  # wrong
        {MEET}
        """, TENSORS, grid=2, cluster=2, also=("deadlock", "illegal", "stale wait")),
    "shared memory of a cluster, ordered by its barrier alone": Pair("race", r"\bB\b", f"""
        B[bx * 64 + tx] = A[tx]  # earlier
        cluster_arrive()  # right
        cluster_wait()  # right
        bar_sync(id=0, threads=64)  # wrong
        A[128 + bx * 64 + tx] = B[(1 - bx) * 64 + tx]  # later
        {MEET}
        """, TENSORS, grid=2, cluster=2),
    "arriving at the cluster's barrier without waiting": Pair("race", r"\bB\b", f"""
        B[bx * 64 + tx] = A[tx]  # earlier
        cluster_arrive()
        cluster_wait()  # right
        A[128 + bx * 64 + tx] = B[(1 - bx) * 64 + tx]  # later
        cluster_wait()  # wrong
        {MEET}
        """, TENSORS, grid=2, cluster=2),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    expect(PAIRS[name])
