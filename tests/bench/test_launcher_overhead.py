"""bench/launcher_overhead.py from beginning to end: every call of ours is made both ways."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import launch
import launcher_overhead
import measure


def test_it_runs_to_its_end(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setenv("PTXTILE_LAUNCHER", "native")  # what it changes is put back
    monkeypatch.setattr(sys, "argv", ["launcher_overhead.py", "--turns", "3", "--calls", "3"])
    launcher_overhead.main()
    rows = json.loads((tmp_path / "launcher_overhead.json").read_text())["rows"]
    names = {row["contender"] for row in rows}
    kinds = [f"{n} tensors, {form}{made}" for n in launch.COUNTS for form in ("plain", "tma")
             for made in ("", ", out allocated")]  # fmt: skip
    for kind in ("0 tensors", *kinds, "3 tensors, plain, eager"):
        assert {f"{kind}: native", f"{kind}: python"} <= names
    assert {"torch.empty", "0 tensors: empty method", "16 tensors, plain: empty method"} <= names
