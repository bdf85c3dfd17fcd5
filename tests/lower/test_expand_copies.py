"""Copies and fills as loops: the text of the loops, and which element goes where against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Load, as_expr
from ptxtile.ir.statements import ParallelFor, Store
from ptxtile.ir.tile_ops import Copy, CopyPath, Region
from ptxtile.ir.types import float16, float32
from ptxtile.lower import expand_copies
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text
from tests.lower.tile_programs import program, tensor

DECLARATIONS = "A = tensor(float32, (4, 128, 128))\nH = tensor(float16, (128,))"


def expanded(body: str) -> str:
    return body_text(apply(expand_copies, kernel_program(body, DECLARATIONS, grid="(2, 2, 2)", stage="async")))


@pytest.mark.parametrize(
    ("operation", "loop"),
    [
        (
            "copy(A[bz, by * 64, bx * 64].tile(1, 64, 64), S, path=CopyPath.VECTOR)",
            "for c0, c1 in parallel(64, 64):\n    S[c0, c1] = A[bz, by * 64 + c0, bx * 64 + c1]",
        ),
        (
            "copy(S[0, 32].tile(64, 16), A[0, 0, 1].tile(1, 64, 16), path=CopyPath.VECTOR)",
            "for c0, c1 in parallel(64, 16):\n    A[0, c0, 1 + c1] = S[c0, 32 + c1]",
        ),
        (
            "copy(S[3, 0].tile(1, 64), H[64].tile(64), path=CopyPath.VECTOR)",  # other rank and dtype
            "for c0 in parallel(64):\n    H[64 + c0] = cast(S[3, c0], float16)",
        ),
        (
            "copy(S[0, 5].tile(64, 1), H[0].tile(64), path=CopyPath.VECTOR)",  # a column
            "for c0 in parallel(64):\n    H[c0] = cast(S[c0, 5], float16)",
        ),
        (
            "copy(S[3, 4].tile(1, 1), H[9].tile(1), path=CopyPath.VECTOR)",  # one element
            "for c0 in parallel(1):\n    H[9 + c0] = cast(S[3 + c0, 4], float16)",
        ),
        (
            "copy(S, A[0, 0, 0].tile(1, 64, 64), path=CopyPath.VECTOR, coalesced_width=2)",
            "for c0, c1 in parallel(64, 64, coalesced_width=2):\n    A[0, c0, c1] = S[c0, c1]",
        ),
        ("fill(S, float32(1.5))", "for c0, c1 in parallel(64, 64):\n    S[c0, c1] = float32(1.5)"),
        (
            "fill(S[2, 8].tile(1, 4), float32(0.0))",
            "for c0 in parallel(4):\n    S[2, 8 + c0] = float32(0.0)",
        ),
    ],
)
def test_loops(operation: str, loop: str):
    tile = "S = allocate_shared(float32, (64, 64))\n"
    result = expanded(tile + operation).removeprefix(tile)
    if "c0 in parallel(1)" in loop:  # where the variable of the single iteration stands is of no matter
        assert result.splitlines()[0] == loop.splitlines()[0]
    else:
        assert result == loop


def test_tma_copies_stay_and_nothing_else_changes():
    body = text(
        """
        S = allocate_shared(float32, (64, 64))
        copy(S, A[0, 0, 0].tile(1, 64, 64), path=CopyPath.TMA_STORE)
        for i, j in parallel(64, 64):
            S[i, j] = float32(0.0)
        """
    )
    given = kernel_program(body, DECLARATIONS, stage="async")
    result = apply(expand_copies, given)
    assert result == given and result.kernels[0].body is given.kernels[0].body


def test_loop_variables_have_names_of_their_own():
    body = """
    c0: int32 = bx
    S = allocate_shared(float32, (64, 64))
    fill(S, float32(0.0))
    fill(S, float32(1.0))
    """
    result = apply(expand_copies, kernel_program(body, stage="async"))
    names = [var.name for loop in nodes(result, ParallelFor) for var in loop.vars]
    assert len(set(names)) == 4 and "c0" not in names


@st.composite
def copies(draw) -> tuple[Region, Region]:
    """Two regions with the same extents and dimensions of one sprinkled in."""
    dense = draw(st.lists(st.integers(2, 4), max_size=3))

    def region(name: str) -> Region:
        extents = list(dense)
        for _ in range(draw(st.integers(0 if dense else 1, 2))):
            extents.insert(draw(st.integers(0, len(extents))), 1)
        starts = [draw(st.integers(0, 3)) for _ in extents]
        shape = tuple(start + extent + draw(st.integers(0, 1)) for start, extent in zip(starts, extents, strict=True))
        dtype = float32 if name == "X" else float16
        return Region(tensor(name, *shape, dtype=dtype), tuple(map(as_expr, starts)), tuple(extents))

    return region("X"), region("Y")


@given(copies())
def test_elements_go_where_numpy_puts_them(regions: tuple[Region, Region]):
    source, destination = regions

    def slices(region: Region) -> tuple[slice, ...]:
        starts = [start.value for start in region.starts]  # type: ignore[attr-defined]
        return tuple(slice(s, s + e) for s, e in zip(starts, region.extents, strict=True))

    numbers = np.arange(np.prod(source.buffer.static_shape)).reshape(source.buffer.static_shape)
    expected = np.full(destination.buffer.static_shape, -1)
    expected[slices(destination)] = numbers[slices(source)].reshape(destination.extents)

    copy = Copy(source, destination, CopyPath.VECTOR)
    result = apply(expand_copies, program(copy, [source.buffer, destination.buffer], [], (1, 1, 1)))
    (loop,) = nodes(result, ParallelFor)
    store = loop.body
    assert isinstance(store, Store)
    (read,) = nodes(result, Load)
    found = np.full(destination.buffer.static_shape, -1)
    for point in itertools.product(*map(range, loop.extents)):
        values = {var.name: value for var, value in zip(loop.vars, point, strict=True)}
        target = tuple(int(evaluate(index, values)) for index in store.indices)
        origin = tuple(int(evaluate(index, values)) for index in read.indices)
        assert found[target] == -1, "an element is written twice"
        found[target] = numbers[origin]
    assert np.array_equal(found, expected)
