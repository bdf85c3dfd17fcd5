"""Gemms of pipelined loops whose wait the compiler chooses: in the next iteration, at once, or each by itself.

Run it:  python bench/made_operands.py [--turns 40] [--divide 1] [--only WORDS]

The weights of examples/gemm_w4a16.py, and the kernels of tests/lower/made_kernels.py: a scaled operand by way of shared
memory (in two versions) or in registers, and two products with a cast between them, as in attention; and the two
products on one tile of examples/gemm_swiglu.py. Each kernel is compiled in three forms, of which the same ones are
measured once:

- next iteration: products stay in flight over the iteration, however short the ring is;
- at once: what may be under way together is waited for together, in the same iteration;
- one by one: each product is waited for by itself.

They are run in turn, and the one that the compiler chooses by itself (ptxtile/lower/spare_stages.py) is marked. Results
are compared with torch's. ``--divide``: sizes are divided by it; ``--only``: cases whose name has the words in it.
Writes bench/results/made_operands.json; times in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import interval, milliseconds, ratio, save

import ptxtile
from ptxtile.lower import join_gemms, spare_stages, specialize_warps
from ptxtile.lower.made_operands import MadeOperands
from ptxtile.lower.overlap_gemms import OverlappedGemms

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import gemm_swiglu, gemm_w4a16
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
    queries: int, length: int, width: int, device: str, **options: Any
) -> tuple[Any, tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]:
    q, k, v = (torch.randn(count, width, device=device).bfloat16() for count in (queries, length, length))
    p = (q.float() @ k.float().T * 0.125).bfloat16()
    options = {"block": 128, "threads": 256, **options}
    return made_kernels.two_products, (q, k, v), options, p.float() @ v.float()


def swiglu(
    size: int, device: str, **options: Any
) -> tuple[Any, tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]:
    x, gate, up = (torch.randn(size, size, device=device).bfloat16() for _ in range(3))
    gate, up = gate / size**0.5, up / size**0.5
    wanted = torch.nn.functional.silu(x.float() @ gate.float().T) * (x.float() @ up.float().T)
    return gemm_swiglu.gemm_swiglu, (x, gate, up), options, wanted


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
    **{
        f"two products, {stages} stages": lambda size, device, stages=stages: two_products(
            2 * size, 2 * size, 64, device, num_stages=stages
        )
        for stages in (2, 3, 4)
    },
    **{
        f"two products of 128 keys and 128 columns, {stages} stages": lambda size, device, stages=stages: two_products(
            4 * size, 2 * size, 128, device, keys=128, num_stages=stages
        )
        for stages in (2, 3)
    },
    **{
        f"swiglu, {stages} stages": lambda size, device, stages=stages: swiglu(size, device, num_stages=stages)
        for stages in (2, 3, 4)
    },
    **{
        f"swiglu of one warpgroup, {stages} stages": lambda size, device, stages=stages: swiglu(
            size, device, block_M=64, threads=128, num_stages=stages
        )
        for stages in (2, 3, 4)
    },
}


# --- the forms -------------------------------------------------------------------------------------------------------


@contextmanager
def as_chosen() -> Iterator[None]:
    yield


@contextmanager
def next_iteration() -> Iterator[None]:
    with mock.patch.object(spare_stages, "FREE_FOR_A_GAP", 0), mock.patch.object(spare_stages, "FREE_FOR_WORK", 0):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    with (
        mock.patch.object(specialize_warps, "overlap_gemms", lambda body, *_: OverlappedGemms(body)),
        mock.patch.object(specialize_warps, "overlap_made_operands", lambda body, *_: MadeOperands(body)),
    ):
        yield


@contextmanager
def one_by_one() -> Iterator[None]:
    with ExitStack() as changes:
        changes.enter_context(at_once())
        for module in (specialize_warps, join_gemms):
            changes.enter_context(mock.patch.object(module, "join_gemms", lambda body, *_: (body, [])))
        yield


FORMS = {"next iteration": next_iteration, "at once": at_once, "one by one": one_by_one}


def kernel(function: Any, args: tuple[torch.Tensor, ...], options: dict[str, Any], form: Any) -> tuple[Any, Any]:
    """A kernel that has run, and its result. Nothing that was compiled in another form is found on disk."""
    made = ptxtile.jit(function.function.function)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", {"PTXTILE_CACHE_DIR": folder}), form():
        found = made(*args, **options)
        return made.kernel_for(*args, **options)[0], found


def measured(case: str, size: int, device: str, turns: int) -> list[dict[str, Any]]:
    function, args, options, wanted = CASES[case](size, device)
    chosen, _ = kernel(function, args, options, as_chosen)
    forms: dict[str, Any] = {}
    for name, form in FORMS.items():
        made, found = kernel(function, args, options, form)
        error = float((found.float() - wanted).norm() / wanted.norm())
        assert error < BOUND, f"{case}, {name}: relative error {error}"
        if all(made.ptx != other.ptx for other in forms.values()):
            forms[name] = made
    assert any(made.ptx == chosen.ptx for made in forms.values()), f"{case}: the compiler does something else"
    times = milliseconds({name: lambda run=run: run(*args) for name, run in forms.items()}, turns)
    rows = []
    for name, values in times.items():
        low, high = interval(values)
        gain = ratio(times["at once"], values)
        figures = {"median": statistics.median(values), "low": low, "high": high, "faster than at once": gain}
        rows.append({"case": case, "size": size, "waits": name, "chosen": forms[name].ptx == chosen.ptx, **figures})
    return rows


def line(row: dict[str, Any]) -> str:
    gain = row["faster than at once"]["median"]
    return f"{row['case']:52} {row['waits']:15} {row['median']:.4f} ms, {gain:.3f} ×{' *' if row['chosen'] else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for case in CASES:
        if arguments.only in case:
            found = measured(case, SIZE // arguments.divide, device, arguments.turns)
            print(*map(line, found), sep="\n", flush=True)
            rows += found
    print("* chosen by the compiler;", save("made_operands", rows))


if __name__ == "__main__":
    main()
