"""Runs random programs: source text in a module of its own, torch tensors with poison, the simulator, the
comparison."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ptxtile.errors import LoweringError, ResourceError
from tests.ptxas import assemble
from tests.random_programs import model as m
from tests.random_programs import numbers, reference
from tests.random_programs.generator import generate
from tests.random_programs.memory import Invalid, Storage
from tests.random_programs.source import render

POISON = 0xA5


class Mismatch(AssertionError):
    """The simulator and the reference differ."""


@dataclass(frozen=True)
class Outcome:
    """``status``: ok, invalid (no unique meaning) or refused (an access that is always out of range,
    or more shared memory than there is).
    ``seconds``: to trace and lower."""

    status: str
    seconds: float = 0.0
    detail: str = ""


@contextmanager
def module_of(text: str, folder: Path | None = None) -> Iterator[ModuleType]:
    """The module of a source text, from a file, so that inspect.getsource works."""
    with tempfile.TemporaryDirectory() as temporary:
        path = (folder or Path(temporary)) / "random_program.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"random_program_{abs(hash(text))}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[spec.name]


# ---------------------------------------------------------------- data


def _values(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Element values: small numbers mostly, and what is special about the dtype."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in numbers.INTEGERS:
        held = numbers.HELD[dtype]
        limits = np.iinfo(held.name)
        kind = rng.integers(0, 3)
        if kind == 0:
            return rng.integers(max(limits.min, -20), 21, count).astype(held)
        values = rng.integers(limits.min, limits.max, count, dtype=held, endpoint=True)
        edges = np.array([limits.min, limits.max, 0, 1], held)
        return np.where(rng.random(count) < 0.1, rng.choice(edges, count), values).astype(held)
    values = rng.integers(-32, 33, count) / 4 if rng.integers(0, 2) else rng.standard_normal(count)
    if rng.random() < 0.4:
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 65504.0, 3e9, -1e20, 1e-40])
        values = np.where(rng.random(count) < 0.05, rng.choice(special, count), values)
    with np.errstate(all="ignore"):
        return numbers.convert(values, "float64", dtype)


def storages_of(program: m.Program) -> dict[str, Storage]:
    """Fresh memory of the tensors: values in inputs, poison in outputs."""
    rng = np.random.default_rng(program.seed)
    storages: dict[str, Storage] = {}
    aliased = {t.buffer.storage for t in program.tensors if t.buffer.storage != t.buffer.name}
    for tensor in program.tensors:
        name, dtype = tensor.buffer.storage, tensor.buffer.dtype
        if name in storages:
            continue
        if tensor.buffer.name.startswith("C") and name not in aliased:
            poison = np.full(tensor.elements * numbers.itemsize(dtype), POISON if dtype != "bool" else 1, np.uint8)
            storages[name] = Storage(poison.size, poison)
            storages[name].known[:] = tensor.role != "empty"
        else:
            data = numbers.encode(_values(rng, dtype, tensor.elements), dtype)
            storages[name] = Storage(0, np.array(data).view(np.uint8))
    return storages


def _torch_dtype(dtype: str) -> torch.dtype:
    return getattr(torch, dtype)


def tensors_of(program: m.Program, storages: Mapping[str, Storage]) -> dict[str, torch.Tensor]:
    """Torch tensors of the arguments, by name; aliases share memory. The first byte lies on 16 bytes."""
    found: dict[str, torch.Tensor] = {}
    whole: dict[str, torch.Tensor] = {}
    for tensor in program.tensors:
        if tensor.role == "empty":
            continue
        buffer = tensor.buffer
        if buffer.storage not in whole:
            raw = storages[buffer.storage].data
            room = torch.zeros(raw.size + 16, dtype=torch.uint8)
            shift = -room.data_ptr() % 16
            room[shift : shift + raw.size] = torch.from_numpy(raw.copy())
            whole[buffer.storage] = room[shift : shift + raw.size]
        flat = whole[buffer.storage].view(_torch_dtype(buffer.dtype))
        found[buffer.name] = flat.as_strided(buffer.shape, tensor.strides, flat.storage_offset() + tensor.offset)
    return found


# ---------------------------------------------------------------- running


def check(program: m.Program, *, ptx: bool = False, folder: Path | None = None) -> Outcome:
    """Runs ``program`` in the simulator and compares with the reference. Mismatch, or the compiler's error."""
    expected = storages_of(program)
    start = {name: Storage(0, storage.data.copy()) for name, storage in expected.items()}
    try:
        reference.run(program, expected)
    except Invalid as reason:
        return Outcome("invalid", detail=str(reason))
    text = render(program)
    with module_of(text, folder) as module:
        tensors = tensors_of(program, start)
        arguments: list[Any] = [tensors[t.buffer.name] for t in program.tensors if t.role == "argument"]
        arguments += [scalar.value for scalar in program.scalars]
        kernel = module.program() if program.form == "factory" else module.program
        try:
            results = kernel(*arguments)
        except LoweringError as error:
            if isinstance(error, ResourceError) or "always out of range" in str(error):
                return Outcome("refused", detail=str(error))
            raise
        compiled = kernel if program.form == "factory" else next(iter(kernel._kernels.values()))
        seconds = sum(compiled.variant.lowered().timings.values())
        if compiled.variant.lowered().timings and ptx:
            artifact = compiled.artifact
            assert artifact.ptx is not None
            seconds = sum(artifact.timings.values())
            assemble(artifact.ptx, artifact.target.name)
    _compare(program, expected, start, tensors, results)
    return Outcome("ok", seconds)


def _compare(
    program: m.Program, expected: Mapping[str, Storage], start: Mapping[str, Storage],
    tensors: Mapping[str, torch.Tensor],
    results: Any,
) -> None:  # fmt: skip
    outputs = [t for t in program.tensors if t.role == "empty"]
    returned = [results] if isinstance(results, torch.Tensor) else list(results or ())
    if len(returned) != len(outputs):
        raise Mismatch(f"{len(returned)} results, expected {len(outputs)}")
    for tensor, value in zip(outputs, returned, strict=True):
        storage = expected[tensor.buffer.storage]
        raw = value.contiguous().view(torch.uint8).numpy().reshape(-1) if value.numel() else np.zeros(0, np.uint8)
        if tuple(value.shape) != tensor.buffer.shape:
            raise Mismatch(f"{tensor.buffer.name} has shape {tuple(value.shape)}, expected {tensor.buffer.shape}")
        _same(tensor, storage.data, raw, storage.written)
    seen: set[str] = set()
    for tensor in program.tensors:
        if tensor.role == "empty" or tensor.buffer.storage in seen:
            continue
        seen.add(tensor.buffer.storage)
        argument = tensors[tensor.buffer.name]
        flat = argument.as_strided((tensor.elements,), (1,), argument.storage_offset() - tensor.offset)
        raw = flat.view(torch.uint8).numpy().reshape(-1)
        storage = expected[tensor.buffer.storage]
        untouched = ~storage.written
        if not np.array_equal(raw[untouched], start[tensor.buffer.storage].data[untouched]):
            place = int(np.flatnonzero(untouched & (raw != start[tensor.buffer.storage].data))[0])
            size = numbers.itemsize(tensor.buffer.dtype)
            raise Mismatch(f"{tensor.buffer.name}: element {place // size} of the storage was written, it must not be")
        _same(tensor, storage.data, raw, storage.written)


def _same(tensor: m.Tensor, expected: np.ndarray, got: np.ndarray, written: np.ndarray) -> None:
    """Equal where written. NaNs are one value, and so are zeros, since min and max may pick either zero."""
    dtype = tensor.buffer.dtype
    stored = numbers.STORED[dtype]
    a = numbers.decode(expected.view(stored), dtype)
    b = numbers.decode(np.ascontiguousarray(got).view(stored), dtype)
    mask = written.reshape(-1, stored.itemsize).all(axis=1)
    with np.errstate(all="ignore"):
        same = (a == b) | ((a != a) & (b != b))
    bad = np.flatnonzero(mask & ~same)
    if bad.size:
        place = int(bad[0])
        raise Mismatch(
            f"{tensor.buffer.name}: {bad.size} of {int(mask.sum())} written elements differ, first the storage's "
            f"element {place}: expected {a[place]!r}, got {b[place]!r}"
        )


def describe(seed: int, program: m.Program, error: BaseException) -> str:
    """A failure as text: the source, the seed, how to see it again."""
    text = render(program)
    strided = [
        f"#   {t.buffer.name}: shape {t.buffer.shape}, strides {t.strides}, offset {t.offset}, {t.role}, "
        f"in {t.buffer.storage}"
        for t in program.tensors
    ]
    scalars = [f"#   {s.name} = {s.value!r}" for s in program.scalars] + [
        f"#   {s.name} = {s.value}" for s in program.sizes
    ]
    return "\n".join(
        [
            text, "# arguments:", *strided, *scalars, f"# {type(error).__name__}: {error}", f"# seed {seed}",
            f"# python -m tests.random_programs --one {seed}", "",
        ]
    )  # fmt: skip


def run_seed(seed: int, *, ptx: bool = False) -> Outcome:
    """Generates and checks the program of a seed."""
    os.environ["PTXTILE_VERIFY"] = "1"
    return check(generate(seed), ptx=ptx)


def size_of(program: m.Program) -> int:
    """Elements of all tensors."""
    return sum(math.prod(tensor.buffer.shape) for tensor in program.tensors)
