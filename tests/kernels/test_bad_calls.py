"""Mistakes in calls, targets and options: the argument by name, expected and got; and what a fresh process prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import ArgumentError, LaunchError, PtxtileError, TargetError
from tests.kernels.refusal import PACKAGE, ROOT, refused


@ptxtile.jit
def add(A, B, block=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
        for i, j in T.Parallel(block, block):
            C[by * block + i, bx * block + j] = A[by * block + i, bx * block + j] + B[by * block + i, bx * block + j]
    return C


def fixed():
    @T.prim_func
    def main(A: T.Tensor((8, 16), "float16"), n: T.int8, x: T.float16, B: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 16):
                B[i, j] = A[i, j] * x + n

    return ptxtile.compile(main, out_idx=-1)


def strided():
    @T.prim_func
    def main(A: T.StridedTensor((8, 16), (32, 2), "float32")):
        with T.Kernel(1, threads=32):
            A[0, 0] = 1

    return ptxtile.compile(main)


a, half, other = torch.zeros(8, 16), torch.zeros(8, 16, dtype=torch.float16), torch.zeros(8, 17)

CALLS = {
    "dtype": (
        lambda: add(a, half),
        ["argument 'B' .2 of 2.", "wrong dtype", "expected: *torch.float32|expected: *float32", "got: .*float16"],
    ),
    "dtype of a fixed kernel": (
        lambda: fixed()(a, 1, 1.0),
        ["argument 'A'", "wrong dtype", "expected: *float16", "got: .*float32"],
    ),
    "rank": (lambda: add(a[0], a), ["argument 'A'", "number of dimensions", "expected: *2", "got: *1, shape .16,."]),
    "rank, too high": (lambda: add(a, a[None]), ["argument 'B'", "number of dimensions", "got: *3, shape .1, 8, 16."]),
    "shape against another argument": (
        lambda: add(a, other),
        ["argument 'B'", "wrong size of dimension 1", "expected: *shape .8, 16.", "got: *shape .8, 17."],
    ),
    "fixed shape": (
        lambda: fixed()(half[:4], 1, 1.0),
        ["argument 'A'", "dimension 0", "expected: *shape .8, 16.", "got: *shape .4, 16."],
    ),
    "device": (
        lambda: add(a, torch.zeros(8, 16, device="meta")),
        ["argument 'B'", "device", "expected: .*cpu", "got: .*meta"],
    ),
    "list": (lambda: add(a, [1.0, 2.0]), ["argument 'B'", "not a tensor", "expected: *a torch tensor", "got: *list"]),
    "number for a tensor": (lambda: add(a, 3), ["argument 'B'", "not a tensor", "got: *int 3"]),
    "None": (lambda: add(a, None), ["argument 'B'", "not a tensor", "got: *None"]),
    "string": (lambda: add("a", a), ["argument 'A'", "not a tensor", "got: *str 'a'"]),
    "too few": (lambda: add(a), ["argument 'B' is missing", "expected: *A, B", "got: *1 positional"]),
    "too few for a compiled kernel": (
        lambda: fixed()(half),
        ["too few", "'n', 'x' missing", "expected: *3", "got: *1"],
    ),
    "too many": (lambda: add(a, a, 32, 5), ["too many arguments", "expected: *at most 3", "got: *4"]),
    "too many for a compiled kernel": (
        lambda: fixed()(half, 1, 1.0, half),
        ["too many", "expected: *3 .A, n, x.", "got: *4"],
    ),
    "unknown keyword": (
        lambda: add(a, a, blocks=3),
        ["no argument 'blocks'", "expected: *A, B, block", "got: *blocks"],
    ),
    "given twice": (lambda: add(a, a, A=a), ["argument 'A' is given twice"]),
    "stride": (
        lambda: strided()(a),
        [
            "argument 'A'",
            "stride of dimension 0, 1",
            "expected: *strides .32, 2.",
            "got: *strides .16, 1.",
            "contiguous",
        ],
    ),
    "sparse": (
        lambda: add(a.to_sparse(), a),
        ["argument 'A'", "sparse", "expected: *a plain strided tensor", "to_dense"],
    ),
    "negative view": (lambda: add(torch._neg_view(a), a), ["argument 'A'", "negative view", "resolve_neg"]),
    "scalar out of range": (
        lambda: fixed()(half, 128, 1.0),
        ["argument 'n'", "out of range", "expected: *-128 to 127 .int8.", "got: *128"],
    ),
    "fraction for an integer": (lambda: fixed()(half, 0.5, 1.0), ["argument 'n'", "not an integer", "got: *float 0.5"]),
    "overflowing float": (lambda: fixed()(half, 1, 1e6), ["argument 'x'", "out of range", "float16", "got: *1000000"]),
    "tensor for a scalar": (
        lambda: fixed()(half, half, 1.0),
        ["argument 'n'", "expected: *an integer", "got: .*shape .8, 16."],
    ),
    "text for a scalar": (lambda: fixed()(half, 1, "x"), ["argument 'x'", "expected: *a number", "got: *str 'x'"]),
    "unknown size": (lambda: add.compile(M=4, K=4), ["no size or argument 'K'", "expected: *M, N, block", "got: *K"]),
    "missing size": (lambda: add.compile(M=4), ["size N .* not known", "N=…"]),
    "another size than compiled for": (
        lambda: add.compile(M=4, N=16)(a, a),
        ["size M is fixed", "expected: *4", "got: *8"],
    ),
    "out_idx": (lambda: ptxtile.compile(fixed_prim_func(), out_idx=4), ["out_idx", "expected: *-1 … 0", "got: *4"]),
}


def fixed_prim_func():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            A[0] = 1

    return main


@pytest.mark.parametrize("what", CALLS)
def test_call(what: str) -> None:
    call, parts = CALLS[what]
    refused(ArgumentError, call, *parts)


def test_a_grid_over_the_limit() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int8")):
        with T.Kernel(1, n, threads=32) as (_, by):
            A[by] = 1

    kernel = ptxtile.compile(main)
    refused(
        LaunchError,
        lambda: kernel(torch.zeros(70000, dtype=torch.int8)),
        "grid dimension y",
        "expected: *0 to 65535",
        "got: *70000",
    )


@pytest.mark.parametrize(
    "target, part",
    [
        ("sm_70", "sm_70"),
        ("sm_91", "sm_91"),
        ("hopper", "hopper"),
        ("sm_90b", "sm_90b"),
        ("90a", "90a"),
        ("rocm", "rocm"),
        (90, "90"),
    ],
)
def test_target_names(target: Any, part: str) -> None:
    def main(A):
        A: T.Tensor((8,), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = 1

    refused(TargetError, lambda: ptxtile.jit(main, target=target), part, "sm_90a")
    refused(TargetError, lambda: ptxtile.compile(fixed_prim_func(), target=target), part, "sm_90a")


def test_unknown_options() -> None:
    refused(
        PtxtileError,
        lambda: ptxtile.jit(add.function.function, specialise=True),
        "unknown pass config 'specialise'",
        "expected: .*specialize_warps",
        "did you mean specialize_warps",
    )
    refused(
        PtxtileError,
        lambda: ptxtile.jit(out_idx=-1, pass_configs={"no.such": 1})(fixed),
        "unknown pass config 'no.such'",
    )


SCRIPT = """
import traceback
import torch
import ptxtile
import ptxtile.language as T

@ptxtile.jit
def scale(A, size=8):
    A: T.Tensor((8, 8), T.float32)
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((size, 8), T.float32)
        T.copy(A, tile)  # mistake in the kernel
        T.copy(tile, A)

@ptxtile.jit
def large(A):
    A: T.Tensor((256, 256), T.float32)
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((256, 256), T.float32)  # mistake in the size
        T.copy(A, tile)
        T.copy(tile, A)

def call(function, *arguments):
    try:
        function(*arguments)
    except ptxtile.errors.PtxtileError:
        traceback.print_exc()
        print("=" * 9, file=__import__("sys").stderr)

call(scale, torch.zeros(8, 8, dtype=torch.float16))
call(large, torch.zeros(256, 256))
scale(torch.zeros(8, 8), 9)
"""


REPORTS = [
    [
        r"function\(\*arguments\)",
        "ptxtile.errors.ArgumentError: scale: argument 'A'",
        "expected: float32",
        "got: .*float16",
    ],
    ["ptxtile.errors.ResourceError: ", "mistake in the size", r"\^\^\^", "tile +262144"],
    [
        r"scale\(torch.zeros\(8, 8\), 9\)",
        "ptxtile.errors.TypeMismatchError: the two sides of T.copy",
        "mistake in the kernel",
        r"\^\^\^",
        "expected: ",
        "got: ",
    ],
]
"""What each report of the script holds."""


def test_what_a_fresh_process_prints(tmp_path: Path) -> None:
    """The report of an uncaught error is the last thing printed, and before it stands no frame of ptxtile but one."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 1
    reports = done.stderr.split("=========")
    assert len(reports) == 3, done.stderr
    for report, parts in zip(reports, REPORTS, strict=True):
        for part in parts:
            assert re.search(part, report), f"{part!r} is not in:\n{report}"
        before = report.partition("ptxtile.errors.")[0]
        assert before.count(PACKAGE) <= 1, report
        assert "During handling" not in report and "direct cause" not in report, report


def environment() -> dict[str, str]:
    """As a user has it: no variable of ptxtile is set."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PTXTILE_")}
    return {**ours, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
