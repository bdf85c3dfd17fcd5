"""What the scoped walk knows at each place: ranges of grids, loops and roles, conditions, bound values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxtile.ir.expressions import Expr, Var, constant
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import copy_with, substitute
from ptxtile.ir.statements import Let, Statement, Store
from ptxtile.ir.types import int32
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from tests.lower.kernel_texts import body_text, kernel_program, text

DECLARATIONS = "M = symbol(int32)\nfact(M, lower=1, upper=1000, divisor=8)\nA = tensor(int32, (4096,))"


class _Asking(ScopedRewriter):
    """The interval of the value of each Store."""

    def __init__(self, program: Program) -> None:
        kernel = program.kernels[0]
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.intervals: list[tuple[int | None, int | None]] = []

    def rewrite_Store(self, node: Store) -> Statement:
        self.intervals.append(self.analyzer.interval(node.value))
        return node


def intervals(body: str, grid: str = "(4, 1, 1)", threads: int = 128) -> list[tuple[int | None, int | None]]:
    program = kernel_program(text(body), DECLARATIONS, grid=grid, threads=threads, stage="async")
    asking = _Asking(program)
    assert asking.visit(program.kernels[0].body) is program.kernels[0].body, "nothing is rewritten"
    return asking.intervals


@pytest.mark.parametrize(
    ("grid", "body", "expected"),
    [
        ("(4, 7, 1)", "A[0] = bx\nA[0] = by\nA[0] = bz\nA[0] = tx", [(0, 3), (0, 6), (0, 0), (0, 127)]),
        (
            "(M, M // 8, M * 100)",
            "A[0] = bx\nA[0] = by\nA[0] = bz",
            [(0, 999), (0, 124), (0, 65_534)],
        ),  # z of a grid: 65 535
        ("(1, 1, 1)", "A[0] = M", [(1, 1000)]),
    ],
)
def test_indices_and_facts(grid: str, body: str, expected: list[tuple[int, int]]):
    assert intervals(body, grid) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for k in serial(2, 10, 3):\n    A[0] = k", [(2, 8)]),
        ("for k in serial(9, 0, -2):\n    A[0] = k", [(1, 9)]),
        ("for k in serial(0, M):\n    A[0] = k", [(0, 999)]),
        ("for k in serial(bx, 10):\n    A[0] = k - bx", [(0, 9)]),
        ("for i, j in parallel(3, 5):\n    A[0] = i\n    A[0] = j", [(0, 2), (0, 4)]),
        ("x: int32 = bx * 2 + 1\nA[0] = x", [(1, 7)]),
        ("if tx < 10:\n    A[0] = tx\nelse:\n    A[0] = tx\nA[0] = tx", [(0, 9), (10, 127), (0, 127)]),
        ("if tx < 10 and bx > 1:\n    A[0] = tx * 4 + bx", [(2, 39)]),
        ("if tx >= 10 or bx > 1:\n    A[0] = tx\nelse:\n    A[0] = tx * 4 + bx", [(0, 127), (0, 37)]),
        ("while M < 3:\n    A[0] = tx", [(0, 127)]),
        (
            'with specialized():\n    with role("a", first_thread=0, threads=32):\n        A[0] = tx\n'
            '    with role("b", first_thread=32, threads=96):\n        A[0] = tx\nA[0] = tx',
            [(0, 31), (32, 127), (0, 127)],
        ),
    ],
)  # fmt: skip
def test_what_is_known_inside(body: str, expected: list[tuple[int, int]]):
    assert intervals(body) == expected


def test_a_condition_on_a_scalar_that_changes_is_not_remembered():
    body = "n = allocate_local(int32, ())\nn[()] = M\nif n[()] < 5:\n    n[()] = 900\n    A[0] = n[()]"
    _, high = intervals(body)[-1]
    assert high is None or high >= 900


class _Renaming(ScopedRewriter):
    """Every use of M becomes 3, and stores of 7 are dropped."""

    def expression(self, node: Expr) -> Expr:
        return substitute(node, {"M": constant(3)})

    def rewrite_Store(self, node: Store) -> Statement | None:
        return None if node.value == constant(7) else node


def test_expressions_are_rewritten_wherever_they_stand():
    program = kernel_program(
        text(
            """
            x: int32 = M
            for k in serial(M, M + 1):
                A[M] = 7
                while k < M:
                    A[k + M] = M
            for i in parallel(4):
                if i < M:
                    A[0] = 7
                else:
                    A[i] = x
            fill(A[M].tile(4), M)
            copy(A[M].tile(4), A[8].tile(4))
            """
        ),
        DECLARATIONS,
        stage="async",
    )
    kernel = program.kernels[0]
    body = _Renaming(analyzer_for(program, kernel)).visit(kernel.body)
    result = replace(program, kernels=(replace(kernel, body=body),))
    assert body_text(result) == text(
        """
        x: int32 = 3
        for k in serial(3, 3 + 1):
            while k < 3:
                A[k + 3] = 3
        for i in parallel(4):
            if i < 3:
                pass
            else:
                A[i] = x
        fill(A[3].tile(4), 3)
        copy(A[3].tile(4), A[8].tile(4))
        """
    )


def test_a_let_is_known_by_its_rewritten_value():
    program = kernel_program("x: int32 = M\nA[0] = x", DECLARATIONS)

    class Asking(_Renaming):
        found: tuple[int | None, int | None] = (None, None)

        def rewrite_Store(self, node: Store) -> Statement:
            self.found = self.analyzer.interval(node.value)
            return node

        def rewrite_Let(self, node: Let) -> Statement:
            return copy_with(node, {})

    asking = Asking(analyzer_for(program, program.kernels[0]), Var("tx", int32))
    asking.visit(program.kernels[0].body)
    assert asking.found == (3, 3)
