"""Conversions between dtypes against torch's, on random values and on the special ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ptxtile.ir import types
from ptxtile.ir.expressions import Bitcast, Cast, Var
from ptxtile.ir.types import BY_NAME, DType
from ptxtile.sim.dtypes import from_memory, to_memory
from ptxtile.sim.expressions import evaluate

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
SMALL = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
TORCH = {name: getattr(torch, name) for name in ["bool", *INTEGERS, *FLOATS, *SMALL]}


def held(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    """A torch tensor's bytes in the simulator's form."""
    raw = tensor.contiguous().view(torch.uint8).numpy()
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.bits // 8]
    stored = raw.view(kind)
    if dtype.element_name not in ("bfloat16", "bool", *SMALL):
        stored = stored.view(np.dtype(dtype.element_name))
    return from_memory(stored, dtype)


def torch_bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def samples(name: str, seed: int) -> torch.Tensor:
    """Every bit pattern of a type of up to 16 bits; random bits, small values and the special ones of wider types."""
    torch_dtype = TORCH[name]
    if name == "bool":
        return torch.tensor([False, True])
    bits = BY_NAME[name].bits
    if bits == 8:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch_dtype)
    if bits == 16:
        return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch_dtype)
    random = np.random.default_rng(seed)
    raw = random.integers(0, 2**bits, 20000, dtype=np.uint64).astype(f"uint{bits}")
    patterns = torch.from_numpy(raw).view(torch_dtype)
    if name in INTEGERS:
        limits = torch.iinfo(torch_dtype)
        edges = [limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1]
        edges += [2**k + d for k in (7, 8, 15, 16, 24, 31, 32, 53, 62) for d in (-1, 0, 1) if 2**k + d <= limits.max]
        return torch.cat([patterns, torch.tensor(edges, dtype=torch_dtype)])
    spread = random.standard_normal(20000) * 2.0 ** random.integers(-30, 70, 20000)
    halves = (random.integers(-70000, 70000, 20000) + 0.5) / random.choice([1.0, 2.0, 1024.0], 20000)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 464.001, 465, 480, 57344, 61439.9, 61440, 65504, 65519.9]
    edges += [s * (2.0**k + d) for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5, 1) for s in (1, -1)]
    edges += [2.0**-k * m for k in (9, 10, 16, 17, 24, 25, 26, 126, 127, 128, 133, 149, 150) for m in (1, 1.5, 1.25, 3)]
    values = torch.from_numpy(np.concatenate([spread, halves, np.array(edges, dtype=np.float64)])).to(torch_dtype)
    return torch.cat([patterns, values])


def saturated(values: torch.Tensor, name: str) -> np.ndarray:
    """float → integer as the IR defines it, with Python's exact integers."""
    limits = {"int8": "int32", "int16": "int32", "uint8": "int64", "uint16": "int64"}
    carrier = torch.iinfo(getattr(torch, limits.get(name, name)))
    result = []
    for value in values.to(torch.float64).tolist():
        if np.isfinite(value):
            whole = min(max(int(value), carrier.min), carrier.max)
        else:
            whole = 0 if np.isnan(value) else carrier.max if value > 0 else carrier.min
        result.append(whole & (2 ** BY_NAME[name].bits - 1))
    return np.array(result, dtype=np.uint64).astype(f"uint{BY_NAME[name].bits}").view(np.dtype(name))


@pytest.mark.parametrize("target_name", list(TORCH))
@pytest.mark.parametrize("source_name", list(TORCH))
def test_cast_matches_torch(source_name: str, target_name: str) -> None:
    source, target = BY_NAME[source_name], BY_NAME[target_name]
    values = samples(source_name, seed=len(source_name) * 31 + len(target_name))
    if source.is_float and target.is_integer:
        values = values[:: 3 if len(values) > 256 else 1]  # the reference is a Python loop
    got = to_memory(evaluate(Cast(Var("x", source), target), {"x": held(values, source)}), target)
    if source.is_float and target.is_integer:
        np.testing.assert_array_equal(got, saturated(values, target_name))
        # Where the conversion is in range for C++, torch must agree too.
        double = values.to(torch.float64)
        info = torch.iinfo(TORCH[target_name])
        in_range = (double > max(info.min, -(2.0**62)) - 1) & (double < min(info.max, 2.0**62))
        expected = values[in_range].to(TORCH[target_name])
        np.testing.assert_array_equal(got[in_range.numpy()], expected.numpy())
        return
    expected = values.to(TORCH[target_name])
    if target_name == "float8_e4m3fn":
        # torch's overflow differs between its versions (NaN, or 448); the IR's rule is NaN (there is no infinity).
        overflow = (values.to(torch.float32).abs() > 464).numpy()
        np.testing.assert_array_equal(got[overflow] & 0x7F, 0x7F)
        got, expected = got[~overflow], expected[torch.from_numpy(~overflow)]
    if target.is_float:
        nan = torch.isnan(expected.to(torch.float32)).numpy()
        result = held(torch.from_numpy(np.ascontiguousarray(got).view(np.uint8)).view(TORCH[target_name]), target)
        mine = np.isnan(evaluate(Cast(Var("x", target), types.float32), {"x": result}))
        np.testing.assert_array_equal(mine, nan)
        width = target.bits // 8
        mine_bytes = np.ascontiguousarray(got).view(np.uint8).reshape(-1, width)
        np.testing.assert_array_equal(mine_bytes[~nan], torch_bits(expected).reshape(-1, width)[~nan])
    else:
        np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint8), torch_bits(expected))


@pytest.mark.parametrize("name", list(TORCH))
def test_memory_round_trip_keeps_bits(name: str) -> None:
    values = samples(name, seed=3)
    np.testing.assert_array_equal(
        np.ascontiguousarray(to_memory(held(values, BY_NAME[name]), BY_NAME[name])).view(np.uint8), torch_bits(values)
    )


def test_float4_values_and_rounding() -> None:
    """OCP Microscaling Formats 1.0, table 5: 0, 0.5, 1, 1.5, 2, 3, 4, 6; round to nearest even, saturating."""
    e2m1 = BY_NAME["float4_e2m1fn"]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    decoded = evaluate(Cast(Var("x", e2m1), types.float32), {"x": np.arange(16, dtype=np.uint8)})
    np.testing.assert_array_equal(decoded, np.float32(magnitudes + [-m for m in magnitudes]))
    values = np.float32([0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.1, 7, np.inf, -np.inf, -0.25, np.nan])
    codes = evaluate(Cast(Var("x", types.float32), e2m1), {"x": values})
    assert codes.tolist() == [0, 1, 2, 2, 4, 4, 6, 6, 7, 7, 7, 15, 8, 7]


def test_four_bit_integers_pack_low_half_first() -> None:
    int4 = BY_NAME["int4"].with_lanes(4)
    stored = np.array([[0x8F, 0x70]], dtype=np.uint8)
    values = from_memory(stored, int4)
    assert values.tolist() == [[-1, -8, 0, 7]]
    np.testing.assert_array_equal(to_memory(values, int4), stored)


def test_cast_to_int4_wraps() -> None:
    got = evaluate(Cast(Var("x", types.int32), BY_NAME["int4"]), {"x": np.int32([7, 8, -9, 255])})
    assert got.tolist() == [7, -8, 7, -1]


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("float64", "uint64"), ("float16", "uint16"), ("bfloat16", "int16"), ("int64", "float64")],
)
def test_bitcast_keeps_bits(source: str, target: str) -> None:
    values = samples(source, seed=5)
    got = evaluate(Bitcast(Var("x", BY_NAME[source]), BY_NAME[target]), {"x": held(values, BY_NAME[source])})
    np.testing.assert_array_equal(
        np.ascontiguousarray(to_memory(got, BY_NAME[target])).view(np.uint8), torch_bits(values)
    )


def test_bitcast_between_lane_counts() -> None:
    pair, word = types.bfloat16.with_lanes(2), types.uint32
    got = evaluate(Bitcast(Var("x", word), pair), {"x": np.uint32([0x3F804000, 0xC0003F80])})
    assert got.tolist() == [[2.0, 1.0], [1.0, -2.0]]
    back = evaluate(Bitcast(Var("x", pair), word), {"x": got})
    assert [hex(value) for value in back.tolist()] == ["0x3f804000", "0xc0003f80"]
