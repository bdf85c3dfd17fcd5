"""Writing an exported kernel: PTX, LLVM IR, machine code where somebody here can make it, description and header."""

from __future__ import annotations

import json
from pathlib import Path

from ptxtile.compiler import Artifact, emit_ptx
from ptxtile.errors import ArgumentError, CompileError, DriverError, TargetError
from ptxtile.export.c_names import identifier
from ptxtile.export.description import describe
from ptxtile.export.header import header
from ptxtile.records import record


@record
class Exported:
    """The files of one kernel. ``cubin`` is None where it was left out; ``cubin_reason`` says why, or who made it."""

    ptx: Path
    llvm_ir: Path
    description: Path
    header: Path
    cubin: Path | None
    cubin_reason: str

    @property
    def files(self) -> tuple[Path, ...]:
        made = (self.ptx, self.cubin, self.llvm_ir, self.description, self.header)
        return tuple(path for path in made if path is not None)


def export(artifact: Artifact, directory: str | Path, name: str | None = None) -> Exported:
    """Write ``artifact`` into ``directory``, made where it is not there, as ``name``.ptx, .ll, .cubin, .json and .h.

    ``name``: the program's own unless given; also what the functions of the header start with. The cubin comes from the
    driver of a card that the kernel is for, else from ptxas where it is installed, else it is left out.
    """
    compiled = artifact if artifact.ptx is not None else emit_ptx(artifact)
    assert compiled.ptx is not None and compiled.llvm_ir is not None
    name = name or compiled.launch.name
    if identifier(name) != name or not name.isidentifier():
        raise ArgumentError("the name of an exported kernel", expected="a name in C", got=repr(name))
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    cubin, reason = _machine_code(compiled.ptx, compiled.target.name)
    files: dict[str, str | None] = {
        "ptx": f"{name}.ptx", "llvm_ir": f"{name}.ll", "header": f"{name}.h",
        "cubin": f"{name}.cubin" if cubin is not None else None,
    }  # fmt: skip
    description = {**describe(compiled, files, reason), "name": name}
    (folder / f"{name}.ptx").write_text(compiled.ptx)
    (folder / f"{name}.ll").write_text(compiled.llvm_ir)
    (folder / f"{name}.json").write_text(json.dumps(description, indent=2) + "\n")
    (folder / f"{name}.h").write_text(header(description))
    binary = folder / f"{name}.cubin"
    binary.unlink(missing_ok=True)  # of an earlier export
    if cubin is not None:
        binary.write_bytes(cubin)
    return Exported(
        folder / f"{name}.ptx", folder / f"{name}.ll", folder / f"{name}.json", folder / f"{name}.h",
        binary if cubin is not None else None, reason,
    )  # fmt: skip


def _machine_code(ptx: str, target_name: str) -> tuple[bytes | None, str]:
    """The cubin and who made it; None and the reason when nobody here can."""
    from ptxtile.inspect.machine_code import assemble, find_tool
    from ptxtile.runtime import context, module

    try:
        with context.current(0) as driver:
            made = module.to_cubin(driver, 0, ptx)
            return made, f"made by the driver for compute capability {_capability(driver.compute_capability(0))}"
    except (DriverError, TargetError, CompileError) as error:
        reason = error.message
    if find_tool("ptxas") is None:
        return None, f"left out: {reason}; and ptxas was not found"
    try:
        return assemble(ptx, target_name)[0], f"made by ptxas for {target_name}"
    except CompileError as error:
        return None, f"left out: {error.message}"


def _capability(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
