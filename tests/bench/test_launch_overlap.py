"""bench/launch_overlap.py from beginning to end in the simulator, and by its clock made of numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import launch_overlap
import measure
from launch_overlap import ROWS, Row


def test_the_dry_run(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["launch_overlap.py", "--dry-run"])
    launch_overlap.main()
    printed = capsys.readouterr().out
    assert all(f": {row.name}\n" in printed for row in ROWS) and "host, " in printed
    assert not list(tmp_path.iterdir())


def test_the_forms_differ_in_the_launch_alone(monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    row = next(row for row in ROWS if row.name == "gemm 1024x1024x1024")
    m, n, k = row.sizes
    on, off = (
        launch_overlap.ptxtile.jit(row.kernel.__wrapped__, dependent_launch=flag).compile(M=m, N=n, K=k, **row.options)
        for flag in (True, False)
    )
    assert [launch.dependent_launch for launch in (*on.launch.launches, *off.launch.launches)] == [True, False]
    wait = "\tgriddepcontrol.wait;\n"
    assert wait in on.ptx and wait not in off.ptx and on.ptx.count("wgmma") == off.ptx.count("wgmma") > 0


def test_what_is_written(monkeypatch, tmp_path) -> None:
    """Times of a card that is made of numbers: on is 3 µs faster in a row, and as fast alone."""
    asked = []

    def clock(contenders, turns, warm_up, flush, *, seconds, launches):
        asked.append(launches["on"])
        saved = 0.003 if launches["on"] > 1 else 0.0
        return {name: [0.012 - saved * (name == "on")] * turns for name in contenders}

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(launch_overlap, "milliseconds", clock)
    monkeypatch.setattr(launch_overlap, "forms_of", lambda *_: {"on": lambda: None, "off": lambda: None})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(measure, "environment", dict)
    monkeypatch.setattr(sys, "argv", ["launch_overlap.py", "--turns", "8", "--only", "add 64"])
    launch_overlap.main()
    alone, together, host = json.loads((tmp_path / "launch_overlap.json").read_text())["rows"]
    assert asked == [1, 20] and [row["launches"] for row in (alone, together)] == asked
    assert (alone["on"], alone["off"], alone["off ÷ on"]["median"]) == (12.0, 12.0, 1.0)
    assert (together["on"], together["off"]) == (9.0, 12.0) and together["off ÷ on"]["median"] == 1.3333
    assert host["time"] == "host" and host["launches"] == launch_overlap.CALLS and host["on"] >= 0


def test_a_wrong_result_is_an_error() -> None:
    def wrong(*inputs: torch.Tensor, **options) -> torch.Tensor:
        return inputs[0] + inputs[1] + 1

    row = Row("add", launch_overlap.plain_loads, (64, 64), {}, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_overlap, "call_of", lambda row, flag, inputs: lambda: wrong(*inputs))
        with pytest.raises(AssertionError, match="add, on: relative error"):
            launch_overlap.forms_of(row, "cpu", 1)


@pytest.mark.parametrize(("time", "launches"), [(2.0, 20), (24.0, 8), (60.0, 3), (200.0, 1), (900.0, 1)])
def test_a_measurement_takes_about_as_long_whatever_the_kernel(time: float, launches: int) -> None:
    assert Row("", None, (), {}, time).launches == launches
