"""The doctor: never crashes, and tells what is missing."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ptxtile.errors import DriverError
from ptxtile.inspect import doctor
from ptxtile.inspect.command_line import app
from ptxtile.runtime import driver


class FakeDriver:
    """A machine with two cards, an H200 and one that is too old."""

    def version(self) -> tuple[int, int]:
        return (12, 8)

    def device_count(self) -> int:
        return 2

    def device_name(self, index: int) -> str:
        return ("NVIDIA H200", "Tesla V100")[index]

    def compute_capability(self, index: int) -> tuple[int, int]:
        return ((9, 0), (7, 0))[index]


@pytest.fixture
def no_card(monkeypatch) -> None:
    def missing():
        raise DriverError("no CUDA driver on this machine", got="libcuda")

    monkeypatch.setattr(driver, "library", missing)
    monkeypatch.setattr(driver, "initialised", missing)


@pytest.fixture
def two_cards(monkeypatch) -> None:
    monkeypatch.setattr(driver, "library", FakeDriver)
    monkeypatch.setattr(driver, "initialised", FakeDriver)
    monkeypatch.setattr(doctor, "_torch", lambda: "2.13.0 (CUDA 13.0)")


def facts(rows) -> dict[str, doctor.Fact]:
    return {row.name: row for row in rows}


def test_without_a_card(no_card) -> None:
    report = doctor.examine()
    found = facts(report.facts)
    assert not found["CUDA driver"].good and found["CUDA driver"].value == "no CUDA driver on this machine: libcuda"
    assert not found["cards"].good and report.cards == ()
    assert found["llvmlite, LLVM"].good and "LLVM 22" in found["llvmlite, LLVM"].value
    verdicts = facts(report.verdicts)
    assert verdicts["compile kernels to PTX"].good
    assert verdicts["run kernels in the simulator (CPU tensors)"].good
    assert not verdicts["run kernels on a card"].good
    assert "no CUDA driver" in verdicts["run kernels on a card"].value
    assert "TMA copies" not in verdicts


def test_with_cards(two_cards) -> None:
    report = doctor.examine()
    assert facts(report.facts)["CUDA driver"].value == "CUDA 12.8, PTX ISA up to 8.7"
    assert [(card.name, card.capability, card.target) for card in report.cards] == [
        ("NVIDIA H200", (9, 0), "sm_90a"),
        ("Tesla V100", (7, 0), None),
    ]
    assert "too old" in report.cards[1].problem
    verdicts = facts(report.verdicts)
    assert verdicts["run kernels on a card"].good and verdicts["TMA copies"].good


def test_a_torch_without_cuda(two_cards, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda: "2.13.0 (a build without CUDA)")
    verdict = facts(doctor.examine().verdicts)["run kernels on a card"]
    assert not verdict.good and "build without CUDA" in verdict.value


def test_a_driver_that_is_too_old_for_the_card(two_cards, monkeypatch) -> None:
    monkeypatch.setattr(FakeDriver, "version", lambda self: (11, 8))
    verdict = facts(doctor.examine().verdicts)["run kernels on a card"]
    assert not verdict.good and "sm_90a needs PTX ISA 8.0, the driver knows 7.8" in verdict.value


def test_a_broken_package_is_a_fact(no_card, monkeypatch) -> None:
    def broken() -> str:
        raise OSError("libtorch.so: undefined symbol\nmore")

    monkeypatch.setattr(doctor, "_torch", broken)
    report = doctor.examine()
    assert facts(report.facts)["torch"] == doctor.Fact("torch", "OSError: libtorch.so: undefined symbol", good=False)
    assert not facts(report.verdicts)["compile kernels to PTX"].good


def test_a_cache_that_cannot_be_written(no_card, monkeypatch, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(file / "cache"))
    report = doctor.examine()
    assert not facts(report.facts)["cache folder"].good
    assert not facts(report.verdicts)["keep compiled kernels on disk"].good
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path / "cache"))
    cache = facts(doctor.examine().facts)["cache folder"]
    assert cache.good and str(tmp_path / "cache") in cache.value and not (tmp_path / "cache").exists()


def test_the_command(no_card, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    for part in ("Python", "llvmlite", "PTXTILE_TARGET", "sm_80", "no   run kernels on a card"):
        assert part in shown.stdout
    printed = CliRunner().invoke(app, ["doctor", "--json"])
    assert printed.exit_code == 0
    report = json.loads(printed.stdout)
    assert report["facts"]["CUDA driver"]["good"] is False and report["cards"] == []
    assert report["variables"]["PTXTILE_TARGET"] == "sm_80"
    assert report["verdicts"]["compile kernels to PTX"] == {"value": "works", "good": True}
