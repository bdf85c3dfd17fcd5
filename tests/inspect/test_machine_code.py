"""ptxas's figures, and what is said when a tool is missing."""

from __future__ import annotations

import pytest

from ptxtile.errors import CompileError
from ptxtile.inspect import machine_code
from ptxtile.launch_record import KernelLaunch, LaunchRecord

PTX = """\
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry fill(.param .u64 out) {
    .shared .align 4 .b8 table[512];
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    st.shared.u32 [table], %r1;
    ld.shared.u32 %r2, [table+4];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""
RECORD = LaunchRecord("fill", (), launches=(KernelLaunch("fill", (1, 1, 1), (32, 4, 1), 1024, ()),))


def test_figures_from_the_real_ptxas() -> None:
    (figures,) = machine_code.resources(PTX, RECORD, "sm_80")
    assert figures.kernel == "fill" and 2 <= figures.registers <= 32
    assert (figures.static_shared_bytes, figures.dynamic_shared_bytes, figures.threads) == (512, 1024, 128)
    assert (figures.local_bytes, figures.spill_stores, figures.spill_loads) == (0, 0, 0)


SAID = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_several_kernels() -> None:
    launches = tuple(KernelLaunch(name, (1, 1, 1), (64, 1, 1), 8, ()) for name in ("one", "two"))
    one, two = machine_code.parse_figures(SAID, LaunchRecord("f", (), launches=launches))
    assert one == machine_code.Figures("one", 168, 24, 20, 28, 1024, 8, 64)
    assert two == machine_code.Figures("two", 12, 0, 0, 0, 0, 8, 64)


def test_ptx_that_ptxas_refuses() -> None:
    with pytest.raises(CompileError, match="ptxas refused the PTX for sm_80(.|\n)*no_such_instruction"):
        machine_code.assemble(PTX.replace("ret;", "no_such_instruction; ret;"), "sm_80")


def test_without_tools_and_card(monkeypatch) -> None:
    monkeypatch.setattr(machine_code, "find_tool", lambda name: None)
    with pytest.raises(machine_code.ToolMissing, match="neither nvdisasm nor cuobjdump"):
        machine_code.sass(PTX, "sm_80")
    with pytest.raises(machine_code.ToolMissing, match="ptxas was not found"):
        machine_code.assemble(PTX, "sm_80")


@pytest.mark.parametrize("name", ["nvdisasm", "cuobjdump"])
def test_a_disassembler_gets_the_cubin(monkeypatch, tmp_path, name) -> None:
    tool = tmp_path / name
    tool.write_text('#!/bin/sh\nfor file; do :; done\necho "$1"; head -c 4 "$file" | tail -c 3\n')
    tool.chmod(0o755)
    real = machine_code.find_tool
    monkeypatch.setattr(machine_code, "find_tool", lambda wanted: str(tool) if wanted == name else
                        None if wanted in ("nvdisasm", "cuobjdump") else real(wanted))  # fmt: skip
    shown = machine_code.sass(PTX, "sm_80")
    assert shown == ("-c" if name == "nvdisasm" else "-sass") + "\nELF"
