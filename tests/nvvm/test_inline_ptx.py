"""The table of inline PTX: each template assembles on every architecture that it claims, with the lowest PTX ISA, and
LLVM's full optimisation neither duplicates nor drops one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxtile import target as targets
from ptxtile.nvvm import inline_ptx, llvm
from ptxtile.nvvm.function import FunctionWriter
from ptxtile.nvvm.inline_ptx import TABLE, InlinePtx
from ptxtile.nvvm.module import ModuleWriter
from ptxtile.nvvm.ptx_isa import choose
from ptxtile.target import Target
from ptxtile.target.ptx_isa import VERSIONS
from tests import ptxas

CONSTANTS = {
    "set_max_registers_inc": ["240"],
    "set_max_registers_dec": ["24"],
    "bar_sync": ["3", "64"],
    "bar_arrive": ["3", "64"],
    "bar_sync_at": ["64"],
    "bar_arrive_at": ["64"],
    **{f"bar_reduce_{mode}": ["3", "64"] for mode in ("popc", "and", "or")},
}
OPCODES = {"grid_sync": "atom.add.release.gpu.u32"}
"""Of templates whose first instruction does not tell them from the module's own."""


def supporting(template: InlinePtx) -> list[Target]:
    found = [targets.get(name) for name in targets.names()]
    return [target for target in found if template.feature is None or target.has(template.feature)]


def operands(template: InlinePtx) -> list[str]:
    kinds = [c for c in template.constraints.split(",") if c[0] not in "=~"] if template.constraints else []
    constants = iter(CONSTANTS.get(template.name, ["1", "1"]))
    return [next(constants) if kind == "n" else f"%{kind}" for kind in kinds]


def branching_module(template: InlinePtx, target: Target, *, attributes: str | None = None) -> ModuleWriter:
    """The template between two branches on one condition: an invitation to copy it into both arms."""
    module = ModuleWriter(target)
    writer = FunctionWriter(module, "kernel")
    thread = writer.call_intrinsic("llvm.nvvm.read.ptx.sreg.tid.x")
    writer.line("%r = add i32 %a0, 16")
    writer.line("%h = trunc i32 %a0 to i16")
    writer.line("%l = zext i32 %a0 to i64")
    writer.line("%f = bitcast i32 %a0 to float")
    condition = writer.register(f"icmp ult i32 {thread}, 16")
    writer.branch(condition, "first", "join")
    writer.block("first")
    writer.line("store volatile i32 1, ptr addrspace(1) %a1, align 8")
    writer.block("join")
    result = inline_ptx.call(writer, template.name, *operands(template))
    writer.branch(condition, "second", "end")
    writer.block("second")
    writer.line("store volatile i32 2, ptr addrspace(1) %a1, align 8")
    writer.block("end")
    if result:
        writer.line(f"store volatile {template.result} {result}, ptr addrspace(1) %a1, align 4")
    writer.finish("ret void")
    group = module.attributes('convergent nounwind "nvvm.maxntid"="256,1,1" "nvvm.minctasm"="1"')
    body = writer.body()
    if attributes is not None:
        body = re.sub(r"(asm .*) #\d", rf"\1 {attributes}", body)
    head = f"define ptx_kernel void @kernel(i32 %a0, ptr addrspace(1) %a1) {group}"
    module.functions.append(f"{head} {{\n{body}\n}}\n")
    return module


def compiled_at_full_optimisation(module: ModuleWriter, isa: tuple[int, int]) -> str:
    import llvmlite.binding as llvm_binding

    llvm.initialize()
    machine = llvm_binding.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu=module.target.name, features=f"+ptx{isa[0]}{isa[1]}", opt=3
    )
    parsed = llvm_binding.parse_assembly(module.text())
    parsed.verify()
    builder = llvm_binding.create_pass_builder(machine, llvm_binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    return machine.emit_assembly(parsed)


def opcode(template: InlinePtx) -> str:
    """The instruction's name in the text, which no other instruction of the module has."""
    if template.name in OPCODES:
        return OPCODES[template.name]
    return re.findall(r"[a-z_]+\.[a-z0-9_.:]+|^[a-z]+;", template.text.replace(".reg .pred", ""))[0]


@pytest.mark.parametrize("name", TABLE)
def test_once_and_only_once(name: str) -> None:
    template = TABLE[name]
    for target in supporting(template):
        module = branching_module(template, target)
        isa = choose(module, None)
        ptx = compiled_at_full_optimisation(module, isa)
        assert ptx.count(opcode(template)) == 1, ptx
        log = ptxas.assemble(ptx, target.name)
        if name.startswith("set_max"):
            assert not any(code in log for code in ptxas.IGNORED_SETMAXNREG), log


def test_the_test_above_can_fail() -> None:
    """Without ``convergent`` LLVM does copy a barrier into both arms."""
    module = branching_module(TABLE["bar_sync"], targets.get("sm_80"), attributes="#2")
    text = module.text().replace("attributes #3 = { convergent", "attributes #3 = {")
    module.text = lambda: text  # type: ignore[method-assign]
    assert compiled_at_full_optimisation(module, (7, 0)).count("bar.sync") == 2


@pytest.mark.parametrize("name", TABLE)
def test_minimum_isa_is_the_lowest(name: str) -> None:
    """One version below the claimed one, the assembler refuses the text, or the architecture itself is unknown."""
    template = TABLE[name]
    target = supporting(template)[0]
    isa = choose(branching_module(template, target), None)
    if isa == target.minimum_ptx_isa:
        return
    below = VERSIONS[VERSIONS.index(isa) - 1]
    module = branching_module(template, target)
    ptx = compiled_at_full_optimisation(module, below)
    with pytest.raises(ptxas.PtxasError):
        ptxas.assemble(ptx, target.name)


def test_table_is_complete() -> None:
    for name, template in TABLE.items():
        assert template.name == name and template.section
        assert template.pure != template.convergent, f"{name}: what only computes is not convergent, the rest is"
        assert ("~{memory}" in template.constraints) != template.pure
        listed = [c for c in template.constraints.split(",") if c and not c.startswith("~")]
        assert len(listed) == len(template.operands) + (template.result != "void")
        assert set(re.findall(r"\$(\d+)", template.text)) == {str(i) for i in range(len(listed))}
    assert len({template.text for template in TABLE.values()}) == len(TABLE)


def test_a_template_of_a_newer_feature_raises_the_isa() -> None:
    template = next(t for t in TABLE.values() if t.name == "tma_load_2d_cta")
    assert choose(branching_module(template, targets.get("sm_90a")), None) == (8, 6)
    older = replace(template, feature=TABLE["tma_load_2d_cluster"].feature)
    assert older.feature is not None and targets.get("sm_90a").isa_of(older.feature) == (8, 0)
