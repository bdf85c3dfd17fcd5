"""Cases for every shape and element type of mma.sync and wgmma, with fragments and shared tiles filled by hand.

Inputs are random bytes; as floats only small integers, so that every sum is exact in every accumulator and the card
has to agree in each bit. Positions of fragments are written here from the manual (PTX ISA 9.7.14.5, 9.7.15.5.1), apart
from the simulator's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ptxtile.ir.parser import parse_program
from ptxtile.ir.tensor_core_ops import MMA_SHAPES, WGMMA_SHAPES
from ptxtile.ir.types import DType, parse_dtype
from ptxtile.target import Feature
from tests.conformance.cases import Case, with_launch

Triple = tuple[str, str, str]


def source_dtype(dtype: DType) -> str:
    return "uint8" if dtype.element_name == "uint8" else "int8"


def value(text: str, dtype: DType) -> str:
    """The expression of an operand's element from the byte that ``text`` reads."""
    if dtype.is_integer:
        return text
    small = f"cast({text} & int8(3), float32) - float32(1.0)"
    return small if dtype.element_name == "tfloat32" else f"cast({small}, {dtype})"


def number(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The same on arrays, as int64."""
    wide = raw.astype(np.int64)
    return wide if dtype.is_integer else (wide & 3) - 1


def register_dtype(dtype: DType) -> str:
    return "float32" if dtype.element_name == "tfloat32" else dtype.name


def random(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def bytes_tensor(generator: np.random.Generator, dtype: str, size: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(generator.bytes(size), dtype=np.dtype(dtype)).copy())


def accumulator_tensor(generator: np.random.Generator, dtype: DType, size: int) -> torch.Tensor:
    if dtype.is_integer:
        return torch.from_numpy(np.frombuffer(generator.bytes(4 * size), dtype=np.int32).copy())
    return torch.from_numpy(generator.integers(-32, 32, size)).to(getattr(torch, dtype.name))


def rounded(total: np.ndarray, dtype: DType) -> torch.Tensor:
    """Exact int64 sums as the accumulator's type; integers wrap."""
    if dtype.is_integer:
        return torch.from_numpy(total.reshape(-1).astype(np.int32))
    return torch.from_numpy(total.reshape(-1)).to(getattr(torch, dtype.name))


# --- mma.sync --------------------------------------------------------------------------------------------------------

WARPS = 2


def mma_case(dtypes: Triple, shapes: tuple[tuple[int, int, int], ...], needs: tuple[Feature, ...]) -> Case:
    """C_i += A_i · B_i for each shape i, in each of two warps."""
    a, b, c = map(parse_dtype, dtypes)
    name = f"mma_{'_'.join(dtypes)}_{'_'.join('x'.join(map(str, shape)) for shape in shapes)}"
    generator, header, body = random(name), [], []
    arguments: list[torch.Tensor | int | float] = []
    expected: dict[str, torch.Tensor] = {}
    for i, (m, n, k) in enumerate(shapes):
        header += [
            f"A{i} = tensor({source_dtype(a)}, ({WARPS * m * k},))",
            f"B{i} = tensor({source_dtype(b)}, ({WARPS * k * n},))",
            f"C{i} = tensor({c}, ({WARPS * m * n},))",
        ]
        body += mma_statements(i, (m, n, k), a, b, c)
        left = bytes_tensor(generator, source_dtype(a), WARPS * m * k)
        right = bytes_tensor(generator, source_dtype(b), WARPS * k * n)
        start = accumulator_tensor(generator, c, WARPS * m * n)
        arguments += [left, right, start]
        products = number(left.numpy().reshape(WARPS, m, k), a) @ number(right.numpy().reshape(WARPS, k, n), b)
        expected[f"C{i}"] = rounded(products.reshape(-1) + start.numpy().astype(np.int64), c)
    text = program_text(name, header, 32 * WARPS, 0, ["g: int32 = tx % 32 // 4", "q: int32 = tx % 4",
                                                      "w: int32 = tx // 32", *body])  # fmt: skip
    return Case(name, with_launch(parse_program(text, f"{name}.ir")), tuple(arguments), needs, expected)


def mma_statements(i: int, shape: tuple[int, int, int], a: DType, b: DType, c: DType) -> list[str]:
    m, n, k = shape
    counts = m * k // 32, k * n // 32, m * n // 32
    pack_a, pack_b, tall = max(1, 32 // a.bits), max(1, 32 // b.bits), m // 8
    lines = [
        f"a{i} = allocate_register({register_dtype(a)}, ({counts[0]},))",
        f"b{i} = allocate_register({register_dtype(b)}, ({counts[1]},))",
        f"c{i} = allocate_register({c}, ({counts[2]},))",
    ]
    for e in range(counts[0]):
        register, inside = divmod(e, pack_a)
        row = f"(w * {m} + g + {8 * (register % tall)})"
        column = f"q * {pack_a} + {inside + 4 * pack_a * (register // tall)}"
        lines.append(f"a{i}[{e}] = {value(f'A{i}[{row} * {k} + {column}]', a)}")
    for e in range(counts[1]):
        register, inside = divmod(e, pack_b)
        row = f"(w * {k} + q * {pack_b} + {inside + 4 * pack_b * register})"
        lines.append(f"b{i}[{e}] = {value(f'B{i}[{row} * {n} + g]', b)}")
    places = [f"C{i}[(w * {m} + g + {8 * (e // 2)}) * {n} + q * 2 + {e % 2}]" for e in range(counts[2])]
    lines += [f"c{i}[{e}] = {place}" for e, place in enumerate(places)]
    lines.append(
        f"mma_sync(accumulator=c{i}, accumulator_offset=0, a=a{i}, a_offset=0, b=b{i}, b_offset=0, "
        f"m={m}, n={n}, k={k}, dtype_a={a}, dtype_b={b})"
    )
    return lines + [f"{place} = c{i}[{e}]" for e, place in enumerate(places)]


def program_text(name: str, header: list[str], threads: int, shared_bytes: int, body: list[str]) -> str:
    return "\n".join([
        "ptxtile_ir(1)", f'program("{name}", stage="gpu")', *header, "",
        f"@kernel(grid=(1, 1, 1), threads={threads}, shared_bytes={shared_bytes})",
        f"def {name}_kernel(bx, by, bz, tx):", *("    " + line for line in body), "",
    ])  # fmt: skip


# --- wgmma -----------------------------------------------------------------------------------------------------------

WARPGROUPS = 2
ROW_BYTES = 32
"""k elements of every type are 32 bytes: two core matrices of 8 rows of 16 bytes, side by side."""


def core_matrices(row: str, column: str, itemsize: int, *, transposed: bool) -> str:
    """The element offset of (row, column) in a tile without swizzle whose core matrices of 128 bytes lie along k first;
    ``transposed``: rows and columns exchanged inside of each core matrix, which is M- or N-major."""
    width = 16 // itemsize
    corner = f"{row} // 8 * {256 // itemsize} + {column} // {width} * {128 // itemsize}"
    if transposed:
        return f"{corner} + {column} % 8 * 8 + {row} % 8"
    return f"{corner} + {row} % 8 * {width} + {column} % {width}"


def filling(tile: str, source: str, rows: int, k: int, dtype: DType, *, transposed: bool = False) -> list[str]:
    place = core_matrices(f"({tile}_i // {k})", f"({tile}_i % {k})", dtype.itemsize, transposed=transposed)
    count = rows * k
    return [
        f"for {tile}_s in serial(0, {-(-count // 256)}):",
        f"    {tile}_i: int32 = {tile}_s * 256 + tx",
        f"    if {tile}_i < {count}:",
        f"        {tile}[{place}] = {value(f'{source}[{tile}_i]', dtype)}",
    ]


def descriptor(tile: str, offset: str, *, transposed: bool) -> str:
    """K-major: leading 128, stride 256; M- and N-major have the two exchanged in meaning, not in number here: stride
    from 8 rows to the next 8, leading from 8 columns to the next 8."""
    fixed = 128 >> 4 << 16 | 256 >> 4 << 32
    return f"cast((shared_address({tile}, {offset}) & uint32(262143)) >> uint32(4), uint64) | uint64({fixed})"


def wgmma_case(dtypes: Triple, k: int, sizes: tuple[int, ...]) -> Case:
    """For each n, C_n = (2 or, for 16-bit types, 3) · A · B_n in two warpgroups: A from shared memory, from registers,
    and both operands transposed in shared memory."""
    a, b, c = map(parse_dtype, dtypes)
    name = f"wgmma_{'_'.join(dtypes)}_{'_'.join(map(str, sizes))}"
    generator, largest, repeats = random(name), max(sizes), 3 if a.bits == 16 else 2
    rows = 64 * WARPGROUPS
    tiles = [("S_A", "A", rows, a, False), ("S_B", "B", largest, b, False)]
    if repeats == 3:
        tiles += [("T_A", "A", rows, a, True), ("T_B", "B", largest, b, True)]
    header = [f"A = tensor({source_dtype(a)}, ({rows * k},))", f"B = tensor({source_dtype(b)}, ({largest * k},))"]
    header += [f"C{n} = tensor({c}, ({rows * n},))" for n in sizes]
    body, offset = [], 0
    for tile, source, count, dtype, transposed in tiles:
        kept = register_dtype(dtype)
        body.append(
            f"{tile} = allocate_shared({kept}, ({count * k},), storage_offset={offset}, storage_alignment=1024)"
        )
        body += filling(tile, source, count, k, dtype, transposed=transposed)
        offset += -(-count * ROW_BYTES // 1024) * 1024
    body += ["fence_proxy_async()", "bar_sync(id=0, threads=256)"]
    per_group = 64 * k
    body += [f"d_S_A: uint64 = {descriptor('S_A', f'tx // 128 * {per_group}', transposed=False)}",
             f"d_S_B: uint64 = {descriptor('S_B', '0', transposed=False)}"]  # fmt: skip
    if repeats == 3:
        body += [f"d_T_A: uint64 = {descriptor('T_A', f'tx // 128 * {per_group}', transposed=True)}",
                 f"d_T_B: uint64 = {descriptor('T_B', '0', transposed=True)}"]  # fmt: skip
    body += register_operand(a, k)
    for n in sizes:
        body += wgmma_statements(n, k, a, b, c, repeats)
    left = bytes_tensor(generator, source_dtype(a), rows * k)
    right = bytes_tensor(generator, source_dtype(b), largest * k)
    outputs = [accumulator_tensor(generator, c, rows * n) for n in sizes]
    products = number(left.numpy().reshape(rows, k), a) @ number(right.numpy().reshape(largest, k), b).T * repeats
    expected = {f"C{n}": rounded(products[:, :n], c) for n in sizes}
    text = program_text(name, header, 128 * WARPGROUPS, offset, body)
    program = with_launch(parse_program(text, f"{name}.ir"))
    needs = (Feature.WGMMA, Feature.FP8_CONVERT) if a.is_float and a.bits == 8 else (Feature.WGMMA,)
    return Case(name, program, (left, right, *outputs), needs, expected)


def register_operand(a: DType, k: int) -> list[str]:
    """Row g (+8) of each warp's 16 rows; packed elements of a register side by side, then the second half of k."""
    pack, count = 32 // a.bits, k // 2
    lines = [f"a = allocate_register({register_dtype(a)}, ({count},))"]
    for e in range(count):
        register, inside = divmod(e, pack)
        row = f"(tx // 32 * 16 + tx % 32 // 4 + {8 * (register % 2)})"
        column = f"tx % 4 * {pack} + {inside + 4 * pack * (register // 2)}"
        lines.append(f"a[{e}] = {value(f'A[{row} * {k} + {column}]', a)}")
    return lines


def wgmma_statements(n: int, k: int, a: DType, b: DType, c: DType, repeats: int) -> list[str]:
    common = f"accumulator=acc{n}, accumulator_offset=0, n={n}, k={k}, dtype_a={a}, dtype_b={b}"
    lines = [
        f"acc{n} = allocate_register({c}, ({n // 2},))",
        "wgmma_fence()",
        f"wgmma({common}, shared_b=S_B, descriptor_b=d_S_B, shared_a=S_A, descriptor_a=d_S_A, accumulate=False)",
        f"wgmma({common}, shared_b=S_B, descriptor_b=d_S_B, a=a, a_offset=0, accumulate=bx == 0)",
    ]
    if repeats == 3:
        lines.append(f"wgmma({common}, shared_b=T_B, descriptor_b=d_T_B, shared_a=T_A, descriptor_a=d_T_A, "
                     "transpose_a=True, transpose_b=True)")  # fmt: skip
    lines += ["wgmma_commit_group()", f"wgmma_wait_group(pending=0, accumulators=(acc{n},), fragments=(a,))"]
    row = "(tx // 32 * 16 + tx % 32 // 4"
    for e in range(n // 2):
        place = f"{row} + {8 * (e // 2 % 2)}) * {n} + {8 * (e // 4)} + tx % 4 * 2 + {e % 2}"
        lines.append(f"C{n}[{place}] = acc{n}[{e}]")
    return lines


# --- all of them -----------------------------------------------------------------------------------------------------


def mma_needs(dtypes: Triple) -> tuple[Feature, ...]:
    return (Feature.MMA_FP8,) if dtypes[0].startswith("float8") else (Feature.MMA_SYNC,)


def _cases() -> dict[str, Callable[[], Case]]:
    """mma.sync: one case for each combination of types. wgmma: the same, with a few n each, so that together they have
    every n."""
    found: dict[str, Callable[[], Case]] = {}
    for dtypes, shapes in MMA_SHAPES.items():
        if dtypes[0] == "float64":
            small = tuple(shape for shape in shapes if shape[0] == 8)
            large = tuple(shape for shape in shapes if shape[0] == 16)
            found["mma_float64"] = partial(mma_case, dtypes, small, (Feature.MMA_SYNC,))
            found["mma_float64_large"] = partial(mma_case, dtypes, large, (Feature.MMA_F64,))
        else:
            found["mma_" + "_".join(dtypes)] = partial(mma_case, dtypes, shapes, mma_needs(dtypes))
    floats = [dtypes for dtypes in WGMMA_SHAPES if dtypes[2] != "int32"]
    integers = [dtypes for dtypes in WGMMA_SHAPES if dtypes[2] == "int32"]
    for group in (floats, integers):
        for position, dtypes in enumerate(group):
            k, sizes = WGMMA_SHAPES[dtypes]
            found["wgmma_" + "_".join(dtypes)] = partial(wgmma_case, dtypes, k, sizes[position :: len(group)])
    return found


CASES = _cases()
