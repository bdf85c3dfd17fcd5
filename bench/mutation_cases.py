"""The programs whose mutants are tried: calls of the examples that use all of their synchronization, and as small as
that allows.

Every stage of a ring is used three times, tiles have tails, a CTA of a persistent kernel works on several tiles, and a
sum split over CTAs has several parts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ptxtile import sim

if TYPE_CHECKING:
    from ptxtile.ir.program import Program

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TARGETS = ("sm_80", "sm_90a", "sm_120a")


@dataclass(frozen=True)
class Case:
    """``check(*sizes, device="cpu", **options)`` of an example, compiled for ``target``."""

    example: str
    target: str
    sizes: tuple[Any, ...] = field(hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    variant: str = ""

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.example, self.variant, self.target) if part)


@dataclass(frozen=True)
class Run:
    """A lowered program with the arguments of its call."""

    program: Program
    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, int | float]


SMALL: dict[str, Any] = dict(block_M=64, block_N=64, threads=128, num_stages=2)
"""For targets that multiply with mma.sync: few threads, for each warp is simulated by itself."""


def _case(example: str, target: str, *sizes: Any, variant: str = "", **options: Any) -> Case:
    return Case(example, target, sizes, options, variant)


def _gemms(target: str) -> Iterator[Case]:
    """gemm and what is made like it: sizes M, N, K."""
    few: dict[str, Any] = {} if target == "sm_90a" else SMALL
    rows = 136 if target == "sm_90a" else 72
    yield _case("gemm", target, rows, 72, 584, **few)
    yield _case("gemm_bias_activation", target, rows, 72, 584, activation="silu", **few)
    yield _case("gemm_batched", target, 2, 72, 72, 584, **few)
    yield _case("gemm_transposes", target, 72, 72, 584, layout="TT", **few)
    yield _case("gemm_int8", target, rows, 72, 1104, scaled=True, **few)
    yield _case("gemm_persistent", target, 2 * rows, 136, 328, sms=2, **few)
    yield _case("gemm_split_k", target, rows, 72, 840, splits=2, atomic=True, variant="atomic", **few)
    yield _case("gemm_split_k", target, rows, 72, 840, splits=2, atomic=False, variant="workspace", **few)
    # five tiles for two blocks: of each, two whole ones and a half
    yield _case("gemm_stream_k", target, *((520, 72) if target == "sm_90a" else (264, 40)), 328, sms=2, **few)
    yield _case("gemm_grouped", target, 72, 584, [rows + 4, 0, 65], **few)
    yield _case("gemm_w4a16", target, rows, 72, 640, **{**few, "num_stages": 3})
    yield _case("gemm_swiglu", target, rows, 72, 328, **few)
    yield _case("gemm_decode", target, 7, 72, 1096, splits=2, num_stages=3)


def _cases() -> Iterator[Case]:
    for target in TARGETS:
        yield _case("elementwise_add", target, 65, 100)
        yield from _gemms(target)
    yield _case("gemm", "sm_90a", 136, 264, 584, variant="wide", block_N=256)
    yield _case("gemm_persistent", "sm_90a", 400, 136, 584, variant="cluster", sms=2, cluster=2)
    for target in ("sm_90a", "sm_120a"):
        yield _case("gemm_roles", target, 136, 72, 584)
        yield _case("gemm_fp8", target, 136, 72, 1152, **({} if target == "sm_90a" else SMALL))


CASES = tuple(_cases())


def _module(example: str) -> ModuleType:
    """A fresh copy of an example: its kernels remember what they were compiled for."""
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@cache
def runs_of(case: Case) -> tuple[Run, ...]:
    """The programs that the example's check runs, each once, with inputs that are the same in each process. They run in
    the simulator, so that the check goes on to the next, and their results are right."""
    found: dict[str, Run] = {}
    real = sim.run

    def take(program: Program, tensors: Any, scalars: Any, **options: Any) -> None:
        copies = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
        found.setdefault(program.name, Run(program, copies, scalars))
        real(program, tensors, scalars, **options)

    sim.run = take
    os.environ["PTXTILE_TARGET"] = case.target
    torch.manual_seed(0)
    try:
        _module(case.example).check(*case.sizes, device="cpu", **case.options)
    finally:
        sim.run = real
    return tuple(found.values())
