"""The verifier's rules for expressions and accesses (invariants 4, 5, 7 to 15 and 29 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir import expressions as ir
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
from ptxtile.ir.rewrite import walk
from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, Kind, bool_, int32, int64, uint32
from ptxtile.ir.verify_context import Context

_PYTHON_TYPES = {Kind.BOOL: bool, Kind.INT: int, Kind.UINT: int, Kind.FLOAT: float}
_INTEGER_ONLY = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "mulhi", "shl", "shr"})
_INTEGER_AND_BOOL = frozenset({"and", "or", "xor", "not"})
_FLOAT_ONLY = frozenset({"div", "sqrt", "floor", "ceil", "trunc", "rint"})

VECTOR_BYTES = (2, 4, 8, 16)
"""Widths of vector accesses: ld and st take vectors of up to 128 bits (PTX ISA, 9.7.9.8)."""


def has_arithmetic(dtype: DType) -> bool:
    """Whether values of ``dtype`` can be computed with: whole-byte integers and the floats that have arithmetic."""
    return dtype.element in ARITHMETIC_FLOATS if dtype.is_float else dtype.is_integer and dtype.bits >= 8


def operator_is_legal(operator: str, dtype: DType) -> bool:
    """Whether a Binary or Unary of ``operator`` exists for ``dtype``."""
    if operator in _INTEGER_AND_BOOL and dtype.is_bool:
        return True
    if not has_arithmetic(dtype):
        return False
    if operator in _INTEGER_ONLY or operator in _INTEGER_AND_BOOL:
        return dtype.is_integer
    return dtype.is_float if operator in _FLOAT_ONLY else True


class ExpressionVerifier:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.fail = context.fail
        self.functions = {function.name: function for function in context.program.functions}
        self.resolved_calls = context.program.launch is not None
        self.one_index = context.stage is not None and context.stage.one_index
        self._rules: dict[type, Callable[[Any], None]] = {
            Const: self._const, Var: self._var, Binary: self._binary, Compare: self._compare, Unary: self._unary,
            LogicalAnd: self._logical, LogicalOr: self._logical, Select: self._select, Cast: self._cast,
            Bitcast: self._bitcast, Broadcast: self._broadcast, Load: self._load, Call: self._call,
            SharedAddress: self._shared_address,
        }  # fmt: skip

    def check(self, node: Expr) -> None:
        """VerificationError unless ``node`` and everything in it is legal here."""
        rule = self._rules.get(type(node))
        if rule is None:
            self.fail(7, f"{type(node).__name__} is no expression of the IR")
        rule(node)

    def check_typed(self, node: Expr, dtypes: tuple[DType, ...], invariant: int, what: str) -> None:
        self.check(node)
        if node.dtype not in dtypes:
            self.fail(invariant, f"{what} has another dtype", " or ".join(d.name for d in dtypes), node.dtype)

    def check_size(self, value: int | Expr, what: str, invariant: int) -> None:
        """A size known at launch: an int, or an integer expression over symbols and scalar parameters."""
        if isinstance(value, int):
            self.context.require(value >= 0, invariant, f"{what} has a negative size")
            return
        self.check_typed(value, (int32, int64), invariant, f"a size of {what}")
        for node in walk(value):
            if isinstance(node, Load) or (isinstance(node, Var) and node.name not in self.context.host_variables):
                self.fail(invariant, f"a size of {what} is not known at launch")

    def check_condition(self, node: Expr, invariant: int, what: str) -> None:
        self.check_typed(node, (bool_,), invariant, what)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], dtype: DType, what: str) -> None:
        """Indices and dtype of a Load or Store of ``dtype``."""
        self.context.check_buffer(buffer)
        rank = 1 if self.one_index else buffer.rank
        if len(indices) != rank:
            self.fail(14, f"{what} {buffer.name} with another number of indices", str(rank), len(indices))
        for index in indices:
            self.check_typed(index, (int32, int64), 14, f"an index of {buffer.name}")
        if dtype.element != buffer.dtype.element or dtype.lanes % buffer.dtype.lanes:
            self.fail(13, f"{what} {buffer.name} with another dtype", f"lanes of {buffer.dtype}", dtype)
        if self.one_index and dtype.lanes > 1 and buffer.scope in (Scope.GLOBAL, Scope.SHARED):
            bits = dtype.bits * dtype.lanes
            if bits % 8 or bits // 8 not in VECTOR_BYTES:
                self.fail(29, f"{what} {buffer.name} of an impossible width", "2, 4, 8 or 16 bytes", f"{bits} bits")

    # ---- one rule for each node

    def _const(self, node: Const) -> None:
        if type(node.value) is not _PYTHON_TYPES[node.dtype.kind]:
            self.fail(7, f"a constant of {node.dtype} with a value of another type", got=repr(node.value))
        if node.dtype.is_integer and not node.dtype.minimum <= node.value <= node.dtype.maximum:
            self.fail(7, f"a constant that {node.dtype} cannot hold", got=node.value)

    def _var(self, node: Var) -> None:
        known = self.context.variables.get(node.name)
        if known is None:
            self.fail(4, f"the variable {node.name} is not bound here")
        if known.dtype != node.dtype:
            self.fail(5, f"{node.name} has another dtype than its binding", known.dtype.name, node.dtype)
        self.context.used_variables.add(node.name)

    def _binary(self, node: Binary) -> None:
        self.check(node.left)
        self.check(node.right)
        if node.left.dtype != node.dtype or node.right.dtype != node.dtype:
            self.fail(8, f"operands of {node.operator} have other dtypes than its result", node.dtype.name,
                      f"{node.left.dtype} and {node.right.dtype}")  # fmt: skip
        if node.operator not in ir.BINARY_OPERATORS or not operator_is_legal(node.operator, node.dtype):
            self.fail(8, f"no operator {node.operator} for {node.dtype}")

    def _compare(self, node: Compare) -> None:
        self.check(node.left)
        self.check(node.right)
        left, right = node.left.dtype, node.right.dtype
        if left != right or node.dtype != bool_.with_lanes(left.lanes):
            expected = f"{left} twice, giving {bool_.with_lanes(left.lanes)}"
            message = f"{node.operator} of different dtypes, or with a result that is no bool"
            self.fail(9, message, expected, f"{left} and {right}, giving {node.dtype}")
        comparable = node.operator in ("eq", "ne") if left.is_bool else has_arithmetic(left)
        if node.operator not in ir.COMPARISONS or not comparable:
            self.fail(9, f"no comparison {node.operator} for {left}")

    def _unary(self, node: Unary) -> None:
        self.check(node.operand)
        if node.operand.dtype != node.dtype:
            self.fail(10, f"{node.operator} changes the dtype", node.operand.dtype.name, node.dtype)
        if node.operator not in ir.UNARY_OPERATORS or not operator_is_legal(node.operator, node.dtype):
            self.fail(10, f"no operator {node.operator} for {node.dtype}")

    def _logical(self, node: LogicalAnd | LogicalOr) -> None:
        self.check_condition(node.left, 11, "a side of and/or")
        self.check_condition(node.right, 11, "a side of and/or")
        if node.dtype != bool_:
            self.fail(11, "and/or gives a bool", "bool", node.dtype)

    def _select(self, node: Select) -> None:
        self.check_condition(node.condition, 11, "a Select's condition")
        self.check_typed(node.if_true, (node.dtype,), 11, "a Select's branch")
        self.check_typed(node.if_false, (node.dtype,), 11, "a Select's branch")

    def _cast(self, node: Cast) -> None:
        self.check(node.operand)
        if node.operand.dtype.lanes != node.dtype.lanes:
            self.fail(12, "a Cast changes the number of lanes", node.operand.dtype.name, node.dtype)

    def _bitcast(self, node: Bitcast) -> None:
        self.check(node.operand)
        source = node.operand.dtype
        if source.bits * source.lanes != node.dtype.bits * node.dtype.lanes or source.is_bool or node.dtype.is_bool:
            self.fail(12, "a Bitcast between types that do not fit", f"as many bits as {source}", node.dtype)

    def _broadcast(self, node: Broadcast) -> None:
        self.check_typed(node.operand, (node.dtype.element,), 12, "the operand of a Broadcast")

    def _load(self, node: Load) -> None:
        self.access(node.buffer, node.indices, node.dtype, "a load of")

    def _shared_address(self, node: SharedAddress) -> None:
        self.context.check_buffer(node.buffer)
        self.check_typed(node.offset, (int32, int64), 14, f"the offset into {node.buffer.name}")
        if node.buffer.scope not in (Scope.SHARED, Scope.BARRIER) or node.dtype != uint32:
            self.fail(14, f"{node.buffer.name} has no shared address", "a shared buffer or barriers, giving uint32",
                      f"{node.buffer.scope.value}, giving {node.dtype}")  # fmt: skip

    def _call(self, node: Call) -> None:
        for argument in node.arguments:
            self.check(argument)
        function = self.functions.get(node.function)
        if function is not None:
            expected = tuple(parameter.dtype for parameter in function.parameters)
            got = tuple(argument.dtype for argument in node.arguments)
            if expected != got or node.dtype != function.result.dtype:
                expected_types = f"{expected} giving {function.result.dtype}"
                self.fail(15, f"a call of {function.name} with other dtypes", expected_types, f"{got}, {node.dtype}")
        elif node.function in ir.HARDWARE_FUNCTIONS:
            if len(node.arguments) != ir.HARDWARE_FUNCTIONS[node.function]:
                self.fail(15, f"a call of {node.function} with another number of arguments",
                          str(ir.HARDWARE_FUNCTIONS[node.function]), len(node.arguments))  # fmt: skip
        elif self.resolved_calls:
            expected = "in a complete program, one of its functions or of HARDWARE_FUNCTIONS"
            self.fail(15, f"a call of an unknown function {node.function}", expected)
