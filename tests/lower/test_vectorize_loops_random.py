"""Random bodies of vectorised loops and of loops over rounds, run lane by lane in plain Python before and after the
pass: same memory, and no load or store that the lanes would not have done."""

from __future__ import annotations

import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ptxtile.ir.statements import For, LoopKind
from ptxtile.lower import vectorize_loops
from tests.lower.kernel_texts import apply, kernel_program, nodes
from tests.lower.scalar_machine import Machine

NAMES = ("A", "B", "C", "D", "P", "Q", "S", "R")
DECLARATIONS = "M = symbol(int32)\n" + "".join(
    f"{name} = tensor(int32, (4096,){extra})\n"
    for name, extra in zip("ABCDPQ", ("", "", "", ", alignment=8", ", alias_group=0", ", alias_group=0"), strict=True)
)
PROLOGUE = """
S = allocate_shared(int32, (4096,))
n = allocate_local(int32, ())
R = allocate_register(int32, (64,))
t: int32 = tx // 8
x: int32 = tx % 2
"""
LANE = "§"
"""Stands for the lane's number in a random body."""

CONDITIONS = (
    "M > 3", "M < 2", "§ < 4", "§ >= 2", "§ < 3", "t * 4 + § < 9", "§ < M * 4", "n[()] > 0", "A[§] > 1",
    "M > 0 and § < 4", "M > 5 or B[4 + §] > 1", "not § >= 4", "7 - § >= 4", "C[§] > 2", "M > 2 and Q[§] > 1",
)  # fmt: skip
INDICES = ("t * 8 + §", "§", "§", "§ + 4", "7 - §", "§ + M", "§ + n[()] * 4", "3", "§ + x")


@st.composite
def values(draw, depth: int = 2) -> str:
    kind = draw(st.sampled_from(("load", "load", "number", "sum", "select", "register", "local")))
    if kind == "number" or depth == 0:
        return str(draw(st.integers(0, 9)))
    if kind == "load":
        return f"{draw(st.sampled_from(NAMES[:-1]))}[{draw(st.sampled_from(INDICES))}]"
    if kind in ("register", "local"):
        return "R[§]" if kind == "register" else "n[()]"
    left, right = draw(values(depth - 1)), draw(values(depth - 1))
    return f"({left} + {right})" if kind == "sum" else f"({left} if {draw(st.sampled_from(CONDITIONS))} else {right})"


@st.composite
def bodies(draw, depth: int = 2) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("store", "store", "local", "if"))) if depth else "store"
        if kind == "store":
            lines.append(f"{draw(st.sampled_from(('C', 'P', 'S', 'R')))}[§] = {draw(values())}")
        elif kind == "local":
            lines.append(f"n[()] = {draw(values())} % 2")
        else:
            lines.append(f"if {draw(st.sampled_from(CONDITIONS))}:")
            lines += ["    " + line for line in draw(bodies(depth - 1))]
            if draw(st.booleans()):
                lines += ["else:", *("    " + line for line in draw(bodies(depth - 1)))]
    return lines


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def check(lines: list[str], rounds: int, lanes: int, symbol: int, thread: int) -> None:
    """Runs ``lines`` for each round and lane by itself, then the program that the pass makes of the loops around
    them."""
    lane = "v" if rounds == 1 else f"(r * {lanes} + v)" if lanes > 1 else "r"
    loop = ["n[()] = 0", *(line.replace(LANE, lane) for line in lines)]
    if lanes > 1 or rounds == 1:
        loop = [f"for v in vectorized(0, {lanes}):", *indented(loop)]
    if rounds > 1:
        loop = [f"for r in unrolled(0, {rounds}, independent=True):", *indented(loop)]
    program = kernel_program(PROLOGUE + "\n".join(loop), DECLARATIONS, stage="thread")
    result = apply(vectorize_loops, program)
    assert not [loop for loop in nodes(result, For) if loop.kind is LoopKind.VECTORIZED]

    def machine() -> Machine:
        cells = {name: {(k,): (k * 7 + ord(name)) % 5 for k in range(64)} for name in NAMES}
        made = Machine(cells, {"Q": "P"})
        made.variables |= {"tx": thread, "bx": 0, "by": 0, "bz": 0, "M": symbol}
        return made

    before, after = machine(), machine()
    *prologue, outermost = program.kernels[0].body.statements  # type: ignore[attr-defined]
    for statement in prologue:
        before.run(statement)
    body = outermost
    while isinstance(body, For):
        body = body.body
    touched: dict[tuple, set[tuple[int, int]]] = {}
    stored: set[tuple] = set()
    for point in itertools.product(range(rounds), range(lanes)):
        before.variables |= dict(zip("rv", point, strict=True))
        loads, stores = len(before.loads), len(before.stores)
        before.run(body)
        new_stores = [(before.aliases.get(name, name), place) for name, place in before.stores[stores:]]
        new_loads = [(before.aliases.get(name, name), place) for name, place in before.loads[loads:]]
        stored.update(new_stores)
        for cell in new_loads + new_stores:
            touched.setdefault(cell, set()).add(point)
    assume(all(len(touched[cell]) == 1 for cell in stored))  # lanes that depend on each other are no T.Parallel
    after.run(result.kernels[0].body)
    for name in NAMES:
        assert after.memory.get(name) == before.memory.get(name), name
    assert set(after.loads) <= set(before.loads)
    assert set(after.stores) == set(before.stores)


@settings(max_examples=250)
@given(bodies(), st.sampled_from((2, 4, 8)), st.integers(0, 6), st.sampled_from((0, 9, 18)))
def test_lanes_mean_the_same_and_load_no_more(lines: list[str], lanes: int, symbol: int, thread: int):
    check(lines, 1, lanes, symbol, thread)


@settings(max_examples=150)
@given(bodies(), st.sampled_from((1, 2, 4)), st.sampled_from((2, 3, 4, 6)), st.integers(0, 6))
def test_rounds_mean_the_same_and_load_no_more(lines: list[str], lanes: int, rounds: int, symbol: int):
    check(lines, rounds, lanes, symbol, 0)
