"""Programs and random IR for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from ptxtile.ir import expressions as ir
from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate, contiguous_strides
from ptxtile.ir.expressions import Const, Expr, Var, constant, load
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    FenceMbarrierInit,
    FenceProxyAsync,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    PrefetchTensorMap,
    SetMaxRegisters,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.layouts import TMA_SWIZZLES, SharedLayout, linear_fragment, row_major
from ptxtile.ir.program import Fact, Function, Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    LoopKind,
    ParallelFor,
    Role,
    Specialized,
    Statement,
    Store,
    View,
    While,
    seq,
)
from ptxtile.ir.tile_ops import Copy, Fill, Print, Region
from ptxtile.ir.types import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)


def zero() -> Const:
    return constant(0)


def global_tensor(name: str, shape: tuple, dtype=float32) -> Buffer:
    return Buffer(name, dtype, shape, contiguous_strides(shape), Storage(name, Scope.GLOBAL))


def whole(buffer: Buffer) -> Region:
    return Region(buffer, tuple(zero() for _ in buffer.shape), buffer.static_shape)


BLOCKS = tuple(Var(name, int32) for name in ("bx", "by", "bz"))
THREAD = Var("thread", int32)


def kernel(body: Statement, threads: int = 128, **options) -> Kernel:
    options = {"grid": (16, 16, 1)} | options
    return Kernel("kernel", threads=threads, block_vars=BLOCKS, thread=THREAD, body=body, **options)


def tile_program() -> Program:
    """A kernel as tracing gives it, with every tile-level construct, symbolic sizes, a view and a loop of each kind."""
    m, scale = Var("M", int32), Var("scale", float32)
    a, c = global_tensor("A", (m, 1024)), global_tensor("C", (m, 1024))
    bx, by, _ = BLOCKS
    shared = allocate("A_shared", Scope.SHARED, float32, (64, 64))
    flat = replace(shared, name="A_flat", shape=(4096,), strides=(1,))
    local = allocate("C_local", Scope.FRAGMENT, float32, (64, 64))
    counter = allocate("counter", Scope.LOCAL, int32, ())
    i, j, k, n, u = (Var(name, int32) for name in "ijknu")
    limit = Var("limit", int64)
    inner = seq(
        Let(limit, ir.cast(m, int64) * 2),
        Store(
            local,
            (i, j),
            ir.select(
                ir.logical_and(i.lt(m - by * 64), ir.logical_not(j.eq(3))),
                load(shared, (i, j)) * scale + ir.call("exp", load(flat, (i * 64 + j,))),
                -load(shared, (i, zero())),
            ),
        ),
    )
    body = seq(
        Allocate(shared),
        View(flat),
        Allocate(local),
        Allocate(counter),
        Store(counter, (), constant(-1)),
        Copy(Region(a, (by * 64, bx * 64), (64, 64)), whole(shared), disable_tma=True),
        Fill(whole(local), constant(-0.0, float32)),
        ParallelFor((i, j), (64, 64), inner, (("coalesced_width", 4),)),
        For(k, zero(), constant(4), 1, LoopKind.PIPELINED, Fill(whole(shared), constant(float("-inf"), float32)),
            (("num_stages", 2), ("order", (0,)), ("stage", (0,)))),
        For(n, constant(8), zero(), -2, LoopKind.SERIAL,
            If(n.eq(4), Break(), If(n.lt(2), Continue(), Print("n", (n, load(counter, ())))))),
        ParallelFor((u,), (64,), Store(local, (u, zero()), constant(1.0, float32))),
        While(load(counter, ()).lt(3), Store(counter, (), load(counter, ()) + 1)),
        Copy(whole(local), Region(c, (by * 64, bx * 64), (64, 64))),
    )  # fmt: skip
    return Program(
        "tile_program",
        (TensorParameter(a, alias_group=0), ScalarParameter(scale)),
        (kernel(body, grid=(16, (m + 63) // 64, 1), user_threads=128),),
        allocations=(c,),
        returns=("C",),
        symbols=(m,),
        facts=(Fact(m, lower=1, upper=1 << 20, divisor=8),),
    )


def gpu_program() -> Program:
    """A specialized TMA copy, lowered to the end."""
    a, c = global_tensor("A", (1024, 1024)), global_tensor("C", (1024, 1024))
    shared = Buffer("A_shared", float32, (64, 64), (64, 1), Storage("A_shared", Scope.SHARED, 16384, 1024, 0))
    full = Buffer("full", uint64, (1,), (1,), Storage("full", Scope.BARRIER, 8, 8, 16384))
    values = allocate("values", Scope.REGISTER, float32, (8,))
    bx, by, _ = BLOCKS
    coordinates = (bx * 64, by * 64)
    step, lane = Var("step", int32), Var("lane", int32)
    address = Var("address", int32)
    producer = seq(
        SetMaxRegisters("dec", 24),
        If(
            THREAD.eq(128),
            seq(
                PrefetchTensorMap("A_map"),
                MbarrierArriveExpectTx(full, zero(), 16384),
                TmaLoad("A_map", coordinates, shared, zero(), full, zero()),
            ),
        ),
    )
    consumer = seq(
        SetMaxRegisters("inc", 240),
        MbarrierWait(full, zero(), zero(), (shared,)),
        Allocate(values),
        For(step, zero(), constant(4), 1, LoopKind.SERIAL, seq(
            Let(address, step * 1024 + THREAD * 8),
            For(lane, zero(), constant(2), 1, LoopKind.UNROLLED,
                Store(values, (lane * 4,), load(shared, (address + lane * 4,), 4))),
            Store(shared, (address,), load(values, (zero(),), 4)),
            Store(c, (ir.cast(address, int64),), ir.call("triple", load(values, (zero(),)))),
        )),
        FenceProxyAsync(),
        BarSync(1, 128),
        If(THREAD.eq(0), seq(TmaStore("C_map", coordinates, shared, zero()), BulkCommitGroup(),
                             BulkWaitGroup(0, False, (shared,)))),
    )  # fmt: skip
    body = seq(
        Allocate(shared),
        Allocate(full),
        If(THREAD.eq(0), seq(MbarrierInit(full, zero(), 1), FenceMbarrierInit())),
        BarSync(0, 256),
        Specialized((Role("producer", 128, 128, producer, 24), Role("consumer", 0, 128, consumer, 240))),
    )
    x = Var("x", float32)
    maps = tuple(
        TensorMapRecord(f"{name}_map", name, "float32", (1024, 1024), (4096,), (32, 64), 128) for name in ("A", "C")
    )
    parameters = (
        KernelParameter("tensor_map", "A_map"),
        KernelParameter("tensor_map", "C_map"),
        KernelParameter("pointer", "C"),
    )
    record = LaunchRecord(
        "gpu_program",
        (TensorArgument("A", "float32", (1024, 1024), (1024, 1), 16),),
        (Allocation("C", "float32", (1024, 1024)),),
        maps,
        (KernelLaunch("kernel", (16, 16, 1), (256, 1, 1), 16392, parameters),),
        ("C",),
    )
    return Program(
        "gpu_program",
        (TensorParameter(a),),
        (kernel(body, threads=256, user_threads=128, shared_bytes=16392),),
        allocations=(c,),
        returns=("C",),
        functions=(Function("triple", (x,), seq(), x * 3.0),),
        tensor_maps=maps,
        launch=record,
        stage="gpu",
    )


def record_with_everything() -> LaunchRecord:
    """Every kind of size and every optional field."""
    m, n = Symbol("M"), Symbol("n")
    blocks = SizeOperation("floordiv", SizeOperation("add", m, 63), 64)
    odd = SizeOperation("max", SizeOperation("mul", SizeOperation("sub", m, SizeOperation("sub", n, -3)), -2), 1)
    return LaunchRecord(
        'odd "name"',
        (
            TensorArgument("A", "bfloat16", (m, 8), (Symbol("stride"), 1), 2, unused=True),
            ScalarArgument("n", "int32"),
        ),
        (Allocation("C", "float32", (m, SizeOperation("mod", odd, 7))),),
        (TensorMapRecord("A_map", "A", "bfloat16", (8, m), (SizeOperation("mul", Symbol("stride"), 2),), (8, 64)),),
        (
            KernelLaunch(
                "first", (blocks, SizeOperation("min", n, 4), 1), (128, 1, 1), 0,
                (KernelParameter("pointer", "A"), KernelParameter("scalar", "n", "int32", SizeOperation("add", n, 1)),
                 KernelParameter("scalar", "m", "int64", m)),
                cluster=(2, 1, 1), cooperative=True, dependent_launch=True,
            ),
        ),
        ("C", "A"),
        (Divisibility(m, 8),),
    )  # fmt: skip


# ---- random IR

SCALARS = tuple(
    Var(f"{dtype.name}_{n}", dtype) for dtype in (int32, int64, uint8, uint32, float16, float32, bool_) for n in "ab"
)
TABLE = Buffer("table", float32, (16, 16), (16, 1), Storage("table", Scope.SHARED, 1024))
PLAIN = Buffer("plain", int8, (), (), Storage("plain", Scope.LOCAL, 1))
SHARED_TILE = Buffer(
    "tile", bfloat16, (64, 64), (64, 1), Storage("tile", Scope.SHARED, 8192, 1024),
    layout=SharedLayout(row_major((64, 64)), TMA_SWIZZLES[128], 2),
)  # fmt: skip
REGISTERS = Buffer("distributed", float64, (64, 96), (96, 1), Storage("distributed", Scope.FRAGMENT, 64 * 96 * 8),
                   layout=linear_fragment((64, 96), 128, 4))  # fmt: skip
BUFFERS = (TABLE, PLAIN, SHARED_TILE, REGISTERS)
NAMES: dict[str, Var | Buffer] = {value.name: value for value in (*SCALARS, *BUFFERS)}


def constants(dtype) -> st.SearchStrategy[Expr]:
    if dtype.is_float:
        numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.1])
        return numbers.map(lambda value: Const(float(value), dtype))
    if dtype.is_bool:
        return st.booleans().map(lambda value: Const(value, dtype))
    return st.integers(dtype.minimum, dtype.maximum).map(lambda value: Const(value, dtype))


def leaves(dtype) -> st.SearchStrategy[Expr]:
    variables = [variable for variable in SCALARS if variable.dtype == dtype]
    return constants(dtype) if not variables else constants(dtype) | st.sampled_from(variables)


@cache
def scalars(dtype, depth: int = 3) -> st.SearchStrategy[Expr]:
    """Random expressions of ``dtype``, every node class among them."""
    if depth == 0:
        return leaves(dtype)
    same = st.deferred(lambda: scalars(dtype, depth - 1))
    integer = st.deferred(lambda: scalars(int32, depth - 1))
    condition = st.deferred(lambda: scalars(bool_, depth - 1))
    other = st.sampled_from([int32, int64, uint8, float16, float32]).flatmap(lambda d: scalars(d, depth - 1))
    functions = st.sampled_from(["exp", "min", "int8", "a.b"])  # some are also words of the text form
    choices = [
        leaves(dtype),
        st.builds(ir.select, condition, same, same),
        st.builds(lambda operand: ir.Cast(operand, dtype), other),
        st.builds(lambda name, *values: ir.Call(name, values, dtype), functions, same, other),
        st.builds(lambda x: ir.Call("f", (x,), dtype), same | other),
    ]
    if dtype.is_bool:
        comparison = st.sampled_from(ir.COMPARISONS)
        choices += [
            st.builds(ir.logical_and, condition, condition),
            st.builds(ir.logical_or, condition, condition),
            st.builds(ir.logical_not, condition),
            st.builds(lambda name, x, y: ir.compare(name, x, y), comparison, integer, integer),
            st.builds(lambda name, x, y: ir.compare(name, x, y), comparison, condition, condition),
        ]
    else:
        choices += [
            st.builds(ir.binary, st.sampled_from(ir.BINARY_OPERATORS), same, same),
            st.builds(ir.unary, st.sampled_from(ir.UNARY_OPERATORS), same),
            st.builds(lambda x: ir.Bitcast(x, dtype), other),
        ]
    if dtype == float32:
        choices.append(st.builds(lambda i, j: load(TABLE, (i, j)), integer, integer))
    if dtype == int32:
        choices.append(st.just(ir.Cast(load(PLAIN, ()), int32)))
    return st.one_of(choices)


def vectors() -> st.SearchStrategy[Expr]:
    four = float32.with_lanes(4)
    index = scalars(int32, 1)
    return st.one_of(
        st.builds(lambda i, j: load(TABLE, (i, j), 4), index, index),
        st.builds(lambda x: ir.Broadcast(x, four), scalars(float32, 2)),
        st.builds(lambda x: Const(x, four), st.floats(width=32)),
        st.builds(lambda i, x: ir.Cast(load(TABLE, (i, i), 4) + ir.Broadcast(x, four), bfloat16.with_lanes(4)), index,
                  scalars(float32, 1)),
    )  # fmt: skip


def any_expression() -> st.SearchStrategy[Expr]:
    kinds = st.sampled_from([int32, int64, uint8, uint32, float16, float32, bool_])
    return kinds.flatmap(lambda dtype: scalars(dtype)) | vectors()
