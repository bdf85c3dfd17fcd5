"""One inline-PTX text with its operands, as LLVM's inline assembly takes it."""

from __future__ import annotations

from ptxtile.records import record
from ptxtile.target import Feature


@record
class InlinePtx:
    """``text`` with operands $0, $1…; ``constraints`` of LLVM, one for the result (if any) and each operand;
    ``operands`` are LLVM types; ``isa``: the PTX ISA version of this spelling, where it is newer than the feature
    itself. ``results``: types of several results, in place of ``result``. ``memoryless``: it has effects, but memory
    accesses may be moved across it."""

    name: str
    text: str
    constraints: str
    operands: tuple[str, ...]
    section: str
    result: str = "void"
    convergent: bool = False
    pure: bool = False
    feature: Feature | None = None
    isa: tuple[int, int] = (7, 0)
    results: tuple[str, ...] = ()
    memoryless: bool = False


def operation(
    name: str,
    text: str,
    constraints: str,
    operands: tuple[str, ...],
    section: str,
    feature: Feature | None,
    *,
    isa: tuple[int, int] = (7, 0),
    convergent: bool = True,
    result: str = "void",
    results: tuple[str, ...] = (),
) -> InlinePtx:
    """An operation with effects: the compiler must keep memory accesses on their side of it."""
    clobber = "~{memory}" if not constraints else constraints + ",~{memory}"
    return InlinePtx(name, text, clobber, operands, section, result, convergent, feature=feature, isa=isa,
                     results=results)  # fmt: skip


def pure(name: str, text: str, constraints: str, operands: tuple[str, ...], section: str, **more) -> InlinePtx:
    return InlinePtx(name, text, constraints, operands, section, pure=True, **more)
