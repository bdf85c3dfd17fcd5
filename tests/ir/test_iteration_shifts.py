"""Rings of stages told apart: comparisons over iterations against running the loops in Python."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import kernel_context
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.conflicts import Overlap, Relation, compare
from ptxtile.ir.expressions import Expr, Var, constant, load
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statement_accesses import accesses
from ptxtile.ir.statements import For, LoopKind, Store, seq
from ptxtile.ir.types import int32

THREAD, K, N = Var("thread", int32), Var("k", int32), Var("n", int32)
S = allocate("S", Scope.SHARED, int32, (4096,))
R = allocate("R", Scope.REGISTER, int32, (1,))
THREADS, STAGE = 4, 16


def access(index: Expr, stop: Expr | int, conditions: tuple[Expr, ...] = (), start: int = 0) -> Access:
    """The write of ``S[index]`` by each thread in ``for k in range(start, stop)``, under uniform ``conditions``."""
    kernel = Kernel("f", (1, 1, 1), THREADS, (Var("x", int32), Var("y", int32), Var("z", int32)), THREAD, seq())
    context = kernel_context(Program("p", (), (kernel,), symbols=(N,), stage="gpu"), kernel)
    bound = constant(stop) if isinstance(stop, int) else stop
    context = context.with_loop(For(K, constant(start), bound, 1, LoopKind.SERIAL, seq()), symbolic=True)
    for condition in conditions:
        context = context.with_uniform_condition(condition)
    (found,) = accesses(Store(S, (index,), load(R, (constant(0),))), context)
    return found


def stage(step: int, stages: int) -> Expr:
    return (K + step if step else K) % stages * STAGE + THREAD


def meets(a: tuple[int, int], b: tuple[int, int], lag: int, trips: int, last_a: int, last_b: int, start: int) -> bool:
    """Whether two threads touch one word: by running all pairs of iterations."""
    iterations = range(start, trips)
    for i, j in product(iterations, iterations):
        apart = i == j if lag == 0 else j == i + 1 if lag == 1 else j > i
        if apart and i <= last_a and j <= last_b and (i + a[0]) % a[1] == (j + b[0]) % b[1]:
            return True
    return False


@settings(max_examples=150)
@given(
    st.integers(0, 6), st.integers(0, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2),
    st.integers(0, 45), st.booleans(), st.integers(0, 45), st.integers(0, 45),
    st.sampled_from(["no", "a", "b", "both"]),
)  # fmt: skip
def test_stages_of_rings(step_a, step_b, ring_a, ring_b, lag, start, trips, known, last_a, last_b, conditions) -> None:
    """Same threads, other threads' words never; so the stages alone decide (threads_matter False)."""
    last = {
        "a": last_a if conditions in ("a", "both") else 10**6,
        "b": last_b if conditions in ("b", "both") else 10**6,
    }
    sides = []
    for side, step, ring in (("a", step_a, ring_a), ("b", step_b, ring_b)):
        assumed = (K.le(last[side]),) if last[side] < 10**6 else ()
        sides.append(access(stage(step, ring), trips if known else N, assumed, start))
    relation = Relation((("k", lag),) if lag else ())
    found = compare(*sides, relation, threads_matter=False)
    longest = trips if known else start + 2 * 60 + 60  # rings of up to 6 stages repeat after at most 60 iterations
    expected = meets((step_a, ring_a), (step_b, ring_b), lag, longest, last["a"], last["b"], start)
    if expected:
        assert found is not Overlap.NONE
    elif known and trips <= start:
        pass  # that a loop has no iterations may go unnoticed: nothing in it runs
    elif conditions == "no" or (known and trips - start <= 32):
        assert found is Overlap.NONE


@pytest.mark.parametrize("stop", [N, 1000, 3000])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_the_accesses_of_a_pipelined_loop(stop, stages) -> None:
    """The load for iteration k + stages - 1 meets the use in iteration k - 1, and that in k only for one stage."""
    use, fill = access(stage(0, stages), stop), access(stage(stages - 1, stages), stop)
    assert compare(fill, use, threads_matter=False) is Overlap.NONE
    assert compare(use, fill, Relation((("k", 1),)), threads_matter=False) is not Overlap.NONE
    assert compare(fill, use, Relation((("k", 2),)), threads_matter=False) is not Overlap.NONE
    again = compare(fill, fill, Relation((("k", 1),)), threads_matter=False)
    assert again is Overlap.NONE


def test_a_stage_that_does_not_repeat_is_unknown() -> None:
    grows = access(K * K * STAGE + THREAD, N)
    assert compare(grows, grows, Relation((("k", 2),)), threads_matter=False) is Overlap.POSSIBLE


def test_conditions_say_which_iterations_there_are() -> None:
    first, other = access(constant(0) + THREAD, N, (K.eq(0),)), access(stage(1, 2), N)
    assert compare(first, other, threads_matter=False) is Overlap.NONE  # iteration 0 fills stage 1
    assert compare(access(constant(0) + THREAD, N), other, threads_matter=False) is not Overlap.NONE
