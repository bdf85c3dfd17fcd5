"""What is inserted around cp.async, ldmatrix and wgmma, and when shared memory that they use may be given to others."""

from __future__ import annotations

import pytest

from ptxtile import target
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.lower import insert_synchronization, place_shared_memory
from ptxtile.lower.options import Options

KERNEL = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(bfloat16, (65536,))
C = tensor(float32, (65536,))
TensorMapRecord(name="A_map", tensor="A", dtype="bfloat16", dimensions=(65536,), strides=(), box=(256,))
TensorMapRecord(name="C_map", tensor="C", dtype="bfloat16", dimensions=(131072,), strides=(), box=(256,))
@kernel(grid=(4, 1, 1), threads=128, shared_bytes={shared})
def kernel(bx, by, bz, tx):
    S = allocate_shared(bfloat16, (8192,), storage_alignment=1024{place})
    acc = allocate_register(float32, (8,))
    a = allocate_register(bfloat16, (8,))
"""
BAR = "bar = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=16384)\n"
D = "d: uint64 = cast(shared_address(S, 0) >> uint32(4), uint64) | uint64(4611686293305360384)\n"
MULTIPLY = ("wgmma_fence()\n"
            "wgmma(accumulator=acc, accumulator_offset=0, n=16, k=16, dtype_a=bfloat16, dtype_b=bfloat16, shared_b=S, "
            "descriptor_b=d, shared_a=S, descriptor_a=d, accumulate=False)\n"
            "wgmma_commit_group()\n")  # fmt: skip
WAIT = "wgmma_wait_group(pending=0, accumulators=(acc,), retires=(S,))\n"
COPY = "cp_async(shared=S, offset=tx * 8, source=A, index=tx * 8, bytes=16)\ncp_async_commit_group()\n"
COPIED = "cp_async_wait_group(pending=0, retires=(S,))\n"
STORE = "S[tx * 4] = A[tx]\n"
LOAD = ("load_matrix(destination=a, destination_offset=0, shared=S, offset=tx % 32 * 8, count=4)\n"
        "C[tx] = cast(a[0], float32)\n")  # fmt: skip
OWN = "C[tx] = cast(S[tx * 8 + 3], float32)\n"

SHORT = {"bar_sync": "barrier", "fence_proxy_async": "fence", "cp_async_wait_group": "copied", "cp_async": "copy",
         "load_matrix": "ldmatrix", "wgmma": "wgmma", "wgmma_wait_group": "wait",
         "store_matrix": "stmatrix", "tma_load": "load box", "tma_store": "store box",
         "bulk_wait_group": "read"}  # fmt: skip


def order(body: str) -> list[str]:
    """The memory operations and what was inserted between them, in order."""
    text = KERNEL.format(shared=16392, place=", storage_offset=0")
    program = parse_program(text + "".join(f"    {line}\n" for line in body.splitlines()))
    done = print_program(insert_synchronization.run(program, target.get("sm_90a"), Options()))
    found = []
    for line in done[done.index("def kernel") :].splitlines():
        word = line.strip().partition("(")[0]
        if word in SHORT:
            found.append(SHORT[word])
        elif line.strip().startswith("S["):
            found.append("store")
        elif "S[" in line:
            found.append("load")
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (COPY + COPIED + LOAD, ["copy", "copied", "barrier", "ldmatrix"]),
        (COPY + COPIED + OWN, ["copy", "copied", "load"]),  # each thread reads what it copied itself
        (STORE + D + MULTIPLY + WAIT, ["store", "fence", "barrier", "wgmma", "wait"]),
        (COPY + COPIED + D + MULTIPLY + WAIT, ["copy", "copied", "fence", "barrier", "wgmma", "wait"]),
        (D + MULTIPLY + WAIT + STORE, ["wgmma", "wait", "barrier", "store"]),
        (D + MULTIPLY + WAIT + COPY + COPIED, ["wgmma", "wait", "barrier", "copy", "copied"]),
        (D + MULTIPLY + WAIT + MULTIPLY + WAIT, ["wgmma", "wait", "wgmma", "wait"]),
        (LOAD + "S[tx] = A[tx]\n", ["ldmatrix", "barrier", "store"]),
        ("store_matrix(source=a, source_offset=0, shared=S, offset=tx * 8, count=4)\n" + LOAD,
         ["stmatrix", "barrier", "ldmatrix"]),
    ],
)  # fmt: skip
def test_what_is_inserted(body: str, expected: list[str]) -> None:
    assert order(body) == expected


STORE_BOX = ("if tx == 0:\n    tma_store(tensor_map=\"C_map\", coordinates=(k * 256,), shared=S, offset=0)\n"
             "    bulk_commit_group()\n    bulk_wait_group(pending=0, read=True)\n")  # fmt: skip


@pytest.mark.parametrize(
    ("use", "between"),
    [
        (D + MULTIPLY + WAIT, ["barrier"]),
        (STORE_BOX, ["barrier"]),  # by the thread that loads: so that all have seen the phase
        (LOAD, ["fence", "barrier"]),
        (OWN, ["fence", "barrier"]),
        (STORE, ["fence", "barrier"]),
        (D + MULTIPLY + WAIT + LOAD, ["fence", "barrier"]),
    ],
)
def test_only_what_threads_did_is_fenced_from_the_next_load(use: str, between: list[str]) -> None:
    """wgmma and TMA stores read by the async proxy, as a TMA load writes: what was waited for needs no fence."""
    round_ = ("if tx == 0:\n    mbarrier_arrive_expect_tx(barrier=bar, index=0, bytes=512)\n"
              "    tma_load(tensor_map=\"A_map\", coordinates=(k * 256,), shared=S, offset=0, barrier=bar, index=0)\n"
              "mbarrier_wait(barrier=bar, index=0, parity=k % 2, retires=(S,))\n")  # fmt: skip
    text = "".join(f"    {line}\n" for line in (round_ + use).splitlines())
    start = "if tx == 0:\n    mbarrier_init(barrier=bar, index=0, arrivals=1)\n    fence_mbarrier_init()\n"
    alone = order(BAR + start + "bar_sync(id=0, threads=128)\nfor k in serial(0, 1):\n" + text)
    found = order(BAR + start + "bar_sync(id=0, threads=128)\nfor k in serial(0, 8):\n" + text)
    assert found == ["barrier", *between, *alone[1:]]


def test_a_ring_of_copies_in_a_loop() -> None:
    body = ("for k in serial(0, 8):\n"
            "    cp_async(shared=S, offset=k % 2 * 4096 + tx * 8, source=A, index=k * 4096 + tx * 8, bytes=16)\n"
            "    cp_async_commit_group()\n    cp_async_wait_group(pending=0, retires=(S,))\n"
            "    load_matrix(destination=a, destination_offset=0, shared=S, offset=k % 2 * 4096 + tx % 32, count=4)\n"
            "    C[tx] = C[tx] + cast(a[0], float32)\n")  # fmt: skip
    found = order(body)
    assert found.count("barrier") in (1, 2) and found.index("barrier") > found.index("copied") < found.index("ldmatrix")


def offsets(body: str) -> dict[str, int]:
    text = KERNEL.format(shared=0, place="")
    text = text.replace("    acc =", "    T = allocate_shared(bfloat16, (8192,), storage_alignment=1024)\n    acc =")
    program = parse_program(text + "".join(f"    {line}\n" for line in body.splitlines()))
    placed = place_shared_memory.run(program, target.get("sm_90a"), Options())
    lines = print_program(placed).splitlines()
    found = {}
    for line in lines:
        name, _, rest = line.strip().partition(" = allocate_shared")
        if rest:
            found[name] = int(rest.partition("storage_offset=")[2].partition(",")[0].partition(")")[0])
    return found


T_STORE = "T[tx] = A[tx]\nC[tx] = cast(T[tx], float32)\n"


def test_an_operand_lives_until_its_wait() -> None:
    waited = offsets(STORE + D + MULTIPLY + WAIT + T_STORE)
    assert waited["S"] == waited["T"]
    under_way = offsets(STORE + D + MULTIPLY + T_STORE + WAIT)
    assert under_way["S"] != under_way["T"]
    never = offsets(STORE + D + MULTIPLY + T_STORE)
    assert never["S"] != never["T"]
