"""What the producer role runs: the loads, the control flow and the scalars that they need, under names of its own; and
the refusals, each with the nearest case that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ptxtile.ir.program import Program
from ptxtile.ir.statements import Specialized
from ptxtile.lower.options import Options
from ptxtile.lower.producer_slice import SliceRefused, producer_slice
from tests.lower.kernel_texts import body_text, kernel_program, nodes, simulated, text

DECLARATIONS = """
X = tensor(float32, (64, 64))
Y = tensor(float32, (64, 64))
P = tensor(float32, (64, 64), alias_group=0)
Q = tensor(int32, (64, 64), alias_group=0)
rows = tensor(int32, (64,))
M = symbol(int32)
"""
TILES = """
S = allocate_shared(float32, (16, 64))
F = allocate_fragment(float32, (16, 64))
n = allocate_local(int32, ())
n[()] = 0
"""
LOAD = "copy(X[{row} * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)"


def program(body: str) -> Program:
    return kernel_program(TILES + text(body.replace("§", LOAD.format(row="bx"))), DECLARATIONS, grid="(4, 1, 1)")


def sliced(body: str) -> str:
    """The text of the slice, without the tiles and tensors that it does not declare."""
    source = program(body)
    kernel = source.kernels[0]
    shown = body_text(replace(source, kernels=(replace(kernel, body=producer_slice(source, kernel)),)))
    lines = [line for line in shown.splitlines() if " = alias" not in line and line != "with sequence():"]
    return text("\n".join(lines))


def refusal(body: str) -> str:
    source = program(body)
    with pytest.raises(SliceRefused) as refused:
        producer_slice(source, source.kernels[0])
    return str(refused.value)


# ---- what stays


def test_only_the_load_of_a_straight_program_stays():
    body = """
    fill(F, float32(0.0))
    §
    for i, j in parallel(16, 64):
        F[i, j] = S[i, j]
    copy(F, Y[bx * 16, 0].tile(16, 64), path=CopyPath.VECTOR)
    copy(S, Y[bx * 16, 0].tile(16, 64), path=CopyPath.TMA_STORE)
    """
    assert sliced(body) == "copy(X[bx * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)"


def test_scalars_that_the_position_needs_stay_under_new_names_and_others_go():
    body = """
    a: int32 = bx * 2
    unused: int32 = a + 1
    n[()] = rows[a]
    m = allocate_local(int32, ())
    m[()] = a
    copy(X[n[()] * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    assert sliced(body) == text(
        """
        n_producer = allocate_local(int32, ())
        n_producer[()] = 0
        a_producer: int32 = bx * 2
        n_producer[()] = rows[a_producer]
        copy(X[n_producer[()] * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
        """
    )


def test_the_control_flow_around_loads_stays_with_its_ways_out():
    body = """
    for k in serial(0, M):
        if rows[k] < 0:
            break
        if k == 3:
            continue
        x: int32 = k * 2
        copy(X[k * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
        for i, j in parallel(16, 64):
            F[i, j] = S[i, j] + cast(x, float32)
    for h in serial(0, M):
        copy(F, Y[bx * 16, 0].tile(16, 64), path=CopyPath.VECTOR)
    """
    assert sliced(body) == text(
        """
        for k_producer in serial(0, M):
            if rows[k_producer] < 0:
                break
            if k_producer == 3:
                continue
            copy(X[k_producer * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
        """
    )


def test_a_while_loop_and_the_scalar_that_ends_it():
    body = """
    while n[()] < M:
        §
        n[()] = n[()] + 1
    """
    assert sliced(body) == text(
        """
        n_producer = allocate_local(int32, ())
        n_producer[()] = 0
        while n_producer[()] < M:
            copy(X[bx * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
            n_producer[()] = n_producer[()] + 1
        """
    )


def test_a_scalar_that_is_set_under_a_condition_keeps_the_condition():
    body = """
    a: int32 = M + 1
    if a > 3:
        n[()] = 2
    else:
        F[0, 0] = float32(1.0)
    copy(X[n[()] * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    found = sliced(body)
    assert "a_producer: int32 = M + 1" in found and "if a_producer > 3:\n    n_producer[()] = 2" in found
    assert "F" not in found.replace("PATH", "")


@pytest.mark.parametrize("scope", ["local", "fragment"])
def test_a_table_is_filled_by_the_producer_too(scope: str):
    body = f"""
    R = allocate_{scope}(int32, (8,))
    Q2 = allocate_{scope}(int32, (8,))
    fill(Q2, 3)
    fill(R, 0)
    for k in serial(0, M):
        copy(rows[k * 4].tile(4), R[0].tile(4), path=CopyPath.VECTOR)
        Q2[0] = k
        for h in serial(0, 8):
            copy(X[R[h] * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    assert sliced(body) == text(
        """
        R_producer = allocate_local(int32, (8,))
        fill(R_producer, 0)
        for k_producer in serial(0, M):
            copy(rows[k_producer * 4].tile(4), R_producer[0].tile(4), path=CopyPath.VECTOR)
            for h_producer in serial(0, 8):
                copy(X[R_producer[h_producer] * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
        """
    )


# ---- refusals

POSITION = LOAD.format(row="cast({value}, int32)")

FROM_SHARED = "copy(S, F, path=CopyPath.VECTOR)\n"
TABLE = "R = allocate_local(int32, (8,))\ncopy(rows[bx * 8].tile(8), R, path=CopyPath.VECTOR)\n"

REFUSED = {
    "shared memory": (
        "V = allocate_shared(int32, (4,))\n" + POSITION.format(value="V[0]"),
        "V, which only the consumers have",
    ),
    "a fragment": (FROM_SHARED + POSITION.format(value="F[0, 0]"), "F, which only the consumers have"),
    "a condition on a fragment": (
        FROM_SHARED + "if F[0, 0] > float32(0.0):\n    §", "F, which only the consumers have",
    ),
    "a fragment that a loop writes": (
        "for i, j in parallel(16, 64):\n    F[i, j] = X[i, j]\n" + POSITION.format(value="F[0, 0]"),
        "F, which only the consumers have",
    ),
    "a table from a tensor that is written": (
        TABLE + "rows[0] = 3\n" + POSITION.format(value="R[1]"), "rows, which the kernel writes",
    ),
    "a table that other threads hold otherwise": (
        "n[()] = tx\n" + TABLE + "R[3] = n[()]\n" + POSITION.format(value="R[1]"), "n, which differs between threads",
    ),
    "a view of a table": (
        TABLE + 'V = view_local(int32, (8,), storage_name="R")\n' + POSITION.format(value="V[1]"),
        "V, which only the consumers have",
    ),
    "a written tensor": ("rows[0] = 3\n" + POSITION.format(value="rows[1]"), "rows, which the kernel writes"),
    "a tensor written by a copy": (
        "R = allocate_shared(int32, (64,))\ncopy(R, rows, path=CopyPath.VECTOR)\n" + POSITION.format(value="rows[1]"),
        "rows, which the kernel writes",
    ),
    "a tensor written by a fill": (
        "fill(rows, 0)\n" + POSITION.format(value="rows[1]"),
        "rows, which the kernel writes",
    ),
    "a tensor written by an atomic": (
        'atomic(operator="add", buffer=rows, indices=(0,), value=1)\n' + POSITION.format(value="rows[1]"),
        "rows, which the kernel writes",
    ),
    "a tensor written later in the loop": (
        "for k in serial(0, 3):\n    " + POSITION.format(value="rows[k]") + "\n    rows[k] = 3",
        "rows, which the kernel writes",
    ),
    "an alias of a written tensor": (
        "for i in parallel(64):\n    P[0, i] = float32(1.0)\n" + POSITION.format(value="Q[0, 0]"),
        "Q, which the kernel writes",
    ),
    "loading what is stored": (
        "§\ncopy(S, X[bx * 16, 0].tile(16, 64), path=CopyPath.TMA_STORE)", "the kernel writes X",
    ),
    "loading what is filled": ("fill(X, float32(0.0))\n§", "the kernel writes X"),
    "loading an alias of what is stored": (
        "Q[0, 0] = 1\ncopy(P[0, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)", "the kernel writes P",
    ),
    "the result of an atomic": (
        'atomic(operator="add", buffer=rows, indices=(0,), value=1, result=n)\n' + POSITION.format(value="n[()]"),
        "n, the result of an operation that runs once",
    ),
    "a loop over threads": ("for k in serial(0, tx):\n    §", "control flow around a load depends on the thread"),
    "a condition on threads": ("if tx < 3:\n    n[()] = 1\n" + POSITION.format(value="n[()]"), "depends on the thread"),
    "a while over threads": (
        "while n[()] < tx:\n    n[()] = n[()] + 1\n" + POSITION.format(value="n[()]"),
        "depends on the thread",
    ),
}  # fmt: skip

ACCEPTED = {
    "a tensor that is only read": POSITION.format(value="rows[1]"),
    "another tensor is written": "Y[0, 0] = float32(1.0)\n" + POSITION.format(value="rows[1]"),
    "a tensor outside of the alias group": "Q[0, 0] = 1\n§",
    "a condition on the block": "if bx > 1:\n    §",
    "the result of an atomic that no load needs": (
        'atomic(operator="add", buffer=rows, indices=(0,), value=1, result=n)\n§'
    ),
    "a condition on threads that no load needs": "if tx < 3:\n    n[()] = 1\n§",
    "a fragment that no load needs": "n[()] = cast(F[0, 0], int32)\n§",
    "a table": TABLE + POSITION.format(value="R[1]"),
    "a table that is set": TABLE + "R[1] = bx\n" + POSITION.format(value="R[1]"),
    "a table in a fragment": TABLE.replace("local", "fragment") + POSITION.format(value="R[1]"),
    "a shared tile that is written": "S[0, 0] = float32(1.0)\n§",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str):
    body, reason = REFUSED[name]
    assert reason in refusal(body)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_nearest_cases_that_are_accepted(name: str):
    assert "copy(X[" in sliced(ACCEPTED[name])


# ---- in the simulator


@pytest.mark.parametrize(
    "body",
    [
        # a list of tiles with an end mark
        """
        for k in serial(0, 8):
            if rows[k] < 0:
                break
            copy(X[rows[k] * 16, 0].tile(16, 64), S)
            for i, j in parallel(16, 64):
                F[i, j] = F[i, j] + S[i, j]
        """,
        # the same with a while, a scalar and a skipped round
        """
        while n[()] < 8 and rows[n[()]] >= 0:
            n[()] = n[()] + 1
            if rows[n[()] - 1] > 100:
                continue
            copy(X[rows[n[()] - 1] * 16, 0].tile(16, 64), S)
            for i, j in parallel(16, 64):
                F[i, j] = F[i, j] + S[i, j]
        """,
    ],
)
def test_producer_and_consumers_take_the_same_way(body: str):
    source = TILES + "fill(F, float32(0.0))\n" + text(body) + "\ncopy(F, Y[bx * 16, 0].tile(16, 64))"
    declarations = "X = tensor(float32, (64, 64))\nY = tensor(float32, (64, 64))\nrows = tensor(int32, (64,))"
    program = kernel_program(source, declarations, grid="(4, 1, 1)")
    x, y = torch.randn(64, 64), torch.full((64, 64), float("nan"))
    picks = torch.full((64,), -1, dtype=torch.int32)
    picks[:5] = torch.tensor([2, 0, 3, 3, 1])
    result = simulated(program, options=Options(specialize_warps=True), X=x, Y=y, rows=picks)
    assert nodes(result, Specialized)
    tiles = x.reshape(4, 16, 64)
    expected = torch.zeros(16, 64)
    for pick in (2, 0, 3, 3, 1):
        expected = expected + tiles[pick]
    torch.testing.assert_close(y, expected.repeat(4, 1))
