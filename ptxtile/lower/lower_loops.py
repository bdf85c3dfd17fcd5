"""Parallel loops become what one thread does: nested loops over its own iterations.

Input: async stage with layouts. Output: thread stage: no ParallelFor and no FRAGMENT buffers; a fragment is an array of
registers. The innermost loop over consecutive elements is VECTORIZED (``vectorize_loops`` expands it), the others are
UNROLLED, or SERIAL around an unrolled part where no registers are indexed and the count is large.

Iterations that a layout repeats in several threads compute in all of them, but only one of them stores to memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.atomic_ops import Atomic, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Load, Var, as_expr, constant, logical_and
from ptxtile.ir.layouts import Fragment
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import (
    Rewriter,
    children,
    contains,
    copy_with,
    free_variables,
    has_load,
    kinds_in,
    map_children,
    substitute,
)
from ptxtile.ir.statements import Allocate, For, If, LoopKind, ParallelFor, Role, Statement, Store, seq
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Gemm, MatrixStore, Region
from ptxtile.ir.types import int32
from ptxtile.lower.fragment_maps import Axis, FragmentAccess, register_map
from ptxtile.lower.matrix_stores import matrix_form
from ptxtile.lower.options import Options
from ptxtile.lower.parallel_loops import fragment_accesses
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.lower.stage_fragments import layout_of
from ptxtile.lower.vector_access import MEMORY
from ptxtile.target import Target

MOST_UNROLLED = 16
"""Rounds of a loop without registers that are expanded; more become a loop around ROUND_UNROLL expanded ones."""
ROUND_UNROLL = 8
MOST_LANES = 64
"""Consecutive elements of a thread that are expanded at once where they lie in no registers."""
MOST_AXIS_UNROLL = 512
"""Iterations of a user's loop that is expanded because a fragment is indexed by its variable."""


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels = []
    for kernel in program.kernels:
        lowering = _LoopLowering(program, kernel, names)
        body = lowering.visit(kernel.body)
        body = _UnrollAxes(lowering.axes).visit(body)
        kernels.append(replace(kernel, body=body))
    return replace(program, kernels=tuple(kernels), stage="thread")


class _LoopLowering(ScopedRewriter, kinds=(ParallelFor, Load)):
    def __init__(self, program: Program, kernel: Kernel, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.names = kernel, names
        self.first_thread = 0
        self.enclosing: list[For] = []
        self.axes: set[str] = set()
        self.registers: dict[str, Buffer] = {}
        self.indexed_by_variables = _indexed_by_variables(kernel.body)

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = super().visit(node)
            self.first_thread = outer
            return node
        if isinstance(node, For):
            self.enclosing.append(node)
            node = super().visit(node)
            self.enclosing.pop()
            return node
        if isinstance(node, ParallelFor):
            return self._lower(node)
        return super().visit(node)

    def rewrite_Allocate(self, node: Allocate) -> Statement:
        if node.buffer.scope is not Scope.FRAGMENT:
            return node
        return copy_with(node, {"buffer": self._register(node.buffer)})

    def rewrite_Store(self, node: Store) -> Statement:
        if node.buffer.scope is not Scope.FRAGMENT:
            return node
        return copy_with(
            node, {"buffer": self._register(node.buffer), "indices": (_linear(node.buffer, node.indices),)}
        )

    def rewrite_Gemm(self, node: Gemm) -> Statement:
        registers = self._register(node.accumulator.buffer)
        changes = {"accumulator": Region(registers, (constant(0),), registers.static_shape)}
        for name, operand in (("a", node.a), ("b", node.b)):
            if operand.buffer.scope is Scope.FRAGMENT:
                changes[name] = Region(self._register(operand.buffer), operand.starts, operand.extents)
        return copy_with(node, changes)

    def rewrite_WgmmaWaitGroup(self, node: WgmmaWaitGroup) -> Statement:
        def registers(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
            return tuple(self._register(b) if b.scope is Scope.FRAGMENT else b for b in buffers)

        return copy_with(node, {"accumulators": registers(node.accumulators), "fragments": registers(node.fragments)})

    def expression(self, node: Expr) -> Expr:
        """Fragments used as scalars are replicated: their registers are numbered like their elements."""
        if not contains(node, Load):
            return node
        node = map_children(node, self.expression)
        if isinstance(node, Load) and node.buffer.scope is Scope.FRAGMENT:
            return Load(self._register(node.buffer), (_linear(node.buffer, node.indices),), node.dtype)
        return node

    def _register(self, fragment: Buffer) -> Buffer:
        if fragment.name not in self.registers:
            layout = fragment.layout
            values = layout.values if isinstance(layout, Fragment) else fragment.elements
            scope = Scope.LOCAL if fragment.name in self.indexed_by_variables else Scope.REGISTER
            self.registers[fragment.name] = allocate(fragment.name, scope, fragment.dtype, (values,))
        return self.registers[fragment.name]

    def _lower(self, loop: ParallelFor) -> Statement:
        layout = layout_of(loop)
        thread: Expr = self.kernel.thread
        if self.first_thread:
            thread = thread - self.first_thread
        if loop.option("matrices"):
            return self._store_matrices(loop, layout, thread)
        counters = [Var(self.names.fresh("v" if d == 1 else "r"), int32) for _, d in layout.value.modes]
        with self.analyzer.scope():
            for counter, (count, _) in zip(counters, layout.value.modes, strict=True):
                self.analyzer.bind(counter, 0, count - 1)
            coordinates = [
                simplify_expression(as_expr(c), self.analyzer)
                for c in layout.coordinates(thread, _flat(layout, counters))
            ]
            body = self._localized(loop, layout, counters)
            body = substitute(body, {var.name: c for var, c in zip(loop.vars, coordinates, strict=True)})
            guard = self._inside(loop, layout, coordinates)
        if not layout.is_exclusive:
            body = _StoreOnce(_is_first_replica(layout, thread)).visit(body)
        if guard is not None:
            body = If(guard, body, location=loop.location)
        arrays = [self._register(access.buffer) for access in self._accesses(loop)]
        uses_registers = any(array.scope is Scope.REGISTER for array in arrays)
        return self._nest(counters, layout, body, uses_registers=uses_registers, location=loop.location)

    def _store_matrices(self, loop: ParallelFor, layout: Fragment, thread: Expr) -> Statement:
        """The loop's values, two or four matrices of a warp at a time, and the stores of these: what
        ``select_matrix_stores`` decided."""
        form, where = matrix_form(layout), loop.location
        assert form is not None and isinstance(loop.body, Store), "select_matrix_stores chooses such loops"
        at_once, modes = form.count // 2, layout.value.modes
        counters = [Var(self.names.fresh("r"), int32) for _ in modes]
        *pairs, half, column = counters
        part = Var(self.names.fresh("p"), int32)
        # pairs of matrices are counted by `pairs`, whose last one becomes `at_once` of them in one instruction
        within = {pairs[-1].name: pairs[-1] * at_once + part} if pairs and at_once > 1 else {}
        rows = form.rows(transposed=loop.option("matrices") == "columns")
        with self.analyzer.scope():
            for counter, (count, _) in zip(counters, modes, strict=True):
                self.analyzer.bind(counter, 0, count - 1)
            element = self._point(loop, layout, thread, tuple(counters))
            row = self._point(loop, rows, thread, tuple(pairs) if pairs else (constant(0),))
            store = self._localized(loop, layout, counters)
        assert isinstance(store, Store)
        shared = store.buffer
        lanes = allocate(self.names.fresh(f"{shared.name}_matrices"), Scope.REGISTER, shared.dtype, (form.count * 2,))
        place = part * 4 + half * 2 + column if at_once > 1 else half * 2 + column
        value = substitute(substitute(store.value, element), within)
        body: Statement = Store(lanes, (place,), value, location=where)
        body = _loop(half, 2, LoopKind.UNROLLED, _loop(column, 2, LoopKind.VECTORIZED, body, where), where)
        body = _loop(part, at_once, LoopKind.UNROLLED, body, where) if at_once > 1 else body
        indices = tuple(substitute(index, row) for index in store.indices)
        transposed = loop.option("matrices") == "columns"
        matrices = MatrixStore(lanes, constant(0), shared, indices, form.count, transposed, location=where)
        body = seq(Allocate(lanes), body, matrices)
        for counter, (count, _) in reversed(list(zip(pairs, rows.value.modes, strict=False))):
            body = _loop(counter, count, LoopKind.UNROLLED, body, where)
        return body

    def _point(self, loop: ParallelFor, layout: Fragment, thread: Expr, counters: tuple) -> dict[str, Expr]:
        """The loop variables where ``thread`` is at ``counters``."""
        coordinates = (simplify_expression(as_expr(c), self.analyzer) for c in layout.coordinates(thread, counters))
        return {var.name: coordinate for var, coordinate in zip(loop.vars, coordinates, strict=True)}

    def _accesses(self, loop: ParallelFor) -> list[FragmentAccess]:
        return fragment_accesses(loop, tuple(self.enclosing))

    def _inside(self, loop: ParallelFor, layout: Fragment, coordinates: list[Expr]) -> Expr | None:
        """The condition that an iteration is no padding; None if there is no padding."""
        guard: Expr | None = None
        for coordinate, size, padded in zip(coordinates, loop.extents, layout.padded, strict=True):
            if padded > size:
                condition = coordinate.lt(size)
                guard = condition if guard is None else logical_and(guard, condition)
        return guard

    def _localized(self, loop: ParallelFor, layout: Fragment, counters: list[Var]) -> Statement:
        """The body with fragment accesses replaced by registers."""
        indices: dict[tuple[str, tuple[Expr, ...], bool], Expr] = {}
        for access in self._accesses(loop):
            fragment = access.buffer.layout
            assert isinstance(fragment, Fragment)
            found = register_map(access, loop, layout, fragment)
            if found is None:
                raise LoweringError(
                    f"an access of {access.buffer.name} is not local to its thread", location=loop.location
                )
            key = (access.buffer.name, access.indices, access.is_write)
            if found.by_element:
                indices[key] = simplify_expression(_linear(access.buffer, access.indices), self.analyzer)
                continue
            index: Expr = constant(found.base)
            for axis, registers in zip(access.axes, found.axes, strict=True):
                self.axes.add(axis.var.name)
                index = index + registers(_axis_position(axis))
            for counter, registers in zip(counters, found.values, strict=True):
                index = index + registers(counter)
            indices[key] = simplify_expression(index, self.analyzer)
        return _Localize(indices, self._register).visit(loop.body)

    def _nest(
        self, counters: list[Var], layout: Fragment, body: Statement, uses_registers: bool, location: Location | None
    ) -> Statement:
        modes = list(zip(counters, layout.value.modes, strict=True))
        for position, (counter, (count, stride)) in reversed(list(enumerate(modes))):
            long = count > MOST_LANES and count % MOST_LANES == 0 and not uses_registers
            if position == len(modes) - 1 and stride == 1 and count > 1 and long:
                outer, inner = Var(self.names.fresh("r"), int32), Var(self.names.fresh("v"), int32)
                body = substitute(body, {counter.name: outer * MOST_LANES + inner})
                body = _loop(inner, MOST_LANES, LoopKind.VECTORIZED, body, location)
                body = _loop(outer, count // MOST_LANES, LoopKind.SERIAL, body, location)
            elif position == len(modes) - 1 and stride == 1 and count > 1:
                body = _loop(counter, count, LoopKind.VECTORIZED, body, location)
            elif count == 1:
                body = substitute(body, {counter.name: constant(0)})
            elif uses_registers or count <= MOST_UNROLLED or count % ROUND_UNROLL:
                kind = LoopKind.UNROLLED if uses_registers or count <= MOST_UNROLLED else LoopKind.SERIAL
                body = _loop(counter, count, kind, body, location)
            else:
                outer, inner = (Var(self.names.fresh("r"), int32) for _ in range(2))
                body = substitute(body, {counter.name: outer * ROUND_UNROLL + inner})
                body = _loop(inner, ROUND_UNROLL, LoopKind.UNROLLED, body, location)
                body = _loop(outer, count // ROUND_UNROLL, LoopKind.SERIAL, body, location)
        return body


def _indexed_by_variables(body: Statement) -> set[str]:
    """The fragments with an access whose register is not a constant once UNROLLED loops are expanded: registers have no
    addresses, so these become arrays in local memory."""
    found: set[str] = set()
    enclosing: list[For] = []

    def visit(node: Any, unrolled: frozenset[str]) -> None:
        if isinstance(node, ParallelFor):
            accesses = fragment_accesses(node, tuple(enclosing))
            found.update(access.buffer.name for access in accesses if not access.is_enumerable(node))
            return
        if isinstance(node, For):
            enclosing.append(node)
        if isinstance(node, For) and node.kind is LoopKind.UNROLLED:
            unrolled |= {node.var.name}
        elif isinstance(node, (Load, Store)) and node.buffer.scope is Scope.FRAGMENT:
            if any(has_load(index) or free_variables(index) - unrolled for index in node.indices):
                found.add(node.buffer.name)
        for child in children(node):
            visit(child, unrolled)
        if isinstance(node, For):
            enclosing.pop()

    visit(body, frozenset())
    return found


def _loop(var: Var, count: int, kind: LoopKind, body: Statement, location: Location | None) -> Statement:
    """A loop over a thread's own iterations of a T.Parallel, which are independent of each other."""
    options = () if kind is LoopKind.VECTORIZED else (("independent", True),)
    return For(var, constant(0), constant(count), 1, kind, body, options, location=location)


def _flat(layout: Fragment, counters: list[Var]) -> tuple:
    """The counters in the nesting of the value layout's shape (which is flat)."""
    assert all(isinstance(n, int) for n in layout.value.shape)
    return tuple(counters)


def _linear(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """Row-major number of an element of a replicated fragment."""
    index: Expr = constant(0)
    for size, position in zip(buffer.static_shape, indices, strict=True):
        index = index * size + position
    return index if len(indices) != 1 else indices[0]


def _axis_position(axis: Axis) -> Expr:
    """0, 1, 2 … along a user's loop."""
    position: Expr = axis.var if axis.start == 0 else axis.var - axis.start
    return position if axis.step == 1 else position // axis.step


def _is_first_replica(layout: Fragment, thread: Expr) -> Expr:
    """Whether the thread's coordinate along every replicating mode of the layout is 0."""
    condition: Expr | None = None
    inner = 1
    for count, stride in reversed(layout.thread.modes):
        if stride == 0 and count > 1:
            position = thread if inner == 1 else thread // inner
            here = (position % count).eq(0)
            condition = here if condition is None else logical_and(condition, here)
        inner *= count
    return condition if condition is not None else constant(1).eq(1)


class _Localize(Rewriter, kinds=(Load, Store)):
    def __init__(self, indices: dict[tuple[str, tuple[Expr, ...], bool], Expr], register: Any) -> None:
        self.indices, self.register = indices, register

    def visit(self, node: Any) -> Any:
        if not kinds_in(node) & self.wanted:
            return node
        if isinstance(node, Load) and node.buffer.scope is Scope.FRAGMENT:
            index = self.indices[node.buffer.name, node.indices, False]
            return Load(self.register(node.buffer), (index,), node.dtype)
        if isinstance(node, Store) and node.buffer.scope is Scope.FRAGMENT:
            index = self.indices[node.buffer.name, node.indices, True]
            return Store(self.register(node.buffer), (index,), self.visit(node.value), location=node.location)
        return map_children(node, self.visit)


class _StoreOnce(Rewriter):
    def __init__(self, condition: Expr) -> None:
        self.condition = condition

    def rewrite_Store(self, node: Store) -> Statement:
        return If(self.condition, node, location=node.location) if node.buffer.scope in MEMORY else node

    def rewrite_Atomic(self, node: Atomic) -> Statement:
        return If(self.condition, node, location=node.location)

    def rewrite_AtomicStore(self, node: AtomicStore) -> Statement:
        return If(self.condition, node, location=node.location)


class _UnrollAxes(Rewriter):
    """Loops whose variable indexes registers must be expanded."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def rewrite_For(self, node: For) -> Statement:
        if node.var.name not in self.names or node.kind is LoopKind.UNROLLED:
            return node
        count = len(range(node.start.value, node.stop.value, node.step))  # type: ignore[attr-defined]
        if count > MOST_AXIS_UNROLL:
            raise LoweringError(
                f"a loop of {count} iterations indexes a fragment by its variable, so that it has to be unrolled",
                location=node.location,
                expected=f"at most {MOST_AXIS_UNROLL} iterations",
                got=f"{count}",
                hint="keep the tile in shared memory",
            )
        return copy_with(node, {"kind": LoopKind.UNROLLED})
