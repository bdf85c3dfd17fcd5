"""Which architecture is compiled for."""

from __future__ import annotations

import pytest
import torch

from ptxtile.errors import DriverError, TargetError
from ptxtile.runtime import device


@pytest.fixture
def card(monkeypatch):
    """A card of a chosen compute capability, as torch would show it."""

    def present(capability: tuple[int, int] | None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: capability)

    return present


@pytest.mark.parametrize("capability, name", [((9, 0), "sm_90a"), ((8, 6), "sm_86"), ((12, 0), "sm_120a")])
def test_a_card(card, monkeypatch, capability, name) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    card(capability)
    assert device.target_of_device(0).name == name
    assert device.default_target().name == name


def test_no_card(card, monkeypatch) -> None:
    card(None)
    with pytest.raises(DriverError, match="no usable CUDA card"):
        device.target_of_device()
    monkeypatch.delenv("PTXTILE_TARGET", raising=False)
    assert device.default_target().name == device.WITHOUT_A_CARD
    monkeypatch.setenv("PTXTILE_TARGET", "sm_120a")
    assert device.default_target().name == "sm_120a"
    monkeypatch.setenv("PTXTILE_TARGET", "sm_12")
    with pytest.raises(TargetError, match="sm_12"):
        device.default_target()
