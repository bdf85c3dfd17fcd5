"""The float32 add against torch.add on a card: GB/s and ratio, L2 flushed, order alternated.

Run it:  python bench/elementwise.py [--turns 60] [--forms]

Writes bench/results/elementwise.json. ``--forms`` adds the other ways that the compiler can take (roles, no TMA).
"""

from __future__ import annotations

import argparse
import statistics

import torch
from measure import interval, milliseconds, ratio, save

import ptxtile
import ptxtile.language as T

SIZES = (16384, 4096)


def add_factory(M, N, block_M=64, block_N=64, threads=128):
    @T.prim_func
    def add(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_N), "float32")
            B_shared = T.alloc_shared((block_M, block_N), "float32")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), "float32")
            T.copy(A[by * block_M, bx * block_N], A_shared)
            T.copy(B[by * block_M, bx * block_N], B_shared)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = A_shared[i, j] + B_shared[i, j]
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return add


def direct_factory(M, N, block_M=64, block_N=64, threads=128):
    """The same with the result stored from registers."""

    @T.prim_func
    def add(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_N), "float32")
            B_shared = T.alloc_shared((block_M, block_N), "float32")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(A[by * block_M, bx * block_N], A_shared)
            T.copy(B[by * block_M, bx * block_N], B_shared)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = A_shared[i, j] + B_shared[i, j]
            T.copy(C_local, C[by * block_M, bx * block_N])

    return add


def plain_factory(M, N, block_M=64, block_N=64, threads=128):
    """The same without shared memory: global to global in one parallel loop."""

    @T.prim_func
    def add(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                y, x = by * block_M + i, bx * block_N + j
                C[y, x] = A[y, x] + B[y, x]

    return add


def compiled(factory, size: int, **options):
    return ptxtile.compile(factory(size, size), out_idx=None, pass_configs=options or None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--forms", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for size in SIZES:
        a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
        c = torch.empty_like(a)
        expected = a + b
        kernels = {
            "ptxtile direct": compiled(direct_factory, size),
            "ptxtile through shared": compiled(add_factory, size),
        }
        if arguments.forms:
            kernels |= {
                "roles": compiled(add_factory, size, specialize_warps=True),
                "no TMA": compiled(direct_factory, size, disable_tma=True),
                "no shared memory": compiled(plain_factory, size),
            }
        for name, kernel in kernels.items():
            c.fill_(float("nan"))
            kernel(a, b, c)
            assert torch.equal(c, expected), f"{name} is wrong at {size}"
        contenders = {"torch.add": lambda a=a, b=b, c=c: torch.add(a, b, out=c)}
        contenders |= {name: (lambda k=k, a=a, b=b, c=c: k(a, b, c)) for name, k in kernels.items()}
        times = milliseconds(contenders, turns=arguments.turns)
        for name, values in times.items():
            low, high = interval(values)
            gigabytes = 3 * a.nbytes / 1e6
            row = {
                "size": size,
                "contender": name,
                "GB/s": round(gigabytes / statistics.median(values)),
                "GB/s 95%": [round(gigabytes / high), round(gigabytes / low)],
                "x torch.add": ratio(times["torch.add"], values),
            }
            rows.append(row)
            print(
                f"{size:6d}  {name:24s} {row['GB/s']:6d} GB/s  {row['x torch.add']['median']:.3f} x torch.add",
                flush=True,
            )
        del a, b, c, expected
    print("written to", save("elementwise", rows, "f32 add, tile 64x64, 128 threads, default options unless named"))


if __name__ == "__main__":
    main()
