"""How a refusal is checked: the class of the error, its report, the caret, and the frames before it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxtile.errors import ArgumentError, PtxtileError, TraceError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "ptxtile")


def refused(error_class: type[PtxtileError], call: Callable[[], Any], *parts: str, caret: str | None = None) -> str:
    """The report of the error that ``call`` raises. Each of ``parts`` is a pattern that it must hold.

    ``caret``: the expression that the caret underlines; its line must carry the comment ``# here``.
    """
    with pytest.raises(error_class) as caught:
        call()
    error = caught.value
    assert type(error) is error_class or error_class in (TraceError, ArgumentError), type(error)
    text = str(error)
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in:\n{text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    assert len(frames) <= 1, "\n".join(map(str, frames))
    if caret is not None:
        lines = text.splitlines()
        where = next(number for number, line in enumerate(lines) if line.endswith("# here"))
        assert str(Path(__file__).parent) in lines[where - 1], lines[where - 1]
        marks = lines[where + 1]
        assert set(marks.strip()) == {"^"}, marks
        start = marks.index("^")
        assert lines[where][start : start + marks.count("^")] == caret, text
    return text
