"""What tests that need a card share. tests/conftest.py skips them where there is none, and says how many and why."""

from __future__ import annotations

import pytest


@pytest.fixture
def card():
    """The device that device tests run on."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())
