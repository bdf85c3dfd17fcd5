"""Accesses that are not local go through shared memory: permuted reads, writes and both, run in the simulator against
torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.buffers import Scope
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, ParallelFor
from ptxtile.lower import infer_layouts
from ptxtile.lower.stage_fragments import layout_of
from tests.lower.kernel_texts import apply, kernel_program, nodes, reasons, simulated

ROWS, COLUMNS = 16, 32
DECLARATIONS = "X = tensor(float32, (16, 32))\nY = tensor(float32, (16, 32))\nZ = tensor(float32, (32, 16))"
LOAD = "for i0, j0 in parallel(16, 32):\n    F[i0, j0] = X[i0, j0]\n"
SAVE = "for i9, j9 in parallel(16, 32):\n    Y[i9, j9] = F[i9, j9]\n"


def matrix() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS)


def program(body: str, threads: int = 64) -> Program:
    return kernel_program("F = allocate_fragment(float32, (16, 32))\n" + body, DECLARATIONS, threads=threads)


def exchanged(of: Program) -> list[str]:
    """Names of the shared tiles that the layouts needed."""
    result = apply(infer_layouts, of)
    return [node.buffer.name for node in nodes(result, Allocate) if node.buffer.scope is Scope.SHARED]


# (indices in terms of i and j, the same as NumPy-style index tensors)
PERMUTATIONS = {
    "reversed rows": ("15 - i, j", lambda i, j: (15 - i, j)),
    "reversed columns": ("i, 31 - j", lambda i, j: (i, 31 - j)),
    "rotated columns": ("i, (j + 3) % 32", lambda i, j: (i, (j + 3) % 32)),
    "rotated rows": ("(i + 5) % 16, j", lambda i, j: ((i + 5) % 16, j)),
    "skewed": ("(i + j) % 16, j", lambda i, j: ((i + j) % 16, j)),
    "reshaped": ("(j * 16 + i) // 32, (j * 16 + i) % 32", lambda i, j: ((j * 16 + i) // 32, (j * 16 + i) % 32)),
    "xor": ("i ^ 5, j ^ 9", lambda i, j: (i ^ 5, j ^ 9)),
}
I, J = torch.meshgrid(torch.arange(ROWS), torch.arange(COLUMNS), indexing="ij")


@pytest.mark.parametrize("threads", [32, 64, 96])
@pytest.mark.parametrize("name", PERMUTATIONS)
def test_permuted_reads(name: str, threads: int):
    indices, permuted = PERMUTATIONS[name]
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = LOAD + f"for i, j in parallel(16, 32):\n    Y[i, j] = F[{indices}] + F[i, j]"
    simulated(program(body, threads), X=x, Y=y, Z=torch.empty(32, 16))
    assert torch.equal(y, x[permuted(I, J)] + x)


@pytest.mark.parametrize("threads", [32, 64, 96])
@pytest.mark.parametrize("name", PERMUTATIONS)
def test_permuted_writes(name: str, threads: int):
    indices, permuted = PERMUTATIONS[name]
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = LOAD + f"for i, j in parallel(16, 32):\n    F[{indices}] = X[i, j] * float32(2.0)\n" + SAVE
    simulated(program(body, threads), X=x, Y=y, Z=torch.empty(32, 16))
    expected = torch.empty_like(x)
    expected[permuted(I, J)] = x * 2
    assert torch.equal(y, expected)


def test_writes_of_a_part_keep_the_rest():
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = LOAD + "for i, j in parallel(4, 8):\n    F[15 - i, 3 * j] = float32(7.0)\n" + SAVE
    simulated(program(body), X=x, Y=y, Z=torch.empty(32, 16))
    expected = x.clone()
    expected[-4:, 0:24:3] = 7
    assert torch.equal(y, expected)


def test_a_loop_that_reads_and_writes_one_fragment():
    """Each iteration moves its own element pair, so the loop is a legal T.Parallel."""
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = LOAD + "for i, j in parallel(8, 32):\n    F[i, j] = F[15 - i, j] + F[i, j]\n" + SAVE
    simulated(program(body), X=x, Y=y, Z=torch.empty(32, 16))
    expected = x.clone()
    expected[:8] += x.flip(0)[:8]
    assert torch.equal(y, expected)


def test_a_transposed_read_and_a_transposed_write():
    x, y, z = matrix(), torch.full((ROWS, COLUMNS), float("nan")), torch.full((32, 16), float("nan"))
    body = (
        LOAD
        + "G = allocate_fragment(float32, (32, 16))\n"
        + "for a, b in parallel(32, 16):\n    G[a, b] = F[b, a]\n"
        + "for a2, b2 in parallel(32, 16):\n    Z[a2, b2] = G[a2, b2]\n"
        + "for a3, b3 in parallel(32, 16):\n    F[b3, a3] = G[a3, b3] + float32(1.0)\n"
        + SAVE
    )
    simulated(program(body), X=x, Y=y, Z=z)
    assert torch.equal(z, x.T) and torch.equal(y, x + 1)


def test_a_fragment_read_at_a_position_from_memory():
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    picks = torch.randperm(ROWS, dtype=torch.int32)
    body = LOAD + "for i, j in parallel(16, 32):\n    Y[i, j] = F[rows[i], j]"
    source = kernel_program(
        "F = allocate_fragment(float32, (16, 32))\n" + body,
        DECLARATIONS + "\nrows = tensor(int32, (16,))",
        threads=64,
    )
    simulated(source, X=x, Y=y, Z=torch.empty(32, 16), rows=picks)
    assert torch.equal(y, x[picks.long()])


def test_exchanges_in_a_loop_run_every_time():
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = (
        LOAD
        + "for k in serial(0, 5):\n    for i, j in parallel(16, 32):\n        F[i, (j + 1) % 32] = F[i, j]\n"
        + SAVE
    )
    with_copy = body.replace("F[i, (j + 1) % 32] = F[i, j]", "G[i, j] = F[i, (j + 1) % 32]").replace(
        "for k in serial", "G = allocate_fragment(float32, (16, 32))\nfor k in serial"
    )
    with_copy = with_copy.replace(SAVE, "    for i2, j2 in parallel(16, 32):\n        F[i2, j2] = G[i2, j2]\n" + SAVE)
    simulated(program(with_copy), X=x, Y=y, Z=torch.empty(32, 16))
    assert torch.equal(y, torch.roll(x, -5, dims=1))


def test_a_loop_left_early_cannot_be_unrolled_and_goes_through_shared_memory():
    """F[k, j] would need a register for each k; the loop over k has a way out, so its rounds are not known."""
    x, y = matrix(), torch.full((ROWS, COLUMNS), float("nan"))
    body = (
        "for i0, j0 in parallel(16, 32):\n    F[i0, j0] = float32(0.0)\n"
        "for k in serial(0, 16):\n    if X[k, 0] < float32(0.0):\n        break\n"
        "    for j in parallel(32):\n        F[k, j] = X[k, j]\n" + SAVE
    )
    x[:, 0] = x[:, 0].abs()
    x[11, 0] = -1.0
    simulated(program(body), X=x, Y=y, Z=torch.empty(32, 16))
    expected = x.clone()
    expected[11:] = 0
    assert torch.equal(y, expected)


# ---- when there is an exchange, and what it looks like


def test_local_accesses_need_no_exchange():
    assert exchanged(program(LOAD + SAVE)) == []
    assert exchanged(program(LOAD + "for i, j in parallel(32, 16):\n    Z[i, j] = F[j, i]")) == []  # the loop follows


def test_a_loop_that_cannot_follow_two_accesses_exchanges_once_for_each_fragment():
    body = LOAD + "for i, j in parallel(16, 32):\n    Y[i, j] = F[i, j] + F[i, 31 - j] + F[15 - i, 31 - j]"
    assert exchanged(program(body)) == ["F_exchange"]
    result = apply(infer_layouts, program(body))
    assert reasons(result, "infer_layouts").count("a parallel loop needs elements that other threads hold") == 1


def test_a_read_is_written_out_once_and_a_write_is_read_back():
    read = apply(infer_layouts, program(LOAD + "for i, j in parallel(16, 32):\n    Y[i, j] = F[i, j] + F[i, 31 - j]"))
    assert len(nodes(read, ParallelFor)) == 2 + 1
    body = LOAD + "for i, j in parallel(16, 32):\n    F[i, (j + F_0) % 32] = X[i, j]\n".replace("F_0", "bx") + SAVE
    written = apply(infer_layouts, program(body))
    assert len(nodes(written, ParallelFor)) == 3 + 2
    for loop in nodes(written, ParallelFor) + nodes(read, ParallelFor):
        assert layout_of(loop).threads == 64


sizes = st.sampled_from([(16, 32), (8, 24), (5, 7), (1, 33), (12, 4)])


@settings(max_examples=12)
@given(sizes, st.sampled_from((32, 64, 96)), st.data())
def test_random_permutations_of_random_tiles(size: tuple[int, int], threads: int, data):
    """F[(i + a) % m, (j + b) % n] on both sides of an assignment, of tiles that do not divide the threads."""
    m, n = size
    a, b, c, d = (data.draw(st.integers(0, 40)) for _ in range(4))
    source = kernel_program(
        f"""
        F = allocate_fragment(float32, ({m}, {n}))
        G = allocate_fragment(float32, ({m}, {n}))
        for i0, j0 in parallel({m}, {n}):
            F[i0, j0] = X[i0, j0]
        for i1, j1 in parallel({m}, {n}):
            G[(i1 + {a}) % {m}, (j1 + {b}) % {n}] = F[(i1 + {c}) % {m}, (j1 + {d}) % {n}]
        for i2, j2 in parallel({m}, {n}):
            Y[i2, j2] = G[i2, j2]
        """,
        f"X = tensor(float32, ({m}, {n}))\nY = tensor(float32, ({m}, {n}))",
        threads=threads,
    )
    x, y = torch.randn(m, n), torch.full((m, n), float("nan"))
    simulated(source, X=x, Y=y)
    assert torch.equal(y, torch.roll(torch.roll(x, (-c, -d), (0, 1)), (a, b), (0, 1)))
