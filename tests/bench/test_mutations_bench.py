"""What bench/mutations.py keeps of a sweep that is cut short, and takes up again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import mutation_cases  # noqa: E402
import mutations  # noqa: E402

CASE = next(case for case in mutation_cases.CASES if case.name == "elementwise_add-sm_90a")


@pytest.fixture(autouse=True)
def _own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutations, "FILE", tmp_path / "mutations.json")
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")  # which runs_of sets


def sweep(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mutations.py", CASE.name, "--seeds", "2", "--clean-seeds", "3", *options])
    return mutations.main()


def rows() -> dict[str, dict[str, Any]]:
    return {row["case"]: row for row in json.loads(mutations.FILE.read_text())["rows"]}


def test_a_case_is_kept_and_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(monkeypatch) == 0
    row = rows()[CASE.name]
    assert row["killed"] == row["mutants"] > 10 and row["kill rate"] == 1.0
    assert row["schedules without mutation"] == 3 and row["false reports"] == [] and row["not killed"] == []
    assert sum(row["rules"].values()) == sum(row["seeds that killed"].values()) == row["killed"]

    todo: list[mutations.Piece] = []
    carry_out = mutations.carry_out
    monkeypatch.setattr(mutations, "carry_out", lambda piece, seeds: todo.append(piece) or carry_out(piece, seeds))
    assert sweep(monkeypatch, "--resume") == 0 and not todo and rows()[CASE.name] == row
    mutations.keep(row | {"programs": "others"})  # the row of a program that was lowered otherwise
    assert sweep(monkeypatch, "--resume") == 0
    mutated = [number for piece in todo if piece.mutated for number in piece.numbers]
    assert len(mutated) == row["mutants"]
    assert sorted(number for piece in todo if not piece.mutated for number in piece.numbers) == [0, 1, 2]


def test_rows_of_other_cases_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    other = mutation_cases.CASES[-1]
    monkeypatch.setattr(mutations, "carry_out", lambda piece, seeds: [_survivor() if piece.mutated else _clean()])
    assert sweep(monkeypatch) == 1  # one survived
    mutations.keep(rows()[CASE.name] | {"case": other.name})
    assert sweep(monkeypatch) == 1
    assert list(rows()) == [CASE.name, other.name]
    total = json.loads(mutations.FILE.read_text())["total"]
    assert total["survived"] == 2 * rows()[CASE.name]["survived"] > 0 and total["kill rate"] == 0


def _survivor() -> dict[str, Any]:
    return {"mutant": "some", "fate": "survived", "seconds": 1.0, "reason": "nobody saw it"}


def _clean() -> dict[str, Any]:
    return {"found": [], "schedules": 3, "seconds": 1.0}


def test_programs_of_a_case_are_all_taken() -> None:
    """Those of both forms of the example."""
    assert {run.program.name for run in mutation_cases.runs_of(CASE)} == {"elementwise_add", "add"}


def test_what_does_not_end_is_cut_off() -> None:
    with pytest.raises(TimeoutError), mutations._limit(0.2):
        time.sleep(20)
