"""Every conformance case on the card, bit by bit against the simulator (tests/conformance).

Where the environment variable OUT names a folder, all differences are written there as conformance_differences.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from ptxtile.ir.rewrite import walk
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import DType
from ptxtile.nvvm import emit
from ptxtile.runtime.device import target_of_device
from ptxtile.target import Target
from tests.conformance import compositions, mathematics, operators, tensor_cores
from tests.conformance.card import Card, CardFailure
from tests.conformance.cases import Case, load, program_names
from tests.conformance.comparison import as_records, differences, report
from tests.conformance.values import ARITHMETIC


class Report:
    """All that went wrong in this session, written after each case so that a stopped run leaves it too."""

    def __init__(self) -> None:
        folder = os.environ.get("OUT", "")
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        name = "conformance_differences" + (f"_{worker}" if worker else "") + ".json"
        self.path = Path(folder) / name if folder else None
        self.differences: list[dict[str, object]] = []
        self.failures: dict[str, str] = {}
        self.agreeing: list[str] = []

    def write(self) -> None:
        if self.path is not None:
            content = {"differences": self.differences, "failures": self.failures, "agreeing": self.agreeing}
            self.path.write_text(json.dumps(content, indent=1, ensure_ascii=False))


@pytest.fixture(scope="module")
def card_process() -> Iterator[Card]:
    card = Card()
    yield card
    card.stop()


@pytest.fixture(scope="module")
def session_report() -> Report:
    return Report()


@cache
def card_target() -> Target:
    return target_of_device()


def check(case: Case, card: Card, session: Report) -> None:
    """``case`` on the card against the simulator's run of it."""
    if not case.claims(card_target()):
        pytest.skip(f"{card_target().name} lacks {', '.join(feature.name for feature in case.needs)}")
    assert case.program.launch is not None
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        wanted = case.simulate()
    try:
        ptx = emit(case.program, card_target()).ptx
        got = card.run(ptx, case.program.launch, case.arguments)
    except CardFailure as error:
        session.failures[case.name] = str(error)
        session.write()
        pytest.fail(f"{case.name} on the card: {error}")
    found = differences(case, wanted, got.tensors)
    session.differences += as_records(found)
    prints = any(isinstance(node, Print) for kernel in case.program.kernels for node in walk(kernel.body))
    lines = sorted(text.getvalue().splitlines()), sorted(got.printed.splitlines())
    if prints and lines[0] != lines[1]:
        session.failures[case.name] = f"printed {lines[1]}, not {lines[0]}"
    if not found and case.name not in session.failures:
        session.agreeing.append(case.name)
    session.write()
    assert not found, report(found)
    assert not prints or lines[0] == lines[1]


@pytest.mark.parametrize("name", program_names())
def test_programs(name: str, card_process: Card, session_report: Report) -> None:
    check(load(name), card_process, session_report)


@pytest.mark.parametrize("name", operators.CASES)
def test_operators(name: str, card_process: Card, session_report: Report) -> None:
    check(operators.CASES[name](), card_process, session_report)


@pytest.mark.parametrize("name", tensor_cores.CASES)
def test_tensor_cores(name: str, card_process: Card, session_report: Report) -> None:
    check(tensor_cores.CASES[name](), card_process, session_report)


@pytest.mark.parametrize("name", compositions.CASES)
def test_compositions(name: str, card_process: Card, session_report: Report) -> None:
    check(compositions.CASES[name](), card_process, session_report)


@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_fresh_random_expressions(
    dtype: DType, card_process: Card, session_report: Report, request: pytest.FixtureRequest
) -> None:
    check(compositions.random_case(dtype, request.config.option.random_seed), card_process, session_report)


@pytest.mark.parametrize("name", mathematics.CASES)
def test_mathematics(name: str, card_process: Card, session_report: Report) -> None:
    check(mathematics.CASES[name](), card_process, session_report)


def test_a_fault_does_not_take_the_next_program_with_it(card_process: Card) -> None:
    """The process is started again: without that, one wrong program would fail all that follow."""
    case = operators.CASES["scalar_operators_bool"]()
    assert case.program.launch is not None
    ptx = emit(case.program, card_target()).ptx
    assert "st.global.b8" in ptx
    with pytest.raises(CardFailure):
        card_process.run(ptx.replace("st.global.b8", "trap; st.global.b8", 1), case.program.launch, case.arguments)
    again = card_process.run(ptx, case.program.launch, case.arguments)
    assert torch.equal(again.tensors["op_and"], case.simulate()["op_and"])
