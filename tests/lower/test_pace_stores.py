"""Where stores of an epilogue are paced, and where not."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest

from examples.gemm_persistent import gemm_persistent
from ptxtile import target
from ptxtile.compiler import lower_program
from ptxtile.ir.gpu_ops import BulkCommitGroup, BulkWaitGroup, TmaStore
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Seq
from ptxtile.lower import pace_stores
from tests.lower.kernel_texts import apply, body_text, kernel_program, text

DECLARATIONS = """
C = tensor(bfloat16, (128, 1024))
D = tensor(bfloat16, (128, 1024))
TensorMapRecord(name="C_map", tensor="C", dtype="bfloat16", dimensions=(1024, 128), strides=(2048,), box=(64, 128))
TensorMapRecord(name="D_map", tensor="D", dtype="bfloat16", dimensions=(1024, 128), strides=(2048,), box=(64, 128))
"""
TILES = """
S = allocate_shared(bfloat16, (8192,), storage_alignment=1024, storage_offset=0)
R = allocate_shared(bfloat16, (8192,), storage_alignment=1024, storage_offset=16384)
"""


def stored(tile: str, tensor: str, column: str) -> str:
    return (
        "    if tx == 0:\n"
        f'        tma_store(tensor_map="{tensor}_map", coordinates=({column}, 0), shared={tile}, offset=0)\n'
        "        bulk_commit_group()\n"
    )


def paced(body: str) -> str:
    program = kernel_program(TILES + body, DECLARATIONS, stage="gpu")
    return body_text(apply(pace_stores, program))


def waits(body: str) -> int:
    return paced(body).count("bulk_wait_group(pending=1, read=False)")


def test_a_tile_that_an_iteration_stores_twice():
    body = "for i in serial(0, 4):\n" + stored("S", "C", "i * 128") + stored("S", "C", "i * 128 + 64")
    expected = """
        for i in serial(0, 4):
            if tx == 0:
                bulk_wait_group(pending=1, read=False)
                tma_store(tensor_map="C_map", coordinates=(i * 128, 0), shared=S, offset=0)
                bulk_commit_group()
            if tx == 0:
                bulk_wait_group(pending=1, read=False)
                tma_store(tensor_map="C_map", coordinates=(i * 128 + 64, 0), shared=S, offset=0)
                bulk_commit_group()
    """
    assert paced(body).endswith(text(expected))


def test_two_tiles_by_turns():
    loop = "for i in serial(0, 2):\n"
    turns = [stored("S" if turn % 2 == 0 else "R", "C", f"i * 256 + {64 * turn}") for turn in range(4)]
    assert waits(loop + "".join(turns)) == 4
    assert waits(loop + "".join(turns[:3])) == 2, "R is stored once"


def test_what_is_stored_once_an_iteration_is_left_alone():
    assert waits("for i in serial(0, 4):\n" + stored("S", "C", "i * 64") + stored("R", "D", "i * 64")) == 0
    assert waits("if tx < 32:\n" + stored("S", "C", "0") + stored("S", "C", "64")) == 0, "no loop"


def test_stores_of_an_inner_loop_are_its_own():
    store = indent(stored("S", "C", "i * 128 + j * 64"), "    ")
    assert waits("for i in serial(0, 4):\n    for j in serial(0, 2):\n" + store) == 0


def lowered(**options: Any) -> Program:
    traced = gemm_persistent.specialize(M=512, N=768, K=128, sms=4, threads=256, **options).variant.tile_program
    return lower_program(traced, target.get("sm_90a"))[0]


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        (dict(block_N=256, num_stages=4), 2),  # 35 KiB are left: two halves
        (dict(block_N=192, num_stages=4), 0),  # 67 KiB: all at once
        (dict(block_N=128, num_stages=6), 0),
    ],
)
def test_epilogues_of_several_chunks_are_paced(options: dict[str, Any], groups: int):
    program = lowered(**options)
    found = 0
    for node in walk(program.kernels[0].body):
        if isinstance(node, Seq) and any(isinstance(statement, BulkCommitGroup) for statement in node.statements):
            assert any(isinstance(statement, TmaStore) for statement in node.statements)
            found += isinstance(node.statements[0], BulkWaitGroup)
    assert found == groups
    decisions = [why.decision for why in program.why if why.pass_name == "pace_stores"]
    assert decisions == (["stores are paced"] if groups else [])
