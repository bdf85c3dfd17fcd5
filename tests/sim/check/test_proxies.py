"""The async proxy: TMA loads and stores, cp.async, and the fences between the proxies.

PTX ISA, «Async Proxy» and «membar/fence»: a proxy fence takes effect within its thread and composes with other
synchronization, so it has to stand on the way by which the earlier access comes before the later one: behind the write
in the writing thread, or behind a barrier in the thread that issues. Reads before a write of the other proxy count as
well as writes. cp.async (not bulk) is of the generic proxy. The completion of a bulk operation is followed by an
implicit fence, so who has waited for it needs none.
"""

# ruff: noqa: E501  (lines of IR text)

from __future__ import annotations

import pytest

from tests.sim.check.faults import Pair, expect

TENSORS = """
    A = tensor(int32, (256,))
    B = tensor(int32, (256,))
    TensorMapRecord(name="A_map", tensor="A", dtype="int32", dimensions=(256,), strides=(), box=(64,))
    TensorMapRecord(name="B_map", tensor="B", dtype="int32", dimensions=(256,), strides=(), box=(64,))
"""
SUMS = TENSORS.replace('"int32"', '"uint32"').replace("B = tensor(int32", "B = tensor(uint32")
S = "S = allocate_shared(int32, (128,), storage_offset=0, storage_alignment=128)"
FULL = "full = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=1024)"
INIT = """
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            mbarrier_init(barrier=full, index=1, arrivals=1)
            fence_mbarrier_init()
        bar_sync(id=0, threads=64)
"""
STORE = 'tma_store(tensor_map="B_map", coordinates=(0,), shared=S, offset=0)'
ENDED = """bulk_commit_group()
            bulk_wait_group(pending=0, read=True)"""

FENCES = {
    "no fence before a TMA store": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence in the thread that issues, behind the barrier": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        bar_sync(id=0, threads=64)
        if tx == 0:
            fence_proxy_async()  # right
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence in a thread that is not on the way": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        bar_sync(id=0, threads=64)
        if tx == 32:  # wrong
            fence_proxy_async()  # wrong
        if tx == 0:
            fence_proxy_async()  # right
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence of other writers": Pair("missing fence", r"S\[(3[2-9]|[45]\d|6[0-3])\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        if tx < 32:  # wrong
            fence_proxy_async()  # wrong
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence of one thread for its warp": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        if tx < 32:
            S[tx * 2] = A[tx]  # earlier
            S[tx * 2 + 1] = A[tx]
            if tx == 5:  # wrong
                fence_proxy_async()  # wrong
            fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence before the write": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        fence_proxy_async()  # wrong
        S[tx] = A[tx]  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence for the other state space": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        fence_proxy_async(space="global")  # wrong
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence but no barrier": Pair("race", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]
        bar_sync(id=0, threads=64)
        S[tx] = A[tx] + 1  # earlier
        fence_proxy_async()
        bar_sync(id=0, threads=64)  # right
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS, also=("illegal",)),
    "a generic write before a TMA load of the same bytes": Pair("missing fence", r"S\[\d+\]", f"""
        {S}
        {FULL}
        {INIT}
        S[tx] = A[tx]  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS),
    "a generic read before a TMA load to the same bytes": Pair("missing fence", r"S\[\d+\].*read by", f"""
        {S}
        {FULL}
        {INIT}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        B[tx] = S[63 - tx]  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS),
    "reads of a ring's stage before its release": Pair("missing fence", r"S\[\d+\].*read by", f"""
        {S}
        {FULL}
        empty = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1040)
        if tx == 0:
            mbarrier_init(barrier=empty, index=0, arrivals=1)
        {INIT}
        with specialized():
            with role("consumer", first_thread=0, threads=32):
                for i in serial(0, 3):
                    mbarrier_wait(barrier=full, index=0, parity=i % 2)
                    B[i * 64 + tx] = S[tx]  # earlier
                    fence_proxy_async()  # right
                    sync_warp()
                    if tx == 0:
                        mbarrier_arrive(barrier=empty, index=0)
            with role("producer", first_thread=32, threads=32):
                if tx == 32:
                    for j in serial(0, 3):
                        mbarrier_wait(barrier=empty, index=0, parity=j % 2 ^ 1)
                        mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
                        tma_load(tensor_map="A_map", coordinates=(j * 64,), shared=S, offset=0, barrier=full, index=0)  # later
        """, TENSORS),
    "global memory written before a TMA load of it": Pair("missing fence", r"\bA\b", f"""
        {S}
        {FULL}
        {INIT}
        A[tx] = tx  # earlier
        fence_proxy_async(space="global")  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS),
    "global memory of a bulk store read back without a fence": Pair("missing fence", r"\bB\b", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=0, read=False)
            fence_proxy_async(space="global")  # right
        bar_sync(id=0, threads=64)
        A[tx] = B[63 - tx]  # later
        """, TENSORS),
}  # fmt: skip


@pytest.mark.parametrize("name", FENCES)
def test_fences(name: str) -> None:
    expect(FENCES[name])


TMA = {
    "a TMA load that nobody waits for": Pair("race", r"S\[\d+\].*TMA load", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # earlier
        mbarrier_wait(barrier=full, index=0, parity=0)  # right
        bar_sync(id=0, threads=64)  # wrong
        B[tx] = S[tx]  # later
        mbarrier_wait(barrier=full, index=0, parity=0)  # wrong
        """, TENSORS),
    "a wait by another thread, without a barrier behind it": Pair("race", r"S\[\d+\]", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # earlier
        bar_sync(id=0, threads=64)
        if tx < 32:
            mbarrier_wait(barrier=full, index=0, parity=0)
        bar_sync(id=0, threads=64)  # right
        B[tx] = S[tx]  # later
        """, TENSORS),
    "a wait on the mbarrier of another load": Pair("race", r"S\[\d+\].*full\[0\]", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # earlier
            mbarrier_arrive_expect_tx(barrier=full, index=1, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(64,), shared=S, offset=64, barrier=full, index=1)
        mbarrier_wait(barrier=full, index=1, parity=0)
        mbarrier_wait(barrier=full, index=0, parity=0)  # right
        B[tx] = S[tx]  # later
        mbarrier_wait(barrier=full, index=0, parity=0)  # wrong
        """, TENSORS),
    "a stage loaded again while it is read": Pair("race", r"S\[\d+\]", f"""
        {S}
        {FULL}
        empty = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1040)
        if tx == 0:
            mbarrier_init(barrier=empty, index=0, arrivals=32)
        {INIT}
        with specialized():
            with role("consumer", first_thread=0, threads=32):
                mbarrier_wait(barrier=full, index=0, parity=0)
                B[tx] = S[tx]  # earlier
                fence_proxy_async()
                mbarrier_arrive(barrier=empty, index=0)
                mbarrier_wait(barrier=full, index=1, parity=0)
            with role("producer", first_thread=32, threads=32):
                if tx == 32:
                    mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
                    tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)
                    mbarrier_wait(barrier=empty, index=0, parity=0)  # right
                    mbarrier_wait(barrier=full, index=0, parity=0)  # wrong
                    mbarrier_arrive_expect_tx(barrier=full, index=1, bytes=256)
                    tma_load(tensor_map="A_map", coordinates=(64,), shared=S, offset=0, barrier=full, index=1)  # later
        """, TENSORS),
    "a stage released before it is read": Pair("race", r"S\[\d+\]", f"""
        {S}
        {FULL}
        empty = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1040)
        if tx == 0:
            mbarrier_init(barrier=empty, index=0, arrivals=32)
        {INIT}
        with specialized():
            with role("consumer", first_thread=0, threads=32):
                for i in serial(0, 3):
                    mbarrier_wait(barrier=full, index=0, parity=i % 2)
                    fence_proxy_async()  # wrong
                    mbarrier_arrive(barrier=empty, index=0)  # wrong
                    B[i * 64 + tx] = S[tx]  # earlier, later
                    fence_proxy_async()  # right
                    mbarrier_arrive(barrier=empty, index=0)  # right
            with role("producer", first_thread=32, threads=32):
                if tx == 32:
                    for j in serial(0, 3):
                        mbarrier_wait(barrier=empty, index=0, parity=j % 2 ^ 1)
                        mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
                        tma_load(tensor_map="A_map", coordinates=(j * 64,), shared=S, offset=0, barrier=full, index=0)  # later
        """, TENSORS),
    "two TMA loads to the same bytes": Pair("race", r"S\[\d+\].*TMA load", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)  # earlier
            mbarrier_wait(barrier=full, index=0, parity=0)  # right
            mbarrier_arrive_expect_tx(barrier=full, index=1, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(64,), shared=S, offset=32, barrier=full, index=1)  # later
        bar_sync(id=0, threads=64)
        mbarrier_wait(barrier=full, index=0, parity=0)
        mbarrier_wait(barrier=full, index=1, parity=0)
        """, TENSORS),
    "a box over the end of shared memory": Pair("illegal", r"A_map lies outside S", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=96, barrier=full, index=0)  # wrong, later
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=64, barrier=full, index=0)  # right
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS, also=("deadlock",)),
    "a box at an address that is no multiple of 128 bytes": Pair("illegal", r"misaligned|aligned|multiple of", f"""
        {S}
        {FULL}
        {INIT}
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=4, barrier=full, index=0)  # wrong, later
            tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=32, barrier=full, index=0)  # right
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS, also=("deadlock",)),
}  # fmt: skip


@pytest.mark.parametrize("name", TMA)
def test_tma(name: str) -> None:
    expect(TMA[name])


STORES = {
    "the source written again before wait_group.read": Pair("race", r"S\[\d+\].*TMA store", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)  # right
        bar_sync(id=0, threads=64)
        S[tx] = A[tx] + 1  # later
        if tx == 0:  # wrong
            bulk_wait_group(pending=0, read=True)  # wrong
        """, TENSORS),
    "a wait that leaves the group pending": Pair("race", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=1, read=True)  # wrong
            bulk_wait_group(pending=0, read=True)  # right
        bar_sync(id=0, threads=64)
        S[tx] = A[tx] + 1  # later
        if tx == 0:
            bulk_wait_group(pending=0, read=True)
        """, TENSORS),
    "a store that was not committed before the wait": Pair("race", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()  # right
            bulk_wait_group(pending=0, read=True)
        bar_sync(id=0, threads=64)
        S[tx] = A[tx] + 1  # later
        if tx == 0:
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)
        """, TENSORS),
    "a wait by a thread that did not issue": Pair("race", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)  # right
        if tx == 1:  # wrong
            bulk_wait_group(pending=0, read=True)  # wrong
        bar_sync(id=0, threads=64)
        S[tx] = A[tx] + 1  # later
        if tx == 0:
            bulk_wait_group(pending=0, read=True)
        """, TENSORS),
    "global memory read back after wait_group.read alone": Pair("race", r"\bB\b.*TMA store", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)  # wrong
            bulk_wait_group(pending=0, read=False)  # right
            fence_proxy_async(space="global")
        bar_sync(id=0, threads=64)
        A[tx] = B[63 - tx]  # later
        """, TENSORS),
    "stores of two CTAs to the same bytes": Pair("race", r"TMA store.*\bB\b", f"""
        {S.replace("int32", "uint32")}
        S[tx] = cast(A[tx], uint32)
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            tma_store(tensor_map="B_map", coordinates=(0,), shared=S, offset=0)  # wrong, earlier, later
            tma_store(tensor_map="B_map", coordinates=(0,), shared=S, offset=0, operator="add")  # right
            {ENDED}
        """, SUMS, grid=2),
    "a sum by TMA beside a store": Pair("race", r"TMA store.*\bB\b", f"""
        {S.replace("int32", "uint32")}
        S[tx] = cast(A[tx], uint32)
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0 and bx == 0:
            tma_store(tensor_map="B_map", coordinates=(0,), shared=S, offset=0, operator="add")  # earlier, later
            {ENDED}
        if tx == 0 and bx == 1:
            tma_store(tensor_map="B_map", coordinates=(32,), shared=S, offset=0)  # wrong, earlier, later
            tma_store(tensor_map="B_map", coordinates=(64,), shared=S, offset=0)  # right
            {ENDED}
        """, SUMS, grid=2),
    "two stores to the same bytes": Pair("race", r"\bB\b", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # earlier
            bulk_commit_group()
            bulk_wait_group(pending=0, read=False)  # right
            fence_proxy_async(space="global")  # right
            tma_store(tensor_map="B_map", coordinates=(32,), shared=S, offset=0)  # later
            {ENDED}
        """, TENSORS),
    "a CTA that ends while its store reads shared memory": Pair("unfinished", r"CTA.*TMA store of thread 0.*may still read its shared memory", f"""
        {S}
        S[tx] = A[tx]
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)  # right
        """, TENSORS),
    "a store of bytes that nobody wrote": Pair("uninitialised", r"S\[6[0-3]\]", f"""
        {S}
        if tx < 60:  # wrong
            S[tx] = A[tx]  # wrong
        S[tx] = A[tx]  # right
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_stores(name: str) -> None:
    expect(STORES[name])


COPY = "cp_async(shared=S, offset=tx, source=A, index=tx, bytes=4)"
COPIES = {
    "cp.async read before the wait": Pair("race", r"S\[\d+\].*cp.async", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        cp_async_wait_group(pending=0)  # right
        B[tx] = S[tx]  # later
        cp_async_wait_group(pending=0)
        """, TENSORS, also=("uninitialised",)),
    "cp.async waited for, but without a barrier for the others": Pair("race", r"S\[\d+\].*cp.async", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        cp_async_wait_group(pending=0)
        bar_sync(id=0, threads=64)  # right
        B[tx] = S[63 - tx]  # later
        """, TENSORS, also=("uninitialised",)),
    "a barrier before the wait": Pair("race", r"S\[\d+\]", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        bar_sync(id=0, threads=64)  # wrong
        cp_async_wait_group(pending=0)
        bar_sync(id=0, threads=64)  # right
        B[tx] = S[63 - tx]  # later
        """, TENSORS, also=("uninitialised",)),
    "a wait for too few groups": Pair("race", r"S\[\d+\]", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        cp_async(shared=S, offset=64 + tx, source=A, index=64 + tx, bytes=4)
        cp_async_commit_group()
        cp_async_wait_group(pending=2)  # wrong
        cp_async_wait_group(pending=1)  # right
        bar_sync(id=0, threads=64)
        B[tx] = S[63 - tx]  # later
        cp_async_wait_group(pending=0)
        """, TENSORS, also=("uninitialised",)),
    "a copy outside of the group that is waited for": Pair("race", r"S\[\d+\]", f"""
        {S}
        cp_async_commit_group()  # wrong
        {COPY}  # earlier
        cp_async_commit_group()  # right
        cp_async_wait_group(pending=0)
        bar_sync(id=0, threads=64)
        B[tx] = S[63 - tx]  # later
        cp_async_commit_group()
        cp_async_wait_group(pending=0)
        """, TENSORS, also=("uninitialised",)),
    "a stage read while cp.async fills it again": Pair("race", r"S\[\d+\]", f"""
        {S}
        for i in serial(0, 3):
            {COPY}  # later
            cp_async_commit_group()
            cp_async_wait_group(pending=0)
            bar_sync(id=0, threads=64)
            B[tx] = S[63 - tx]  # earlier
            bar_sync(id=0, threads=64)  # right
        """, TENSORS),
    "cp.async, then TMA, without a proxy fence": Pair("missing fence", r"S\[\d+\].*cp.async", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        cp_async_wait_group(pending=0)
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "a fence before cp.async is done": Pair("missing fence", r"S\[\d+\].*cp.async", f"""
        {S}
        {COPY}  # earlier
        cp_async_commit_group()
        fence_proxy_async()  # wrong
        cp_async_wait_group(pending=0)
        fence_proxy_async()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            {STORE}  # later
            {ENDED}
        """, TENSORS),
    "cp.async told by an mbarrier": Pair("race", r"S\[\d+\].*cp.async", f"""
        {S}
        {FULL}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=32)
        bar_sync(id=0, threads=64)
        if tx < 32:
            {COPY}  # earlier
            cp_async_mbarrier_arrive(barrier=full, index=0)  # right
            mbarrier_arrive(barrier=full, index=0)  # wrong
        else:
            mbarrier_wait(barrier=full, index=0, parity=0)
            B[tx] = S[63 - tx]  # later
        """, TENSORS, also=("unfinished",)),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    expect(COPIES[name])
