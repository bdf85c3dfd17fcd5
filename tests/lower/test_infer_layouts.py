"""Which layouts loops and fragments get, and that every access of a fragment ends local to its thread."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.errors import LoweringError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.layouts import Fragment
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, ParallelFor
from ptxtile.lower import infer_layouts
from ptxtile.lower.fragment_maps import register_map
from ptxtile.lower.infer_layouts import free_layout
from ptxtile.lower.options import Options
from ptxtile.lower.parallel_loops import fragment_accesses
from tests.lower.kernel_texts import apply, kernel_program, nodes, text

DECLARATIONS = "A = tensor(float32, (128, 128))\nH = tensor(float16, (128, 128))\nV = tensor(float32, (128,))"


def inferred(body: str, threads: int = 128) -> Program:
    return apply(infer_layouts, kernel_program(text(body), DECLARATIONS, threads=threads, stage="async"))


def layouts(of: Program) -> dict[str, Fragment]:
    """By fragment name, and by the first variable of each loop."""
    found = {n.buffer.name: n.buffer.layout for n in nodes(of, Allocate) if n.buffer.scope is Scope.FRAGMENT}
    found |= {loop.vars[0].name: loop.option("layout") for loop in nodes(of, ParallelFor)}
    assert all(isinstance(layout, Fragment) for layout in found.values())
    return found


# ---- the layout of a free loop


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    st.sampled_from((1, 32, 96, 128)),
    st.sampled_from((1, 2, 4, 8, 16)),
)
def test_free_layouts_cover_the_domain_once_in_vectors(extents: tuple[int, ...], threads: int, width: int):
    layout = free_layout(extents, threads, width)
    table = layout.table()
    assert table.shape[0] == threads
    assert sorted(table[table >= 0].tolist()) == list(range(prod(extents)))
    vector = layout.value.modes[-1][0]
    assert vector <= width and (vector == 1 or extents[-1] % vector == 0)
    rounds = table.reshape(threads, -1, vector)
    whole = rounds[(rounds >= 0).all(axis=2)]
    assert (np.diff(whole, axis=1) == 1).all()  # a vector is consecutive
    first = rounds[:, 0, 0]
    busy = first[first >= 0]
    assert busy.tolist() == [vector * t for t in range(len(busy))]  # consecutive threads, consecutive vectors


@pytest.mark.parametrize(
    ("extents", "threads", "width", "vector"),
    [
        ((64, 64), 128, 4, 4),
        ((64, 64), 128, 1, 1),
        ((8, 64), 128, 4, 4),  # just enough for all threads
        ((4, 64), 128, 4, 2),  # else half of them would be idle
        ((2, 64), 128, 4, 1),
        ((64, 6), 32, 4, 2),  # rows of 6
        ((64, 7), 32, 4, 1),
        ((512,), 128, 8, 4),
    ],
)
def test_vectors_are_narrower_where_threads_would_be_idle(extents, threads, width, vector):
    assert free_layout(extents, threads, width).value.modes[-1][0] == vector


# ---- loops and fragments together


def test_one_layout_with_the_narrowest_useful_width():
    """Half precision would allow 8, float32 4: both loops use the fragment alike, so 4."""
    found = layouts(
        inferred(
            """
            F = allocate_fragment(float32, (64, 64))
            for i, j in parallel(64, 64):
                F[i, j] = cast(H[i, j], float32)
            for k, l in parallel(64, 64):
                A[k, l] = F[k, l]
            """
        )
    )
    assert found["F"] == found["i"] == found["k"]
    assert found["F"].value.modes[-1] == (4, 1)


def test_loops_that_share_nothing_keep_their_own_widths():
    found = layouts(
        inferred(
            """
            for i, j in parallel(64, 64):
                H[i, j] = float16(0.0)
            for k, l in parallel(64, 64):
                A[k, l] = float32(0.0)
            """
        )
    )
    assert found["i"].value.modes[-1] == (8, 1) and found["k"].value.modes[-1] == (4, 1)


def test_the_largest_loop_comes_first_and_smaller_ones_follow():
    """The row sum's loop over 64 rows runs in every thread that holds a part of the row."""
    found = layouts(
        inferred(
            """
            F = allocate_fragment(float32, (64, 64))
            row = allocate_fragment(float32, (64,))
            for i in parallel(64):
                row[i] = V[i]
            for k, l in parallel(64, 64):
                F[k, l] = A[k, l] * row[k]
            """
        )
    )
    assert found["row"] == found["i"]
    assert not found["row"].is_exclusive
    held, used = found["row"].table(), found["k"].table() // 64
    for thread in range(128):
        assert set(held[thread].tolist()) == set(used[thread].tolist())


def test_fragments_used_as_scalars_are_in_every_thread():
    found = layouts(
        inferred(
            """
            s = allocate_fragment(float32, (4,))
            s[1] = float32(2.0)
            for i in parallel(128):
                V[i] = s[1]
            """
        )
    )
    assert found["s"].table().tolist() == [[0, 1, 2, 3]] * 128


def test_threads_are_the_roles_in_a_role():
    found = layouts(
        inferred(
            """
            with specialized():
                with role("consumer", first_thread=0, threads=32):
                    F = allocate_fragment(float32, (8, 32))
                    for i, j in parallel(8, 32):
                        F[i, j] = A[i, j]
                with role("producer", first_thread=32, threads=96):
                    G = allocate_fragment(float32, (6, 32))
                    for k, l in parallel(6, 32):
                        G[k, l] = A[k, l]
            """
        )
    )
    assert found["F"].threads == found["i"].threads == 32
    assert found["G"].threads == found["k"].threads == 96


def test_a_fragment_in_two_roles_of_different_sizes_is_an_error():
    body = """
    F = allocate_fragment(float32, (96,))
    with specialized():
        with role("consumer", first_thread=0, threads=32):
            for i in parallel(96):
                F[i] = V[i]
        with role("producer", first_thread=32, threads=96):
            for k in parallel(96):
                V[k] = F[k]
    """
    program = kernel_program(text(body), DECLARATIONS, stage="async")
    with pytest.raises(LoweringError, match="two roles with different numbers of threads") as caught:
        infer_layouts.run(program, target.get("sm_90a"), Options())
    assert caught.value.hint is not None


def test_a_loop_with_an_operation_that_runs_once_is_not_replicated():
    """Its result would be in one replica only."""
    found = layouts(
        inferred(
            """
            row = allocate_fragment(float32, (64,))
            F = allocate_fragment(float32, (64, 64))
            for k, l in parallel(64, 64):
                F[k, l] = A[k, l] * row[k]
            for i in parallel(64):
                old = allocate_local(float32, ())
                atomic(operator="add", buffer=V, indices=(i,), value=row[i], result=old)
                V[i] = old[()]
            """
        )
    )
    assert not found["row"].is_exclusive and found["i"].is_exclusive


@pytest.mark.parametrize("target_tensor", ["V", "W"])
def test_a_loop_that_updates_memory_is_not_replicated(target_tensor: str):
    """One replica stores, and another may read the element only after that; W may be the same memory as V."""
    declarations = DECLARATIONS.replace("(128,))", "(128,), alias_group=0)\nW = tensor(float32, (128,), alias_group=0)")
    body = f"""
    row = allocate_fragment(float32, (64,))
    F = allocate_fragment(float32, (64, 64))
    for k, l in parallel(64, 64):
        F[k, l] = A[k, l] * row[k]
    for i in parallel(64):
        row[i] = V[i]
        {target_tensor}[i] = row[i] * float32(2.0)
    """
    found = layouts(apply(infer_layouts, kernel_program(text(body), declarations, stage="async")))
    assert not found["row"].is_exclusive and found["i"].is_exclusive


def test_without_parallel_loops_and_fragments_nothing_changes():
    program = kernel_program("V[0] = float32(1.0)", DECLARATIONS, stage="async")
    result = apply(infer_layouts, program)
    assert result == program and not result.why


# ---- every access is local in the end

MAPS = ("i, j", "15 - i, j", "i, (j + 3) % 16", "j, i", "i // 2, j", "i, 0 * j", "(i * 16 + j) % 16, i")


@settings(max_examples=60)
@given(st.data())
def test_after_the_pass_every_access_is_local(data):
    """Loops over several fragments with random index maps and threads; the check is the definition of «local»."""
    threads = data.draw(st.sampled_from((32, 64, 96, 128)))
    names = ("F", "G", "r")
    lines = ["F = allocate_fragment(float32, (16, 16))", "G = allocate_fragment(float32, (16, 16))"]
    lines.append("r = allocate_fragment(float32, (16,))")
    for number in range(data.draw(st.integers(1, 4))):
        i, j = f"i{number}", f"j{number}"

        def access(i: str = i, j: str = j) -> str:
            name = data.draw(st.sampled_from(names))
            if name == "r":
                return f"r[{data.draw(st.sampled_from((i, j, f'15 - {i}')))}]"
            chosen = data.draw(st.sampled_from(MAPS))
            return f"{name}[{chosen.replace('i', '§').replace('j', j).replace('§', i)}]"

        lines.append(f"for {i}, {j} in parallel(16, 16):")
        lines.append(f"    {access()} = {access()} + {access()} + A[{i}, {j}]")
    if data.draw(st.booleans()):
        lines.append("V[0] = r[5]")
    result = inferred("\n".join(lines), threads)
    for loop in nodes(result, ParallelFor):
        layout = loop.option("layout")
        assert isinstance(layout, Fragment)
        layout.check()
        for access_of_fragment in fragment_accesses(loop, ()):
            fragment = access_of_fragment.buffer.layout
            assert isinstance(fragment, Fragment)
            fragment.check()
            assert register_map(access_of_fragment, loop, layout, fragment) is not None
