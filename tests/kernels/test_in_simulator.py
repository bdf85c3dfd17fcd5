"""The kernel suite in the simulator: what a user would write, lowered, run on CPU tensors and compared with torch."""

from __future__ import annotations

import pytest

from tests.kernels import suite
from tests.kernels.case import Case, generator_of, parameters, run


@pytest.mark.parametrize("case", parameters(suite.CASES))
def test_kernel(case: Case, request: pytest.FixtureRequest) -> None:
    run(case.make(generator_of(case, request.config.option.random_seed)))


@pytest.mark.parametrize("case", parameters(suite.TARGET_CASES))
def test_target(case: Case, request: pytest.FixtureRequest) -> None:
    run(case.make(generator_of(case, request.config.option.random_seed)))
