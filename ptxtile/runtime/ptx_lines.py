"""From a line of PTX to the user's Python line, by the PTX's own ``.file`` and ``.loc`` directives (PTX ISA, «Debugging
Directives»)."""

from __future__ import annotations

import re

from ptxtile.errors import Location

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_HEAD = re.compile(r"^\s*(?:\.\w+\s+)*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$%]+)")


class PtxLines:
    """The places of one PTX text."""

    def __init__(self, ptx: str) -> None:
        self._lines = ptx.split("\n")
        self._files = {int(number): path for number, path in _FILE.findall(ptx)}

    def location(self, line: int) -> Location | None:
        """The place that line ``line`` (from 1) was made from: that of the last ``.loc`` at or before it within its
        function. None where the PTX has none, or names a line 0 (code that belongs to no place)."""
        for text in reversed(self._lines[: max(line, 0)]):
            if place := self._place(text):
                return place
            if _HEAD.match(text):
                return None
        return None

    def of_function(self, name: str) -> Location | None:
        """The place of the first ``.loc`` of function ``name``: where the kernel starts."""
        inside = False
        for text in self._lines:
            if head := _HEAD.match(text):
                inside = head[1] == name
            elif inside and (place := self._place(text)):
                return place
        return None

    def _place(self, text: str) -> Location | None:
        found = _LOC.match(text)
        if found is None:
            return None
        file, line, column = (int(part) for part in found.groups())
        if line == 0 or file not in self._files:
            return None
        return Location(self._files[file], line, column)
