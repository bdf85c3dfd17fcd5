"""Layouts as matrices of stmatrix, against the ownership that the PTX manual draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import constant
from ptxtile.ir.layouts import Fragment, Layout, linear_fragment
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.ir.types import bfloat16, float32
from ptxtile.lower.gemm_geometry import accumulator_fragment
from ptxtile.lower.matrix_stores import MatrixForm, matrix_form


def accumulator(m: int, n: int, threads: int, path: GemmPath) -> Fragment:
    zero = constant(0)
    a, b = (allocate(name, Scope.SHARED, bfloat16, (rows, 64)) for name, rows in (("A", m), ("B", n)))
    c = allocate("C", Scope.FRAGMENT, float32, (m, n))
    left, right, result = (Region(buffer, (zero, zero), buffer.static_shape) for buffer in (a, b, c))
    gemm = Gemm(left, right, result, m, n, 64, transpose_b=True, path=path)
    return accumulator_fragment(gemm, threads, path)


def elements_of_rows(form: MatrixForm, transposed: bool) -> np.ndarray:
    """[warp, instruction, matrix, row, column]: the element of the tile that stands there in memory."""
    rows, count = form.rows(transposed), form.count
    first = rows.linear(np.arange(rows.threads)[:, None], np.arange(rows.values)[None, :])
    first = first.reshape(-1, 4, 8, rows.values)[:, :count].transpose(0, 3, 1, 2)
    return first[..., None] + np.arange(8) * (form.row_stride if transposed else 1)


def elements_of_registers(form: MatrixForm, transposed: bool) -> np.ndarray:
    """The same from what each thread holds: element e of a matrix in thread t is row t // 4, column 2·(t % 4) + e, or
    the other way round (PTX ISA 9.7.14.5.16)."""
    layout, count = form.fragment, form.count
    held = layout.linear(np.arange(layout.threads)[:, None], np.arange(layout.values)[None, :])
    held = held.reshape(-1, 32, layout.values // (2 * count), count, 2).transpose(0, 2, 3, 1, 4)
    result = np.zeros((*held.shape[:3], 8, 8), held.dtype)
    thread, element = np.arange(32)[:, None], np.arange(2)[None, :]
    row, column = np.broadcast_to(thread // 4, (32, 2)), 2 * (thread % 4) + element
    where = (column, row) if transposed else (row, column)
    result[:, :, :, where[0], where[1]] = held
    return result


@pytest.mark.parametrize("path", [GemmPath.WGMMA, GemmPath.MMA])
@given(st.integers(1, 3), st.integers(1, 12), st.sampled_from([1, 2, 4]), st.booleans())
def test_accumulators_are_matrices(path, tiles, eights, groups, transposed):
    unit, size = (64, 128) if path is GemmPath.WGMMA else (16, 32)
    layout = accumulator(unit * groups * tiles, 8 * eights, size * groups, path)
    form = matrix_form(layout)
    assert form is not None
    assert (form.fragment.table() == layout.table()).all()
    assert form.count == (4 if form.pair.modes[-1][0] % 2 == 0 else 2)
    assert (elements_of_rows(form, transposed) == elements_of_registers(form, transposed)).all()


@pytest.mark.parametrize(
    "layout",
    [
        linear_fragment((64, 64), 128, 2),
        linear_fragment((64, 64), 128, 8),
        Fragment((16, 8), (16, 8), Layout((8, 4), (8, 1)), Layout((2, 2), (64, 4))),  # columns apart
        Fragment((16, 8), (16, 8), Layout((2, 8, 4), (0, 8, 2)), Layout((2, 2), (64, 1))),  # two owners
        Fragment((12, 8), (16, 8), Layout((8, 4), (8, 2)), Layout((2, 2), (64, 1))),  # padding
        Fragment((16, 8), (16, 8), Layout((4, 4), (8, 2)), Layout((2, 2, 2), (64, 32, 1))),  # half a warp
        Fragment((8, 16), (8, 16), Layout((8, 4), (16, 2)), Layout((2, 2), (8, 1))),  # side by side only
    ],
)
def test_other_layouts_are_not(layout):
    layout.check()
    assert matrix_form(layout) is None
