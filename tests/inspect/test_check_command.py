"""``ptxtile check``: what it runs, what it prints, how it exits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ptxtile.inspect import check
from ptxtile.inspect.command_line import app
from ptxtile.inspect.draw_arguments import DYNAMIC_SIZE, draw_arguments
from tests.sim.check import faulty_kernels

FILE = """\
from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def rows(A, places, alpha, width=64, late=False):
    M = T.const("M")
    n = T.dynamic("n")
    A: T.Tensor((M, width), T.float16)
    places: T.Tensor((n,), T.int32)
    alpha: T.float32
    C = T.empty((n, width), T.float16)
    with T.Kernel(n, threads=256) as bx:
        S = T.alloc_shared((width,), T.float16)
        full = T.alloc_barrier(128)
        with T.ws(0):
            if late:
                T.barrier_arrive(full)
            for i in T.Parallel(width):
                S[i] = A[places[bx], i] * alpha  # earlier
            if not late:
                T.barrier_arrive(full)
        with T.ws(1):
            T.barrier_wait(full, 0)
            for i in T.Parallel(width):
                C[bx, i] = S[width - 1 - i]  # later
    return C


def some(M=8, n=3):
    return torch.randn(M, 64).half(), torch.arange(n, dtype=torch.int32), 0.5


def by_name():
    return {"alpha": 0.25, "places": torch.tensor([7, 7], dtype=torch.int32), "A": torch.randn(8, 64).half()}


def broken():
    return 1 // 0


@ptxtile.jit(out_idx=[-1])
def factory(M, N, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=32) as bx:
            for i in T.Parallel(N):
                B[bx, i] = A[bx, i] + 1
    return main


kernel = factory(2, 64)
number = 5
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    path = tmp_path / "kernels.py"
    path.write_text(FILE)
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments])


def line(mark: str) -> int:
    return next(n for n, text in enumerate(FILE.splitlines(), 1) if text.endswith(f"# {mark}"))


def test_a_clean_kernel(file: str) -> None:
    shown = run(f"{file}:rows", "-D", "M=5", "-D", "width=96")
    assert shown.exit_code == 0, shown.output
    assert f"rows for sm_80: A float16 [5, 96], places int32 [{DYNAMIC_SIZE}], alpha=" in shown.stdout
    assert re.search(r"^no faults in 2 schedules \(\d+\.\d s\)$", shown.stdout, re.MULTILINE)
    assert not shown.stderr


def test_sizes_and_numbers(file: str) -> None:
    """-D gives T.const and T.dynamic sizes, numbers of the call and Python arguments; the rest is drawn."""
    shown = run(f"{file}:rows", "-D", "M=5", "-D", "n=2", "-D", "alpha=3.5", "--arch", "sm_90a", "--seeds", "1")
    assert shown.exit_code == 0, shown.output
    assert "rows for sm_90a: A float16 [5, 64], places int32 [2], alpha=3.5" in shown.stdout
    assert "no faults in 1 schedule (" in shown.stdout


def test_faults(file: str) -> None:
    """Exit code 1, the rule, the user's lines."""
    shown = run(f"{file}:rows", "-D", "M=4", "-D", "n=2", "-D", "late=True")
    assert shown.exit_code == 1, shown.output
    assert re.search(r"^race: thread \d+ .*\bS\[\d+\]", shown.stdout, re.MULTILINE)
    for mark, text in (("earlier", "S[i] = A[places[bx], i] * alpha"), ("later", "C[bx, i] = S[width - 1 - i]")):
        assert f'File "{file}", line {line(mark)} in rows\n    {text}' in shown.stdout
    assert re.search(r"^\d+ faults? in 2 schedules \(", shown.stdout, re.MULTILINE)


def test_json(file: str) -> None:
    shown = run(f"{file}:rows", "-D", "M=4", "-D", "n=2", "-D", "late=True", "--json")
    assert shown.exit_code == 1
    made = json.loads(shown.stdout)
    assert made["kernel"] == "rows" and made["target"] == "sm_80" and made["schedules"] == 2 and not made["clean"]
    race = next(finding for finding in made["findings"] if finding["rule"] == "race")
    assert {(place["file"], place["line"]) for place in race["locations"]} == {
        (file, line("earlier")),
        (file, line("later")),
    }
    assert race["seed"] in (0, 1) and "S[" in race["message"] and "T.sync_threads()" in race["hint"]
    assert set(made) == {"format", "kernel", "target", "arguments", "schedules", "seconds", "clean", "findings"}
    assert set(race) == {"rule", "message", "hint", "locations", "seed"} and made["format"] == 1
    assert set(race["locations"][0]) == {"file", "line", "column", "function"}
    clean = json.loads(run(f"{file}:kernel", "--json").stdout)
    assert clean["clean"] and clean["findings"] == []


@pytest.mark.parametrize("inputs", ["some", "FILE:some"])
def test_given_inputs(file: str, inputs: str) -> None:
    """Arguments by position; -D reaches the function that makes them."""
    shown = run(f"{file}:rows", "--inputs", inputs.replace("FILE", file), "-D", "n=2")
    assert shown.exit_code == 0, shown.output
    assert "A float16 [8, 64], places int32 [2], alpha=0.5" in shown.stdout
    late = run(f"{file}:rows", "--inputs", inputs.replace("FILE", file), "-D", "late=True")
    assert late.exit_code == 1, late.output


def test_inputs_by_name(file: str) -> None:
    shown = run(f"{file}:rows", "--inputs", "by_name")
    assert shown.exit_code == 0, shown.output
    assert "alpha=0.25" in shown.stdout and "places int32 [2]" in shown.stdout


def test_inputs_that_raise_show_the_users_traceback(file: str) -> None:
    shown = run(f"{file}:rows", "--inputs", "broken")
    assert shown.exit_code == 1
    assert "ZeroDivisionError" in shown.stderr and "1 // 0" in shown.stderr and "site-packages" not in shown.stderr


@pytest.mark.parametrize("given", [("factory", "-D", "M=2", "-D", "N=64"), ("kernel",)])
def test_factories_and_kernels(file: str, given: tuple[str, ...]) -> None:
    shown = run(f"{file}:{given[0]}", *given[1:])
    assert shown.exit_code == 0, shown.output
    assert "main for sm_80: A float32 [2, 64]\n" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rows",), "the size M is not known: -D M="),
        (("rows", "-D", "Q=3"), "no size or argument 'Q'; it has M, alpha, late, n, width"),
        (("rows", "-D", "M=3", "-O", "speed=1"), "unknown option 'speed'"),
        (("number",), "'number' is no kernel"),
        (("nothing",), "has no 'nothing'"),
        (("rows", "--inputs", "number"), "'number' is no function that returns the arguments"),
        (("rows", "-D", "M"), "is not NAME=VALUE"),
    ],
)
def test_wrong_command_lines(file: str, arguments: tuple[str, ...], message: str) -> None:
    shown = run(f"{file}:{arguments[0]}", *arguments[1:])
    assert shown.exit_code == 2, shown.output
    assert message in " ".join(shown.stderr.replace("│", " ").split())


def test_errors_of_the_tree(file: str) -> None:
    shown = run(f"{file}:rows", "-D", "M=3", "--arch", "sm_1")
    assert shown.exit_code == 1 and "sm_1" in shown.stderr and not shown.stdout


# Arguments ------------------------------------------------------------------------------------------------------------


def test_drawn_arguments_are_the_same_again() -> None:
    signature = faulty_kernels.pipelined.specialize().signature
    sizes = {"M": 3, "N": 5, "K": 7}
    first, again, other = (draw_arguments(signature, sizes, seed) for seed in (0, 0, 1))
    a, b, blocks = first
    assert a.shape == (3, 7) and b.shape == (5, 7) and a.dtype == torch.bfloat16
    assert isinstance(blocks, int) and 0 <= blocks < 4
    assert torch.equal(a, again[0]) and torch.equal(b, again[1]) and blocks == again[2]
    assert not torch.equal(a, other[0])
    assert draw_arguments(signature, {**sizes, "blocks": 9}, 0)[2] == 9


def test_drawn_dtypes() -> None:
    """Every dtype that a tensor can have: the declared one, finite, small integers."""
    from ptxtile.frontend.signature import Signature, TensorSignature
    from ptxtile.ir.types import parse_dtype
    from ptxtile.runtime.dtypes import FORMATS, torch_dtype

    for name, described in FORMATS.items():
        signature = Signature((TensorSignature("A", parse_dtype(name), (16, 32), (40, 1)),))
        (tensor,) = draw_arguments(signature, {}, 0)
        assert tensor.dtype == torch_dtype(name) and tensor.shape == (16, 32) and tensor.stride() == (40, 1)
        values = tensor.double() if described.kind == "float" else tensor.long()
        assert values.isfinite().all() and len(values.unique()) > 1, name
        if described.kind != "float":
            assert values.min() >= 0 and values.max() < 4


# Progress -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar on standard error, on a terminal alone, and not before a moment has passed."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    with check.ProgressBar("early") as bar:
        bar(1, 8)
    monkeypatch.setattr(check, "MOMENT", 0.0)
    with check.ProgressBar("product") as bar:
        bar(1, 8)
        bar(8, 8)
    shown = capsys.readouterr()
    assert not shown.out and "early" not in shown.err
    assert ("checking product" in shown.err and "8/8" in shown.err) == terminal
    assert bool(shown.err) == terminal
