"""Small programs of the gpu stage, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.expressions import Const, Expr, Var, constant, load
from ptxtile.ir.program import Function, Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.statements import Seq, Statement, Store, seq
from ptxtile.ir.types import DType, int32
from ptxtile.launch_record import KernelLaunch, KernelParameter, LaunchRecord, TensorMapRecord

THREAD = Var("thread", int32)
BLOCKS = tuple(Var(f"block_{axis}", int32) for axis in "xyz")


def number(value: int, dtype: DType = int32) -> Const:
    return constant(value, dtype)


def tensor(name: str, dtype: DType, size: int = 1024) -> Buffer:
    return Buffer(name, dtype, (size,), (1,), Storage(name, Scope.GLOBAL, None))


def private(name: str, dtype: DType, size: int, scope: Scope = Scope.REGISTER) -> Buffer:
    return Buffer(name, dtype, (size,), (1,), Storage(name, scope, size * dtype.bits // 8))


def local_scalar(name: str, dtype: DType) -> Buffer:
    return Buffer(name, dtype, (), (), Storage(name, Scope.LOCAL, dtype.bits // 8))


def shared(name: str, dtype: DType, size: int, offset: int, scope: Scope = Scope.SHARED) -> Buffer:
    return Buffer(name, dtype, (size,), (1,), Storage(name, scope, size * dtype.bits // 8, 128, offset))


def at(buffer: Buffer, index: Expr | int, lanes: int = 1) -> Expr:
    return load(buffer, (index if isinstance(index, Expr) else number(index),), lanes)


def put(buffer: Buffer, index: Expr | int, value: Expr, **more) -> Store:
    return Store(buffer, (index if isinstance(index, Expr) else number(index),), value, **more)


def program(
    body: Statement | Sequence[Statement],
    tensors: Sequence[Buffer | TensorParameter] = (),
    *,
    scalars: Sequence[Var] = (),
    tensor_maps: Sequence[TensorMapRecord] = (),
    functions: Sequence[Function] = (),
    threads: int = 128,
    name: str = "kernel",
    **kernel_options,
) -> Program:
    """One kernel whose parameters are the tensors, the tensor maps and the scalars, in this order."""
    if not isinstance(body, Statement):
        body = body[0] if len(body) == 1 else seq(*body)
    if not isinstance(body, Seq):
        body = Seq((body,))
    parameters = tuple(t if isinstance(t, TensorParameter) else TensorParameter(t) for t in tensors)
    kernel = Kernel(name, (1, 1, 1), threads, BLOCKS, THREAD, body, threads, **kernel_options)
    launch = KernelLaunch(
        name,
        (1, 1, 1),
        (threads, 1, 1),
        0,
        tuple(KernelParameter("pointer", p.name) for p in parameters)
        + tuple(KernelParameter("tensor_map", record.name) for record in tensor_maps)
        + tuple(KernelParameter("scalar", s.name, str(s.dtype)) for s in scalars),
    )
    return Program(
        name,
        (*parameters, *(ScalarParameter(s) for s in scalars)),
        (kernel,),
        functions=tuple(functions),
        tensor_maps=tuple(tensor_maps),
        launch=LaunchRecord(name, (), tensor_maps=tuple(tensor_maps), launches=(launch,)),
        stage="gpu",
    )
