"""Tile-stage programs built by hand, as the frontend would trace them."""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate, contiguous_strides
from ptxtile.ir.expressions import Expr, Var, as_expr, load
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.statements import Allocate, ParallelFor, Statement, Store, seq
from ptxtile.ir.tile_ops import Copy, Region
from ptxtile.ir.types import DType, float32, int32

BX, BY, BZ, THREAD = Var("bx", int32), Var("by", int32), Var("bz", int32), Var("tx", int32)


def tensor(name: str, *shape: int, dtype: DType = float32) -> Buffer:
    return Buffer(name, dtype, shape, contiguous_strides(shape), Storage(name, Scope.GLOBAL))


def tile_of(buffer: Buffer, starts: tuple[Expr, ...], extents: tuple[int, ...]) -> Region:
    return Region(buffer, starts, extents)


def whole(buffer: Buffer) -> Region:
    return Region(buffer, tuple(as_expr(0) for _ in buffer.shape), buffer.static_shape)


def program(body: Statement, parameters: list[Buffer], outputs: list[Buffer], grid, threads=128) -> Program:
    kernel = Kernel("kernel", grid, threads, (BX, BY, BZ), THREAD, body, user_threads=threads)
    return Program(
        "kernel",
        tuple(TensorParameter(buffer) for buffer in parameters),
        (kernel,),
        allocations=tuple(outputs),
        returns=tuple(buffer.name for buffer in outputs),
    )


def add_program(m=1024, n=1024, block_m=64, block_n=64, threads=128, through_shared=False) -> Program:
    """C = A + B, as in the elementwise example; ``through_shared`` stages C in a shared tile too."""
    a, b, c = (tensor(name, m, n) for name in "ABC")
    shape = (block_m, block_n)
    a_shared, b_shared = (allocate(f"{x}_shared", Scope.SHARED, float32, shape) for x in "AB")
    c_local = allocate("C_local", Scope.FRAGMENT, float32, shape)
    c_shared = allocate("C_shared", Scope.SHARED, float32, shape)
    i, j = Var("i", int32), Var("j", int32)
    starts = (BY * block_m, BX * block_n)
    statements: list[Statement] = [Allocate(x) for x in (a_shared, b_shared, c_local)]
    statements += [
        Copy(tile_of(a, starts, shape), whole(a_shared)),
        Copy(tile_of(b, starts, shape), whole(b_shared)),
        ParallelFor((i, j), shape, Store(c_local, (i, j), load(a_shared, (i, j)) + load(b_shared, (i, j)))),
    ]
    if through_shared:
        statements += [
            Allocate(c_shared),
            Copy(whole(c_local), whole(c_shared)),
            Copy(whole(c_shared), tile_of(c, starts, shape)),
        ]
    else:
        statements.append(Copy(whole(c_local), tile_of(c, starts, shape)))
    return program(seq(*statements), [a, b], [c], (-(-n // block_n), -(-m // block_m), 1), threads)
