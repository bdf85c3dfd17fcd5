"""Iterations of ``T.Parallel`` have no order: dependences between them are refused where they can be shown."""

from __future__ import annotations

from dataclasses import dataclass

from ptxtile.errors import Location, TraceError
from ptxtile.frontend.affine import Linear, linear
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Cast, Const, Expr, Load, LogicalAnd, LogicalOr, Select
from ptxtile.ir.rewrite import children, contains, free_variables, walk
from ptxtile.ir.statements import Allocate, For, If, Let, ParallelFor, Seq, Statement, Store, While


@dataclass(frozen=True)
class _Access:
    buffer: Buffer
    indices: tuple[Linear, ...]
    location: Location | None
    value: Expr | None = None


def check_parallel(loop: ParallelFor, definitions: dict[str, Expr]) -> None:
    """TraceError, naming both lines, where an iteration provably reads or overwrites what another one writes, and where
    an array of each thread's own is indexed as if it were shared.

    Only unconditional accesses with indices that are affine in the loop's indices are looked at; the thread's own LOCAL
    buffers are left out, and so are indices that vary otherwise inside of the loop.
    """
    _check_private(loop)
    collector = _Collector(loop, definitions)
    collector.statement(loop.body)
    for position, write in enumerate(collector.writes):
        _check_overwrite(loop, write, definitions)
        for read in collector.reads:
            if read.buffer.storage == write.buffer.storage and _conflict(loop, write, read):
                _refuse_read(write, read)
        for other in collector.writes[:position]:
            differs = other.buffer.storage == write.buffer.storage and other.value != write.value
            if differs and _conflict(loop, write, other, same_iteration_first=True):
                _refuse_write(write, other)


def _check_private(loop: ParallelFor) -> None:
    """Refuses elements of a thread's own array that a loop's index chooses: which thread runs an iteration is open."""
    varying = {var.name for var in loop.vars}
    own: set[str] = set()
    location = loop.location
    for node in walk(loop.body):
        if isinstance(node, Statement):
            location = node.location or location
        if isinstance(node, Allocate):
            own.add(node.buffer.name)
        elif isinstance(node, Let) and free_variables(node.value) & varying:
            varying.add(node.var.name)
        elif isinstance(node, (Load, Store)) and node.buffer.scope is Scope.LOCAL and node.buffer.name not in own:
            chosen = sorted(varying & {name for index in node.indices for name in free_variables(index)})
            if chosen:
                raise TraceError(
                    f"{node.buffer.name} is an array of each thread's own, and T.Parallel chooses its element by "
                    f"{chosen[0]}, an index that the threads share among themselves",
                    location=location,
                    hint="T.alloc_fragment makes a tile that is spread over the threads; with T.alloc_local use "
                    "T.serial, T.unroll or T.vectorized",
                )


class _Collector:
    def __init__(self, loop: ParallelFor, definitions: dict[str, Expr]) -> None:
        self.definitions = definitions
        self.reads: list[_Access] = []
        self.writes: list[_Access] = []
        self.inner: set[str] = set()
        self.vars = {var.name for var in loop.vars}

    def statement(self, node: Statement) -> None:
        if isinstance(node, Seq):
            for child in node.statements:
                self.statement(child)
        elif isinstance(node, Let):
            self.expression(node.value, node.location)
            if node.var.name not in self.definitions:
                self.inner.add(node.var.name)
        elif isinstance(node, Store):
            self.expression(node.value, node.location)
            self.access(self.writes, node.buffer, node.indices, node.location, node.value)
        elif isinstance(node, (If, For, While)):
            return  # conditional or repeated: nothing can be shown here

    def expression(self, node: Expr, location: Location | None) -> None:
        if isinstance(node, (Select, LogicalAnd, LogicalOr)):
            return
        if isinstance(node, Load):
            self.access(self.reads, node.buffer, node.indices, location)
        for child in children(node):
            self.expression(child, location)

    def access(
        self, into: list[_Access], buffer: Buffer, indices: tuple[Expr, ...], location: Location | None,
        value: Expr | None = None,
    ) -> None:  # fmt: skip
        if buffer.scope is Scope.LOCAL:
            return
        forms = tuple(linear(index, self.definitions) for index in indices)
        if any(not self._is_plain(form) for form in forms):
            return
        into.append(_Access(buffer, forms, location, value))

    def _is_plain(self, form: Linear) -> bool:
        """Whether everything but the loop's own indices is the same in all iterations."""
        for atom in form.terms:
            names = free_variables(atom)
            if names & self.inner or (names & self.vars and not _is_index(atom, self.vars)):
                return False
            if contains(atom, Load):
                return False
        return True


def _is_index(atom: Expr, names: set[str]) -> bool:
    return getattr(atom, "name", None) in names


def _conflict(loop: ParallelFor, write: _Access, other: _Access, same_iteration_first: bool = False) -> bool:
    """Whether ``write`` in one iteration and ``other`` in a different one surely touch the same element."""
    if len(write.indices) != len(other.indices) or write.buffer.shape != other.buffer.shape:
        return False
    extents = {var.name: extent for var, extent in zip(loop.vars, loop.extents, strict=True)}
    distances: dict[str, int] = {}
    for left, right in zip(write.indices, other.indices, strict=True):
        difference = left - right
        if set(difference.terms):
            return False  # different coefficients, or parts that cannot be compared
        used = [(atom, c) for atom, c in left.terms.items() if getattr(atom, "name", None) in extents]
        if not used:
            if difference.constant != 0:
                return False
            continue
        if len(used) > 1:
            return False
        name, coefficient = used[0][0].name, used[0][1]  # type: ignore[attr-defined]
        if difference.constant % coefficient:
            return False
        distance = difference.constant // coefficient
        if abs(distance) >= extents[name] or distances.setdefault(name, distance) != distance:
            return False
    free = [name for name, extent in extents.items() if name not in distances and extent > 1]
    if any(distances.values()):
        return True
    return bool(free) and not same_iteration_first


def _check_overwrite(loop: ParallelFor, write: _Access, definitions: dict[str, Expr]) -> None:
    """``C[0] = i``: the element does not depend on an index that the value differs by."""
    assert write.value is not None
    indexed = {getattr(atom, "name", None) for form in write.indices for atom in form.terms}
    value = linear(_uncast(write.value), definitions)
    for var, extent in zip(loop.vars, loop.extents, strict=True):
        coefficient = value.terms.get(var, 0)
        if extent > 1 and var.name not in indexed and coefficient and not isinstance(write.value, Const):
            raise TraceError(
                f"iterations of T.Parallel write different values to one element of {write.buffer.name}: its index "
                f"does not depend on {var.name}, the value does ({_line('the write', write)}, {_loop_line(loop)})",
                location=write.location,
                hint="iterations have no order, so it is open which value stays",
            )


def _uncast(value: Expr) -> Expr:
    """The integer under conversions to dtypes that keep different small integers apart."""
    while isinstance(value, Cast) and value.dtype.bits >= 32 and not value.operand.dtype.is_float:
        value = value.operand
    return value


def _line(what: str, access: _Access) -> str:
    return f"{what} is at line {access.location.line}" if access.location else what


def _loop_line(loop: ParallelFor) -> str:
    return f"the loop at line {loop.location.line}" if loop.location else "the loop"


def _refuse_read(write: _Access, read: _Access) -> None:
    raise TraceError(
        f"an iteration of T.Parallel reads an element of {write.buffer.name} that another iteration writes: "
        f"{_line('the read', read)}, {_line('the write', write)}",
        location=read.location,
        hint="iterations have no order: write to another buffer, or use a serial loop or a reduction",
    )


def _refuse_write(write: _Access, other: _Access) -> None:
    raise TraceError(
        f"two iterations of T.Parallel write different values to one element of {write.buffer.name}: "
        f"{_line('one write', other)}, {_line('the other', write)}",
        location=write.location,
        hint="iterations have no order, so it is open which value stays",
    )
