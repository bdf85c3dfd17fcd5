"""Every invariant that the verifier's docstring lists has programs here that break it and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from timeit import repeat

import pytest

from ptxtile.errors import VerificationError
from ptxtile.ir import statements, verifier
from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate
from ptxtile.ir.expressions import Binary, Const, Var, constant, load
from ptxtile.ir.grid_dependency_ops import GridDependencyWait
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Fact
from ptxtile.ir.rewrite import replace_buffers
from ptxtile.ir.statements import Let, ParallelFor, Seq, View, seq
from ptxtile.ir.text import op_classes
from ptxtile.ir.types import float32, int32, uint8
from ptxtile.ir.verifier import STAGES, verify
from tests.ir import tensor_core_bodies
from tests.ir.sample_programs import global_tensor, gpu_program, tile_program

TILE = """\
ptxtile_ir(1)
program("p", stage="{stage}")
M = symbol(int32)
n = scalar(int32)
A = tensor(float32, (M, 64))
{header}
@kernel(grid=(4, M, 1), threads={threads})
def k(bx, by, bz, thread):
    S = allocate_shared(float32, (64, 64))
    F = allocate_fragment(float32, (64, 64))
    L = allocate_local(int32, ())
    X = allocate_local(float32, (4,))
    B8 = allocate_local(uint8, (4,))
    P = allocate_local(bool, (4,))
    H = allocate_local(float8_e5m2, (4,))
    {body}
"""


GEMM = "gemm(a={a}, b={b}, accumulator={c}, m=64, n=64, k={k}{more})"


def tile(body: str, *, header: str = "", stage: str = "tile", threads: int = 128):
    lines = "\n    ".join(body.splitlines())
    return parse_program(TILE.format(body=lines, header=header, stage=stage, threads=threads))


GPU = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(float32, (64, 64))
TensorMapRecord(
    name="A_map", tensor="A", dtype="float32", dimensions=(64, 64), strides=(256,), box=(32, 64), swizzle=128
)
@function
def twice(u: float32):
    return u + u
{header}
@kernel(grid=(4, 1, 1), threads={threads}, min_blocks={min_blocks})
def k(bx, by, bz, thread):
    S = allocate_shared(float32, (64, 64), storage_alignment=1024)
    full = allocate_barrier(uint64, (2,))
    R = allocate_register(float32, (8,))
    {body}
"""


def gpu(body: str, *, header: str = "", threads: int = 256, min_blocks: int = 0):
    lines = "\n    ".join(body.splitlines())
    return parse_program(GPU.format(body=lines, header=header, threads=threads, min_blocks=min_blocks))


LEGAL_TILE = """\
x: float32 = S[0, 1] + A[thread, 2] * float32(2.0)
X[0] = x if bx < n else -x
X[1] = sqrt(x) / exp(x)
L[()] = min(L[()] + 1, n // 3 % 2)
P[0] = P[1] & (not P[2]) == (bx < 3 or by > 2)
B8[0] = cast(L[()], uint8) ^ uint8(3)
H[0] = H[1]
while L[()] < 4:
    L[()] = L[()] + 1
    if L[()] == 2:
        break
for i in serial(0, 4):
    for j in unrolled(0, 4):
        X[j] = cast(i, float32)
    if i == 2:
        continue
for ko in pipelined(0, n, num_stages=2):
    copy(A[ko, 0].tile(64, 64), S)
V = view(float32, (4096,), "S")
for p, q in parallel(64, 64):
    F[p, q] = V[p * 64 + q]
fill(F, float32(0.0))
copy(S[3, 0].tile(1, 4), X)"""

LEGAL_GPU = """\
Z = alias(int32, (4096,), "S")
R[0] = cast(Z[0], float32)
R[0] = twice(fma(R[1], A[cast(thread, int64)], A[0]))
R.x4[0] = S.x4[thread * 4]
b: int32 = bitcast(R[0], int32)
R[1] = cast(b, float32)
S.x4[0] = broadcast(R[0], float32x4)
if thread == 0:
    mbarrier_init(barrier=full, index=0, arrivals=1)
    prefetch_tensor_map(tensor_map="A_map")
fence_mbarrier_init()
bar_sync(id=0, threads=256)
with specialized():
    with role("consumer", first_thread=0, threads=128, registers=240):
        set_max_registers(action="inc", count=240)
        mbarrier_wait(barrier=full, index=0, parity=0, retires=(S,))
        mbarrier_arrive(barrier=full, index=1)
        fence_proxy_async()
        bar_sync(id=1, threads=128)
        tma_store(tensor_map="A_map", coordinates=(bx * 32, 0), shared=S, offset=0)
        bulk_commit_group()
        bulk_wait_group(pending=0, read=True, retires=(S,))
    with role("producer", first_thread=128, threads=128, registers=24):
        set_max_registers(action="dec", count=24)
        mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=8192)
        tma_load(tensor_map="A_map", coordinates=(bx * 32, 0), shared=S, offset=2048, barrier=full, index=0)"""


@pytest.mark.parametrize(
    "program",
    [tile_program(), gpu_program(), tile(LEGAL_TILE), tile(LEGAL_TILE, stage="async"), gpu(LEGAL_GPU)],
    ids=["tile_program", "gpu_program", "tile", "async", "gpu"],
)
def test_legal_programs_pass(program):
    verify(program)
    verify(parse_program(print_program(program)))


def edited(old: str, new: str, source=gpu_program):
    """The sample program with a piece of its text replaced."""
    printed = print_program(source())
    assert old in printed
    return parse_program(printed.replace(old, new))


def dependent(cooperative: bool):
    """The sample program with a wait for the grids in front, launched before they have ended."""
    program = gpu_program()
    kernel = replace(program.kernels[0], body=seq(GridDependencyWait(), program.kernels[0].body))
    launch = replace(program.launch.launches[0], dependent_launch=True, cooperative=cooperative)
    return replace(program, kernels=(kernel,), launch=replace(program.launch, launches=(launch,)))


def with_body(*statements):
    """A kernel with statements that the text could not hold."""
    program = tile("pass")
    kernel = program.kernels[0]
    return replace(program, kernels=(replace(kernel, body=seq(kernel.body, *statements)),))


def with_value(value):
    return with_body(Let(Var("y", value.dtype), value))


def with_name(name: str):
    return with_body(Let(Var(name, int32), constant(1)))


def with_kernel(**changes):
    program = tile_program()
    return replace(program, kernels=(replace(program.kernels[0], **changes),))


def with_fact(**changes):
    return replace(tile_program(), facts=(Fact(Var("M", int32), **changes),))


def two_versions():
    """The last copy reads a fragment whose strides are not those of its allocation."""
    program = tile_program()
    *body, last = program.kernels[0].body.statements
    fragment = last.source.buffer
    return with_kernel(body=Seq((*body, replace_buffers(last, {fragment.name: replace(fragment, strides=(65, 1))}))))


def tensor_of_nobody():
    return with_body(View(global_tensor("Q", (4,))))


def size_from_memory():
    tensor = replace(global_tensor("Q", (4,)), shape=(load(allocate("L", Scope.LOCAL, int32, ()), ()),))
    return with_body(View(replace(tensor, name="A_view", storage=Storage("A", Scope.GLOBAL))))


def size_from_the_kernel():
    view = Buffer("A_view", float32, (Var("bx", int32),), (1,), Storage("A", Scope.GLOBAL))
    return with_body(View(view))


def scalar_without_parameter():
    """The kernel uses the symbol M, which its launch does not pass."""
    program = gpu_program()
    kernel, m = program.kernels[0], Var("M", int32)
    body = seq(Let(Var("y", int32), m + 1), kernel.body)
    return replace(program, symbols=(m,), kernels=(replace(kernel, body=body),))


def block(header: str, *parts: str) -> str:
    return "\n    ".join([header, *("\n".join(parts)).splitlines()])


def role(name: str, first_thread: int, threads: int, body: str = "pass") -> str:
    return block(f'with role("{name}", first_thread={first_thread}, threads={threads}):', body)


def roles(*parts: str) -> str:
    return block("with specialized():", *parts)


def registers(*parts: tuple[int, int, int], action: str = "inc") -> str:
    """Roles (first thread, threads, register count)."""
    op = 'set_max_registers(action="{}", count={})'
    return roles(*(role(f"r{first}", first, count, op.format(action, n)) for first, count, n in parts))


def shared_layout(layout: str, swizzle: str = "0, 4, 3") -> str:
    return f"SharedLayout(layout=Layout({layout}), swizzle=Swizzle({swizzle}), itemsize=4)"


def fragment_of(shape: str, thread: str, value: str) -> str:
    """A fragment buffer of ``shape`` whose layout is for 64 elements."""
    layout = f"Fragment(shape=(64,), padded=(64,), thread=Layout({thread}), value=Layout({value}))"
    return f"Z = allocate_fragment(float32, {shape}, layout={layout})"


A_MAP = 'TensorMapRecord(name="B_map", tensor="A", dtype="float32", dimensions=(64, 64), '
COUNTING = (
    "P = allocate_local(bool, ())\n"
    'bar_reduce(destination=P, destination_offset=0, condition=thread == 0, mode="{mode}", id={id}, threads={threads})'
)
MATCHING = (
    'U = allocate_local(uint32, ())\nmatch(destination=U, destination_offset=0, value={value}, mode="{mode}"{mask})'
)
CYCLE = "@function\ndef f(v: float32):\n    return g(v)\n@function\ndef g(w: float32):\n    return f(w)"
FUNCTION = "@function\ndef f(v: float32):\n    {}\n    return v"


BROKEN = [
    (1, lambda: replace(tile_program(), name="a b")),
    (1, lambda: with_name("class")),
    (1, lambda: with_name("x.y")),
    (2, lambda: tile("y: int32 = 1\ny: int32 = 2")),
    (2, lambda: tile("if bx < 1:\n    y: int32 = 1\nelse:\n    y: int32 = 2")),
    (2, lambda: tile("for bx in serial(0, 3):\n    pass")),
    (2, lambda: tile("k: int32 = 1")),
    (2, lambda: tile("S: int32 = 1")),
    (2, lambda: tile("for A in parallel(3):\n    pass")),
    (2, lambda: tile("y: int32 = 1\ny = allocate_local(int32, (1,))")),
    (2, lambda: gpu("pass", header=A_MAP.replace("B_map", "A_map") + "strides=(256,), box=(32, 64))")),
    (3, two_versions),
    (3, lambda: tile('V = view_shared(float32, (4,), storage_name="S", storage_size=128)')),
    (3, lambda: gpu('Z = alias_shared(int32, (4,), storage_name="S", storage_size=64)\nR[0] = cast(Z[0], float32)')),
    (4, lambda: tile("if bx < 1:\n    y: int32 = 1\nL[()] = y")),
    (4, lambda: tile("for i in serial(0, 3):\n    pass\nL[()] = i")),
    (4, lambda: with_value(Var("nowhere", int32))),
    (4, lambda: gpu("pass", header="M = symbol(int32)\n@function\ndef f(v: float32):\n    return cast(M, float32)")),
    (5, lambda: with_value(Var("bx", float32))),
    (5, lambda: tile("y: float32 = 1")),
    (6, lambda: tile("if bx < 1:\n    Z = allocate_local(int32, (1,))\nL[()] = Z[0]")),
    (6, lambda: tile('V = view_shared(float32, (4,), storage_name="elsewhere")')),
    (6, lambda: tile('Z = allocate_shared(float32, (64, 64), storage_name="S")')),
    (6, lambda: gpu("Z = alias_barrier(uint64, (1,))\nmbarrier_arrive(barrier=Z, index=0)")),
    (6, lambda: tile('Z = alias(int32, (4,), "S")\nL[()] = Z[0]')),
    (7, lambda: with_value(Const(1.0, int32))),
    (7, lambda: with_value(Const(1, float32))),
    (7, lambda: with_value(Const(256, uint8))),
    (8, lambda: with_value(Binary("add", constant(1), constant(1), float32))),
    (8, lambda: with_value(Binary("power", constant(1), constant(1), int32))),
    (8, lambda: tile("L[()] = n / 2")),
    (8, lambda: tile("X[0] = X[1] // X[2]")),
    (8, lambda: tile("X[0] = X[1] & X[2]")),
    (8, lambda: tile("P[0] = P[1] + P[2]")),
    (8, lambda: tile("H[0] = H[1] + H[2]")),
    (9, lambda: tile("P[0] = P[1] < P[2]")),
    (9, lambda: tile("P[0] = H[1] == H[2]")),
    (9, lambda: tile('P[0] = Compare(operator="lt", left=n, right=float32(1.0), dtype=bool)')),
    (9, lambda: tile('L[()] = Compare(operator="lt", left=n, right=1, dtype=int32)')),
    (10, lambda: tile('X[0] = Unary(operator="neg", operand=n, dtype=float32)')),
    (10, lambda: tile("L[()] = sqrt(n)")),
    (10, lambda: tile("X[0] = ~X[1]")),
    (10, lambda: tile("P[0] = -P[1]")),
    (11, lambda: tile("P[0] = n and P[1]")),
    (11, lambda: tile("P[0] = P[1] or n")),
    (11, lambda: tile("L[()] = 1 if n else 2")),
    (11, lambda: tile("X[0] = Select(condition=P[0], if_true=1, if_false=float32(2.0), dtype=float32)")),
    (12, lambda: tile("X[0] = cast(X.x4[0], float32)")),
    (12, lambda: tile("X[0] = bitcast(int64(1), float32)")),
    (12, lambda: tile("B8[0] = bitcast(P[0], uint8)")),
    (12, lambda: tile("X.x4[0] = broadcast(1, float32x4)")),
    (13, lambda: tile("L[()] = Load(buffer=X, indices=(0,), dtype=int32)")),
    (13, lambda: tile("X[0] = 1")),
    (14, lambda: tile("X[0] = S[0]")),
    (14, lambda: tile("X[()] = float32(1.0)")),
    (14, lambda: tile("X[uint8(0)] = float32(1.0)")),
    (14, lambda: gpu("R[0] = S[0, 0]")),
    (15, lambda: edited("triple(values[0])", "exp(values[0])")),
    (15, lambda: gpu("R[0] = fma(R[1], R[2])")),
    (15, lambda: gpu("R[0] = call(\"twice\", 1, dtype=float32)")),
    (15, lambda: gpu("pass", header=CYCLE)),
    (16, lambda: tile("if n:\n    pass")),
    (16, lambda: tile("while n:\n    pass")),
    (17, lambda: tile("for i in serial(0, int64(3)):\n    pass")),
    (17, lambda: tile("for i in serial(0, 3, 0):\n    pass")),
    (17, lambda: tile("for i in serial(float32(0.0), float32(3.0), dtype=float32):\n    pass")),
    (17, lambda: tile("for i in unrolled(0, n):\n    pass")),
    (17, lambda: tile("for i in vectorized(n, 4):\n    pass")),
    (18, lambda: with_body(ParallelFor((Var("i", int32), Var("j", int32)), (4,), Seq(())))),
    (18, lambda: tile("for i in parallel(0):\n    pass")),
    (18, lambda: tile("for i in parallel(4, dtypes=(float32,)):\n    pass")),
    (18, lambda: tile("for i in parallel(4):\n    for j in parallel(4):\n        pass")),
    (19, lambda: tile("break")),
    (19, lambda: tile("for i in unrolled(0, 4):\n    break")),
    (19, lambda: tile("for i in serial(0, 4):\n    for j in parallel(4):\n        continue")),
    (19, lambda: gpu(block("for i in serial(0, 4):", roles(role("a", 0, 32, "break"))))),
    (20, lambda: tile("fill(S[0].tile(64), float32(0.0))")),
    (20, lambda: tile("fill(S[0, 0].tile(64, 0), float32(0.0))")),
    (20, lambda: tile("fill(S[float32(0.0), 0].tile(64, 1), float32(0.0))")),
    (20, lambda: tile("copy(A[0, 0].tile(64, 32), S)")),
    (20, lambda: tile("fill(S, 0)")),
    (20, lambda: tile(GEMM.format(a="X", b="S", c="F", k=64, more=""))),
    (20, lambda: tile(GEMM.format(a="S", b="A[0, 0].tile(64, 64)", c="F", k=64, more=""))),
    (20, lambda: tile(GEMM.format(a="F", b="S", c="F", k=32, more=""))),
    (20, lambda: tile(GEMM.format(a="F", b="S", c="S", k=64, more=""))),
    (20, lambda: tile(GEMM.format(a="F", b="S", c="F", k=64, more=", clear_if=bx"))),
    (20, lambda: tile(GEMM.format(a="F", b="S", c="F", k=64, more=", commits=False"))),
    (20, lambda: tile("copy(S, A[0, 0].tile(64, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)")),
    (20, lambda: tile("copy(A[0, 0].tile(64, 64), S, path=CopyPath.CP_ASYNC)")),
    (20, lambda: tile("copy(A[0, 0].tile(64, 64), S, path=CopyPath.CP_ASYNC, coalesced_width=8)")),
    (20, lambda: tile("copy(A[0, 0].tile(63, 62), S[0, 0].tile(63, 62), path=CopyPath.CP_ASYNC, coalesced_width=4)")),
    (21, lambda: tile("Z = allocate_shared(float32, (4,), strides=(4, 1))")),
    (21, lambda: tile("Z = allocate_shared(float32, (0,))")),
    (21, lambda: tile("Z = allocate_shared(float32, (M,), storage_size=64)")),
    (22, lambda: tile("Z = allocate_shared(float32, (4,), storage_size=12)")),
    (22, lambda: tile("Z = allocate_shared(float32, (4,), storage_size=None)")),
    (22, lambda: tile('Z = view(float32, (64,), "S", offset=4033)')),
    (22, lambda: tile('Z = view(float32, (64, 64), "S", strides=(65, 1))')),
    (23, lambda: tile("Z = allocate_local(float32, (4,), layout=" + shared_layout("(4,), (1,)") + ")")),
    (23, lambda: tile("Z = allocate_shared(uint8, (4,), layout=" + shared_layout("(4,), (1,)") + ")")),
    (23, lambda: tile("Z = allocate_shared(float32, (4,), layout=" + shared_layout("(3,), (1,)") + ")")),
    (23, lambda: tile("Z = allocate_shared(float32, (4, 4), layout=" + shared_layout("(4, 4), (3, 1)") + ")")),
    (23, lambda: tile(fragment_of("(64,)", "(32,), (1,)", "(1,), (0,)"))),
    (23, lambda: tile(fragment_of("(64,)", "(64,), (1,)", "(3,), (0,)"))),
    (23, lambda: tile(fragment_of("(65,)", "(64,), (1,)", "(1,), (0,)"))),
    *((23, partial(tile, f"Z = allocate_shared(float32, (8, 16), layout=MappedLayout({fields}))")) for fields in (
        "shape=(8, 16), size=128, contiguous=1, itemsize=2, offset=i0 * 16 + i1",
        "shape=(8, 8), size=64, contiguous=1, itemsize=4, offset=i0 * 8 + i1",
        "shape=(8, 16), size=113, contiguous=1, itemsize=4, offset=i0 * 14 + i1",
        "shape=(8, 16), size=128, contiguous=1, itemsize=4, offset=i0 * 16 + i1 - 1",
        "shape=(8, 16), size=64, contiguous=1, itemsize=4, offset=i0 * 16 + i1",
        "shape=(8, 16), size=128, contiguous=4, itemsize=4, offset=i0 * 16 + (i1 + i0) % 16",
        "shape=(8, 16), size=128, contiguous=1, itemsize=4, offset=i0 * 16 + i1 + n",
    )),
    (24, lambda: tile("Z = allocate_shared(float32, (4,), storage_alignment=24)")),
    (24, lambda: edited("storage_offset=0", "storage_offset=512")),
    (24, lambda: edited("shared_bytes=16392", "shared_bytes=16384")),
    (24, lambda: tile("Z = allocate_shared(float32, (8, 32), storage_offset=128, layout="
                      + shared_layout("(8, 32), (32, 1)", "3, 4, 3") + ")")),
    (25, lambda: gpu("Z = allocate_barrier(int32, (2,))")),
    (26, tensor_of_nobody),
    (26, size_from_memory),
    (26, size_from_the_kernel),
    (27, lambda: tile("fence_mbarrier_init()")),
    (27, lambda: tile("wgmma_fence()")),
    (27, lambda: gpu("copy(S, S)")),
    (27, lambda: gpu("for i in parallel(4):\n    pass")),
    (27, lambda: replace(gpu("fill(S, float32(0.0))"), stage="thread")),
    (28, lambda: gpu("Z = allocate_fragment(float32, (4,))")),
    (28, lambda: tile("Z = allocate_register(float32, (4,))")),
    (28, lambda: gpu("for i in pipelined(0, 4):\n    pass")),
    (29, lambda: gpu("R.x8[0] = S.x8[0]")),
    (29, lambda: gpu("R.x3[0] = S.x3[0]")),
    (29, lambda: gpu("S.x8[0] = R.x8[0]")),
    (30, lambda: gpu("pass", header=FUNCTION.format("bar_sync(id=0, threads=256)"))),
    (30, lambda: gpu("pass", header=FUNCTION.format("Z = allocate_shared(float32, (4,))"))),
    (31, lambda: gpu(role("a", 0, 32))),
    (31, lambda: gpu(roles(role("a", 0, 48)))),
    (31, lambda: gpu(roles(role("a", 16, 32)))),
    (31, lambda: gpu(roles(role("a", 0, 64), role("b", 32, 64)))),
    (31, lambda: gpu(roles(role("a", 128, 256)))),
    (31, lambda: gpu(roles(role("a", 0, 32), role("a", 32, 32)))),
    (31, lambda: gpu(roles(role("a", 0, 64, roles(role("b", 0, 32)))))),
    (32, lambda: gpu('set_max_registers(action="inc", count=64)')),
    (32, lambda: gpu(registers((0, 64, 64), (128, 128, 24)))),
    (32, lambda: gpu(registers((0, 128, 236), (128, 128, 24)))),
    (32, lambda: gpu(registers((0, 128, 264), (128, 128, 24)))),
    (32, lambda: gpu(registers((0, 128, 240), (128, 128, 16)))),
    (32, lambda: gpu(registers((0, 384, 240), (384, 128, 24)), threads=512)),
    (32, lambda: gpu(registers((0, 128, 240), (128, 128, 24)), min_blocks=2)),
    (32, lambda: gpu(registers((0, 128, 240), (128, 128, 24), action="set"))),
    (33, lambda: gpu("bar_sync(id=16, threads=32)")),
    (33, lambda: gpu("bar_sync(id=1, threads=33)")),
    (33, lambda: gpu("bar_sync(id=1, threads=288)")),
    (33, lambda: gpu("bar_arrive(id=16, threads=32)")),
    (33, lambda: gpu("bar_arrive(id=1, threads=48)")),
    (33, lambda: gpu("bar_at(index=thread // 32, threads=48)")),
    (33, lambda: gpu("bar_at(index=cast(thread, int64), threads=32)")),
    (33, lambda: gpu(COUNTING.format(mode="xor", id=1, threads=64))),
    (33, lambda: gpu(COUNTING.format(mode="and", id=16, threads=64))),
    (33, lambda: gpu(COUNTING.format(mode="and", id=1, threads=48))),
    (48, lambda: gpu(COUNTING.format(mode="popc", id=1, threads=64))),
    (33, lambda: gpu(LEGAL_GPU.replace("mbarrier_arrive(barrier=full, index=1)", "grid_sync()"))),
    (33, lambda: gpu(LEGAL_GPU.replace("mbarrier_arrive(barrier=full, index=1)", "grid_dependency_wait()"))),
    (33, lambda: gpu("if bx == 0:\n    grid_dependency_wait()")),
    (33, lambda: gpu("for n in serial(0, 2):\n    grid_dependency_wait()")),
    (33, lambda: tile("if bx == 0:\n    grid_dependency_wait()", stage="async")),
    (48, lambda: gpu(COUNTING.format(mode="and", id=1, threads=64) + "\nsync_warp(mask=uint32(0))")),
    (48, lambda: gpu(COUNTING.format(mode="and", id=1, threads=64) + "\nsync_warp(mask=1)")),
    (48, lambda: gpu(MATCHING.format(value="thread", mode="some", mask=""))),
    (48, lambda: gpu(MATCHING.format(value="cast(thread, int16)", mode="any", mask=""))),
    (48, lambda: gpu(MATCHING.format(value="thread", mode="all", mask=", mask=uint32(0)"))),
    (34, lambda: gpu("mbarrier_expect_tx(barrier=S, index=0, bytes=16)")),
    (34, lambda: gpu("mbarrier_expect_tx(barrier=full, index=0, bytes=1048576)")),
    (34, lambda: gpu("mbarrier_arrive(barrier=S, index=0)")),
    (34, lambda: gpu("mbarrier_arrive(barrier=full, index=int64(0))")),
    (34, lambda: gpu("mbarrier_init(barrier=full, index=0, arrivals=0)")),
    (34, lambda: gpu("mbarrier_arrive_expect_tx(barrier=full, index=0, bytes=1048576)")),
    (34, lambda: gpu("mbarrier_wait(barrier=full, index=0, parity=2)")),
    (34, lambda: gpu("mbarrier_wait(barrier=full, index=0, parity=thread == 0)")),
    (35, lambda: gpu(LEGAL_GPU.replace('tma_store(tensor_map="A_map"', 'tma_store(tensor_map="B_map"'))),
    (35, lambda: gpu('prefetch_tensor_map(tensor_map="B_map")')),
    (35, lambda: gpu(LEGAL_GPU.replace("coordinates=(bx * 32, 0)", "coordinates=(bx * 32,)"))),
    (35, lambda: gpu(LEGAL_GPU.replace("coordinates=(bx * 32, 0)", "coordinates=(bx * 32, int64(0))"))),
    (35, lambda: gpu(LEGAL_GPU.replace("coordinates=(bx * 32, 0)", "coordinates=(-2, 0)"))),
    (35, lambda: gpu(LEGAL_GPU.replace("shared=S", "shared=full"))),
    (35, lambda: gpu(LEGAL_GPU.replace("offset=2048", "offset=2080"))),
    (35, lambda: gpu(LEGAL_GPU.replace("offset=2048", "offset=2"))),
    (35, lambda: gpu(LEGAL_GPU.replace('offset=0)', 'offset=0, operator="max")'))),
    (35, lambda: gpu(LEGAL_GPU.replace('offset=0)', 'offset=0, operator="exchange")'))),
    (35, lambda: gpu(
        'tma_store(tensor_map="B_map", coordinates=(0, 0), shared=S, offset=0, operator="add")',
        header=A_MAP.replace("float32", "int32") + "strides=(256,), box=(32, 64))")),
    (20, lambda: tile('copy(A[0, 0].tile(64, 64), S, operator="add")')),
    (20, lambda: tile('copy(S, A[0, 0].tile(64, 64), operator="or")')),
    (36, lambda: gpu("bulk_wait_group(pending=-1, read=True)")),
    (36, lambda: gpu('fence_proxy_async(space="local")')),
    (37, lambda: gpu("pass", header=A_MAP.replace('"A"', '"Q"') + "strides=(256,), box=(32, 64))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(32,))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256, 4), box=(32, 64))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(32, 257))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(32, 0))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(6, 64))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(64, 64), swizzle=128)")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(32, 64), swizzle=48)")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(260,), box=(32, 64))")),
    (37, lambda: gpu("pass", header=A_MAP + "strides=(256,), box=(32, 64), offset=4)")),
    (37, lambda: gpu("pass", header=(A_MAP + "strides=(256,), box=(32, 64))").replace("float32", "float33"))),
    (38, lambda: gpu("pass", threads=0)),
    (38, lambda: gpu("pass", threads=1056)),
    (38, lambda: with_kernel(grid=(4, -1, 1))),
    (38, lambda: with_kernel(grid=(4, Var("scale", float32), 1))),
    (38, lambda: with_kernel(cluster=(1, 0, 1))),
    (38, lambda: with_kernel(thread=Var("thread", uint8))),
    (39, lambda: edited('arguments=(TensorArgument(name="A"', 'arguments=(TensorArgument(name="Q"')),
    (39, lambda: edited('allocations=(Allocation(name="C"', 'allocations=(Allocation(name="Q"')),
    (39, lambda: edited('returns=("C",)', 'returns=("A",)')),
    (39, lambda: edited('            kernel="kernel"', '            kernel="other"')),
    (39, lambda: edited("block=(256, 1, 1)", "block=(128, 1, 1)")),
    (39, lambda: edited("            shared_bytes=16392", "            shared_bytes=16384")),
    (39, lambda: edited("            grid=(16, 16, 1)", "            grid=(M, 16, 1)")),
    (39, lambda: edited("            shared_bytes=16392", "            dependent_launch=True, shared_bytes=16392")),
    (39, lambda: dependent(cooperative=True)),
    (39, lambda: edited('KernelParameter(kind="pointer", name="C")', 'KernelParameter(kind="pointer", name="Q")')),
    (39, lambda: replace(gpu_program(), launch=replace(gpu_program().launch, tensor_maps=()))),
    (40, lambda: edited('KernelParameter(kind="pointer", name="C"),', "")),
    (40, lambda: edited('KernelParameter(kind="tensor_map", name="A_map"),', "")),
    (40, scalar_without_parameter),
    (41, lambda: replace(tile_program(), returns=("Q",))),
    (41, lambda: with_fact(divisor=0)),
    (41, lambda: with_fact(lower=2, upper=1)),
    (41, lambda: replace(tile_program(), facts=(Fact(Var("scale", float32), 1),))),
    (42, lambda: replace(tile_program(), stage="later")),
    (50, lambda: gpu("device_assert(condition=thread)")),
    (50, lambda: gpu("inline_ptx(template='mov.b32 %r1, $1;', inputs=(1,))")),
    (50, lambda: gpu("inline_ptx(template='mov.b32 %r1, 1;', inputs=(1,))")),
    (50, lambda: gpu("inline_ptx(template='bra $L1;')")),
    (50, lambda: gpu("inline_ptx(template='mov.b32 $0, 1;', results=(R,))")),
    (50, lambda: gpu("x = allocate_local(int8, ())\ninline_ptx(template='mov.b32 $0, 1;', results=(x,))")),
    (49, lambda: gpu('atomic(operator="nand", buffer=A, indices=(0,), value=float32(1.0))')),
    (49, lambda: gpu('atomic(operator="or", buffer=A, indices=(0,), value=float32(1.0))')),
    (49, lambda: gpu('atomic(operator="add", buffer=R, indices=(0,), value=float32(1.0))')),
    (49, lambda: gpu('atomic(operator="add", buffer=A, indices=(0,), value=float32(1.0), order="strict")')),
    (49, lambda: gpu('atomic(operator="add", buffer=S, indices=(0,), value=S.x2[0])')),
    (49, lambda: gpu('atomic(operator="max", buffer=A, indices=(0,), value=A.x2[0])')),
    (49, lambda: gpu('atomic(operator="add", buffer=A, indices=(0,), value=A[0], result=S)')),
    (49, lambda: gpu('atomic_load(buffer=A, indices=(0,), result=R, order="release")')),
    (49, lambda: gpu('atomic_store(buffer=A, indices=(0,), value=A[0], order="acquire")')),
    (49, lambda: gpu('atomic_store(buffer=A, indices=(0,), value=A.x2[0])')),
]  # fmt: skip

MATRIX_STORE = """\
ptxtile_ir(1)
program("p", stage="{stage}")
@kernel(grid=(1, 1, 1), threads=32)
def k(bx, by, bz, thread):
    S = allocate_shared(bfloat16, (16, 16))
    W = allocate_shared(float32, (16, 16))
    R = allocate_register(bfloat16, (8,))
    L = allocate_local(bfloat16, (8,))
    matrix_store(source={source}, source_offset=0, destination={tile}, indices={indices}, count={count})
"""


def matrix_store(stage: str = "thread", source: str = "R", tile: str = "S", indices: str = "(thread % 16, 0)", count=4):
    text = MATRIX_STORE.format(stage=stage, source=source, tile=tile, indices=indices, count=count)
    return parse_program(text)


BROKEN += [
    (43, lambda: matrix_store(count=1)),
    (43, lambda: matrix_store(source="L")),
    (43, lambda: matrix_store(tile="W")),
    (14, lambda: matrix_store(indices="(thread,)")),
    (27, lambda: matrix_store(stage="gpu")),
]
BROKEN += [(number, partial(gpu, body)) for number, body in tensor_core_bodies.BROKEN]
BROKEN.append((45, partial(gpu, tensor_core_bodies.wgmma(), threads=96)))


@pytest.mark.parametrize("body", [
    *tensor_core_bodies.LEGAL,
    COUNTING.format(mode="and", id=1, threads=64) + "\ngrid_sync()\nsync_warp(mask=uint32(1))",
    "launch_dependents()\ngrid_dependency_wait()\nif thread == 0:\n    launch_dependents()\ngrid_dependency_wait()",
    MATCHING.format(value="thread", mode="all", mask=", mask=uint32(3)"),
])  # fmt: skip
def test_legal_tensor_core_ops_pass(body):
    program = gpu(body)
    verify(program)
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize(("invariant", "make"), BROKEN)
def test_a_broken_invariant_is_found(invariant, make):
    with pytest.raises(VerificationError, match=f"invariant {invariant}: "):
        verify(make())


def test_a_kernel_that_waits_may_be_launched_early():
    verify(dependent(cooperative=False))
    verify(tile("if bx == 0:\n    grid_dependency_wait()"))  # the user's, which moves out of the branch


def test_every_invariant_has_a_test():
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", verifier.__doc__, re.MULTILINE)]
    assert listed == list(range(1, len(listed) + 1))
    assert {number for number, _ in BROKEN} == set(listed)


def test_the_error_points_at_the_line_of_the_text():
    source = print_program(gpu_program()).replace("bar_sync(id=1", "bar_sync(id=17")
    with pytest.raises(VerificationError) as caught:
        verify(parse_program(source, "kernel.txt"))
    assert caught.value.location.file == "kernel.txt"
    assert "bar_sync(id=17" in source.splitlines()[caught.value.location.line - 1]
    assert caught.value.expected == "0 to 15"
    assert caught.value.got == "17"


def test_every_op_and_statement_is_legal_at_some_stage():
    everywhere = frozenset().union(*(stage.statements for stage in STAGES.values()))
    structural = {
        cls for cls in vars(statements).values()
        if isinstance(cls, type) and issubclass(cls, statements.Statement) and cls is not statements.Statement
    }  # fmt: skip
    assert everywhere == structural | set(op_classes().values())


def test_verification_is_fast():
    """A few milliseconds for a kernel of a thousand statements, so that it can run after every pass."""
    copies = "\n".join(f"y{n}: int32 = thread * 4 + {n}\nR[0] = S[y{n}] * float32(2.0)" for n in range(500))
    program = gpu(copies)
    assert min(repeat(lambda: verify(program), number=1, repeat=5)) < 0.1
