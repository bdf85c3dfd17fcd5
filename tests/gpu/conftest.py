"""Tests that need a card. Without one they are skipped, and the summary says how many did not run and why."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
NOT_RUN = "no card: "


@cache
def reason_not_to_run() -> str:
    """Why device tests cannot run here; empty when they can."""
    import torch

    from ptxtile.errors import PtxtileError
    from ptxtile.runtime import device, driver

    if torch.version.cuda is None:
        return "torch is a build without CUDA"
    try:
        driver.initialised()
        device.target_of_device()
    except PtxtileError as error:
        return error.message
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason_not_to_run():
                item.add_marker(pytest.mark.skip(reason=NOT_RUN + reason_not_to_run()))


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NOT_RUN in str(report.longrepr)]
    if skipped:
        terminalreporter.section("device tests")
        terminalreporter.line(f"{len(skipped)} device tests did not run: {reason_not_to_run()}")


@pytest.fixture
def card():
    """The device that device tests run on."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())
