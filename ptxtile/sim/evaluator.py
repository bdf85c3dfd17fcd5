"""Evaluation of IR expressions on values of a group of lanes, one rule for each kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Unary,
    Var,
)
from ptxtile.ir.program import Function
from ptxtile.ir.rewrite import walk
from ptxtile.ir.types import DType
from ptxtile.sim import arithmetic
from ptxtile.sim.dtypes import Value, as_array, constant_value, convert, reinterpret, round_float
from ptxtile.sim.fused import fused_multiply_add
from ptxtile.sim.masks import NO_LANES, Mask, split

_APPROXIMATIONS: dict[str, Callable[..., np.ndarray]] = {
    "approx_ex2": np.exp2,
    "approx_lg2": np.log2,
    "approx_sin": np.sin,
    "approx_cos": np.cos,
    "approx_tanh": np.tanh,
    "approx_rcp": lambda x: 1 / x,
    "approx_rsqrt": lambda x: 1 / np.sqrt(x),
    "approx_sqrt": np.sqrt,
    "approx_div": np.divide,
}
"""The card's approximate instructions (PTX ISA 9.7.3), computed here in float64 and rounded once. That lies within the
error bounds that the PTX manual gives for them, but is not bit-equal to what the card returns."""


class Memory(Protocol):
    """What the evaluator reads through; ``index`` is a value, ``dtype`` has the lanes of the access."""

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value: ...

    def shared_start(self, buffer: Buffer) -> int:
        """The shared address of the buffer's first byte."""
        ...


class Evaluator:
    """Evaluates expressions. ``variables``: values by name (names are unique in a program, so there are no scopes)."""

    def __init__(self, functions: Iterable[Function] = (), memory: Memory | None = None) -> None:
        self.variables: dict[str, Value] = {}
        self.functions = {function.name: function for function in functions}
        self.memory = memory
        self._reads: dict[int, tuple[Expr, bool]] = {}

    def evaluate(self, node: Expr, mask: Mask = None) -> Value:
        """The value of ``node`` on the lanes of ``mask``; elsewhere it is anything."""
        return _RULES[type(node)](self, node, mask)

    def call_function(self, function: Function, arguments: list[Value], lanes: int, mask: Mask) -> Value:
        """A device function's result. The statement executor overrides this."""
        raise SimulationError(f"{function.name} cannot be called here")

    def matters_when_lazy(self, node: Expr) -> bool:
        """Whether ``node`` must not run on lanes that do not take it: it reads memory or calls a function."""
        known = self._reads.get(id(node))
        if known is None:
            # The node is kept beside the answer so that its id stays its own.
            known = node, any(isinstance(inner, (Load, Call)) for inner in walk(node))
            self._reads[id(node)] = known
        return known[1]


def _const(_: Evaluator, node: Const, mask: Mask) -> Value:
    value = constant_value(node.value, node.dtype)
    return value if node.dtype.lanes == 1 else np.full(node.dtype.lanes, as_array(value, node.dtype))


def _var(evaluator: Evaluator, node: Var, mask: Mask) -> Value:
    try:
        return evaluator.variables[node.name]
    except KeyError:
        raise SimulationError(f"variable {node.name} has no value") from None


def _binary(evaluator: Evaluator, node: Binary, mask: Mask) -> Value:
    left, right = evaluator.evaluate(node.left, mask), evaluator.evaluate(node.right, mask)
    return arithmetic.binary(node.operator, left, right, node.dtype)


def _compare(evaluator: Evaluator, node: Compare, mask: Mask) -> Value:
    left, right = evaluator.evaluate(node.left, mask), evaluator.evaluate(node.right, mask)
    return arithmetic.compare(node.operator, left, right, node.left.dtype)


def _unary(evaluator: Evaluator, node: Unary, mask: Mask) -> Value:
    return arithmetic.unary(node.operator, evaluator.evaluate(node.operand, mask), node.dtype)


def _logical_and(evaluator: Evaluator, node: LogicalAnd, mask: Mask) -> Value:
    left = evaluator.evaluate(node.left, mask)
    if isinstance(left, int):
        return evaluator.evaluate(node.right, mask) if left else False
    holds, _ = split(mask, left)
    return False if holds is NO_LANES else left & evaluator.evaluate(node.right, holds)


def _logical_or(evaluator: Evaluator, node: LogicalOr, mask: Mask) -> Value:
    left = evaluator.evaluate(node.left, mask)
    if isinstance(left, int):
        return True if left else evaluator.evaluate(node.right, mask)
    _, fails = split(mask, left)
    return True if fails is NO_LANES else left | evaluator.evaluate(node.right, fails)


def _select(evaluator: Evaluator, node: Select, mask: Mask) -> Value:
    condition = evaluator.evaluate(node.condition, mask)
    if isinstance(condition, int):
        return evaluator.evaluate(node.if_true if condition else node.if_false, mask)
    holds = fails = mask
    if evaluator.matters_when_lazy(node.if_true) or evaluator.matters_when_lazy(node.if_false):
        holds, fails = split(mask, condition)
        if holds is NO_LANES or fails is NO_LANES:
            return evaluator.evaluate(node.if_true if fails is NO_LANES else node.if_false, mask)
    if_true = as_array(evaluator.evaluate(node.if_true, holds), node.dtype)
    if_false = as_array(evaluator.evaluate(node.if_false, fails), node.dtype)
    return np.where(condition[..., None] if node.dtype.lanes > 1 else condition, if_true, if_false)


def _cast(evaluator: Evaluator, node: Cast, mask: Mask) -> Value:
    return convert(evaluator.evaluate(node.operand, mask), node.operand.dtype, node.dtype)


def _bitcast(evaluator: Evaluator, node: Bitcast, mask: Mask) -> Value:
    return reinterpret(evaluator.evaluate(node.operand, mask), node.operand.dtype, node.dtype)


def _load(evaluator: Evaluator, node: Load, mask: Mask) -> Value:
    if evaluator.memory is None:
        raise SimulationError(f"{node.buffer.name} cannot be read here")
    if len(node.indices) != 1:
        raise SimulationError(f"{node.buffer.name} is read with {len(node.indices)} indices, not one element offset")
    index = evaluator.evaluate(node.indices[0], mask)
    return evaluator.memory.load(node.buffer, index, node.dtype, mask)


def _shared_address(evaluator: Evaluator, node: SharedAddress, mask: Mask) -> Value:
    if evaluator.memory is None:
        raise SimulationError(f"{node.buffer.name} has no address here")
    itemsize = 8 if node.buffer.scope is Scope.BARRIER else node.buffer.dtype.itemsize
    offset = np.asarray(as_array(evaluator.evaluate(node.offset, mask), node.offset.dtype)).astype(np.int64)
    return (evaluator.memory.shared_start(node.buffer) + offset * itemsize).astype(np.uint32)


def _broadcast(evaluator: Evaluator, node: Broadcast, mask: Mask) -> Value:
    operand = as_array(evaluator.evaluate(node.operand, mask), node.operand.dtype)
    if node.operand.dtype.lanes > 1:  # repeats the whole vector
        return np.tile(operand, node.dtype.lanes // node.operand.dtype.lanes)
    return np.broadcast_to(operand[..., None], (*operand.shape, node.dtype.lanes))


def _call(evaluator: Evaluator, node: Call, mask: Mask) -> Value:
    arguments = [evaluator.evaluate(argument, mask) for argument in node.arguments]
    function = evaluator.functions.get(node.function)
    if function is not None:
        return evaluator.call_function(function, arguments, node.dtype.lanes, mask)
    operand_dtype = node.arguments[0].dtype
    arrays = [as_array(value, operand_dtype) for value in arguments]
    if node.function == "fma":
        return fused_multiply_add(arrays[0], arrays[1], arrays[2], node.dtype)
    if node.function == "popcount":
        return arithmetic.population_count(arrays[0], operand_dtype, node.dtype)
    if node.function == "leading_zeros":
        return arithmetic.leading_zeros(arrays[0], operand_dtype, node.dtype)
    if node.function in _APPROXIMATIONS:
        return round_float(_APPROXIMATIONS[node.function](*(array.astype(np.float64) for array in arrays)), node.dtype)
    raise SimulationError(f"{node.function} is no function of the program nor of the hardware")


_RULES: dict[type, Callable[[Any, Any, Mask], Value]] = {
    Const: _const,
    Var: _var,
    Binary: _binary,
    Compare: _compare,
    Unary: _unary,
    LogicalAnd: _logical_and,
    LogicalOr: _logical_or,
    Select: _select,
    Cast: _cast,
    Bitcast: _bitcast,
    Load: _load,
    Broadcast: _broadcast,
    Call: _call,
    SharedAddress: _shared_address,
}
