"""Dependent launches: where the wait for the kernels in front stands, and which launches are early.

The property, for every example and target: no thread touches global memory before it has waited. What touches it is
told here from the operands of each node and from PTX, not from the pass's own list.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import target as targets
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import BarSync, TmaLoad, TmaStore
from ptxtile.ir.grid_dependency_ops import GridDependencyWait
from ptxtile.ir.manual_ops import DeviceAssert, InlinePtx
from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Seq, Specialized, Statement
from ptxtile.ir.tile_ops import Print
from ptxtile.lower import complete_launch, overlap_launches
from ptxtile.lower.options import Options
from ptxtile.target import Feature
from tests.examples import cases
from tests.ptxas import assemble

DEPENDENT = [name for name in targets.names() if targets.get(name).has(Feature.GRID_DEPENDENCY)]
ACCESS = re.compile(r"^\s*(@\S+ )?(ld\.global|st\.global|atom|red\.|cp\.async\.(bulk|c[ag])|cp\.reduce|tex|call)")


def own_statements(kernel: Kernel) -> tuple[Statement, ...]:
    return kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)


def touches_global(node: Any) -> bool:
    """Whether a node may access global memory by itself; of a buffer's declaration there is none."""
    if isinstance(node, (TmaLoad, TmaStore, Print, DeviceAssert, InlinePtx)):
        return True
    return any(buffer.scope is Scope.GLOBAL for buffer in buffers_of(node))


def accesses_before(kernel: Kernel) -> list[Any]:
    """What touches global memory in front of the only wait, in program order; a wait among a kernel's own statements is
    in front of all that follows, in each role."""
    (wait,) = (node for node in walk(kernel.body) if isinstance(node, GridDependencyWait))
    assert any(statement is wait for statement in own_statements(kernel))
    before = []
    for node in walk(kernel.body):
        if node is wait:
            return before
        if touches_global(node):
            before.append(node)
    raise AssertionError("no wait")


def lowered(kernel: Any, target: str, *, options: dict[str, Any] | None = None, **named: Any) -> Program:
    function = getattr(kernel, "__wrapped__", kernel)
    compiled = ptxtile.jit(function, target=target, **(options or {})).compile(**named)
    return compiled.variant.lowered().program


def reasons(program: Program) -> list[tuple[str, str]]:
    return [(record.decision, record.reason) for record in program.why if record.pass_name == "overlap_launches"]


# --- every example ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "target"),
    [
        pytest.param(kernel, target, id=f"{number}-{kernel.name}-{target}")
        for number, kernel in enumerate(cases.KERNELS)
        for target in (*kernel.targets, *(["sm_100a"] if kernel.targets is cases.FOUR else []))
    ],
)
def test_nothing_is_touched_before_the_wait(example: cases.Kernel, target: str, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", target)
    compiled = getattr(cases.module(example.example), example.function).compile(**example.arguments)
    program = compiled.variant.lowered().program
    early = target in DEPENDENT
    assert [launch.dependent_launch for launch in program.launch.launches] == [early] * len(program.kernels)
    assert compiled.ptx.count("griddepcontrol.wait;") == early * len(program.kernels)
    if not early:
        assert "griddepcontrol" not in compiled.ptx and not reasons(program)
        return
    for kernel in program.kernels:
        assert accesses_before(kernel) == []
        statements = own_statements(kernel)
        position = next(k for k, node in enumerate(statements) if isinstance(node, GridDependencyWait))
        assert not any(isinstance(node, Specialized) for node in statements[:position])
    for text in compiled.ptx.split(".entry")[1:]:
        lines = text.splitlines()
        wait = next(number for number, line in enumerate(lines) if "griddepcontrol.wait" in line)
        assert not any(ACCESS.match(line) for line in lines[:wait])
        assert "ld.global.nc" not in text  # it is for what nobody writes while the kernel runs


def test_the_patterns_find_accesses() -> None:
    """Without the pass the same kernels do read through the read-only path, and PTX has what the pattern looks for."""
    ptx = ptxtile.jit(cases.module("gemm_w4a16").gemm_w4a16.__wrapped__, target="sm_90a", dependent_launch=False)
    found = ptx.compile(M=256, N=256, K=256).ptx
    assert "ld.global.nc" in found and any(ACCESS.match(line) for line in found.splitlines())


# --- where the wait goes ----------------------------------------------------------------------------------------------

HEAD = """ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(int32, (64,))
TensorMapRecord(name="A_map", tensor="A", dtype="int32", dimensions=(64,), strides=(), box=(64,))

@kernel(grid=(1, 1, 1), threads=64, shared_bytes=1032)
def k(bx, by, bz, tx):
    S = allocate_shared(int32, (64,), storage_offset=0, storage_alignment=128)
    full = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1024)
    R = allocate_register(int32, (2,))
"""
PROLOGUE = """if tx == 0:
    prefetch_tensor_map(tensor_map="A_map")
    mbarrier_init(barrier=full, index=0, arrivals=1)
    fence_mbarrier_init()
for n in unrolled(0, 2):
    R[n] = 0
S[tx] = tx
x: int32 = S[0] + tx
bar_sync(id=0, threads=64)
"""
FIRST_ACCESSES = {
    "load": "y: int32 = A[tx]",
    "store": "A[tx] = x",
    "load in a condition": "if A[0] == 3:\n    R[0] = 1",
    "load in a loop's bound": "for m in serial(0, A[1]):\n    R[0] = m",
    "load in one thread": "if tx == 3:\n    R[0] = A[tx]",
    "store in a loop": "for m in serial(0, 2):\n    A[m * 32 + tx % 32] = m",
    "tma": 'if tx == 0:\n    tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)',
    "early tma": "if tx == 0:\n    fence_mbarrier_init()\n    mbarrier_arrive(barrier=full, index=0)\n"
    '    tma_load(tensor_map="A_map", coordinates=(0,), shared=S, offset=0, barrier=full, index=0)',
    "tma store": 'if tx == 0:\n    tma_store(tensor_map="A_map", coordinates=(0,), shared=S, offset=0)',
    "cp.async": "cp_async(source=A, index=tx, shared=S, offset=tx, bytes=4)",
    "atomic": 'atomic(operator="add", buffer=A, indices=(tx,), value=x)',
    "atomic load": "L = allocate_local(int32, (), storage_alignment=4)\n"
    'atomic_load(buffer=A, indices=(tx,), result=L, order="acquire")',
    "inline PTX": 'inline_ptx(template="st.global.u32 [0], 1;")',
    "print": 'print(values=(x,), message="x")',
    "assertion": 'device_assert(condition=x == 3, message="no")',
    "roles": 'with specialized():\n    with role("a", first_thread=0, threads=32):\n        A[tx] = x',
    "while": "while A[0] == 3:\n    R[0] = 1",
}  # fmt: skip


def program_of(body: str) -> Program:
    return parse_program(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))


def overlapped(body: str, options: Options = Options()) -> Program:  # noqa: B008
    target = targets.get("sm_90a")
    return complete_launch.run(overlap_launches.run(program_of(body), target, options), target, options)


@pytest.mark.parametrize("name", FIRST_ACCESSES)
def test_the_wait_stands_in_front_of_the_first_access(name: str) -> None:
    body = PROLOGUE + FIRST_ACCESSES[name]
    program = overlapped(body)
    (kernel,) = program.kernels
    assert accesses_before(kernel) == [] and program.launch.launches[0].dependent_launch
    statements = own_statements(kernel)
    position = next(k for k, node in enumerate(statements) if isinstance(node, GridDependencyWait))
    assert any(isinstance(node, BarSync) for node in statements[:position])  # behind the prologue
    without = Seq((*statements[:position], *statements[position + 1 :]))
    assert without == program_of(body).kernels[0].body  # and nothing else has changed


@pytest.mark.parametrize("body", [PROLOGUE, "R[0] = tx", "S[tx] = 1\nbar_sync(id=0, threads=64)\nR[0] = S[63 - tx]"])
def test_a_kernel_without_accesses_is_launched_in_order(body: str) -> None:
    """It would have nothing to wait for, and the kernel behind it would wait for it alone."""
    program = overlapped(body)
    assert not any(isinstance(node, GridDependencyWait) for node in walk(program.kernels[0].body))
    assert not program.launch.launches[0].dependent_launch
    assert reasons(program)[0][0] == "starts after the kernel in front"


# --- kernels of users -------------------------------------------------------------------------------------------------


@ptxtile.jit
def several(A, B):
    A: T.Tensor((64, 64), T.float32)
    B: T.Tensor((64, 64), T.float32)
    with T.Kernel(2, threads=128) as block:
        for i, j in T.Parallel(32, 64):
            B[block * 32 + i, j] = A[block * 32 + i, j] * 2
    with T.Kernel(1, threads=32):
        S = T.alloc_shared((32,), T.float32)
        for i in T.Parallel(32):
            S[i] = i
    with T.Kernel(2, threads=128) as block:
        for i, j in T.Parallel(32, 64):
            T.atomic_add(A[block * 32 + i, j], B[block * 32 + i, 63 - j])


def test_several_kernels_are_decided_one_by_one() -> None:
    program = lowered(several, "sm_90a", A=torch.zeros(64, 64), B=torch.zeros(64, 64))
    assert [launch.dependent_launch for launch in program.launch.launches] == [True, False, True]
    assert accesses_before(program.kernels[0]) == [] and accesses_before(program.kernels[2]) == []
    a, b = torch.randn(64, 64), torch.empty(64, 64)
    expected = a + 2 * a.flip(1)
    ptxtile.jit(several.__wrapped__, target="sm_90a")(a, b)
    torch.testing.assert_close(a, expected)


def meeting(A):
    A: T.Tensor((4, 32), T.float32)
    with T.Kernel(4, threads=32) as block:
        for i in T.Parallel(32):
            A[block, i] = A[block, i] + 1
        T.sync_grid()
        T.pdl_trigger()
        for i in T.Parallel(32):
            A[block, i] = A[(block + 1) % 4, i] * 2


def test_cooperative_launches_keep_the_order_of_the_stream() -> None:
    program = lowered(meeting, "sm_90a", A=torch.zeros(4, 32))
    (launch,) = program.launch.launches
    assert launch.cooperative and not launch.dependent_launch
    assert not any(isinstance(node, GridDependencyWait) for node in walk(program.kernels[0].body))
    assert reasons(program) == [("starts after the kernel in front", "the launch is cooperative (T.sync_grid)")]


def by_hand(A, B):
    A: T.Tensor((64, 64), T.float32)
    B: T.Tensor((64, 64), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 64), T.float32)
        full = T.alloc_barrier(1)
        with T.ws(1):
            T.mbarrier_expect_tx(full, 64 * 64 * 4)
            T.tma_copy(A, S, barrier=full)
            T.barrier_arrive(full)
        with T.ws(0):
            T.mbarrier_wait_parity(full, 0)
            T.copy(S, B)


def with_ptx(A):
    A: T.Tensor((64,), T.int32)
    with T.Kernel(1, threads=64):
        T.ptx("membar.gl;")
        for i in T.Parallel(64):
            A[i] = i


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("kernel", [by_hand, with_ptx])
def test_barriers_by_hand_roles_and_inline_ptx(kernel, target: str) -> None:
    shape = (64,) if kernel is with_ptx else (64, 64)
    dtype = torch.int32 if kernel is with_ptx else torch.float32
    arguments = {name: torch.zeros(shape, dtype=dtype) for name in ("A", "B")[: 1 if kernel is with_ptx else 2]}
    compiled = ptxtile.jit(kernel, target=target).compile(**arguments)
    program = compiled.variant.lowered().program
    assert accesses_before(program.kernels[0]) == [] and program.launch.launches[0].dependent_launch
    assemble(compiled.ptx, target)


def test_the_option_turns_it_off() -> None:
    """By its name, as a pass config, and never where the user waits."""
    tensors = {"A": torch.zeros(64, 64), "B": torch.zeros(64, 64)}
    for options in ({"dependent_launch": False}, {"pass_configs": {"dependent_launch": False}}):
        program = lowered(several, "sm_90a", options=options, **tensors)
        assert not any(launch.dependent_launch for launch in program.launch.launches)
        assert not any(isinstance(node, GridDependencyWait) for kernel in program.kernels for node in walk(kernel.body))
        assert reasons(program)[0][1] == "switched off by dependent_launch=False"


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_older_targets_have_neither_instruction_nor_attribute(target: str) -> None:
    compiled = ptxtile.jit(several.__wrapped__, target=target).compile(A=torch.zeros(64, 64), B=torch.zeros(64, 64))
    assert "griddepcontrol" not in compiled.ptx
    assert not any(launch.dependent_launch for launch in compiled.variant.lowered().program.launch.launches)
