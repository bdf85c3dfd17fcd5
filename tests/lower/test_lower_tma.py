"""Bulk tensor instructions: every element of the tile arrives once, where the tile's layout has it; tensor-map records
by the rules of cuTensorMapEncodeTiled."""

from __future__ import annotations

import itertools

import pytest

from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.gpu_ops import PrefetchTensorMap, TmaLoad, TmaStore
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, If
from ptxtile.launch_record import SizeOperation, Symbol
from ptxtile.lower import choose_shared_layouts, lower_tma
from ptxtile.lower.lower_tma import WARP
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, text

BARRIER = "bar = allocate_barrier(uint64, (1,), storage_alignment=8)\n"


def program(body: str, declarations: str, threads: int = 128) -> Program:
    return kernel_program(text(body), declarations, threads=threads, stage="thread", grid="(4, 4, 1)")


def test_a_load_is_one_instruction_with_coordinates_innermost_first():
    body = """
    S = allocate_shared(float32, (64, 32))
    bar = allocate_barrier(uint64, (1,), storage_alignment=8)
    tma_copy(A[by * 64, bx * 32 + 4].tile(64, 32), S, bar, 0)
    """
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))"))
    (load,) = nodes(result, TmaLoad)
    at = {"by": 3, "bx": 2}
    assert [evaluate(c, at) for c in load.coordinates] == [68, 192]
    assert evaluate(load.offset, at) == 0 and load.barrier.name == "bar"
    (record,) = result.tensor_maps
    assert (record.name, record.tensor, record.dtype) == ("A_map", "A", "float32")
    assert (record.dimensions, record.strides, record.box) == ((128, 256), (512,), (32, 64))
    assert (record.swizzle, record.offset) == (0, 0)


def test_a_store_is_issued_and_committed_by_one_thread_and_not_waited_for():
    body = "S = allocate_shared(float32, (64, 32))\ncopy(S, A[by * 64, bx * 32].tile(64, 32), path=CopyPath.TMA_STORE)"
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))", threads=32))
    assert body_text(result) == text(
        """
        if tx == 0:
            prefetch_tensor_map(tensor_map="A_map")
        S = allocate_shared(float32, (64, 32))
        if tx == 0:
            tma_store(tensor_map="A_map", coordinates=(bx * 32, by * 64), shared=S, offset=0 + 0 * 32 + 0 * 1 + 0)
            bulk_commit_group()
        """
    )


def test_a_role_stores_with_its_own_first_thread():
    body = """
    S = allocate_shared(float32, (64, 32))
    bar = allocate_barrier(uint64, (1,), storage_alignment=8)
    with specialized():
        with role("consumer", first_thread=32, threads=32):
            copy(S, A[by * 64, bx * 32].tile(64, 32), path=CopyPath.TMA_STORE)
        with role("producer", first_thread=64, threads=64):
            tma_copy(B[0, 0].tile(64, 32), S, bar, 0)
    """
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))\nB = tensor(float32, (256, 128))"))
    guards = [
        (evaluate(guard.condition, {"tx": 32}), evaluate(guard.condition, {"tx": 64}), len(list(_ops(guard))))
        for guard in nodes(result, If)
    ]
    assert guards == [(False, True, 2), (True, False, 2)]  # both maps by the producer; then the store


def _ops(guard: If):
    return guard.then.statements  # type: ignore[attr-defined]


def test_without_roles_the_maps_of_loads_are_not_prefetched():
    body = "S = allocate_shared(float32, (64, 32))\n" + BARRIER + "tma_copy(A[0, 0].tile(64, 32), S, bar, 0)"
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))"))
    assert not nodes(result, PrefetchTensorMap)


@pytest.mark.parametrize(("threads", "prefetching"), [(32, 0), (64, WARP), (128, WARP)])
def test_another_warp_prefetches_where_there_is_one(threads: int, prefetching: int):
    body = "S = allocate_shared(float32, (64, 32))\ncopy(S, A[0, 0].tile(64, 32), path=CopyPath.TMA_STORE)"
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))", threads))
    guard = nodes(result, If)[0]
    assert [t for t in range(threads) if evaluate(guard.condition, {"tx": t})] == [prefetching]


def test_without_tma_copies_nothing_changes():
    given = program("S = allocate_shared(float32, (64,))\nS[tx % 64] = A[tx, 0]", "A = tensor(float32, (256, 128))")
    result = apply(lower_tma, given)
    assert result == given and result.kernels[0].body is given.kernels[0].body


# ---- records


def test_equal_maps_are_shared_and_different_ones_are_not():
    body = """
    S = allocate_shared(float32, (64, 32))
    T = allocate_shared(float32, (32, 32))
    V = view(float32, (128, 128), "A", offset=16384)
    copy(S, A[0, 0].tile(64, 32), path=CopyPath.TMA_STORE)
    copy(S, A[64, 0].tile(64, 32), path=CopyPath.TMA_STORE)
    copy(T, A[0, 0].tile(32, 32), path=CopyPath.TMA_STORE)
    copy(T, V[0, 0].tile(32, 32), path=CopyPath.TMA_STORE)
    """
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 128))\nA_map = tensor(float32, (4,))"))
    assert [record.name for record in result.tensor_maps] == ["A_map_1", "A_map_2", "V_map"]
    assert [store.tensor_map for store in nodes(result, TmaStore)] == ["A_map_1", "A_map_1", "A_map_2", "V_map"]
    view = result.tensor_maps[-1]
    assert (view.tensor, view.offset, view.dimensions) == ("A", 16384 * 4, (128, 128))


def test_symbolic_sizes_and_strides_are_computed_at_the_launch():
    declarations = """
    M = symbol(int32)
    N = symbol(int32)
    A = tensor(float16, (M, 3, N + 8), strides=(N * 24, N, 1))
    """
    body = "S = allocate_shared(float16, (4, 3, 64))\ncopy(S, A[0, 0, 0].tile(4, 3, 64), path=CopyPath.TMA_STORE)"
    (record,) = apply(lower_tma, program(body, text(declarations))).tensor_maps
    n = Symbol("N")
    assert record.dimensions == (SizeOperation("add", n, 8), 3, Symbol("M"))
    assert record.strides == (SizeOperation("mul", n, 2), SizeOperation("mul", SizeOperation("mul", n, 24), 2))
    assert record.box == (64, 3, 4)


def test_a_swizzled_tile_takes_a_map_with_its_span_and_narrow_boxes():
    layout = "SharedLayout(layout=Layout((64, (2, 32)), (32, (2048, 1))), swizzle=Swizzle(3, 4, 3), itemsize=4)"
    body = f"""
    S = allocate_shared(float32, (64, 64), storage_alignment=1024, layout={layout})
    copy(S, A[by * 64, bx * 64].tile(64, 64), path=CopyPath.TMA_STORE)
    """
    result = apply(lower_tma, program(body, "A = tensor(float32, (256, 256))"))
    (record,) = result.tensor_maps
    assert (record.swizzle, record.box) == (128, (32, 64))
    stores = [
        ([evaluate(c, {"bx": 1, "by": 2}) for c in s.coordinates], evaluate(s.offset, {}))
        for s in nodes(result, TmaStore)
    ]
    assert stores == [([64, 128], 0), ([96, 128], 2048)]


# ---- every element once, at its place

REGIONS = [
    # tile, region of the tile, extents of the tensor's region
    ((64, 32), "S", (64, 32)),
    ((512, 32), "S", (512, 32)),  # two boxes of 256 rows
    ((16, 512), "S", (16, 512)),  # two columns of 256
    ((16, 768), "S", (16, 768)),
    ((512, 512), "S", (512, 512)),
    ((512,), "S", (512,)),
    ((4, 8, 64), "S", (4, 8, 64)),
    ((2, 3, 512), "S", (2, 3, 512)),  # boxes that span both matrices
    ((512, 2, 16), "S", (512, 2, 16)),
    ((3, 16, 32), "S[2, 0, 0].tile(1, 16, 32)", (16, 32)),
    ((3, 16, 32), "S[1, 0, 0].tile(2, 16, 32)", (2, 16, 32)),
    ((3, 4, 512), "S[1, 0, 0].tile(1, 4, 512)", (4, 512)),
    ((3, 4, 512), "S[1, 2, 0].tile(1, 2, 512)", (1, 1, 2, 512)),
    ((64, 32), "S[32, 0].tile(16, 32)", (16, 32)),
    ((64, 32), "S", (64, 1, 32)),
    ((1, 64, 1, 32), "S", (64, 32)),
    ((2, 2, 2, 4, 8), "S", (2, 2, 2, 4, 8)),
]


@pytest.mark.parametrize(("tile", "region", "extents"), REGIONS)
@pytest.mark.parametrize("swizzled", [False, True])
def test_boxes_put_every_element_where_the_layout_has_it(tile, region: str, extents, swizzled: bool):
    """A box is written densely, innermost dimension first, and XORed by the map's swizzle (PTX ISA, «Swizzling
    modes»)."""
    shape = tuple(2 * extent + 4 for extent in extents)
    origin = (*tuple(range(1, len(extents))), 4)
    target = f"A[{', '.join(map(str, origin))}].tile({', '.join(map(str, extents))})"
    copy = f"copy({region}, {target}, path=CopyPath.TMA_STORE)"
    conflicting = f"R[0] = S[{'0, ' * (len(tile) - 2)}tx % {tile[-2]}, 0]\n" if swizzled and len(tile) > 1 else ""
    body = f"S = allocate_shared(float32, {tile})\nR = allocate_register(float32, (1,))\n{conflicting}{copy}"
    result = apply(lower_tma, apply(choose_shared_layouts, program(body, f"A = tensor(float32, {shape})")))
    (buffer,) = [n.buffer for n in nodes(result, Allocate) if n.buffer.name == "S"]
    (record,) = result.tensor_maps
    box = tuple(reversed(record.box))
    assert all(1 <= side <= 256 for side in box)
    arrived: dict[tuple[int, ...], int] = {}
    for store in nodes(result, TmaStore):
        corner = [evaluate(c, {}) for c in reversed(store.coordinates)]
        first = int(evaluate(store.offset, {}))
        assert first * 4 % (128 if not record.swizzle else 8 * record.swizzle) == 0
        for number, local in enumerate(itertools.product(*map(range, box))):
            byte = (first + number) * 4
            if record.swizzle:
                byte ^= (byte // 128 % 8 & (record.swizzle // 16 - 1)) * 16
            element = tuple(c + k for c, k in zip(corner, local, strict=True))
            assert element not in arrived, "an element is moved twice"
            arrived[element] = byte // 4
    wanted = itertools.product(*(range(o, o + e) for o, e in zip(origin, extents, strict=True)))
    inner = result_region(region, tile)
    for element, place in zip(wanted, itertools.product(*inner), strict=True):
        layout = buffer.layout
        if isinstance(layout, SharedLayout):
            expected = int(layout(place))
        else:
            expected = 0
            for coordinate, size in zip(place, tile, strict=True):
                expected = expected * size + coordinate
        assert arrived.pop(element) == expected
    assert not arrived


def result_region(region: str, tile: tuple[int, ...]) -> list[range]:
    """The ranges of a region written as text."""
    if region == "S":
        return [range(n) for n in tile]
    starts, sizes = region.removeprefix("S[").removesuffix(")").split("].tile(")
    return [range(int(s), int(s) + int(n)) for s, n in zip(starts.split(", "), sizes.split(", "), strict=True)]
