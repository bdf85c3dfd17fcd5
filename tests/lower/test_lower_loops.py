"""Parallel loops as loops of one thread: every iteration runs once, padding is guarded, replicas store once, registers
are numbered as the layouts say. Checked by running the lowered loops for every thread in plain Python."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.errors import LoweringError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.layouts import Fragment, linear_fragment
from ptxtile.ir.printer import print_node
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, For, If, LoopKind, Seq, Statement, Store
from ptxtile.lower import infer_layouts, lower_loops
from ptxtile.lower.lower_loops import MOST_AXIS_UNROLL
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, simulated, text

DECLARATIONS = "A = tensor(float32, (4096,))\nB = tensor(float32, (64, 64))\nM = symbol(int32)"


def laid_out(body: str, layout: Fragment | None = None, threads: int = 128) -> Program:
    """``body`` with LAYOUT standing for a layout."""
    if layout is not None:
        body = body.replace("LAYOUT", print_node(layout))
    return kernel_program(text(body), DECLARATIONS, threads=threads, stage="async")


def lowered_loops(body: str, layout: Fragment | None = None, threads: int = 128) -> str:
    return body_text(apply(lower_loops, laid_out(body, layout, threads)))


# ---- the nest of loops


@pytest.mark.parametrize(
    ("shape", "threads", "vector", "expected"),
    [
        ((512,), 128, 4, "for v in vectorized(0, 4):\n    A[tx * 4 + v] = float32(0.0)"),
        ((128,), 128, 1, "A[tx] = float32(0.0)"),
        (
            (1024,), 128, 4,
            "for r in unrolled(0, 2, independent=True):\n    for v in vectorized(0, 4):\n"
            "        A[r * 512 + tx * 4 + v] = float32(0.0)",
        ),
        (  # 16 rounds are expanded
            (2048,), 128, 1, "for r in unrolled(0, 16, independent=True):\n    A[r * 128 + tx] = float32(0.0)",
        ),
        (  # 17 rounds of no multiple of 8 stay a loop
            (2176,), 128, 1, "for r in serial(0, 17, independent=True):\n    A[r * 128 + tx] = float32(0.0)",
        ),
        (  # 24 rounds are three times eight expanded ones
            (3072,), 128, 1,
            "for r_1 in serial(0, 3, independent=True):\n    for r_2 in unrolled(0, 8, independent=True):\n"
            "        A[(r_1 * 8 + r_2) * 128 + tx] = float32(0.0)",
        ),
        (  # the last round hangs over
            (300,), 128, 1,
            "for r in unrolled(0, 3, independent=True):\n    if r * 128 + tx < 300:\n"
            "        A[r * 128 + tx] = float32(0.0)",
        ),
    ],
)  # fmt: skip
def test_rounds_are_unrolled_and_lanes_vectorized(shape: tuple[int], threads: int, vector: int, expected: str):
    body = f"for i in parallel({shape[0]}, layout=LAYOUT):\n    A[i] = float32(0.0)"
    assert lowered_loops(body, linear_fragment(shape, threads, vector), threads) == expected


def executed(program: Program, threads: int) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    """For each thread the stores to memory that it performs: (buffer, offset), in order."""
    done: dict[int, list[tuple[str, tuple[int, ...]]]] = {}

    def run(node: Statement, values: dict[str, int], log: list) -> None:
        if isinstance(node, Seq):
            for statement in node.statements:
                run(statement, values, log)
        elif isinstance(node, For):
            for value in range(evaluate(node.start, values), evaluate(node.stop, values), node.step):
                run(node.body, values | {node.var.name: value}, log)
        elif isinstance(node, If):
            if evaluate(node.condition, values):
                run(node.then, values, log)
        elif isinstance(node, Store) and node.buffer.scope is not Scope.REGISTER:
            log.append((node.buffer.name, tuple(int(evaluate(index, values)) for index in node.indices)))

    for thread in range(threads):
        run(program.kernels[0].body, {"tx": thread, "bx": 0, "by": 0, "bz": 0}, done.setdefault(thread, []))
    return done


@settings(max_examples=60)
@given(st.tuples(st.integers(1, 9), st.integers(1, 24)), st.sampled_from((1, 5, 32, 96)), st.sampled_from((1, 2, 4)))
def test_every_iteration_runs_once_in_the_thread_of_its_layout(shape: tuple[int, int], threads: int, vector: int):
    layout = linear_fragment(shape, threads, vector if shape[1] % vector == 0 else 1)
    body = f"for i, j in parallel({shape[0]}, {shape[1]}, layout=LAYOUT):\n    B[i, j] = float32(0.0)"
    result = apply(lower_loops, laid_out(body, layout, threads))
    table = layout.table()
    for thread, stores in executed(result, threads).items():
        held = [divmod(int(e), shape[1]) for e in table[thread] if e >= 0]
        assert [index for _, index in stores] == held


def test_a_role_counts_its_threads_from_its_first_one():
    body = """
    with specialized():
        with role("consumer", first_thread=0, threads=64):
            for i in parallel(64, layout=LAYOUT):
                A[i] = float32(0.0)
        with role("producer", first_thread=64, threads=64):
            for j in parallel(64, layout=LAYOUT):
                A[j + 64] = float32(0.0)
    """
    result = lowered_loops(body, linear_fragment((64,), 64, 1))
    assert "A[tx] = " in result and "A[tx - 64 + 64] = " in result


# ---- replication

REPLICAS = {
    "inner": "Fragment(shape=(32,), padded=(32,), thread=Layout((32, 4), (1, 0)), value=Layout((1,), (1,)))",
    "outer": "Fragment(shape=(32,), padded=(32,), thread=Layout((4, 32), (0, 1)), value=Layout((1,), (1,)))",
    "middle": "Fragment(shape=(32,), padded=(32,), thread=Layout((4, 4, 8), (8, 0, 1)), value=Layout((1,), (1,)))",
    "two modes": (
        "Fragment(shape=(32,), padded=(32,), thread=Layout((2, 16, 2, 2), (0, 2, 0, 1)), value=Layout((1,), (1,)))"
    ),
    "everywhere": "Fragment(shape=(32,), padded=(32,), thread=Layout((128,), (0,)), value=Layout((32,), (1,)))",
}


@pytest.mark.parametrize("name", REPLICAS)
def test_one_replica_stores_to_memory_and_all_of_them_to_registers(name: str):
    body = f"""
    F = allocate_fragment(float32, (32,), layout={REPLICAS[name]})
    for i in parallel(32, layout={REPLICAS[name]}):
        F[i] = float32(1.0)
        A[i] = F[i]
    """
    result = apply(lower_loops, laid_out(body))
    stored = [index for stores in executed(result, 128).values() for _, (index,) in stores]
    assert Counter(stored) == Counter(range(32))
    first_store = nodes(result, Store)[0]
    assert first_store.buffer.scope is Scope.REGISTER
    guarded = {id(guard.then) for guard in nodes(result, If)}
    assert id(first_store) not in guarded and id(nodes(result, Store)[1]) in guarded


def test_atomics_run_in_one_replica():
    body = f"""
    for i in parallel(32, layout={REPLICAS["inner"]}):
        atomic(operator="add", buffer=A, indices=(i,), value=float32(1.0))
        atomic_store(buffer=A, indices=(i,), value=float32(1.0))
    """
    conditions = [print_node(guard.condition) for guard in nodes(apply(lower_loops, laid_out(body)), If)]
    assert conditions == ["tx % 4 == 0"] * 2


# ---- registers


def test_fragments_become_arrays_of_their_threads_registers():
    body = """
    F = allocate_fragment(float32, (32, 64), layout=LAYOUT)
    for i, j in parallel(32, 64, layout=LAYOUT):
        F[i, j] = B[i, j] * float32(2.0)
    """
    assert lowered_loops(body, linear_fragment((32, 64), 128, 4)) == text(
        """
        F = allocate_register(float32, (16,))
        for r in unrolled(0, 4, independent=True):
            for v in vectorized(0, 4):
                F[r * 4 + v] = B[r * 8 + tx // 16, tx % 16 * 4 + v] * float32(2.0)
        """
    )


def test_loops_that_index_registers_are_unrolled_with_any_start_and_step():
    body = """
    F = allocate_fragment(float32, (8, 128))
    for k in serial(7, 0, -2):
        for i in parallel(128):
            F[k, i] = A[i]
    for h in serial(0, 4):
        for j in parallel(128):
            A[j] = F[h * 2, j]
    for m in serial(0, 4):
        for l in parallel(128):
            A[l] = F[5, l]
    """
    result = apply(lower_loops, apply(infer_layouts, laid_out(body)))
    kinds = {loop.var.name: loop.kind for loop in nodes(result, For) if loop.var.name in "khm"}
    assert kinds == {"k": LoopKind.UNROLLED, "h": LoopKind.UNROLLED, "m": LoopKind.SERIAL}
    (store,) = [s for s in nodes(result, Store) if s.buffer.name == "F"]
    assert [evaluate(store.indices[0], {"k": k}) for k in range(7, 0, -2)] == [7, 5, 3, 1]


def test_a_loop_too_long_to_unroll_is_an_error_at_its_line():
    count = MOST_AXIS_UNROLL + 1
    body = f"""
    F = allocate_fragment(int8, ({count}, 32))
    for k in serial(0, {count}):
        for i in parallel(32):
            F[k, i] = int8(1)
    """
    program = apply(infer_layouts, laid_out(body, threads=32))
    with pytest.raises(LoweringError, match=f"a loop of {count} iterations indexes a fragment") as caught:
        lower_loops.run(program, target.get("sm_90a"), Options())
    assert caught.value.hint == "keep the tile in shared memory" and caught.value.location is not None


@pytest.mark.parametrize(
    ("use", "scope"),
    [
        ("s[0, 1] = s[1, 0]", Scope.REGISTER),
        ("for k in unrolled(0, 2):\n    s[k, 1] = s[1, k]", Scope.REGISTER),
        ("for k in serial(0, 2):\n    s[k, 1] = float32(1.0)", Scope.LOCAL),
        ("for k in serial(0, 2):\n    A[0] = s[0, k]", Scope.LOCAL),
        ("s[bx, 1] = float32(1.0)", Scope.LOCAL),
        ("s[cast(A[0], int32), 1] = float32(1.0)", Scope.LOCAL),
    ],
)
def test_a_scalar_fragment_indexed_by_a_variable_is_an_array_in_local_memory(use: str, scope: Scope):
    """Registers have no addresses; the emitter refuses a register that is not a constant."""
    result = apply(lower_loops, apply(infer_layouts, laid_out("s = allocate_fragment(float32, (2, 2))\n" + use)))
    (allocation,) = nodes(result, Allocate)
    assert allocation.buffer.scope is scope and allocation.buffer.shape == (4,)


def test_scalar_accesses_are_numbered_row_major():
    body = "s = allocate_fragment(float32, (2, 3))\ns[1, 2] = s[0, 1]"
    result = apply(lower_loops, apply(infer_layouts, laid_out(body)))
    (store,), (load,) = nodes(result, Store), nodes(result, Load)
    index: tuple[Expr, Expr] = (store.indices[0], load.indices[0])
    assert [evaluate(i, {}) for i in index] == [5, 1]


def test_scalar_fragments_with_variable_indices_run():
    program = kernel_program(
        """
        s = allocate_fragment(float32, (4,))
        for k in serial(0, 4):
            s[k] = X[k, 0] + float32(1.0)
        for i in parallel(128):
            Y[i] = s[3] + s[1]
        for j in parallel(4):
            Z[j] = s[3 - j]
        """,
        "X = tensor(float32, (4, 8))\nY = tensor(float32, (128,))\nZ = tensor(float32, (4,))",
    )
    x, y, z = torch.randn(4, 8), torch.empty(128), torch.empty(4)
    simulated(program, X=x, Y=y, Z=z)
    assert torch.equal(y, (x[3, 0] + 1 + (x[1, 0] + 1)).expand(128)) and torch.equal(z, x[:, 0].flip(0) + 1)


def test_without_parallel_loops_only_the_stage_changes():
    program = laid_out("A[0] = float32(0.0)")
    result = apply(lower_loops, program)
    assert result.stage == "thread" and result.kernels[0].body is program.kernels[0].body
