"""T.pdl_sync and T.pdl_trigger: what they become, where the wait moves, and that no access moves up over it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import PtxtileError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import TmaLoad, TmaStore
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Role, Seq, Specialized
from tests.ptxas import assemble

TARGETS = ("sm_90a", "sm_100a", "sm_120a")


def lowered(kernel: Any, target: str = "sm_90a", options: dict[str, Any] | None = None, **named: Any) -> Program:
    return ptxtile.jit(kernel, target=target, **(options or {})).compile(**named).variant.lowered().program


def touched(program: Program) -> tuple[set[str], set[str]]:
    """The tensors that the first kernel touches in front of its only wait, and behind it, in program order."""
    (kernel,) = program.kernels
    (wait,) = (node for node in walk(kernel.body) if isinstance(node, GridDependencyWait))
    assert isinstance(kernel.body, Seq) and any(statement is wait for statement in kernel.body.statements)
    of_map = {record.name: record.tensor for record in program.tensor_maps}
    sides: tuple[set[str], set[str]] = (set(), set())
    behind = False
    for node in walk(kernel.body):
        behind |= node is wait
        if isinstance(node, (TmaLoad, TmaStore)):
            sides[behind].add(of_map[node.tensor_map])
        sides[behind].update(buffer.storage.name for buffer in buffers_of(node) if buffer.scope is Scope.GLOBAL)
    return sides


def decisions(program: Program) -> list[str]:
    return [record.decision for record in program.why if "T.pdl" in record.subject or "T.pdl" in record.decision]


# --- the wait stays where it is ---------------------------------------------------------------------------------------


def weights_first(W, X, Y, trigger=False):
    """The tile of W may be loaded early, that of X and the store to Y may not."""
    W: T.Tensor((64, 64), T.float32)
    X: T.Tensor((64, 64), T.float32)
    Y: T.Tensor((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        W_shared = T.alloc_shared((64, 64), T.float32)
        X_shared = T.alloc_shared((64, 64), T.float32)
        T.copy(W, W_shared)
        T.pdl_sync()
        if trigger:
            T.pdl_trigger()
        T.copy(X, X_shared)
        for i, j in T.Parallel(64, 64):
            Y[i, j] = W_shared[i, j] * X_shared[i, j]


def elements(W, X, Y):
    W: T.Tensor((64, 64), T.float32)
    X: T.Tensor((64, 64), T.float32)
    Y: T.Tensor((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        w = T.alloc_fragment((64, 64), T.float32)
        for i, j in T.Parallel(64, 64):
            w[i, j] = W[i, j] * 2
        scale = W[3, 4]
        T.pdl_sync()
        for i, j in T.Parallel(64, 64):
            Y[i, j] = w[i, j] * X[i, j] + scale


def pipelined(W, X, Y, stages=3):
    """The loads of the first loop may run early; those of the second one run ahead of their use, not of the wait."""
    W: T.Tensor((64, 256), T.float16)
    X: T.Tensor((64, 256), T.float16)
    Y: T.Tensor((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), T.float16)
        b = T.alloc_shared((64, 32), T.float16)
        total = T.alloc_fragment((64, 64), T.float32)
        T.clear(total)
        for k in T.Pipelined(8, num_stages=stages):
            T.copy(W[0, k * 32], a)
            T.gemm(a, a, total, transpose_B=True)
        T.pdl_sync()
        for k in T.Pipelined(8, num_stages=stages):
            T.copy(X[0, k * 32], b)
            T.gemm(b, b, total, transpose_B=True)
        T.copy(total, Y)


def shape(kernel: Any) -> dict[str, torch.Tensor]:
    wide = kernel is pipelined
    dtype = torch.float16 if wide else torch.float32
    tensors = {name: torch.randn(64, 256 if wide else 64).to(dtype) for name in ("W", "X")}
    return tensors | {"Y": torch.full((64, 64), float("nan"))}


def expected(kernel: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    w, x = tensors["W"].double(), tensors["X"].double()
    if kernel is pipelined:
        return w @ w.T + x @ x.T
    return w * x if kernel is weights_first else 2 * w * x + w[3, 4]


WITHOUT_ROLES = {"disable_tma": True, "specialize_warps": False}


@pytest.mark.parametrize("options", [{"specialize_warps": False}, WITHOUT_ROLES], ids=["tma", "no tma"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [weights_first, elements, pipelined])
def test_no_access_moves_up_over_the_wait(kernel, target: str, options: dict[str, Any]) -> None:
    tensors = shape(kernel)
    program = lowered(kernel, target, options, **tensors)
    assert touched(program) == ({"W"}, {"X", "Y"})
    assert decisions(program) == [] and program.launch.launches[0].dependent_launch
    assert [r.reason for r in program.why if r.pass_name == "overlap_launches"] == ["and waits for it at T.pdl_sync"]
    compiled = ptxtile.jit(kernel, target=target, **options)
    compiled(**tensors)
    torch.testing.assert_close(tensors["Y"].double(), expected(kernel, tensors), rtol=2e-3, atol=2e-2)
    ptx = compiled.compile(**tensors).ptx
    assert ptx.count("griddepcontrol.wait;") == 1 and "ld.global.nc" not in ptx
    assemble(ptx, target)


def test_the_wait_is_the_users_whatever_the_option_says() -> None:
    for dependent_launch in (True, False):
        program = lowered(weights_first, options={"dependent_launch": dependent_launch}, **shape(weights_first))
        assert touched(program) == ({"W"}, {"X", "Y"}) and program.launch.launches[0].dependent_launch


def test_a_trigger_stays_and_is_no_wait() -> None:
    tensors = shape(weights_first)
    program = lowered(weights_first, **tensors, trigger=True)
    (kernel,) = program.kernels
    ops = [type(node) for node in walk(kernel.body) if isinstance(node, (GridDependencyWait, LaunchDependents))]
    assert ops == [GridDependencyWait, LaunchDependents] and touched(program) == ({"W"}, {"X", "Y"})

    @ptxtile.jit(target="sm_90a")
    def only_a_trigger(A):
        A: T.Tensor((64,), T.float32)
        with T.Kernel(1, threads=64):
            if T.get_thread_binding() == 0:
                T.pdl_trigger()
            for i in T.Parallel(64):
                A[i] = i

    compiled = only_a_trigger.compile(A=torch.zeros(64))
    program = compiled.variant.lowered().program
    assert touched(program) == (set(), {"A"})  # the compiler's own wait
    assert compiled.ptx.index("griddepcontrol.launch_dependents;") > 0
    assemble(compiled.ptx, "sm_90a")


# --- the wait moves ---------------------------------------------------------------------------------------------------


def test_in_front_of_the_roles() -> None:
    program = lowered(pipelined, **shape(pipelined))
    assert touched(program) == (set(), {"W", "X", "Y"})
    assert decisions(program) == ["in front of the roles"]
    (kernel,) = program.kernels
    assert {node.name for node in walk(kernel.body) if isinstance(node, Role)} == {"consumer", "producer"}
    assert not any(isinstance(node, GridDependencyWait) for role in walk(kernel.body) if isinstance(role, Specialized)
                   for node in walk(role))  # fmt: skip
    tensors = shape(pipelined)
    ptxtile.jit(pipelined, target="sm_90a")(**tensors)
    torch.testing.assert_close(tensors["Y"].double(), expected(pipelined, tensors), rtol=2e-3, atol=2e-2)


def in_a_loop(A, B):
    A: T.Tensor((64,), T.float32)
    B: T.Tensor((64,), T.float32)
    with T.Kernel(1, threads=64):
        for n in T.serial(3):
            for i in T.Parallel(64):
                B[i] = A[i] + n
            T.pdl_sync()


def in_a_pipelined_loop(A, B):
    A: T.Tensor((64,), T.float32)
    B: T.Tensor((64,), T.float32)
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((32,), T.float32)
        for n in T.Pipelined(2, num_stages=2):
            T.copy(A[n * 32], S)
            T.pdl_sync()
            T.copy(S, B[n * 32])


def in_a_branch(A, B):
    A: T.Tensor((64,), T.float32)
    B: T.Tensor((64,), T.float32)
    with T.Kernel(2, threads=64) as block:
        if block == 1:
            for i in T.Parallel(64):
                B[i] = A[i]
            T.pdl_sync()
        else:
            T.pdl_sync()
        T.pdl_sync()


def in_a_role(A, B):
    A: T.Tensor((64,), T.float32)
    B: T.Tensor((64,), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64,), T.float32)
        full = T.alloc_barrier(128)
        with T.ws(0):
            T.mbarrier_wait_parity(full, 0)
            for i in T.Parallel(64):
                B[i] = S[i]
        with T.ws(1):
            T.pdl_sync()
            for i in T.Parallel(64):
                S[i] = A[i]
            T.barrier_arrive(full)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "place"),
    [(in_a_loop, "a loop"), (in_a_pipelined_loop, "a loop"), (in_a_branch, "a branch"), (in_a_role, "T.ws")],
)
def test_in_front_of_loops_branches_and_roles(kernel, place: str, target: str) -> None:
    tensors = {"A": torch.randn(64), "B": torch.full((64,), float("nan"))}
    program = lowered(kernel, target, **tensors)
    assert touched(program) == (set(), {"A", "B"})
    assert decisions(program) == [f"moved in front of {place}"]
    (record,) = (record for record in program.why if record.pass_name == "hoist_dependency_waits")
    assert record.location.file.endswith("test_hoist_dependency_waits.py")
    compiled = ptxtile.jit(kernel, target=target)
    compiled(**tensors)
    torch.testing.assert_close(tensors["B"], tensors["A"] + (2 if kernel is in_a_loop else 0))
    assemble(compiled.compile(**tensors).ptx, target)


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
@pytest.mark.parametrize("kernel", [weights_first, pipelined])
def test_older_targets_leave_them_out(kernel, target: str) -> None:
    tensors = shape(kernel)
    compiled = ptxtile.jit(kernel, target=target).compile(**tensors)
    program = compiled.variant.lowered().program
    assert "griddepcontrol" not in compiled.ptx and not program.launch.launches[0].dependent_launch
    assert decisions(program) == ["no T.pdl_sync, no T.pdl_trigger"]
    ptxtile.jit(kernel, target=target)(**tensors)
    torch.testing.assert_close(tensors["Y"].double(), expected(kernel, tensors), rtol=2e-3, atol=2e-2)


def test_a_cooperative_launch_is_not_early() -> None:
    def kernel(A):
        A: T.Tensor((2, 32), T.float32)
        with T.Kernel(2, threads=32) as block:
            T.pdl_sync()
            for i in T.Parallel(32):
                A[block, i] = i
            T.sync_grid()
            for i in T.Parallel(32):
                A[block, i] = A[1 - block, i] + 1

    program = lowered(kernel, A=torch.zeros(2, 32))
    (launch,) = program.launch.launches
    assert launch.cooperative and not launch.dependent_launch
    assert [r.reason for r in program.why if r.pass_name == "overlap_launches"] == [
        "the launch is cooperative (T.sync_grid)"
    ]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@T.macro
def in_some_threads():
    if T.get_thread_binding() < 32:
        T.pdl_sync()


@T.macro
def in_one_thread_of_a_role():
    with T.ws(0):
        if T.get_thread_binding() == 0:
            T.pdl_sync()


@T.macro
def in_a_parallel_loop():
    for i in T.Parallel(64):
        T.pdl_sync()


@T.macro
def a_trigger_in_a_parallel_loop():
    for i in T.Parallel(64):
        T.pdl_trigger()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (in_some_threads, "this T.pdl_sync() is reached by only some of the threads"),
        (in_one_thread_of_a_role, "this T.pdl_sync() is reached by only some of the threads"),
        (in_a_parallel_loop, "T.pdl_sync inside of T.Parallel"),
        (a_trigger_in_a_parallel_loop, "T.pdl_trigger inside of T.Parallel"),
    ],
)
def test_errors(body, words: str) -> None:
    @ptxtile.jit(target="sm_90a")
    def kernel(A):
        A: T.Tensor((128,), T.float32)
        with T.Kernel(1, threads=128):
            body()
            for i in T.Parallel(128):
                A[i] = i

    with pytest.raises(PtxtileError) as caught:
        kernel.compile(A=torch.zeros(128))
    assert words in str(caught.value) and "test_hoist_dependency_waits.py" in str(caught.value), str(caught.value)
