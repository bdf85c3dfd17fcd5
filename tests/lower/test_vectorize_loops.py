"""Wide accesses around scalar code: the text for each shape, what may be moved, and which guards stay."""

from __future__ import annotations

import pytest

from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate
from ptxtile.lower import vectorize_loops
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text

DECLARATIONS = """
M = symbol(int32)
A = tensor(int32, (4096,))
B = tensor(int32, (4096,))
C = tensor(int32, (4096,))
D = tensor(int32, (4096,), alignment=8)
P = tensor(int32, (4096,), alias_group=0)
Q = tensor(int32, (4096,), alias_group=0)
"""
LOCALS = """S = allocate_shared(int32, (4096,))
n = allocate_local(int32, ())
n[()] = 0
R = allocate_register(int32, (64,))
"""


def program(body: str) -> Program:
    return kernel_program(LOCALS + text(body), DECLARATIONS, stage="thread")


def vectorized(body: str) -> str:
    return body_text(apply(vectorize_loops, program(body))).removeprefix(LOCALS)


def loop(*lines: str, lanes: int = 4) -> str:
    return f"for v in vectorized(0, {lanes}):\n" + "\n".join("    " + line for line in lines)


# ---- shapes


def test_a_load_comes_before_and_a_store_after():
    assert vectorized(loop("C[tx * 4 + v] = A[tx * 4 + v] + B[tx * 4 + v]")) == text(
        """
        A_lanes = allocate_register(int32, (4,))
        B_lanes = allocate_register(int32, (4,))
        C_lanes = allocate_register(int32, (4,))
        A_lanes.x4[0] = A.x4[tx * 4 + 0]
        B_lanes.x4[0] = B.x4[tx * 4 + 0]
        for v in unrolled(0, 4):
            C_lanes[v] = A_lanes[v] + B_lanes[v]
        C.x4[tx * 4 + 0] = C_lanes.x4[0]
        """
    )


def test_widths_differ_by_access_and_a_narrow_one_takes_several():
    assert vectorized(loop("C[tx * 4 + v] = D[tx * 4 + v] + A[tx * 4 + v * 2]")) == text(
        """
        D_lanes = allocate_register(int32, (4,))
        C_lanes = allocate_register(int32, (4,))
        D_lanes.x2[0] = D.x2[tx * 4 + 0]
        D_lanes.x2[2] = D.x2[tx * 4 + 2]
        for v in unrolled(0, 4):
            C_lanes[v] = D_lanes[v] + A[tx * 4 + v * 2]
        C.x4[tx * 4 + 0] = C_lanes.x4[0]
        """
    )


def test_a_guarded_load_is_a_select_of_the_whole_vector():
    body = loop("R[v] = A[tx * 4 + v] if tx * 4 + v < 1000 else 7")
    assert vectorized(body) == text(
        """
        A_lanes = allocate_register(int32, (4,))
        A_lanes.x4[0] = A.x4[tx * 4 + 0] if tx * 4 + 0 < 1000 else broadcast(7, int32x4)
        for v in unrolled(0, 4):
            R[v] = A_lanes[v]
        """
    )


def test_a_guarded_store_keeps_its_guard_and_its_value_needs_none():
    body = loop("if tx * 4 + v < 1000:", "    C[tx * 4 + v] = R[v] * 2")
    assert vectorized(body) == text(
        """
        C_lanes = allocate_register(int32, (4,))
        for v in unrolled(0, 4):
            C_lanes[v] = R[v] * 2
        if tx * 4 + 0 < 1000:
            C.x4[tx * 4 + 0] = C_lanes.x4[0]
        """
    )


def test_a_value_that_reads_memory_is_computed_under_the_guard():
    body = loop("if tx * 4 + v < 1000:", "    C[tx * 4 + v] = A[v * 7]")
    assert "    if tx * 4 + v < 1000:\n        C_lanes[v] = A[v * 7]" in vectorized(body)


def test_guards_that_differ_between_lanes_keep_the_accesses_scalar():
    body = loop("if tx * 4 + v < 1001:", "    C[tx * 4 + v] = R[v]")
    assert vectorized(body) == body.replace("vectorized", "unrolled")


def test_a_let_blocks_the_accesses_that_need_it():
    body = loop("x: int32 = A[tx * 4 + v]", "C[tx * 4 + v] = B[x]", "y: int32 = tx * 4 + v", "S[y] = 1")
    found = vectorized(body)
    assert "A_lanes.x4[0] = A.x4" in found and "x: int32 = A_lanes[v]" in found
    assert "C_lanes[v] = B[x]" in found
    assert "S[y] = 1" in found and "S_lanes" not in found


def test_a_loop_inside_keeps_everything_scalar():
    body = loop("for k in serial(0, 2):", "    C[tx * 4 + v] = A[tx * 4 + v]")
    assert vectorized(body) == body.replace("vectorized", "unrolled")


def test_a_loop_of_unknown_length_or_start_keeps_everything_scalar():
    body = "for v in vectorized(4, 8):\n    C[tx * 4 + v] = A[tx * 4 + v]"
    assert vectorized(body) == body.replace("vectorized", "unrolled")


def test_without_vectorized_loops_nothing_changes():
    given_program = program("for k in serial(0, 4):\n    C[k] = A[k]\nfor h in unrolled(0, 4):\n    C[h] = A[h]")
    result = apply(vectorize_loops, given_program)
    assert result == given_program and result.kernels[0].body is given_program.kernels[0].body


# ---- order


@pytest.mark.parametrize(
    ("lines", "wide"),
    [
        (["C[tx * 4 + v] = C[tx * 4 + v] + 1"], {"C_lanes", "C_lanes_1"}),  # read, then written
        (["C[tx * 4 + v] = 1", "R[v] = C[tx * 4 + v]"], set()),  # the store must come first
        (["C[tx * 4 + v] = 1", "R[v] = A[tx * 4 + v]"], {"C_lanes", "A_lanes"}),
        (["P[tx * 4 + v] = 1", "R[v] = Q[tx * 4 + v]"], set()),  # they may be the same memory
        (["R[v] = Q[tx * 4 + v]", "P[tx * 4 + v] = 1"], {"Q_lanes", "P_lanes"}),
        (["C[tx * 4 + v] = 1", "C[tx * 4 + v] = 2"], {"C_lanes"}),  # the last one only
        (["P[tx * 4 + v] = 1", "Q[tx * 4 + v] = 2"], {"Q_lanes"}),
        (["n[()] = v", "R[v] = A[tx * 4 + v + n[()] * 4]"], set()),  # the index changes in the loop
        (["R[v] = A[tx * 4 + v + n[()] * 4]"], {"A_lanes"}),
        (["R[v] = A[tx * 4 + v + B[0] * 4]"], set()),  # an index that reads memory stays with its access
        (["R[v] = A[tx * 4 + v] if B[0] > 0 else 0"], set()),
        (["if B[0] > 0:", "    C[tx * 4 + v] = 1"], set()),
        (["n[()] = 3", "if n[()] > 0:", "    C[tx * 4 + v] = 1"], set()),
    ],
)
def test_what_may_be_moved(lines: list[str], wide: set[str]):
    found = vectorized(loop(*lines))
    names = {line.split(" = ")[0] for line in found.splitlines() if "= allocate_register" in line}
    assert names == wide


@pytest.mark.parametrize(
    ("lines", "wide"),
    [
        (["R[v] = A[tx * 4 + v]", 'atomic(operator="add", buffer=B, indices=(v,), value=R[v], result=n)'], {"A_lanes"}),
        (['atomic(operator="add", buffer=B, indices=(v * 2,), value=1, result=n)', "R[v] = A[tx * 4 + v]"], set()),
        (["C[tx * 4 + v] = 1", 'atomic(operator="add", buffer=B, indices=(v,), value=1, result=n)'], set()),
    ],
)
def test_nothing_moves_across_an_atomic(lines: list[str], wide: set[str]):
    names = {line.split(" = ")[0] for line in vectorized(loop(*lines)).splitlines() if "= allocate_register" in line}
    assert names == wide


# ---- lazy operators


@pytest.mark.parametrize(
    ("value", "guard"),
    [
        ("A[tx * 4 + v] if M > 3 else B[tx * 4 + v]", {"A": "if M > 3:", "B": "if not M > 3:"}),
        ("0 if M > 3 else A[tx * 4 + v]", {"A": "if not M > 3:"}),
        ("A[tx * 4 + v] + 1 if M > 3 else 0", {"A": "if M > 3:"}),
        ("1 if M > 3 and A[tx * 4 + v] > 0 else 0", {"A": "if M > 3:"}),
        ("1 if M > 3 or A[tx * 4 + v] > 0 else 0", {"A": "if not M > 3:"}),
    ],
)
def test_each_side_of_a_lazy_operator_keeps_its_own_guard(value: str, guard: dict[str, str]):
    lines = vectorized(loop(f"R[v] = {value}")).splitlines()
    for name, condition in guard.items():
        (place,) = [k for k, line in enumerate(lines) if f"{name}_lanes.x4[0] = {name}.x4" in line]
        assert lines[place - 1] == condition


def test_registers_that_were_loaded_under_a_weaker_guard_are_used_again():
    body = loop("R[v] = A[tx * 4 + v]", "if M > 3:", "    S[tx * 4 + v] = A[tx * 4 + v] + 1")
    found = vectorized(body)
    assert found.count("= A.x4") == 1


def test_registers_that_were_loaded_under_a_stronger_guard_are_not():
    body = loop("if M > 3:", "    S[tx * 4 + v] = A[tx * 4 + v] + 1", "R[v] = A[tx * 4 + v]")
    found = vectorized(body)
    assert found.count("= A.x4") == 2


def test_registers_that_hold_another_value_where_the_guard_fails_serve_inside_of_the_select():
    body = loop("R[v] = A[tx * 4 + v] if M > 3 else 1", "S[tx * 4 + v] = A[tx * 4 + v] if M > 3 else 2")
    found = vectorized(body)
    assert found.count("= A.x4") == 1
    assert "R[v] = A_lanes[v]\n" in found and "S_lanes[v] = A_lanes[v] if M > 3 else 2" in found


def test_registers_with_the_same_value_where_the_guard_fails_replace_the_select():
    found = vectorized(loop("R[v] = A[tx * 4 + v] if M > 3 else 1", "S[tx * 4 + v] = A[tx * 4 + v] if M > 3 else 1"))
    assert found.count("= A.x4") == 1 and "S_lanes[v] = A_lanes[v]\n" in found


# ---- rounds


def rounds(count: int, *lines: str, lanes: int = 4) -> str:
    inside = loop(*lines, lanes=lanes) if lanes > 1 else "\n".join(lines)
    indented = "\n".join("    " + line for line in inside.splitlines())
    return f"for r in unrolled(0, {count}, independent=True):\n{indented}"


def test_global_loads_of_a_batch_of_rounds_are_issued_together():
    assert vectorized(rounds(4, "C[r * 512 + tx * 4 + v] = A[r * 512 + tx * 4 + v] + 1")) == text(
        """
        A_lanes = allocate_register(int32, (16,))
        C_lanes = allocate_register(int32, (4,))
        for r_1 in unrolled(0, 4, independent=True):
            A_lanes.x4[r_1 * 4 + 0] = A.x4[r_1 * 512 + tx * 4 + 0]
        for r_2 in unrolled(0, 4, independent=True):
            for v in unrolled(0, 4):
                C_lanes[v] = A_lanes[r_2 * 4 + v] + 1
            C.x4[r_2 * 512 + tx * 4 + 0] = C_lanes.x4[0]
        """
    )


@pytest.mark.parametrize(
    ("count", "tensors", "batch"),
    [
        (8, 1, 8),  # 16 bytes a round
        (16, 1, 16),
        (32, 1, 16),  # at most 256 bytes
        (16, 2, 8),
        (24, 1, 12),
        (17, 1, 1),  # a prime
    ],
)
def test_a_batch_holds_at_most_256_bytes_and_divides_the_rounds(count: int, tensors: int, batch: int):
    value = " + ".join(f"{name}[(r * 128 + tx) * 4 % 4096 // 4 * 4 + v]" for name in "AB"[:tensors])
    result = apply(vectorize_loops, program(rounds(count, f"C[r * 8 + v] = {value}")))
    assert [n.buffer.shape for n in nodes(result, Allocate) if n.buffer.name == "A_lanes"] == [(4 * batch,)]


def test_without_a_store_in_between_there_is_no_batch():
    found = vectorized(rounds(4, "R[r * 4 + v] = A[r * 512 + tx * 4 + v]"))
    assert "A_lanes = allocate_register(int32, (4,))" in found


def test_shared_loads_are_not_batched():
    found = vectorized(rounds(4, "C[r * 512 + tx * 4 + v] = S[r * 512 + tx * 4 + v]"))
    assert "S_lanes = allocate_register(int32, (4,))" in found


def test_rounds_of_one_lane_are_batched_too():
    found = vectorized(rounds(4, "C[r * 128 + tx] = A[(r * 128 + tx) * 3]", lanes=1))
    assert "A_lanes = allocate_register(int32, (4,))" in found
    assert "A_lanes[r_1 * 1 + 0] = A[(r_1 * 128 + tx) * 3]" in found
