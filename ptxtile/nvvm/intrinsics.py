"""The only LLVM intrinsics that may be called: name → signature.

NVPTX has no code for many others (llvm.sin, llvm.exp, llvm.pow…), and LLVM then ends the process instead of raising an
error. Each entry here is compiled for every architecture by a test.
"""

from __future__ import annotations

_FLOATS = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}
_INTEGERS = ("i8", "i16", "i32", "i64")


def _table() -> dict[str, tuple[str, tuple[str, ...]]]:
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for suffix, kind in _FLOATS.items():
        for name in ("minimum", "maximum"):  # NaN propagates and -0 < +0 (LLVM language reference)
            table[f"llvm.{name}.{suffix}"] = (kind, (kind, kind))
        table[f"llvm.fabs.{suffix}"] = (kind, (kind,))
        table[f"llvm.fma.{suffix}"] = (kind, (kind, kind, kind))
        for name in ("floor", "ceil", "trunc", "roundeven"):
            table[f"llvm.{name}.{suffix}"] = (kind, (kind,))
    for suffix in ("f32", "f64"):  # sqrt.rn; narrower types go through f32
        table[f"llvm.sqrt.{suffix}"] = (_FLOATS[suffix], (_FLOATS[suffix],))
    for kind in _INTEGERS:
        for name in ("smin", "smax", "umin", "umax"):
            table[f"llvm.{name}.{kind}"] = (kind, (kind, kind))
        table[f"llvm.abs.{kind}"] = (kind, (kind, "i1"))
        table[f"llvm.ctpop.{kind}"] = (kind, (kind,))
        table[f"llvm.ctlz.{kind}"] = (kind, (kind, "i1"))
    for source, letter in (("float", "f"), ("double", "d")):  # cvt.rzi: saturates (PTX ISA, «cvt»)
        for target, letters in (("i32", "i"), ("i32", "ui"), ("i64", "ll"), ("i64", "ull")):
            table[f"llvm.nvvm.{letter}2{letters}.rz"] = (target, (source,))
    for register in ("tid.x", "ctaid.x", "ctaid.y", "ctaid.z"):
        table[f"llvm.nvvm.read.ptx.sreg.{register}"] = ("i32", ())
    return table


INTRINSICS = _table()
