"""bfloat16 GEMM (A · Bᵀ) against cuBLAS on a card: TFLOP/s and ratio, order alternated, medians.

Run it:  python bench/gemm.py [--turns 20] [--sizes 4096,4096,4096 8192,8192,8192]

The kernel is examples/gemm.py: copies, T.Pipelined and T.gemm only. Three configurations of it are tried for each size
and the best one is reported beside all of them. Writes bench/results/gemm.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from measure import interval, milliseconds, ratio, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from gemm import gemm

SIZES = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 1024), (16384, 16384, 16384))
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "128x256x64, 4 stages, 2 consumer warpgroups": dict(block_M=128, block_N=256, num_stages=4, threads=256),
    "128x256x64, 3 stages, 2 consumer warpgroups": dict(block_M=128, block_N=256, num_stages=3, threads=256),
    "128x128x64, 4 stages, 2 consumer warpgroups": dict(block_M=128, block_N=128, num_stages=4, threads=256),
}


def measured(m: int, n: int, k: int, turns: int) -> list[dict]:
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    b_kn = b.T.contiguous()
    wanted = (a @ b.T).float()
    contenders = {"cuBLAS NT": lambda: a @ b.T, "cuBLAS NN": lambda: a @ b_kn}
    for name, options in CONFIGURATIONS.items():
        found = gemm(a, b, **options).float()
        error = float((found - wanted).norm() / wanted.norm())
        assert error < 4e-3, f"{name} is wrong at {m}x{n}x{k}: {error}"
        contenders[name] = lambda options=options: gemm(a, b, **options)
    times = milliseconds(contenders, turns=turns)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best_peer = min(("cuBLAS NT", "cuBLAS NN"), key=medians.__getitem__)
    rows = []
    for name, values in times.items():
        rate = 2 * m * n * k / medians[name] / 1e9
        low, high = (2 * m * n * k / bound / 1e9 for bound in reversed(interval(values)))
        row = {"m": m, "n": n, "k": k, "contender": name, "TFLOP/s": round(rate), "95%": [round(low), round(high)]}
        rows.append(row | {"x best of cuBLAS": ratio(times[best_peer], values)})
        print(f"{m}x{n}x{k}  {name:46s} {rate:6.0f} TFLOP/s  {rows[-1]['x best of cuBLAS']['median']:.3f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--sizes", nargs="*", default=[",".join(map(str, size)) for size in SIZES])
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        m, n, k = (int(part) for part in size.split(","))
        rows += measured(m, n, k, arguments.turns)
    print("written to", save("gemm", rows, "examples/gemm.py, bf16 in and out, float32 accumulation; L2 flushed"))


if __name__ == "__main__":
    main()
