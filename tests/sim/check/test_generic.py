"""Ordinary loads and stores: races of warps and threads, barriers, memory and registers that nobody wrote, bounds.

PTX ISA, «Memory Consistency Model»: two accesses of one byte, one of them a write, need an order by causality; bar.sync
and bar.arrive synchronize with bar.sync, bar.warp.sync the threads of a warp («Parallel Synchronization and
Communication Instructions»).
"""

from __future__ import annotations

import pytest

from tests.sim.check.faults import Pair, expect

IN_OUT = """
    A = tensor(int32, (128,))
    B = tensor(int32, (128,))
"""
S = "S = allocate_shared(int32, (128,), storage_offset=0)"

RACES = {
    "read after write": Pair("race", r"S\[5\]", f"""
        {S}
        if tx == 5:
            S[5] = A[tx]  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx == 40:
            B[0] = S[5]  # later
        """, IN_OUT, also=("uninitialised",)),
    "write after read": Pair("race", r"S\[7\]", f"""
        {S}
        S[tx] = A[tx]
        bar_sync(id=0, threads=64)
        if tx < 32:
            B[tx] = S[7]  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx == 33:
            S[7] = 1  # later
        """, IN_OUT),
    "write after write": Pair("race", r"S\[9\]", f"""
        {S}
        if tx == 3:
            S[9] = 1  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx == 60:
            S[9] = 2  # later
        """, IN_OUT),
    "different values by one statement": Pair("race", r"S\[9\]", f"""
        {S}
        if tx % 32 == 0:
            S[9] = tx  # wrong, earlier, later
            S[9] = 5  # right
        """, IN_OUT),
    "different values by threads of one warp": Pair("race", r"S\[9\]", f"""
        {S}
        if tx < 2:
            S[9] = tx  # wrong, earlier, later
            S[9] = 5  # right
        """, IN_OUT),
    "a loop without the barrier at its end": Pair("race", r"S\[\d+\]", f"""
        {S}
        for i in serial(0, 3):
            S[tx] = A[tx] + i  # later
            bar_sync(id=0, threads=64)
            B[tx] = S[63 - tx]  # earlier
            bar_sync(id=0, threads=64)  # right
        """, IN_OUT),
    "threads of one warp that do not meet": Pair("race", r"S\[\d+\]", f"""
        {S}
        if tx < 32:
            S[tx] = A[tx]  # earlier
            sync_warp(mask=uint32(65535) if tx < 16 else uint32(4294901760))  # wrong
            sync_warp(mask=uint32(4294967295))  # right
            B[tx] = S[31 - tx]  # later
        """, IN_OUT),
    "between CTAs, around a barrier of the grid": Pair("race", r"\bB\b.*CTA", """
        B[bx * 64 + tx] = A[tx]  # earlier
        grid_sync()  # right
        bar_sync(id=0, threads=64)  # wrong
        A[64 + bx * 32 + tx % 32] = B[(1 - bx) * 64 + tx % 32]  # later
        """, IN_OUT, grid=2),
    "threads of one warp": Pair("race", r"S\[\d+\]", f"""
        {S}
        S[tx] = A[tx]  # earlier
        sync_warp()  # right
        B[tx] = S[tx ^ 1]  # later
        """, IN_OUT),
    "one byte in common": Pair("race", r"S\[67\]", """
        S = allocate_shared(uint8, (128,), storage_offset=0)
        if tx == 0:
            S[67] = uint8(2)  # earlier
        if tx == 32:
            S.x4[64] = bitcast(A[0], uint8x4)  # wrong, later
            S.x4[60] = bitcast(A[0], uint8x4)  # right
        """, IN_OUT),
    "in global memory": Pair("race", r"\bB\b", """
        if tx == 1:
            B[100] = 7  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx == 32:
            A[0] = B[100]  # later
        """, IN_OUT),
    "between CTAs": Pair("race", r"\bB\b.*CTA", """
        if tx == 0:
            B[5] = bx  # wrong, earlier, later
            B[5 + bx] = bx  # right
        """, IN_OUT, grid=2),
    "through another buffer at the same place": Pair("race", r"T\[10\]|S\[5\]", f"""
        {S}
        T = allocate_shared(float16, (256,), storage_offset=0)
        if tx == 0:
            S[5] = 1  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx == 32:
            T[10] = float16(0.0)  # later
        """, IN_OUT),
    "a named barrier of other warps": Pair("race", r"S\[\d+\]", f"""
        {S}
        if tx < 64:
            S[tx] = A[tx]  # earlier
            bar_sync(id=1, threads=64)  # wrong
            bar_sync(id=1, threads=96)  # right
        else:
            bar_sync(id=1, threads=96)  # right
            B[tx] = S[tx - 64]  # later
        """, IN_OUT, threads=96, also=("uninitialised",)),
    "bar.arrive orders what came before it alone": Pair("race", r"S\[3\]", f"""
        {S}
        if tx < 32:
            if tx == 3:  # right
                S[3] = 1  # right
            bar_arrive(id=2, threads=64)
            if tx == 3:  # wrong
                S[3] = 1  # wrong, earlier
        else:
            bar_sync(id=2, threads=64)
            if tx == 40:
                B[0] = S[3]  # later
        """, IN_OUT, also=("uninitialised",)),
    "who arrives at a barrier without waiting learns nothing": Pair("race", r"S\[3\]", f"""
        {S}
        if tx < 32:
            bar_arrive(id=2, threads=64)  # wrong
            bar_sync(id=2, threads=64)  # right
            if tx == 0:
                B[0] = S[3]  # later
        else:
            if tx == 35:
                S[3] = 1  # earlier
            bar_sync(id=2, threads=64)
        """, IN_OUT, also=("uninitialised",)),
    "two slots where one barrier a turn needs three": Pair("race", r"S\[\d+\]", """
        S = allocate_shared(int32, (192,), storage_offset=0)
        for i in serial(0, 6):
            S[i % 2 * 64 + tx] = A[tx] + i  # wrong, later
            S[i % 3 * 64 + tx] = A[tx] + i  # right
            bar_sync(id=0, threads=64)
            if i > 0:
                B[tx] = S[(i - 1) % 2 * 64 + 63 - tx]  # wrong, earlier
                B[tx] = S[(i - 1) % 3 * 64 + 63 - tx]  # right
        """, IN_OUT),
    "between roles": Pair("race", r"S\[\d+\].*(reader|writer)", f"""
        {S}
        with specialized():
            with role("writer", first_thread=0, threads=32):
                S[tx] = A[tx]  # earlier
                bar_sync(id=1, threads=64)  # right
            with role("reader", first_thread=32, threads=32):
                bar_sync(id=1, threads=64)  # right
                B[tx] = S[tx - 32]  # later
        """, IN_OUT, also=("uninitialised",)),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_races(name: str) -> None:
    expect(RACES[name])


UNWRITTEN = {
    "shared memory": Pair("uninitialised", r"S\[70\]", f"""
        {S}
        S[tx] = A[tx]
        bar_sync(id=0, threads=64)
        if tx == 8:
            B[0] = S[70]  # wrong, later
            B[0] = S[63]  # right
        """, IN_OUT),
    "one byte of a vector": Pair("uninitialised", r"S\[\d+\]", """
        S = allocate_shared(uint8, (128,), storage_offset=0)
        if tx == 0:
            S[4] = uint8(1)
            S[5] = uint8(1)
            S[6] = uint8(1)
            S[7] = uint8(1)  # right
            B[0] = bitcast(S.x4[4], int32)  # later
        """, IN_OUT),
    "memory that another buffer wrote": Pair("uninitialised", r"T\[1\]", """
        S = allocate_shared(int32, (8,), storage_offset=0)
        T = allocate_shared(int32, (8,), storage_offset=16)
        if tx == 0:
            S[5] = 1  # earlier
            T[1] = 1  # right
            B[0] = T[1]  # later
        """, IN_OUT),
    "a register": Pair("uninitialised", r"r\[2\]", """
        r = allocate_register(int32, (4,))
        r[0] = 1
        r[2] = 1  # right
        B[tx] = r[2]  # later
        """, IN_OUT),
    "a local": Pair("uninitialised", r"\bv\b", """
        v = allocate_local(int32, ())
        v[0] = 1  # right
        B[tx] = v[0]  # later
        """, IN_OUT),
    "a copy of a register that only some warps wrote": Pair("uninitialised", r"[rs]\[0\]", """
        r = allocate_register(int32, (4,))
        s = allocate_register(int32, (4,))
        if tx < 32:
            r[0] = 1
        s[0] = r[0]
        if tx < 32:  # right
            B[tx] = s[0]  # right
        B[tx] = s[0]  # wrong, later
        """, IN_OUT),
    "an address of an operation": Pair("uninitialised", r"gives to .*r\[0\]", """
        r = allocate_register(int32, (1,))
        S = allocate_shared(int32, (128,), storage_offset=0)
        if tx < 32:  # wrong
            r[0] = 0  # wrong
        r[0] = 0  # right
        cp_async(shared=S, offset=tx, source=A, index=(r[0] & 0) + tx, bytes=4)  # later
        cp_async_commit_group()
        cp_async_wait_group(pending=0)
        """, IN_OUT),
    "a register of some threads": Pair("uninitialised", r"r\[0\]", """
        r = allocate_register(int32, (4,))
        if tx < 20:  # wrong
            r[0] = 1  # wrong
        r[0] = 2  # right
        B[tx] = r[0]  # later
        """, IN_OUT),
}  # fmt: skip


@pytest.mark.parametrize("name", UNWRITTEN)
def test_unwritten(name: str) -> None:
    expect(UNWRITTEN[name])


BOUNDS = {
    "shared memory": Pair("illegal", r"\bS\b.*out of bounds", f"""
        {S}
        S[tx + 65] = A[tx]  # wrong, later
        S[tx + 64] = A[tx]  # right
        """, IN_OUT),
    "a vector over the end": Pair("illegal", r"\bS\b.*out of bounds", """
        S = allocate_shared(int32, (126,), storage_offset=0)
        if tx == 0:
            S.x4[124] = A.x4[0]  # wrong, later
            S.x4[120] = A.x4[0]  # right
        """, IN_OUT),
    "before the beginning": Pair("illegal", r"\bA\b.*out of bounds", """
        B[tx] = A[tx - 1]  # wrong, later
        B[tx] = A[tx]  # right
        """, IN_OUT),
    "a tensor": Pair("illegal", r"\bB\b.*out of bounds", """
        B[tx + 65] = A[tx]  # wrong, later
        B[tx + 64] = A[tx]  # right
        """, IN_OUT),
    "a misaligned vector": Pair("illegal", r"\bS\b.*misaligned", f"""
        {S}
        if tx == 0:
            S.x4[2] = A.x4[0]  # wrong, later
            S.x2[2] = A.x2[0]  # right
        """, IN_OUT),
    "a misaligned vector of a tensor": Pair("illegal", r"\bA\b.*misaligned", """
        B.x2[tx * 2] = A.x2[tx * 2 + 1 if tx < 63 else 0]  # wrong, later
        B.x2[tx * 2] = A.x2[tx * 2]  # right
        """, IN_OUT),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    expect(BOUNDS[name])


MEETINGS = {
    "a barrier in a branch that divides a warp": Pair("illegal", "only some threads of a warp", """
        if tx < 16:  # wrong
            bar_sync(id=0, threads=64)  # wrong, later
        bar_sync(id=0, threads=64)  # right
        B[tx] = A[tx]
        """, IN_OUT),
    "a barrier in a branch that some warps take": Pair("deadlock", r"bar.sync 0 for 64.* 32 arrived.*32 missing", """
        if tx < 32:  # wrong
            bar_sync(id=0, threads=64)  # wrong, later
        bar_sync(id=0, threads=64)  # right
        B[tx] = A[tx]
        """, IN_OUT),
    "a named barrier for too many threads": Pair("deadlock", r"bar.sync 1 for 96 threads: 64 arrived.*32 missing", """
        if tx < 64:
            bar_sync(id=1, threads=96)  # wrong, later
            bar_sync(id=1, threads=64)  # right
        B[tx] = A[tx]
        """, IN_OUT, threads=96),
    "a named barrier for too few threads": Pair("deadlock", r"bar.sync 1 for 64 threads: 32 arrived", """
        bar_sync(id=1, threads=64)  # wrong, later
        bar_sync(id=1, threads=96)  # right
        B[tx] = A[tx]
        """, IN_OUT, threads=96),
    "one barrier with two counts": Pair("illegal", "two thread counts", """
        if tx < 32:
            bar_sync(id=1, threads=64)  # earlier
        else:
            bar_sync(id=1, threads=96)  # wrong, later
            bar_sync(id=1, threads=64)  # right
        """, IN_OUT, one_line=True),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETINGS)
def test_meetings(name: str) -> None:
    expect(MEETINGS[name])
