"""What of bench/card_mutants.py runs without a card: processes that hang, fail or end, and what becomes of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import card_mutants  # noqa: E402

READY = "import json, sys, time; say = lambda **line: print(json.dumps(line), flush=True); say(ready=True);"
RIGHT = "say(launch={}, wrong=0, of=64, largest_error=0.0);"
WRONG = "say(launch={}, wrong=5, of=64, largest_error='not finite');"


def run(program: str, seconds: float = 20.0):
    return card_mutants.child([sys.executable, "-c", program], seconds)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (READY + RIGHT.format(0) + RIGHT.format(1), "lucky"),
        (READY + RIGHT.format(0) + WRONG.format(1), "wrong in 1 of 2 launches"),
        (READY + RIGHT.format(0), "not run to its end: 1 launches"),
        (READY + RIGHT.format(0) + "sys.exit('illegal address')", "fault in launch 2: code 1: illegal address"),
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


def test_what_hangs_before_it_is_ready_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_mutants, "SECONDS_TO_COMPILE", 1.0)
    lines, ended = run("import time; time.sleep(100)")
    assert ended == "killed" and card_mutants.outcome(lines, ended, launches=3)["outcome"] == "not run: killed"


def test_a_hang_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it a small kernel asks for the card; the next mutant runs when it answers, and is left out when not."""
    told: list[list[str]] = []

    def child(command: list[str], seconds: float):
        told.append(command[3:])
        if command[3] == "":
            return [{"ready": True}, {"ok": usable}], "itself"
        if command[4] == "hangs":
            return [{"ready": True}], "killed"
        return [{"ready": True}, {"launch": 0, "wrong": 0}], "itself"

    monkeypatch.setattr(card_mutants, "child", child)
    rows = [{"number": i, "subject": "s", "mutant": name} for i, name in enumerate(("fine", "hangs", "fine"))]
    for usable in (True, False):
        told.clear()
        outcomes = [row["outcome"] for row in card_mutants.run(rows, 1, 1.0)]
        assert outcomes[:2] == ["lucky", "hang in launch 1"]
        assert outcomes[2] == "lucky" if usable else outcomes[2].startswith("not run: the card did not answer")
        assert [command[0] for command in told] == (["s", "s", "", "s"] if usable else ["s", "s", ""])


def test_the_subjects_have_the_same_operations_at_both_sizes() -> None:
    for name in card_mutants.SUBJECTS:
        small = [mutant.what for mutant in card_mutants.mutants(card_mutants.lowered(name, False))]
        assert len(small) > 10
        assert card_mutants.mutant_of(name, small[0], large=True).what == small[0]
