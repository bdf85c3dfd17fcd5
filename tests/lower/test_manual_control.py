"""What users synchronize by hand is kept, automatic barriers fit in around it, and misuse is an error at its line."""

from __future__ import annotations

import re

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import DeadlockError, PtxtileError, ResourceError, SimulationError
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.gpu_ops import TmaLoad
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import If, Role
from tests import ptxas
from tests.kernels.manual import multiply, ring
from tests.kernels.roles import copying_ring


def ptx_of(body, threads: int = 128, arch: str = "sm_90a") -> str:
    """The PTX of a kernel of one block with the given body on a tensor of 4096 floats."""

    @ptxtile.jit(target=arch)
    def kernel(A):
        A: T.Tensor((4096,), T.float32)
        with T.Kernel(1, threads=threads):
            body(A)

    return kernel.compile(A=torch.zeros(4096)).get_kernel_source()


def synchronization(ptx: str) -> list[str]:
    found = re.findall(r"^\s*((?:bar|barrier|fence|mbarrier|setmaxnreg|cp\.async\.bulk)\S*)(.*)$", ptx, re.MULTILINE)
    short = {"bar.sync": "sync", "bar.warp.sync": "warp", "fence.proxy.async.shared::cta;": "fence"}
    return [short.get(name, name) + (rest.split(";")[0] if name.startswith("bar.") else "") for name, rest in found]


@T.macro
def twice(A):
    T.sync_threads()
    T.sync_threads()
    T.fence_proxy_async()
    T.sync_warp()


@T.macro
def around(A):
    S = T.alloc_shared((128,), T.float32)
    for i in T.Parallel(128):
        S[i] = A[i]
    T.sync_threads()
    for i in T.Parallel(128):
        A[i] = S[127 - i]


@T.macro
def partly(A):
    S = T.alloc_shared((128,), T.float32)
    for i in T.Parallel(128):
        S[i] = A[i]
    if T.get_thread_binding() < 64:
        T.sync_threads(3, 64)
    for i in T.Parallel(128):
        A[i] = S[127 - i]


def test_synchronization_is_kept() -> None:
    found = synchronization(ptx_of(twice))
    assert found[:3] == ["sync 0", "sync 0", "fence"] and len(found) == 4


def test_a_barrier_of_all_threads_counts() -> None:
    """The one that stands there is enough; one of half of the threads is not."""
    assert synchronization(ptx_of(around)) == ["sync 0"]
    assert synchronization(ptx_of(partly)) == ["sync 3, 64", "sync 0"]


def test_what_the_ring_gets_beside_the_users_barriers() -> None:
    """The consumers' reads of a stage are fenced before the arrival that lets the next load in (PTX ISA, «Memory
    Consistency Model», proxies). All of the loading role wait for a stage to be empty and one arrives for them: they
    meet before, so that none is left behind by more than a phase."""
    kernel = ring.compile(A=torch.zeros(256, 64), C=torch.zeros(64, 64))
    found = synchronization(kernel.get_kernel_source())
    assert found.count("sync 0") == 1 and [name for name in found if name.startswith("sync")][1:] == ["sync 1, 128"]
    assert found.index("sync 0") > found.index("mbarrier.init.shared::cta.b64")
    assert found.count("fence") == 1 and found[found.index("fence") + 1].startswith("mbarrier.arrive")


def test_roles_by_hand_assemble() -> None:
    """ptxas honours setmaxnreg, and does not serialise the tensor cores."""
    square = torch.zeros(256, 256, dtype=torch.bfloat16)
    for kernel, tensors in (
        (ring, {"A": torch.zeros(256, 64), "C": torch.zeros(64, 64)}),
        (multiply, {"A": square, "B": square, "C": torch.zeros(256, 256)}),
    ):
        log = ptxas.assemble(kernel.compile(**tensors).get_kernel_source(), "sm_90a")
        assert not any(code in log for code in (*ptxas.IGNORED_SETMAXNREG, "C7510", "C7514")), log
        assert "0 bytes spill stores" in log


def paths_of_copies(columns: int) -> dict[str, str]:
    tensors = {name: torch.zeros(128, columns) for name in "AC"}
    why = copying_ring.compile(**tensors, columns=columns).why
    return {w.subject: w.decision for w in why if w.pass_name == "select_paths"}


def test_copies_in_roles_take_tma_where_it_is_legal() -> None:
    assert paths_of_copies(64) == {"copy A -> S": "tma_load", "copy R -> C": "tma_store"}
    assert paths_of_copies(30) == {"copy A -> S": "vector", "copy R -> C": "vector"}


def test_a_copy_in_a_role_is_the_affair_of_its_threads() -> None:
    """One thread of the role issues, the role's threads wait; between the roles there are the user's barriers alone."""
    kernel = copying_ring.compile(A=torch.zeros(128, 64), C=torch.zeros(128, 64))
    found = synchronization(kernel.get_kernel_source())
    assert sum(name.startswith("sync 0") for name in found) <= 2
    assert any(re.fullmatch(r"sync [1-9]\d*, 128", name) for name in found)
    assert sum(name.startswith("cp.async.bulk.tensor.2d.shared") for name in found) == 1
    loading = next(node for node in walk(kernel.variant.lowered().program.kernels[0].body)
                   if isinstance(node, Role) and any(isinstance(n, TmaLoad) for n in walk(node.body)))  # fmt: skip
    issue = next(n for n in walk(loading.body) if isinstance(n, If) and any(isinstance(m, TmaLoad) for m in walk(n)))
    assert [evaluate(issue.condition, {"thread": t}) for t in (0, 127, 128, 129, 255)] == [0, 0, 1, 0, 0]


# --- errors ---------------------------------------------------------------------------------------------------------


def message(body, kind: type[Exception] = PtxtileError, threads: int = 256) -> str:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((4096,), T.float32)
        with T.Kernel(1, threads=threads):
            body(A)

    with pytest.raises(kind) as caught:
        kernel(torch.zeros(4096))
    return str(caught.value)


@T.macro
def divergent_barrier(A):
    if T.get_thread_binding() < 5:
        T.sync_threads()


@T.macro
def barrier_under_data(A):
    if A[T.get_thread_binding()] > 0:
        T.sync_threads()


@T.macro
def barrier_in_a_parallel_loop(A):
    for i in T.Parallel(64):
        T.sync_threads()


@T.macro
def a_barrier_with_the_wrong_id(A):
    T.sync_threads(16, 64)


@T.macro
def a_barrier_of_half_a_warp(A):
    T.sync_threads(1, 48)


@T.macro
def barriers_in_a_loop(A):
    for _ in range(3):
        T.alloc_barrier(1)


@T.macro
def all_barriers_at_once(A):
    bars = T.alloc_barrier([1, 1])
    T.barrier_wait(bars, 0)


@T.macro
def a_barrier_that_is_none(A):
    T.barrier_wait(A[0], 0)


@T.macro
def a_copy_without_a_barrier(A):
    S = T.alloc_shared((1024,), T.float32)
    T.tma_copy(A[0], S)


@T.macro
def a_copy_that_tma_cannot_do(A):
    S = T.alloc_shared((1024,), T.float32)
    bar = T.alloc_barrier(1)
    T.tma_copy(A[3], S, barrier=bar)


@T.macro
def registers_outside_of_roles(A):
    T.set_max_nreg(40, 0)


@T.macro
def an_odd_number_of_registers(A):
    with T.ws(0):
        T.set_max_nreg(41, 0)


@T.macro
def too_many_registers(A):
    T.annotate_min_blocks_per_sm(2)
    with T.ws(0):
        T.inc_max_nreg(240)
    with T.ws(1):
        T.inc_max_nreg(240)
        A[0] = 1


@T.macro
def a_warpgroup_too_many(A):
    with T.ws(2):
        A[0] = 1


@T.macro
def warpgroups_apart(A):
    with T.ws(0, 2):
        A[0] = 1


@T.macro
def roles_in_roles(A):
    with T.ws(0), T.ws(0):
        A[0] = 1


@T.macro
def roles_without_order(A):
    S = T.alloc_shared((128,), T.float32)
    with T.ws(0):
        for i in T.Parallel(128):
            S[i] = A[i]
    with T.ws(1):
        for i in T.Parallel(128):
            A[i] = S[127 - i]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (divergent_barrier, "T.sync_threads() is reached by only some of the threads"),
        (barrier_under_data, "T.sync_threads() is reached by only some of the threads"),
        (barrier_in_a_parallel_loop, "T.sync_threads inside of T.Parallel"),
        (a_barrier_with_the_wrong_id, "a number from 1 to 15"),
        (a_barrier_of_half_a_warp, "a multiple of 32"),
        (barriers_in_a_loop, "T.alloc_barrier under control flow"),
        (all_barriers_at_once, "all 2 barriers"),
        (a_barrier_that_is_none, "one barrier of T.alloc_barrier"),
        (a_copy_without_a_barrier, "without a barrier"),
        (a_copy_that_tma_cannot_do, "not known to be a multiple of 16 bytes"),
        (registers_outside_of_roles, "outside of T.ws"),
        (an_odd_number_of_registers, "a multiple of 8"),
        (too_many_registers, "more registers than"),
        (a_warpgroup_too_many, "threads=384 or more"),
        (warpgroups_apart, "consecutive"),
        (roles_in_roles, "T.ws inside of T.ws"),
        (roles_without_order, "both touch S and nothing orders them"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors(body, words: str) -> None:
    found = message(body)
    assert words in found and "test_manual_control.py" in found, found


def test_registers_are_counted_without_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_VERIFY", "0")
    found = message(too_many_registers, ResourceError)
    assert "group_0: 128 threads × 240, group_1: 128 threads × 240" in found and "at most 32768" in found


@T.macro
def a_wait_for_nothing(A):
    bar = T.alloc_barrier(2)
    T.barrier_wait(bar, 0)


@T.macro
def a_false_assertion(A):
    T.device_assert(A[7] > 0, "element 7 has to be positive")


def test_a_wait_for_nothing_is_found() -> None:
    found = message(a_wait_for_nothing, DeadlockError)
    assert "parity 0" in found and "2 missing" in found and "test_manual_control.py" in found


def test_a_false_assertion_is_found() -> None:
    found = message(a_false_assertion, SimulationError)
    assert "element 7 has to be positive" in found and "test_manual_control.py" in found


# --- inline PTX -----------------------------------------------------------------------------------------------------

TEMPLATES = (
    "mov.b32 $0, %laneid;", "$", "$x", "mov $", "mov.b32 $0, $1", "$0 $2", "$$0", "bra $L__BB0_1;", "$0$", "${0:x}",
    "$(a$|b$)", "mov.b32 $0, $$1;", "a\0b", "\N{SNOWMAN} $0", '"; ret; //', "\\", "{$0}", "${:uid}", "$0 ${:uid}",
    "${:comment} $0", "%r0 $0", "$00", "$-1", "", "   ", "$0" * 1000, "$99999999999999999999",
)  # fmt: skip
"""Texts of which LLVM takes some and ends the process on others."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_ends_the_process(template: str) -> None:
    """It is compiled, or it is an error at its line."""

    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((64,), T.int32)
        with T.Kernel(1, threads=32):
            A[T.get_thread_binding()] = T.ptx(template, T.int32)

    try:
        outcome = kernel.compile(A=torch.zeros(64, dtype=torch.int32)).get_kernel_source()
    except PtxtileError as error:
        outcome = str(error)
    assert "inline asm" in outcome or "test_manual_control.py" in outcome


@T.macro
def an_unused_operand(A):
    T.ptx("mov.b32 $0, 1;", T.int32, [A[0]])


@T.macro
def a_bool(A):
    T.ptx("mov.b32 $0, $1;", T.int32, [A[0] > 0])


@T.macro
def an_output_that_is_a_value(A):
    T.ptx("mov.b32 $0, 1;", [A[0]])


@T.macro
def a_buffer(A):
    T.ptx("mov.b32 $0, $1;", T.int32, [A])


@T.macro
def what_only_a_card_can_do(A):
    T.ptx("prefetch.global.L2 [$0];", ins=[T.int64(4096)])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (an_unused_operand, "the operand $1 is not used"),
        (a_bool, "fits no PTX register"),
        (an_output_that_is_a_value, "a dtype, such as T.float32"),
        (a_buffer, "not a scalar"),
        (what_only_a_card_can_do, "can only run on a card"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors_of_inline_ptx(body, words: str) -> None:
    found = message(body)
    assert words in found and "test_manual_control.py" in found, found


def test_inline_ptx_is_neither_copied_nor_dropped() -> None:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((64,), T.int32)
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            first = T.ptx("mov.u32 $0, %clock;", T.int32)
            second = T.ptx("mov.u32 $0, %clock;", T.int32)
            if tx > 3:
                T.ptx("nanosleep.u32 $0;", ins=[100])
            A[tx] = second - first
            T.ptx("// nothing but a remark")

    source = kernel.compile(A=torch.zeros(64, dtype=torch.int32)).get_kernel_source()
    assert source.count("%clock") == 2 and source.count("nanosleep") == 1 and source.count("a remark") == 1
