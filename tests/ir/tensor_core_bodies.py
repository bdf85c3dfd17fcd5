"""Bodies of a kernel of 256 threads with the tensor A (float32), the shared tile S (float32, 64 × 64), barriers
``full`` and registers R (float32, 8): legal ones with tensor-core, cp.async, cluster and warp ops, and broken ones with
the number of the invariant that they break."""

from __future__ import annotations

DECLARATIONS = """\
H = allocate_shared(bfloat16, (4096,), storage_alignment=1024)
a = allocate_register(bfloat16, (8,))
b = allocate_register(bfloat16, (4,))
c = allocate_register(float32, (64,))
flag = allocate_local(bool, ())
mask = allocate_local(uint32, ())
d: uint64 = cast(shared_address(H, thread * 0) >> uint32(4), uint64)
"""

WGMMA = ("wgmma(accumulator=c, accumulator_offset={at}, n={n}, k={k}, dtype_a={a}, dtype_b={b}, shared_b={tile}, "
         "descriptor_b={d}{more})")  # fmt: skip


def wgmma(**changes: object) -> str:
    values: dict[str, object] = {"at": 0, "n": 128, "k": 16, "a": "bfloat16", "b": "bfloat16", "tile": "H", "d": "d"}
    values["more"] = ", shared_a=H, descriptor_a=d"
    return DECLARATIONS + WGMMA.format(**{**values, **changes})


def mma(**changes: object) -> str:
    values: dict[str, object] = {"at": 60, "a": "a", "m": 16, "k": 16, "dtype": "bfloat16", "b_at": 0}
    line = ("mma_sync(accumulator=c, accumulator_offset={at}, a={a}, a_offset=0, b=b, b_offset={b_at}, m={m}, n=8, "
            "k={k}, dtype_a={dtype}, dtype_b=bfloat16)")  # fmt: skip
    return DECLARATIONS + line.format(**{**values, **changes})


def body(line: str) -> str:
    return DECLARATIONS + line


LEGAL = [
    wgmma(),
    wgmma(more=", a=a, a_offset=0, accumulate=False, transpose_b=True"),
    wgmma(n=8, at=60),
    mma(),
    body("load_matrix(destination=a, destination_offset=0, shared=H, offset=thread % 32 * 8, count=4)\n"
         "store_matrix(source=R, source_offset=4, shared=S, offset=thread % 32 * 4, count=4, transposed=True)"),
    body("wgmma_fence()\nwgmma_commit_group()\n"
         "wgmma_wait_group(pending=1, accumulators=(c,), retires=(H,), fragments=(a,))"),
    body('cp_async(shared=S, offset=thread * 4, source=A, index=thread, bytes=16, valid_bytes=thread, cache="cg")\n'
         "cp_async_commit_group()\ncp_async_mbarrier_arrive(barrier=full, index=0)\n"
         "cp_async_wait_group(pending=0, retires=(S,))"),
    body("cluster_arrive()\ncluster_wait()\nmbarrier_arrive_remote(barrier=full, index=0, cta=bx % 2)"),
    body('shuffle(destination=R, destination_offset=3, value=R[0], lane=thread, mode="idx", width=8)\nsync_warp()\n'
         'vote(destination=mask, destination_offset=0, condition=thread < 3, mode="ballot")\n'
         "elect_one(destination=flag, destination_offset=0)"),
]  # fmt: skip

LOAD = "load_matrix(destination={}, destination_offset={}, shared={}, offset={}, count={})"
COPY = "cp_async(shared={}, offset=0, source={}, index={}, bytes={}{})"
TMA = 'tma_load(tensor_map="A_map", coordinates=(0, 0), shared=S, offset=0, barrier=full, index=0, multicast={})'
SHUFFLE = 'shuffle(destination={}, destination_offset=0, value={}, lane={}, mode="{}", width={})'

BROKEN: list[tuple[int, str]] = [
    (14, body("y: uint32 = shared_address(R, 0)")),
    (14, body("y: uint32 = shared_address(S, uint32(0))")),
    (36, body("wgmma_wait_group(pending=-1)")),
    (36, body("cp_async_wait_group(pending=-1)")),
    (43, body(LOAD.format("a", 0, "H", 0, 3))),
    (43, body(LOAD.format("a", 2, "H", 0, 4))),
    (43, body(LOAD.format("S", 0, "H", 0, 1))),
    (43, body(LOAD.format("a", 0, "A", 0, 1))),
    (43, body(LOAD.format("a", 0, "H", "uint32(0)", 1))),
    (43, body("w = allocate_register(int64, (8,))\n" + LOAD.format("w", 0, "H", 0, 1))),
    (43, body("store_matrix(source=a, source_offset=7, shared=H, offset=0, count=1)")),
    (44, mma(at=61)),
    (44, mma(m=8)),
    (44, mma(k=32)),
    (44, mma(dtype="float16")),
    (44, mma(a="R")),
    (44, mma(b_at=1)),
    (45, wgmma(n=12)),
    (45, wgmma(n=264)),
    (45, wgmma(k=8)),
    (45, wgmma(at=1)),
    (45, wgmma(a="float16")),
    (45, wgmma(tile="S")),
    (45, wgmma(d="cast(d, int64)")),
    (45, wgmma(more="")),
    (45, wgmma(more=", shared_a=H, descriptor_a=d, a=a, a_offset=0")),
    (45, wgmma(more=", shared_a=H, a_offset=0")),
    (45, wgmma(more=", a=a, a_offset=0, transpose_a=True")),
    (45, wgmma(more=", a=a, a_offset=1")),
    (45, body("wgmma_wait_group(pending=0, accumulators=(S,))")),
    (46, body(COPY.format("S", "A", 0, 12, ""))),
    (46, body(COPY.format("S", "A", 0, 8, ', cache="cg"'))),
    (46, body(COPY.format("S", "A", 0, 16, ', cache="cs"'))),
    (46, body(COPY.format("S", "S", 0, 4, ""))),
    (46, body(COPY.format("R", "A", 0, 4, ""))),
    (46, body(COPY.format("S", "A", 0, 4, ", valid_bytes=int64(2)"))),
    (46, body(COPY.format("S", "A", "uint32(0)", 4, ""))),
    (47, body(TMA.format(0))),
    (47, body(TMA.format(2))),
    (47, body(TMA.format("cast(thread, int64)"))),
    (47, body("mbarrier_arrive_remote(barrier=full, index=0, cta=1)")),
    (47, body("mbarrier_arrive_remote(barrier=full, index=0, cta=int64(0))")),
    (48, body(SHUFFLE.format("R", "thread", 1, "xor", 32))),
    (48, body(SHUFFLE.format("S", "R[0]", 1, "xor", 32))),
    (48, body(SHUFFLE.format("R", "R[0]", "int64(1)", "xor", 32))),
    (48, body(SHUFFLE.format("R", "R[0]", 1, "left", 32))),
    (48, body(SHUFFLE.format("R", "R[0]", 1, "xor", 12))),
    (48, body("vote(destination=flag, destination_offset=0, condition=True, mode=\"most\")")),
    (48, body("vote(destination=flag, destination_offset=0, condition=True, mode=\"ballot\")")),
    (48, body("vote(destination=mask, destination_offset=0, condition=True)")),
    (48, body("elect_one(destination=mask, destination_offset=0)")),
]  # fmt: skip
