"""Gemms whose operand the consumers make: waited for in the next iteration, or at once.

Run it:  python bench/made_operands.py [--turns 40] [--divide 1]

The weights of examples/gemm_w4a16.py, and the kernels of tests/lower/made_kernels.py: a scaled operand by way of shared
memory (in two versions) or in registers, and two products with a cast between them, as in attention. Each kernel is
compiled as it is and with ptxtile.lower.made_operands switched off, and both are run in turn. Results are compared with
torch's. ``--divide``: sizes are divided by it. Writes bench/results/made_operands.json; times in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import interval, milliseconds, ratio, save

import ptxtile
from ptxtile.lower import specialize_warps
from ptxtile.lower.made_operands import MadeOperands

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import gemm_w4a16
from tests.lower import made_kernels

SIZE = 4096
BOUND = 5e-3
"""Relative error: bfloat16 keeps 8 bits, and sums may round a made operand differently."""


def w4a16(size: int, device: str, **options: Any) -> tuple[Any, tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]:
    x = torch.randn(size, size, device=device).bfloat16()
    packed, scale, weights = gemm_w4a16.quantised(torch.randn(size, size, device=device))
    return gemm_w4a16.gemm_w4a16, (x, packed, scale), options, x.float() @ weights.float().T


def scaled(
    size: int, device: str, **options: Any
) -> tuple[Any, tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]:
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    s = torch.randn(size, device=device)
    made = (a.float() * s[:, None]).bfloat16()
    return made_kernels.scaled, (a, b, s), options, made.float() @ b.float().T


def two_products(
    size: int, device: str, **options: Any
) -> tuple[Any, tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]:
    q, k, v = (torch.randn(2 * size, 64, device=device).bfloat16() for _ in range(3))
    p = (q.float() @ k.float().T * 0.125).bfloat16()
    return made_kernels.two_products, (q, k, v), options, p.float() @ v.float()


TILE = {"block_M": 128, "block_N": 128, "threads": 256}
CASES: dict[str, Callable[[int, str], Any]] = {
    "w4a16, 3 stages": lambda size, device: w4a16(size, device),
    "w4a16, 4 stages": lambda size, device: w4a16(size, device, num_stages=4),
    "scaled through shared memory, 3 stages": lambda size, device: scaled(size, device, **TILE),
    "scaled through shared memory, 4 stages": lambda size, device: scaled(size, device, num_stages=4, **TILE),
    "scaled in registers": lambda size, device: scaled(size, device, through="registers", num_stages=4, **TILE),
    "scaled in registers, by way of float32": lambda size, device: scaled(
        size, device, through="late", num_stages=4, **TILE
    ),
    "two products, 2 stages": lambda size, device: two_products(size, device, block=128, threads=256, num_stages=2),
    "two products, 3 stages": lambda size, device: two_products(size, device, block=128, threads=256, num_stages=3),
}


def switched_off(body: Any, uses: Any, free: Any, room: Any, names: Any) -> MadeOperands:
    return MadeOperands(body)


def kernel(function: Any, args: tuple[torch.Tensor, ...], options: dict[str, Any], waits: str) -> tuple[Any, Any]:
    """A kernel that has run, and its result. Nothing that was compiled in the other way is found on disk."""
    made = ptxtile.jit(function.function.function)
    late = waits == "next iteration"
    change = specialize_warps.overlap_made_operands if late else switched_off
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", {"PTXTILE_CACHE_DIR": folder}),
        mock.patch.object(specialize_warps, "overlap_made_operands", change),
    ):
        found = made(*args, **options)
        return made.kernel_for(*args, **options)[0], found


def measured(case: str, size: int, device: str, turns: int) -> list[dict[str, Any]]:
    function, args, options, wanted = CASES[case](size, device)
    both: dict[str, Any] = {}
    for waits in ("next iteration", "at once"):
        both[waits], found = kernel(function, args, options, waits)
        error = float((found.float() - wanted).norm() / wanted.norm())
        assert error < BOUND, f"{case}, waiting {waits}: relative error {error}"
    assert both["next iteration"].ptx != both["at once"].ptx, f"{case}: the two kernels are the same"
    times = milliseconds({waits: lambda run=run: run(*args) for waits, run in both.items()}, turns)
    rows = []
    for name, values in times.items():
        low, high = interval(values)
        gain = ratio(times["at once"], values)
        rows.append({"case": case, "size": size, "waits": name, "median": statistics.median(values), "low": low,
                     "high": high, "faster than at once": gain})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--divide", type=int, default=1)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for case in CASES:
        rows += measured(case, SIZE // chosen.divide, device, chosen.turns)
        gain = rows[-2]["faster than at once"]
        print(f"{case:40} {rows[-2]['median']:.4f} ms, at once {rows[-1]['median']:.4f} ms: {gain['median']:.3f} ×")
    print(save("made_operands", rows))


if __name__ == "__main__":
    main()
