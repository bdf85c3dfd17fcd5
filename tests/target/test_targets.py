"""The architecture tables: look-up, and the pairs of architecture and PTX ISA."""

from __future__ import annotations

import logging

import pytest

from ptxtile import target as targets
from ptxtile.errors import TargetError
from ptxtile.nvvm import llvm
from ptxtile.target import Feature
from ptxtile.target.ptx_isa import VERSIONS, check_pair, newest_of_driver
from tests import ptxas

EMPTY = ".version {}.{}\n.target {}\n.address_size 64\n.visible .entry kernel()\n{{\n\tret;\n}}\n"


def test_names() -> None:
    assert targets.names() == ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
    for name in targets.names():
        assert targets.get(name).name == name


@pytest.mark.parametrize("name, suggestion", [("sm90a", "sm_90a"), ("sm_120", "sm_120a"), ("SM_80", None), ("", None)])
def test_unknown_name(name: str, suggestion: str | None) -> None:
    with pytest.raises(TargetError) as raised:
        targets.get(name)
    assert "sm_80, sm_86" in str(raised.value) and repr(name) in str(raised.value)
    if suggestion is not None:
        assert f"did you mean {suggestion}" in str(raised.value)


# CUDA C++ Programming Guide, table «Technical Specifications per Compute Capability»: KiB of shared memory of a block,
# resident threads and blocks of a multiprocessor
FIGURES = {
    "sm_80": (163, 2048, 32),
    "sm_86": (99, 1536, 16),
    "sm_89": (99, 1536, 24),
    "sm_90": (227, 2048, 32),
    "sm_90a": (227, 2048, 32),
    "sm_100a": (227, 2048, 32),
    "sm_120a": (99, 1536, 24),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name: str) -> None:
    target = targets.get(name)
    assert (target.max_shared_bytes // 1024, target.max_threads_per_sm, target.max_blocks_per_sm) == FIGURES[name]
    assert target.registers_per_sm == 65536 and target.max_threads == 1024 and target.max_registers_per_thread == 255


@pytest.mark.parametrize("name", targets.names())
def test_shared_memory_limit_is_the_assemblers(name: str) -> None:
    """ptxas knows the limit: for the ``a`` architectures that of a block, for the others that of static memory."""
    target = targets.get(name)
    text = EMPTY.format(*target.minimum_ptx_isa, name)
    limit = target.max_shared_bytes if target.architecture_specific else target.static_shared_bytes
    for size, accepted in ((limit, True), (limit + 1, False)):
        ptx = text.replace(
            "\tret;",
            f"\t.shared .align 4 .b8 s[{size}];\n\t.reg .b32 r;\n\tmov.u32 r, s;\n\tst.shared.b32 [r], r;\n\tret;",
        )
        if accepted:
            ptxas.assemble(ptx, name)
        else:
            with pytest.raises(ptxas.PtxasError, match="shared"):
                ptxas.assemble(ptx, name)


@pytest.mark.parametrize("name", targets.names())
def test_minimum_isa_is_the_assemblers(name: str) -> None:
    minimum = targets.get(name).minimum_ptx_isa
    ptxas.assemble(EMPTY.format(*minimum, name), name)
    older = [isa for isa in VERSIONS if isa < minimum]
    if older:
        with pytest.raises(ptxas.PtxasError):
            ptxas.assemble(EMPTY.format(*older[-1], name), name)


@pytest.mark.parametrize("name", targets.names())
def test_llvm_takes_every_allowed_pair(name: str) -> None:
    target = targets.get(name)
    text = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @kernel() {\n  ret void\n}\n'
    for isa in VERSIONS:
        if isa < target.minimum_ptx_isa:
            with pytest.raises(TargetError, match="does not know"):
                check_pair(target, isa)
            continue
        check_pair(target, isa)
        ptx, _ = llvm.compile_text(text, target, isa, inline=False)
        assert f".version {isa[0]}.{isa[1]}\n" in ptx and f".target {name}\n" in ptx


@pytest.mark.parametrize("isa", [(6, 0), (8, 9), (99, 0), "8.0"])
def test_unknown_isa(isa: object) -> None:
    with pytest.raises(TargetError, match="unknown PTX ISA"):
        check_pair(targets.get("sm_90a"), isa)  # type: ignore[arg-type]


def test_features() -> None:
    with_tma = {name for name in targets.names() if targets.get(name).has(Feature.TMA)}
    assert with_tma == {"sm_90", "sm_90a", "sm_100a", "sm_120a"}
    assert {name for name in targets.names() if targets.get(name).has(Feature.WGMMA)} == {"sm_90a"}
    assert {name for name in targets.names() if targets.get(name).has(Feature.TCGEN05)} == {"sm_100a"}
    with_registers = {name for name in targets.names() if targets.get(name).has(Feature.SETMAXNREG)}
    assert with_registers == {"sm_90a", "sm_100a", "sm_120a"}
    assert targets.get("sm_120a").isa_of(Feature.TMA) == (8, 7)
    with pytest.raises(TargetError, match="sm_80 has no TMA"):
        targets.get("sm_80").isa_of(Feature.TMA)


@pytest.mark.parametrize(
    "capability, name, shared",
    [
        ((8, 0), "sm_80", 163), ((8, 6), "sm_86", 99), ((8, 9), "sm_89", 99), ((9, 0), "sm_90a", 227),
        ((10, 0), "sm_100a", 227), ((12, 0), "sm_120a", 99),
    ],
)  # fmt: skip
def test_cards_of_the_table(capability: tuple[int, int], name: str, shared: int) -> None:
    target = targets.from_compute_capability(*capability)
    assert target == targets.get(name) and target.max_shared_bytes == shared * 1024


@pytest.mark.parametrize(
    "capability, name, shared",
    [
        ((8, 7), "sm_86", 99),
        ((10, 3), "sm_90", 227),
        ((12, 1), "sm_90", 99),
        ((11, 0), "sm_90", 227),
        ((15, 0), "sm_90", 99),
    ],
)
def test_other_cards(capability: tuple[int, int], name: str, shared: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ptxtile"):
        target = targets.from_compute_capability(*capability)
    assert target.name == name and target.max_shared_bytes == shared * 1024
    assert f"{capability[0]}.{capability[1]}" in caplog.text and name in caplog.text


def test_old_card() -> None:
    with pytest.raises(TargetError, match="too old"):
        targets.from_compute_capability(7, 5)


def test_drivers() -> None:
    assert newest_of_driver((12, 6)) == (8, 5)
    assert newest_of_driver((13, 0)) == (9, 0)
    assert newest_of_driver((14, 2)) == (9, 0)
    with pytest.raises(TargetError, match="too old"):
        newest_of_driver((10, 2))
