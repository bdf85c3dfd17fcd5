"""Copies on the cp.async path: which bytes they bring, zeros included, and what the pass makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import sim, target
from ptxtile.compiler import lower_program
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.program import Program
from ptxtile.ir.statements import For, LoopKind
from ptxtile.lower import lower_async_copies
from ptxtile.lower.options import Options
from ptxtile.sim.async_effects import LateEffects
from tests.lower.kernel_texts import apply, kernel_program, nodes, text

KERNEL = """
S = allocate_shared({dtype}, {tile})
for i, j in parallel{tile}:
    S[i, j] = {dtype}({poison})
copy(A[{row}, {column}].tile{tile}, S, path=CopyPath.CP_ASYNC, coalesced_width={width})
cp_async_commit_group()
cp_async_wait_group(pending=0, retires=(S,))
for k, l in parallel{tile}:
    C[k, l] = S[k, l]
"""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8, "float64": torch.float64}


def lowered(dtype: str, shape: tuple[int, int], tile: tuple[int, int], start: tuple[int, int], width: int,
            threads: int = 64) -> Program:  # fmt: skip
    body = KERNEL.format(dtype=dtype, tile=tile, row=start[0], column=start[1], width=width,
                         poison="77" if dtype == "int8" else "77.0")  # fmt: skip
    declared = f"A = tensor({dtype}, {shape})\nC = tensor({dtype}, {tile})"
    written = kernel_program(body, declared, threads=threads, stage="async")
    program, _ = lower_program(written, target.get("sm_80"), Options())
    return program


def window(a: torch.Tensor, tile: tuple[int, int], start: tuple[int, int]) -> np.ndarray:
    """``tile`` elements of ``a`` from ``start`` on, with zeros outside."""
    result = np.zeros(tile, a.numpy().dtype)
    for i in range(tile[0]):
        for j in range(tile[1]):
            row, column = start[0] + i, start[1] + j
            if 0 <= row < a.shape[0] and 0 <= column < a.shape[1]:
                result[i, j] = a[row, column]
    return result


@settings(max_examples=40)
@given(st.data())
def test_every_element_comes_and_zeros_where_there_is_none(data) -> None:
    """Starts before, in and behind the tensor; rows that end inside of a piece; any number of threads."""
    dtype = data.draw(st.sampled_from(sorted(DTYPES)))
    size = DTYPES[dtype].itemsize
    width = data.draw(st.sampled_from([w for w in (1, 2, 4, 8, 16) if w * size in (4, 8, 16)]))
    unit = 16 // size
    shape = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 6)) * unit
    tile = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5)) * width
    start = data.draw(st.integers(-13, 21)), data.draw(st.integers(-6, 12)) * width
    a = torch.arange(shape[0] * shape[1]).reshape(shape).remainder(50).add(1).to(DTYPES[dtype])
    c = torch.full(tile, -3).to(DTYPES[dtype])
    program = lowered(dtype, shape, tile, start, width, data.draw(st.sampled_from([32, 64, 96])))
    sim.run(program, {"A": a, "C": c}, {}, effects=LateEffects)
    assert np.array_equal(c.numpy(), window(a, tile, start))


@pytest.mark.parametrize("columns", [44, 45, 47])
def test_a_row_may_end_inside_of_a_piece(columns: int) -> None:
    """The strides are those of rows of 48 elements, of which the tensor has fewer."""
    body = KERNEL.format(dtype="float32", tile=(8, 64), row=0, column=0, width=4, poison="77.0")
    declared = f"A = tensor(float32, (8, {columns}), strides=(48, 1))\nC = tensor(float32, (8, 64))"
    program, _ = lower_program(
        kernel_program(body, declared, threads=64, stage="async"), target.get("sm_80"), Options()
    )
    memory = torch.arange(8 * 48).float() + 1
    a, c = memory.reshape(8, 48)[:, :columns], torch.zeros(8, 64)
    sim.run(program, {"A": a, "C": c}, {}, effects=LateEffects)
    assert np.array_equal(c.numpy(), window(a, (8, 64), (0, 0)))


def copies(body: str, declared: str = "A = tensor(float16, (4096, 4096))", threads: int = 128) -> Program:
    written = kernel_program(text(body), declared, grid="(8, 8, 1)", threads=threads, stage="thread")
    return apply(lower_async_copies, written, "sm_80")


def test_a_tile_inside_of_the_tensor_needs_no_guards() -> None:
    program = copies(
        """
        S = allocate_shared(float16, (2, 64, 64))
        copy(A[by * 64, bx * 64].tile(64, 64), S[bx % 2, 0, 0].tile(1, 64, 64), path=CopyPath.CP_ASYNC,
             coalesced_width=8)
    """.replace(",\n             coalesced", ", coalesced")
    )
    (operation,) = nodes(program, CpAsync)
    assert (operation.bytes, operation.cache, operation.valid_bytes) == (16, "cg", None)
    (loop,) = nodes(program, For)
    assert loop.kind is LoopKind.UNROLLED
    assert loop.stop.value == 64 * 64 // 8 // 128


def test_pieces_of_less_than_16_bytes_go_through_l1() -> None:
    program = copies("""
        S = allocate_shared(float16, (64, 64))
        copy(A[by * 64, bx * 64].tile(64, 64), S, path=CopyPath.CP_ASYNC, coalesced_width=4)
    """)
    (operation,) = nodes(program, CpAsync)
    assert (operation.bytes, operation.cache) == (8, "ca")


def test_many_pieces_of_a_thread_are_a_loop() -> None:
    program = copies("""
        S = allocate_shared(float16, (128, 128))
        copy(A[0, 0].tile(128, 128), S, path=CopyPath.CP_ASYNC, coalesced_width=4)
    """, threads=32)  # fmt: skip
    (loop,) = nodes(program, For)
    assert loop.kind is LoopKind.SERIAL
