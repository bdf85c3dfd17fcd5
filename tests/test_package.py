"""The names of the package itself: all there, and what small ones compute."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptxtile
from ptxtile.errors import ArgumentError


@pytest.mark.parametrize("name", ptxtile.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(ptxtile, name) is not None


@given(st.integers(-1000, 10**6), st.integers(1, 5000))
def test_cdiv_is_the_ceiling(a: int, b: int) -> None:
    found = ptxtile.cdiv(a, b)
    assert found * b >= a > (found - 1) * b


def test_cdiv_by_nothing() -> None:
    with pytest.raises(ArgumentError, match="divisor"):
        ptxtile.cdiv(3, 0)


@given(st.integers(-5, 10**9))
def test_the_next_power_of_two(x: int) -> None:
    found = ptxtile.next_power_of_2(x)
    assert found & (found - 1) == 0 and found >= x and (found == 1 or found // 2 < x)


def test_the_level_of_the_log() -> None:
    log = logging.getLogger("ptxtile")
    before, handlers = log.level, list(log.handlers)
    try:
        ptxtile.set_log_level("info")
        assert log.level == logging.INFO and log.handlers
        with pytest.raises(ValueError):
            ptxtile.set_log_level("loud")
    finally:
        log.setLevel(before)
        log.handlers[:] = handlers
