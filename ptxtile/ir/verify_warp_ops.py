"""The verifier's rules for the exchanges within a warp (invariant 48 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import constant_value
from ptxtile.ir.types import DType, bool_, int32, int64, uint32
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier
from ptxtile.ir.warp_ops import (
    MATCH_MODES,
    SHUFFLE_MODES,
    VOTE_MODES,
    ActiveMask,
    ElectOne,
    Match,
    Shuffle,
    SyncWarp,
    Vote,
)

INVARIANT = 48


class WarpOpVerifier:
    def __init__(self, context: Context, expressions: ExpressionVerifier) -> None:
        self.context, self.fail, self.expressions = context, context.fail, expressions

    def rules(self) -> dict[type, Callable[[Any], None]]:
        return {
            Shuffle: self._shuffle, Vote: self._vote, Match: self._match, ActiveMask: self._active,
            SyncWarp: self._mask, ElectOne: self._elect,
        }  # fmt: skip

    def _shuffle(self, node: Shuffle) -> None:
        self.expressions.check(node.value)
        dtype = node.value.dtype
        if dtype.lanes != 1 or dtype.bits not in (8, 16, 32, 64):
            self.fail(INVARIANT, "a shuffle of an impossible value", "one value of 8, 16, 32 or 64 bits", dtype)
        self.result(node, dtype)
        self.expressions.check_typed(node.lane, (int32,), INVARIANT, "the lane of a shuffle")
        if node.mode not in SHUFFLE_MODES or node.width not in (1, 2, 4, 8, 16, 32):
            expected = f"{', '.join(SHUFFLE_MODES)} in segments of 1 to 32"
            self.fail(INVARIANT, "an impossible shuffle", expected, f"{node.mode} in segments of {node.width}")
        self._mask(node)

    def _vote(self, node: Vote) -> None:
        if node.mode not in VOTE_MODES:
            self.fail(INVARIANT, "an impossible vote", ", ".join(VOTE_MODES), node.mode)
        self.expressions.check_condition(node.condition, INVARIANT, "what is voted on")
        self.result(node, uint32 if node.mode == "ballot" else bool_)
        self._mask(node)

    def _match(self, node: Match) -> None:
        if node.mode not in MATCH_MODES:
            self.fail(INVARIANT, "an impossible match", ", ".join(MATCH_MODES), node.mode)
        self.expressions.check(node.value)
        if node.value.dtype.lanes != 1 or node.value.dtype.bits not in (32, 64):
            self.fail(INVARIANT, "a match of an impossible value", "one value of 32 or 64 bits", node.value.dtype)
        self.result(node, uint32)
        self._mask(node)

    def _active(self, node: ActiveMask) -> None:
        self.result(node, uint32)

    def _elect(self, node: ElectOne) -> None:
        self.result(node, bool_)

    def _mask(self, node: Shuffle | Vote | Match | SyncWarp) -> None:
        if node.mask is None:
            return
        self.expressions.check_typed(node.mask, (uint32,), INVARIANT, "the mask of threads")
        if constant_value(node.mask) == 0:
            self.fail(INVARIANT, "a mask that names no thread", "one of the threads that run the op", 0)

    def result(self, node: Any, dtype: DType) -> None:
        """``node.destination[node.destination_offset]`` takes a value of ``dtype``."""
        buffer = node.destination
        self.context.check_buffer(buffer)
        if buffer.scope not in (Scope.REGISTER, Scope.LOCAL) or buffer.dtype != dtype:
            expected, got = f"a register or local buffer of {dtype}", f"{buffer.scope.value} {buffer.dtype}"
            self.fail(INVARIANT, f"{buffer.name} cannot take this result", expected, got)
        what = f"the offset into {buffer.name}"
        self.expressions.check_typed(node.destination_offset, (int32, int64), INVARIANT, what)
