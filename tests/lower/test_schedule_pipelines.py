"""T.Pipelined with order and stage: what is accepted, what becomes of it, and what it computes; and the mistakes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import LoweringError, PtxtileError
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import TmaLoad
from ptxtile.ir.names import NameSupply
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, For, Let, ParallelFor, Statement
from ptxtile.kernel import JITKernel
from ptxtile.lower.fresh_copies import fresh_copy
from tests.clusters.simulate import nodes, outputs, policies, specialized
from tests.frontend.tracing import traced

TRIPS = 7


# --- bodies: what each iteration does, with the model of it --------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A statement as a reader and writer of memories by name."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """A kernel and the model of its loop. ``tiles``: memories that an iteration sets before it reads them, in shared
    memory, so that each iteration can have one of its own. ``expected``: from A, of shape (TRIPS, 16, 32)."""

    kernel: Any
    steps: tuple[Step, ...]
    tiles: frozenset[str]
    expected: Callable[[torch.Tensor], torch.Tensor]


@ptxtile.jit
def through_two_tiles(A, order=(), stage=()):
    A: T.Tensor((TRIPS, 16, 32), T.float32)
    C = T.empty((TRIPS, 16, 32), T.float32)
    with T.Kernel(1, threads=64):
        S, R = T.alloc_shared((16, 32), T.float32), T.alloc_shared((16, 32), T.float32)
        for k in T.Pipelined(TRIPS, order=list(order), stage=list(stage)):
            T.copy(A[k, 0, 0], S)
            for i, j in T.Parallel(16, 32):
                R[i, j] = S[15 - i, j] + k
            for i, j in T.Parallel(16, 32):
                C[k, i, j] = R[i, 31 - j] * 2
    return C


@ptxtile.jit
def running_sums(A, order=(), stage=()):
    A: T.Tensor((TRIPS, 16, 32), T.float32)
    C = T.empty((TRIPS, 16, 32), T.float32)
    with T.Kernel(1, threads=64):
        S, total = T.alloc_shared((16, 32), T.float32), T.alloc_fragment((16, 32), T.float32)
        T.clear(total)
        for k in T.Pipelined(TRIPS, order=list(order), stage=list(stage)):
            T.copy(A[k, 0, 0], S)
            for i, j in T.Parallel(16, 32):
                total[i, j] += S[i, j]
            T.copy(total, C[k, 0, 0])
    return C


@ptxtile.jit
def in_halves(A, order=(), stage=()):
    """A tile that two copies fill: neither sets all of it."""
    A: T.Tensor((TRIPS, 16, 32), T.float32)
    C = T.empty((TRIPS, 16, 32), T.float32)
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((16, 32), T.float32)
        for k in T.Pipelined(TRIPS, order=list(order), stage=list(stage)):
            T.copy(A[k, 0, 0], S[0:8, 0:32])
            T.copy(A[k, 8, 0], S[8:16, 0:32])
            for i, j in T.Parallel(16, 32):
                C[k, i, j] = S[15 - i, j]
    return C


@ptxtile.jit
def from_the_last(A, order=(), stage=()):
    """Each iteration uses the tile of the one before."""
    A: T.Tensor((TRIPS, 16, 32), T.float32)
    C = T.empty((TRIPS, 16, 32), T.float32)
    with T.Kernel(1, threads=64):
        S, R = T.alloc_shared((16, 32), T.float32), T.alloc_shared((16, 32), T.float32)
        T.clear(S)
        for k in T.Pipelined(TRIPS, order=list(order), stage=list(stage)):
            T.copy(S, R)
            T.copy(A[k, 0, 0], S)
            for i, j in T.Parallel(16, 32):
                C[k, i, j] = R[15 - i, j] + S[15 - i, j]
    return C


COUNT = torch.arange(float(TRIPS))[:, None, None]
BODIES = {
    "through two tiles": Body(
        through_two_tiles, (Step((), ("S",)), Step(("S",), ("R",)), Step(("R",), ("C",))), frozenset("SR"),
        lambda a: (a.flip(1, 2) + COUNT) * 2,
    ),
    "running sums": Body(
        running_sums, (Step((), ("S",)), Step(("S", "total"), ("total",)), Step(("total",), ("C",))), frozenset("S"),
        lambda a: a.cumsum(0),
    ),
    "in halves": Body(
        in_halves, (Step(("S",), ("S",)), Step(("S",), ("S",)), Step(("S",), ("C",))), frozenset(), lambda a: a.flip(1)
    ),
    "from the last": Body(
        from_the_last, (Step(("S",), ("R",)), Step((), ("S",)), Step(("R", "S"), ("C",))), frozenset("R"),
        lambda a: (a + torch.cat([torch.zeros(1, 16, 32), a[:-1]])).flip(1),
    ),
}  # fmt: skip


def observed(body: Body, order: tuple[int, ...], stage: tuple[int, ...]) -> Any:
    """What each statement of each iteration reads, and what is left, when issued by step and then by order."""
    number = len(body.steps)
    events = sorted((k + stage[s], order[s], k, s) for k in range(TRIPS) for s in range(number))
    memory: dict[Any, int] = {}
    seen = {}
    for _, _, k, s in events:
        step = body.steps[s]
        values = tuple(memory.get((m, k if m in body.tiles else 0), 0) for m in step.reads)
        seen[k, s] = values
        for m in step.writes:
            memory[m, k if m in body.tiles else 0] = hash((s, k, values))
    return seen, memory


def schedules(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(order, stage) for order in permutations(range(count)) for stage in product(range(3), repeat=count)]


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_a_schedule_is_taken_if_it_keeps_the_result(name: str, target: str, request: pytest.FixtureRequest) -> None:
    body, source = BODIES[name], random.Random(f"{request.config.option.random_seed}{name}{target}")
    sequential = observed(body, (0, 1, 2), (0, 0, 0))
    taken: dict[bool, list[Any]] = {True: [], False: []}
    for schedule in schedules(3):
        taken[observed(body, *schedule) == sequential].append(schedule)
    a = torch.randint(-8, 9, (TRIPS, 16, 32), generator=torch.Generator().manual_seed(source.getrandbits(32))).float()
    for order, stage in source.sample(taken[True], min(8, len(taken[True]))):
        kernel = specialized(body.kernel, target, order=order, stage=stage)
        for effects in policies([0]):
            assert torch.equal(outputs(kernel.program, effects, A=a)["C"], body.expected(a)), (order, stage)
    for order, stage in source.sample(taken[False], 8):
        with pytest.raises(LoweringError, match="order and stage of T.Pipelined"):
            specialized(body.kernel, target, order=order, stage=stage)


# --- what becomes of it -------------------------------------------------------------------------------------------


def decisions(kernel: JITKernel) -> list[str]:
    return [f"{why.decision}: {why.reason}" for why in kernel.why if why.pass_name == "schedule_pipelines"]


def test_the_plan_of_the_compiler_is_left_to_it() -> None:
    kernel = specialized(through_two_tiles, "sm_90a", order=(0, 1, 2), stage=(0, 2, 2))
    assert decisions(kernel) == ["num_stages=3: order and stage are those of the compiler's own plan"]


@pytest.mark.parametrize(("target", "engine", "kind"), [("sm_90a", "TMA", TmaLoad), ("sm_80", "cp.async", CpAsync)])
def test_copies_run_ahead(target: str, engine: str, kind: type) -> None:
    """One load in each of the two steps before the loop, one in the loop; two versions of R, as it is read a step after
    it is written and in the same step before the next one is."""
    kernel = specialized(through_two_tiles, target, order=(2, 0, 1), stage=(0, 1, 2))
    assert decisions(kernel) == [f"3 stages in the order given: 2 versions of R; ahead: S by {engine}"]
    assert len(nodes(kernel.program, kind)) == 3
    tiles = {n.buffer.name: n.buffer for n in nodes(kernel.program, Allocate) if n.buffer.scope is Scope.SHARED}
    sizes = {name: tile.static_shape for name, tile in tiles.items() if name in "SR"}
    assert {name: torch.Size(shape).numel() for name, shape in sizes.items()} == {"S": 512, "R": 1024}


def test_a_copy_in_the_stage_of_its_use_waits() -> None:
    kernel = specialized(through_two_tiles, "sm_80", order=(0, 1, 2), stage=(0, 0, 1))
    assert decisions(kernel) == ["2 stages in the order given: 2 versions of R; no copy runs ahead"]


def test_statements_under_names_of_their_own() -> None:
    """Loops, scalars and allocations of a copy have other names than the original's, and free ones their values."""
    program = traced(nested)
    ((loop),) = [n for n in walk(program.kernels[0].body) if isinstance(n, For)]
    copy = fresh_copy(loop.body, {loop.var.name: loop.start}, NameSupply(program))
    assert isinstance(copy, Statement)
    assert Counter(type(n) for n in walk(copy) if isinstance(n, Statement)) == Counter(
        type(n) for n in walk(loop.body) if isinstance(n, Statement)
    )
    assert not binders(copy) & binders(loop.body) and loop.var.name not in {getattr(n, "name", "") for n in walk(copy)}


def binders(node: Statement) -> set[str]:
    found: set[str] = set()
    for n in walk(node):
        match n:
            case Let() | For():
                found.add(n.var.name)
            case ParallelFor():
                found |= {var.name for var in n.vars}
            case Allocate():
                found |= {n.buffer.name, n.buffer.storage.name}
    return found


def nested(A):
    A: T.Tensor((64,), T.float32)
    with T.Kernel(1, threads=32):
        for k in T.serial(2):
            S = T.alloc_shared((32,), T.float32)
            start = k * 32
            for i in T.Parallel(32):
                S[i] = A[start + i]
            for i in T.Parallel(32):
                A[start + i] = S[31 - i]


# --- mistakes -------------------------------------------------------------------------------------------------------


def message(body: Any, kind: type[Exception] = PtxtileError) -> str:
    @ptxtile.jit(target="sm_90a")
    def kernel(A, C):
        A: T.Tensor((8, 32, 32), T.float32)
        C: T.Tensor((8, 32, 32), T.float32)
        with T.Kernel(1, threads=64):
            body(A, C)

    with pytest.raises(kind) as caught:
        kernel.compile(A=torch.zeros(8, 32, 32), C=torch.zeros(8, 32, 32)).variant.lowered()
    return str(caught.value)


@T.macro
def pipeline(A, C, order, stage, **more):
    S = T.alloc_shared((32, 32), T.float32)
    for k in T.Pipelined(8, order=order, stage=stage, **more):
        T.copy(A[k, 0, 0], S)
        for i, j in T.Parallel(32, 32):
            A[k, i, j] = S[j, i]


@T.macro
def too_few(A, C):
    pipeline(A, C, [0], [0])


@T.macro
def too_many(A, C):
    pipeline(A, C, [0, 1, 2], [0, 1, 1])


@T.macro
def no_order(A, C):
    pipeline(A, C, None, [0, 1])


@T.macro
def no_stage(A, C):
    pipeline(A, C, [0, 1], None)


@T.macro
def unequal(A, C):
    pipeline(A, C, [0, 1], [0])


@T.macro
def twice_the_same(A, C):
    pipeline(A, C, [0, 0], [0, 1])


@T.macro
def before_the_first(A, C):
    pipeline(A, C, [0, 1], [-1, 0])


@T.macro
def no_list(A, C):
    pipeline(A, C, 1, [0, 1])


@T.macro
def floats(A, C):
    pipeline(A, C, [0, 1], [0.0, 1])


@T.macro
def with_sync(A, C):
    pipeline(A, C, [0, 1], [0, 1], sync=[[0, 1]])


@T.macro
def with_group(A, C):
    pipeline(A, C, [0, 1], [0, 1], group=[[0], [1]])


@T.macro
def use_before_load(A, C):
    pipeline(A, C, [1, 0], [0, 0])


@T.macro
def load_in_a_later_stage(A, C):
    pipeline(A, C, [0, 1], [1, 0])


@T.macro
def the_tensor_is_read_ahead(A, C):
    """The copy of the next iteration reads A before this one has written it."""
    pipeline(A, C, [0, 1], [0, 1])


@T.macro
def a_fragment_ahead(A, C):
    F = T.alloc_fragment((32, 32), T.float32)
    for k in T.Pipelined(8, order=[0, 1], stage=[0, 1]):
        T.copy(A[k, 0, 0], F)
        T.copy(F, C[k, 0, 0])


@T.macro
def used_after_the_loop(A, C):
    S = T.alloc_shared((32, 32), T.float32)
    for k in T.Pipelined(7, order=[0, 1], stage=[0, 1]):
        T.copy(A[k, 0, 0], S)
        for i, j in T.Parallel(32, 32):
            C[k, i, j] = S[j, i]
    T.copy(S, A[7, 0, 0])


@T.macro
def a_break(A, C):
    S = T.alloc_shared((32, 32), T.float32)
    for k in T.Pipelined(8, order=[0, 1], stage=[0, 1]):
        T.copy(A[k, 0, 0], S)
        if A[k, 0, 0] > 3:
            break


@T.macro
def a_continue(A, C):
    S = T.alloc_shared((32, 32), T.float32)
    for k in T.Pipelined(8, order=[0, 1, 2], stage=[0, 1, 1]):
        T.copy(A[k, 0, 0], S)
        if k == 3:
            continue
        for i, j in T.Parallel(32, 32):
            C[k, i, j] = S[j, i]


@T.macro
def a_barrier(A, C):
    S = T.alloc_shared((32, 32), T.float32)
    for k in T.Pipelined(8, order=[0, 1, 2], stage=[0, 0, 1]):
        T.copy(A[k, 0, 0], S)
        T.sync_threads()
        for i, j in T.Parallel(32, 32):
            C[k, i, j] = S[j, i]


MISTAKES = [
    (too_few, "2 numbers each, one for each statement (Copy at line ", "got:      1"),
    (too_many, "2 numbers each, one for each statement (Copy at line ", "got:      3"),
    (no_order, "order of T.Pipelined", "a list of ints, for both order and stage"),
    (no_stage, "stage of T.Pipelined", "a list of ints, for both order and stage"),
    (unequal, "order and stage of T.Pipelined", "got:      2 and 1 numbers"),
    (twice_the_same, "order of T.Pipelined", "expected: each of 0 to 1 once"),
    (before_the_first, "stage of T.Pipelined", "expected: numbers ≥ 0"),
    (no_list, "order of T.Pipelined", "got:      1"),
    (floats, "stage of T.Pipelined", "got:      [0.0, 1]"),
    (with_sync, "sync of T.Pipelined", "expected: order and stage"),
    (with_group, "group of T.Pipelined", "expected: order and stage"),
    (use_before_load, "issue a statement before one that it depends on", "got:      stage 0, order 0, where"),
    (load_in_a_later_stage, "issue a statement before one that it depends on", "where the other has stage 1, order 0"),
    (the_tensor_is_read_ahead, "would need 2 versions of A", "only a shared tile that the loop alone uses"),
    (a_fragment_ahead, "would need 2 versions of F", "only a shared tile that the loop alone uses"),
    (used_after_the_loop, "would need 2 versions of S", "only a shared tile that the loop alone uses"),
    (a_break, "`break` in T.Pipelined", "use T.serial"),
    (a_continue, "`continue` in T.Pipelined", "use T.serial"),
    (a_barrier, "a loop with order and stage synchronizes by hand", "got:      BarSync"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "first", "second"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_mistakes(body: Any, first: str, second: str) -> None:
    found = message(body)
    assert first in found and second in found and "test_schedule_pipelines.py" in found, found


def test_a_tile_that_carries_over_has_no_versions() -> None:
    with pytest.raises(LoweringError) as caught:
        specialized(in_halves, "sm_90a", order=(0, 1, 2), stage=(0, 0, 1))
    assert "would need 2 versions of S" in str(caught.value) and "an earlier one left in S" in str(caught.value)
