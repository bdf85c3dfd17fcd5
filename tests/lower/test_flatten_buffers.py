"""Indices as one offset: its value against exact integer arithmetic, also past 2³¹, and its width."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.layouts import TMA_SWIZZLES
from ptxtile.ir.program import Program
from ptxtile.ir.statements import For, LoopKind, Store, View
from ptxtile.ir.types import int32, int64
from ptxtile.lower import flatten_buffers
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text


def flattened(body: str, declarations: str = "", grid: str = "(1, 1, 1)") -> Program:
    source = kernel_program(text(body), text(declarations), stage="thread", grid=grid)
    return apply(flatten_buffers, source)


def store_offset(body: str, declarations: str = "", grid: str = "(1, 1, 1)") -> Expr:
    """The offset of the last store."""
    (offset,) = nodes(flattened(body, declarations, grid), Store)[-1].indices
    return offset


# ---- values


def test_the_stage_is_gpu_and_views_are_gone():
    result = flattened(
        """
        S = allocate_shared(float32, (8, 16))
        V = view(float32, (4, 4), "S", strides=(16, 2), offset=3)
        V[tx % 4, 1] = S[2, tx % 16]
        """
    )
    assert result.stage == "gpu" and not nodes(result, View)
    (store,), (load,) = nodes(result, Store), nodes(result, Load)
    for thread in range(32):
        assert evaluate(store.indices[0], {"tx": thread}) == 3 + thread % 4 * 16 + 2
        assert evaluate(load.indices[0], {"tx": thread}) == 32 + thread % 16


def test_scalars_registers_and_barriers():
    result = flattened(
        """
        n = allocate_local(int32, ())
        X = allocate_local(int32, (4, 4))
        R = allocate_register(int32, (8,))
        bar = allocate_barrier(uint64, (2,), storage_alignment=8)
        n[()] = 1
        X[tx % 4, 3] = n[()]
        for k in unrolled(0, 4):
            R[k * 2 + 1] = n[()]
        """
    )
    n, x, r = (store.indices for store in nodes(result, Store))
    assert evaluate(n[0], {}) == 0
    assert evaluate(x[0], {"tx": 6}) == 2 * 4 + 3
    assert evaluate(r[0], {"k": 3}) == 7


def test_vectors_keep_their_first_element():
    result = flattened(
        "S = allocate_shared(float32, (8, 16))\nS.x4[tx % 8, 4] = A.x4[tx % 8, 8]", "A = tensor(float32, (8, 64))"
    )
    (store,), (load,) = nodes(result, Store), nodes(result, Load)
    assert evaluate(store.indices[0], {"tx": 5}) == 84 and store.value.dtype.lanes == 4
    assert evaluate(load.indices[0], {"tx": 5}) == 328 and load.dtype.lanes == 4


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzled_tiles(span: int):
    columns = (span or 256) // 4
    swizzle = TMA_SWIZZLES[span]
    layout = (
        f"SharedLayout(layout=Layout((32, ({64 // columns}, {columns})), ({columns}, ({32 * columns}, 1))), "
        f"swizzle=Swizzle({swizzle.bits}, 4, 3), itemsize=4)"
    )
    offset = store_offset(
        f"S = allocate_shared(float32, (32, 64), storage_alignment=1024, layout={layout})\n"
        "S[tx // 4, tx % 4 * 16 + 3] = float32(0.0)"
    )
    for thread in range(128):
        row, column = thread // 4, thread % 4 * 16 + 3
        byte = (column // columns * 32 * columns + row * columns + column % columns) * 4
        if span:
            byte ^= (byte // 128 % 8 & (span // 16 - 1)) * 16
        assert evaluate(offset, {"tx": thread}) == byte // 4


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 50)), min_size=1, max_size=4),
    st.integers(0, 40),
    st.booleans(),
)
def test_any_strides(dimensions: list[tuple[int, int]], offset: int, shared: bool):
    shape, strides = tuple(n for n, _ in dimensions), tuple(s for _, s in dimensions)
    names = [f"k{d}" for d in range(len(shape))]
    loops = "".join(
        "    " * d + f"for {name} in serial(0, {n}):\n" for d, (name, n) in enumerate(zip(names, shape, strict=True))
    )
    access = "    " * len(shape) + f"V[{', '.join(names)}] = int8(1)"
    view = f'V = view(int8, {shape}, "S", strides={strides}, offset={offset})\n'
    memory = "S = allocate_shared(int8, (4096,))\n" if shared else ""
    declarations = "" if shared else "S = tensor(int8, (4096,))"
    found = store_offset(memory + view + loops + access, declarations)
    for point in itertools.product(*map(range, shape)):
        exact = offset + sum(i * s for i, s in zip(point, strides, strict=True))
        assert evaluate(found, dict(zip(names, point, strict=True))) == exact


# ---- width

LARGE = 2**31


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "dtype"),
    [
        ((LARGE // 4, 4), None, 0, int32),  # the last element is 2³¹ − 1
        ((LARGE // 4 + 1, 4), None, 0, int64),
        ((LARGE,), None, 0, int32),
        ((2, 4), (LARGE - 4, 1), 0, int32),  # (2 − 1) · (2³¹ − 4) + 3
        ((2, 5), (LARGE - 4, 1), 0, int64),
        ((16,), None, LARGE - 16, int32),
        ((16,), None, LARGE - 15, int64),
        ((1, 16), (2**40, 1), 0, int32),  # a dimension of one never steps
        ((2, 16), (2**40, 1), 0, int64),
    ],
)
def test_64_bits_where_an_element_may_lie_2_31_away(shape, strides, offset: int, dtype):
    arguments = "" if strides is None else f", strides={strides}"
    arguments += f", offset={offset}" if offset else ""
    indices = ", ".join(["tx"] * len(shape))
    declared = f"A = tensor(int8, {shape}{arguments})"
    assert store_offset(f"A[{indices}] = int8(0)", declared).dtype == dtype


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        ("", int64),
        ("fact(M, lower=0, upper=32768)\nfact(N, lower=0, upper=65536)", int32),  # 2¹⁵ · 2¹⁶ elements
        ("fact(M, lower=0, upper=32769)\nfact(N, lower=0, upper=65536)", int64),
    ],
)
def test_symbolic_shapes_use_the_facts(facts: str, dtype):
    declarations = "M = symbol(int32)\nN = symbol(int32)\n" + facts + "\nA = tensor(int8, (M, N))"
    offset = store_offset("A[M - 1, N - 1] = int8(0)", declarations)
    assert offset.dtype == dtype
    m, n = (32768, 65536) if dtype == int32 else (2**17, 2**18)
    assert evaluate(offset, {"M": m, "N": n}) == m * n - 1


def test_symbolic_strides_are_multiplied_in_64_bits():
    declarations = "M = symbol(int32)\nP = symbol(int32)\nA = tensor(int8, (M, 100), strides=(P * 4, 1))"
    offset = store_offset("A[by * 128 + tx, bx] = int8(0)", declarations, grid="(100, 4096, 1)")
    values = {"by": 4095, "tx": 127, "bx": 99, "P": 2**29 + 5}
    assert evaluate(offset, values) == (4095 * 128 + 127) * (2**31 + 20) + 99  # P · 4 alone leaves int32


def test_an_index_of_64_bits_makes_the_offset_one():
    offset = store_offset("A[cast(tx, int64) * int64(3)] = int8(0)", "A = tensor(int8, (4096,))")
    assert offset.dtype == int64 and evaluate(offset, {"tx": 5}) == 15


def test_a_sum_that_wraps_in_32_bits_is_the_true_one_in_a_large_tensor():
    offset = store_offset(
        "A[by * M + tx] = int8(0)", "M = symbol(int32)\nA = tensor(int8, (4294967296,))", "(1, 4096, 1)"
    )
    assert evaluate(offset, {"by": 4095, "M": 2**20, "tx": 7}) == 4095 * 2**20 + 7


def test_shared_memory_is_always_indexed_in_32_bits():
    assert store_offset("S = allocate_shared(float32, (8, 16))\nS[tx % 8, 3] = float32(0.0)").dtype == int32


# ---- other statements


def test_atomics_have_one_offset_too():
    body = """
    old = allocate_local(int32, ())
    atomic(operator="add", buffer=A, indices=(1, tx), value=A[2, tx], result=old)
    atomic_load(buffer=A, indices=(2, tx), result=old)
    atomic_store(buffer=A, indices=(3, tx), value=1)
    """
    assert body_text(flattened(body, "A = tensor(int32, (4, 128))")) == text(
        """
        old = allocate_local(int32, ())
        atomic(operator="add", buffer=A, indices=(tx + 128,), value=A[tx + 256], result=old)
        atomic_load(buffer=A, indices=(tx + 256,), result=old)
        atomic_store(buffer=A, indices=(tx + 384,), value=1)
        """
    )


def test_a_pipelined_loop_that_nothing_took_apart_is_serial():
    (loop,) = nodes(
        flattened("for k in pipelined(0, 4, num_stages=2):\n    A[k] = int8(0)", "A = tensor(int8, (4,))"), For
    )
    assert loop.kind is LoopKind.SERIAL and loop.options == ()


def test_coordinates_of_tma_are_simplified():
    source = kernel_program(
        """
        S = allocate_shared(float32, (16, 32))
        tma_store(tensor_map="A_map", coordinates=(bx * 32 + 0, by * 16 + 0 * 4), shared=S, offset=0 + 0 * 32 + 0)
        """,
        'A = tensor(float32, (64, 64))\nTensorMapRecord(name="A_map", tensor="A", dtype="float32", '
        "dimensions=(64, 64), strides=(256,), box=(32, 16))",
        stage="thread",
        grid="(2, 4, 1)",
    )
    result = apply(flatten_buffers, source)
    assert "coordinates=(bx * 32, by * 16), shared=S, offset=0" in body_text(result)
    assert len(nodes(result, TmaStore)) == 1
