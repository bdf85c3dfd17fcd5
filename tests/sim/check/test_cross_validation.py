"""A few random programs on which the checker and the referee must agree; ``python -m tests.sim.check.cross_validation``
tries as many as one likes."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lower.race_referee import referee
from tests.sim.check.cross_validation import TRIPS, disagreement, thinned_program


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
def test_the_checker_agrees_with_the_referee(seed: int) -> None:
    assert not disagreement(seed)


def test_the_programs_are_of_both_kinds() -> None:
    faulty = sum(bool(referee(thinned_program(seed), n=random.Random(seed).choice(TRIPS)).races) for seed in range(40))
    assert 5 <= faulty <= 30
