"""Every atomic operation of every dtype, order and memory becomes PTX that assembles for every architecture.

tests/kernels/atomics.py runs them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from ptxtile import target as targets
from ptxtile.ir.atomic_ops import LOAD_ORDERS, OPERATORS, ORDERS, STORE_ORDERS, is_legal_operator, vector_lanes
from ptxtile.ir.parser import parse_program
from ptxtile.ir.types import BY_NAME, DType
from ptxtile.ir.verifier import verify
from ptxtile.nvvm import emit
from ptxtile.target import Feature
from tests import ptxas
from tests.conformance.cases import with_launch

DTYPES = [dtype for dtype in BY_NAME.values() if dtype.bits >= 8 and dtype.name != "float8_e8m0fnu"]


def statements(dtype: DType) -> Iterator[str]:
    """Every operation on the tensor G_dtype and the shared buffer S_dtype; R_dtype takes the values from before."""
    name = dtype.name
    orders = ORDERS if name in ("int32", "uint8", "float32") else ("relaxed", "acq_rel")
    for buffer, operator, order, result in itertools.product(
        (f"G_{name}", f"S_{name}"), OPERATORS, orders, ("", f", result=R_{name}")
    ):
        if is_legal_operator(operator, dtype):
            yield (f'atomic(operator="{operator}", buffer={buffer}, indices=(thread,), value=G_{name}[0], '
                   f'order="{order}"{result})')  # fmt: skip
    for buffer in (f"G_{name}", f"S_{name}"):
        for order in LOAD_ORDERS:
            yield f'atomic_load(buffer={buffer}, indices=(thread,), result=R_{name}, order="{order}")'
        for order in STORE_ORDERS:
            yield f'atomic_store(buffer={buffer}, indices=(thread,), value=G_{name}[1], order="{order}")'


def vectors(dtype: DType) -> Iterator[str]:
    from ptxtile.ir.buffers import Scope, allocate

    most = vector_lanes("add", allocate("G", Scope.GLOBAL, dtype, (1,)))
    for lanes, order, result in itertools.product((2, 4, 8), ORDERS, ("", f", result=R_{dtype.name}")):
        if lanes <= most:
            value = f"G_{dtype.name}.x{lanes}[8]"
            yield (f'atomic(operator="add", buffer=G_{dtype.name}, indices=(thread * 8,), value={value}, '
                   f'order="{order}"{result})')  # fmt: skip


def program(lines: list[str], dtypes: list[DType]):
    text = ["ptxtile_ir(1)", 'program("p", stage="gpu")']
    text += [f"G_{dtype.name} = tensor({dtype.name}, (1024,))" for dtype in dtypes]
    text += ["@kernel(grid=(1, 1, 1), threads=64, shared_bytes=65536)", "def k(bx, by, bz, thread):"]
    offset = 0
    for dtype in dtypes:
        text.append(f"    S_{dtype.name} = allocate_shared({dtype.name}, (128,), storage_offset={offset})")
        text.append(f"    R_{dtype.name} = allocate_local({dtype.name}, (8,))")
        offset += 1024
    parsed = with_launch(parse_program("\n".join([*text, *(f"    {line}" for line in lines)])))
    verify(parsed)
    return parsed


@pytest.mark.parametrize("architecture", targets.names())
def test_every_operation_assembles(architecture: str) -> None:
    target = targets.get(architecture)
    dtypes = [d for d in DTYPES if not (d.bits == 8 and d.is_float and not target.has(Feature.FP8_CONVERT))]
    lines = [line for dtype in dtypes for line in (*statements(dtype), *vectors(dtype))]
    assert len(lines) > 500
    ptxas.assemble(emit(program(lines, dtypes), target).ptx, architecture)


def written(line: str, dtype: str, architecture: str = "sm_90a") -> list[str]:
    """The atomic instructions of one operation, in order."""
    ptx = emit(program([line], [BY_NAME[dtype]]), targets.get(architecture)).ptx
    return re.findall(r"^\s*((?:atom|red|ld\.[ar]|st\.r|fence)\S*)", ptx, re.MULTILINE)


@pytest.mark.parametrize(
    ("dtype", "operator", "order", "architecture", "expected"),
    [
        ("int32", "add", "relaxed", "sm_80", ["red.relaxed.gpu.global.add.s32"]),
        ("int64", "add", "release", "sm_80", ["red.release.gpu.global.add.u64"]),
        ("uint64", "max", "acquire", "sm_80", ["atom.acquire.gpu.global.max.u64"]),
        ("int64", "min", "acq_rel", "sm_80", ["atom.acq_rel.gpu.global.min.s64"]),
        ("float64", "add", "seq_cst", "sm_80", ["fence.sc.gpu;", "atom.acq_rel.gpu.global.add.f64"]),
        ("float16", "add", "relaxed", "sm_80", ["red.relaxed.gpu.global.add.noftz.f16"]),
        ("bfloat16", "add", "relaxed", "sm_90a", ["red.relaxed.gpu.global.add.noftz.bf16"]),
        ("bfloat16", "add", "relaxed", "sm_89", ["ld.relaxed.gpu.global.b16", "atom.relaxed.gpu.global.cas.b16"]),
        ("float32", "max", "release", "sm_90a", ["ld.relaxed.gpu.global.b32", "atom.release.gpu.global.cas.b32"]),
        ("uint8", "add", "relaxed", "sm_90a", ["ld.relaxed.gpu.global.b32", "atom.relaxed.gpu.global.cas.b32"]),
        ("bool", "or", "relaxed", "sm_90a", ["ld.relaxed.gpu.global.b32", "atom.relaxed.gpu.global.cas.b32"]),
        ("float32", "exchange", "relaxed", "sm_90a", ["atom.relaxed.gpu.global.exch.b32"]),
    ],
)  # fmt: skip
def test_instructions(dtype: str, operator: str, order: str, architecture: str, expected: list[str]) -> None:
    line = f'atomic(operator="{operator}", buffer=G_{dtype}, indices=(thread,), value=G_{dtype}[0], order="{order}")'
    assert written(line, dtype, architecture) == expected


@pytest.mark.parametrize(
    ("dtype", "lanes", "architecture", "expected"),
    [
        ("float32", 4, "sm_90a", ["red.relaxed.gpu.global.add.v4.f32"]),
        ("float32", 2, "sm_120a", ["red.relaxed.gpu.global.add.v2.f32"]),
        ("float32", 4, "sm_89", ["red.relaxed.gpu.global.add.f32"] * 4),
        ("float16", 2, "sm_80", ["red.relaxed.gpu.global.add.noftz.f16x2"]),
        ("float16", 8, "sm_80", ["red.relaxed.gpu.global.add.noftz.f16x2"] * 4),
        ("float16", 8, "sm_90", ["red.relaxed.gpu.global.add.noftz.v4.f16x2"]),
        ("bfloat16", 4, "sm_90a", ["red.relaxed.gpu.global.add.noftz.v2.bf16x2"]),
    ],
)
def test_vectors(dtype: str, lanes: int, architecture: str, expected: list[str]) -> None:
    value = f"G_{dtype}.x{lanes}[8]"
    line = f'atomic(operator="add", buffer=G_{dtype}, indices=(thread * 8,), value={value})'
    assert written(line, dtype, architecture) == expected
