"""Views of a real kernel: decisions and times."""

from __future__ import annotations

import re
from dataclasses import replace

from ptxtile.errors import Location
from ptxtile.inspect.subject import Subject
from ptxtile.inspect.views import Compiled, View, _why, show
from ptxtile.ir.program import Why
from tests.gemm import kernels


def subject() -> Subject:
    kernel = kernels.gemm.specialize(M=256, N=256, K=128, transpose_B=True)
    variant = kernel.variant
    return Subject(variant.tile_program, variant.target, variant.settings.options, variant.trace_timings)


def test_decisions_are_grouped_and_name_lines() -> None:
    shown = show(View.WHY, subject()).splitlines()
    assert shown[0] == f"lines of {kernels.__file__}" and not any(kernels.__file__ in line for line in shown[1:])
    passes = [line for line in shown[1:] if not line.startswith(" ")]
    assert len(passes) == len(set(passes)) and passes.index("select_paths") < passes.index("infer_layouts")
    source = open(kernels.__file__).read().splitlines()
    (gemm,) = (line for line in shown if re.match(r"  \d+: gemm A_shared x B_shared, 64x64x64: wgmma", line))
    assert "T.gemm(" in source[int(gemm.split(":")[0]) - 1]


def test_equal_decisions_are_counted_and_several_files_named() -> None:
    one = Why("a_pass", "x", "done", "because of /a.py:3:4 and /a.py:5", Location("/a.py", 3, 4))

    def shown(*records: Why) -> list[str]:
        compiled = Compiled.__new__(Compiled)
        program = type("Program", (), {"why": records})
        object.__setattr__(compiled, "artifact", program)
        return _why(compiled).splitlines()

    assert shown(one, one, replace(one, subject="y")) == [
        "lines of /a.py", "a_pass", "  3: x: done (2 times)", "      because of line 3 and line 5", "  3: y: done",
        "      because of line 3 and line 5",
    ]  # fmt: skip
    other = replace(one, location=Location("/b.py", 9))
    assert shown(one, other, replace(one, location=None)) == [
        "a_pass", "  /a.py:3:4: x: done", f"      {one.reason}", "  /b.py:9: x: done", f"      {one.reason}",
        "  x: done", f"      {one.reason}",
    ]  # fmt: skip


def test_times_add_up() -> None:
    rows: dict[str, list[float]] = {}
    group = ""
    for line in show(View.TIMING, subject()).splitlines()[1:]:
        name, _, figure = line.rpartition(" ")
        if name.startswith("  "):
            rows[group].append(float(figure))
        else:
            group = name.strip()
            rows[group] = [float(figure)]
    for name in ("trace", "passes", "LLVM"):
        total, *steps = rows[name]
        assert len(steps) >= 3 and abs(total - sum(steps)) < 0.01 * len(steps) + 0.01
    assert abs(rows["trace + passes + LLVM"][0] - sum(rows[name][0] for name in ("trace", "passes", "LLVM"))) < 0.03
