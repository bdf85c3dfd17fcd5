"""Bodies of kernels with one mistake each, in the line marked ``# here``.

Each is inlined into a kernel with a global tensor A (64 × 64, float32), a fragment F (8 × 8, float32) and an int32 n.
"""

from __future__ import annotations

import torch

import ptxtile.language as T


def slice_out_of_range(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(A[64:72, 0:8], tile)  # here


def slice_beyond_a_tile(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(tile[0:9, 0:8], A[0, 0])  # here


def empty_slice(A, F, n):
    T.fill(A[4:4, 0:8], 0)  # here


def matrix_of_a_small_image(A, F, n):
    image = T.alloc_shared((1, 1, 1, 4), T.float32)
    tile = T.alloc_shared((8, 8), T.float32)
    T.im2col(image, tile, 0, 0, 3, 1, 1, 0)  # here


def matrix_without_a_stride(A, F, n):
    image = T.alloc_shared((1, 4, 4, 4), T.float32)
    tile = T.alloc_shared((8, 8), T.float32)
    T.im2col(image, tile, 0, 0, 3, 0, 1, 0)  # here


def slice_with_a_step(A, F, n):
    T.fill(A[0:8:2, 0:8], 0)  # here


def slice_of_unknown_size(A, F, n):
    T.fill(A[0:n, 0:8], 0)  # here


def index_out_of_range(A, F, n):
    A[64, 0] = 1  # here


def too_many_indices(A, F, n):
    A[0, 0, n] = 1  # here


def float_index(A, F, n):
    A[0, 1.5] = 1  # here


def copy_of_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(tile, A[0:8, 0:16])  # here


def copy_between_tiles_of_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    part = T.alloc_fragment((8, 4), T.float32)
    T.copy(tile, part)  # here


def region_assigned_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    A[0:8, 0:9] = tile  # here


def tile_assigned_to_an_element(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    A[0, 0] = tile  # here


def whole_tile_arithmetic(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    other = tile + 1  # here
    T.copy(other, A[0, 0])


def unknown_operation(A, F, n):
    T.coppy(A[0, 0], F)  # here


def operation_of_later(A, F, n):
    T.cumsum(A, F)  # here


def fragment_element_of_each_thread(A, F, n):
    F[0, 0] = T.get_thread_binding(0)  # here


def fragment_element_of_some_threads(A, F, n):
    if T.get_thread_binding(0) < 3:
        F[0, 0] = 1.0  # here


def element_of_a_large_fragment(A, F, n):
    large = T.alloc_fragment((32, 64), T.float32)
    T.clear(large)
    A[0, 0] = large[n, 3]  # here


def condition_on_a_whole_buffer(A, F, n):
    if F:  # here
        A[0, 0] = 1


def unknown_dtype(A, F, n):
    T.alloc_shared((8, 8), "float12")  # here


def complex_dtype(A, F, n):
    T.alloc_fragment((8, 8), torch.complex64)  # here


def arithmetic_of_a_storage_dtype(A, F, n):
    x = T.cast(A[0, 0], "float8_e4m3fn")
    A[0, 1] = x + x  # here


def dependence_across_iterations(A, F, n):
    S = T.alloc_shared((64,), T.float32)
    for i in T.Parallel(63):
        S[i + 1] = S[i]  # here


def overwriting_iterations(A, F, n):
    S = T.alloc_shared((64,), T.float32)
    for i in T.Parallel(64):
        S[0] = i  # here


def parallel_over_an_unknown_extent(A, F, n):
    for i in T.Parallel(n):  # here
        A[i, 0] = 1


def copy_inside_parallel(A, F, n):
    for i in T.Parallel(8):
        T.copy(A[0, 0], F)  # here


def extern_call(A, F, n):
    T.call_extern("float32", "my_function", A[0, 0])  # here


def imported_source(A, F, n):
    T.import_source("__device__ int f();")  # here


def packed_call(A, F, n):
    T.call_packed("f", n)  # here


def division_by_zero(A, F, n):
    A[0, 0] = n // 0  # here


def negative_shift(A, F, n):
    A[0, 0] = n << -1  # here


def bits_of_a_float(A, F, n):
    A[0, 0] = A[0, 0] & 1  # here


def reinterpret_of_another_width(A, F, n):
    A[0, 0] = T.reinterpret(A[0, 0], "int64")  # here


def function_of_a_buffer(A, F, n):
    A[0, 0] = T.exp(A)  # here


def python_asks_for_truth(A, F, n):
    if any([A[0, 0] > 0, A[0, 1] > 0]):  # here
        A[0, 0] = 1


def python_needs_an_int(A, F, n):
    table = [1, 2, 3]
    A[0, 0] = table[n]  # here


def rebound_to_a_float(A, F, n):
    total = 0
    for i in range(n):
        total = total + A[i, 0]  # here
    A[0, 0] = total


def value_of_one_branch(A, F, n):
    if n > 0:
        x = 1
    A[0, 0] = x  # here


def list_changed_in_a_loop(A, F, n):
    found = []
    for i in range(n):
        found.append(A[i, 0])  # here


def reshape_of_another_size(A, F, n):
    T.reshape(A, (63, 64))  # here


def view_of_a_value(A, F, n):
    T.view(A[0, 0], (1,))  # here


def shape_that_is_no_number(A, F, n):
    T.alloc_shared((8, "8"), T.float32)  # here


def size_of_launch_time(A, F, n):
    T.alloc_shared((8, n), T.float32)  # here


def own_array_by_a_parallel_index(A, F, n):
    own = T.alloc_local((8,), T.float32)
    for i in T.Parallel(8):
        own[i] = A[i, 0]  # here


def own_array_read_by_a_parallel_index(A, F, n):
    own = T.alloc_local((8,), T.float32)
    T.clear(own)
    for i, j in T.Parallel(4, 2):
        k = i * 2 + j
        A[i, j] = own[k]  # here


def eviction_policy(A, F, n):
    T.copy(A[0, 0], F, eviction_policy="never")  # here


def assertion(A, F, n):
    assert n > 0  # here
