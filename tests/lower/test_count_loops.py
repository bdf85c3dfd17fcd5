"""While loops that count: which become for loops, from where to where, and that both do the same."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.statements import For, While
from ptxtile.lower import count_loops
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, reasons, text

DECLARATIONS = "A = tensor(float32, (64,), alias_group=0)"


def counted(loop: str, *, before: str = "i[()] = bx") -> str:
    """The body of a kernel after the pass, without what stands in front of the loop."""
    body = f"i = allocate_local(int32, (), storage_alignment=4)\n{before}\n{text(loop)}"
    return body_text(apply(count_loops, kernel_program(body, DECLARATIONS)))


def test_a_counting_loop() -> None:
    found = counted(
        """
        while i[()] < 12:
            j: int32 = i[()]
            A[j] = float32(0.0)
            k: int32 = i[()]
            i[()] = k + 3
        """
    )
    assert found == text(
        """
        i = allocate_local(int32, (), storage_alignment=4)
        i[()] = bx
        for i_1 in serial(bx, 12, 3):
            j: int32 = i_1
            A[j] = float32(0.0)
            k: int32 = i_1
            i[()] = k + 3
        """
    )


@pytest.mark.parametrize(
    ("condition", "end", "expected"),
    [
        ("i[()] < 12", "i[()] + 3", "serial(bx, 12, 3)"),
        ("12 > i[()]", "3 + i[()]", "serial(bx, 12, 3)"),
        ("i[()] <= 12", "i[()] + 1", "serial(bx, 13)"),
        ("i[()] > -5", "i[()] - 2", "serial(bx, -5, -2)"),
        ("i[()] >= 0", "i[()] + -1", "serial(bx, -1, -1)"),
        ("0 <= i[()]", "i[()] - 4", "serial(bx, -1, -4)"),
        ("i[()] < by * 4", "i[()] + 1", "serial(bx, by * 4)"),
        # those that do not count towards their end
        ("i[()] < 12", "i[()] - 3", None),
        ("i[()] > 0", "i[()] + 1", None),
        ("i[()] != 12", "i[()] + 1", None),
        ("i[()] < 12", "i[()] * 2", None),
        ("i[()] < 12", "i[()] + bx", None),
        ("i[()] < 12", "3 - i[()]", None),
        ("i[()] < 12", "bx + 1", None),
        ("i[()] < 12", "i[()] + 0", None),
        ("i[()] * 2 < 12", "i[()] + 1", None),
        ("i[()] <= by", "i[()] + 1", None),
        ("i[()] <= 2147483647", "i[()] + 1", None),
        ("i[()] >= -2147483647 - 1", "i[()] - 1", None),
        ("cast(A[0], int32) > i[()]", "i[()] + 1", None),
    ],
)
def test_conditions_and_steps(condition: str, end: str, expected: str | None) -> None:
    found = counted(f"while {condition}:\n    A[i[()]] = float32(0.0)\n    i[()] = {end}")
    assert ("while" in found) == (expected is None)
    assert expected is None or f"for i_1 in {expected}:" in found, found


@pytest.mark.parametrize(
    "body",
    [
        "i[()] = i[()] + 1\nA[i[()]] = float32(0.0)",
        "i[()] = i[()] + 1\ni[()] = i[()] + 1",
        "if A[i[()]] > float32(0.0):\n    i[()] = i[()] + 5\ni[()] = i[()] + 1",
        "if A[i[()]] > float32(0.0):\n    continue\ni[()] = i[()] + 1",
        "if bx > 3:\n    i[()] = i[()] + 1",
        "for j in serial(0, 4):\n    i[()] = i[()] + 1",
    ],
)
def test_other_bodies_stay(body: str) -> None:
    assert "while i[()] < 12:" in counted("while i[()] < 12:\n" + "\n".join("    " + line for line in body.split("\n")))


def test_a_continue_of_an_inner_loop_and_a_break_do_not_matter() -> None:
    found = counted(
        """
        while i[()] < 12:
            for j in serial(0, 4):
                if j > bx:
                    continue
                A[j] = float32(0.0)
            if A[i[()]] > float32(0.0):
                break
            i[()] = i[()] + 1
        """
    )
    assert "for i_1 in serial(bx, 12):" in found and "A[i_1] >" in found


def test_what_the_variable_holds_in_front_of_the_loop() -> None:
    loop = "while i[()] < 12:\n    i[()] = i[()] + 1"
    assert "serial(5, 12)" in counted(loop, before="i[()] = bx\ni[()] = 5\nA[0] = float32(1.0)")
    assert "serial(i[()], 12)" in counted(loop, before="i[()] = bx\nif bx > 3:\n    i[()] = 5")
    assert "serial(i[()], 12)" in counted(loop, before="i[()] = cast(A[bx], int32)")


def test_a_stop_that_the_loop_changes() -> None:
    program = """
        i = allocate_local(int32, (), storage_alignment=4)
        n = allocate_local(int32, (), storage_alignment=4)
        i[()] = 0
        n[()] = bx
        while i[()] < n[()]:
            {}
            i[()] = i[()] + 1
        """
    for statement, kind in (("A[i[()]] = float32(0.0)", For), ("n[()] = n[()] - 1", While)):
        after = apply(count_loops, kernel_program(text(program).format(statement), DECLARATIONS))
        assert [type(node) for node in nodes(after, For) + nodes(after, While)] == [kind]
        assert len(reasons(after, "count_loops")) == (kind is For)


def test_loops_in_loops() -> None:
    found = counted(
        """
        while i[()] < 12:
            j = allocate_local(int32, (), storage_alignment=4)
            j[()] = bx
            while j[()] > i[()]:
                A[j[()]] = float32(0.0)
                j[()] = j[()] - 1
            i[()] = i[()] + 1
        """
    )
    assert "for i_1 in serial(bx, 12):" in found and "for j_1 in serial(bx, i_1, -1):" in found


@ptxtile.jit(target="sm_80")
def counting(A, first=0, stop=12, step=3, until=64):
    A: T.Tensor((64,), T.int32)
    seen = T.empty((3,), T.int32)
    with T.Kernel(1, threads=1):
        i, rounds, total = T.alloc_var(T.int32, first), T.alloc_var(T.int32, 0), T.alloc_var(T.int32, 0)
        if step > 0:
            while i < stop:
                if rounds == until:
                    break
                rounds += 1
                total += A[i]
                i += step
        else:
            while i >= stop:
                if rounds == until:
                    break
                rounds += 1
                total += A[i]
                i += step
        seen[0], seen[1], seen[2] = i, rounds, total
    return seen


@pytest.mark.parametrize("until", [64, 3, 0])
@pytest.mark.parametrize(
    ("first", "stop", "step"), [(0, 12, 3), (2, 13, 5), (7, 7, 1), (9, 4, 2), (40, 3, -6), (5, 0, -1), (1, 9, -2)]
)
def test_results(first: int, stop: int, step: int, until: int) -> None:
    """Also what the variable holds behind the loop, left at its end, in the middle, and before it begins."""
    values = torch.randint(-100, 100, (64,), dtype=torch.int32)
    i, rounds, total = first, 0, 0
    while (i < stop if step > 0 else i >= stop) and rounds < until:
        rounds, total, i = rounds + 1, total + int(values[i]), i + step
    found = counting(values, first=first, stop=stop, step=step, until=until)
    assert found.tolist() == [i, rounds, total]
    kernel = counting.compile(A=values, first=first, stop=stop, step=step, until=until)
    assert len([why for why in kernel.why if why.pass_name == "count_loops"]) == 1
