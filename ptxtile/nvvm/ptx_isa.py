"""The PTX ISA version to emit: the lowest that knows the architecture and every instruction used.

A driver refuses PTX newer than itself, so a lower version runs in more places. LLVM chooses its own instructions to
fit the version that it is given, so only inline PTX can raise the minimum.
"""

from __future__ import annotations

from ptxtile.errors import TargetError
from ptxtile.nvvm.module import ModuleWriter
from ptxtile.target.ptx_isa import check_pair, format_isa


def choose(module: ModuleWriter, asked: tuple[int, int] | None) -> tuple[int, int]:
    """The lowest sufficient version, or ``asked`` when it suffices. TargetError names what needs more."""
    reason, lowest = max(module.isa_reasons.items(), key=lambda item: item[1])
    if asked is None:
        check_pair(module.target, lowest)
        return lowest
    check_pair(module.target, asked)
    if asked < lowest:
        raise TargetError(
            f"PTX ISA {format_isa(asked)} is too old for this program",
            expected=f"{format_isa(lowest)} or newer, for {reason}",
            got=format_isa(asked),
        )
    return asked
