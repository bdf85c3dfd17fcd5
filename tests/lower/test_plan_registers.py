"""Registers of roles: what fits into the pool, what consumers need, and what the assembler makes of it."""

from __future__ import annotations

import re

import pytest

from ptxtile.ir.gpu_ops import SetMaxRegisters
from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Role
from ptxtile.kernel import JITKernel
from ptxtile.lower.plan_registers import fragment_registers, plan_registers
from tests.clusters.simulate import nodes, specialized
from tests.gemm.kernels import gemm
from tests.ptxas import assemble

FILE, SHARED, THREADS = 65_536, 228 * 1024, 2048
"""Of an H100's multiprocessor: registers, bytes of shared memory, threads (CUDA C++ Programming Guide, «Technical
Specifications per Compute Capability», 9.0)."""


@pytest.mark.parametrize(
    ("consumers", "expected"), [(128, (24, 240)), (256, (24, 240)), (384, (24, 160)), (512, (24, 112))]
)
def test_pairs_of_one_block(consumers, expected):
    plan = plan_registers(consumers)
    assert (plan.producer, plan.consumer) == expected


@pytest.mark.parametrize("blocks", range(1, 9))
@pytest.mark.parametrize("consumers", range(128, 1024, 128))
def test_no_pair_asks_for_more_than_the_launch_got(consumers, blocks):
    threads = consumers + 128
    if threads * blocks > THREADS:
        return
    plan = plan_registers(consumers, blocks=blocks)
    assert plan.launch % 8 == plan.consumer % 8 == 0
    assert 128 * plan.producer + consumers * plan.consumer <= plan.launch * threads <= FILE // blocks
    assert plan.consumer == 240 or 128 * 24 + consumers * (plan.consumer + 8) > plan.launch * threads


def planned(kernel: JITKernel) -> tuple[int, int]:
    """(blocks on a multiprocessor, registers of a consumer)"""
    counts = {node.action: node.count for node in nodes(kernel.program, SetMaxRegisters)}
    return kernel.program.kernels[0].min_blocks, counts["inc"]


@pytest.mark.parametrize(
    ("options", "blocks", "at_least"),
    [
        # 128 consumers and 128 producers; two rings of 64 KB fit, and 128 accumulators with what is beside them
        ({"block_M": 128, "block_N": 128, "num_stages": 2}, 2, 188),
        ({"block_M": 64, "block_N": 128, "num_stages": 3}, 2, 124),
        ({"block_M": 64, "block_N": 64, "num_stages": 4}, 3, 92),
        # shared memory admits eight of it, registers four
        ({"block_M": 64, "block_N": 64, "num_stages": 2, "block_K": 32}, 4, 92),
        ({"block_M": 128, "block_N": 128, "num_stages": 4}, 1, 188),
        ({"block_M": 128, "block_N": 256, "num_stages": 4, "threads": 256}, 1, 188),
        # a single wgmma of 256 columns does not fit into what two blocks would get at launch
        ({"block_M": 64, "block_N": 256, "num_stages": 2}, 1, 188),
    ],
)
def test_as_many_blocks_as_fit(options, blocks, at_least):
    kernel = specialized(
        gemm, "sm_90a", M=512, N=512, K=512, transpose_B=True, out="bfloat16", **{"threads": 128, **options}
    )  # fmt: skip
    found, consumer = planned(kernel)
    shared = kernel.launch.launches[0].shared_bytes
    assert found == blocks and consumer >= at_least
    assert found * (shared + 1024) <= SHARED
    assert any(why.pass_name == "plan_registers" and f"{blocks} CTA" in why.decision for why in kernel.why)
    log = assemble(kernel.ptx, "sm_90a")
    assert "0 bytes spill stores" in log and "setmaxnreg" not in log and "C75" not in log, log
    (used,) = (int(count) for count in re.findall(r"Used (\d+) registers", log))
    assert used * kernel.program.kernels[0].threads * blocks <= FILE


@pytest.mark.parametrize(
    "options", [{"block_M": 192, "block_N": 256, "threads": 384}, {"block_M": 256, "threads": 512}]
)
def test_instructions_fit_into_what_many_threads_get_at_launch(options):
    """ptxas refuses a wgmma whose operands exceed the launch's registers, whatever setmaxnreg asks for later."""
    kernel = specialized(
        gemm, "sm_90a", M=768, N=512, K=512, transpose_B=True, out="bfloat16", num_stages=2, **options
    )  # fmt: skip
    assemble(kernel.ptx, "sm_90a")


def test_the_users_count_of_blocks_is_kept():
    import ptxtile
    import ptxtile.language as T

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((128, 256), "bfloat16")
        B: T.Tensor((128, 256), "bfloat16")
        C = T.empty((128, 128), "bfloat16")
        with T.Kernel(2, threads=128) as bx:
            T.annotate_min_blocks_per_sm(1 + 1)
            A_shared = T.alloc_shared((64, 32), "bfloat16")
            B_shared = T.alloc_shared((128, 32), "bfloat16")
            C_local = T.alloc_fragment((64, 128), "float32")
            T.clear(C_local)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[bx * 64, k * 32], A_shared)
                T.copy(B[0, k * 32], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[bx * 64, 0])
        return C

    assert planned(specialized(kernel, "sm_90a"))[0] == 2


# -- what arrays take ----------------------------------------
KERNEL = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(float32, (65536,))
@kernel(grid=(4, 1, 1), threads=128, shared_bytes=0)
def kernel(bx, by, bz, tx):
    with specialized():
        with role("consumer", first_thread=0, threads=128, registers=240):
            a = allocate_register(float32, (64,))
            b = allocate_register(bfloat16, (64,))
            c = allocate_register(float32, (8,))
"""


def registers(*body: str) -> int:
    text = KERNEL + "".join(f"            {line}\n" for line in body)
    program: Program = parse_program(text)
    (role,) = (node for node in nodes(program, Role))
    return fragment_registers(role.body)


SET_A, SET_B = "a[0] = A[tx]", "b[0] = cast(A[tx], bfloat16)"
READ_A, READ_B, READ_C = "A[tx] = a[0]", "A[tx] = cast(b[0], float32)", "A[tx] = c[0]"
SET_C = "c[0] = A[tx]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((SET_A, READ_A), 64),
        ((SET_A, READ_A, SET_B, READ_B), 64),  # one after the other
        ((SET_A, SET_B, READ_A, READ_B), 64 + 32),
        ((SET_A, "b[0] = cast(a[0], bfloat16)", READ_B), 64),  # b takes a's place
        (("for k in serial(0, 4):", "    a[0] = a[0] + A[tx]", READ_A), 64),
        # made before the loop, read in it: alive through all of it
        ((SET_C, "for k in serial(0, 4):", "    " + READ_C, "    " + SET_A, "    " + READ_A), 64 + 8),
        # made and read in each iteration anew
        (("for k in serial(0, 4):", "    " + SET_C, "    " + READ_C, "    " + SET_A, "    " + READ_A), 64),
        (("for v in unrolled(0, 4):", "    b[v] = cast(a[v], bfloat16)"), 0),
        ((SET_A, "for v in unrolled(0, 4):", "    b[v] = cast(a[v], bfloat16)", READ_B), 64),
    ],
)
def test_arrays_take_registers_from_their_first_use_to_their_last(body, expected):
    assert registers(*body) == expected
