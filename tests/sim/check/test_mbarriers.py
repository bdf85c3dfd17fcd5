"""mbarriers: initialisation, arrivals, bytes, parities, and what a deadlock's report says.

PTX ISA, «Parallel Synchronization Instructions: mbarrier»: a phase completes when its pending arrivals and its
transaction count are zero; try_wait.parity passes when the phase of that parity is over, so on a fresh mbarrier for
parity 1. fence.mbarrier_init makes the init visible to the async proxy and to the cluster.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.sim.check.faults import Pair, expect, lines_of, report_of

TENSORS = """
    A = tensor(int32, (256,))
    B = tensor(int32, (256,))
    TensorMapRecord(name="A_map", tensor="A", dtype="int32", dimensions=(256,), strides=(), box=(64,))
"""
S = "S = allocate_shared(int32, (128,), storage_offset=0, storage_alignment=128)"
FULL = "full = allocate_barrier(uint64, (2,), storage_alignment=8, storage_offset=1024)"
LOAD = 'tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)'


def arrivals(init: str, body: str, rule: str, says: str, also: tuple[str, ...] = (), threads: int = 64) -> Pair:
    """``init``: lines of thread 0; then a barrier and ``body``."""
    lines = "\n".join("            " + line.strip() for line in init.strip().splitlines())
    return Pair(rule, says, f"""
        {S}
        {FULL}
        if tx == 0:
{lines}
            fence_mbarrier_init()
        bar_sync(id=0, threads={threads})
        {body.strip()}
        """, TENSORS, threads=threads, also=also)  # fmt: skip


HANDED_OVER = """
        if tx < 32:
            S[tx] = A[tx]
            mbarrier_arrive(barrier=full, index=0)
        else:
            mbarrier_wait(barrier=full, index=0, parity=0)
            B[tx] = S[tx - 32]
"""
COUNTS = {
    "used before the init is visible": Pair("race", r"full\[0\]", f"""
        {S}
        {FULL}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=32)  # earlier
            fence_mbarrier_init()
        bar_sync(id=0, threads=64)  # right
        if tx >= 32:
            mbarrier_arrive(barrier=full, index=0)  # later
        bar_sync(id=0, threads=64)
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS, also=("illegal", "uninitialised")),
    "no fence.mbarrier_init before TMA": Pair("missing fence", r"full\[0\].*fence.mbarrier_init", f"""
        {S}
        {FULL}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            fence_mbarrier_init()  # right
        bar_sync(id=0, threads=64)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            {LOAD}  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS),
    "a fence.mbarrier_init of another thread": Pair("missing fence", r"full\[0\].*fence.mbarrier_init", f"""
        {S}
        {FULL}
        if tx == 0:
            mbarrier_init(barrier=full, index=0, arrivals=1)
            fence_mbarrier_init()  # right
        if tx == 40:  # wrong
            fence_mbarrier_init()  # wrong
        bar_sync(id=0, threads=64)
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
            {LOAD}  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        """, TENSORS),
    "one arrival too few": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=33)  # wrong
        mbarrier_init(barrier=full, index=0, arrivals=32)  # right
        """, HANDED_OVER.replace("parity=0)", "parity=0)  # later"), "deadlock",
        r"full\[0\] with parity 0.*32 of 33 arrivals came.*1 missing"),
    "one arrival too many for the first phase": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=31)  # wrong
        mbarrier_init(barrier=full, index=0, arrivals=32)  # right
        """, HANDED_OVER.replace("S[tx] = A[tx]", "S[tx] = A[tx]  # earlier")
        .replace("S[tx - 32]", "S[tx - 32]  # later"), "race", r"S\[\d+\]", also=("unfinished",)),
    "a thread that arrives twice": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=64)
        """, """
        if tx < 32:
            S[tx] = A[tx]
            mbarrier_arrive(barrier=full, index=0)
            mbarrier_arrive(barrier=full, index=0)  # wrong
        else:
            if tx < 64:
                S[tx] = A[tx]  # earlier
                mbarrier_arrive(barrier=full, index=0)
            else:
                mbarrier_wait(barrier=full, index=0, parity=0)
                B[tx] = S[tx - 32]  # later
        """, "race", r"S\[\d+\]", also=("uninitialised", "unfinished"), threads=96),
    "16 bytes too many": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=1)
        """, f"""
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=272)  # wrong
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)  # right
            {LOAD}
        mbarrier_wait(barrier=full, index=0, parity=0)  # later
        """, "deadlock", r"full\[0\].*1 of 1 arrivals.*16 bytes are still expected"),
    "16 bytes too few": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=1)
        """, f"""
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=240)  # wrong
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)  # right
            {LOAD}
        mbarrier_wait(barrier=full, index=0, parity=0)  # later
        """, "deadlock", r"full\[0\].*16 bytes more came than were expected"),
    "the bytes of one of two loads": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=1)
        """, f"""
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)  # wrong
            mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=512)  # right
            {LOAD}
            tma_load(tensor_map="A_map", coordinates=(64,), shared=S, offset=64, barrier=full, index=0)  # later
        mbarrier_wait(barrier=full, index=0, parity=0)
        B[tx] = S[tx + 64]  # earlier
        """, "race", r"S\[\d+\]", also=("unfinished",)),
}  # fmt: skip
PARITIES = {
    "a wait for the other parity passes at once": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=32)
        """, """
        if tx < 32:
            S[tx] = A[tx]  # earlier
            mbarrier_arrive(barrier=full, index=0)
        else:
            mbarrier_wait(barrier=full, index=0, parity=1)  # wrong
            mbarrier_wait(barrier=full, index=0, parity=0)  # right
            B[tx] = S[tx - 32]  # later
        """, "race", r"S\[\d+\]", also=("uninitialised", "deadlock")),
    "a parity that does not flip": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=32)
        mbarrier_init(barrier=full, index=1, arrivals=32)
        """, """
        for i in serial(0, 2):
            if tx < 32:
                S[i * 32 + tx] = A[tx]
                mbarrier_arrive(barrier=full, index=0)
                mbarrier_wait(barrier=full, index=1, parity=i)
            else:
                mbarrier_wait(barrier=full, index=0, parity=0)  # wrong
                mbarrier_wait(barrier=full, index=0, parity=i)  # right
                B[tx] = S[i * 32 + tx - 32]  # later
                mbarrier_arrive(barrier=full, index=1)
        """, "uninitialised", r"S\[32\]", also=("race", "stale wait", "deadlock")),
    "a phase that has been seen already, while the next is under way": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=64)
        """, """
        if tx < 32:
            mbarrier_arrive(barrier=full, index=0)
            mbarrier_arrive(barrier=full, index=0)
            mbarrier_arrive(barrier=full, index=0)
            bar_sync(id=0, threads=64)
            mbarrier_arrive(barrier=full, index=0)
        else:
            mbarrier_wait(barrier=full, index=0, parity=0)  # earlier
            bar_sync(id=0, threads=64)
            mbarrier_wait(barrier=full, index=0, parity=0)  # wrong, later
            mbarrier_wait(barrier=full, index=0, parity=1)  # right
        """, "stale wait", r"full\[0\] with parity 0.*phase 1", also=("deadlock",)),
    "a wait that may come a phase too late": replace(arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=1)
        """, f"""
        for i in serial(0, 3):
            if tx == 0:
                mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=256)
                {LOAD}
            mbarrier_wait(barrier=full, index=0, parity=i % 2)  # later
            bar_sync(id=0, threads=64)  # right
        """, "deadlock", r"full\[0\]"), strict=True),
    "a phase that never comes": arrivals("""
        mbarrier_init(barrier=full, index=0, arrivals=32)
        """, """
        if tx < 32:
            mbarrier_arrive(barrier=full, index=0)
        else:
            mbarrier_wait(barrier=full, index=0, parity=0)
            mbarrier_wait(barrier=full, index=0, parity=1)  # wrong, later
        """, "deadlock", r"full\[0\] with parity 1: in phase 1 .*0 of 32 arrivals came, 32 missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    expect(COUNTS[name])


@pytest.mark.parametrize("name", PARITIES)
def test_parities(name: str) -> None:
    expect(PARITIES[name])


CIRCLE = Pair("deadlock", "", f"""
    {FULL}
    if tx == 0:
        mbarrier_init(barrier=full, index=0, arrivals=64)
        mbarrier_init(barrier=full, index=1, arrivals=32)
    bar_sync(id=0, threads=96)
    with specialized():
        with role("consumer", first_thread=0, threads=64):
            mbarrier_wait(barrier=full, index=1, parity=0)  # earlier
            mbarrier_arrive(barrier=full, index=0)
        with role("producer", first_thread=64, threads=32):
            if tx < 80:
                mbarrier_arrive(barrier=full, index=1)
            mbarrier_wait(barrier=full, index=0, parity=0)  # later
            mbarrier_arrive(barrier=full, index=1)
    """, threads=96)  # fmt: skip


def test_a_deadlock_names_everybody_who_waits() -> None:
    """Each blocked role with its threads, its mbarrier, the phase, what came and what is missing, and its line."""
    report = report_of(CIRCLE)
    (finding,) = report.findings
    assert finding.rule == "deadlock"
    consumer, producer = CIRCLE.marked("earlier").pop(), CIRCLE.marked("later").pop()
    for role, mbarrier, came, of, line in (
        ("consumer", r"full\[1\]", 16, 32, consumer),
        ("producer", r"full\[0\]", 0, 64, producer),
    ):
        pattern = rf"role {role}.*waits? for {mbarrier} with parity 0: in phase 0 \(parity 0\) {came} of {of} arrivals"
        assert re.search(rf"{pattern}[^\n]*, {of - came} missing[^\n]*\.ir:{line}\b", finding.message), report
    assert lines_of(finding) == {consumer, producer}
