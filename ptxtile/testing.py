"""The pytest plugin, and what TileLang's scripts take from their ``testing`` module (:mod:`ptxtile.kernel_tests`).

The plugin checks the simulated calls of tests for races, deadlocks and their kin.

Installing ptxtile is enough for pytest to load it. A test is checked when it uses the fixture ``ptxtile_check``, has
the mark ``@pytest.mark.ptxtile_check``, or runs under ``--ptxtile-check``. Then each call of a kernel with CPU tensors
raises :class:`ptxtile.errors.CheckError`, which holds the report, when the checker finds something; calls with CUDA
tensors are as ever. It sets the environment variable PTXTILE_SIM, so programs that a test starts are checked as well.
"""

from __future__ import annotations

import pytest

from ptxtile.kernel_tests import (
    main,
    process_func,
    regression,
    requires_cdna,
    requires_cuda,
    requires_cuda_compute_version,
    requires_cuda_compute_version_eq,
    requires_cuda_compute_version_ge,
    requires_cuda_compute_version_gt,
    requires_cuda_compute_version_le,
    requires_cuda_compute_version_lt,
    requires_cuda_or_cdna,
    requires_gfx950,
    requires_llvm,
    requires_metal,
    requires_rocm,
    set_random_seed,
    torch_assert_close,
)

__all__ = [
    "main", "process_func", "regression", "requires_cdna", "requires_cuda", "requires_cuda_compute_version",
    "requires_cuda_compute_version_eq", "requires_cuda_compute_version_ge", "requires_cuda_compute_version_gt",
    "requires_cuda_compute_version_le", "requires_cuda_compute_version_lt", "requires_cuda_or_cdna", "requires_gfx950",
    "requires_llvm", "requires_metal", "requires_rocm", "set_random_seed", "torch_assert_close",
]  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ptxtile")
    group.addoption("--ptxtile-check", action="store_true", help="check the simulated kernel calls of all tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ptxtile_check: the test's simulated kernel calls are checked for races")


@pytest.fixture
def ptxtile_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every simulated kernel call in this test is checked first."""
    monkeypatch.setenv("PTXTILE_SIM", "check")


@pytest.fixture(autouse=True)
def _ptxtile_check_where_asked(request: pytest.FixtureRequest) -> None:
    marked = request.node.get_closest_marker("ptxtile_check") is not None
    if marked or request.config.getoption("--ptxtile-check"):
        request.getfixturevalue("ptxtile_check")
