"""``T.gemm`` and its warp policies."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import shape_text
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tile_operations import outside_parallel, whole_region
from ptxtile.frontend.values import Value
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Const, Expr, constant_value
from ptxtile.ir.tile_ops import Gemm, Region
from ptxtile.ir.types import DType, float16, float32, float64, int32


class GemmWarpPolicy(IntEnum):
    """How the warps (on Hopper: warpgroups) of a block share a gemm's tile: both ways, along M only, along N only."""

    Square = 0
    FullRow = 1
    FullCol = 2


_POLICIES = {GemmWarpPolicy.Square: "square", GemmWarpPolicy.FullRow: "full_row", GemmWarpPolicy.FullCol: "full_col"}
_ACCUMULATORS = (float16, float32, float64, int32)
_SHARED_OR_FRAGMENT = (Scope.SHARED, Scope.FRAGMENT)


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    mbar: Any = None,
    annotations: Any = None,
) -> None:
    """``C += A · B``, or ``C = A · B`` where ``clear_accum`` holds (a bool, or a traced condition such as ``k == 0``).

    A: tile M×K, K×M with ``transpose_A``; B: tile K×N, N×K with ``transpose_B``; each in shared memory or a fragment.
    C: fragment M×N of float16, float32, float64, or int32 for integer operands. On tensor cores float32 operands are
    multiplied as TensorFloat-32: their lowest 13 bits do not count (the option ``allow_tf32=False`` keeps them, and
    does without tensor cores). ``k_pack``, ``wg_wait`` and ``annotations`` are accepted for TileLang's sake; the result
    is always complete when the next statement runs. TypeMismatchError for operands that do not fit together.
    """
    tracer = kernel_tracer("T.gemm")
    outside_parallel(tracer, "T.gemm")
    if mbar is not None:
        raise TraceError(
            "T.gemm with a barrier of its own", location=user_location(), got=operations.describe(mbar),
            hint="leave mbar out: the result is complete when the next statement runs",
        )  # fmt: skip
    a, b, c = (whole_region(tracer, x, f"operand {name} of T.gemm") for x, name in ((A, "A"), (B, "B"), (C, "C")))
    a_rows, a_columns = _matrix(a, "A", _SHARED_OR_FRAGMENT)
    b_rows, b_columns = _matrix(b, "B", _SHARED_OR_FRAGMENT)
    m, k = (a_columns, a_rows) if transpose_A else (a_rows, a_columns)
    n, inner = (b_rows, b_columns) if transpose_B else (b_columns, b_rows)
    if inner != k or _matrix(c, "C", (Scope.FRAGMENT,)) != (m, n):
        raise TypeMismatchError(
            "the operands of T.gemm do not fit together", location=user_location(),
            expected="A of M×K, B of K×N and C of M×N (A, B exchanged where transposed)",
            got=f"A {shape_text((a_rows, a_columns))}{' transposed' if transpose_A else ''}, "
            f"B {shape_text((b_rows, b_columns))}{' transposed' if transpose_B else ''}, C {shape_text(c.extents)}",
        )  # fmt: skip
    _check_dtypes(a.buffer, b.buffer, c.buffer)
    clear, clear_if = _clearing(clear_accum)
    tracer.emit(
        Gemm(
            a, b, c, m, n, k, bool(transpose_A), bool(transpose_B), clear, _POLICIES[GemmWarpPolicy(policy)],
            clear_if=clear_if, location=user_location(),
        )
    )  # fmt: skip


def _clearing(clear_accum: Any) -> tuple[bool, Expr | None]:
    """Whether the accumulator starts from 0, and the condition under which it does if that is not known yet."""
    if not isinstance(clear_accum, Value):
        return bool(clear_accum), None
    condition = operations.truth(clear_accum, "clear_accum of T.gemm")
    if isinstance(condition, Const):
        return bool(condition.value), None
    return False, condition


def _matrix(region: Region, name: str, scopes: tuple[Scope, ...]) -> tuple[int, int]:
    """Rows and columns; dimensions of extent 1 in front of them select a matrix of a stack in shared memory."""
    buffer = region.buffer
    if buffer.scope not in scopes:
        raise TypeMismatchError(
            f"operand {name} of T.gemm is in the wrong memory", location=user_location(),
            expected=f"a {' or '.join(scope.value for scope in scopes)} tile",
            got=f"{buffer.name}, which is {buffer.scope.value}",
        )  # fmt: skip
    *outer, rows, columns = (1, 1, *region.extents)[-max(2, len(region.extents)) :]
    if any(extent != 1 for extent in outer):
        raise TypeMismatchError(
            f"operand {name} of T.gemm is no matrix", location=user_location(), expected="two dimensions",
            got=shape_text(region.extents),
        )  # fmt: skip
    if buffer.scope is Scope.FRAGMENT:
        _require_whole(region, name)
    return rows, columns


def _require_whole(region: Region, name: str) -> None:
    """The hardware fixes which thread holds which element of the matrix, so that a part of a fragment is none."""
    buffer = region.buffer
    whole = region.extents == buffer.shape and all(constant_value(start) == 0 for start in region.starts)
    if buffer.rank != 2 or not whole:
        raise TypeMismatchError(
            f"operand {name} of T.gemm is a part of a fragment", location=user_location(),
            expected="a whole fragment of two dimensions",
            got=f"{shape_text(region.extents)} of {buffer.name} {shape_text(buffer.shape)}",
            hint="allocate a fragment for each part",
        )  # fmt: skip


def _check_dtypes(a: Buffer, b: Buffer, c: Buffer) -> None:
    if c.dtype not in _ACCUMULATORS:
        raise TypeMismatchError(
            "T.gemm cannot accumulate in this dtype", location=user_location(),
            expected=", ".join(dtype.name for dtype in _ACCUMULATORS), got=c.dtype.name,
        )  # fmt: skip
    for buffer, name in ((a, "A"), (b, "B")):
        if not _multiplies(buffer.dtype, c.dtype):
            raise TypeMismatchError(
                f"operand {name} of T.gemm has a dtype that it cannot multiply into {c.dtype}",
                location=user_location(),
                expected="integers" if c.dtype.is_integer else "numbers", got=f"{buffer.name} of {buffer.dtype}",
                hint="accumulate in float32" if c.dtype.is_integer and buffer.dtype.is_float else None,
            )  # fmt: skip


def _multiplies(dtype: DType, accumulator: DType) -> bool:
    return dtype.lanes == 1 and (dtype.is_integer or (dtype.is_float and accumulator.is_float))
