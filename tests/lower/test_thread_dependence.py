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


OWN = "    m = allocate_local(int32, ())\n    m[()] = i\n"

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
    # an element of a tile has one value, whichever thread runs the iteration
    "for i in parallel(128):\n    F[i] = 1\nx: int32 = F[0]": True,
    "for i in parallel(128):\n    F[i] = A[i] + i\nx: int32 = F[0]": True,
    "for i in parallel(128):\n    y: int32 = A[i]\n    if y > i:\n        F[i] = y\nx: int32 = F[bx]": True,
    "for i in parallel(128):\n    for k in serial(0, i):\n        F[i] = k\nx: int32 = F[0]": True,
    f"for i in parallel(128):\n{OWN}    F[i] = m[()]\nx: int32 = F[0]": True,
    f"for i in parallel(128):\n{OWN}    n[()] = m[()]\nx: int32 = n[()]": False,
    "n[()] = bx\nfor i in parallel(128):\n    F[i] = n[()]\nx: int32 = F[0]": True,
    "n[()] = tx\nfor i in parallel(128):\n    F[i] = n[()]\nx: int32 = F[0]": False,
    "for i in parallel(128):\n    F[i] = tx\nx: int32 = F[0]": False,
    "for i in parallel(128):\n    if tx > 3:\n        F[i] = 1\nx: int32 = F[0]": False,
    "for i in parallel(128):\n    n[()] = i\n    F[i] = n[()]\nx: int32 = F[0]": False,
    "for i in parallel(128):\n    F[i] = 1\nx: int32 = F[tx]": False,
    "copy(A, F)\nx: int32 = F[0]": True,
    "L = allocate_local(int32, (128,))\ncopy(A, L)\nx: int32 = L[0]": True,
    "L = allocate_local(int32, (4,))\ncopy(A[tx].tile(4), L)\nx: int32 = L[0]": False,
    "L = allocate_local(int32, (128,))\nL[0] = tx\ncopy(L, F)\nx: int32 = F[0]": False,
    "L = allocate_local(int32, (128,))\nfill(L, tx)\nx: int32 = L[0]": False,
    "if tx == 0:\n    fill(F, 1)\nx: int32 = F[0]": False,
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
    """Random statements over three scalars and a tile: assignments, ifs, loops with breaks, parallel loops."""
    result = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("set", "set", "tile", "own", "if", "for") if depth else ("set", "tile", "own")))
        name = draw(st.sampled_from(NAMES))
        operand = draw(st.sampled_from((*NAMES, "thread", "block", "5", "element")))
        if kind in ("set", "own"):
            result.append((kind, name, operand, draw(st.integers(0, 3))))
        elif kind == "tile":
            result.append(("tile", draw(st.sampled_from((*NAMES, "thread", "5"))), operand, draw(st.booleans())))
        elif kind == "if":
            result.append(("if", name, operand, draw(blocks(depth - 1)), draw(blocks(depth - 1) | st.just([]))))
        else:
            leaves = draw(st.none() | st.tuples(st.sampled_from(NAMES), st.sampled_from((*NAMES, "thread"))))
            result.append(("for", draw(st.sampled_from(("3", "thread", name))), draw(blocks(depth - 1)), leaves))
    return result


def written(block: list[tuple], indent: str = "", counter: list[int] | None = None) -> str:
    counter = [0] if counter is None else counter
    operand = {name: f"{name}[()]" for name in NAMES} | {"thread": "tx", "block": "bx", "5": "5", "3": "3"}
    operand["element"] = "F[2]"
    lines: list[str] = []
    for kind, *rest in block:
        if kind == "set":
            name, right, number = rest
            lines.append(f"{indent}{name}[()] = {operand[right]} + {number}")
        elif kind == "own":
            name, right, number = rest
            counter[0] += 1
            i = f"i{counter[0]}"
            lines += [f"{indent}for {i} in parallel(4):", f"{indent}    {name}[()] = {operand[right]} + {i} * {number}"]
        elif kind == "tile":
            name, right, through = rest
            counter[0] += 1
            i, m = f"i{counter[0]}", f"m{counter[0]}"
            lines += [f"{indent}for {i} in parallel(4):", f"{indent}    if {operand[name]} < {i} + 4:"]
            if through:  # a scalar of the iteration
                lines += [f"{indent}        {m} = allocate_local(int32, ())", f"{indent}        {m}[()] = {i}"]
            lines.append(f"{indent}        F[{i}] = {operand[right]} + {f'{m}[()]' if through else i}")
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
    """As one thread sees it. Of a parallel loop over a tile it sees all elements; for itself it runs one iteration."""
    for kind, *rest in block:
        if kind == "set":
            name, right, number = rest
            state[name] = state[right] + number
        elif kind == "own":
            name, right, number = rest
            state[name] = state[right] + state["thread"] % 4 * number
        elif kind == "tile":
            name, right, _ = rest
            value, stored = state[right], [i for i in range(4) if state[name] < i + 4]
            state["element"] = value + 2 if 2 in stored else state["element"]
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
    declared += "F = allocate_fragment(int32, (4,))\nfill(F, 0)\n"
    reads = "".join(f"\n{name}_end: int32 = {name}[()]" for name in NAMES) + "\nelement_end: int32 = F[2]"
    program = kernel_program(declared + written(block) + reads, grid="(4, 4, 1)")
    uniformity = ThreadDependence(program.kernels[0])
    names = (*NAMES, "element")
    ends = nodes(program, Let)[-len(names) :]
    constants = {"3": 3, "5": 5, "block": 2}
    states = [dict.fromkeys(names, 0) | constants | {"thread": thread} for thread in range(6)]
    for state in states:
        executed(block, state)
    for name, let in zip(names, ends, strict=True):
        if uniformity.is_uniform(let.var):
            assert len({state[name] for state in states}) == 1
