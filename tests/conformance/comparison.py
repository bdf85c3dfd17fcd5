"""Two runs of a case compared bit by bit, and what differs in a form that one can act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from tests.conformance.cases import Case
from tests.conformance.values import as_raw, decode, is_nan

SHOWN = 5
"""Differences of one output that are listed; all are counted."""


@dataclass(frozen=True)
class Difference:
    """``operands``: the bits of what the element was computed from. ``wanted`` and ``got``: bits, and as numbers."""

    case: str
    output: str
    dtype: str
    index: int
    operands: dict[str, str]
    wanted: str
    got: str
    count: int

    def __str__(self) -> str:
        operands = ", ".join(f"{name}={bits}" for name, bits in self.operands.items())
        return f"{self.output}[{self.index}] ({self.dtype}) of {operands or self.case}: {self.wanted}, got {self.got}"


def differences(case: Case, wanted: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]) -> list[Difference]:
    """Elements that differ: NaNs are equal, and outputs with an error bound may differ by that much from ``wanted``."""
    found: list[Difference] = []
    inputs = {name: tensor for name, tensor in case.binding().tensors.items()} if case.operands else {}
    for name, dtype in case.dtypes.items():
        if name not in wanted:
            continue
        left, right = as_raw(wanted[name], dtype), as_raw(got[name], dtype)
        wrong = (left != right) & ~(is_nan(left, dtype) & is_nan(right, dtype))
        if name in case.unspecified:
            wrong &= ~case.unspecified[name]
        if name in case.errors and wrong.any():
            wrong &= ~case.errors[name](np.array(decode(right, dtype), dtype=np.float64))
        places = np.flatnonzero(wrong)
        for index in places[:SHOWN].tolist():
            operands = {
                operand: _shown(as_raw(inputs[operand], case.dtypes[operand]), index, case, operand)
                for operand in case.operands.get(name, ())
            }
            found.append(
                Difference(case.name, name, str(dtype), index, operands, _shown(left, index, case, name),
                           _shown(right, index, case, name), len(places))
            )  # fmt: skip
    return found


def _shown(raw: np.ndarray, index: int, case: Case, name: str) -> str:
    dtype = case.dtypes[name]
    bits = raw[index : index + 1]
    return f"0x{int(bits[0]):0{max(1, dtype.bits // 4)}x} ({decode(bits, dtype)[0]!r})"


def report(found: list[Difference]) -> str:
    """A message: how many elements of which outputs differ, and the first few of each."""
    counts = {(d.case, d.output): d.count for d in found}
    head = [f"{count} elements of {output} in {case}" for (case, output), count in counts.items()]
    return "\n".join(["differences (wanted, got):", *head, *map(str, found)])


def as_records(found: list[Difference]) -> list[dict[str, object]]:
    return [asdict(difference) for difference in found]
