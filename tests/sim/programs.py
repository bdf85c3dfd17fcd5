"""Hand-built gpu-stage programs for the simulator's tests."""

from __future__ import annotations

from math import prod

from ptxtile.ir.buffers import Buffer, Scope, Storage, contiguous_strides
from ptxtile.ir.expressions import Const, Expr, Load, Var, constant, load
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    FenceMbarrierInit,
    FenceProxyAsync,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    PrefetchTensorMap,
    SetMaxRegisters,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.program import Function, Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Role, Specialized, Statement, Store, seq
from ptxtile.ir.types import DType, float32, int32
from ptxtile.launch_record import KernelLaunch, KernelParameter, LaunchRecord, TensorMapRecord

BLOCK_X, BLOCK_Y, BLOCK_Z, THREAD = (Var(name, int32) for name in ("bx", "by", "bz", "tid"))


def tensor(name: str, shape: tuple[int, ...], dtype: DType = float32) -> Buffer:
    return Buffer(name, dtype, shape, contiguous_strides(shape), Storage(name, Scope.GLOBAL))


def on_chip(name: str, scope: Scope, dtype: DType, count: int, offset: int | None = None) -> Buffer:
    size = count * dtype.bits * dtype.lanes // 8
    return Buffer(name, dtype, (count,), (1,), Storage(name, scope, size, 16, offset))


def barriers(name: str, count: int, offset: int) -> Buffer:
    return Buffer(name, int32, (count,), (1,), Storage(name, Scope.BARRIER, 8 * count, 8, offset))


def get(buffer: Buffer, index: Expr | int, lanes: int = 1) -> Load:
    return load(buffer, (index if isinstance(index, Expr) else constant(index),), lanes)


def put(buffer: Buffer, index: Expr | int, value: Expr, **keywords: object) -> Store:
    return Store(buffer, (index if isinstance(index, Expr) else constant(index),), value, **keywords)  # type: ignore[arg-type]


def loop(var: Var, stop: Expr | int, body: Statement, kind: LoopKind = LoopKind.SERIAL, step: int = 1) -> For:
    return For(var, constant(0), stop if isinstance(stop, Expr) else constant(stop), step, kind, body)


def number(value: int | float, dtype: DType = int32) -> Const:
    return constant(value, dtype)


def program(
    body: Statement,
    tensors: list[Buffer],
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 32,
    shared_bytes: int = 0,
    scalars: tuple[Var, ...] = (),
    tensor_maps: tuple[TensorMapRecord, ...] = (),
    functions: tuple[Function, ...] = (),
    cooperative: bool = False,
) -> Program:
    parameters = (*(TensorParameter(buffer) for buffer in tensors), *(ScalarParameter(var) for var in scalars))
    block = (BLOCK_X, BLOCK_Y, BLOCK_Z)
    kernel = Kernel("kernel", grid, threads, block, THREAD, body, threads, shared_bytes=shared_bytes)
    record = LaunchRecord(
        "program",
        (),
        tensor_maps=tensor_maps,
        launches=(
            KernelLaunch(
                "kernel",
                grid,
                (threads, 1, 1),
                shared_bytes,
                (
                    *(KernelParameter("pointer", buffer.name) for buffer in tensors),
                    *(KernelParameter("tensor_map", record.name) for record in tensor_maps),
                    *(KernelParameter("scalar", var.name, var.dtype.name) for var in scalars),
                ),
                cooperative=cooperative,
            ),
        ),
    )
    return Program(
        "program", parameters, (kernel,), functions=functions, tensor_maps=tensor_maps, launch=record, stage="gpu"
    )


def matrix_map(
    name: str, of: Buffer, box: tuple[int, ...], swizzle: int = 0, dtype: DType | None = None
) -> TensorMapRecord:
    """A tensor map of a whole contiguous tensor; ``box`` innermost first."""
    dtype = dtype or of.dtype
    shape = of.static_shape
    itemsize = dtype.itemsize
    strides = tuple(prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape) - 1))[::-1]
    return TensorMapRecord(name, of.name, dtype.name, tuple(reversed(shape)), strides, box, swizzle)


def vector_add(rows: int, columns: int, tile: int = 64, threads: int = 128) -> Program:
    """C = A + B in tiles of tile × tile, four elements a load; ``rows`` and ``columns`` multiples of the tile."""
    a, b, c = (tensor(name, (rows, columns)) for name in "ABC")
    left, right = (on_chip(name, Scope.REGISTER, float32, 4) for name in ("left", "right"))
    total = on_chip("total", Scope.REGISTER, float32, 4)
    step, lane = Var("step", int32), Var("lane", int32)
    offset, element = Var("offset", int32), Var("element", int32)
    body = seq(
        loop(
            step,
            tile * tile // (threads * 4),
            seq(
                Allocate(left),
                Allocate(right),
                Allocate(total),
                Let(element, (step * threads + THREAD) * 4),
                Let(offset, (BLOCK_Y * tile + element // tile) * columns + BLOCK_X * tile + element % tile),
                put(left, 0, get(a, offset, 4)),
                put(right, 0, get(b, offset, 4)),
                loop(lane, 4, put(total, lane, get(left, lane) + get(right, lane)), LoopKind.UNROLLED),
                put(c, offset, get(total, 0, 4)),
            ),
            LoopKind.UNROLLED,
        )
    )
    return program(body, [a, b, c], (columns // tile, rows // tile, 1), threads)


def tma_add(
    rows: int,
    columns: int,
    *,
    arrivals: int = 128,
    expected_bytes: int = 32768,
    parity: int = 0,
    sync_threads: int = 128,
    registers: int = 240,
    swizzle: int = 0,
) -> Program:
    """The add with a producer role, tiles of 64 × 64 through TMA: consumers are threads 0 to 127, producers 128 to 255.

    One producer thread expects the bytes and arrives; the other 127 only arrive. The keywords make it wrong.
    """
    a, b, c = (tensor(name, (rows, columns)) for name in "ABC")
    box = (64, 64) if not swizzle else (swizzle // 4, 64)
    maps = tuple(matrix_map(f"{buffer.name}_map", buffer, box, swizzle) for buffer in (a, b, c))
    a_shared = on_chip("A_shared", Scope.SHARED, float32, 4096, 0)
    b_shared = on_chip("B_shared", Scope.SHARED, float32, 4096, 16384)
    full = barriers("full", 1, 32768)
    zero, x, y = number(0), BLOCK_X * 64, BLOCK_Y * 64
    pieces = [(column, column * 64) for column in range(0, 64, box[0])]
    loads = [
        TmaLoad(f"{name}_map", (x + column, y), shared, number(offset), full, zero)
        for name, shared in (("A", a_shared), ("B", b_shared))
        for column, offset in pieces
    ]
    stores = [TmaStore("C_map", (x + column, y), a_shared, number(offset)) for column, offset in pieces]
    producer = seq(
        SetMaxRegisters("dec", 24),
        If(
            THREAD.eq(128),
            seq(MbarrierArriveExpectTx(full, zero, expected_bytes), *loads),
            MbarrierArrive(full, zero),
        ),
    )
    step, lane, element = Var("step", int32), Var("lane", int32), Var("element", int32)
    sums = on_chip("sums", Scope.REGISTER, float32, 4)
    consumer = seq(
        SetMaxRegisters("inc", registers),
        MbarrierWait(full, zero, number(parity), (a_shared, b_shared)),
        loop(
            step,
            8,
            seq(
                Allocate(sums),
                Let(element, step * 512 + THREAD * 4),
                loop(
                    lane,
                    4,
                    put(sums, lane, get(a_shared, element + lane) + get(b_shared, element + lane)),
                    LoopKind.UNROLLED,
                ),
                put(a_shared, element, get(sums, 0, 4)),
            ),
        ),
        FenceProxyAsync(),
        BarSync(3, sync_threads),
        If(THREAD.eq(0), seq(*stores, BulkCommitGroup(), BulkWaitGroup(0, True))),
    )
    body = seq(
        If(
            THREAD.eq(0),
            seq(
                *(PrefetchTensorMap(record.name) for record in maps),
                MbarrierInit(full, zero, arrivals),
                FenceMbarrierInit(),
            ),
        ),
        BarSync(0, 256),
        Specialized((Role("consumer", 0, 128, consumer), Role("producer", 128, 128, producer))),
    )
    grid = (-(-columns // 64), -(-rows // 64), 1)
    return program(body, [a, b, c], grid, 256, 32776, tensor_maps=maps)
