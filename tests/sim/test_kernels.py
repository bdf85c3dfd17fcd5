"""Whole kernels without barriers: grids, tails, control flow, scopes, dtypes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import sim
from ptxtile.errors import LaunchError, Location, SimulationError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Bitcast, Cast, LogicalAnd, cast, select
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, LoopKind, Seq, Statement, While, seq
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import BY_NAME, bfloat16, bool_, float32, int8, int32, int64, uint32
from ptxtile.launch_record import KernelLaunch, KernelParameter, LaunchRecord, SizeOperation, Symbol
from tests.sim.programs import (
    BLOCK_X,
    BLOCK_Y,
    THREAD,
    Var,
    get,
    loop,
    number,
    on_chip,
    program,
    put,
    tensor,
    vector_add,
)

OUTER, INNER, N = Var("i", int32), Var("j", int32), Var("n", int32)
OUT = tensor("out", (64,), int32)


def run(body: Statement, threads: int = 64, **tensors: torch.Tensor) -> list[int]:
    out = torch.full((64,), -7, dtype=torch.int32)
    buffers = [tensor(n, tuple(t.shape), BY_NAME[str(t.dtype).split(".")[1]]) for n, t in tensors.items()]
    sim.run(program(body, [OUT, *buffers], threads=threads), {"out": out, **tensors}, {})
    return out.tolist()


@pytest.mark.parametrize(
    ("rows", "columns", "tile", "threads"), [(64, 64, 64, 128), (128, 96, 32, 32), (512, 1024, 64, 256)]
)
def test_vector_add(rows: int, columns: int, tile: int, threads: int) -> None:
    a, b = torch.randn(rows, columns), torch.randn(rows, columns)
    c = torch.full((rows, columns), float("nan"))
    sim.run(vector_add(rows, columns, tile, threads), {"A": a, "B": b, "C": c}, {})
    assert torch.equal(c, a + b)


def test_the_add_of_a_million_elements_is_fast() -> None:
    a, b, c = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.empty(1024, 1024)
    built = vector_add(1024, 1024)
    start = time.perf_counter()
    sim.run(built, {"A": a, "B": b, "C": c}, {})
    assert time.perf_counter() - start < 1.0
    assert torch.equal(c, a + b)


def tailed_scale(rows: int, columns: int) -> Program:
    """C[r, c] = 2·A[r, c], one element a thread, 8 × 16 tiles, guarded; M and N are run-time symbols."""
    m, n = Var("M", int32), Var("N", int32)
    a, c = tensor("A", (rows, columns)), tensor("C", (rows, columns))
    row, column = Var("row", int32), Var("column", int32)
    offset = row * n + column
    body = seq(
        Let(row, BLOCK_Y * 8 + THREAD // 16),
        Let(column, BLOCK_X * 16 + THREAD % 16),
        If(LogicalAnd(row.lt(m), column.lt(n)), put(c, offset, get(a, offset) * 2.0)),
    )
    built = program(body, [a, c], threads=128, scalars=(m, n))
    grid = (
        SizeOperation("floordiv", SizeOperation("add", Symbol("N"), 15), 16),
        SizeOperation("floordiv", SizeOperation("add", Symbol("M"), 7), 8),
        1,
    )
    parameters = (
        KernelParameter("pointer", "A"),
        KernelParameter("pointer", "C"),
        KernelParameter("scalar", "M", "int32", Symbol("M")),
        KernelParameter("scalar", "N", "int32"),
    )
    launch = KernelLaunch("kernel", grid, (128, 1, 1), 0, parameters)
    return replace(built, launch=LaunchRecord("program", (), launches=(launch,)))


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(0, 40), columns=st.integers(0, 70))
def test_tails_and_symbols(rows: int, columns: int) -> None:
    a, c = torch.randn(rows, columns), torch.zeros(rows, columns)
    sim.run(tailed_scale(rows, columns), {"A": a, "C": c}, {"M": rows, "N": columns})
    assert torch.equal(c, 2 * a)


def test_a_tensor_inside_a_larger_storage() -> None:
    storage = torch.randn(400)
    a, c = storage[3:131].view(8, 16), torch.zeros(8, 16)
    sim.run(tailed_scale(8, 16), {"A": a, "C": c}, {"M": 8, "N": 16})
    assert torch.equal(c, 2 * a)


def test_grid_limits() -> None:
    with pytest.raises(LaunchError, match="dimension y"):
        sim.run(tailed_scale(8, 16), {"A": torch.zeros(1), "C": torch.zeros(1)}, {"M": 8 * 65536, "N": 16})


# --- control flow ---------------------------------------------------------------------------------------------------


def test_divergent_loops_with_break_and_continue() -> None:
    total = on_chip("total", Scope.LOCAL, int32, 1)
    body = seq(
        Allocate(total),
        put(total, 0, number(0)),
        loop(
            OUTER,
            THREAD % 9,
            seq(
                If((OUTER + THREAD).eq(11), Break()),
                If((OUTER % 3).eq(1), Continue()),
                loop(
                    INNER, OUTER + 2, seq(If(INNER.gt(THREAD % 5), Break()), put(total, 0, get(total, 0) + INNER + 1))
                ),
                put(total, 0, get(total, 0) + OUTER * 100),
            ),
        ),
        put(OUT, THREAD, get(total, 0)),
    )
    expected = []
    for t in range(64):
        value = 0
        for i in range(t % 9):
            if i + t == 11:
                break
            if i % 3 == 1:
                continue
            for j in range(i + 2):
                if j > t % 5:
                    break
                value += j + 1
            value += i * 100
        expected.append(value)
    assert run(body) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_control_flow_against_python(seed: int) -> None:
    """Random nests of loops, branches, breaks and continues, run for each thread by a small Python interpreter."""
    random = np.random.default_rng(seed)
    total = on_chip("total", Scope.LOCAL, int32, 1)
    names = iter(range(100))

    def build(depth: int, variables: list[Var], in_loop: bool) -> tuple[Statement, list]:
        statements, plan = [], []
        for _ in range(int(random.integers(1, 4))):
            kind = random.choice(["add", "for", "while", "if", "leave"])
            variable = variables[int(random.integers(len(variables)))]
            a, b = int(random.integers(2, 5)), int(random.integers(1, 4))
            if kind == "leave" and in_loop:
                leave = Break() if random.random() < 0.5 else Continue()
                statements.append(If((variable % a).eq(b), leave))
                plan.append(("leave", variable.name, a, b, isinstance(leave, Break)))
            elif kind == "for" and depth:
                var, down = Var(f"v{next(names)}", int32), bool(random.random() < 0.3)
                body, inner = build(depth - 1, [*variables, var], True)
                start, stop = (variable % a + b, number(-1)) if down else (number(0), variable % a + b)
                statements.append(For(var, start, stop, -2 if down else 1, LoopKind.SERIAL, body))
                plan.append(("for", variable.name, a, b, down, var.name, inner))
            elif kind == "while" and depth:
                name = f"w{next(names)}"
                counter = on_chip(name, Scope.LOCAL, int32, 1)
                body, inner = build(depth - 1, variables, True)
                head = put(counter, 0, get(counter, 0) - 1)
                statements += [
                    Allocate(counter),
                    put(counter, 0, variable % a),
                    While(get(counter, 0).gt(0), seq(head, body)),
                ]
                plan.append(("while", variable.name, a, inner))
            elif kind == "if" and depth:
                then, then_plan = build(depth - 1, variables, in_loop)
                other, other_plan = build(depth - 1, variables, in_loop)
                statements.append(If((variable % a).lt(b), then, other))
                plan.append(("if", variable.name, a, b, then_plan, other_plan))
            else:
                statements.append(put(total, 0, get(total, 0) * 3 + variable + a))
                plan.append(("add", variable.name, a))
        return Seq(tuple(statements)), plan

    def interpret(plan: list, state: dict[str, int]) -> str:
        for step in plan:
            kind, value, a = step[0], state[step[1]], step[2]
            if kind == "add":
                state["total"] = (state["total"] * 3 + value + a) % 2**32
            elif kind == "leave":
                if value % a == step[3]:
                    return "break" if step[4] else "continue"
            elif kind == "if":
                signal = interpret(step[4] if value % a < step[3] else step[5], state)
                if signal:
                    return signal
            else:
                count = value % a
                positions = range(count) if kind == "while" else range(count + step[3])
                if kind == "for" and step[4]:
                    positions = range(count + step[3], -1, -2)
                for position in positions:
                    if kind == "for":
                        state[step[5]] = position
                    if interpret(step[-1], state) == "break":
                        break
        return ""

    body, plan = build(3, [THREAD], False)
    got = run(seq(Allocate(total), put(total, 0, number(0)), body, put(OUT, THREAD, get(total, 0))))
    expected = []
    for t in range(64):
        state = {"tid": t, "total": 0}
        interpret(plan, state)
        expected.append(state["total"])
    assert [value % 2**32 for value in got] == expected


def test_lazy_select_and_logical_and_guard_loads() -> None:
    small = torch.arange(8, dtype=torch.int32)
    source = tensor("small", (8,), int32)
    inside = THREAD.lt(8)
    guarded = select(inside, get(source, THREAD), number(-1))
    assert run(put(OUT, THREAD, guarded), small=small) == [*range(8), *[-1] * 56]
    flag = cast(LogicalAnd(inside, get(source, THREAD).gt(3)), int32)
    assert run(put(OUT, THREAD, flag), small=small) == [0] * 4 + [1] * 4 + [0] * 56
    with pytest.raises(SimulationError, match="small is read out of bounds"):
        run(put(OUT, THREAD, get(source, THREAD)), small=small)


def test_spinning_on_another_cta_ends_when_all_are_resident() -> None:
    """CTA 0 waits in a loop for what the last CTA of a cooperative grid stores."""
    flag, out = tensor("flag", (1,), int32), tensor("out", (1,), int32)
    body = If(
        BLOCK_X.eq(0),
        seq(While(get(flag, 0).eq(0), Seq(())), put(out, 0, get(flag, 0))),
        If(BLOCK_X.eq(2999), put(flag, 0, number(42))),
    )
    tensors = {"flag": torch.zeros(1, dtype=torch.int32), "out": torch.zeros(1, dtype=torch.int32)}
    sim.run(program(body, [flag, out], (3000, 1, 1), 32, cooperative=True), tensors, {})
    assert tensors["out"].item() == 42


# --- scopes and dtypes ----------------------------------------------------------------------------------------------


def test_local_array_with_dynamic_index_and_registers_in_unrolled_loops() -> None:
    values, registers = on_chip("values", Scope.LOCAL, int32, 5), on_chip("registers", Scope.REGISTER, int32, 4)
    body = seq(
        Allocate(values),
        Allocate(registers),
        loop(OUTER, 5, put(values, OUTER, OUTER * 10 + THREAD)),
        put(values, THREAD % 5, number(1000)),
        loop(INNER, 4, put(registers, INNER, get(values, (THREAD + INNER) % 5)), LoopKind.UNROLLED),
        put(OUT, THREAD, get(registers, 0) + get(registers, 1) + get(registers, 2) + get(registers, 3)),
    )
    expected = []
    for t in range(64):
        local = [1000 if i == t % 5 else i * 10 + t for i in range(5)]
        expected.append(sum(local[(t + j) % 5] for j in range(4)))
    assert run(body) == expected


def test_views_of_one_private_storage_with_two_dtypes() -> None:
    words = on_chip("words", Scope.LOCAL, uint32, 2)
    bytes_ = replace(words, name="bytes", dtype=int8, shape=(8,))
    body = seq(
        Allocate(words),
        put(words, 0, number(0x04030201, uint32)),
        put(words, 1, number(0, uint32)),
        put(bytes_, 4 + THREAD % 4, number(-1, int8)),
        put(OUT, THREAD, Cast(get(words, 1), int32) + Cast(get(bytes_, THREAD % 4), int32)),
    )
    expected = [np.int64(0xFF << (8 * (t % 4))).astype(np.int32).item() + t % 4 + 1 for t in range(64)]
    assert run(body) == expected


def test_uninitialised_registers_are_poisoned() -> None:
    value, flag = on_chip("value", Scope.LOCAL, float32, 1), on_chip("flag", Scope.LOCAL, int32, 1)
    body = seq(
        Allocate(value),
        Allocate(flag),
        put(OUT, THREAD, select(get(value, 0).ne(get(value, 0)), number(1), number(0)) + get(flag, 0)),
    )
    assert set(run(body)) == {0x5BAD5BAD + 1}


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "float16", "bfloat16", "float64", "float8_e5m2"])
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("through", ["register", "shared"])
def test_copies_keep_every_bit(name: str, lanes: int, through: str) -> None:
    dtype = BY_NAME[name]
    if dtype.itemsize * lanes > 16:
        return
    count = 64 * lanes
    random = np.random.default_rng(lanes)
    raw = random.integers(0, 2 if name == "bool" else 256, count * dtype.itemsize, dtype=np.uint8)
    source = torch.from_numpy(raw.copy()).view(getattr(torch, name))
    target = torch.zeros(count, dtype=getattr(torch, name))
    a, c = tensor("A", (count,), dtype), tensor("C", (count,), dtype)
    if through == "register":
        registers = on_chip("registers", Scope.REGISTER, dtype, lanes)
        move = seq(Allocate(registers), put(registers, 0, get(a, THREAD * lanes, lanes)))
        back = put(c, THREAD * lanes, get(registers, 0, lanes))
    else:
        tile = on_chip("tile", Scope.SHARED, dtype, count, 0)
        move = put(tile, THREAD * lanes, get(a, THREAD * lanes, lanes))
        back = put(c, THREAD * lanes, get(tile, THREAD * lanes, lanes))
    sim.run(program(seq(move, back), [a, c], threads=64, shared_bytes=4096), {"A": source, "C": target}, {})
    assert torch.equal(source.view(torch.uint8), target.view(torch.uint8))


def test_arithmetic_in_bfloat16_rounds_each_time() -> None:
    a, c = torch.randn(64).bfloat16(), torch.zeros(64, dtype=torch.bfloat16)
    x, y = tensor("A", (64,), bfloat16), tensor("C", (64,), bfloat16)
    value = get(x, THREAD)
    sim.run(program(put(y, THREAD, value * value + value), [x, y], threads=64), {"A": a, "C": c}, {})
    assert torch.equal(c, a * a + a)


def test_constants_and_uniform_values_are_stored_as_their_bits() -> None:
    out, tile = tensor("out", (64,)), on_chip("tile", Scope.SHARED, float32, 64, 0)
    result = torch.zeros(64)
    body = seq(
        put(tile, THREAD, number(1.5, float32)),
        If(THREAD.eq(3), put(tile, 7, cast(BLOCK_X + 9, float32))),
        put(out, THREAD, get(tile, THREAD) + get(tile, 7)),
    )
    sim.run(program(body, [out], threads=64, shared_bytes=256), {"out": result}, {})
    assert result.tolist() == [10.5] * 7 + [18.0] + [10.5] * 56


def test_vector_of_one_uniform_place() -> None:
    a, out = tensor("A", (8,)), tensor("out", (256,))
    registers = on_chip("registers", Scope.REGISTER, float32, 4)
    body = seq(Allocate(registers), put(registers, 0, get(a, 4, 4)), put(out, THREAD * 4, get(registers, 0, 4)))
    result = torch.zeros(256)
    sim.run(program(body, [a, out], threads=64), {"A": torch.arange(8.0), "out": result}, {})
    assert result.tolist() == [4.0, 5.0, 6.0, 7.0] * 64


def test_bitcast_of_loaded_values() -> None:
    values = torch.randn(64)
    body = put(OUT, THREAD, Bitcast(get(tensor("A", (64,)), THREAD), int32))
    assert run(body, A=values) == values.view(torch.int32).tolist()


def test_64_bit_indices() -> None:
    values = torch.arange(64, dtype=torch.int32)
    index = Cast(THREAD, int64) + number(2**40, int64) - number(2**40, int64)
    assert run(put(OUT, index, get(tensor("A", (64,), int32), index) * 2), A=values) == [2 * t for t in range(64)]


def test_scalar_parameters() -> None:
    scale, offset, flag = Var("scale", float32), Var("offset", int32), Var("flag", bool_)
    value = Cast(Cast(THREAD, float32) * scale, int32) + select(flag, offset, number(0))
    out = torch.zeros(64, dtype=torch.int32)
    built = program(put(OUT, THREAD, value), [OUT], threads=64, scalars=(scale, offset, flag))
    sim.run(built, {"out": out}, {"scale": 0.1, "offset": -5, "flag": True})
    assert out.tolist() == [int(np.float32(t) * np.float32(0.1)) - 5 for t in range(64)]


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    run(If(THREAD.eq(3), Print("value", (THREAD * 2, cast(THREAD, float32) / 2.0))))
    assert capsys.readouterr().out == "value 6 1.5\n"


# --- mistakes -------------------------------------------------------------------------------------------------------

SHARED = on_chip("tile", Scope.SHARED, float32, 64, 0)
LOCAL = on_chip("local", Scope.LOCAL, int32, 4)
FLOATS = tensor("A", (64,))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (put(OUT, THREAD + 1, THREAD), "out is written out of bounds"),
        (put(OUT, THREAD - 1, THREAD), "element -1"),
        (put(OUT, 0, cast(get(FLOATS, THREAD * 4 + 1), int32)), "A is read out of bounds"),
        (put(SHARED, THREAD + 1, number(0.0, float32)), "tile is written out of bounds"),
        (put(OUT, THREAD, cast(get(SHARED, 64), int32)), "tile is read out of bounds"),
        (put(OUT, THREAD, cast(get(SHARED, THREAD // 2 + 1, 2), int32.with_lanes(2))), "tile is read misaligned"),
        (put(OUT, 0, Cast(get(FLOATS, 2, 4), int32.with_lanes(4))), "A is read misaligned"),
        (put(OUT, 1, Cast(get(FLOATS, 4, 4), int32.with_lanes(4))), "out is written misaligned"),
        (seq(Allocate(LOCAL), put(OUT, THREAD, get(LOCAL, 4))), "local is accessed out of bounds"),
        (seq(Allocate(LOCAL), put(LOCAL, THREAD % 5, number(1))), "local is accessed out of bounds"),
        (put(OUT, THREAD, get(LOCAL, 0)), "outside the scope of its Allocate"),
        (put(OUT, THREAD, get(tensor("other", (4,), int32), 0)), "other is no pointer parameter"),
        (put(on_chip("late", Scope.SHARED, int32, 4), 0, number(1)), "no place in shared memory"),
        (put(on_chip("far", Scope.SHARED, int32, 64, 4000), 0, number(1)), "outside the kernel's shared memory"),
        (Break(), "outside a loop"),
        (put(OUT, THREAD, Var("nobody", int32)), "nobody"),
    ],
)
def test_errors_carry_the_location(body: Statement, message: str) -> None:
    place = Location("kernel.py", 12)
    if isinstance(body, Seq):
        body = Seq((*body.statements[:-1], replace(body.statements[-1], location=place)))
    else:
        body = replace(body, location=place)
    built = program(seq(Let(OUTER, number(0)), body), [OUT, FLOATS], threads=64, shared_bytes=4096)
    with pytest.raises(SimulationError, match=message) as caught:
        sim.run(built, {"out": torch.zeros(64, dtype=torch.int32), "A": torch.zeros(64)}, {})
    assert caught.value.location == place


def test_an_unlowered_program_is_refused() -> None:
    with pytest.raises(SimulationError, match="not lowered"):
        sim.run(replace(vector_add(64, 64), stage="tile"), {}, {})


def test_an_unused_tensor_may_be_none() -> None:
    out = torch.zeros(64, dtype=torch.int32)
    sim.run(program(put(OUT, THREAD, THREAD), [OUT, FLOATS], threads=64), {"out": out, "A": None}, {})  # type: ignore[dict-item]
    assert out.tolist() == list(range(64))
