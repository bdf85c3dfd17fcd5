"""Debug metadata that makes LLVM write ``.file`` and ``.loc`` lines pointing at the user's Python source.

The emission kind is DebugDirectivesOnly: LineTablesOnly would turn on ``.target …, debug`` and DWARF sections, and with
them the assembler's unoptimised mode.
"""

from __future__ import annotations

import os

from ptxtile.errors import Location


def _quoted(text: str) -> str:
    """A metadata string: everything outside printable ASCII by its byte values. Quotes, backslashes and control
    characters become ``_``, since LLVM writes them into ``.file`` in a way that ptxas cannot read."""
    kept = (b if b >= 32 and b not in (34, 92, 127) else ord("_") for b in text.encode(errors="replace"))
    return '"' + "".join(chr(b) if b < 127 else f"\\{b:02X}" for b in kept) + '"'


class LineTable:
    """The metadata nodes of a module. Node 0 is the empty node, which ``!invariant.load`` uses too."""

    def __init__(self) -> None:
        self.nodes: list[str] = ["!{}"]
        self._files: dict[str, int] = {}
        self._places: dict[tuple[int, int, int], int] = {}
        self._scopes: dict[tuple[int, int], int] = {}
        self._unit: int | None = None

    def _node(self, text: str) -> int:
        self.nodes.append(text)
        return len(self.nodes) - 1

    def _file(self, path: str) -> int:
        if path not in self._files:
            folder, name = os.path.split(path)
            self._files[path] = self._node(f"!DIFile(filename: {_quoted(name)}, directory: {_quoted(folder)})")
        return self._files[path]

    def subprogram(self, name: str, location: Location) -> int:
        """The node of a function that starts at ``location``."""
        file = self._file(location.file)
        if self._unit is None:
            self._unit = self._node(
                f'distinct !DICompileUnit(language: DW_LANG_C, file: !{file}, producer: "ptxtile", isOptimized: true, '
                "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
            )
        kind = self._node("!DISubroutineType(types: !0)")
        return self._node(
            f"distinct !DISubprogram(name: {_quoted(name)}, scope: !{file}, file: !{file}, line: {location.line}, "
            f"type: !{kind}, scopeLine: {location.line}, spFlags: DISPFlagDefinition, unit: !{self._unit})"
        )

    def suffix(self, subprogram: int, subprogram_file: str, location: Location) -> str:
        """What an instruction at ``location`` ends with. A macro's line in another file gets a scope of that file."""
        scope = subprogram
        if location.file != subprogram_file:
            file = self._file(location.file)
            if (subprogram, file) not in self._scopes:
                text = f"!DILexicalBlockFile(scope: !{subprogram}, file: !{file}, discriminator: 0)"
                self._scopes[subprogram, file] = self._node(text)
            scope = self._scopes[subprogram, file]
        key = (scope, location.line, location.column)
        if key not in self._places:
            self._places[key] = self._node(
                f"!DILocation(line: {location.line}, column: {location.column}, scope: !{scope})"
            )
        return f", !dbg !{self._places[key]}"

    def text(self) -> str:
        lines = []
        if self._unit is not None:
            flag = self._node('!{i32 2, !"Debug Info Version", i32 3}')
            lines = [f"!llvm.dbg.cu = !{{!{self._unit}}}", f"!llvm.module.flags = !{{!{flag}}}"]
        return "\n".join(lines + [f"!{number} = {node}" for number, node in enumerate(self.nodes)])
