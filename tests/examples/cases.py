"""The examples as modules, the sizes and options that they are checked with, and the kernels that they have."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@cache
def module(name: str) -> ModuleType:
    """examples/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@dataclass(frozen=True)
class Check:
    """One call of an example's ``check``, compiled for ``target``."""

    example: str
    target: str
    sizes: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        sizes = "x".join(str(size).replace(", ", "+").strip("[]") for size in self.sizes)
        options = (f"{name}={value}" for name, value in self.options.items())
        return "-".join((self.example, self.target, sizes, *options))


def _checks() -> Iterator[Check]:
    for target, sizes in (("sm_90a", (130, 70)), ("sm_80", (64, 65)), ("sm_120a", (1, 1))):
        yield Check("elementwise_add", target, sizes)
    yield Check("gemm", "sm_90a", (136, 264, 72), dict(block_N=256, num_stages=4))
    yield Check("gemm", "sm_90a", (65, 40, 8), dict(block_M=64, block_N=96, threads=128))
    yield Check("gemm", "sm_80", (130, 136, 200))
    yield Check("gemm", "sm_120a", (130, 136, 72))
    yield Check("gemm_persistent", "sm_90a", (272, 264, 136), dict(sms=4))
    yield Check("gemm_persistent", "sm_90a", (64, 520, 520), dict(sms=2, block_N=256, num_stages=4, group_size=2))
    yield Check("gemm_persistent", "sm_90a", (400, 136, 136), dict(sms=4, cluster=2))
    yield Check("gemm_persistent", "sm_80", (200, 136, 72), dict(sms=7))
    for target, activation in (("sm_90a", "relu"), ("sm_90a", "silu"), ("sm_89", "gelu"), ("sm_120a", "none")):
        yield Check("gemm_bias_activation", target, (72, 136, 72), dict(activation=activation))
    yield Check("gemm_batched", "sm_90a", (3, 65, 136, 72))
    yield Check("gemm_batched", "sm_80", (2, 136, 64, 200))
    for target, layout in (("sm_90a", "NN"), ("sm_90a", "TN"), ("sm_90a", "TT"), ("sm_80", "TT"), ("sm_120a", "TN")):
        yield Check("gemm_transposes", target, (72, 136, 136), dict(layout=layout))
    yield Check("gemm_int8", "sm_90a", (72, 136, 272), dict(scaled=True))
    yield Check("gemm_int8", "sm_90a", (65, 40, 144), dict(scaled=False))
    yield Check("gemm_int8", "sm_80", (136, 65, 144), dict(scaled=True))
    yield Check("gemm_fp8", "sm_90a", (72, 136, 384))
    yield Check("gemm_fp8", "sm_89", (72, 65, 256), dict(block_M=64, block_N=64, threads=128))
    yield Check("gemm_fp8", "sm_120a", (136, 65, 128))
    for target, atomic, splits in (("sm_90a", True, 3), ("sm_90a", False, 4), ("sm_80", True, 2)):
        yield Check("gemm_split_k", target, (72, 136, 328), dict(atomic=atomic, splits=splits))
    yield Check("gemm_split_k", "sm_120a", (72, 136, 136), dict(atomic=False, splits=4))
    yield Check("gemm_stream_k", "sm_90a", (136, 264, 200), dict(sms=7))
    yield Check("gemm_stream_k", "sm_90a", (200, 136, 136), dict(sms=2))
    yield Check("gemm_stream_k", "sm_80", (136, 72, 200), dict(sms=5))
    yield Check("gemm_grouped", "sm_90a", (136, 72, [70, 0, 129, 1]))
    yield Check("gemm_grouped", "sm_90a", (40, 136, [0, 0, 5, 0]), dict(block_M=64, threads=128))
    yield Check("gemm_grouped", "sm_80", (72, 72, [128, 3, 0]))
    yield Check("gemm_w4a16", "sm_90a", (72, 136, 256))
    yield Check("gemm_w4a16", "sm_80", (136, 65, 128), dict(block_K=128, num_stages=2))
    yield Check("gemm_swiglu", "sm_90a", (136, 72, 200))
    yield Check("gemm_swiglu", "sm_90a", (72, 136, 456), dict(num_stages=4))
    yield Check("gemm_swiglu", "sm_80", (72, 136, 72))
    yield Check("gemm_roles", "sm_90a", (136, 72, 328))
    yield Check("gemm_roles", "sm_120a", (72, 136, 72), dict(stages=2))
    yield Check("gemm_decode", "sm_90a", (1, 200, 520))
    yield Check("gemm_decode", "sm_90a", (20, 136, 328), dict(splits=4))
    yield Check("gemm_decode", "sm_90a", (64, 72, 264), dict(block_K=128, num_stages=6))
    yield Check("gemm_decode", "sm_80", (7, 136, 136), dict(splits=2))
    yield Check("torch_operator", "sm_90a", (72, 136, 64))
    yield Check("torch_operator", "sm_80", (40, 72, 136))
    # sizes that TMA and wide accesses cannot take
    yield Check("gemm", "sm_90a", (65, 7, 13))
    yield Check("gemm_transposes", "sm_90a", (67, 71, 33), dict(layout="TN"))
    yield Check("gemm_stream_k", "sm_90a", (67, 71, 133), dict(sms=2))
    yield Check("gemm_decode", "sm_90a", (33, 71, 133), dict(splits=2))


CHECKS = tuple(_checks())
"""Sizes have tails: most are no multiples of the tiles, which are up to 128 (or 256) wide and 64 (or 128) deep."""

FOUR = ("sm_80", "sm_89", "sm_90a", "sm_120a")
HOPPER = dict(block_N=256, num_stages=4)


@dataclass(frozen=True)
class Kernel:
    """A kernel of an example with sizes for a card, compiled for targets that it claims."""

    example: str
    function: str
    arguments: dict[str, Any]
    targets: tuple[str, ...] = FOUR

    @property
    def name(self) -> str:
        return f"{self.example}-{self.function}"


_SQUARE = dict(M=4096, N=4096, K=4096)

KERNELS = (
    Kernel("elementwise_add", "elementwise_add", dict(M=8192, N=8192)),
    Kernel("gemm", "gemm", _SQUARE),
    Kernel("gemm", "gemm", _SQUARE | HOPPER, ("sm_90a",)),
    Kernel("gemm_persistent", "gemm_persistent", _SQUARE | dict(sms=132)),
    Kernel("gemm_persistent", "gemm_persistent", _SQUARE | HOPPER | dict(sms=132, cluster=2), ("sm_90a",)),
    Kernel("gemm_bias_activation", "gemm_bias_activation", _SQUARE),
    Kernel("gemm_batched", "gemm_batched", dict(batch=32, M=1024, N=1024, K=1024)),
    Kernel("gemm_transposes", "gemm_transposes", _SQUARE | dict(transpose_A=True)),
    Kernel("gemm_int8", "gemm_int8", _SQUARE),
    Kernel("gemm_int8", "gemm_int8_scaled", _SQUARE, ("sm_90a",)),
    Kernel("gemm_fp8", "gemm_fp8", _SQUARE, ("sm_89", "sm_90a", "sm_120a")),
    Kernel("gemm_split_k", "gemm_split_k_atomic", dict(M=256, N=512, K=16384)),
    Kernel("gemm_split_k", "gemm_split_k_workspace", dict(M=256, N=512, K=16384), ("sm_90a",)),
    Kernel("gemm_stream_k", "gemm_stream_k", dict(M=2048, N=2304, K=4096, sms=132)),
    Kernel("gemm_grouped", "gemm_grouped", dict(groups=8, N=4096, K=4096)),
    Kernel("gemm_w4a16", "gemm_w4a16", _SQUARE),
    Kernel("gemm_swiglu", "gemm_swiglu", dict(M=4096, N=14336, K=4096)),
    Kernel("gemm_swiglu", "gemm_swiglu", dict(M=4096, N=14336, K=4096, num_stages=4), ("sm_90a",)),
    Kernel("gemm_roles", "gemm_roles", _SQUARE, ("sm_90a", "sm_120a")),
    Kernel("gemm_decode", "gemm_decode", dict(m=16, N=8192, K=8192)),
    Kernel("gemm_decode", "gemm_decode", dict(m=64, N=8192, K=8192, splits=4), ("sm_90a",)),
    Kernel("torch_operator", "product_kernel", _SQUARE, ("sm_90a",)),
    Kernel("torch_operator", "silu_kernel", dict(M=4096, N=4096)),
    Kernel("torch_operator", "silu_backward_kernel", dict(M=4096, N=4096)),
)
