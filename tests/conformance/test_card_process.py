"""The process that runs cases on the card, with the simulator in the card's place: faults, hangs and output."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from tests.conformance.card import Card, CardFailure, _Captured, pack, unpack
from tests.conformance.cases import load


def serve_simulator(connection: Connection) -> None:
    """Instead of PTX the request says what to do: run a program, hang, end the process, or spoil the context."""
    connection.send("ready")
    while True:
        try:
            what, record, _ = connection.recv()
        except EOFError:
            return
        if what == "hang":
            time.sleep(60)
        if what == "end":
            os._exit(1)
        if what == "fault":
            connection.send(("illegal address", False, {}, ""))
            continue
        with _Captured() as captured:
            os.write(1, b"from below Python\n")
            tensors = load(record.name).simulate()
        connection.send(("", True, {name: pack(value) for name, value in tensors.items()}, captured.text))


@pytest.fixture(scope="module")
def process() -> Iterator[Card]:
    card = Card(serve_simulator, seconds=15)
    yield card
    card.stop()


def run(card: Card, what: str) -> torch.Tensor:
    case = load("while_loop")
    assert case.program.launch is not None
    answer = card.run(what, case.program.launch, case.arguments)
    assert answer.printed == "from below Python\n"
    return answer.tensors["B"]


def test_a_failure_does_not_take_the_next_case_with_it(process: Card) -> None:
    """After a fault, a hang and a process that ended, a new process answers."""
    expected = load("while_loop").expected
    assert expected is not None
    for what, seconds, message in (
        ("fault", 15, "illegal address"), ("hang", 1, "did not end within 1 s"), ("end", 15, "the process ended")
    ):  # fmt: skip
        assert torch.equal(run(process, "run"), expected["B"])
        process.seconds = seconds
        with pytest.raises(CardFailure, match=message):
            run(process, what)
        process.seconds = 15


@pytest.mark.parametrize("name", ["bool", "bfloat16", "int64", "float8_e5m2"])
def test_tensors_travel_as_bytes(name: str) -> None:
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    back = unpack(pack(value))
    assert isinstance(back, torch.Tensor) and back.dtype is value.dtype and back.shape == value.shape
    assert back.float().tolist() == value.float().tolist()
    assert unpack(pack(torch.zeros(0, 4))).shape == (0, 4)  # type: ignore[union-attr]
    assert unpack(pack(7)) == 7
