"""The pipeline as a whole: golden IR after each pass, invariants between passes, the order table."""

from __future__ import annotations

import pytest
import torch

from ptxtile import nvvm, sim, target
from ptxtile.compiler import lower_program
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.verifier import verify
from ptxtile.lower.options import Options
from ptxtile.lower.pipeline import ORDER, PASSES, check_order
from tests.lower.tile_programs import add_program
from tests.ptxas import assemble

FORMS = {
    "sm_80": ("sm_80", Options()),
    "sm_90a": ("sm_90a", Options()),
    "sm_90a_roles": ("sm_90a", Options(specialize_warps=True)),
}


def test_the_order_table_names_real_passes_and_is_enforced():
    names = [entry.name for entry in PASSES]
    assert len(set(names)) == len(names)
    assert {name for earlier, later, _ in ORDER for name in (earlier, later)} <= set(names)
    with pytest.raises(AssertionError, match="must run before"):
        check_order(tuple(reversed(PASSES)))


@pytest.mark.parametrize("form", FORMS)
def test_golden_ir_after_each_pass(form: str, golden):
    """One file for each form: the IR after every pass that changes it."""
    arch, options = FORMS[form]
    parts: list[str] = []
    last = [""]

    def observe(name, program):
        text = (
            print_program(program).split("\nLaunchRecord(")[0] if name != "complete_launch" else print_program(program)
        )
        if text != last[0]:
            parts.append(f"# ---- after {name}\n{text}")
            last[0] = text

    lower_program(add_program(128, 128, through_shared=True), target.get(arch), options, observe)
    golden(f"passes/add_{form}.ir", "\n".join(parts))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(128, 128), (100, 104), (33, 31), (1, 1)])
def test_every_pass_keeps_the_invariants_and_prints_what_it_parses(form: str, size: tuple[int, int]):
    arch, options = FORMS[form]

    def observe(name, program):
        verify(program)
        assert parse_program(print_program(program)) == program, f"after {name}"

    lower_program(add_program(*size), target.get(arch), options, observe)


@pytest.mark.parametrize("arch", target.names())
@pytest.mark.parametrize("roles", ["auto", True])
def test_every_target_assembles_and_the_simulator_agrees_with_torch(arch: str, roles):
    lowered, _ = lower_program(add_program(100, 104), target.get(arch), Options(specialize_warps=roles))
    log = assemble(nvvm.emit(lowered, target.get(arch)).ptx, arch)
    assert "setmaxnreg" not in log
    a, b = torch.randn(2, 100, 104).unbind()
    c = torch.full((100, 104), float("nan"))
    sim.run(lowered, {"A": a, "B": b, "C": c}, {})
    assert torch.equal(c, a + b)
