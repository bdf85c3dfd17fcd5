"""ptxas's figures, and what is said when a tool is missing."""

from __future__ import annotations

import pytest

import ptxtile
import ptxtile.language as T
from ptxtile.errors import CompileError
from ptxtile.inspect import machine_code
from ptxtile.inspect.subject import Subject
from ptxtile.inspect.views import View, show
from ptxtile.launch_record import KernelLaunch, LaunchRecord
from tests.gemm import kernels as gemm_kernels

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
    found, log = machine_code.resources(PTX, RECORD, "sm_80")
    figures = found["fill"]
    assert 2 <= figures.registers <= 32 and figures.ptx_isa == (8, 0) and log.advice == ()
    assert (figures.static_shared_bytes, figures.dynamic_shared_bytes, figures.threads) == (512, 1024, 128)
    assert (figures.local_bytes, figures.spill_stores, figures.spill_loads) == (0, 0, 0)
    assert figures.max_threads is None and figures.constant_bytes is None  # ptxas does not say


def test_a_kernel_that_ptxas_says_nothing_of() -> None:
    record = LaunchRecord("f", (), launches=(KernelLaunch("other", (1, 1, 1), (64, 1, 1), 8, ()),))
    with pytest.raises(CompileError, match="no register count of 'other'(.|\n)*fill"):
        machine_code.resources(PTX, record, "sm_80")


@ptxtile.jit
def spilling(A, B, rows=64):
    N = T.const("N")
    A: T.Tensor((N, 256), T.float32)
    B: T.Tensor((N, 256), T.float32)
    with T.Kernel(1, threads=32):
        tile = T.alloc_fragment((rows, 256), T.float32)
        T.copy(A[0, 0], tile)
        T.copy(tile, B[0, 0])
        T.copy(tile, A[0, 0])


def test_the_resources_of_a_kernel_object(monkeypatch) -> None:
    """Without a card they come from ptxas; 512 floats do not fit into 255 registers, 16 do."""
    monkeypatch.setattr("ptxtile.runtime.device.card_for", lambda target: None)
    figures = spilling.compile(N=64).resources["spilling_kernel"]
    assert figures.spill_stores and figures.spill_loads and figures.local_bytes >= 4 * (512 - 255)
    figures = spilling.compile(N=64, rows=2).resources["spilling_kernel"]
    assert (figures.spill_stores, figures.spill_loads, figures.threads) == (0, 0, 32) and figures.registers >= 16


def test_inspect_shows_the_advice() -> None:
    variant = spilling.compile(N=64).variant
    shown = show(View.RESOURCES, Subject(variant.tile_program, variant.target, variant.settings.options, {}))
    assert "kernel spilling_kernel (" + __file__ in shown and "local memory" in shown and "hint: " in shown
    variant = spilling.compile(N=64, rows=2).variant
    shown = show(View.RESOURCES, Subject(variant.tile_program, variant.target, variant.settings.options, {}))
    assert len(shown.splitlines()) == 2


@pytest.mark.parametrize("tile", [(128, 128), (128, 256)])
@pytest.mark.parametrize("stages", [1, 3])
def test_no_advice_on_products(tile, stages) -> None:
    """Rings, roles and wgmma as the assembler wants them: nothing serialised, no setmaxnreg ignored, no spill."""
    kernel = gemm_kernels.gemm.compile(
        M=512, N=512, K=256, block_M=tile[0], block_N=tile[1], num_stages=stages, threads=256, transpose_B=True
    )
    artifact = kernel.artifact
    assert artifact.target.name == "sm_90a" and "wgmma.mma_async" in kernel.ptx
    _, log = machine_code.resources(kernel.ptx, artifact.launch, "sm_90a")
    assert log.advice == ()


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
