"""Stages that are released too early, in programs whose waits name the whole ring.

``retires`` of a wait says which buffers it makes safe, and a ring is one buffer; the order of its stages is in the
phases of the barriers alone.
"""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from tests.sim.check.faults import Pair, expect

RING = """
    S = allocate_shared(int32, (2, 64), storage_offset=0, storage_alignment=128)
    full = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=1024)
    empty = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=1040)
    if tx == 0:
        mbarrier_init(barrier=full, index=0, arrivals=1)
        mbarrier_init(barrier=full, index=1, arrivals=1)
        mbarrier_init(barrier=empty, index=0, arrivals=64)
        mbarrier_init(barrier=empty, index=1, arrivals=64)
        fence_mbarrier_init()
    bar_sync(id=0, threads=96)
    with specialized():
        with role("reader", first_thread=0, threads=64):
            for k in serial(0, 6):
                mbarrier_wait(barrier=full, index=k % 2, parity=k // 2 & 1, retires=(S,))
"""
READ = "B[k * 64 + tx] = S[k % 2 * 64 + 63 - tx]"
RELEASE = "mbarrier_arrive(barrier=empty, index=k % 2)"
LOADER = """
        with role("loader", first_thread=64, threads=32):
            if tx == 64:
                for n in serial(0, 6):
                    mbarrier_wait(barrier=empty, index=n % 2, parity=n // 2 & 1 ^ 1, retires=(S,))
                    mbarrier_arrive_expect_tx(barrier=full, index=n % 2, bytes=256)
                    tma_load(tensor_map="A_map", coordinates=(n * 64,), shared=S, offset=n % 2 * 64, barrier=full, index=n % 2)  # later
"""  # noqa: E501
TENSORS = """
    A = tensor(int32, (384,))
    B = tensor(int32, (384,))
    TensorMapRecord(name="A_map", tensor="A", dtype="int32", dimensions=(384,), strides=(), box=(64,))
"""


def ring(reader: str) -> Pair:
    """A ring of two stages; ``reader``: what follows the wait in an iteration."""
    lines = indent(dedent(reader).strip("\n"), " " * 16) + "\n"
    return Pair("race", r"S\[[01], \d+\] \(stage [01]\)", RING + lines + LOADER, TENSORS, threads=96)


PAIRS = {
    "before its last use": ring(f"""
        fence_proxy_async()  # wrong
        {RELEASE}  # wrong
        {READ}  # earlier
        fence_proxy_async()  # right
        {RELEASE}  # right
        """),
    "though it is read in the next iteration": ring(f"""
        if k > 0:
            B[k * 64 + tx] = S[(k - 1) % 2 * 64 + 63 - tx]  # earlier
            fence_proxy_async()
            mbarrier_arrive(barrier=empty, index=(k - 1) % 2)  # right
        {RELEASE}  # wrong
        """),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_stage_is_released(name: str) -> None:
    expect(PAIRS[name])
