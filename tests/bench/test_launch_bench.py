"""bench/launch.py from beginning to end with a stand-in for the driver: its kernels compile as it expects, every
contender has a plan and two floors, and the result has its form."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import pytest
import torch

from ptxtile.kernel import JITKernel
from ptxtile.runtime import context, driver
from ptxtile.runtime.arguments import bind
from tests.runtime.fake_bindings import FakeBindings

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import launch
import measure

CALLS = 3


def _checked(kernel: JITKernel, args: tuple, kwargs: dict):
    """CPU tensors as if they were on a card: bound, launched through the driver, remembered."""
    variant = kernel._variant_for(args, kwargs, "cpu", None)
    binding = bind(variant.lowered().launch, args, kwargs, device_type="cpu")
    results = variant.executable()(binding)
    kernel._planned.remember(args, variant.executable(), binding, variant)
    return results


def _on_the_processor(make):
    return lambda *args, **kwargs: make(*args, **{**kwargs, "device": "cpu"})


@pytest.fixture
def stand_in(monkeypatch, tmp_path) -> FakeBindings:
    made = FakeBindings()
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: 7)
    monkeypatch.setattr(JITKernel, "_run_checked", _checked)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.testing, "assert_close", lambda *_, **__: None)  # nothing is computed
    for name in ("randn", "empty"):
        monkeypatch.setattr(torch, name, _on_the_processor(getattr(torch, name)))
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["launch.py", "--turns", "3", "--calls", str(CALLS)])
    return made


def test_it_runs_to_its_end(stand_in, tmp_path, capsys) -> None:
    launch.main()
    rows = json.loads((tmp_path / "launch.json").read_text())["rows"]
    names = [row["contender"] for row in rows]
    kinds = [f"{n} tensors, {form}, out {how}" for n in launch.COUNTS for form in ("plain", "tma")
             for how in ("passed", "allocated")]  # fmt: skip
    for kind in ("0 tensors, plain", *kinds):
        for contender in ("ptxtile", "ptxtile, from Python", "driver, native loop", "driver, ctypes"):
            assert f"{kind}: {contender}" in names
    assert "3 tensors, plain, eager: ptxtile" in names
    assert "3 tensors, plain, out passed: ptxtile, all checks" in names
    assert {"torch.add(out=)", "torch.add", "torch.empty"} <= set(names) and len(set(names)) == len(names)
    for row in rows:
        compared = {"above the floor", "of the floor"} if " tensors, " in row["contender"] else set()
        assert set(row) == {"contender", "µs", "µs 95%"} | compared
        if row["contender"].endswith("native loop"):
            assert row["of the floor"] == 1 and row["above the floor"] == 0
        assert row["µs 95%"][0] <= row["µs"] <= row["µs 95%"][1] and row["µs"] > 0


def test_the_floors_launch_what_the_plan_launches(stand_in, tmp_path) -> None:
    """The native loop and ctypes give the driver the function and configuration of the planned call, also after a
    checked call has put another plan in its place."""
    loop, keep = launch.native_loop()
    runs = launch.contenders(launch.load(tmp_path), CALLS, loop)
    runs["3 tensors, plain, out passed: ptxtile, all checks"]()
    gc.collect()
    for name in ("3 tensors, plain, out passed", "8 tensors, tma, out allocated"):
        seen = []
        for contender in ("ptxtile", "driver, native loop", "driver, ctypes"):
            before = len(stand_in.launched)
            runs[f"{name}: {contender}"]()
            found = stand_in.launched[before:]
            assert len(found) == CALLS
            seen += [[call[key] for key in ("function", "grid", "block", "shared", "attributes")] for call in found]
        assert all(one == seen[0] for one in seen)
    del keep
