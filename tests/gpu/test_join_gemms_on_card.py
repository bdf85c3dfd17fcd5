"""Several products in an iteration that wait for each other or not, on a card: exact sums of small integers."""

from __future__ import annotations

import random

import pytest
import torch

from tests.lower import product_kernels
from tests.lower.product_kernels import Product
from tests.lower.test_join_gemms import BLOCK, DEPTH, random_plan, wanted

TRIPS = 64


def require_exact(plan: tuple[Product, ...], stages: int, card: torch.device) -> None:
    a, b = (torch.randint(-4, 5, (len(plan), BLOCK, DEPTH * TRIPS)).bfloat16() for _ in range(2))
    for trips in (*range(stages + 2), TRIPS, TRIPS):
        rounds = torch.tensor([trips], dtype=torch.int32, device=card)
        found, counted = product_kernels.products(a.to(card), b.to(card), rounds, plan=plan, num_stages=stages)
        assert torch.equal(found.cpu().double(), wanted(plan, {"A": a, "B": b}, trips)), trips
        assert int(counted) == trips * sum(product.scalar for product in plan)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "plan",
    [
        (Product(0), Product(1, "common")),
        (Product(0), Product(0)),
        (Product(0), Product(1, late=True)),
        (Product(0, "made"), Product(1), Product(0, "made")),
        (Product(0), *(Product(number % 2, late=True) for number in range(3))),
    ],
    ids=["two that share a tile", "one sum", "two rings", "in registers", "four rings"],
)
def test_products_of_an_iteration(plan: tuple[Product, ...], stages: int, card: torch.device) -> None:
    require_exact(plan, stages, card)


@pytest.mark.parametrize("number", range(40))
def test_random_products(number: int, card: torch.device) -> None:
    draw = random.Random(number + torch.initial_seed())
    require_exact(random_plan(draw), draw.randint(1, 5), card)
