"""What of bench/card_mutants.py runs without a card: processes that hang, fail or end, and what becomes of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import card_mutants  # noqa: E402

SAY = "import json, sys, time; say = lambda **line: print(json.dumps(line), flush=True);"
READY = SAY + "say(compiled=True); sys.stdin.readline(); say(ready=True);"
RIGHT = "say(launch={}, wrong=0, of=64, largest_error=0.0);"
WRONG = "say(launch={}, wrong=5, of=64, largest_error='not finite');"
ADVICE = """Traceback (most recent call last):
torch.AcceleratorError: CUDA error: an illegal instruction was encountered
Search for `cudaErrorIllegalInstruction` in the manual of the runtime.
CUDA kernel errors might be asynchronously reported at some other API call.
"""


def run(program: str, seconds: float = 20.0):
    return card_mutants.Child([sys.executable, "-c", program]).go(seconds)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (READY + RIGHT.format(0) + RIGHT.format(1), "lucky"),
        (READY + RIGHT.format(0) + WRONG.format(1), "wrong in 1 of 2 launches"),
        (READY + RIGHT.format(0), "not run to its end: 1 launches"),
        (READY + RIGHT.format(0) + "sys.exit('illegal address')", "fault in launch 2: code 1: illegal address"),
        (
            READY + f"sys.exit({ADVICE!r})",
            "fault in launch 1: torch.AcceleratorError: CUDA error: an illegal instruction",
        ),
        (READY + "say(control='wrong')", "not judged"),
        ("raise SystemExit('no card')", "not run: code 1: no card"),
        (READY + "print('PTX: a line of somebody else');" + RIGHT.format(0) + RIGHT.format(1), "lucky"),
    ],
)
def test_outcomes(program: str, expected: str) -> None:
    lines, ended = run(program)
    assert card_mutants.outcome(lines, ended, launches=2)["outcome"].startswith(expected)


def test_what_hangs_is_killed() -> None:
    """In time, with what it started, and what it said before is kept."""
    started = time.monotonic()
    lines, ended = run(READY + WRONG.format(0) + "time.sleep(100)", seconds=1.0)
    assert time.monotonic() - started < 20
    result = card_mutants.outcome(lines, ended, launches=3)
    assert result["outcome"] == "hang in launch 2, wrong in 1 before"
    assert result["launches"] == 1 and result["wrong"] == 5


@pytest.mark.parametrize(
    ("limit", "before"),
    [("SECONDS_TO_COMPILE", ""), ("SECONDS_TO_START", "say(compiled=True); sys.stdin.readline();")],
)
def test_what_hangs_before_it_is_ready_is_killed(monkeypatch: pytest.MonkeyPatch, limit: str, before: str) -> None:
    monkeypatch.setattr(card_mutants, limit, 1.0)
    lines, ended = run(f"{SAY} {before} time.sleep(100)")
    assert ended == "killed" and card_mutants.outcome(lines, ended, launches=3)["outcome"] == "not run: killed"


def test_a_process_waits_until_it_is_told_to_go() -> None:
    child = card_mutants.Child([sys.executable, "-c", READY + RIGHT.format(0)])
    assert child.lines.get(timeout=20) == '{"compiled": true}\n'
    time.sleep(0.3)
    assert child.lines.empty() and child.process.poll() is None
    child.lines.put('{"compiled": true}\n')
    lines, ended = child.go(20.0)
    assert ended == "itself" and lines[-1]["launch"] == 0


class Stand:
    """Stands for the process of a mutant, or of the kernel that asks for the card (no subject)."""

    usable: ClassVar[bool] = True
    told: ClassVar[list[str]] = []

    def __init__(self, command: list[str]) -> None:
        self.subject, self.mutant, _ = command[-3:]
        self.process = self

    def poll(self) -> int:
        return 0

    def go(self, seconds: float):
        self.told.append(self.subject)
        if not self.subject:
            return [{"ready": True}, {"ok": self.usable}], "itself"
        if self.mutant == "hangs":
            return [{"ready": True}], "killed"
        return [{"ready": True}, {"launch": 0, "wrong": 0}], "itself"


def test_a_hang_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it a small kernel asks for the card; the next mutant runs when it answers, and is left out when not."""
    monkeypatch.setattr(card_mutants, "Child", Stand)
    rows = [{"number": i, "subject": "s", "mutant": name} for i, name in enumerate(("fine", "hangs", "fine"))]
    for usable in (True, False):
        Stand.usable, Stand.told = usable, []
        outcomes = [row["outcome"] for row in card_mutants.run(rows, 1, 1.0, 100.0)]
        assert outcomes[:2] == ["lucky", "hang in launch 1"]
        assert outcomes[2] == "lucky" if usable else outcomes[2].startswith("not run: the card did not answer")
        assert Stand.told == (["s", "s", "", "s"] if usable else ["s", "s", ""])


def test_none_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_mutants, "Child", Stand)
    (row,) = card_mutants.run([{"number": 0, "subject": "s", "mutant": "fine"}], 1, 1.0, -1.0)
    assert row["outcome"].startswith("not run: ")


def test_choices_are_of_all_kinds_and_what_hangs_comes_last() -> None:
    choices = card_mutants.CHOICES
    assert len(choices) >= 10
    parts = " ".join(f"{choice.kind} {choice.change}" for choice in choices)
    for part in ("Wait", "Fence", "BarSync", "Commit", "Arrive", "arrival less", "Expect", "bytes", "parity"):
        assert part in parts
    rules = [choice.rule for choice in choices]
    assert rules == sorted(rules, key="deadlock".__eq__)


def test_the_plan_is_of_these_choices() -> None:
    rows = json.loads(card_mutants.FILE.read_text())["rows"]
    assert [(row["subject"], row["number"]) for row in rows] == [
        (choice.subject, number) for number, choice in enumerate(card_mutants.CHOICES)
    ]
    for row, choice in zip(rows, card_mutants.CHOICES, strict=True):
        assert choice.kind in row["mutant"] and row["mutant"].endswith(choice.change) and choice.rule in row["checker"]
        card_mutants.mutant_of(row["subject"], row["mutant"], large=True)


def test_a_mutant_in_the_simulator() -> None:
    """The stand-in for the card shows a wrong result, and a hang."""
    for number, expected in ((0, "wrong in 1 of 1"), (1, "hang in launch 1")):
        subject, mutant = (
            ("elementwise_add", "elementwise_add_kernel: MbarrierWait 1 removed"),
            ("elementwise_add", "elementwise_add_kernel: MbarrierArriveExpectTx 1 16 bytes more"),
        )[number]
        row = {"number": number, "subject": subject, "mutant": mutant}
        (result,) = card_mutants.run([row], 1, 4.0, 100.0, "--dry-run")
        assert result["outcome"].startswith(expected)


def test_the_subjects_have_the_same_operations_at_both_sizes() -> None:
    for name in card_mutants.SUBJECTS:
        small = [mutant.what for mutant in card_mutants.mutants(card_mutants.lowered(name, False))]
        assert len(small) > 10
        assert card_mutants.mutant_of(name, small[0], large=True).what == small[0]
