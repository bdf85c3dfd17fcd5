"""Who is measured beside us: cuBLAS through torch, Triton, TileLang where it is at hand, and the hand-written probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gemm_rows import Contender, Operands, Row, Unavailable

NT = "cuBLAS NT"
"""The one that recorded ratios refer to."""

TILELANG_TO_CUBLAS: dict[tuple[str, int, int, int], tuple[float, float]] = {
    ("bfloat16", 8192, 8192, 8192): (1.06, 1.06),
    ("bfloat16", 4096, 4096, 4096): (1.0, 1.17),
    ("bfloat16", 2048, 2048, 2048): (1.16, 1.29),
    ("bfloat16", 8192, 8192, 1024): (0.96, 1.0),
    ("float8_e4m3fn", 8192, 8192, 8192): (1.02, 1.09),
    ("float8_e4m3fn", 4096, 4096, 4096): (1.16, 1.26),
    ("float8_e4m3fn", 2048, 2048, 2048): (1.8, 1.8),
    ("float8_e4m3fn", 8192, 8192, 1024): (0.97, 0.97),
}
"""TileLang 0.1.15 ÷ cuBLAS (torch 2.11+cu130) as recorded on one H200 of 132 multiprocessors, driver 13.0, 2026-11-29,
several runs: (lowest, highest). Used where TileLang is not at hand."""


def contenders(operands: Operands) -> list[Contender]:
    found = [*_cublas(operands), *_triton(operands), *_tilelang(operands), *_probe(operands)]
    return found if operands.device == "cuda" else [_torch(operands)]


def _torch(operands: Operands) -> Contender:
    """torch on the processor, in the place of cuBLAS, for runs without a card."""
    a, b = operands.a.bfloat16(), operands.b.bfloat16()
    return Contender(NT, "peer", lambda: lambda: torch.matmul(a, b.T))


def _cublas(operands: Operands) -> list[Contender]:
    a, b, c = operands.a, operands.b, operands.c
    if operands.row.itemsize == 2:

        def build_nn() -> Callable[[], Any]:
            b_kn = b.T.contiguous()
            return lambda: torch.matmul(a, b_kn, out=c)

        nt = Contender(NT, "peer", lambda: lambda: torch.matmul(a, b.T, out=c))
        return [nt, Contender("cuBLAS NN", "peer", build_nn)]

    def build(fast: bool) -> Callable[[], Any]:
        one = torch.ones((), device=a.device)
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return lambda: torch._scaled_mm(a, b.T, **options)

    return [
        Contender(f"{NT}, fast accumulation", "peer", lambda: build(True)),
        Contender(f"{NT}, full accumulation", "peer", lambda: build(False)),
    ]


def _triton(operands: Operands) -> list[Contender]:
    def build(options: dict[str, Any]) -> Callable[[], Any]:
        kernel = gemm_triton.contender(options, operands.a, operands.b, operands.c, operands.multiprocessors)

        def run() -> torch.Tensor:
            kernel()
            return operands.c

        return run

    try:
        import gemm_triton
    except ImportError as error:
        return [unavailable("Triton", "peer", f"Triton cannot be imported: {error}")]
    table = gemm_triton.FEW_ROWS if operands.row.group == "decode" else gemm_triton.CONFIGURATIONS
    return [
        Contender(f"Triton {name}", "peer", lambda options=options: build(options)) for name, options in table.items()
    ]


def _tilelang(operands: Operands) -> list[Contender]:
    try:
        import gemm_tilelang
    except ImportError as error:
        return [unavailable("TileLang", "peer", f"TileLang cannot be imported: {error}")]

    def build(options: dict[str, Any]) -> Callable[[], Any]:
        row = operands.row
        kernel = gemm_tilelang.matmul(row.m, row.n, row.k, dtype=row.dtype, **options)
        return lambda: kernel(operands.a, operands.b)

    return [
        Contender(f"TileLang {name}", "peer", lambda options=options: build(options))
        for name, options in gemm_tilelang.configurations(operands.row.itemsize).items()
    ]


def _probe(operands: Operands) -> list[Contender]:
    import gemm_probe

    row, found = operands.row, []
    for name, (cluster, group) in gemm_probe.VARIANTS.items():
        variant = gemm_probe.Variant(cluster, group, row.dtype)

        def build(variant: gemm_probe.Variant = variant) -> Callable[[], Any]:
            import gemm_probe_launch

            if not variant.fits(row.m, row.n, row.k):
                raise Unavailable("the probe takes whole tiles only")
            kernel = gemm_probe_launch.contender(variant, operands.a, operands.b, operands.c, operands.multiprocessors)

            def run() -> torch.Tensor:
                kernel()
                return operands.c

            return run

        found.append(Contender(f"probe {name}", "probe", build))
    return found if row.group != "decode" else []


def unavailable(name: str, side: str, reason: str) -> Contender:
    def build() -> Callable[[], Any]:
        raise Unavailable(reason)

    return Contender(name, side, build)


def recorded_tilelang(row: Row) -> tuple[float, float] | None:
    """TileLang ÷ cuBLAS as recorded: (lowest, highest)."""
    return TILELANG_TO_CUBLAS.get((row.dtype, row.m, row.n, row.k))
