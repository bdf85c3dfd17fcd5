"""The simplify pass: text in and text out, and random statement programs that compute the same before and after."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Binary, Expr, Load, Var, constant, load
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, LoopKind, Seq, Statement, Store, While
from ptxtile.ir.types import int32
from ptxtile.lower import simplify
from ptxtile.lower.options import Options
from tests.lower.integer_expressions import Memory, Space, Unspecified, Variable, evaluate

SM_90A = target.get("sm_90a")

HEADER = """ptxtile_ir(1)
program("example", stage="{stage}")
M = symbol(int32)
fact(M, lower=1, upper=65536, divisor=8)
A = tensor(float32, (1024, 1024))
B = tensor(float32, (1024, 1024))
C = allocation(float32, (1024, 1024))
returns("C")

@kernel(grid=({grid}), threads=128)
def example(bx, by, bz, thread):
"""


def program(body: str, stage: str = "tile", grid: str = "16, 16, 1") -> Program:
    text = HEADER.format(stage=stage, grid=grid)
    return parse_program(text + "\n".join("    " + line for line in body.strip("\n").split("\n")) + "\n")


def simplified(body: str, **options: str) -> str:
    """The kernel's body after the pass."""
    text = print_program(simplify.run(program(body, **options), SM_90A, Options()))
    lines = text.split("def example(bx, by, bz, thread):\n")[1].rstrip("\n").split("\n")
    return "\n".join(line.removeprefix("    ") for line in lines)


def test_loads_are_forwarded_into_one_store():
    body = """
row: int32 = by * 64
for i, j in parallel(64, 64):
    a: float32 = A[row + i, bx * 64 + j]
    b: float32 = B[row + i, bx * 64 + j]
    if row + i < 1024:
        C[row + i, bx * 64 + j] = a + b
"""
    assert simplified(body) == (
        "for i, j in parallel(64, 64):\n"
        "    C[by * 64 + i, bx * 64 + j] = A[by * 64 + i, bx * 64 + j] + B[by * 64 + i, bx * 64 + j]"
    )


@pytest.mark.parametrize(
    "between",
    ["A[0, 1] = float32(0.0)", "if M > 9:\n    A[0, 1] = float32(0.0)", "for k in serial(0, M):\n    A[0, k] = a0[0]"],
)
def test_a_load_stays_before_a_store_to_its_memory(between):
    body = f"""
a0 = allocate_local(float32, (1,))
a0[0] = float32(1.0)
a: float32 = A[0, 0]
{between}
C[0, 0] = a
"""
    assert simplified(body) == body.strip("\n")


def test_a_load_passes_stores_to_other_memory_and_its_own_target():
    body = """
a: float32 = A[0, 0]
B[0, 0] = float32(0.0)
A[0, 0] = a
"""
    assert simplified(body) == "B[0, 0] = float32(0.0)\nA[0, 0] = A[0, 0]"


def test_aliasing_parameters_are_one_memory():
    body = """
a: float32 = A[0, 0]
B[0, 0] = float32(0.0)
C[0, 0] = a
"""
    original = program(body)
    parameters = tuple(replace(p, alias_group=1) for p in original.parameters)
    aliased = replace(original, parameters=parameters)
    assert simplify.run(aliased, SM_90A, Options()) is aliased
    assert simplify.run(original, SM_90A, Options()) is not original


def test_a_load_stays_before_a_barrier_and_outside_a_loop():
    body = """
S = allocate_shared(float32, (128,))
s: float32 = S[0]
a: float32 = A[0]
bar_sync(id=0, threads=128)
C[thread] = s
for k in serial(0, M):
    C[k] = a
"""
    assert simplified(body, stage="gpu") == body.strip("\n")


def test_what_is_never_used_goes():
    body = """
dead: float32 = A[0, 0]
deader: float32 = dead + float32(1.0)
if M > 5:
    unused: int32 = M * M
for k in serial(0, M):
    u: float32 = A[k, 0]
C[0, 0] = float32(1.0)
"""
    assert simplified(body) == "C[0, 0] = float32(1.0)"


def test_decided_branches():
    body = """
if by < 16:
    C[0, 0] = float32(1.0)
else:
    C[0, 0] = float32(2.0)
if by >= 8:
    if by > 7:
        C[1, by] = float32(3.0)
elif by >= 8:
    C[1, by] = float32(4.0)
if M > 5:
    pass
else:
    C[2, 0] = float32(5.0)
"""
    assert simplified(body) == (
        "C[0, 0] = float32(1.0)\nif by >= 8:\n    C[1, by] = float32(3.0)\nif M <= 5:\n    C[2, 0] = float32(5.0)"
    )


def test_loops_of_no_and_one_trip():
    body = """
for k in serial(M, 1):
    C[k, 0] = float32(0.0)
for k2 in serial(by, by + 1):
    t: int32 = k2 * 2
    C[k2, t] = float32(1.0)
for k3 in serial(0, 1):
    if bx > 3:
        break
    C[k3, 1] = float32(2.0)
for k4 in serial(5, 0, -8):
    C[k4, 2] = float32(3.0)
for k5 in serial(0, M, 8):
    if k5 < M:
        C[k5 % 8, k5 // 8] = float32(4.0)
"""
    assert simplified(body) == (
        "C[by, by * 2] = float32(1.0)\n"
        "for k3 in serial(0, 1):\n"
        "    if bx > 3:\n"
        "        break\n"
        "    C[0, 1] = float32(2.0)\n"
        "C[5, 2] = float32(3.0)\n"
        "for k5 in serial(0, M, 8):\n"
        "    C[0, k5 // 8] = float32(4.0)"
    )


def test_a_symbolic_grid_bounds_its_blocks():
    body = """
if by * 8 < M:
    C[by, 0] = float32(1.0)
if by * 8 + 7 < M:
    C[by, 1] = float32(1.0)
if by * 8 + 8 < M:
    C[by, 2] = float32(1.0)
"""
    assert simplified(body, grid="1, (M + 7) // 8, 1") == (
        "C[by, 0] = float32(1.0)\nC[by, 1] = float32(1.0)\nif by * 8 + 8 < M:\n    C[by, 2] = float32(1.0)"
    )


def test_the_side_of_a_select_keeps_its_guard():
    body = """
a: float32 = A[by, 0] if M > 8 else float32(0.0)
C[by, 0] = a
"""
    assert simplified(body) == "C[by, 0] = A[by, 0] if M > 8 else float32(0.0)"


def test_roles_know_their_threads_and_vectors_pass():
    body = """
R = allocate_register(float32, (4,))
with role("consumer", first_thread=0, threads=64):
    R.x4[0] = A.x4[thread % 64 * 4]
    if thread < 64:
        C.x4[thread // 64 * 256 + thread * 4] = R.x4[0]
with role("producer", first_thread=64, threads=64):
    if thread >= 64:
        B[thread - 64] = float32(1.0)
"""
    text = simplified(_specialized(body), stage="gpu")
    assert "A.x4[thread * 4]" in text
    assert "C.x4[thread * 4] = R.x4[0]" in text
    assert "if" not in text


def _specialized(body: str) -> str:
    lines = body.strip("\n").split("\n")
    return "\n".join([lines[0], "with specialized():", *("    " + line for line in lines[1:])])


# -------------------------------------------------------------------- random programs


class _Leave(Exception):
    def __init__(self, statement: Statement) -> None:
        self.statement = statement


def interpret(node: Statement | None, values: dict[str, int], memory: Memory) -> None:
    """Runs the statements of one thread in order."""
    match node:
        case Seq():
            for statement in node.statements:
                interpret(statement, values, memory)
        case Let():
            values[node.var.name] = evaluate(node.value, values, memory)
        case Store():
            index = evaluate(node.indices[0], values, memory) if node.indices else 0
            memory[node.buffer.storage.name][index] = evaluate(node.value, values, memory)
        case Allocate():
            memory[node.buffer.storage.name] = [0] * max(node.buffer.elements, 1)
        case If():
            interpret(node.then if evaluate(node.condition, values, memory) else node.otherwise, values, memory)
        case For():
            start, stop = evaluate(node.start, values, memory), evaluate(node.stop, values, memory)
            for value in range(start, stop, node.step):
                values[node.var.name] = value
                if _leaves(node.body, values, memory):
                    break
        case While():
            while evaluate(node.condition, values, memory):
                if _leaves(node.body, values, memory):
                    break
        case Break() | Continue():
            raise _Leave(node)
        case None:
            pass
        case _:
            raise TypeError(node)


def _leaves(body: Statement, values: dict[str, int], memory: Memory) -> bool:
    try:
        interpret(body, values, memory)
    except _Leave as leave:
        return isinstance(leave.statement, Break)
    return False


SIZE = 8


class Statements(Space):
    """Random statements over two tensors that overlap, one that does not, and local scalars."""

    def start(self) -> None:
        self.variables = self.variables[:2]
        self.constant_divisors = 1.0
        self.tensors = [allocate(name, Scope.GLOBAL, int32, (SIZE,)) for name in ("P", "Q", "D")]
        self.scalars: list[Buffer] = []
        self.number = 0

    def leaf(self) -> Expr:
        if self.rng.random() < 0.4:
            buffer = self.rng.choice([*self.tensors, *self.scalars])
            if not buffer.shape:
                return load(buffer, ())
            return load(buffer, (self.index(),))
        return super().leaf()

    def index(self) -> Expr:
        constants = [constant(value) for value in (0, 1, SIZE - 1)]
        named = [v.var for v in self.variables if v.var.dtype == int32]
        base = self.rng.choice([*constants, *named])
        return Binary("floormod", base, constant(SIZE), int32)

    def fresh(self, prefix: str) -> Var:
        self.number += 1
        return Var(f"{prefix}{self.number}", int32)

    def block(self, depth: int, in_loop: bool) -> Seq:
        visible, scalars = list(self.variables), list(self.scalars)
        result = Seq(tuple(self.statement(depth, in_loop) for _ in range(self.rng.randint(1, 5))))
        self.variables, self.scalars = visible, scalars
        return result

    def statement(self, depth: int, in_loop: bool) -> Statement:
        kind = self.rng.randrange(12)
        if kind < 4:
            var = self.fresh("v")
            let = Let(var, self.integer(self.rng.randint(0, 2)))
            self.variables.append(Variable(var, int32.minimum, int32.maximum))
            return let
        if kind < 8 or depth == 0:
            buffer = self.rng.choice([*self.tensors, *self.scalars])
            return Store(buffer, (self.index(),) if buffer.shape else (), self.integer(self.rng.randint(0, 2)))
        if kind == 8:
            scalar = allocate(self.fresh("s").name, Scope.LOCAL, int32, ())
            self.scalars.append(scalar)
            return Seq((Allocate(scalar), Store(scalar, (), self.integer(1))))
        if kind < 11:
            otherwise = self.block(depth - 1, in_loop) if self.rng.random() < 0.4 else None
            if in_loop and self.rng.random() < 0.2:
                return If(self.condition(1), self.rng.choice([Break(), Continue()]), otherwise)
            return If(self.condition(1), self.block(depth - 1, in_loop), otherwise)
        var, step = self.fresh("k"), self.rng.choice([1, 1, 2, -1, 5])
        start = self.rng.choice([constant(0), constant(3), self.index()])
        stop = self.rng.choice(
            [constant(0), constant(1), constant(4), self.index(), Binary("add", start, constant(1), int32)]
        )
        self.variables.append(Variable(var, int32.minimum, int32.maximum))
        body = self.block(depth - 1, True)
        self.variables.pop()
        return For(var, start, stop, step, LoopKind.SERIAL, body)


@settings(max_examples=500)
@given(seed=st.integers(0, 2**63))
def test_random_programs_compute_the_same(seed):
    statements = Statements.random(seed)
    statements.start()
    inputs = [v for v in statements.variables if v.var.dtype == int32]
    statements.variables = inputs or [Variable(Var("x0", int32), 0, 7)]
    inputs = list(statements.variables)
    body = statements.block(2, False)
    # the inputs are the kernel's block indices, of known range; P and Q may overlap
    x, y, z, *_ = (*(v.var for v in inputs), Var("by", int32), Var("bz", int32), Var("bx", int32))
    kernel = Kernel("k", (8, 8, 8), 32, (x, y, z), Var("thread", int32), body)
    p, q, d = statements.tensors
    parameters = (TensorParameter(p, alias_group=1), TensorParameter(q, alias_group=1), TensorParameter(d))
    original = Program("random", parameters, (kernel,))
    result = simplify.run(original, SM_90A, Options()).kernels[0].body
    rng = random.Random(seed)
    for _ in range(6):
        values = {var.name: rng.randrange(8) for var in (x, y, z)}
        shared = [rng.randint(-9, 9) for _ in range(SIZE)]
        fresh = [rng.choice([rng.randint(-9, 9), 2**31 - 1, -(2**31)]) for _ in range(SIZE)]
        outcomes = []
        for variant in (body, result):
            overlapping = list(shared)
            memory = {"P": overlapping, "Q": overlapping, "D": list(fresh)}
            try:
                interpret(variant, dict(values), memory)
            except Unspecified:
                continue
            outcomes.append((memory["P"], memory["D"]))
        assert all(outcome == outcomes[0] for outcome in outcomes)


def test_loads_of_simplified_programs_are_not_repeated():
    """Forwarding moves a load; it never makes two of one."""
    body = """
a: float32 = A[0, 0]
C[0, 0] = a
C[0, 1] = a
"""
    kernel = simplify.run(program(body), SM_90A, Options()).kernels[0]
    assert isinstance(kernel.body, Seq)
    assert sum(isinstance(s, Let) and isinstance(s.value, Load) for s in kernel.body.statements) == 1
