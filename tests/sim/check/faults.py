"""Pairs of programs in IR text: one with a fault, and the nearest one without.

One text makes both. A line that ends with ``# wrong`` is in the wrong program alone, one with ``# right`` in the right
one alone; ``# later`` and ``# earlier`` mark the lines that the report on the wrong program has to lead to.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from textwrap import dedent, indent

import numpy as np
import torch

from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Program, TensorParameter
from ptxtile.ir.verifier import verify
from ptxtile.sim.check import Finding, Report
from ptxtile.sim.check.run import check
from tests.conformance.cases import filled, with_launch

SEEDS = range(4)
_MARKS = re.compile(r"#\s*([a-z, ]+)$")


@dataclass(frozen=True)
class Pair:
    """``body``: of the kernel, with marks; ``tensors``: declarations, one a line; the rest is the kernel's.

    ``rule`` and ``says`` (a pattern in the message) are what the report must have. Where one fault has several faces,
    a schedule may show those of the rules ``also``, beside it or instead of it. ``one_line``: the finding has one of
    the marked lines only."""

    rule: str
    says: str
    body: str
    tensors: str = ""
    threads: int = 64
    shared: int = 4096
    grid: int = 1
    cluster: int = 1
    also: tuple[str, ...] = ()
    one_line: bool = False
    strict: bool = False
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def text(self) -> str:
        cluster = f", cluster=({self.cluster}, 1, 1)" if self.cluster > 1 else ""
        options = f"grid=({self.grid}, 1, 1), threads={self.threads}{cluster}, shared_bytes={self.shared}"
        return (
            f'ptxtile_ir(1)\nprogram("pair", stage="gpu")\n{dedent(self.tensors).strip()}\n\n@kernel({options})\n'
            f"def kernel(bx, by, bz, tx):\n{indent(dedent(self.body).strip(), '    ')}\n"
        )

    @property
    def file(self) -> str:
        """A name that no other text has, since source lines are kept by name."""
        return f"pair_{zlib.crc32(self.text.encode()):08x}.ir"

    def program(self, *, wrong: bool) -> Program:
        """The lines of the other program are empty, so that both count lines alike."""
        other = "right" if wrong else "wrong"
        lines = ["" if other in marks(line) else line for line in self.text.splitlines()]
        return with_launch(parse_program("\n".join(lines) + "\n", self.file))

    def marked(self, mark: str) -> set[int]:
        """Numbers of the lines with a mark, from 1."""
        return {number for number, line in enumerate(self.text.splitlines(), 1) if mark in marks(line)}

    def check(self, *, wrong: bool, seeds: range = SEEDS) -> Report:
        program = self.program(wrong=wrong)
        tensors = arguments(program, zlib.crc32(self.text.encode())) | self.inputs
        return check(program, tensors, {}, seeds=seeds, strict=self.strict)


def marks(line: str) -> set[str]:
    found = _MARKS.search(line)
    return {word.strip() for word in found[1].split(",")} if found else set()


def arguments(program: Program, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors for all parameters."""
    generator = np.random.default_rng(seed)
    return {
        parameter.name: filled(generator, parameter.buffer.dtype, list(parameter.buffer.static_shape))
        for parameter in program.parameters
        if isinstance(parameter, TensorParameter)
    }


def lines_of(finding: Finding) -> set[int]:
    return {place.line for place in finding.locations if place is not None}


def expect(pair: Pair) -> None:
    """The right program is valid and clean; the wrong one has the fault, at the marked lines, and no fault of another
    kind, in every schedule."""
    verify(pair.program(wrong=False))
    report = pair.check(wrong=False)
    assert report.clean, f"the right program:\n{report}"
    assert report.schedules == len(SEEDS)
    wanted = pair.marked("later") | pair.marked("earlier")
    assert wanted, "no line is marked"
    fitting: list[Finding] = []
    for seed in SEEDS:
        report = pair.check(wrong=True, seeds=range(seed, seed + 1))
        others = {f.rule for f in report.findings} - {pair.rule, *pair.also}
        assert not others, f"seed {seed}: also {others}:\n{report}"
        here = [f for f in report.findings if f.rule == pair.rule and re.search(pair.says, f.message, re.DOTALL)]
        assert here or (pair.also and report.findings), f"seed {seed}: no {pair.rule}, {pair.says!r}, in:\n{report}"
        fitting += here
    shown = "\n".join(map(str, fitting))
    places = [lines_of(f) for f in fitting]
    assert any(lines == wanted or (pair.one_line and lines < wanted) for lines in places), f"not at {wanted}:\n{shown}"


def report_of(pair: Pair, seed: int = 0) -> Report:
    """On the wrong program."""
    return pair.check(wrong=True, seeds=range(seed, seed + 1))
