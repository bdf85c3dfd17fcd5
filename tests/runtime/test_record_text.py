"""Launch records as JSON: they read back as they were, and nothing else does."""

from __future__ import annotations

import json

import pytest

from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)
from ptxtile.runtime.record_text import from_json, to_json
from tests.gemm import kernels

M = Symbol("M")
RECORD = LaunchRecord(
    "every kind of field",
    (TensorArgument("A", "bfloat16", (M, SizeOperation("min", M, 1 << 40)), (8, 1), 16, unused=True),
     ScalarArgument("é\n\"", "int64")),
    (Allocation("C", "float32", ()),),
    (TensorMapRecord("A_map", "A", "bfloat16", (8, M), (16,), (64, 8), 128, 256, -4),),
    (KernelLaunch("k", (SizeOperation("floordiv", M, -3), 1, 1), (128, 1, 1), 1024,
                  (KernelParameter("pointer", "A"), KernelParameter("scalar", "x", "int32", None)),
                  (2, 1, 1), True, True),
     KernelLaunch("empty", (1, 1, 1), (32, 1, 1), 0, ())),
    ("C", "A"),
    (Divisibility(M, 8),),
)  # fmt: skip


def test_a_record_reads_back() -> None:
    read = from_json(to_json(RECORD))
    assert read == RECORD and hash(read) == hash(RECORD)
    assert read.launches[0].cooperative is True and read.launches[1].parameters == ()


@pytest.mark.parametrize("options", [{}, {"transpose_A": True, "num_stages": 1}])
def test_records_of_the_compiler(options) -> None:
    launch = kernels.gemm.compile(M=256, N=256, K=128, **options).launch
    assert from_json(to_json(launch)) == launch


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "1", '"LaunchRecord"', "{}", '{"record":"LaunchRecord"}', '{"record":"Path","name":"x"}',
        '{"record":"Symbol","name":"M"}', to_json(RECORD)[:-1], to_json(RECORD).replace('"swizzle"', '"swizzled"'),
        to_json(RECORD).replace("1024", "10.5"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(text) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_there_is_no_code_in_it() -> None:
    assert json.loads(to_json(RECORD))["record"] == "LaunchRecord"
    assert "ptxtile" not in to_json(RECORD)
