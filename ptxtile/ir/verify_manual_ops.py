"""The verifier's rules for what only users write (invariants 33, 34 and 50 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.manual_ops import (
    REDUCE_MODES,
    BarArrive,
    BarAt,
    BarReduce,
    DeviceAssert,
    InlinePtx,
    MbarrierExpectTx,
    is_operand,
    template_problem,
)
from ptxtile.ir.types import DType, bool_, int32, uint32
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier

INVARIANT = 50


class ManualOpVerifier:
    """``bar_sync`` and ``expect_tx``: the rules of the ops that are checked alike. ``result`` checks where a result
    goes."""

    def __init__(
        self,
        context: Context,
        expressions: ExpressionVerifier,
        bar_sync: Callable[[Any], None],
        expect_tx: Callable[[Any], None],
        result: Callable[[Any, DType], None],
    ) -> None:
        self.context, self.fail, self.expressions = context, context.fail, expressions
        self._bar_sync, self._expect_tx, self._result = bar_sync, expect_tx, result

    def rules(self) -> dict[type, Callable[[Any], None]]:
        return {
            BarArrive: self._bar_sync, BarAt: self._bar_at, MbarrierExpectTx: self._expect_tx,
            DeviceAssert: self._assert, InlinePtx: self._inline, BarReduce: self._reduce,
        }  # fmt: skip

    def _bar_at(self, node: BarAt) -> None:
        self.expressions.check_typed(node.index, (int32,), 33, "the id of a barrier")
        self._bar_sync(BarArrive(0, node.threads, location=node.location))

    def _reduce(self, node: BarReduce) -> None:
        self._bar_sync(node)
        if node.mode not in REDUCE_MODES:
            self.fail(33, "a barrier with an impossible reduction", ", ".join(REDUCE_MODES), node.mode)
        self.expressions.check_condition(node.condition, 33, "the condition at a barrier")
        self._result(node, uint32 if node.mode == "popc" else bool_)

    def _assert(self, node: DeviceAssert) -> None:
        self.expressions.check_typed(node.condition, (bool_,), INVARIANT, "the condition of an assertion")

    def _inline(self, node: InlinePtx) -> None:
        problem = template_problem(node.template, len(node.results) + len(node.inputs))
        if problem:
            self.fail(INVARIANT, f"inline PTX with {problem}")
        for result in node.results:
            self.context.check_buffer(result)
            if result.scope is not Scope.LOCAL:
                self.fail(INVARIANT, "a result of inline PTX has no place", "a local buffer", result.scope.value)
        for value in node.inputs:
            self.expressions.check(value)
        for dtype in (*(result.dtype for result in node.results), *(value.dtype for value in node.inputs)):
            if not is_operand(dtype):
                self.fail(INVARIANT, "an operand of inline PTX fits no register", "16, 32 or 64 bits, no bool", dtype)
