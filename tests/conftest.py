"""What all tests share: a fresh but reproducible seed, golden files, Hypothesis settings, and the report on device
tests."""

from __future__ import annotations

import difflib
import functools
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"

hypothesis.settings.register_profile(
    "ptxtile",
    deadline=None,  # the machines that run these tests are shared
    derandomize=False,  # fresh inputs on each run; a failure prints the blob that reproduces it
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("ptxtile")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-seed", type=int, help="seed of the random_generator fixture (default: fresh)")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden from what the code gives now")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.random_seed is None:  # set here, so that the workers of pytest-xdist inherit one value
        config.option.random_seed = random.SystemRandom().randrange(2**32)
    os.environ["PTXTILE_VERIFY"] = "1"  # every program that a test compiles is checked after each pass


def pytest_report_header(config: pytest.Config) -> str:
    return f"random seed: {config.option.random_seed} (--random-seed reproduces a run)"


@pytest.fixture
def random_generator(request: pytest.FixtureRequest) -> np.random.Generator:
    """A NumPy generator that differs by test and by run, and is the same again under ``--random-seed``."""
    return np.random.default_rng([request.config.option.random_seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(autouse=True)
def seeded_torch(request: pytest.FixtureRequest) -> None:
    """torch's own generators as well: what a test draws depends on its name, not on the tests run before it."""
    import torch

    torch.manual_seed(zlib.crc32(f"{request.config.option.random_seed} {request.node.nodeid}".encode()))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("name.txt", text)`` compares ``text`` with tests/golden/name.txt, or writes it under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.option.update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {name}: run pytest --update-golden and review what it writes"
        expected = path.read_text()
        difference = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "now", lineterm="")
        assert text == expected, "\n".join(difference)

    return check


NOT_RUN = "device test: "
"""How the reason of a skipped device test begins."""


@functools.cache
def reason_not_to_run() -> str:
    """Why no device test can run here; empty when they can."""
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
    return "" if torch.cuda.is_available() else "torch sees no CUDA card"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything in tests/gpu needs a card."""
    folder = Path(__file__).parent / "gpu"
    device_tests = [item for item in items if item.path.is_relative_to(folder) or item.get_closest_marker("gpu")]
    for item in device_tests:
        item.add_marker(pytest.mark.gpu)
        if reason_not_to_run():
            item.add_marker(pytest.mark.skip(reason=NOT_RUN + reason_not_to_run()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many device tests did not run, and why. Here and not in tests/gpu, whose conftest.py the controller of
    pytest-xdist does not load."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
        if NOT_RUN in reason:
            reason = reason.partition(NOT_RUN)[2]
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} device tests did not run: {reason}")
