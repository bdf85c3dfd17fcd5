"""What of bench/compile_time.py runs without a card: one process's measurement, the medians, the verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import compile_time  # noqa: E402


@pytest.mark.parametrize("name", list(compile_time.KERNELS)[::2])
def test_a_process_measures_every_step(name: str, tmp_path: Path) -> None:
    found = compile_time.run_child(name, False, str(tmp_path))
    assert found["kernel"] == name and found["target"] == compile_time.ARCHITECTURE
    steps = {group: sum(found["steps"][group].values()) for group in compile_time.GROUPS}
    for group, seconds in steps.items():
        assert found[group] == pytest.approx(seconds) and seconds > 0
    assert {"rewrite", "trace"} <= set(found["steps"]["trace"]) and "emit" in found["steps"]["LLVM"]
    assert sum(steps.values()) <= found["compile"] <= found["wall"]
    assert "driver JIT" not in found and set(found["imports"]) == {"ptxtile", "the compiler", "llvmlite"}
    assert any(tmp_path.rglob("*.pyc"))  # the bytecode is there for the next process


def run(scale: float) -> dict:
    """A run with a card, made up: 20, 50 and 30 ms of ours and 200 of the driver's, times ``scale``."""
    return {
        "kernel": "gemm, made up", "target": "sm_90a", "trace": 0.02 * scale, "passes": 0.05 * scale,
        "LLVM": 0.03 * scale, "driver JIT": 0.2 * scale, "wall": 0.4 * scale, "registers": 168, "spilled": 0,
        "imports": {"ptxtile": 0.001},
        "steps": {"trace": {"trace": 0.02 * scale}, "passes": {"a": 0.05 * scale}, "LLVM": {"emit": 0.03 * scale}},
    }  # fmt: skip


def test_medians_and_sums() -> None:
    row = compile_time.summary("gemm, made up", [run(3), run(1), run(1.1)])
    assert (row["trace"], row["passes"], row["LLVM"], row["driver JIT"]) == (22.0, 55.0, 33.0, 220.0)
    assert row["trace + passes + LLVM"] == 110.0 and row["with driver JIT"] == 330.0 and row["wall"] == 440.0
    assert row["trace + passes + LLVM, range"] == [100.0, 300.0] and row["processes"] == 3
    assert row["steps"]["LLVM"] == {"emit": 33.0} and row["imports"] == {"ptxtile": 1.0}
    assert (row["registers"], row["spilled"]) == (168, 0)


@pytest.mark.parametrize("scale, word", [(1.0, "met"), (1.19, "missed"), (1.21, "missed")])
def test_the_verdict(scale: float, word: str) -> None:
    """The goals: 120 ms, and 350 ms with the driver's JIT. At 1.19 only the second is missed (119 and 357 ms)."""
    row = compile_time.summary("gemm, made up", [run(scale)])
    (line,) = compile_time.verdicts([row, row | {"kernel": "elementwise"}])
    assert line.startswith("gemm, made up: trace + passes + LLVM") and line.endswith(f": {word}")
    assert "with driver JIT" in line
    (line,) = compile_time.verdicts([{key: value for key, value in row.items() if "JIT" not in key}])
    assert "JIT" not in line and line.endswith(": met" if scale < 1.2 else ": missed")
