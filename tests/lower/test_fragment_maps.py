"""Layouts recovered from tables, and the registers of accesses, against brute force over all threads and values."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Var
from ptxtile.ir.layouts import Fragment, Layout, linear_fragment, replicated_fragment
from ptxtile.ir.statements import ParallelFor, Seq
from ptxtile.ir.types import float32, int32
from ptxtile.lower.fragment_maps import (
    Axis,
    FragmentAccess,
    fragment_of_table,
    layout_of_sequence,
    project,
    pull_back,
    register_map,
)

I, J, K = Var("i", int32), Var("j", int32), Var("k", int32)


def loop_over(*extents: int) -> ParallelFor:
    return ParallelFor((I, J)[: len(extents)], extents, Seq(()))


def tile(*shape: int) -> Buffer:
    return allocate("f", Scope.FRAGMENT, float32, shape)


@st.composite
def layouts(draw) -> Layout:
    modes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3))
    return Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes))


@given(layouts())
def test_a_layout_is_recovered_from_its_offsets(layout: Layout):
    offsets = np.array([layout(c) for c in range(layout.size)])
    found = layout_of_sequence(offsets)
    if found is not None:  # some nestings of overlapping strides have no unique mode order
        assert [found(c) for c in range(layout.size)] == offsets.tolist()


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_row_major_layouts_are_always_recovered(a: int, b: int, c: int):
    layout = Layout((a, b, c), (b * c, c, 1))
    assert layout_of_sequence(np.arange(a * b * c)) == layout.coalesced() or a * b * c == 1


def test_a_sequence_without_structure_has_no_layout():
    assert layout_of_sequence(np.array([0, 1, 3, 4, 9, 2])) is None
    assert layout_of_sequence(np.array([1, 2, 3])) is None


def simulate(access: FragmentAccess, loop: ParallelFor, layout: Fragment, fragment: Fragment):
    """(thread, axis point, value) → (element or None), and per thread the set of held (register, element)."""
    held = [dict(enumerate(row)) for row in fragment.table().tolist()]
    ranges = [range(axis.start, axis.start + axis.count * axis.step, axis.step) for axis in access.axes]
    for thread, point, value in product(range(layout.threads), product(*ranges), range(layout.values)):
        coordinates = layout.coordinates(thread, value)
        if any(c >= e for c, e in zip(coordinates, loop.extents, strict=True)):
            continue
        names = {var.name: int(c) for var, c in zip(loop.vars, coordinates, strict=True)}
        names |= {axis.var.name: p for axis, p in zip(access.axes, point, strict=True)}
        yield thread, point, value, names, held


def check_register_map(access, loop, layout, fragment, index_of) -> None:
    found = register_map(access, loop, layout, fragment)
    assert found is not None
    modes = [n for n, _ in layout.value.modes]
    shape = access.buffer.static_shape
    for thread, point, value, names, held in simulate(access, loop, layout, fragment):
        element = int(np.ravel_multi_index(index_of(names), shape))
        counters = np.unravel_index(value, modes)
        register = found.base + sum(registers(int(c)) for registers, c in zip(found.values, counters, strict=True))
        for axis, registers, p in zip(access.axes, found.axes, point, strict=True):
            register += registers((p - axis.start) // axis.step)
        assert held[thread][int(register)] == element


shapes = st.tuples(st.integers(1, 40), st.integers(1, 48))
threads = st.sampled_from((1, 5, 32, 96, 128))


@given(shapes, threads, st.sampled_from((1, 2, 4)))
def test_identity_access_uses_the_registers_in_order(shape, threads, vector):
    layout = linear_fragment(shape, threads, vector if shape[1] % vector == 0 else 1)
    access = FragmentAccess(tile(*shape), (I, J), is_write=True)
    check_register_map(access, loop_over(*shape), layout, layout, lambda n: (n["i"], n["j"]))


@given(shapes, threads, st.sampled_from((1, 2, 4)))
def test_a_broadcast_fragment_is_projected_and_local(shape, threads, vector):
    """row[i] in a loop over (i, j): each thread holds the rows of its iterations, replicated along j."""
    loop, layout = loop_over(*shape), linear_fragment(shape, threads, vector if shape[1] % vector == 0 else 1)
    access = FragmentAccess(tile(shape[0]), (I,), is_write=False)
    fragment = project(access, loop, layout)
    if fragment is None:
        return  # rows that straddle threads irregularly go through shared memory
    fragment.check()
    if register_map(access, loop, layout, fragment) is None:
        return  # rounds that straddle rows irregularly, too
    check_register_map(access, loop, layout, fragment, lambda n: (n["i"],))


@pytest.mark.parametrize("divisor", [2, 4, 8])
@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_packed_elements_are_projected_and_local(divisor: int, vector: int) -> None:
    """packed[i, j // 2], as 4-bit weights are unpacked: whatever part of a byte a thread takes, it holds the byte."""
    loop, layout = loop_over(32, 128), linear_fragment((32, 128), 64, vector)
    access = FragmentAccess(tile(32, 128 // divisor), (I, J // divisor), is_write=False)
    fragment = project(access, loop, layout)
    assert fragment is not None
    check_register_map(access, loop, layout, fragment, lambda n: (n["i"], n["j"] // divisor))


@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (32, 128), (4, 64), (8, 1024)])
def test_common_broadcasts_do_have_a_projection(shape):
    layout = linear_fragment(shape, 128, 4)
    access = FragmentAccess(tile(shape[0]), (I,), False)
    fragment = project(access, loop_over(*shape), layout)
    assert fragment is not None
    check_register_map(access, loop_over(*shape), layout, fragment, lambda n: (n["i"],))


def test_a_loop_follows_a_replicated_fragment():
    """A one-dimensional loop that writes a projected row fragment runs in every replica."""
    big = linear_fragment((64, 64), 128, 4)
    row = project(FragmentAccess(tile(64), (I,), False), loop_over(64, 64), big)
    assert row is not None and not row.is_exclusive
    write = FragmentAccess(tile(64), (I,), is_write=True)
    layout = pull_back(write, loop_over(64), row)
    assert layout == row
    check_register_map(write, loop_over(64), layout, row, lambda n: (n["i"],))


def test_a_write_that_misses_a_replica_is_not_local():
    write = FragmentAccess(tile(64), (I,), is_write=True)
    exclusive = linear_fragment((64,), 64, 1)
    assert register_map(write, loop_over(64), exclusive, replicated_fragment((64,), 64)) is None
    projected = linear_fragment((64, 2), 64, 2)
    read = FragmentAccess(tile(2), (J,), is_write=False)
    assert register_map(read, loop_over(64, 2), projected, replicated_fragment((2,), 64)) is not None


def test_a_register_that_would_depend_on_the_thread_is_not_local():
    read = FragmentAccess(tile(64), (I,), is_write=False)
    exclusive = linear_fragment((64,), 64, 1)
    assert register_map(read, loop_over(64), exclusive, replicated_fragment((64,), 64)) is None


def test_a_transposed_access_of_another_loops_fragment_is_not_local():
    layout = linear_fragment((32, 32), 128, 4)
    transposed = FragmentAccess(tile(32, 32), (J, I), is_write=False)
    assert register_map(transposed, loop_over(32, 32), layout, layout) is None
    follower = pull_back(transposed, loop_over(32, 32), layout)
    if follower is not None:
        check_register_map(transposed, loop_over(32, 32), follower, layout, lambda n: (n["j"], n["i"]))


def test_a_serial_axis_around_the_loop_selects_registers():
    """acc[k, i] in ``for k in range(4): for i in T.Parallel(128)``: 4 registers a thread, chosen by k."""
    access = FragmentAccess(tile(4, 128), (K, I), is_write=True, axes=(Axis(K, 0, 4, 1),))
    loop, layout = loop_over(128), linear_fragment((128,), 128, 1)
    fragment = project(access, loop, layout)
    assert fragment is not None and fragment.values == 4
    check_register_map(access, loop, layout, fragment, lambda n: (n["k"], n["i"]))


@given(st.integers(1, 64), st.integers(1, 32), threads)
def test_projection_of_an_inner_axis_gives_each_thread_its_row(rows, columns, threads):
    access = FragmentAccess(tile(rows, columns), (I, K), is_write=False, axes=(Axis(K, 0, columns, 1),))
    loop, layout = loop_over(rows), linear_fragment((rows,), threads, 1)
    fragment = project(access, loop, layout)
    if fragment is None:
        return
    check_register_map(access, loop, layout, fragment, lambda n: (n["i"], n["k"]))


def test_table_with_holes_or_without_separation_is_refused():
    assert fragment_of_table(np.array([[0, -1]]), (2,), (2,)) is None
    assert fragment_of_table(np.array([[0, 1], [2, 4]]), (5,), (5,)) is None
    good = fragment_of_table(np.array([[0, 1], [2, 3]]), (4,), (4,))
    assert good is not None and prod(good.shape) == 4


def test_an_index_that_is_not_known_has_no_layout_and_no_register():
    unknown = FragmentAccess(tile(8), (Var("row", int32),), is_write=False)
    loop, layout = loop_over(8), linear_fragment((8,), 8, 1)
    assert project(unknown, loop, layout) is None
    assert pull_back(unknown, loop, layout) is None
    assert register_map(unknown, loop, layout, layout) is None


def test_groups_of_different_sizes_share_no_registers():
    access = FragmentAccess(tile(64), (I,), is_write=False)
    assert register_map(access, loop_over(64), linear_fragment((64,), 64, 1), linear_fragment((64,), 32, 1)) is None


def test_a_loop_over_padding_alone_has_no_iteration():
    """Threads beyond the tile own nothing, and a value that is padding in all threads needs no register."""
    access = FragmentAccess(tile(3, 5), (I, J), is_write=True)
    layout = linear_fragment((3, 5), 8, 1)
    check_register_map(access, loop_over(3, 5), layout, layout, lambda n: (n["i"], n["j"]))


def test_iterations_that_touch_one_element_twice_cannot_be_pulled_back():
    halves = FragmentAccess(tile(8), (I // 2,), is_write=False)
    assert pull_back(halves, loop_over(16), linear_fragment((8,), 8, 1)) is None
