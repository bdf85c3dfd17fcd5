"""Where in the user's source the tracer is: the innermost frame outside of ptxtile, and the macro calls around it."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, TracebackType

from ptxtile.errors import Location, PtxtileError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_Position = tuple[int | None, int | None, int | None, int | None]  # lines and columns of start and end
_positions: dict[int, tuple[CodeType, list[_Position]]] = {}
"""Of each instruction, by the identity of the code, which is kept with them."""
_boundaries: set[CodeType] = set()
_trace_entries: set[CodeType] = set()


def mark_macro_boundary(code: CodeType) -> None:
    """Frames of ``code`` call a macro: the user's frame outside of it is the *caller* of the one inside."""
    _boundaries.add(code)


def mark_trace_entry(code: CodeType) -> None:
    """Frames outside of ``code`` do not belong to the traced function."""
    _trace_entries.add(code)


def is_package_file(filename: str) -> bool:
    return filename.startswith(_PACKAGE)


def _position(code: CodeType, instruction: int, line: int) -> tuple[int, int, int]:
    """(line, first column, end column) of an instruction; columns from 1, 0 when they are unknown or span lines."""
    known = _positions.get(id(code))
    if known is None:
        known = _positions[id(code)] = code, list(code.co_positions())
    positions, number = known[1], instruction // 2
    start, end, column, end_column = positions[number] if number < len(positions) else (line, line, None, None)
    if start is None:
        start = line
    if column is None or end_column is None:
        return start, 0, 0
    return start, column + 1, end_column + 1 if end == start else 0


def location_of_frame(frame: FrameType) -> Location:
    line, column, end_column = _position(frame.f_code, frame.f_lasti, frame.f_lineno)
    names = [part for part in frame.f_code.co_qualname.split(".") if part[0] != "<" and part != "__factory__"]
    return Location(frame.f_code.co_filename, line, column, end_column, names[-1] if names else "")


def user_frame() -> FrameType | None:
    """The innermost frame whose file is not part of ptxtile."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_package_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_location() -> Location | None:
    """The user's place now, with ``caller`` links through macro calls; None when no user code is on the stack."""
    frame = user_frame()
    if frame is None:
        return None
    return _with_callers(frame)


def _with_callers(frame: FrameType) -> Location:
    inner = location_of_frame(frame)
    outer: FrameType | None = frame.f_back
    while outer is not None and outer.f_code not in _trace_entries:
        if outer.f_code in _boundaries:
            while outer is not None and is_package_file(outer.f_code.co_filename):
                outer = outer.f_back
            if outer is None:
                return inner
            return Location(
                inner.file, inner.line, inner.column, inner.end_column, inner.function, caller=_with_callers(outer)
            )
        outer = outer.f_back
    return inner


def without_package_frames(traceback: TracebackType | None) -> TracebackType | None:
    """``traceback`` without the frames of ptxtile, so that a user's own exception shows the user's lines only."""
    frames = []
    while traceback is not None:
        if not is_package_file(traceback.tb_frame.f_code.co_filename):
            frames.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(frames):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def without_our_frames(error: BaseException) -> BaseException:
    """The error as the user shall see it: its traceback holds the user's lines only."""
    if isinstance(error, PtxtileError):
        return error.with_traceback(None)
    return error.with_traceback(without_package_frames(error.__traceback__))
