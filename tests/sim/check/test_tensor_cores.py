"""wgmma: its registers and its operands in shared memory while it runs; ldmatrix.

PTX ISA, «Asynchronous Warpgroup Level Matrix Instructions»: wgmma.fence orders register accesses before
wgmma.mma_async; accumulator and register operands may not be touched until wgmma.wait_group has waited for the group;
operands in shared memory are read in the async proxy.
"""

# ruff: noqa: E501  (lines of IR text)

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.check.faults import Pair, expect

TENSORS = """
    A = tensor(bfloat16, (64, 128))
    B = tensor(bfloat16, (8, 128))
    C = tensor(float32, (64, 8))
    TensorMapRecord(name="A_map", tensor="A", dtype="bfloat16", dimensions=(128, 64), strides=(256,), box=(64, 64), swizzle=128)
    TensorMapRecord(name="B_map", tensor="B", dtype="bfloat16", dimensions=(128, 8), strides=(256,), box=(64, 8), swizzle=128)
"""
START = """
    A_shared = allocate_shared(bfloat16, (8192,), storage_offset=0, storage_alignment=1024)
    B_shared = allocate_shared(bfloat16, (1024,), storage_offset=16384, storage_alignment=1024)
    full = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=18432)
    acc = allocate_register(float32, (4,))
    a = allocate_register(bfloat16, (8,))
    if tx == 0:
        for b in unrolled(0, 2):
            mbarrier_init(barrier=full, index=b, arrivals=1)
        fence_mbarrier_init()
    bar_sync(id=0, threads=128)
    if tx == 0:
        for p in unrolled(0, 2):
            mbarrier_arrive_expect_tx(barrier=full, index=p, bytes=9216)
            tma_load(tensor_map="A_map", coordinates=(p * 64, 0), shared=A_shared, offset=p * 4096, barrier=full, index=p)
            tma_load(tensor_map="B_map", coordinates=(p * 64, 0), shared=B_shared, offset=p * 512, barrier=full, index=p)
    for i in unrolled(0, 4):
        acc[i] = float32(0.0)
    for j in unrolled(0, 8):
        a[j] = bfloat16(1.0)
    da: uint64 = cast((shared_address(A_shared, 0) & uint32(262143)) >> uint32(4), uint64) | uint64(4611686293305360384)
    db: uint64 = cast((shared_address(B_shared, 0) & uint32(262143)) >> uint32(4), uint64) | uint64(4611686293305360384)
"""
WGMMA = "wgmma(accumulator=acc, accumulator_offset=0, n=8, k=16, dtype_a=bfloat16, dtype_b=bfloat16, shared_b=B_shared, descriptor_b=db, shared_a=A_shared, descriptor_a=da)"
OF_REGISTERS = "wgmma(accumulator=acc, accumulator_offset=0, n=8, k=16, dtype_a=bfloat16, dtype_b=bfloat16, shared_b=B_shared, descriptor_b=db, a=a, a_offset=0)"
OF_HALF = "wgmma(accumulator=half, accumulator_offset={}, n=8, k=16, dtype_a=float16, dtype_b=float16, shared_b=B_shared, descriptor_b=db, shared_a=A_shared, descriptor_a=da)"
WAIT = "wgmma_wait_group(pending=0, accumulators=(acc,), retires=(A_shared, B_shared))"
FIRST = "mbarrier_wait(barrier=full, index=0, parity=0, retires=(A_shared, B_shared))"
SECOND = "mbarrier_wait(barrier=full, index=1, parity=0, retires=(A_shared, B_shared))"


def multiplying(body: str, rule: str, says: str, also: tuple[str, ...] = (), load: str = "") -> Pair:
    """``body`` between the issue of two loads and the wait for the second of them. ``load``: the mark of A's load."""
    lines = "\n".join("    " + line[8:] if line.strip() else "" for line in body.splitlines())
    start = START.replace(
        "offset=p * 4096, barrier=full, index=p)", f"offset=p * 4096, barrier=full, index=p)  # {load}"
    )
    return Pair(
        rule,
        says,
        (start if load else START) + lines + f"\n    {SECOND}\n",
        TENSORS,
        threads=128,
        shared=18448,
        also=also,
    )


PAIRS = {
    "the accumulator read before the wait": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        C[tx] = acc[0]  # later
        {WAIT}  # wrong
        """, "in flight", r"(read|write) acc\b"),
    "the accumulator read after a wait for another group": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}
        wgmma_commit_group()
        {WGMMA}  # earlier
        wgmma_commit_group()
        wgmma_wait_group(pending=1, accumulators=(acc,))  # wrong
        {WAIT}  # right
        C[tx] = acc[0]  # later
        {WAIT}
        """, "in flight", r"\bacc\b"),
    "the accumulator of a group that was not committed": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # earlier
        wgmma_commit_group()  # right
        {WAIT}
        C[tx] = acc[0]  # later
        wgmma_commit_group()
        {WAIT}
        """, "in flight", r"\bacc\b"),
    "the accumulator written before the wait": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        acc[1] = float32(0.0)  # later
        {WAIT}
        """, "in flight", r"\bacc\b"),
    "A's registers written before the wait": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {OF_REGISTERS}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        a[3] = bfloat16(2.0)  # later
        {WAIT}
        """, "in flight", r"\ba\b"),
    "an accumulator that another wgmma multiplies before the wait": multiplying(f"""
        half = allocate_register(float16, (8,))
        for h in unrolled(0, 8):
            half[h] = float16(0.0)
        {FIRST}
        wgmma_fence()
        {OF_HALF.format(0)}  # earlier
        {OF_HALF.format(4)}
        wgmma_commit_group()
        wgmma_wait_group(pending=0, accumulators=(half,))  # right
        {OF_REGISTERS.replace("bfloat16", "float16").replace("a=a", "a=half")}  # later
        wgmma_commit_group()
        {WAIT}
        """, "in flight", r"read half\b.*accumulator"),
    "a register operand that another wgmma accumulates in before the wait": multiplying(f"""
        half = allocate_register(float16, (8,))
        for h in unrolled(0, 8):
            half[h] = float16(0.0)
        {FIRST}
        wgmma_fence()
        {OF_REGISTERS.replace("bfloat16", "float16").replace("a=a", "a=half")}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        {OF_HALF.format(4)}  # later
        wgmma_commit_group()
        {WAIT}
        """, "in flight", r"write half\b.*operand"),
    "an accumulator in another shape before the wait": multiplying(f"""
        wide = allocate_register(float32, (8,))
        for w in unrolled(0, 8):
            wide[w] = float32(0.0)
        {FIRST}
        {SECOND}
        wgmma_fence()
        {WGMMA.replace("acc,", "wide,").replace("n=8", "n=16")}  # earlier
        wgmma_commit_group()
        wgmma_wait_group(pending=0, accumulators=(wide,))  # right
        {WGMMA.replace("acc,", "wide,")}  # later
        wgmma_commit_group()
        {WAIT}
        """, "in flight", r"write wide\b.*accumulator"),
    "no fence before the first wgmma": multiplying(f"""
        {FIRST}
        wgmma_fence()  # right
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"wgmma.fence"),
    "no fence after the accumulator was changed": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}
        wgmma_commit_group()
        {WAIT}
        acc[2] = acc[2] * float32(0.5)
        wgmma_fence()  # right
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"\bacc\b.*wgmma.fence"),
    "no fence after A's registers were changed": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}
        wgmma_commit_group()
        {WAIT}
        a[2] = bfloat16(0.5)
        wgmma_fence()  # right
        {OF_REGISTERS}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"\ba\b.*wgmma.fence"),
    "operands that TMA has not brought yet": multiplying(f"""
        {FIRST}  # right
        wgmma_fence()
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        {FIRST}  # wrong
        """, "race", r"A_shared\[.*TMA load", load="earlier"),
    "a stage loaded again before wgmma has read it": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        bar_sync(id=0, threads=128)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=8192)
            tma_load(tensor_map="A_map", coordinates=(0, 0), shared=A_shared, offset=0, barrier=full, index=0)  # later
        {WAIT}  # wrong
        mbarrier_wait(barrier=full, index=0, parity=1)
        """, "race", r"A_shared\[.*wgmma"),
    "a stage loaded again after a wait for the group before": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}
        wgmma_commit_group()
        {WGMMA}  # earlier
        wgmma_commit_group()
        wgmma_wait_group(pending=1, accumulators=(acc,))  # wrong
        {WAIT}  # right
        bar_sync(id=0, threads=128)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=8192)
            tma_load(tensor_map="A_map", coordinates=(0, 0), shared=A_shared, offset=0, barrier=full, index=0)  # later
        {WAIT}  # wrong
        mbarrier_wait(barrier=full, index=0, parity=1)
        """, "race", r"A_shared\[.*wgmma"),
    "a stage written by threads before wgmma has read it": multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # earlier
        wgmma_commit_group()
        {WAIT}  # right
        bar_sync(id=0, threads=128)
        A_shared[tx] = bfloat16(0.0)  # later
        {WAIT}  # wrong
        """, "race", r"A_shared\[.*wgmma"),
    "operands written by threads without a proxy fence": multiplying(f"""
        {FIRST}
        for v in unrolled(0, 32):
            A_shared[v * 128 + tx] = bfloat16(1.0)  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=128)
        wgmma_fence()
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"A_shared\["),
    "operands by cp.async without a proxy fence": multiplying(f"""
        {FIRST}
        bar_sync(id=0, threads=128)
        for v in unrolled(0, 4):
            cp_async(shared=A_shared, offset=v * 1024 + tx * 8, source=A, index=v * 1024 + tx * 8, bytes=16)  # earlier
        cp_async_commit_group()
        cp_async_wait_group(pending=0)
        fence_proxy_async()  # right
        bar_sync(id=0, threads=128)
        wgmma_fence()
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"A_shared\[.*cp.async"),
    "an accumulator that nobody set": replace(multiplying(f"""
        {FIRST}
        wgmma_fence()
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "uninitialised", r"\bacc\b"), body=START.replace(
        "acc[i] = float32(0.0)", "acc[i] = float32(0.0)  # right\n        acc[i % 3] = float32(0.0)  # wrong")
        + f"    {FIRST}\n    wgmma_fence()\n    {WGMMA}  # later\n    wgmma_commit_group()\n    {WAIT}\n    {SECOND}\n"),
    "operands by stmatrix without a proxy fence": multiplying(f"""
        {FIRST}
        bar_sync(id=0, threads=128)
        store_matrix(shared=A_shared, offset=tx * 8, source=a, source_offset=0, count=4)  # earlier
        fence_proxy_async()  # right
        bar_sync(id=0, threads=128)
        wgmma_fence()
        {WGMMA}  # later
        wgmma_commit_group()
        {WAIT}
        """, "missing fence", r"A_shared\["),
    "ldmatrix before a barrier": Pair("race", r"S\[\d+\]", """
        S = allocate_shared(bfloat16, (512,), storage_offset=0, storage_alignment=128)
        r = allocate_register(bfloat16, (8,))
        for i in unrolled(0, 8):
            S[i * 64 + tx] = A[i * 64 + tx]  # earlier
        bar_sync(id=0, threads=64)  # right
        load_matrix(destination=r, destination_offset=0, shared=S, offset=(tx % 32) * 8, count=4)  # later
        """, TENSORS, also=("uninitialised",)),
    "stmatrix over what others still read": Pair("race", r"S\[\d+\]", """
        S = allocate_shared(bfloat16, (1024,), storage_offset=0, storage_alignment=128)
        r = allocate_register(bfloat16, (8,))
        for i in unrolled(0, 8):
            r[i] = bfloat16(1.0)
            S[i * 64 + tx] = A[i * 64 + tx]
        bar_sync(id=0, threads=64)
        A[tx] = S[tx * 8]  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx >= 32:
            store_matrix(shared=S, offset=(tx % 32) * 8, source=r, source_offset=0, count=4)  # later
        """, TENSORS),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    expect(PAIRS[name])
