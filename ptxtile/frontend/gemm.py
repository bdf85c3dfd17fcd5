"""``T.gemm`` and its warp policies."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ptxtile.errors import TypeMismatchError
from ptxtile.frontend.buffers import shape_text
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tile_operations import outside_parallel, whole_region
from ptxtile.ir.buffers import Scope
from ptxtile.ir.tile_ops import Gemm, Region
from ptxtile.ir.types import float16, float32, float64, int32


class GemmWarpPolicy(IntEnum):
    """How the warps (on Hopper: warpgroups) of a block share a gemm's tile: both ways, along M only, along N only."""

    Square = 0
    FullRow = 1
    FullCol = 2


_POLICIES = {GemmWarpPolicy.Square: "square", GemmWarpPolicy.FullRow: "full_row", GemmWarpPolicy.FullCol: "full_col"}
_ACCUMULATORS = (float16, float32, float64, int32)


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: bool = False,
    k_pack: int = 1,
    wg_wait: int = 0,
) -> None:
    """``C += A · B``, or ``C = A · B`` with ``clear_accum``.

    A: shared tile M×K, K×M with ``transpose_A``. B: shared tile K×N, N×K with ``transpose_B``. C: fragment M×N of
    float16, float32, float64 or int32. ``k_pack`` and ``wg_wait`` are accepted for TileLang's sake; the result is
    always complete when the next statement runs.
    """
    tracer = kernel_tracer("T.gemm")
    outside_parallel(tracer, "T.gemm")
    a, b, c = (whole_region(tracer, x, f"operand {name} of T.gemm") for x, name in ((A, "A"), (B, "B"), (C, "C")))
    (a_rows, a_columns), (b_rows, b_columns) = _matrix(a, "A", Scope.SHARED), _matrix(b, "B", Scope.SHARED)
    m, k = (a_columns, a_rows) if transpose_A else (a_rows, a_columns)
    n, inner = (b_rows, b_columns) if transpose_B else (b_columns, b_rows)
    if inner != k or _matrix(c, "C", Scope.FRAGMENT) != (m, n):
        raise TypeMismatchError(
            "the operands of T.gemm do not fit together", location=user_location(),
            expected="A of M×K, B of K×N and C of M×N (A, B exchanged where transposed)",
            got=f"A {shape_text((a_rows, a_columns))}{' transposed' if transpose_A else ''}, "
            f"B {shape_text((b_rows, b_columns))}{' transposed' if transpose_B else ''}, C {shape_text(c.extents)}",
        )  # fmt: skip
    if c.buffer.dtype not in _ACCUMULATORS:
        raise TypeMismatchError(
            "T.gemm cannot accumulate in this dtype", location=user_location(),
            expected=", ".join(dtype.name for dtype in _ACCUMULATORS), got=c.buffer.dtype.name,
        )  # fmt: skip
    tracer.emit(
        Gemm(
            a, b, c, m, n, k, bool(transpose_A), bool(transpose_B), bool(clear_accum),
            _POLICIES[GemmWarpPolicy(policy)], location=user_location(),
        )
    )  # fmt: skip


def _matrix(region: Region, name: str, scope: Scope) -> tuple[int, int]:
    """Rows and columns; dimensions of extent 1 in front of them select a matrix of a stack."""
    if region.buffer.scope is not scope:
        raise TypeMismatchError(
            f"operand {name} of T.gemm is in the wrong memory", location=user_location(),
            expected=f"a {scope.value} tile", got=f"{region.buffer.name}, which is {region.buffer.scope.value}",
        )  # fmt: skip
    *outer, rows, columns = (1, 1, *region.extents)[-max(2, len(region.extents)) :]
    if any(extent != 1 for extent in outer):
        raise TypeMismatchError(
            f"operand {name} of T.gemm is no matrix", location=user_location(), expected="two dimensions",
            got=shape_text(region.extents),
        )  # fmt: skip
    return rows, columns
