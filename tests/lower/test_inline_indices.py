"""Which Lets of a parallel loop are written out: small integer values that read nothing."""

from __future__ import annotations

import pytest

from ptxtile.ir.statements import Let
from ptxtile.lower import inline_indices
from ptxtile.lower.inline_indices import LARGEST
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text

DECLARATIONS = "A = tensor(float32, (4096,))\nrows = tensor(int32, (4096,))\nM = symbol(int32)"
LOCAL = "n = allocate_local(int32, ())\nn[()] = 0\n"


def inlined(body: str) -> str:
    return body_text(
        apply(inline_indices, kernel_program(LOCAL + text(body), DECLARATIONS, stage="async"))
    ).removeprefix(LOCAL)


def test_index_arithmetic_is_written_out_at_its_uses():
    body = """
    for i in parallel(128):
        y: int32 = by * 64 + i
        z: int32 = y * 2
        wide: int64 = cast(z, int64)
        if y < M:
            A[z + y] = A[wide]
        A[y] = float32(0.0)
    """
    assert inlined(body) == text(
        """
        for i in parallel(128):
            if by * 64 + i < M:
                A[(by * 64 + i) * 2 + (by * 64 + i)] = A[cast((by * 64 + i) * 2, int64)]
            A[by * 64 + i] = float32(0.0)
        """
    )


def test_lets_of_inner_blocks_and_loops_are_written_out_too():
    body = """
    for i in parallel(128):
        y: int32 = i + 1
        for k in serial(0, y):
            z: int32 = k + y
            A[z] = float32(0.0)
            A[i] = float32(1.0)
        A[y] = float32(2.0)
    """
    assert inlined(body) == text(
        """
        for i in parallel(128):
            for k in serial(0, i + 1):
                A[k + (i + 1)] = float32(0.0)
                A[i] = float32(1.0)
            A[i + 1] = float32(2.0)
        """
    )


@pytest.mark.parametrize(
    "let",
    [
        "y: int32 = rows[i]",  # memory
        "y: int32 = n[()]",  # a scalar that may change
        "y: float32 = cast(i, float32)",
        "y: bool = i < 3",
        "y: int32 = select_of_many",
    ],
)
def test_other_lets_keep_their_names(let: str):
    many = " + ".join(["i"] * (LARGEST // 2 + 1))  # one node for each operand and one for each sum: one too many
    let = let.replace("select_of_many", many)
    use = "A[i] = cast(y, float32)"
    body = text(f"for i in parallel(128):\n    {let}\n    {use}")
    given = kernel_program(LOCAL + body, DECLARATIONS, stage="async")
    result = apply(inline_indices, given)
    assert result == given and result.kernels[0].body is given.kernels[0].body


def test_the_largest_expression_that_is_written_out():
    fits = " + ".join(["i"] * (LARGEST // 2))
    assert inlined(
        f"for i in parallel(128):\n    y: int32 = {fits}\n    A[y] = float32(0.0)\n    A[0] = float32(0.0)"
    ) == (f"for i in parallel(128):\n    A[{fits}] = float32(0.0)\n    A[0] = float32(0.0)")


def test_growth_stops_at_the_limit():
    """Each scalar doubles the one before: written out to the end there would be 2⁴⁰ nodes."""
    lines = ["v0: int32 = i + 1"] + [f"v{k}: int32 = v{k - 1} + v{k - 1}" for k in range(1, 40)]
    body = "for i in parallel(128):\n" + "".join(f"    {line}\n" for line in lines) + "    A[v39] = float32(0.0)"
    result = apply(inline_indices, kernel_program(body, DECLARATIONS, stage="async"))
    kept = [let.var.name for let in nodes(result, Let)]
    assert kept and len(kept) < 15


def test_scalars_outside_of_parallel_loops_keep_their_names():
    body = text(
        """
        y: int32 = by * 64
        for k in serial(0, 4):
            z: int32 = y + k
            A[z] = float32(0.0)
        for i in parallel(128):
            A[y + i] = float32(0.0)
        """
    )
    given = kernel_program(body, DECLARATIONS, stage="async")
    assert apply(inline_indices, given).kernels[0].body is given.kernels[0].body
