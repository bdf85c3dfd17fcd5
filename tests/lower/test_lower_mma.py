"""Operand fragments of mma.sync: which go through ldmatrix, in which order, and without bank conflicts.

What they hold is tested by products in tests/gemm; here addresses are counted by the programming guide's rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.compiler import lower_program
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.buffers import Scope
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Expr, Load, Var, constant_value
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import children, free_variables, walk
from ptxtile.ir.statements import For, Let, LoopKind, Store
from ptxtile.ir.tensor_core_ops import LoadMatrix, MmaSync
from ptxtile.lower.options import Options
from tests.gemm import kernels
from tests.lower.kernel_texts import nodes


def gemm(architecture: str, m: int, n: int, k: int, **options: Any) -> Program:
    """A product of 4 tiles of K, lowered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXTILE_TARGET", architecture)
        kernels.gemm._kernels.clear()
        kernel = kernels.gemm.specialize(
            M=2 * m, N=2 * n, K=4 * k, block_M=m, block_N=n, block_K=k, num_stages=2, **options
        )
    program, _ = lower_program(kernel.tile_program, target.get(architecture), Options(specialize_warps=False))
    return program


def row_phases(program: Program, kind: type) -> Iterator[list[int]]:
    """The byte addresses, each of 16 bytes, of every group of eight lanes in every ldmatrix (or 16-byte cp.async) of
    every warp, for all values of the unrolled loops around; serial loops at 0."""
    (kernel,) = program.kernels
    threads = np.arange(kernel.threads)

    def visit(node: Any, values: dict[str, Any]) -> Iterator[list[int]]:
        if isinstance(node, Let):
            try:
                values[node.var.name] = evaluate(node.value, values)
            except NotEnumerable:
                values[node.var.name] = 0
        elif isinstance(node, For):
            count = constant_value(node.stop)
            assert node.kind is not LoopKind.UNROLLED or count is not None
            for position in range(count if node.kind is LoopKind.UNROLLED and count else 1):
                yield from visit(node.body, values | {node.var.name: position})
            return
        if isinstance(node, kind):
            known = values | {name: 0 for name in free_variables(node.offset) - values.keys()}
            places = np.broadcast_to(evaluate(node.offset, known), threads.shape) * node.shared.dtype.itemsize
            rows = 8 * node.count if isinstance(node, LoadMatrix) else 32
            for warp in places.reshape(-1, 32)[:, :rows]:
                yield from warp.reshape(-1, 8).tolist()
        for child in children(node):
            if not isinstance(child, Expr):
                yield from visit(child, values)

    yield from visit(kernel.body, {kernel.thread.name: threads})


def cycles(addresses: list[int]) -> int:
    """In how many cycles shared memory serves eight lanes of 16 bytes: each takes 4 of the 32 banks, which only lanes
    that want the same words can share."""
    return max(Counter(address // 16 % 8 for address in set(addresses)).values())


@settings(max_examples=40)
@given(
    st.sampled_from(["bfloat16", "int8", "float32"]), st.sampled_from([16, 32, 48, 64, 96, 128]),
    st.sampled_from([16, 24, 32, 40, 48, 64, 80, 96, 128]), st.sampled_from([32, 48, 64, 96, 128]), st.booleans(),
    st.booleans(), st.sampled_from([32, 64, 128]),
)  # fmt: skip
def test_ldmatrix_and_cp_async_are_free_of_bank_conflicts(dtype, m, n, k, transpose_a, transpose_b, threads) -> None:
    """Every tile of rows of 16-byte pieces can be arranged so that neither meets a conflict."""
    assume(2 * (m + n) * k * getattr(torch, dtype).itemsize <= 160_000)  # of shared memory
    accum = "int32" if dtype == "int8" else "float32"
    program = gemm("sm_80", m, n, k, dtype=dtype, accum=accum, out=accum, threads=threads,
                   transpose_A=transpose_a, transpose_B=transpose_b)  # fmt: skip
    if not nodes(program, MmaSync):
        return  # so many threads do not divide such a tile
    by_matrices = {node.shared.name for node in nodes(program, LoadMatrix)}
    bits = nodes(program, MmaSync)[0].dtype_a.bits
    assert by_matrices == {
        name for name, along_k in (("A_shared", not transpose_a), ("B_shared", transpose_b)) if along_k or bits == 16
    }
    for rows in row_phases(program, LoadMatrix):
        assert all(address % 16 == 0 for address in rows)
        assert cycles(rows) == 1
    assert nodes(program, CpAsync)
    if len(by_matrices) == 2:
        assert all(node.bytes == 16 for node in nodes(program, CpAsync))
        assert all(cycles(rows) == 1 for rows in row_phases(program, CpAsync))


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("dtype", "k"), [("float64", 16), ("float64", 32), ("float32", 32), ("int8", 64)])
def test_elements_are_loaded_without_bank_conflicts(dtype, k, transpose_a, transpose_b) -> None:
    """What ldmatrix cannot load: lanes of 8 bytes go by half warps, narrower ones by whole warps; a bank gives one word
    a cycle."""
    accum = {"float64": "float64", "int8": "int32"}.get(dtype, "float32")
    program = gemm("sm_80", 64, 64, k, dtype=dtype, accum=accum, out=accum, transpose_A=transpose_a,
                   transpose_B=transpose_b)  # fmt: skip
    expected = 2 if dtype == "float64" else int(transpose_a) + int(not transpose_b)
    loads = {load.buffer.name: load for store in nodes(program, Store) for load in loads_of(store)}
    assert len(loads) == expected
    for load in loads.values():
        size = load.buffer.dtype.itemsize
        together = 16 if size == 8 else 32
        for places in addresses_of(program, load):
            for lanes in places.reshape(-1, together):
                words = {word for address in lanes for word in range(address // 4, (address + size - 1) // 4 + 1)}
                assert max(Counter(word % 32 for word in words).values()) == 1


def loads_of(store: Store) -> list[Load]:
    found = [node for node in walk(store.value) if isinstance(node, Load)]
    return [node for node in found if node.buffer.scope is Scope.SHARED]


def addresses_of(program: Program, load: Load) -> Iterator[np.ndarray]:
    """Byte addresses by thread of a load in unrolled loops, for all of their values."""
    (kernel,) = program.kernels
    around = [loop for loop in nodes(program, For) if any(n is load for n in walk(loop.body))]
    unrolled = [loop for loop in around if loop.kind is LoopKind.UNROLLED]
    values: dict[str, Any] = {kernel.thread.name: np.arange(kernel.threads)}
    values |= {loop.var.name: 0 for loop in around if loop.kind is not LoopKind.UNROLLED}
    for let in nodes(program, Let):
        try:
            values[let.var.name] = evaluate(let.value, values)
        except NotEnumerable:
            values[let.var.name] = 0
    for positions in product(*(range(constant_value(loop.stop) or 0) for loop in unrolled)):
        known = values | {loop.var.name: position for loop, position in zip(unrolled, positions, strict=True)}
        yield np.broadcast_to(evaluate(load.indices[0], known), (kernel.threads,)) * load.buffer.dtype.itemsize


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "counts"),
    [
        (64, 64, 16, 128, {"A_shared": {4}, "B_shared": {4}}),
        (16, 8, 16, 32, {"A_shared": {4}, "B_shared": {2}}),  # one tile of B: two registers
        (16, 24, 16, 32, {"A_shared": {4}, "B_shared": {4, 2}}),  # three tiles: four and two registers
        (16, 8, 8, 32, {"A_shared": {2}, "B_shared": {1}}),
        (16, 24, 8, 32, {"A_shared": {2}, "B_shared": {2, 1}}),
    ],
)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_as_many_matrices_as_there_are(m, n, k, threads, counts, transpose_a, transpose_b) -> None:
    program = gemm("sm_80", m, n, k, threads=threads, transpose_A=transpose_a, transpose_B=transpose_b)
    found: dict[str, set[int]] = {}
    for node in nodes(program, LoadMatrix):
        found.setdefault(node.shared.name, set()).add(node.count)
        assert node.transposed == (transpose_a if node.shared.name == "A_shared" else not transpose_b)
    assert found == counts


def order(program: Program) -> list[str]:
    """Loads and products of the gemm in program order, a letter for each statement: a, b, m."""
    letters = {"A_shared": "a", "B_shared": "b"}
    return [
        "m" if isinstance(node, MmaSync) else letters[node.shared.name]
        for node in walk(program.kernels[0].body)
        if isinstance(node, (LoadMatrix, MmaSync))
    ]


def test_the_next_fragments_are_loaded_before_the_present_ones_are_multiplied() -> None:
    """In front of the loop over k steps the first ones, in it the next ones before the product, behind it the last
    product."""
    assert "".join(order(gemm("sm_80", 64, 64, 64))) == "ababmm"
    assert "".join(order(gemm("sm_80", 64, 64, 16))) == "abm"  # a single k step


def test_without_registers_for_two_steps_fragments_are_loaded_when_they_are_needed() -> None:
    """64 × 256 in one warpgroup's threads: 128 accumulators, 24 registers of fragments a step; float32 needs 48."""
    roomy = gemm("sm_80", 64, 256, 32, threads=128, transpose_B=True)
    assert "".join(order(roomy)) == "ababmm"
    crowded = gemm("sm_80", 128, 256, 32, threads=128, transpose_B=True)
    assert "".join(order(crowded)) == "abm"


def test_the_warps_offsets_are_named_once() -> None:
    """Rows of eight lie outside of the swizzle, so that the lanes' part of an address is the same for all tiles."""
    program = gemm("sm_80", 128, 128, 64, threads=128, transpose_B=True)
    for node in nodes(program, LoadMatrix):
        tile = [loop.var.name for loop in nodes(program, For) if any(n is node for n in walk(loop.body))][-1]
        swizzled = [e for e in walk(node.offset) if getattr(e, "operator", "") == "xor"]
        assert swizzled
        assert all(Var(tile, e.dtype) not in list(walk(e)) for e in swizzled)
