"""The verifier's rules for atomic operations (invariant 49 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir.atomic_ops import (
    LOAD_ORDERS,
    OPERATORS,
    ORDERS,
    STORE_ORDERS,
    Atomic,
    AtomicLoad,
    AtomicStore,
    is_legal_operator,
    vector_lanes,
)
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.types import DType
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier

INVARIANT = 49


class AtomicOpVerifier:
    def __init__(self, context: Context, expressions: ExpressionVerifier) -> None:
        self.context, self.fail, self.expressions = context, context.fail, expressions

    def rules(self) -> dict[type, Callable[[Any], None]]:
        return {Atomic: self._atomic, AtomicLoad: self._load, AtomicStore: self._store}

    def _atomic(self, node: Atomic) -> None:
        dtype = node.value.dtype
        if node.operator not in OPERATORS or not is_legal_operator(node.operator, node.buffer.dtype):
            expected = "add, min, max of numbers; and, or, xor of integers and bools; exchange of whole bytes"
            self.fail(INVARIANT, "an atomic operator that does not exist", expected, f"{node.operator} of {dtype}")
        self._common(node, dtype, ORDERS)
        self.expressions.check(node.value)
        if dtype.lanes > 1 and (
            dtype.lanes & (dtype.lanes - 1) or dtype.lanes > vector_lanes(node.operator, node.buffer)
        ):
            expected = f"a power of two up to {vector_lanes(node.operator, node.buffer)}"
            self.fail(INVARIANT, "an atomic operation of an impossible width", expected, dtype.lanes)
        if node.result is not None:
            self._result(node.result, dtype)

    def _load(self, node: AtomicLoad) -> None:
        self._common(node, node.buffer.dtype, LOAD_ORDERS)
        self._result(node.result, node.buffer.dtype)

    def _store(self, node: AtomicStore) -> None:
        self._common(node, node.value.dtype, STORE_ORDERS)
        self.expressions.check(node.value)
        if node.value.dtype.lanes != 1:
            self.fail(INVARIANT, "an atomic store of an impossible width", "one element", node.value.dtype.lanes)

    def _common(self, node: Atomic | AtomicLoad | AtomicStore, dtype: DType, orders: tuple[str, ...]) -> None:
        if node.buffer.scope not in (Scope.GLOBAL, Scope.SHARED) or node.buffer.dtype.bits < 8:
            self.fail(INVARIANT, f"an atomic access of {node.buffer.name}", "global or shared memory, of whole bytes",
                      f"{node.buffer.scope.value} {node.buffer.dtype}")  # fmt: skip
        self.expressions.access(node.buffer, node.indices, dtype, "an atomic access of")
        if node.order not in orders:
            self.fail(INVARIANT, "a memory order that the operation cannot have", " or ".join(orders), node.order)

    def _result(self, result: Buffer, dtype: DType) -> None:
        self.context.check_buffer(result)
        needed = dtype.bits * dtype.lanes // 8
        fits = result.dtype == dtype.element and (result.storage.size or 0) >= needed
        if result.scope not in (Scope.LOCAL, Scope.REGISTER) or not fits:
            self.fail(INVARIANT, "the result of an atomic operation has no place",
                      f"a local buffer of {dtype.element} of at least {needed} bytes",
                      f"{result.scope.value} {result.dtype}, {result.storage.size} bytes")  # fmt: skip
