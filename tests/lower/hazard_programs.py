"""Building blocks for gpu-stage programs with shared memory: one kernel, one CTA, int32 tiles."""

from __future__ import annotations

from dataclasses import replace

from ptxtile import target as targets
from ptxtile.errors import Location
from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Var, binary, constant, load
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import For, If, LoopKind, Specialized, Statement, Store, seq
from ptxtile.ir.types import DType, int32
from ptxtile.launch_record import TensorMapRecord
from ptxtile.lower import insert_synchronization, place_shared_memory
from ptxtile.lower.options import Options

TARGET = targets.get("sm_90a")
THREAD = Var("thread", int32)
BLOCKS = (Var("bx", int32), Var("by", int32), Var("bz", int32))
TRIPS = Var("n", int32)


def at(line: int) -> Location:
    """A line of the imagined user's file."""
    return Location("kernel.py", line)


def shared(name: str, elements: int, dtype: DType = int32) -> Buffer:
    return allocate(name, Scope.SHARED, dtype, (elements,))


def registers(name: str, elements: int = 16, dtype: DType = int32) -> Buffer:
    return allocate(name, Scope.REGISTER, dtype, (elements,))


def scalar(name: str) -> Buffer:
    return allocate(name, Scope.LOCAL, int32, ())


def tensor(name: str, elements: int = 1 << 16, dtype: DType = int32) -> Buffer:
    return allocate(name, Scope.GLOBAL, dtype, (elements,))


def barriers(name: str = "bars", count: int = 1) -> Buffer:
    buffer = allocate(name, Scope.BARRIER, int32, (count,))
    return replace(buffer, storage=replace(buffer.storage, size=8 * count))


def number(value: int) -> Expr:
    return constant(value, int32)


def read(buffer: Buffer, index: Expr | int, lanes: int = 1) -> Expr:
    return load(buffer, (index if isinstance(index, Expr) else number(index),), lanes)


def write(buffer: Buffer, index: Expr | int, value: Expr | int, line: int = 0) -> Store:
    index = index if isinstance(index, Expr) else number(index)
    return Store(
        buffer, (index,), value if isinstance(value, Expr) else number(value), location=at(line) if line else None
    )


def loop(
    name: str, stop: Expr | int, body, kind: LoopKind = LoopKind.SERIAL, start: int = 0, step: int = 1, **options
) -> For:
    """``body``: a function from the loop variable to a statement, or a statement."""
    var = Var(name, int32)
    inside = body if isinstance(body, Statement) else body(var)
    stop = stop if isinstance(stop, Expr) else number(stop)
    return For(var, number(start), stop, step, kind, inside, tuple(options.items()))


def unrolled(name: str, stop: int, body) -> For:
    return loop(name, stop, body, LoopKind.UNROLLED)


def elected(thread: int, *statements: Statement) -> If:
    return If(THREAD.eq(thread), seq(*statements))


def program(
    *body: Statement, threads: int = 32, tensors: tuple[Buffer, ...] = (), alias: tuple[str, ...] = (), maps=()
) -> Program:
    """``alias``: tensors that may overlap. ``maps``: (name, tensor, box elements) of one-dimensional tensor maps,
    int32."""
    parameters = tuple(TensorParameter(t, alias_group=0 if t.name in alias else None) for t in tensors)
    kernel = Kernel("kernel", (1, 1, 1), threads, BLOCKS, THREAD, seq(*body), threads)
    records = tuple(TensorMapRecord(n, t, "int32", (1 << 16,), (), (box,)) for n, t, box in maps)
    return Program("p", parameters, (kernel,), symbols=(TRIPS,), tensor_maps=records, stage="gpu")


def placed(p: Program) -> Program:
    return place_shared_memory.run(p, TARGET, Options())


def synchronized(p: Program) -> Program:
    return insert_synchronization.run(placed(p), TARGET, Options())


def body(p: Program) -> Statement:
    return p.kernels[0].body


def outline(p: Program | Statement) -> str:
    """The structure in one line: S store, L load op, B barrier, F fence and so on; what tests of placement look at."""
    return _outline(body(p) if isinstance(p, Program) else p)


_LETTERS = {
    "Store": "S", "BarSync": "B", "TmaLoad": "TL", "TmaStore": "TS", "MbarrierWait": "W", "MbarrierInit": "I",
    "FenceMbarrierInit": "FI", "MbarrierArrive": "A", "MbarrierArriveExpectTx": "E", "BulkCommitGroup": "C",
    "BarArrive": "N", "ClusterArrive": "CA", "ClusterWait": "CW",
}  # fmt: skip


def _outline(node: Statement | None) -> str:
    match node:
        case None:
            return ""
        case For(_, _, _, _, _, inside):
            return f"for[{_outline(inside)}]"
        case If(_, then, otherwise):
            return f"if[{_outline(then)}" + (f"|{_outline(otherwise)}]" if otherwise else "]")
        case Specialized(roles):
            return " ".join(f"{role.name}[{_outline(role.body)}]" for role in roles)
        case g.FenceProxyAsync(space):
            return f"F{space[0]}"
        case g.BulkWaitGroup(pending, reads, _):
            return ("Wr" if reads else "Wg") + (str(pending) if pending else "")
    statements = getattr(node, "statements", None)
    if statements is not None:
        return " ".join(text for text in map(_outline, statements) if text)
    if type(node).__name__ == "While":
        return f"while[{_outline(node.body)}]"  # type: ignore[union-attr]
    return _LETTERS.get(type(node).__name__, "")


def barriers_of(p: Program) -> list[g.BarSync]:
    return [node for node in walk(body(p)) if isinstance(node, g.BarSync)]


def offsets(p: Program) -> dict[str, int]:
    from ptxtile.ir.rewrite import buffers_of

    found = {b.storage for node in walk(body(p)) for b in buffers_of(node) if b.scope in (Scope.SHARED, Scope.BARRIER)}
    assert all(storage.offset is not None for storage in found)
    assert len({storage.name for storage in found}) == len(found)
    return {storage.name: storage.offset or 0 for storage in found}


def plus(left: Expr, right: Expr | int) -> Expr:
    return binary("add", left, right)
