"""What a case of the kernel suite is, how it runs on a device, and how its results are compared.

A case makes a :class:`Call`: a kernel, its arguments as CPU tensors and numbers, and what torch (or exact arithmetic)
says comes out. The same call runs in the simulator, on the tensors as they are, and on a card, on copies of their
storages: strides, offsets and aliasing of the arguments stay what they were.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch


@dataclass(frozen=True)
class Ulps:
    """Results may be ``bound`` numbers of their dtype away from the expected ones, which are given in float64 and
    rounded to the results' dtype here; where ``absolute`` is given, a smaller difference than that is right too."""

    bound: float
    absolute: float = 0.0


EXACT = Ulps(0)
"""Equal bits; a NaN equals any other NaN."""


@dataclass
class Call:
    """One call of a kernel.

    expected: what it returns (a tensor, a tuple of tensors, or None). changes: by position, what an argument holds
    afterwards; every other byte of every argument's storage must stay as it was. tolerance: of results and changes.
    """

    kernel: Callable[..., Any]
    arguments: Sequence[Any]
    expected: Any = None
    changes: Mapping[int, torch.Tensor] = field(default_factory=dict)
    tolerance: Ulps = EXACT


@dataclass(frozen=True)
class Case:
    """A named call that is made from a random generator. ``card``: whether a card runs it in its sample too."""

    name: str
    make: Callable[[np.random.Generator], Call]
    card: bool


def cases(
    into: list[Case],
    *,
    card: bool | Callable[..., bool] = False,
    rows: Iterable[Mapping[str, Any]] = ({},),
    **axes: Any,
) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Adds a case to ``into`` for each of ``rows`` and each element of the product of ``axes``.

    The function takes a NumPy generator and these values by name. ``card``: True, False, or a function of the values.
    """

    def register(function: Callable[..., Call]) -> Callable[..., Call]:
        for row in rows:
            for values in itertools.product(*axes.values()):
                chosen = dict(row) | dict(zip(axes, values, strict=True))
                name = "-".join([function.__name__, *(_text(value) for value in chosen.values())])
                on_card = card(**chosen) if callable(card) else card
                into.append(Case(name, lambda generator, kw=chosen: function(generator, **kw), on_card))
        return function

    return register


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "x".join(map(_text, value)) or "none"
    return str(value).removeprefix("torch.")


def parameters(all_cases: Iterable[Case], *, on_card: bool = False) -> list[Any]:
    """pytest's parameters for the cases."""
    return [pytest.param(case, id=case.name) for case in all_cases if case.card or not on_card]


def generator_of(case: Case, seed: int) -> np.random.Generator:
    """Fresh inputs by run, the same again for one seed."""
    return np.random.default_rng([seed, zlib.crc32(case.name.encode())])


def run(call: Call, device: torch.device | str = "cpu") -> None:
    """Runs the call on ``device`` and checks results, changed arguments, and that nothing else changed."""
    tensors = {position: value for position, value in enumerate(call.arguments) if isinstance(value, torch.Tensor)}
    storages = {storage_address(tensor): tensor.untyped_storage() for tensor in tensors.values()}
    before = {address: storage.clone() for address, storage in storages.items()}
    moved = {address: torch.UntypedStorage(s.nbytes(), device=device).copy_(s) for address, s in storages.items()}
    arguments = list(call.arguments)
    for position, tensor in tensors.items():
        arguments[position] = like(tensor, moved[storage_address(tensor)])
    result = call.kernel(*arguments)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    compare_results(result, call.expected, call.tolerance, torch.device(device).type)
    after = {address: storage.cpu() for address, storage in moved.items()}
    for position, expected in call.changes.items():
        changed = like(tensors[position], after[storage_address(tensors[position])])
        compare(changed, expected, call.tolerance, f"argument {position}")
    for position in call.changes:  # compared; all the rest must be what it was
        for storages in (before, after):
            like(tensors[position], storages[storage_address(tensors[position])]).zero_()
    for position, tensor in tensors.items():
        now, then = after[storage_address(tensor)], before[storage_address(tensor)]
        same = bytes_of(now) == bytes_of(then)
        assert same.all(), f"bytes of argument {position} outside of what changes: {(~same).nonzero().flatten()[:8]}"


def storage_address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def like(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor with the shape, strides, offset and dtype of ``tensor`` on another storage."""
    empty = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def compare_results(result: Any, expected: Any, tolerance: Ulps, device_type: str) -> None:
    if expected is None:
        assert result is None
        return
    results = result if isinstance(result, tuple) else (result,)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert len(results) == len(wanted)
    for number, (got, right) in enumerate(zip(results, wanted, strict=True)):
        assert isinstance(got, torch.Tensor) and got.device.type == device_type
        compare(got.cpu(), right, tolerance, f"result {number}")


_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare(got: torch.Tensor, expected: torch.Tensor, tolerance: Ulps, what: str) -> None:
    """AssertionError where ``got`` is not ``expected`` within the tolerance, with the first few differences."""
    if tolerance is EXACT:
        assert got.dtype == expected.dtype, f"{what}: {got.dtype} instead of {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    wrong = different_bits(got, expected) if tolerance is EXACT else too_far(got, expected, tolerance)
    if wrong.any():
        where = wrong.nonzero()
        lines = [
            f"  {tuple(i.tolist())}: {got[tuple(i)].item()!r}, not {expected[tuple(i)].item()!r}" for i in where[:5]
        ]
        raise AssertionError(f"{what}: {len(where)} of {got.numel()} elements are wrong\n" + "\n".join(lines))


def different_bits(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    integer = _INTEGER_OF_SIZE[got.element_size()]
    different = got.contiguous().view(integer) != expected.contiguous().view(integer)
    if got.dtype.is_floating_point:
        different &= ~(got.float().isnan() & expected.float().isnan())
    return different


def too_far(got: torch.Tensor, expected: torch.Tensor, tolerance: Ulps) -> torch.Tensor:
    assert got.dtype.is_floating_point
    rounded = expected.to(got.dtype)
    both_nan = got.isnan() & rounded.isnan()
    apart = (places(got) - places(rounded)).abs()
    close = (got.double() - expected.double()).abs() <= tolerance.absolute
    wrong = (apart > tolerance.bound) & ~close | (got.isnan() != rounded.isnan())
    return wrong & ~both_nan


def places(values: torch.Tensor) -> torch.Tensor:
    """Each number's place in the ordered list of all numbers of its dtype; both zeros are 0."""
    bits = values.contiguous().view(_INTEGER_OF_SIZE[values.element_size()]).to(torch.int64)
    width = 8 * values.element_size()
    return torch.where(bits < 0, -(bits & ((1 << (width - 1)) - 1)), bits)
