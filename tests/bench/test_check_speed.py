"""bench/check_speed.py on its smallest cases: what it measures, its file, its verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import check_speed  # noqa: E402


def test_one_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    command = ["check_speed", "elementwise_add-sm_120a", "--repeats", "1", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    check_speed.main()
    (row,) = json.loads((tmp_path / "check_speed.json").read_text())["rows"]
    assert (row["example"], row["target"], row["sizes"], row["schedules"]) == ("elementwise_add", "sm_120a", [1, 1], 2)
    assert row["findings"] == 0 and 0 < row["plain simulator"] < row["check"]
    assert "elementwise_add [1, 1] for sm_120a" in capsys.readouterr().out


def test_a_product_has_no_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxtile.ir.rewrite import walk
    from ptxtile.ir.tensor_core_ops import MmaSync

    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    programs: list = []
    monkeypatch.setattr(check_speed, "measured", lambda calls, *_: {"program": programs.append(calls[0][0])})
    check_speed.product_row(16, 16, 16, 1, 1)
    assert not any(isinstance(node, MmaSync) for node in walk(programs[0].kernels[0].body))


def test_the_verdict() -> None:
    row = {"example": "a", "sizes": [1], "target": "sm_80", "options": {}, "calls": 1, "schedules": 2}
    good = row | {"check": 1.9, "plain simulators a schedule": 9.5, "findings": 0, "goal": 2.0}
    assert check_speed.missed([good, {"numba": "compile", "check": 9.0}]) == []
    assert "2.1 s for 1 calls, over 2.0 s" in check_speed.missed([good | {"check": 2.1}])[0]
    assert check_speed.missed([good | {"check": 2.1, "calls": 2}]) == []
    assert "1 findings" in check_speed.missed([good | {"findings": 1}])[0]
    product = {key: value for key, value in good.items() if key != "goal"} | {"plain simulators a schedule": 11.0}
    assert "11.0 times" in check_speed.missed([product])[0]
