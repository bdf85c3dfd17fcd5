"""The ways to reach the checker: ``kernel.check``, ``PTXTILE_SIM=check`` and the pytest plugin."""

from __future__ import annotations

import pickle
import tomllib
from pathlib import Path

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import sim
from ptxtile.checked_calls import on_cpu
from ptxtile.errors import ArgumentError, CheckError, PtxtileError, SimulationError
from ptxtile.sim.check import Report
from tests.sim.check.faulty_kernels import some_warps

pytest_plugins = ["pytester"]

WARPS = torch.tensor([1, 0, 2, 3], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    monkeypatch.setenv("PTXTILE_SIM", "run")


@ptxtile.jit
def reversed_rows(A, B, racy=False, factor=2):
    """B = factor · A with its rows in reverse order, from one role to another through shared memory; ``racy``: the
    barrier is signalled before the rows are written, which the simulator by itself does not mind."""
    M = T.const("M")
    A: T.Tensor((M, 64), T.float32)
    B: T.Tensor((M, 64), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((M, 64), T.float32)
        full = T.alloc_barrier(128)
        with T.ws(0):
            if racy:
                T.barrier_arrive(full)
            for i, j in T.Parallel(M, 64):
                S[i, j] = A[i, j] * factor
            if not racy:
                T.barrier_arrive(full)
        with T.ws(1):
            T.barrier_wait(full, 0)
            for i, j in T.Parallel(M, 64):
                B[M - 1 - i, j] = S[i, j]


def test_a_clean_call() -> None:
    """The report counts schedules, the arguments are as before, by name as well."""
    a, b = torch.randn(4, 64), torch.full((4, 64), 7.0)
    before = a.clone()
    report = reversed_rows.check(a, b, factor=3)
    assert isinstance(report, Report) and report.clean and report.schedules == 2
    assert torch.equal(a, before) and (b == 7).all()
    assert reversed_rows.check(B=b, A=a, seeds=range(5, 8)).schedules == 3
    assert reversed_rows.check(a, b, seeds=1).schedules == 1


def test_a_call_with_faults() -> None:
    report = some_warps.check(WARPS, wrong=True)
    assert not report.clean
    assert {finding.rule for finding in report.findings} == {"deadlock"}
    assert "T.sync_threads(1, 128)" in str(report)
    assert some_warps.check(torch.ones(4, dtype=torch.int32), wrong=True).clean  # the data decide


def test_a_kernel_object_has_it_too() -> None:
    kernel = reversed_rows.specialize(M=3)
    a, b = torch.randn(3, 64), torch.zeros(3, 64)
    assert kernel.check(a, b).clean
    assert kernel.check(a, B=b).clean
    with pytest.raises(ArgumentError, match="fixed"):
        kernel.check(torch.randn(4, 64), torch.zeros(4, 64))


def test_errors_of_a_call_are_those_of_a_call() -> None:
    with pytest.raises(ArgumentError, match="missing"):
        reversed_rows.check(torch.randn(3, 64))
    with pytest.raises(ArgumentError, match="float64"):
        reversed_rows.check(torch.randn(3, 64).double(), torch.zeros(3, 64))


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    reversed_rows.check(torch.randn(3, 64), torch.zeros(3, 64), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1), (1, 1)]  # one block, two schedules


def test_tensors_that_overlap_still_do() -> None:
    """In place all reads come before the writes, in other places as well; one tensor stays one."""
    a = torch.randn(4, 64)
    assert reversed_rows.check(a, a).clean
    assert not reversed_rows.check(a, a, racy=True).clean
    overlapping = torch.zeros(5 * 64)
    first, second = overlapping[:256].view(4, 64), overlapping[64:].view(4, 64)
    assert reversed_rows.check(first, second).clean
    moved = on_cpu({"first": first, "second": second})
    assert moved["first"] is first and moved["second"] is second  # they are there already


def test_no_blocks() -> None:
    @ptxtile.jit
    def nothing(A):
        n = T.dynamic("n")
        A: T.Tensor((n, 64), T.float32)
        with T.Kernel(n, threads=64) as bx:
            A[bx, T.get_thread_binding()] = 1.0

    assert nothing.check(torch.zeros(0, 64)).clean
    assert nothing.check(torch.zeros(3, 64)).clean


# PTXTILE_SIM=check ----------------------------------------------------------------------------------------------------


def test_simulated_calls_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean call gives what it gives; one with faults raises, and has changed nothing."""
    a, b = torch.randn(4, 64), torch.zeros(4, 64)
    reversed_rows(a, b)
    monkeypatch.setenv("PTXTILE_SIM", "check")
    again = torch.zeros(4, 64)
    reversed_rows(a, again)
    assert torch.equal(again, b) and torch.equal(b, 2 * a.flip(0))
    untouched = torch.full((4, 64), 3.0)
    with pytest.raises(CheckError) as caught:
        reversed_rows(a, untouched, racy=True)
    assert (untouched == 3).all()
    error = caught.value
    assert isinstance(error, SimulationError) and isinstance(error, PtxtileError)
    assert isinstance(error.report, Report) and not error.report.clean
    assert "reversed_rows" in str(error) and str(error.report) in str(error)
    assert "B[M - 1 - i, j] = S[i, j]" in str(error)


def test_without_it_nothing_is_checked() -> None:
    reversed_rows(torch.randn(4, 64), torch.zeros(4, 64), racy=True)


def test_programs_are_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = reversed_rows.specialize(M=3, racy=True)
    monkeypatch.setenv("PTXTILE_SIM", "check")
    with pytest.raises(CheckError):
        sim.run(kernel.program, {"A": torch.randn(3, 64), "B": torch.zeros(3, 64)}, {})


def test_other_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_SIM", "checked")
    with pytest.raises(SimulationError, match="PTXTILE_SIM") as caught:
        reversed_rows(torch.randn(4, 64), torch.zeros(4, 64))
    assert caught.value.got == "'checked'" and caught.value.expected == "run or check"
    monkeypatch.setenv("PTXTILE_SIM", "")
    reversed_rows(torch.randn(4, 64), torch.zeros(4, 64))


def test_reports_can_be_pickled() -> None:
    """pytest-xdist and worker processes send errors on."""
    report = some_warps.check(WARPS, wrong=True)
    assert pickle.loads(pickle.dumps(report)) == report
    error = pickle.loads(pickle.dumps(CheckError("some_warps", report)))
    assert error.report == report and str(error) == str(CheckError("some_warps", report))


# The plugin -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test file with a kernel that races, in the simulator without any sign."""
    monkeypatch.delenv("PTXTILE_SIM")
    pytester.makepyfile(
        """
        import pytest
        import torch
        from tests.sim.check.test_interface import reversed_rows

        def call():
            reversed_rows(torch.randn(4, 64), torch.zeros(4, 64), racy=True)

        def test_without():
            call()

        def test_fixture(ptxtile_check):
            call()

        @pytest.mark.ptxtile_check
        def test_mark():
            call()

        @pytest.mark.ptxtile_check
        class TestClass:
            def test_inside(self):
                call()

        def test_without_again():
            call()
        """
    )
    return pytester


def test_fixture_and_mark(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-p", "ptxtile.testing", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(["*CheckError*", "*FAILED*test_fixture*", "*FAILED*test_mark*", "*FAILED*test_inside*"])


def test_option(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-p", "ptxtile.testing", "--ptxtile-check", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=5)


def test_it_is_an_entry_point() -> None:
    """Named as its module, so that pytest takes it for the same plugin when it is given by ``-p`` as well."""
    project = tomllib.loads((Path(ptxtile.__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ptxtile.testing": "ptxtile.testing"}


def test_it_is_listed(pytester: pytest.Pytester) -> None:
    assert "ptxtile_check" in pytester.runpytest_inprocess("-p", "ptxtile.testing", "--fixtures").stdout.str()
    assert "--ptxtile-check" in pytester.runpytest_inprocess("-p", "ptxtile.testing", "--help").stdout.str()
