"""A program with every tile-level construct, lowered: verified and read back after each pass."""

from __future__ import annotations

import pytest

from ptxtile import target
from ptxtile.compiler import lower_program
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.verifier import STAGES, verify
from tests.ir.sample_programs import tile_program


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_every_pass_leaves_a_legal_program_that_reads_back(architecture):
    stages = []

    def observe(name, program):
        verify(program)
        assert parse_program(print_program(program)) == program, f"after {name}"
        stages.append(program.stage)

    lower_program(tile_program(), target.get(architecture), observe=observe)
    order = list(STAGES)
    assert stages == sorted(stages, key=order.index), "a program never goes back to an earlier stage"
    assert set(stages) == set(STAGES)
