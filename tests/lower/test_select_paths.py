"""Each rule of TMA (cuTensorMapEncodeTiled; PTX ISA, «cp.async.bulk.tensor») with a copy that just passes and one that
just fails it."""

from __future__ import annotations

import pytest

from ptxtile.ir.program import Program
from ptxtile.ir.tile_ops import Copy, CopyPath
from ptxtile.lower import select_paths
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, reasons, text

ROLES = Options(specialize_warps=True)
LEGAL = "the target has TMA and strides, alignment and box are legal"


def load_program(
    tensor: str = "tensor(float32, (128, 128))",
    tile: str = "(64, 64)",
    copy: str = "copy(A[by * 64, bx * 64].tile(64, 64), S)",
    *,
    before: str = "",
    declarations: str = "",
    grid: str = "(2, 2, 1)",
    dtype: str = "float32",
) -> Program:
    body = f"S = allocate_shared({dtype}, {tile})\n{before}\n{copy}"
    return kernel_program(body, f"{declarations}\nA = {tensor}\n", grid=grid)


def decided(program: Program, arch: str = "sm_90a", options: Options | None = None) -> tuple[CopyPath, str]:
    """Path and reason of the program's only copy."""
    result = apply(select_paths, program, arch, options)
    (copy,) = nodes(result, Copy)
    (reason,) = reasons(result, "select_paths")
    (why,) = result.why
    assert why.decision == copy.path.value
    return copy.path, reason


def assert_tma(program: Program) -> None:
    path, reason = decided(program)
    assert path in (CopyPath.TMA_LOAD, CopyPath.TMA_STORE), reason
    assert reason == LEGAL


def assert_refused(program: Program, reason: str, arch: str = "sm_90a", options: Options | None = None) -> None:
    path, found = decided(program, arch, options)
    assert path is CopyPath.VECTOR
    assert reason in found


# ---- which copies are asked at all


def test_the_path_follows_from_the_scopes():
    program = kernel_program(
        """
        S = allocate_shared(float32, (64, 64))
        F = allocate_fragment(float32, (64, 64))
        copy(A[0, 0].tile(64, 64), S)
        copy(S, F)
        copy(F, S)
        copy(A[0, 0].tile(64, 64), F)
        copy(F, A[0, 0].tile(64, 64))
        copy(S, A[0, 0].tile(64, 64))
        copy(A[64, 0].tile(64, 64), A[0, 0].tile(64, 64))
        """,
        "A = tensor(float32, (128, 128))",
    )
    result = apply(select_paths, program)
    paths = [copy.path.value for copy in nodes(result, Copy)]
    assert paths == ["tma_load", "vector", "vector", "vector", "vector", "tma_store", "vector"]
    assert [why.subject for why in result.why] == ["copy A -> S", "copy F -> A", "copy S -> A"]


def test_a_path_that_is_chosen_stays_and_the_pass_changes_nothing_then():
    program = load_program(copy="copy(A[0, 0].tile(64, 64), S, path=CopyPath.VECTOR)")
    result = apply(select_paths, program)
    assert result == program and not result.why
    assert result.kernels[0].body is program.kernels[0].body


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_targets_without_tma(arch: str):
    assert_refused(load_program(), f"{arch} has no TMA", arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100a", "sm_120a"])
def test_targets_with_tma(arch: str):
    assert decided(load_program(), arch) == (CopyPath.TMA_LOAD, LEGAL)


def test_tma_is_disabled_by_the_option_or_for_one_copy():
    assert_refused(load_program(), "by an option", options=Options(disable_tma=True))
    assert_refused(load_program(copy="copy(A[0, 0].tile(64, 64), S, disable_tma=True)"), "for this copy")


# ---- element types and positions


def test_a_conversion_is_refused():
    assert_refused(load_program(dtype="float16"), "converts float32 to float16")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bfloat16", "float8_e4m3fn", "int64", "float64", "bool"])
def test_dtypes_with_a_tensor_map_type(dtype: str):
    assert_tma(load_program(f"tensor({dtype}, (128, 128))", dtype=dtype))


def test_dtypes_without_a_tensor_map_type():
    program = load_program("tensor(tfloat32, (128, 128))", dtype="tfloat32")
    assert_refused(program, "no element type for tfloat32")


@pytest.mark.parametrize("start", ["tx * 64", "(by + tx) * 64", "position[()] * 64"])
def test_a_position_that_depends_on_the_thread_is_refused(start: str):
    before = "position = allocate_local(int32, ())\nposition[()] = tx"
    assert_refused(load_program(copy=f"copy(A[{start}, 0].tile(64, 64), S)", before=before), "depends on the thread")


def test_a_position_that_all_threads_agree_on_is_legal():
    before = "position = allocate_local(int32, ())\nposition[()] = by + 1"
    assert_tma(load_program(copy="copy(A[position[()] * 64, 0].tile(64, 64), S)", before=before))


def test_the_position_in_the_shared_tile_must_not_depend_on_the_thread_either():
    program = load_program(tile="(128, 64)", copy="copy(A[0, 0].tile(64, 64), S[tx % 2 * 64, 0].tile(64, 64))")
    assert_refused(program, "depends on the thread")


@pytest.mark.parametrize(
    ("start", "dtype", "legal"),
    [
        ("bx * 4", "float32", True),  # 16 bytes
        ("bx * 2", "float32", False),  # 8 bytes
        ("bx * 8", "float16", True),
        ("bx * 4", "float16", False),
        ("bx * 16", "int8", True),
        ("bx * 8", "int8", False),
        ("bx * 2", "float64", True),
        ("bx", "float64", False),
        ("bx * 4 - 4", "float32", True),  # a load may start before the tensor
        ("bx * 4 - 2", "float32", False),
        ("128", "float32", True),  # and behind it
    ],
)
def test_the_innermost_position_is_a_multiple_of_16_bytes(start: str, dtype: str, legal: bool):
    program = load_program(
        f"tensor({dtype}, (128, 128))", copy=f"copy(A[by * 3 - 7, {start}].tile(64, 64), S)", dtype=dtype
    )
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "innermost position")


@pytest.mark.parametrize(
    ("row", "legal"),
    [("by * 64", True), ("by - 1", False), ("0", True), ("-64", False), ("M", False), ("max(M, 0)", True)],
)
def test_a_store_does_not_start_before_the_tensor(row: str, legal: bool):
    program = load_program(copy=f"copy(S, A[{row}, bx * 64].tile(64, 64))", declarations="M = symbol(int32)")
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "not to start before the tensor")


# ---- the tensor


@pytest.mark.parametrize(("rank", "legal"), [(1, True), (2, True), (5, True), (6, False)])
def test_rank_one_to_five(rank: int, legal: bool):
    shape, tile = (4,) * (rank - 1) + (64,), (1,) * (rank - 1) + (64,)
    starts = ", ".join("0" for _ in shape)
    sizes = ", ".join(map(str, tile))
    copy = f"copy(A[{starts}].tile({sizes}), S)" if rank > 1 else "copy(A[0].tile(64), S)"
    program = load_program(f"tensor(float32, {shape})", tile="(64,)", copy=copy)
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "rank 6 is not between 1 and 5")


@pytest.mark.parametrize(("alignment", "legal"), [(4, False), (8, False), (16, True), (256, True)])
def test_the_base_address_is_a_multiple_of_16_bytes(alignment: int, legal: bool):
    program = load_program(f"tensor(float32, (128, 128), alignment={alignment})")
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "base address")


def test_an_output_of_the_program_is_aligned_by_its_allocation():
    body = "S = allocate_shared(float32, (64, 64))\ncopy(S, C[by * 64, bx * 64].tile(64, 64))"
    assert_tma(kernel_program(body, "C = allocation(float32, (128, 128))", grid="(2, 2, 1)"))


@pytest.mark.parametrize(("offset", "legal"), [(0, True), (4, True), (2, False), (1, False), ("M * 4", False)])
def test_a_view_starts_at_a_constant_multiple_of_16_bytes(offset: int | str, legal: bool):
    before = f'V = view(float32, (64, 128), "A", offset={offset})'
    program = load_program(copy="copy(V[0, bx * 64].tile(64, 64), S)", before=before, declarations="M = symbol(int32)")
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "the view V does not start")


def test_the_innermost_stride_is_one():
    assert_refused(load_program("tensor(float32, (128, 128), strides=(1, 128))"), "innermost stride of A")
    assert_refused(load_program("tensor(float32, (128, 128), strides=(512, 2))"), "innermost stride of A")


@pytest.mark.parametrize(
    ("dtype", "stride", "facts", "legal"),
    [
        ("float32", "132", "", True),  # 528 = 33 × 16 bytes
        ("float32", "130", "", False),
        ("int8", "144", "", True),
        ("int8", "136", "", False),
        ("float32", "M", "fact(M, divisor=4)", True),
        ("float32", "M", "fact(M, divisor=2)", False),
        ("float32", "M", "", False),
        ("float16", "M", "fact(M, divisor=8)", True),
        ("float16", "M", "fact(M, divisor=4)", False),
        ("float32", "M * 4", "", True),
        ("float32", "M * 4 + 2", "", False),
        ("float64", "M * 2", "", True),
    ],
)
def test_outer_strides_are_multiples_of_16_bytes(dtype: str, stride: str, facts: str, legal: bool):
    program = load_program(
        f"tensor({dtype}, (128, 128), strides=({stride}, 1))", dtype=dtype, declarations=f"M = symbol(int32)\n{facts}"
    )
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "stride of dimension 0 of A is not known")


def test_a_stride_of_zero_is_refused():
    assert_refused(load_program("tensor(float32, (128, 128), strides=(0, 1))"), "dimension 0 of A has stride 0")


# ---- the box


@pytest.mark.parametrize(
    ("tile", "reason"),
    [
        ((256, 64), ""),
        ((257, 64), "257 does not split"),
        ((512, 64), ""),
        ((384, 64), "384 does not split"),
        ((16, 256), ""),
        ((16, 260), "260 does not split"),
        ((16, 512), ""),
        ((4, 256, 16), ""),
        ((4, 512, 16), "middle dimension of 512"),
        ((512, 4, 16), ""),
        ((4, 2, 512), ""),
        ((16, 4), ""),  # 16 bytes
        ((16, 2), "8 bytes"),
        ((16, 6), "24 bytes"),
        ((512,), ""),
    ],
)
def test_sizes_of_the_box(tile: tuple[int, ...], reason: str):
    copy = f"copy(A[{', '.join('0' for _ in tile)}].tile({', '.join(map(str, tile))}), S)"
    program = load_program(f"tensor(float32, {tuple(4096 for _ in tile)})", tile=str(tile), copy=copy)
    if reason:
        assert_refused(program, reason)
    else:
        assert_tma(program)


def test_dimensions_of_one_may_differ_but_no_others():
    tensor = "tensor(float32, (4, 128, 128))"
    assert_tma(load_program(tensor, copy="copy(A[by, 0, bx * 64].tile(1, 64, 64), S)"))
    assert_tma(load_program(tensor, "(64, 1, 64)", copy="copy(A[by, 0, bx * 64].tile(1, 64, 64), S)"))


# ---- the shared tile


@pytest.mark.parametrize(
    ("tile", "region", "extents", "reason"),
    [
        ("(3, 64, 64)", "S[1, 0, 0].tile(1, 64, 64)", (64, 64), ""),  # a stage of a ring
        ("(3, 64, 64)", "S[bx, 0, 0].tile(1, 64, 64)", (64, 64), ""),  # bx is 0 or 1
        ("(3, 64, 64)", "S[by * 2, 0, 0].tile(1, 64, 64)", (64, 64), ""),
        ("(3, 64, 64)", "S[by * 3, 0, 0].tile(1, 64, 64)", (64, 64), "not known to lie in S"),
        ("(3, 64, 64)", "S[bx - 1, 0, 0].tile(1, 64, 64)", (64, 64), "not known to lie in S"),
        ("(128, 64)", "S[64, 0].tile(64, 64)", (64, 64), ""),
        ("(128, 64)", "S[1, 0].tile(64, 64)", (64, 64), ""),  # rows are 256 bytes
        ("(128, 16)", "S[1, 0].tile(64, 16)", (64, 16), "multiple of 128 bytes"),  # rows are 64 bytes
        ("(128, 16)", "S[2, 0].tile(64, 16)", (64, 16), ""),
        ("(64, 128)", "S[0, 0].tile(64, 64)", (64, 64), "not contiguous"),
        ("(64, 128)", "S[3, 64].tile(1, 64)", (1, 64), ""),  # one row in part is contiguous
        ("(64, 128)", "S[3, 16].tile(1, 64)", (1, 64), "multiple of 128 bytes"),
        ("(2, 64, 64)", "S[0, 0, 0].tile(2, 32, 64)", (2, 32, 64), "not contiguous"),
        ("(2, 512)", "S[0, 0].tile(1, 256)", (1, 256), "part of rows"),
        ("(2, 512)", "S[1, 0].tile(1, 512)", (1, 512), ""),
    ],
)
def test_sub_regions_of_the_shared_tile(tile: str, region: str, extents: tuple[int, ...], reason: str):
    zeros = ", ".join("0" for _ in extents)
    copy = f"copy(A[{zeros}].tile({', '.join(map(str, extents))}), {region})"
    program = load_program(f"tensor(float32, {tuple(1024 for _ in extents)})", tile, copy)
    if reason:
        assert_refused(program, reason)
    else:
        assert_tma(program)


def test_a_whole_dimension_that_starts_elsewhere_is_refused():
    program = load_program(copy="copy(A[0, 0].tile(64, 64), S[bx, 0].tile(64, 64))")
    assert_refused(program, "does not start at 0")


@pytest.mark.parametrize(
    ("tile", "extents", "view", "legal"),
    [
        ("(16, 512)", (16, 512), False, True),  # becomes two columns of 256
        ("(16, 512)", (16, 512), True, False),  # the view counts on rows of 512
        ("(16, 256)", (16, 256), True, True),
        ("(512,)", (512,), True, True),  # one row is cut into boxes where it lies
        ("(512, 64)", (512, 64), True, True),
        ("(1, 512)", (512,), True, True),
        ("(16, 512, 1)", (16, 512), False, False),  # its last dimension cannot be cut
    ],
)
def test_rows_longer_than_a_box_need_a_tile_that_can_be_rearranged(tile: str, extents, view: bool, legal: bool):
    before = 'V = view(float32, (256,), "S")' if view else ""
    copy = f"copy(A[{', '.join('0' for _ in extents)}].tile({', '.join(map(str, extents))}), S)"
    program = load_program(f"tensor(float32, {tuple(4096 for _ in extents)})", tile, copy, before=before)
    if legal:
        assert_tma(program)
    else:
        assert_refused(program, "cannot be kept as columns of boxes")


def test_a_view_into_a_shared_buffer_is_refused():
    before = 'V = view(float32, (32, 64), "S", offset=2048)'
    assert_refused(load_program(copy="copy(A[0, 0].tile(32, 64), V)", before=before), "V is a view into another buffer")


# ---- registers to global memory


def store_program(tensor: str = "tensor(float32, (128, 128))", dtype: str = "float32") -> Program:
    body = f"F = allocate_fragment({dtype}, (64, 64))\ncopy(F, A[by * 64, bx * 64].tile(64, 64), coalesced_width=4)"
    return kernel_program(body, f"A = {tensor}", grid="(2, 2, 1)")


@pytest.mark.parametrize("options", [Options(), Options(specialize_warps=False)])
def test_registers_are_stored_directly_without_roles(options: Options):
    assert decided(store_program(), options=options) == (
        CopyPath.VECTOR, "registers are stored directly with vector accesses",
    )  # fmt: skip


def test_registers_go_through_a_staging_tile_with_roles():
    result = apply(select_paths, store_program(), options=ROLES)
    assert body_text(result) == text(
        """
        F = allocate_fragment(float32, (64, 64))
        F_staging_0 = allocate_shared(float32, (64, 64), storage_alignment=128)
        copy(F, F_staging_0, path=CopyPath.VECTOR, coalesced_width=4)
        copy(F_staging_0, A[by * 64, bx * 64].tile(64, 64), path=CopyPath.TMA_STORE, coalesced_width=4)
        """
    )
    assert "staging tile F_staging_0" in result.why[0].reason


def test_each_staged_copy_has_its_own_tile():
    body = "F = allocate_fragment(float32, (64, 64))\n" + "\n".join(
        f"copy(F, A[{row}, 0].tile(64, 64))" for row in (0, 64)
    )
    result = apply(select_paths, kernel_program(body, "A = tensor(float32, (128, 128))"), options=ROLES)
    staged = [copy.source.buffer.name for copy in nodes(result, Copy) if copy.path is CopyPath.TMA_STORE]
    assert staged == ["F_staging_0", "F_staging_1"]


def test_a_tile_that_tma_cannot_store_is_not_staged():
    assert_refused(store_program("tensor(float32, (128, 128), alignment=4)"), "base address", options=ROLES)
    assert_refused(store_program(), "by an option", options=Options(specialize_warps=True, disable_tma=True))
