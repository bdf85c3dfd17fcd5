"""LLVM IR text → machine code that needs nothing from a linker, and where its entry is in it.

The only file of this package that needs llvmlite.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ptxtile.errors import CompileError
from ptxtile.records import record

_SYMBOL_TABLE, _RELOCATIONS, _RELOCATIONS_WITH_ADDENDS = 2, 9, 4
"""Types of sections (System V ABI, «Sections»)."""


@record
class MachineCode:
    """``text``: the bytes of one section. ``entry``: where the function starts in it, bytes."""

    text: bytes
    entry: int


def compile_text(text: str, entry: str, triple: str = "") -> MachineCode:
    """Machine code for ``triple``, without one for this machine (any of its architecture). CompileError when the code
    would need a linker."""
    return from_elf(_object_file(text, triple), entry)


def _object_file(text: str, triple: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2)))
    return machine.emit_object(module)


def from_elf(content: bytes, entry: str) -> MachineCode:
    """The section ``.text`` of an object file (ELF64, little endian). CompileError when it has relocations, or data."""
    sections = list(_sections(content))
    names = sections[struct.unpack_from("<H", content, 62)[0]]
    text = None
    for index, (name_at, kind, flags, offset, size, _, about) in enumerate(sections):
        name = _name(content, names[3] + name_at)
        relocates = kind in (_RELOCATIONS, _RELOCATIONS_WITH_ADDENDS)
        if relocates and _name(content, names[3] + sections[about][0]) == ".text":
            raise CompileError("the native launcher would need a linker", got=f"{size} bytes of relocations")
        if name == ".text":
            text = (index, content[offset : offset + size])
        elif flags & 2 and size and not name.startswith((".eh_frame", ".note")):  # memory of the process (SHF_ALLOC)
            raise CompileError("the native launcher would need a linker", got=f"{size} bytes of {name}")
    assert text is not None
    return MachineCode(text[1], _value_of(content, sections, entry))


def _sections(content: bytes) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """(where its name is, type, flags, offset, size, link, info) of each."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise CompileError("the native launcher needs a system with ELF files", got=content[:6].hex())
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    for index in range(count):
        fields = struct.unpack_from("<IIQQQQII", content, start + index * size)
        name, kind, flags, _, offset, length, link, about = fields
        yield name, kind, flags, offset, length, link, about


def _value_of(content: bytes, sections: list[tuple[int, int, int, int, int, int, int]], name: str) -> int:
    for _, kind, _, offset, size, link, _ in sections:
        if kind == _SYMBOL_TABLE:
            for at in range(offset, offset + size, 24):
                name_at, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", content, at)
                if _name(content, sections[link][3] + name_at) == name:
                    return value
    raise CompileError("the native launcher has no entry", expected=name)


def _name(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()
