"""Atomic operations: they do not race with each other; release and acquire order what is around them.

PTX ISA, «Memory Consistency Model»: release and acquire patterns, morally strong operations.
"""

from __future__ import annotations

import pytest
import torch

from tests.sim.check.faults import Pair, expect

TENSORS = """
    A = tensor(int32, (256,))
    B = tensor(int32, (256,))
    F = tensor(int32, (4,))
"""
SUMS = """
    A = tensor(int32, (256,))
    B = tensor(uint32, (256,))
    TensorMapRecord(name="B_map", tensor="B", dtype="uint32", dimensions=(256,), strides=(), box=(64,))
"""
ZERO = {"F": torch.zeros(4, dtype=torch.int32)}


def flag(store: str, load: str, **options) -> Pair:
    """CTA 0 writes and sets a flag with ``store``, CTA 1 spins on it with ``load`` and reads."""
    return Pair("race", r"\bB\b", f"""
        seen = allocate_local(int32, ())
        seen[0] = 0
        if bx == 0:
            B[tx] = A[tx]  # earlier
            bar_sync(id=0, threads=64)
            if tx == 0:
                {store}
        else:
            if tx == 0:
                while seen[0] == 0:
                    {load}
            bar_sync(id=0, threads=64)
            A[64 + tx] = B[63 - tx]  # later
        """, TENSORS, grid=2, inputs=ZERO, **options)  # fmt: skip


STORE = 'atomic_store(buffer=F, indices=(0,), value=1, order="{}")'
LOAD = 'atomic_load(buffer=F, indices=(0,), result=seen, order="{}")'

PAIRS = {
    "a flag stored relaxed": flag(
        STORE.format("release") + "  # right\n                " + STORE.format("relaxed") + "  # wrong",
        LOAD.format("acquire"),
    ),
    "a flag loaded relaxed": flag(
        STORE.format("release"),
        LOAD.format("acquire") + "  # right\n                    " + LOAD.format("relaxed") + "  # wrong",
    ),
    "a flag counted up relaxed": flag(
        'atomic(operator="add", buffer=F, indices=(0,), value=1, order="release")  # right\n'
        '                atomic(operator="add", buffer=F, indices=(0,), value=1, order="relaxed")  # wrong',
        LOAD.format("acquire"),
    ),
    "a flag set before the barrier": Pair("race", r"\bB\b", f"""
        seen = allocate_local(int32, ())
        seen[0] = 0
        if bx == 0:
            B[tx] = A[tx]  # earlier
            bar_sync(id=0, threads=64)  # right
            if tx == 0:
                {STORE.format("release")}
        else:
            if tx == 0:
                while seen[0] == 0:
                    {LOAD.format("acquire")}
            bar_sync(id=0, threads=64)
            A[64 + tx] = B[63 - tx]  # later
        """, TENSORS, grid=2, inputs=ZERO),
    "no barrier behind the flag": Pair("race", r"\bB\b", f"""
        seen = allocate_local(int32, ())
        seen[0] = 0
        if bx == 0:
            B[tx] = A[tx]  # earlier
            bar_sync(id=0, threads=64)
            if tx == 0:
                {STORE.format("release")}
        else:
            if tx == 0:
                while seen[0] == 0:
                    {LOAD.format("acquire")}
            bar_sync(id=0, threads=64)  # right
            A[64 + tx] = B[63 - tx]  # later
        """, TENSORS, grid=2, inputs=ZERO),
    "sums of all CTAs by plain stores": Pair("race", r"\bB\b", """
        B[tx] = B[tx] + A[bx * 64 + tx]  # wrong, earlier, later
        atomic(operator="add", buffer=B, indices=(tx,), value=A[bx * 64 + tx])  # right
        """, TENSORS, grid=4),
    "an atomic addition beside a sum by TMA, which is of the other proxy": Pair("race", r"\bB\b", """
        S = allocate_shared(uint32, (64,), storage_offset=0, storage_alignment=128)
        S[tx] = cast(A[tx], uint32)
        fence_proxy_async()
        bar_sync(id=0, threads=64)
        if tx == 0 and bx == 0:
            tma_store(tensor_map="B_map", coordinates=(0,), shared=S, offset=0, operator="add")  # earlier, later
            bulk_commit_group()
            bulk_wait_group(pending=0, read=True)
        if bx == 1 and tx == 5:
            atomic(operator="add", buffer=B, indices=(tx,), value=uint32(1))  # wrong, earlier, later
            atomic(operator="add", buffer=B, indices=(tx + 64,), value=uint32(1))  # right
        """, SUMS, grid=2),
    "a plain store beside an atomic": Pair("race", r"\bB\b", """
        if bx == 0:
            if tx == 3:
                B[5] = 7  # wrong, earlier, later
                atomic_store(buffer=B, indices=(5,), value=7, order="relaxed")  # right
        else:
            if tx == 40:
                atomic(operator="add", buffer=B, indices=(5,), value=A[tx])  # earlier, later
        """, TENSORS, grid=2),
    "a plain read of what others add to": Pair("race", r"\bB\b", """
        seen = allocate_local(int32, ())
        if bx == 0:
            if tx == 3:
                A[0] = B[5]  # wrong, earlier, later
                atomic_load(buffer=B, indices=(5,), result=seen, order="relaxed")  # right
        else:
            if tx == 40:
                atomic(operator="add", buffer=B, indices=(5,), value=1)  # earlier, later
        """, TENSORS, grid=2),
    "a histogram in shared memory, read without a barrier": Pair("race", r"S\[\d+\]", """
        S = allocate_shared(int32, (8,), storage_offset=0)
        if tx < 8:
            S[tx] = 0
        bar_sync(id=0, threads=64)
        atomic(operator="add", buffer=S, indices=(tx % 8,), value=A[tx])  # earlier
        bar_sync(id=0, threads=64)  # right
        if tx < 8:
            B[tx] = S[tx]  # later
        """, TENSORS),
    "a histogram whose zeros come without a barrier": Pair("race", r"S\[\d+\]", """
        S = allocate_shared(int32, (8,), storage_offset=0)
        if tx < 8:
            S[tx] = 0  # earlier
        bar_sync(id=0, threads=64)  # right
        atomic(operator="add", buffer=S, indices=(tx % 8,), value=A[tx])  # later
        """, TENSORS, also=("uninitialised",)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    expect(PAIRS[name])
