"""Dependent launches on and off: GPU time of a launch in a row of them and alone, and host time of a call.

Run it:  python bench/launch_overlap.py [--turns 40] [--only WORDS] [--dry-run]

Each kernel is compiled twice, with ``dependent_launch`` (the default) and without, and the two are measured in turn. A
measurement of GPU time is between two events and spans one launch, or as many in a row as take about 200 µs (20 at
most), with the queue kept busy and nothing flushed from the L2 cache; what a launch saves is the beginning of the next
one, so a launch alone shows what the wait and the plain loads cost. («plain loads»: additions without TMA, whose loads
go through the read-only path only without dependent launches.) Host time is the mean over calls in a row. Results are
compared with torch's. ``--only``: kernels whose name has the words in it. ``--dry-run``: small sizes in the simulator,
host clock; nothing is kept. Writes bench/results/launch_overlap.json; times in microseconds. It takes under 25 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gemm_kernels import persistent
from measure import host_milliseconds, interval, milliseconds, ratio, save

import ptxtile
import ptxtile.language as T
from ptxtile.records import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.elementwise_add import elementwise_add

SPAN = 200.0
"""Microseconds of one measurement."""
MOST_LAUNCHES = 20
SECONDS = 0.4
"""Of one measurement of all its turns."""
CALLS = 200
"""In a row, for host time; the card's queue holds about 1000."""
BOUND = 4e-3
"""Relative error of a product in bfloat16."""


@ptxtile.jit
def plain_loads(A, B, block=64, threads=128):
    """A + B, [M, N] float32, each element loaded and stored by one thread."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        for i, j in T.Parallel(block, block):
            C[by * block + i, bx * block + j] = A[by * block + i, bx * block + j] + B[by * block + i, bx * block + j]
    return C


@record
class Row:
    """``sizes``: M and N of an addition, M, N and K of a product. ``time``: about how long a launch takes, in µs."""

    name: str
    kernel: Any
    sizes: tuple[int, ...]
    options: dict[str, Any]
    time: float

    @property
    def launches(self) -> int:
        return max(1, min(MOST_LAUNCHES, round(SPAN / self.time)))


WIDE = dict(group=16, rows_first=True, ctas=132)
ROWS = (
    Row("add 64x64", elementwise_add, (64, 64), {}, 2.0),
    Row("add 1024x1024", elementwise_add, (1024, 1024), {}, 5.0),
    Row("add 1024x1024, plain loads", plain_loads, (1024, 1024), {}, 5.0),
    Row("add 8192x8192, plain loads", plain_loads, (8192, 8192), {}, 200.0),
    Row("gemm 1024x1024x1024", persistent, (1024,) * 3, dict(block_N=64, num_stages=6, threads=128, ctas=128), 5.0),
    Row("gemm 2048x2048x2048", persistent, (2048,) * 3,
        dict(block_N=128, num_stages=6, group=8, rows_first=True, ctas=132), 24.0),
    Row("gemm 8192x8192x256", persistent, (8192, 8192, 256), WIDE, 60.0),
    Row("gemm 8192x8192x1024", persistent, (8192, 8192, 1024), WIDE, 200.0),
    Row("gemm 4096x4096x4096", persistent, (4096,) * 3, WIDE, 200.0),
)  # fmt: skip


def call_of(row: Row, dependent_launch: bool, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    """A call of the row's kernel, compiled by itself."""
    kernel = ptxtile.jit(row.kernel.__wrapped__, dependent_launch=dependent_launch)
    options = row.options
    return lambda: kernel(*inputs, **options)


def forms_of(row: Row, device: str, divide: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The calls with dependent launches and without; AssertionError where a result is wrong."""
    sizes = tuple(max(64, size // divide) for size in row.sizes)
    if len(sizes) == 2:
        a, b = (torch.randn(sizes, device=device) for _ in range(2))
        wanted, bound = a + b, 0.0
    else:
        a, b = (torch.randn(rows, sizes[2], device=device).bfloat16() for rows in sizes[:2])
        wanted, bound = a.float() @ b.float().T, BOUND
    forms = {"on": call_of(row, True, (a, b)), "off": call_of(row, False, (a, b))}
    for form, call in forms.items():
        for _ in range(4):  # from the third call on they are made in native code
            error = float((call().float() - wanted).norm() / wanted.norm())
        assert error <= bound, f"{row.name}, {form}: relative error {error:.1e}"
    return forms


def host_microseconds(forms: dict[str, Callable[[], object]], turns: int, calls: int) -> dict[str, list[float]]:
    """Host time of one call of each, one value a turn; every second turn runs in reverse order."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(turns):
        for name in list(forms) if turn % 2 == 0 else list(forms)[::-1]:
            call, start = forms[name], time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / calls)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    return times


def measured(row: Row, forms: dict[str, Callable[[], Any]], turns: int, dry: bool) -> Iterator[dict[str, Any]]:
    """A line of results for each way to measure."""
    for launches in dict.fromkeys((1, row.launches)):
        if dry:
            found = host_milliseconds(forms, turns)
        else:
            counts = dict.fromkeys(forms, launches)
            found = milliseconds(forms, turns, 2, False, seconds=SECONDS, launches=counts)
        yield line(row, "GPU", launches, {name: [1e3 * value for value in values] for name, values in found.items()})
    if row.time < SPAN / MOST_LAUNCHES:  # where the card keeps up, so that the queue does not fill
        calls = 1 if dry else CALLS
        yield line(row, "host", calls, host_microseconds(forms, max(2, turns // 4), calls))


def line(row: Row, clock: str, launches: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """``off ÷ on``: above 1 dependent launches are faster."""
    found: dict[str, Any] = {"kernel": row.name, "time": clock, "launches": launches}
    for name, values in times.items():
        low, high = interval(values)
        found |= {name: round(statistics.median(values), 3), f"{name} 95%": [round(low, 3), round(high, 3)]}
    return found | {"off ÷ on": ratio(times["off"], times["on"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--only", default="", metavar="WORDS", help="kernels whose name has them in it")
    parser.add_argument("--dry-run", action="store_true", help="small sizes in the simulator; nothing is kept")
    arguments = parser.parse_args()
    dry = arguments.dry_run
    if dry:
        os.environ.setdefault("PTXTILE_TARGET", "sm_90a")
    elif not torch.cuda.is_available():
        sys.exit("no CUDA card here; --dry-run tries everything else in the simulator")
    rows = []
    for row in ROWS:
        if arguments.only in row.name:
            forms = forms_of(row, "cpu" if dry else "cuda", 128 if dry else 1)
            for found in measured(row, forms, 2 if dry else arguments.turns, dry):
                rows.append(found)
                print(
                    f"{found['on']:9.2f} µs on {found['off']:9.2f} µs off {found['off ÷ on']['median']:6.3f} x  "
                    f"{found['time']:>4}, {found['launches']:3} in a row: {row.name}", flush=True,
                )  # fmt: skip
    if not dry:
        print("written to", save("launch_overlap", rows, f"dependent_launch on and off, about {SPAN:.0f} µs in a row"))


if __name__ == "__main__":
    main()
