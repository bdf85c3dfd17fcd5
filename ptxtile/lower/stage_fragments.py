"""Writes the inferred layouts into the tree, and routes accesses that are not local through shared memory.

An :class:`Exchange` gives a loop its own shared copy of a fragment: written out before the loop (unless that overwrites
all of it), and read back after it if the loop writes. The copies run in the fragment's own layout, so they are local. A
*conversion* gives a gemm a copy of an operand in the layout that it needs, by way of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Load, Var, load
from ptxtile.ir.layouts import Fragment
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Why
from ptxtile.ir.rewrite import Rewriter, copy_with, map_children, walk
from ptxtile.ir.statements import Allocate, ParallelFor, Seq, Statement, Store, seq
from ptxtile.ir.tile_ops import Gemm, Region
from ptxtile.ir.types import int32
from ptxtile.lower.fragment_maps import as_held_by


@dataclass(slots=True)
class Exchange:
    buffer: Buffer
    is_written: bool


@dataclass(slots=True)
class Layouts:
    """What was inferred. ``fragments``: layout by fragment name. ``loops`` and ``exchanges`` by the loop's identity,
    ``conversions`` by the gemm's and its operand: "a" or "b"."""

    fragments: dict[str, Fragment] = field(default_factory=dict)
    loops: dict[int, Fragment] = field(default_factory=dict)
    exchanges: dict[int, list[Exchange]] = field(default_factory=dict)
    conversions: dict[int, dict[str, Fragment]] = field(default_factory=dict)


def overwrites(loop: ParallelFor, buffer: Buffer) -> bool:
    """Whether the loop sets every element of the fragment and reads none."""
    statements = loop.body.statements if isinstance(loop.body, Seq) else (loop.body,)
    name = buffer.name
    reads = any(node.buffer.name == name for node in walk(loop.body, Load))
    sets = any(isinstance(s, Store) and s.buffer.name == name and s.indices == loop.vars for s in statements)
    return sets and not reads and buffer.shape == loop.extents


def layout_of(loop: ParallelFor) -> Fragment:
    """The layout that ``infer_layouts`` gave to a loop."""
    layout = loop.option("layout")
    assert isinstance(layout, Fragment), "infer_layouts runs before"
    return layout


def apply_layouts(kernel: Kernel, layouts: Layouts, names: NameSupply) -> tuple[Statement, list[Why]]:
    """The kernel's body with ``layout`` options, fragment layouts, exchanges and conversions, and notes on the
    layouts."""
    fragments = layouts.fragments
    body = _Exchanges(layouts, names).visit(kernel.body)
    body = _FragmentLayouts(fragments).visit(body)
    notes = [
        Why("infer_layouts", name, f"{fragment.values} registers in {fragment.threads} threads", _describe(fragment))
        for name, fragment in fragments.items()
    ]
    return body, notes


def _describe(fragment: Fragment) -> str:
    return (
        f"thread {fragment.thread.shape}:{fragment.thread.stride}, value {fragment.value.shape}:{fragment.value.stride}"
    )


class _FragmentLayouts(Rewriter):
    def __init__(self, fragments: dict[str, Fragment]) -> None:
        self.fragments = fragments
        self.replaced: dict[str, Buffer] = {}

    def buffer(self, buffer: Buffer) -> Buffer:
        if buffer.scope is not Scope.FRAGMENT or buffer.name not in self.fragments:
            return buffer
        if buffer.name not in self.replaced:
            self.replaced[buffer.name] = buffer.with_layout(self.fragments[buffer.name])
        return self.replaced[buffer.name]


class _Exchanges:
    def __init__(self, layouts: Layouts, names: NameSupply) -> None:
        self.layouts, self.names = layouts, names
        self.fragments = layouts.fragments

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Statement):
            return node
        if isinstance(node, ParallelFor):
            return self._loop(node)
        if isinstance(node, Gemm):
            return self._gemm(node)
        return map_children(node, self.visit)

    def _loop(self, loop: ParallelFor) -> Statement:
        layout = self.layouts.loops[id(loop)]
        laid_out = copy_with(loop, {"options": (*loop.options, ("layout", layout))})
        before: list[Statement] = []
        after: list[Statement] = []
        for exchange in self.layouts.exchanges.get(id(loop), ()):
            fragment = exchange.buffer
            name = self.names.fresh(f"{fragment.name}_exchange")
            shared = allocate(name, Scope.SHARED, fragment.dtype, fragment.static_shape)
            before.append(Allocate(shared, location=loop.location))
            if not overwrites(loop, fragment):
                before.append(self._copy(fragment, shared, layout.threads, loop.location))
            if exchange.is_written:
                after.append(self._copy(shared, fragment, layout.threads, loop.location))
            laid_out = _Redirect(fragment.name, shared).visit(laid_out)
        if not before:
            return laid_out
        return Seq((*before, laid_out, *after), location=loop.location)

    def _gemm(self, gemm: Gemm) -> Statement:
        before: list[Statement] = []
        changes: dict[str, Region] = {}
        for operand, layout in self.layouts.conversions.get(id(gemm), {}).items():
            region: Region = getattr(gemm, operand)
            fragment, where = region.buffer, gemm.location
            shape = fragment.static_shape
            shared = allocate(self.names.fresh(f"{fragment.name}_exchange"), Scope.SHARED, fragment.dtype, shape)
            converted = allocate(self.names.fresh(f"{fragment.name}_operand"), Scope.FRAGMENT, fragment.dtype, shape)
            self.fragments[converted.name] = layout
            before += [Allocate(shared, location=where), self._copy(fragment, shared, layout.threads, where)]
            before += [Allocate(converted, location=where), self._copy(shared, converted, layout.threads, where)]
            changes[operand] = Region(converted, region.starts, region.extents)
        return seq(*before, copy_with(gemm, changes)) if before else gemm

    def _copy(self, source: Buffer, destination: Buffer, threads: int, location: Location | None) -> Statement:
        """Between a fragment and its shared copy, in the fragment's layout."""
        fragment = source if source.scope is Scope.FRAGMENT else destination
        loop_vars = tuple(Var(self.names.fresh(f"x{k}"), int32) for k in range(fragment.rank))
        body = Store(destination, loop_vars, load(source, loop_vars), location=location)
        layout = as_held_by(self.fragments[fragment.name], threads)
        return ParallelFor(loop_vars, fragment.static_shape, body, (("layout", layout),), location=location)


class _Redirect(Rewriter):
    """Accesses of one fragment go to its shared copy."""

    def __init__(self, name: str, shared: Buffer) -> None:
        self.name, self.shared = name, shared

    def rewrite_Load(self, node: Load) -> Load:
        return Load(self.shared, node.indices, node.dtype) if node.buffer.name == self.name else node

    def rewrite_Store(self, node: Store) -> Store:
        return copy_with(node, {"buffer": self.shared}) if node.buffer.name == self.name else node
