"""bench/made_operands.py from beginning to end in the simulator, for the target that it is about."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import made_operands
import measure


def test_it_runs_to_its_end(monkeypatch, tmp_path) -> None:
    def run_once(contenders, turns):
        return {name: [float(bool(torch.isfinite(run()).all()))] * turns for name, run in contenders.items()}

    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(made_operands, "milliseconds", run_once)
    monkeypatch.setattr(sys, "argv", ["made_operands.py", "--turns", "2", "--divide", "16"])
    made_operands.main()
    rows = json.loads((tmp_path / "made_operands.json").read_text())["rows"]
    assert list(dict.fromkeys(row["case"] for row in rows)) == list(made_operands.CASES)
    for case in made_operands.CASES:
        forms = {row["waits"]: row["chosen"] for row in rows if row["case"] == case}
        assert {"next iteration", "at once"} <= set(forms) <= set(made_operands.FORMS) and sum(forms.values()) == 1
        assert ("one by one" in forms) == ("one warpgroup" in case), "several warpgroups wait one by one at once"
