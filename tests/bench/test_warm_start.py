"""What of bench/warm_start.py runs without a card: the second process compiles nothing; medians and verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import warm_start  # noqa: E402


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = (warm_start.run_child(warm_start.NAMES[0], False, tmp_path) for _ in range(2))
    assert cold["compiled here"] and not warm["compiled here"]
    row = warm_start.summary(warm_start.NAMES[0], [warm])
    assert row["imports"] > 0 and row["first call"] > 0
    assert row["all"] >= row["imports"] + row["the kernel's file"] + row["first call"] - 0.3  # rounded
    with pytest.raises(AssertionError, match="compiled again"):
        warm_start.summary(warm_start.NAMES[0], [cold])


@pytest.mark.parametrize(
    "everything, load, word", [(0.15, 0.005, "met"), (0.151, 0.005, "missed"), (0.1, 0.0051, "missed")]
)
def test_the_verdict(everything: float, load: float, word: str) -> None:
    run = {"kernel": "gemm", "imports": 0.05, "first call": 0.05, "load": load, "all": everything}
    row = warm_start.summary("gemm", [run | {"right": True, "compiled here": False}])
    assert warm_start.verdict(row).endswith(word)
