"""How many consecutive elements one instruction may move: contiguity, alignment and uniform guards, proven.

PTX moves up to 16 bytes with one ``ld``/``st`` per thread (PTX ISA, «ld»: vectors of up to 128 bits), and the address
must be a multiple of the access size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import (
    Compare,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    as_expr,
    cast,
    constant,
    constant_value,
)
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.mapped_layouts import MappedLayout
from ptxtile.ir.rewrite import children, free_variables, substitute
from ptxtile.ir.statements import If, Store
from ptxtile.records import record

VECTOR_BYTES = 16
MEMORY = (Scope.GLOBAL, Scope.SHARED)


@record
class MemoryAccess:
    """A load or store of memory and the conditions around it (guards of lazy selects and of Ifs)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    conditions: tuple[Expr, ...] = field(default=())
    is_store: bool = False


def memory_accesses(node: Any, conditions: tuple[Expr, ...] = ()) -> list[MemoryAccess]:
    """Every access of global or shared memory inside ``node``, conditions included."""
    if isinstance(node, Select):
        inside = memory_accesses(node.condition, conditions)
        inside += memory_accesses(node.if_true, (*conditions, node.condition))
        return inside + memory_accesses(node.if_false, (*conditions, node.condition))
    if isinstance(node, If):
        inside = memory_accesses(node.condition, conditions)
        for branch in (node.then, node.otherwise):
            inside += [] if branch is None else memory_accesses(branch, (*conditions, node.condition))
        return inside
    found: list[MemoryAccess] = []
    if isinstance(node, (Load, Store)) and node.buffer.scope in MEMORY:
        found.append(MemoryAccess(node.buffer, node.indices, conditions, isinstance(node, Store)))
    for child in children(node):
        found += memory_accesses(child, conditions)
    return found


class VectorWidths:
    """Answers how wide an access may be along a variable; ``alignments`` gives the base alignment of tensors in
    bytes."""

    def __init__(self, analyzer: Analyzer, alignments: Mapping[str, int]) -> None:
        self.analyzer = analyzer
        self.alignments = alignments

    def width(self, access: MemoryAccess, var: Var, extent: int) -> int:
        """The largest power of two w, up to 16 bytes, such that for var = w·q … w·q + w − 1 the access is one aligned
        run of memory and its guards agree. 1 if there is none."""
        buffer = access.buffer
        if buffer.dtype.bits % 8 or not access.indices:
            return 1
        limit = min(VECTOR_BYTES // buffer.dtype.itemsize, self._contiguous(buffer))
        if not self._steps_by_one(access.indices, var):
            return 1
        width = 1
        while width * 2 <= limit and extent % (width * 2) == 0:
            if not self._aligned(buffer, access.indices, var, width * 2):
                break
            if not all(self.uniform(condition, var, width * 2) for condition in access.conditions):
                break
            width *= 2
        return width

    def _contiguous(self, buffer: Buffer) -> int:
        """Elements of the last dimension that follow each other in memory, from any multiple of 16 bytes on."""
        if isinstance(buffer.layout, SharedLayout):
            innermost, stride = Layouts.innermost(buffer.layout)
            return innermost & -innermost if stride == 1 else 1  # runs must not cross from one part to the next
        if isinstance(buffer.layout, MappedLayout):
            return buffer.layout.contiguous
        return VECTOR_BYTES if constant_value(buffer.strides[-1]) == 1 else 1

    def _steps_by_one(self, indices: tuple[Expr, ...], var: Var) -> bool:
        if any(var.name in free_variables(index) for index in indices[:-1]):
            return False
        return self.analyzer.coefficient(indices[-1], var) == 1

    def _aligned(self, buffer: Buffer, indices: tuple[Expr, ...], var: Var, width: int) -> bool:
        size = buffer.dtype.itemsize * width
        if buffer.scope is Scope.GLOBAL and self.alignments.get(buffer.storage.name, VECTOR_BYTES) % size:
            return False
        if not self.analyzer.divisible(as_expr(buffer.offset), width):
            return False
        last = substitute(indices[-1], {var.name: constant(0, var.dtype)})
        if not self.analyzer.divisible(last, width):
            return False
        strides = buffer.strides[:-1]
        if isinstance(buffer.layout, SharedLayout):
            return all(stride % width == 0 for stride in Layouts.outer_strides(buffer.layout))
        if isinstance(buffer.layout, MappedLayout):
            return True
        for index, stride in zip(indices[:-1], strides, strict=True):
            step = constant_value(stride)
            if step is not None and step % width == 0:
                continue
            product = index * (cast(as_expr(stride), index.dtype))
            if not self.analyzer.divisible(product, width):
                return False
        return True

    def uniform(self, condition: Expr, var: Var, width: int) -> bool:
        """Whether ``condition`` has one value for all of var = w·q … w·q + w − 1."""
        if var.name not in free_variables(condition):
            return True
        if isinstance(condition, (LogicalAnd, LogicalOr)):
            return self.uniform(condition.left, var, width) and self.uniform(condition.right, var, width)
        if isinstance(condition, Unary) and condition.operator == "not":
            return self.uniform(condition.operand, var, width)
        if not isinstance(condition, Compare) or not condition.left.dtype.is_integer:
            return False
        return self._uniform_comparison(condition, var, width)

    def _uniform_comparison(self, condition: Compare, var: Var, width: int) -> bool:
        """a < b along a − b = c + v with w | c: then c + v < 0 exactly if c < 0. The other comparisons reduce to it."""
        left, right, operator = condition.left, condition.right, condition.operator
        if operator in ("gt", "le"):  # a > b is b < a, a <= b is b >= a
            left, right, operator = right, left, {"gt": "lt", "le": "ge"}[operator]
        if operator not in ("lt", "ge"):
            return False
        slope_left = self.analyzer.coefficient(left, var)
        slope_right = self.analyzer.coefficient(right, var)
        if slope_left is None or slope_right is None:
            return False
        rest = substitute(left, {var.name: constant(0, var.dtype)}) - substitute(
            right, {var.name: constant(0, var.dtype)}
        )
        slope = slope_left - slope_right
        if slope == 1:
            return self.analyzer.divisible(rest, width)
        if slope == -1:  # c − v < 0 changes between v = c and v = c + 1; with w | c + 1 that is between two groups
            return self.analyzer.divisible(rest + 1, width)
        return slope == 0


class Layouts:
    """What vector accesses need to know about a shared layout."""

    @staticmethod
    def innermost(layout: SharedLayout) -> tuple[int, int]:
        """(size, stride) of the fastest mode of the last dimension, capped where the swizzle permutes 16-byte units."""
        shape, stride = layout.layout.shape[-1], layout.layout.stride[-1]
        while isinstance(shape, tuple):
            shape, stride = shape[-1], stride[-1]
        return shape, stride

    @staticmethod
    def outer_strides(layout: SharedLayout) -> list[int]:
        """Strides of all modes but the fastest one of the last dimension."""
        return [stride for _, stride in layout.layout.modes[:-1]]
