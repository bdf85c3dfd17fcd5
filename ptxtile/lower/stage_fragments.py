"""Writes the inferred layouts into the tree, and routes accesses that are not local through shared memory.

An :class:`Exchange` gives a loop its own shared copy of a fragment: written out before the loop, and read back after it
if the loop writes. The copies run in the fragment's own layout, so they are local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Load, Var, load
from ptxtile.ir.layouts import Fragment
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Why
from ptxtile.ir.rewrite import Rewriter, copy_with, map_children
from ptxtile.ir.statements import Allocate, ParallelFor, Seq, Statement, Store
from ptxtile.ir.types import int32


@dataclass(slots=True)
class Exchange:
    buffer: Buffer
    is_written: bool


def layout_of(loop: ParallelFor) -> Fragment:
    """The layout that ``infer_layouts`` gave to a loop."""
    layout = loop.option("layout")
    assert isinstance(layout, Fragment), "infer_layouts runs before"
    return layout


def apply_layouts(
    kernel: Kernel,
    loop_layouts: dict[int, Fragment],
    fragments: dict[str, Fragment],
    exchanges: dict[int, list[Exchange]],
    names: NameSupply,
) -> tuple[Statement, list[Why]]:
    """The kernel's body with ``layout`` options, fragment layouts and exchanges, and notes on the layouts."""
    body = _Exchanges(loop_layouts, fragments, exchanges, names).visit(kernel.body)
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
    def __init__(
        self,
        loop_layouts: dict[int, Fragment],
        fragments: dict[str, Fragment],
        exchanges: dict[int, list[Exchange]],
        names: NameSupply,
    ) -> None:
        self.loop_layouts, self.fragments, self.exchanges, self.names = loop_layouts, fragments, exchanges, names

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Statement):
            return node
        if isinstance(node, ParallelFor):
            return self._loop(node)
        return map_children(node, self.visit)

    def _loop(self, loop: ParallelFor) -> Statement:
        laid_out = copy_with(loop, {"options": (*loop.options, ("layout", self.loop_layouts[id(loop)]))})
        before: list[Statement] = []
        after: list[Statement] = []
        for exchange in self.exchanges.get(id(loop), ()):
            fragment = exchange.buffer
            name = self.names.fresh(f"{fragment.name}_exchange")
            shared = allocate(name, Scope.SHARED, fragment.dtype, fragment.static_shape)
            before += [Allocate(shared, location=loop.location), self._copy(fragment, shared, loop)]
            if exchange.is_written:
                after.append(self._copy(shared, fragment, loop, layout_of_buffer=fragment))
            laid_out = _Redirect(fragment.name, shared).visit(laid_out)
        if not before:
            return laid_out
        return Seq((*before, laid_out, *after), location=loop.location)

    def _copy(
        self, source: Buffer, destination: Buffer, loop: ParallelFor, layout_of_buffer: Buffer | None = None
    ) -> Statement:
        fragment = layout_of_buffer or source
        loop_vars = tuple(Var(self.names.fresh(f"x{k}"), int32) for k in range(fragment.rank))
        body = Store(destination, loop_vars, load(source, loop_vars), location=loop.location)
        layout = self.fragments[fragment.name]
        return ParallelFor(loop_vars, fragment.static_shape, body, (("layout", layout),), location=loop.location)


class _Redirect(Rewriter):
    """Accesses of one fragment go to its shared copy."""

    def __init__(self, name: str, shared: Buffer) -> None:
        self.name, self.shared = name, shared

    def rewrite_Load(self, node: Load) -> Load:
        return Load(self.shared, node.indices, node.dtype) if node.buffer.name == self.name else node

    def rewrite_Store(self, node: Store) -> Store:
        return copy_with(node, {"buffer": self.shared}) if node.buffer.name == self.name else node
