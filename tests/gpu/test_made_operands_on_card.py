"""Gemms that run while the consumers make the next operand, on a card: many iterations, against torch's products."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower import made_kernels
from tests.lower.test_made_operands import FORMS, name


@pytest.mark.parametrize("K", [64, 128, 4096])
@pytest.mark.parametrize("options", FORMS, ids=name)
def test_an_operand_that_is_made_in_each_iteration(options: dict[str, Any], K: int, card: torch.device) -> None:
    M = N = 1024
    a, b = (torch.randn(rows, K, device=card).bfloat16() for rows in (M, N))
    s = torch.randn(M, device=card)
    wanted = (a.float() * s[:, None]).bfloat16().double() @ b.double().T
    for _ in range(5):
        found = made_kernels.scaled(a, b, s, **options).double()
        assert float((found - wanted).norm() / wanted.norm()) < 1e-4  # a stale tile shows in the first digit


@pytest.mark.parametrize("through", ["registers", "shared"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_two_products(through: str, num_stages: int, card: torch.device) -> None:
    q, k, v = (torch.randn(rows, 64, device=card).bfloat16() for rows in (2048, 4096, 4096))
    p = (q.double() @ k.double().T * 0.125).float().bfloat16().double()
    wanted = p @ v.double()
    for _ in range(5):
        options = {"through": through, "num_stages": num_stages, "block": 128, "threads": 256}
        found = made_kernels.two_products(q, k, v, **options).double()
        assert float((found - wanted).norm() / wanted.norm()) < 1e-3  # an element of P may round differently
