"""The kernels of bench/zoo.py are right, and different from each other; a run of some of them without a card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from ptxtile import compiled_programs

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import zoo
import zoo_kernels


def test_there_are_126_and_no_two_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", zoo.ARCHITECTURE)
    variants = [make().variant for make in zoo_kernels.zoo().values()]
    keys = {compiled_programs.key_of(v.tile_program, v.target, v.settings.options) for v in variants}
    assert len(variants) == len(keys) == 126


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-2, atol=1e-2)


@pytest.fixture
def wide() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 2, 70).bfloat16(), torch.randn(5, 70).bfloat16()


SMALL = {"block_M": 4, "block_N": 64, "threads": 32}


def test_element_by_element(wide: tuple[torch.Tensor, torch.Tensor]) -> None:
    both, other = wide
    near(zoo_kernels.residual(other, both[:, 0].contiguous(), **SMALL), other.double() + both[:, 0].double())
    numbers = torch.randn(5, 70)
    assert torch.equal(zoo_kernels.cast(numbers, **SMALL), numbers.bfloat16())
    large = (300 * other).contiguous()
    wanted = (large.float() * 2.5).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(zoo_kernels.quantize(large, 2.5, **SMALL).view(torch.uint8), wanted.view(torch.uint8))
    total = torch.randn(5, 70)
    before = total.clone()
    zoo_kernels.accumulate(total, other, **SMALL)
    assert torch.equal(total, before + other.float())


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_activations(wide: tuple[torch.Tensor, torch.Tensor], activation: str) -> None:
    both, _ = wide
    gate, up = both[:, 0].double(), both[:, 1].double()
    activated = (
        torch.nn.functional.silu(gate) if activation == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")
    )
    near(zoo_kernels.gated_activation(both, activation=activation, **SMALL), activated * up)


def test_the_gradient_is_autograds(wide: tuple[torch.Tensor, torch.Tensor]) -> None:
    both, given = wide
    leaf = both.double().requires_grad_()
    (torch.nn.functional.silu(leaf[:, 0]) * leaf[:, 1]).backward(given.double())
    assert leaf.grad is not None
    near(zoo_kernels.gated_gradient(both, given, **SMALL), leaf.grad)


def test_products() -> None:
    x, gate, up = torch.randn(70, 80).bfloat16(), torch.randn(66, 80).bfloat16(), torch.randn(66, 80).bfloat16()
    tile = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}
    wanted = x.double() @ gate.double().T
    near(zoo_kernels.gemm(x, gate, **tile), wanted)
    found = zoo_kernels.gate_up(x, gate / 9, up / 9, **tile).double()
    wanted = torch.nn.functional.silu(x.double() @ (gate / 9).double().T) * (x.double() @ (up / 9).double().T)
    near(found, wanted)


def test_a_run_without_a_card(tmp_path: Path) -> None:
    found = zoo.run_child(2, False, 3, str(tmp_path))
    assert (found["kernels"], found["distinct"], found["workers"]) == (3, 3, 2)
    assert found["target"] == zoo.ARCHITECTURE and found["machine code"] == 0
    assert 0 < found["first worker"] <= found["wall"] and found["processor"] > 0
    assert {"passes", "LLVM"} <= set(found["steps"]) and "driver" not in found["steps"]
    row = zoo.summary([found, {**found, "wall": found["wall"] + 2}, {**found, "wall": found["wall"] + 1}])
    assert row["wall"] == pytest.approx(found["wall"] + 1, abs=1e-3)
    assert row["estimate"] == pytest.approx(found["first worker"] + found["processor"] / 2, abs=2e-3)


def test_the_verdict() -> None:
    row = {"kernels": 126, "distinct": 126, "workers": 8, "cores": 8, "wall": 5.9, "estimate": 2.0}
    assert zoo.verdict(row, True).endswith("(goal 6 s): met")
    assert zoo.verdict({**row, "wall": 6.1}, True).endswith("missed")
    assert "without the driver; about 2.0 s" in zoo.verdict(row, False)
