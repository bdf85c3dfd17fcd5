"""Views of fragments as accesses of the fragment: which element each names, against NumPy's reshape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.errors import LoweringError
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Load
from ptxtile.ir.statements import Store, View
from ptxtile.lower import resolve_fragment_views
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text


def test_a_reshaped_tile_splits_the_row_major_number():
    program = kernel_program(
        """
        F = allocate_fragment(float32, (64, 32))
        flat = view(float32, (2048,), "F")
        for i in parallel(2048):
            flat[i] = flat[i] + float32(1.0)
        """,
        stage="async",
    )
    assert body_text(apply(resolve_fragment_views, program)) == text(
        """
        F = allocate_fragment(float32, (64, 32))
        for i in parallel(2048):
            F[i // 32, i % 32] = F[i // 32, i % 32] + float32(1.0)
        """
    )


SHAPES = [(24,), (4, 6), (6, 4), (2, 3, 4), (4, 3, 2), (2, 2, 2, 3)]


@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.booleans())
def test_every_element_is_the_one_of_the_reshaped_array(shape, view_shape, block_level):
    names = "ijkl"[: len(view_shape)]
    indices = ", ".join(names)
    body = f"V[{indices}] = V[{indices}]"
    if block_level:  # outside of a parallel loop, with constants
        indices = ", ".join(str(n - 1) for n in view_shape)
        loop = f"V[{indices}] = V[{indices}]"
    else:
        loop = f"for {', '.join(names)} in parallel({', '.join(map(str, view_shape))}):\n    {body}"
    program = kernel_program(
        f'F = allocate_fragment(int32, {shape})\nV = view(int32, {view_shape}, "F")\n{loop}', stage="async"
    )
    result = apply(resolve_fragment_views, program)
    assert not nodes(result, View)
    (read,), (store,) = nodes(result, Load), nodes(result, Store)
    numbers = np.arange(24).reshape(shape)
    reshaped = numbers.reshape(view_shape)
    for point in itertools.product(*map(range, view_shape)):
        values = dict(zip(names, point, strict=True))
        expected = reshaped[point]
        if block_level:
            expected = reshaped[tuple(n - 1 for n in view_shape)]
        for access in (read, store):
            assert access.buffer.name == "F"
            found = tuple(int(evaluate(index, values)) for index in access.indices)
            assert all(0 <= f < n for f, n in zip(found, shape, strict=True))
            assert numbers[found] == expected


def test_offsets_and_strides_of_the_view_count():
    program = kernel_program(
        """
        F = allocate_fragment(float32, (8, 8))
        V = view(float32, (4, 4), "F", strides=(16, 2), offset=9)
        for i, j in parallel(4, 4):
            V[i, j] = float32(0.0)
        """,
        stage="async",
    )
    (store,) = nodes(apply(resolve_fragment_views, program), Store)
    numbers = np.arange(64)[9:].copy()
    for i, j in itertools.product(range(4), range(4)):
        row, column = (int(evaluate(index, {"i": i, "j": j})) for index in store.indices)
        assert 8 * row + column == numbers[16 * i + 2 * j]


def test_views_of_other_memory_stay():
    body = """
    S = allocate_shared(float32, (64,))
    V = view(float32, (8, 8), "S")
    F = allocate_fragment(float32, (64,))
    for i in parallel(64):
        F[i] = V[i // 8, i % 8]
    """
    given_program = kernel_program(body, stage="async")
    result = apply(resolve_fragment_views, given_program)
    assert result == given_program and result.kernels[0].body is given_program.kernels[0].body


def test_shared_views_next_to_a_fragment_view():
    program = kernel_program(
        """
        S = allocate_shared(float32, (64,))
        V = view(float32, (8, 8), "S")
        F = allocate_fragment(float32, (64,))
        W = view(float32, (8, 8), "F")
        for i, j in parallel(8, 8):
            V[i, j] = W[i, j]
        """,
        stage="async",
    )
    result = apply(resolve_fragment_views, program)
    assert [view.buffer.name for view in nodes(result, View)] == ["V"]
    assert "V[i, j] = F[i * 8 + j]" in body_text(result)


def test_another_dtype_is_an_error_at_the_views_line():
    program = kernel_program('F = allocate_fragment(float32, (64,))\nV = view(int32, (64,), "F")', stage="async")
    with pytest.raises(LoweringError, match="V reinterprets the fragment F") as caught:
        resolve_fragment_views.run(program, target.get("sm_90a"), Options())
    location = nodes(program, View)[0].location
    assert caught.value.location == location and location is not None
