"""Buffers, regions, copies, views: what is emitted, and what is refused at the user's line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptxtile.language as T
from ptxtile.errors import PtxtileError, ResourceError, TraceError, TypeMismatchError
from ptxtile.ir.expressions import Const, Load
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Store, View
from ptxtile.ir.tile_ops import Copy, Fill, Print
from tests.frontend.interpreter import run
from tests.frontend.tracing import traced


def made(body, kind):
    """What of ``kind`` ``body(A, V, shared, bx)`` makes; A is (256, 128), V is (4, 8, 64)."""
    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((256, 128), "float32"), V: T.Tensor((4, 8, 64), "float16")):
        with T.Kernel(4, threads=128) as bx:
            shared = T.alloc_shared((64, 32), "float32")
            inline(A, V, shared, bx)

    return [node for node in walk(traced(main).kernels[0].body) if isinstance(node, kind)]


def copies(body) -> list[Copy]:
    return made(body, Copy)


def refused(body, match, error: type[Exception] = TraceError) -> PtxtileError:
    with pytest.raises(error, match=match) as caught:
        copies(body)
    assert isinstance(caught.value, PtxtileError)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    return caught.value


def test_point_takes_the_other_sides_extent():
    def body(A, V, shared, bx):
        T.copy(A[bx * 64, 32], shared)
        T.copy(shared, A[bx * 64, 32])

    load, store = copies(body)
    assert load.source.extents == load.destination.extents == (64, 32)
    assert load.source.buffer.name == "A" and store.destination.buffer.name == "A"


def test_slices_with_affine_ends():
    def body(A, V, shared, bx):
        T.copy(A[bx * 64 : (bx + 1) * 64, 0:32], shared)
        start = bx * 64
        stop = start + 64
        T.copy(A[start:stop, 96:], shared)
        T.copy(A[-64:, -32:], shared)
        T.copy(A[:64, :32], shared[:, :])

    assert [copy.source.extents for copy in copies(body)] == [(64, 32)] * 4
    last = copies(body)[2].source.starts
    assert [start.value for start in last if isinstance(start, Const)] == [192, 96]


def test_dimensions_of_size_one_are_dropped():
    def body(A, V, shared, bx):
        tile = T.alloc_shared((8, 64), "float16")
        row = T.alloc_shared((64,), "float16")
        T.copy(V[bx, 0, 0], tile)
        T.copy(V[bx, 0:8, 0:64], tile)
        T.copy(V[bx, 3, 0], row)
        T.copy(V[bx, 3, 0:64], row)
        T.copy(row, tile[5, 0])
        T.copy(row, tile[5, :])

    found = copies(body)
    assert [copy.source.extents for copy in found[:4]] == [(1, 8, 64), (1, 8, 64), (1, 1, 64), (1, 1, 64)]
    assert [copy.destination.extents for copy in found[4:]] == [(1, 64), (1, 64)]


def test_whole_buffers():
    def body(A, V, shared, bx):
        other = T.alloc_fragment((64, 32), "float16")
        T.copy(shared, other, coalesced_width=2, disable_tma=True, eviction_policy="evict_first")

    (copy,) = copies(body)
    assert copy.source.extents == (64, 32) and copy.disable_tma
    assert copy.coalesced_width == 2 and copy.eviction_policy == "evict_first"


def test_one_element():
    def body(A, V, shared, bx):
        T.copy(A[3, 4], shared[5, 6])

    (copy,) = copies(body)
    assert copy.source.extents == copy.destination.extents == (1, 1)


def test_a_copied_element_leaves_no_load_behind():
    def body(A, V, shared, bx):
        T.copy(A[bx * 64, 0], shared[0, 0])

    from ptxtile.ir.expressions import Load

    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((256, 128), "float32")):
        with T.Kernel(4, threads=128) as bx:
            inline(A, None, T.alloc_shared((64, 32), "float32"), bx)

    assert not [node for node in walk(traced(main).kernels[0].body) if isinstance(node, Load)]


def test_region_assignment():
    def body(A, V, shared, bx):
        shared[0:8, 0:32] = 1
        shared[0:8, :] = A[0:8, 0:32]

    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((256, 128), "float32")):
        with T.Kernel(4, threads=128) as bx:
            inline(A, None, T.alloc_shared((64, 32), "float32"), bx)

    body_nodes = list(walk(traced(main).kernels[0].body))
    (fill,) = [node for node in body_nodes if isinstance(node, Fill)]
    assert fill.destination.extents == (8, 32) and fill.value == Const(1.0, fill.destination.buffer.dtype)
    assert [node.source.extents for node in body_nodes if isinstance(node, Copy)] == [(8, 32)]


def test_shape_mismatch():
    def body(A, V, shared, bx):
        T.copy(A[0:64, 0:64], shared)

    error = refused(body, "different shapes", TypeMismatchError)
    assert "(64, 64)" in str(error) and "(64, 32)" in str(error)


def test_region_assignment_of_another_shape():
    def body(A, V, shared, bx):
        shared[0:8, :] = A[0:9, 0:32]

    refused(body, "different shapes", TypeMismatchError)


def test_a_slice_along_a_variable_of_the_loop():
    """Both ends read a variable that a while loop changes; they are of one moment."""

    def body(A, V, shared, bx):
        k = T.int32(0)
        while k < bx:
            T.copy(A[k * 64 : (k + 1) * 64, k : k + 32], shared)
            k += 1

    (copy,) = copies(body)
    assert copy.source.extents == (64, 32)


def test_slice_out_of_range():
    def body(A, V, shared, bx):
        T.copy(A[256:320, 0:32], shared)

    error = refused(body, "slice 0 of A is out of range")
    assert error.got == "256:320"


def test_slice_that_reaches_beyond_the_end_of_a_tensor():
    def body(A, V, shared, bx):
        T.copy(A[200:264, 0:32], shared)

    (copy,) = copies(body)
    assert copy.source.extents == (64, 32)


def test_slice_that_reaches_beyond_the_end_of_a_tile():
    def body(A, V, shared, bx):
        T.copy(shared[32:96, 0:32], A[0:64, 0:32])

    error = refused(body, "slice 0 of shared is out of range")
    assert error.got == "32:96"


def test_slice_of_unknown_extent():
    def body(A, V, shared, bx):
        T.copy(A[0 : bx * 64, 0:32], shared)

    refused(body, "extent of slice 0 of A is not known")


def test_slice_with_a_step():
    def body(A, V, shared, bx):
        T.copy(A[0:128:2, 0:32], shared)

    refused(body, "has a step")


@pytest.mark.parametrize("index", [256, -257])
def test_index_out_of_range(index):
    def body(A, V, shared, bx):
        A[index, 0] = 1

    refused(body, "index 0 of A is out of range")


def test_negative_index_counts_from_the_end():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "int32")):
        with T.Kernel(1, threads=1):
            A[-1, -2] = A[-4, 0] + 1

    memory = {"A": np.arange(32, dtype=np.int32).reshape(4, 8)}
    run(traced(main), memory)
    assert memory["A"][3, 6] == 1


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_indices(count):
    def body(A, V, shared, bx):
        A[(0,) * count] = 1

    refused(body, "wrong number of indices for A", TypeMismatchError)


def test_float_index():
    def body(A, V, shared, bx):
        A[bx / 2, 0] = 1

    error = refused(body, "must be an integer", TypeMismatchError)
    assert error.got == "float32"


def test_a_tile_in_an_element():
    def body(A, V, shared, bx):
        A[0, 0] = shared

    refused(body, "a tile is assigned to one element", TypeMismatchError)


def test_arithmetic_on_buffers():
    def body(A, V, shared, bx):
        shared + 1

    error = refused(body, "arithmetic on a whole buffer", TypeMismatchError)
    assert "T.Parallel" in str(error.hint)


def test_number_plus_buffer():
    def body(A, V, shared, bx):
        bx + shared

    refused(body, "not a scalar", TypeMismatchError)


def test_copy_of_something_else():
    def body(A, V, shared, bx):
        T.copy(bx + 1, shared)

    refused(body, "neither a buffer nor a region", TypeMismatchError)


def test_copy_inside_parallel():
    def body(A, V, shared, bx):
        for i in T.Parallel(64):
            T.copy(A[i, 0:32], shared[i, 0:32])

    refused(body, "T.copy inside of T.Parallel")


def test_a_fragment_element_starts_a_region():
    def body(A, V, shared, bx):
        frag = T.alloc_fragment((64, 32), "float32")
        T.copy(shared[0, 0], frag[0, 0])
        T.copy(frag[32, 0], A[0:32, 0:32])

    first, second = copies(body)
    assert first.destination.extents == (1, 1)
    assert second.source.extents == (32, 32)


def test_a_region_that_starts_at_a_fragment_element_reads_no_element():
    def body(A, V, shared, bx):
        frag = T.alloc_fragment((64, 32), "float32")
        T.copy(frag[32, 0], A[0:32, 0:32])

    assert copies(body) and not made(body, Load)


@pytest.mark.parametrize("shape", [(1,), (64,)])
def test_an_element_of_a_fragment_is_a_scalar(shape):
    def body(A, V, shared, bx):
        frag = T.alloc_fragment(shape, "float32")
        frag[0] = 2
        if frag[0] > 0:
            A[0, 0] = frag[0] + 1

    assert [load.buffer.name for load in made(body, Load)] == ["frag", "frag"]


def test_a_buffer_as_a_condition():
    def body(A, V, shared, bx):
        if shared:
            A[0, 0] = 1

    refused(body, "used as a condition", TypeMismatchError)


@pytest.mark.parametrize("threads", [1025, [64, 17], [2, 2, 512]])
def test_too_many_threads(threads):
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=threads):
            A[0] = 1

    with pytest.raises(ResourceError, match="too many threads") as caught:
        traced(main)
    assert caught.value.expected == "at most 1024"


def test_unsupported_dtype():
    def body(A, V, shared, bx):
        T.alloc_shared((4,), "float23")

    error = refused(body, "unsupported dtype 'float23'", TypeMismatchError)
    assert "float32" in str(error.hint)


@pytest.mark.parametrize("shape", [(0,), (-1,), ("x",), (2.5,)])
def test_shapes_that_are_none(shape):
    def body(A, V, shared, bx):
        T.alloc_shared(shape, "float32")

    refused(body, "shape of T.alloc_shared|size of T.alloc_shared")


def test_shape_known_only_at_launch():
    def body(A, V, shared, bx):
        T.alloc_shared((bx, 4), "float32")

    refused(body, "a size of T.alloc_shared")


def test_views_share_storage():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "int32")):
        flat = T.reshape(A, (32,))
        with T.Kernel(1, threads=1):
            tile = T.alloc_shared((2, 4), "float32")
            bits = T.view(tile, (8,), "int32")
            tile[1, 2] = 1.0
            flat[9] = bits[6]
            A[0, 0] = bits.shape[0]

    program = traced(main)
    memory = {"A": np.zeros((4, 8), np.int32)}
    run(program, memory)
    assert memory["A"][1, 1] == 0x3F800000 and memory["A"][0, 0] == 8
    views = [node.buffer for node in walk(program.kernels[0].body) if isinstance(node, View)]
    assert [(v.name, v.storage.name) for v in views] == [("flat", "A"), ("bits", "tile")]


def test_view_of_other_size():
    def body(A, V, shared, bx):
        T.view(shared, (64, 31))

    refused(body, "does not keep the number of bits", TypeMismatchError)


def test_buffer_attributes():
    def body(A, V, shared, bx):
        assert A.shape == (256, 128) and A.strides == (128, 1) and A.dtype == "float32" and len(A) == 256
        assert shared.scope() == "shared" and V.ndim == 3

    copies(body)


def test_names_come_from_the_variables():
    def body(A, V, shared, bx):
        first, second = T.alloc_shared((4,), "int8"), T.alloc_local((4,), "int8")
        third = [T.alloc_shared((4,), "int8") for _ in range(2)]
        assert [first.name, second.name] == ["first", "second"]
        assert [b.name for b in third] == ["third", "third_1"]

    copies(body)


def test_bindings():
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(2, 3, 4, threads=(8, 4, 2)) as (_x, _y, z):
            tx, ty, tz = T.get_thread_bindings()
            assert T.get_thread_extents() == [8, 4, 2] and T.get_block_extents() == [2, 3, 4]
            A[0] = tx + ty * 8 + tz * 32 - T.get_thread_binding(0)
            assert T.get_block_binding(2).expr == z.expr

    kernel = traced(main).kernels[0]
    assert kernel.grid == (2, 3, 4) and kernel.threads == 64
    assert [var.name for var in kernel.block_vars] == ["x", "y", "z"]


def test_print():
    @T.prim_func
    def main(A: T.Tensor((2, 2), "int32")):
        with T.Kernel(1, threads=1):
            T.print(A[0, 1], "value")
            T.print(msg="only text")
            T.print(A)

    program = traced(main)
    assert len([node for node in walk(program.kernels[0].body) if isinstance(node, Print)]) == 3
    printed = run(program, {"A": np.arange(4, dtype=np.int32).reshape(2, 2)}).printed
    assert printed[0] == ("value", 1) and len(printed) == 6 and printed[-1][-1] == 3


# ---------------------------------------------------------------- T.Parallel


def parallel(body):
    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((64, 64), "int32"), B: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            inline(A, B, C)

    return traced(main)


def test_dependence_across_iterations():
    def body(A, B, C):
        for i in T.Parallel(63):
            B[i + 1] = B[i] + 1

    with pytest.raises(TraceError, match="reads an element of B that another iteration writes: the read is at line"):
        parallel(body)


def test_dependence_through_names():
    def body(A, B, C):
        for i in T.Parallel(60):
            j = i + 1
            left = B[j - 2 + 1 - 1]
            B[i] = left

    with pytest.raises(TraceError, match="another iteration writes"):
        parallel(body)


@pytest.mark.parametrize("rows, columns", [(0, 1), (-3, 0), (2, -5)])
def test_dependence_in_two_dimensions(rows, columns):
    def body(A, B, C):
        for i, j in T.Parallel(32, 32):
            x = A[i + 8 + rows, j + 8 + columns]
            A[i + 8, j + 8] = x

    with pytest.raises(TraceError, match="another iteration writes"):
        parallel(body)


def test_a_sum_into_one_element():
    def body(A, B, C):
        for i in T.Parallel(64):
            C[0] = C[0] + B[i]

    with pytest.raises(TraceError, match="another iteration writes"):
        parallel(body)


def test_different_values_to_one_element():
    def body(A, B, C):
        for i in T.Parallel(64):
            C[0] = i

    with pytest.raises(TraceError, match="write different values to one element of C") as caught:
        parallel(body)
    assert "the write is at line" in str(caught.value) and "the loop at line" in str(caught.value)


def test_two_writes_that_meet():
    def body(A, B, C):
        for i in T.Parallel(32):
            C[i] = 1
            C[i + 1] = 2

    with pytest.raises(TraceError, match="two iterations of T.Parallel write different values"):
        parallel(body)


def test_a_carried_name():
    def body(A, B, C):
        total = 0
        for i in T.Parallel(32):
            total += B[i]
        C[0] = total

    with pytest.raises(TraceError, match="total is carried from one iteration of the T.Parallel loop"):
        parallel(body)


def test_independent_iterations_are_fine():
    def body(A, B, C):
        for i in T.Parallel(64):
            B[i] = B[i] * 2
            t = B[i] + 1
            t = t * 2
            C[63 - i] = t
        for i in T.Parallel(32):
            C[i] = C[i + 32]
            B[2 * i] = B[2 * i + 1]
        for i, j in T.Parallel(8, 8):
            C[i * 8 + j] = i
            if j == 0:
                B[i] = B[i + 1]
        for i in T.Parallel(64):
            C[0] = 5
            if B[i] > 0:
                x = 1
            else:
                x = 2
            B[i] = x

    parallel(body)


def test_parallel_inside_parallel():
    def body(A, B, C):
        for i in T.Parallel(8):
            for j in T.Parallel(8):
                A[i, j] = 0

    with pytest.raises(TraceError, match="T.Parallel inside of T.Parallel"):
        parallel(body)


@pytest.mark.parametrize("extent", [0, -1, 2.5, "8"])
def test_parallel_extents(extent):
    def body(A, B, C):
        for i in T.Parallel(extent):
            B[i] = 0

    with pytest.raises(TraceError, match="an extent of T.Parallel"):
        parallel(body)


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 3), st.integers(1, 8))
def test_dependences_against_brute_force(read, write, stride, extent):
    """For B[stride·i + write] = B[stride·i + read]: refused exactly when two iterations touch one element."""
    conflict = any(stride * i + read == stride * j + write for i in range(extent) for j in range(extent) if i != j)

    def body(A, B, C):
        for i in T.Parallel(extent):
            B[stride * i + write + 8] = B[stride * i + read + 8]

    if conflict:
        with pytest.raises(TraceError, match="another iteration writes"):
            parallel(body)
    else:
        parallel(body)


def test_stores_cast_to_the_buffer():
    @T.prim_func
    def main(A: T.Tensor((4,), "float16"), B: T.Tensor((4,), "int8")):
        with T.Kernel(1, threads=1):
            B[0] = A[0]
            A[1] = 1
            A[2] = B[0] + 1

    stores = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, Store)]
    assert [store.value.dtype.name for store in stores] == ["int8", "float16", "float16"]
