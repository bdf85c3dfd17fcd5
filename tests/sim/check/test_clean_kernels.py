"""Kernels of the test suite that synchronize in many ways run clean under the checker, and compute what they should."""

from __future__ import annotations

import re

import pytest

from tests.kernels import suite
from tests.kernels.case import Case, generator_of, run

CHOSEN = re.compile(
    r"views_of_another_dtype|reshapes_of_shared-20|copying_rings|roles_with_tiles|stored_by_another_role|rings-2-1-5"
    r"|stored_between_named_barriers|handed_over_in_global_memory|gemm_by_hand-2|gemm_with_copies_in_a_role-2"
    r"|roles_of_generic"
)
CASES = [case for case in suite.CASES if CHOSEN.match(case.name)]


def test_each_pattern_chooses_some() -> None:
    for pattern in CHOSEN.pattern.split("|"):
        assert any(re.match(pattern, case.name) for case in CASES), pattern


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_clean(case: Case, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_SIM", "check")
    run(case.make(generator_of(case, request.config.option.random_seed)))
