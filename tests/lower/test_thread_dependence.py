"""Which values all threads of a CTA agree on: rules one by one, and a brute-force run of random scalar programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.statements import Let
from ptxtile.lower.thread_dependence import ThreadDependence
from tests.lower.kernel_texts import kernel_program, nodes

DECLARATIONS = """
A = tensor(int32, (128,))
M = symbol(int32)
"""
SCALARS = "n = allocate_local(int32, ())\nS = allocate_shared(int32, (128,))\nF = allocate_fragment(int32, (128,))\n"


def is_uniform(body: str) -> bool:
    """Whether the last Let of ``body`` is."""
    program = kernel_program(SCALARS + body, DECLARATIONS, grid="(4, 4, 1)")
    return ThreadDependence(program.kernels[0]).is_uniform(nodes(program, Let)[-1].var)


CASES = {
    "x: int32 = 3": True,
    "x: int32 = bx * M + by": True,
    "x: int32 = tx": False,
    "x: int32 = bx + tx // 32": False,
    "y: int32 = tx\nx: int32 = y + 1": False,
    "x: int32 = A[bx]": True,
    "x: int32 = A[tx]": False,
    "x: int32 = S[0]": True,
    "x: int32 = S[tx]": False,
    "n[()] = bx\nx: int32 = n[()]": True,
    "n[()] = tx\nx: int32 = n[()]": False,
    "x: int32 = n[()]\nn[()] = tx": False,  # in no order: the answer is about the variable
    "if bx == 0:\n    n[()] = 1\nx: int32 = n[()]": True,
    "if tx == 0:\n    n[()] = 1\nx: int32 = n[()]": False,
    "if tx == 0:\n    pass\nelse:\n    n[()] = 1\nx: int32 = n[()]": False,
    "for k in serial(0, M):\n    n[()] = n[()] + k\nx: int32 = n[()]": True,
    "for k in serial(0, tx):\n    n[()] = n[()] + 1\nx: int32 = n[()]": False,
    "for k in serial(0, tx):\n    x: int32 = k": False,
    "for k in serial(0, 4):\n    x: int32 = k": True,
    "while n[()] < tx:\n    n[()] = n[()] + 1\nx: int32 = n[()]": False,
    "for k in serial(0, 4):\n    if tx == k:\n        break\n    n[()] = k\nx: int32 = n[()]": False,
    "for k in serial(0, 4):\n    if bx == k:\n        break\n    n[()] = k\nx: int32 = n[()]": True,
    "for i in parallel(128):\n    n[()] = 1\nx: int32 = n[()]": False,
    "for i in parallel(128):\n    F[i] = 1\nx: int32 = F[0]": False,
    "F[0] = M\nx: int32 = F[0]": True,
    "for i in parallel(128):\n    x: int32 = i": False,
    "m = allocate_local(int32, ())\nm[()] = n[()]\nn[()] = tx\nx: int32 = m[()]": False,  # found in a second round
    'V = view_local(int32, (1,), storage_name="n")\nV[0] = tx\nx: int32 = n[()]': False,  # the storage counts
    'atomic(operator="add", buffer=A, indices=(0,), value=1, result=n)\nx: int32 = n[()]': True,  # done once
    'atomic(operator="add", buffer=A, indices=(tx,), value=1, result=n)\nx: int32 = n[()]': False,
    'atomic(operator="add", buffer=A, indices=(0,), value=tx, result=n)\nx: int32 = n[()]': False,
    'if tx == 0:\n    atomic(operator="add", buffer=A, indices=(0,), value=1, result=n)\nx: int32 = n[()]': False,
}


@pytest.mark.parametrize("body", CASES)
def test_rules(body: str):
    assert is_uniform(body) is CASES[body]


# ---- against running the program for each thread

NAMES = ("a", "b", "c")


@st.composite
def blocks(draw, depth: int = 2) -> list[tuple]:
    """Random statements over three scalars: assignments, ifs, loops with breaks."""
    result = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("set", "set", "if", "for") if depth else ("set",)))
        name = draw(st.sampled_from(NAMES))
        operand = draw(st.sampled_from((*NAMES, "thread", "block", "5")))
        if kind == "set":
            result.append(("set", name, operand, draw(st.integers(0, 3))))
        elif kind == "if":
            result.append(("if", name, operand, draw(blocks(depth - 1)), draw(blocks(depth - 1) | st.just([]))))
        else:
            leaves = draw(st.none() | st.tuples(st.sampled_from(NAMES), st.sampled_from((*NAMES, "thread"))))
            result.append(("for", draw(st.sampled_from(("3", "thread", name))), draw(blocks(depth - 1)), leaves))
    return result


def written(block: list[tuple], indent: str = "", counter: list[int] | None = None) -> str:
    counter = [0] if counter is None else counter
    operand = {name: f"{name}[()]" for name in NAMES} | {"thread": "tx", "block": "bx", "5": "5", "3": "3"}
    lines: list[str] = []
    for kind, *rest in block:
        if kind == "set":
            name, right, number = rest
            lines.append(f"{indent}{name}[()] = {operand[right]} + {number}")
        elif kind == "if":
            name, right, then, otherwise = rest
            lines += [f"{indent}if {operand[name]} < {operand[right]}:", written(then, indent + "    ", counter)]
            if otherwise:
                lines += [f"{indent}else:", written(otherwise, indent + "    ", counter)]
        else:
            stop, body, leaves = rest
            counter[0] += 1
            lines += [f"{indent}for k{counter[0]} in serial(0, min({operand[stop]}, 4)):"]
            if leaves is not None:
                lines += [f"{indent}    if {operand[leaves[0]]} == {operand[leaves[1]]}:", f"{indent}        break"]
            lines.append(written(body, indent + "    ", counter))
    return "\n".join(lines)


def executed(block: list[tuple], state: dict[str, int]) -> None:
    for kind, *rest in block:
        if kind == "set":
            name, right, number = rest
            state[name] = state[right] + number
        elif kind == "if":
            name, right, then, otherwise = rest
            executed(then if state[name] < state[right] else otherwise, state)
        else:
            stop, body, leaves = rest
            for _ in range(min(state[stop], 4)):
                if leaves is not None and state[leaves[0]] == state[leaves[1]]:
                    break
                executed(body, state)


@given(blocks())
def test_a_value_that_is_called_uniform_is_the_same_in_all_threads(block: list[tuple]):
    declared = "".join(f"{name} = allocate_local(int32, ())\n{name}[()] = 0\n" for name in NAMES)
    reads = "".join(f"\n{name}_end: int32 = {name}[()]" for name in NAMES)
    program = kernel_program(declared + written(block) + reads, grid="(4, 4, 1)")
    uniformity = ThreadDependence(program.kernels[0])
    ends = nodes(program, Let)[-len(NAMES) :]
    constants = {"3": 3, "5": 5, "block": 2}
    states = [dict.fromkeys(NAMES, 0) | constants | {"thread": thread} for thread in range(6)]
    for state in states:
        executed(block, state)
    for name, let in zip(NAMES, ends, strict=True):
        if uniformity.is_uniform(let.var):
            assert len({state[name] for state in states}) == 1
