"""Tile operations under conditions that differ between threads are refused; all others pass untouched."""

from __future__ import annotations

import pytest

from ptxtile import target
from ptxtile.errors import LoweringError
from ptxtile.ir.program import Program
from ptxtile.lower import check_control_flow
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import kernel_program

TILES = """
S = allocate_shared(float32, (128,))
F = allocate_fragment(float32, (128,))
n = allocate_local(int32, ())
n[()] = by
"""
DECLARATIONS = "A = tensor(float32, (128,))\nrows = tensor(int32, (128,))\nM = symbol(int32)"


def checked(body: str) -> Program:
    program = kernel_program(TILES + body, DECLARATIONS, grid="(4, 4, 1)")
    return check_control_flow.run(program, target.get("sm_90a"), Options())


OPERATIONS = {
    "copy": "copy(A, S)",
    "fill": "fill(F, float32(0.0))",
    "T.Parallel loop": "for i in parallel(128):\n            S[i] = float32(1.0)",
}

DIVERGENT = {
    "if": "if tx < 32:\n        {op}",
    "else": "if tx < 32:\n        pass\n    else:\n        {op}",
    "inside a uniform if": "if bx < 2:\n        if tx < 32:\n            {op}",
    "through a scalar": "n[()] = tx\n    if n[()] < 3:\n        {op}",
    "through a scalar set later in the loop": (
        "for k in serial(0, 4):\n        if n[()] < 3:\n            {op}\n        n[()] = tx"
    ),
    "through a let": "t: int32 = tx * 2\n    if t == 0:\n        {op}",
    "through memory": "if rows[tx] == 0:\n        {op}",
    "loop start": "for k in serial(tx, 8):\n        {op}",
    "loop stop": "for k in serial(0, tx):\n        {op}",
    "while": "while n[()] < tx:\n        n[()] = n[()] + 1\n        {op}",
    "break before": "for k in serial(0, 8):\n        if tx == k:\n            break\n        {op}",
    "break after": "for k in serial(0, 8):\n        {op}\n        if tx == k:\n            break",
    "continue": "while n[()] < 8:\n        n[()] = n[()] + 1\n        if tx == 3:\n            continue\n        {op}",
    "nested break": (
        "for k in serial(0, 8):\n        if bx == 1:\n            if tx == k:\n                break\n        {op}"
    ),
}

UNIFORM = {
    "plain": "{op}",
    "block index": "if bx == 1:\n        {op}",
    "symbol": "if M > 3:\n        n[()] = 1\n    else:\n        {op}",
    "memory at one address": "if rows[by] == 0:\n        {op}",
    "scalar": "while n[()] < M:\n        n[()] = n[()] + 1\n        {op}",
    "loop": "for k in serial(bx, M):\n        {op}",
    "uniform break": "for k in serial(0, 8):\n        if bx == k:\n            break\n        {op}",
    "a divergent loop before": "for k in serial(0, tx):\n        n[()] = k\n    {op}",
    "a break that leaves an inner loop": (
        "for k in serial(0, 8):\n        for h in serial(0, 4):\n"
        "            if tx == h:\n                break\n        {op}"
    ),
    "a divergent if before": "if tx == 0:\n        S[0] = float32(1.0)\n    {op}",
}


def body(form: str, operation: str) -> str:
    """The form at block level with the operation indented where it stands."""
    text = form.replace("\n    ", "\n")
    lines = []
    for line in text.split("\n"):
        indentation = line[: len(line) - len(line.lstrip())]
        lines += [
            indentation + part.replace("        ", "", 1) for part in line.strip().format(op=operation).split("\n")
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", DIVERGENT)
def test_a_tile_operation_that_some_threads_skip_is_an_error(form: str, operation: str):
    with pytest.raises(LoweringError, match=f"this {operation} is reached by only some of the threads") as caught:
        checked(body(DIVERGENT[form], OPERATIONS[operation]))
    assert caught.value.location is not None and caught.value.hint


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", UNIFORM)
def test_uniform_control_flow_passes(form: str, operation: str):
    checked(body(UNIFORM[form], OPERATIONS[operation]))


def test_conditions_inside_of_a_parallel_loop_may_differ():
    inside = "for i in parallel(128):\n    if i < tx:\n        S[i] = float32(1.0)"
    assert checked(inside).kernels[0].body is not None


def test_the_program_is_returned_as_it_is():
    program = kernel_program(TILES + "copy(A, S)", DECLARATIONS)
    assert check_control_flow.run(program, target.get("sm_90a"), Options()) is program


def test_the_error_names_the_operations_line():
    with pytest.raises(LoweringError) as caught:
        checked("if tx == 0:\n    copy(A, S)")
    location, condition = caught.value.location, caught.value.got
    assert location is not None and condition is not None
    assert f":{location.line - 1}" in condition  # the condition stands one line above
