"""Our configurations for each kind of product: at most four, all from tile code; and the plain form beside them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from gemm_kernels import grid, persistent
from gemm_rows import Contender, Operands, Row, Unavailable

Configuration = dict[str, Any]

LARGE: dict[str, Configuration] = {
    "128x256, 4 stages, groups of 16 rows": dict(group=16, rows_first=True),
    "128x192, 4 stages, groups of 4 rows": dict(block_N=192, group=4, rows_first=True),
    "128x192, 4 stages, groups of 16 rows": dict(block_N=192, group=16, rows_first=True),
    "128x128, 6 stages, groups of 8 rows": dict(block_N=128, num_stages=6, group=8, rows_first=True),
}
SMALL: dict[str, Configuration] = {
    "128x64, 6 stages": dict(block_N=64, num_stages=6, threads=128),
    "128x64, 8 stages, 2 consumer warpgroups": dict(block_N=64, num_stages=8),
    "64x128, 6 stages": dict(block_M=64, block_N=128, num_stages=6, threads=128),
    "128x128, 4 stages": dict(block_N=128),
}
"""Where tiles of 128x256 would leave most multiprocessors idle."""
FEW_ROWS: dict[str, Configuration] = {
    "128x112, 7 stages, one CTA a tile": dict(block_N=112, num_stages=7),
    "128x64, 4 stages of 128, one CTA a tile": dict(block_N=64, block_K=128, num_stages=4),
}
MORE_ROWS: dict[str, Configuration] = {
    "128x128, 6 stages, one CTA a tile": dict(),
    "128x224, 4 stages, one CTA a tile": dict(block_N=224, num_stages=4),
}
"""For 65 to 128 rows, and for more."""
DECODE_FEW_ROWS = ((64, 200), (128, 200))
"""For 65 to 256 rows, two of each."""
DECODE = ((64, 100), (128, 100), (128, 200), (256, 200))
"""(depth of a stage, KiB of shared memory that the stages may take): two CTAs on a multiprocessor, or one. The weights'
rows are the M side of the tile, 64 of them."""
TILES = {"persistent": persistent, "grid": grid}
MOST_STAGES = 8
MOST_CONFIGURATIONS = 4


def contenders(operands: Operands) -> list[Contender]:
    """Ours for a row, then the plain form."""
    found = [
        _contender(name, kernel, operands, options)
        for name, kernel, options in configurations(operands.row, operands.multiprocessors)
    ]
    return [*found, *_plain(operands)]


def configurations(row: Row, multiprocessors: int) -> list[tuple[str, str, Configuration]]:
    """(name, kernel, its Python arguments) of at most four for a row."""
    found: list[tuple[str, str, Configuration]] = []
    if row.group == "decode":
        found += [_decode(row, *stages) for stages in (DECODE if row.m <= 64 else DECODE_FEW_ROWS)]
        table = {} if row.m <= 64 else FEW_ROWS if row.m <= 128 else MORE_ROWS
        found += [(name, "grid", options) for name, options in table.items()]
    else:
        table = SMALL if tiles(row, 128, 256) < multiprocessors // 2 else LARGE
        found += [(name, "persistent", _persistent(row, options, multiprocessors)) for name, options in table.items()]
    assert len(found) <= MOST_CONFIGURATIONS
    return found


def tiles(row: Row, block_m: int, block_n: int) -> int:
    return -(-row.m // block_m) * -(-row.n // block_n)


def _persistent(row: Row, configuration: Configuration, multiprocessors: int) -> Configuration:
    options = dict(configuration)
    if row.itemsize == 1:  # as many bytes of K
        options |= {"block_K": 2 * options.get("block_K", 64), "dtype": row.dtype}
    cluster = options.get("cluster", 1)
    ctas = multiprocessors * options.get("ctas_of_one", 1)
    ctas = min(ctas, tiles(row, options.get("block_M", 128), options.get("block_N", 256)))
    return options | {"ctas": max(cluster, ctas // cluster * cluster)}


def _decode(row: Row, depth: int, budget: int) -> tuple[str, str, Configuration]:
    stage = (64 + -(-row.m // 8) * 8) * depth * row.itemsize
    stages = max(2, min(MOST_STAGES, budget * 1024 // stage))
    return f"64 weight rows, {stages} stages of {depth}", "decode", dict(block_K=depth, num_stages=stages)


def _contender(name: str, kernel: str, operands: Operands, options: Configuration) -> Contender:
    a, b, c = operands.a, operands.b, operands.c

    def run_tiles() -> Any:
        return TILES[kernel](a, b, **options)

    def build() -> Callable[[], Any]:
        if kernel in TILES:
            run_tiles()
            return run_tiles
        decode = example("gemm_decode")

        def run_decode() -> Any:
            decode(a, b, c, **options)
            return c

        run_decode()
        return run_decode

    return Contender(name, "ours", build)


def _plain(operands: Operands) -> list[Contender]:
    if operands.row.itemsize == 1 or operands.row.group == "decode":
        return []

    def build() -> Callable[[], Any]:
        kernel = example("gemm")

        def run() -> Any:
            return kernel(operands.a, operands.b, block_N=256, num_stages=4, threads=256)

        run()
        return run

    return [Contender("examples/gemm.py: 128x256, 4 stages, one CTA a tile", "plain", build)]


def example(name: str) -> Any:
    """The kernel of an example that has the example's name. Unavailable when there is none."""
    try:
        return getattr(importlib.import_module(f"examples.{name}"), name)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"examples/{name}.py: {error}") from None
