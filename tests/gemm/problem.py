"""A random gemm as a value: sizes, tile, threads, stages, dtypes, form of the kernel, target; and how one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_120a")
DRAWN_TARGETS = ("sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_89", "sm_120a")
"""wgmma, rings and roles are on sm_90a alone."""

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

DTYPES: tuple[tuple[str, str, str, str], ...] = (
    ("bfloat16", "bfloat16", "float32", "bfloat16"),
    ("bfloat16", "bfloat16", "float32", "float32"),
    ("float16", "float16", "float32", "float16"),
    ("float16", "float16", "float16", "float16"),
    ("float32", "float32", "float32", "float32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32", "bfloat16"),
    ("float8_e5m2", "float8_e5m2", "float32", "float32"),
    ("float8_e4m3fn", "float8_e5m2", "float32", "float32"),
    ("int8", "int8", "int32", "int32"),
    ("uint8", "uint8", "int32", "int32"),
)
"""(A, B, accumulator, C)."""

SIDES = (64, 80, 96, 128, 192, 256)
WITH_CLUSTERS = ("sm_90", "sm_90a")
CLUSTERS = ((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
EPILOGUES = ("direct", "shared", "cast", "bias", "bias shared", "add", "add shared")
LAYOUTS = {"linear": 1, "blocked": 1, "transposed": 1, "swizzled": 32, "quarter": 32, "half": 64}
"""Names of tests/kernels/given_layouts.py, and what the bytes of a row have to be a multiple of. Rings of mma.sync on
a target with TMA are read by ordinary loads."""


@dataclass(frozen=True)
class Problem:
    """C[m, n] = op(A) · op(B), plus bias[n] or plus what C holds, by ``epilogue``.

    ``clears``: how the accumulator starts (``clear``: T.clear; ``first``: ``clear_accum`` in the first iteration's
    branch; ``condition``: ``clear_accum`` is a condition). ``registers``: the operands that are brought into fragments.
    ``layouts``: those given to the tiles of A and B. ``chunks``: copies of A and of B, and gemms, in one iteration.
    ``persistent``: CTAs that go through all tiles in T.Persistent; 0: one CTA a tile, with T.use_swizzle(``group``) if
    ``group``. ``cluster``: CTAs along x and y that run together. ``dynamic``: the sizes are known at launch. ``seed``:
    of the inputs.
    """

    m: int
    n: int
    k: int
    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    threads: int = 128
    stages: int = 1
    transpose_a: bool = False
    transpose_b: bool = False
    dtypes: tuple[str, str, str, str] = DTYPES[0]
    policy: int = 0
    epilogue: str = "direct"
    clears: str = "clear"
    registers: str = ""
    layouts: tuple[str, str] = ("", "")
    chunks: int = 1
    persistent: int = 0
    group: int = 0
    cluster: tuple[int, int] = (1, 1)
    dynamic: bool = False
    specialize_warps: str | bool = "auto"
    target: str = "sm_90a"
    seed: int = 0

    def __str__(self) -> str:
        changed = [f for f in fields(self) if f.name in ("m", "n", "k") or getattr(self, f.name) != f.default]
        return f"Problem({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"


Choose = Callable[[Sequence[Any]], Any]
"""Picks one of several values; the simpler ones stand first."""


def draw(choose: Choose, targets: Sequence[str] = DRAWN_TARGETS) -> Problem:
    """A problem of a few tiles: whole, with tails, or smaller than one."""
    target = choose(targets)
    dtypes = choose([d for d in DTYPES if target != "sm_80" or not set(d) & set(FLOAT8)])
    # Most tiles are such that tensor cores take them; the others are there too.
    block_m, block_n = choose((64, 64, 128, 128, *SIDES)), choose(SIDES)
    narrow = dtypes[0] in ("int8", "uint8", *FLOAT8)
    block_k = choose((32, 64, 128) if narrow else (16, 32, 64, 48))
    cluster = choose(CLUSTERS) if target in WITH_CLUSTERS else (1, 1)
    transpose_a = choose((False, False, False, True) if narrow else (False, True))
    transpose_b = choose((True, True, True, False) if narrow else (True, False))
    rows = (block_m if transpose_a else block_k, block_k if transpose_b else block_n)
    given = choose(range(6)) == 5
    persistent = choose((0, cluster[0], 3 * cluster[0]))
    k_tiles = choose((1, 2, 3, 4, 5, 7))
    return Problem(
        m=_size(choose, block_m, choose((1, 2))),
        n=_size(choose, block_n, choose((1, 2))),
        k=_size(choose, block_k, k_tiles),
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        threads=choose((128, 128, 128, 256, 256, 256, 384, 512)),
        stages=choose((1, 2, 3, 4, 5, 6)),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        dtypes=dtypes,
        policy=choose((0, 1, 2)),
        epilogue=choose(EPILOGUES),
        clears=choose(("clear", "first", "condition")),
        registers=choose(("", "", "", "", "", "A", "A", "B", "AB")),
        layouts=(_layout(choose, rows[0], dtypes[0]), _layout(choose, rows[1], dtypes[1])) if given else ("", ""),
        chunks=choose((1, 1, 1, 2)),
        persistent=persistent,
        group=choose((0, 1, 2, 8)) if not persistent else choose((1, 2, 8)),
        cluster=cluster if not persistent else (cluster[0], 1),
        dynamic=choose((False, False, True)),
        specialize_warps=choose(("auto", False)),
        target=target,
        seed=choose(range(1000)),
    )


def _layout(choose: Choose, row: int, dtype: str) -> str:
    """One that a tile with rows of so many elements may have, or none."""
    size = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)
    return choose(("", *(name for name, multiple in LAYOUTS.items() if row * size % multiple == 0)))


def _size(choose: Choose, block: int, tiles: int) -> int:
    """``tiles`` whole tiles, or that many of which the last one is cut, aligned for TMA or not."""
    tail = choose(("none", "aligned", "any"))
    step = 16 if tail == "aligned" else 1
    if tail == "none" or step >= block:
        return tiles * block
    return (tiles - 1) * block + choose(range(step, block, step))
