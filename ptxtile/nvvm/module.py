"""Writing one LLVM module: what the functions of it share, and the text around them."""

from __future__ import annotations

import re
from collections import Counter

from ptxtile.errors import VerificationError
from ptxtile.ir.program import Function
from ptxtile.nvvm.inline_ptx import InlinePtx
from ptxtile.nvvm.intrinsics import INTRINSICS
from ptxtile.nvvm.line_info import LineTable
from ptxtile.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""LLVM's own for the triple (NVPTXTargetMachine.cpp); without it LLVM takes 8-byte values to be aligned to 4 only."""

SHARED_SYMBOL = "ptxtile_shared"
SHARED_ALIGNMENT = (
    1024  # the 128-byte swizzle repeats every 1024 bytes of absolute address (PTX ISA, «Swizzling modes»)
)

_IDENTIFIER = re.compile(r"[a-zA-Z][a-zA-Z0-9_$]*|[_$%][a-zA-Z0-9_$]+")  # PTX ISA, «Identifiers»

_ATTRIBUTES = (
    "attributes #0 = { convergent nounwind }",  # inline PTX that warps or CTAs run together
    "attributes #1 = { nounwind memory(none) }",  # inline PTX that only computes
    "attributes #2 = { nounwind }",
    "attributes #3 = { nounwind willreturn memory(inaccessiblemem: readwrite) }",  # moves of named registers
)


def check_identifier(name: str) -> None:
    """VerificationError unless ``name`` is a PTX identifier that does not clash with our own symbols."""
    if not _IDENTIFIER.fullmatch(name) or name in (SHARED_SYMBOL, "vprintf"):
        raise VerificationError(
            f"{name!r} cannot be the name of a kernel", expected="letters, digits, _ and $, not starting with a digit"
        )


class ModuleWriter:
    """Collects declarations, globals, attribute groups, metadata and functions, and what PTX ISA they need.

    ``calls``: how often (caller, device function) was written.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines = LineTable()
        self.functions: list[str] = []
        self.device_functions: dict[str, Function] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.uses_shared = False
        self.isa_reasons: dict[str, tuple[int, int]] = {target.name: target.minimum_ptx_isa}
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._structs: dict[tuple[str, ...], str] = {}
        self._attributes: list[str] = list(_ATTRIBUTES)

    def intrinsic(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Declares an intrinsic of the allow-list; gives its result type and operand types."""
        if name not in INTRINSICS:
            raise VerificationError(f"{name} is not among the LLVM intrinsics that NVPTX is known to have")
        result, kinds = INTRINSICS[name]
        self._declarations[name] = f"declare {result} @{name}({', '.join(kinds)})"
        return result, kinds

    def declare(self, name: str, text: str) -> None:
        self._declarations[name] = text

    def require_template(self, template: InlinePtx) -> None:
        isa = template.isa
        if template.feature is not None:
            isa = max(isa, self.target.isa_of(template.feature))
        self.isa_reasons[template.name] = isa

    def struct(self, kinds: tuple[str, ...]) -> str:
        """The name of the structure type of those fields: a literal one would be repeated at each use."""
        return self._structs.setdefault(kinds, f"%registers{len(self._structs)}")

    def shared_symbol(self) -> str:
        self.uses_shared = True
        return "@" + SHARED_SYMBOL

    def string(self, text: bytes) -> str:
        """A constant with a terminating zero, in global memory; gives its symbol."""
        data = text + b"\0"
        name = f"@.text{len(self._globals)}"
        body = "".join(f"\\{byte:02X}" for byte in data)
        self._globals.append(f'{name} = private unnamed_addr addrspace(1) constant [{len(data)} x i8] c"{body}"')
        return name

    def attributes(self, text: str) -> str:
        """An attribute group with that content; gives its name, such as ``#3``."""
        self._attributes.append(f"attributes #{len(self._attributes)} = {{ {text} }}")
        return f"#{len(self._attributes) - 1}"

    def text(self) -> str:
        parts = [f'target datalayout = "{DATA_LAYOUT}"', f'target triple = "{TRIPLE}"', ""]
        parts += [f"{name} = type {{ {', '.join(kinds)} }}" for kinds, name in self._structs.items()]
        if self.uses_shared:
            parts.append(f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align {SHARED_ALIGNMENT}")
        parts += [*self._globals, *self._declarations.values(), ""]
        parts += [*self.functions, *self._attributes, self.lines.text(), ""]
        return "\n".join(parts)
