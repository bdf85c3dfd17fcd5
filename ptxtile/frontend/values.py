"""Traced scalars: what a kernel's Python code holds where the device holds a number.

:class:`Value` wraps an IR expression and has Python's operators. :class:`Local` is a scalar that can be assigned (an
``alloc_var``, or a name that is rebound under traced control flow). :class:`Undefined` stands for a name that has no
value on some path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.current import active_tracer, kernel_tracer
from ptxtile.frontend.dtypes import DataType, data_type
from ptxtile.frontend.locations import user_frame, user_location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Const, Expr, Load, constant
from ptxtile.ir.statements import Let, Store
from ptxtile.ir.types import DType

if TYPE_CHECKING:
    from ptxtile.frontend.buffers import TracedBuffer


class Value:
    """A traced scalar of one dtype. ``element`` is the (buffer, indices) that it was just read from, for ``T.copy``."""

    __slots__ = ("_expr", "element", "let")

    def __init__(
        self,
        expr: Expr,
        let: Let | None = None,
        element: tuple[TracedBuffer, tuple[Expr, ...]] | None = None,
    ) -> None:
        self._expr = expr
        self.let = let
        self.element = element

    @property
    def expr(self) -> Expr:
        return self._expr

    def renamed(self, expr: Expr, let: Let) -> None:
        """The tracer gave the value the user's name."""
        self._expr, self.let = expr, let

    @property
    def ir_dtype(self) -> DType:
        return self._expr.dtype

    @property
    def dtype(self) -> DataType:
        return data_type(self.ir_dtype)

    def __repr__(self) -> str:
        return f"<traced {self.ir_dtype}>"

    def __add__(self, other: Any) -> Value:
        return operations.arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return operations.arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return operations.arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return operations.arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return operations.arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return operations.arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return operations.true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return operations.true_divide(other, self)

    def __floordiv__(self, other: Any) -> Value:
        return operations.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return operations.floor_divide(other, self)

    def __mod__(self, other: Any) -> Value:
        return operations.modulo(self, other)

    def __rmod__(self, other: Any) -> Value:
        return operations.modulo(other, self)

    def __divmod__(self, other: Any) -> tuple[Value, Value]:
        return operations.floor_divide(self, other), operations.modulo(self, other)

    def __rdivmod__(self, other: Any) -> tuple[Value, Value]:
        return operations.floor_divide(other, self), operations.modulo(other, self)

    def __pow__(self, other: Any) -> Value:
        return operations.power(self, other)

    def __rpow__(self, other: Any) -> Value:
        return operations.power(other, self)

    def __and__(self, other: Any) -> Value:
        return operations.bitwise("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Value:
        return operations.bitwise("or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Value:
        return operations.bitwise("xor", self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Value:
        return operations.shift("shl", self, other)

    def __rlshift__(self, other: Any) -> Value:
        return operations.shift("shl", other, self)

    def __rshift__(self, other: Any) -> Value:
        return operations.shift("shr", self, other)

    def __rrshift__(self, other: Any) -> Value:
        return operations.shift("shr", other, self)

    def __neg__(self) -> Value:
        return operations.negate(self)

    def __pos__(self) -> Value:
        return Value(self.expr)

    def __invert__(self) -> Value:
        return operations.invert(self)

    def __abs__(self) -> Value:
        return operations.absolute(self)

    def __round__(self, digits: int | None = None) -> Value:
        if digits is not None:
            raise TraceError("round() of a traced value takes no number of digits", location=user_location())
        return operations.rounded("rint", self)

    def __floor__(self) -> Value:
        return operations.rounded("floor", self)

    def __ceil__(self) -> Value:
        return operations.rounded("ceil", self)

    def __trunc__(self) -> Value:
        return operations.rounded("trunc", self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return operations.comparison("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return operations.comparison("ne", self, other)

    def __lt__(self, other: Any) -> Value:
        return operations.comparison("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return operations.comparison("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return operations.comparison("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return operations.comparison("ge", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        _refuse_truth()

    def __index__(self) -> int:
        expr = self.expr
        if isinstance(expr, Const) and not expr.dtype.is_float:
            return int(expr.value)
        raise TraceError(
            "a traced value is used where Python needs an integer now",
            location=user_location(),
            expected="a Python int, known while tracing",
            got=f"a {self.ir_dtype} that the device computes",
            hint="sizes and list indices must be Python ints: T.const gives sizes known at compile time, and "
            "`for i in list(range(n))` is a loop that Python unrolls",
        )

    def __int__(self) -> int:
        raise TraceError(
            "int() of a traced value", location=user_location(), hint="write T.int32(x) to convert on the device"
        )

    def __float__(self) -> float:
        raise TraceError(
            "float() of a traced value", location=user_location(), hint="write T.float32(x) to convert on the device"
        )

    def __iter__(self) -> Any:
        raise TraceError(
            "a traced scalar cannot be iterated over or unpacked",
            location=user_location(),
            got=f"one {self.ir_dtype}",
            hint="T.Kernel and T.Parallel with one extent give one index, not a tuple",
        )

    def __getitem__(self, index: Any) -> Any:
        raise TraceError(
            "a traced scalar cannot be indexed", location=user_location(), got=f"one {self.ir_dtype}, not a buffer"
        )

    def astype(self, dtype: Any) -> Value:
        """The value cast to ``dtype``."""
        return operations.cast_value(self, dtype)


def _refuse_truth() -> NoReturn:
    frame = user_frame()
    from ptxtile.frontend.rewrite_source import is_rewritten

    if frame is not None and not is_rewritten(frame.f_code) and active_tracer() is not None:
        name = frame.f_code.co_name
        raise TraceError(
            f"the plain Python function {name} asks whether a traced value is true",
            location=user_location(),
            hint=f"decorate {name} with @T.macro, so that its if, while, and, or, not are traced",
        )
    raise TraceError(
        "Python asks whether a traced value is true, which is only known on the device",
        location=user_location(),
        hint="`if`, `while`, `and`, `or`, `not` and ternaries are traced; any(), all(), `in`, assert and the `if` of a "
        "comprehension are not",
    )


class Local(Value):
    """A scalar in a LOCAL buffer of shape (): reading it takes a snapshot, ``store`` assigns it.

    ``implicit``: made for a name that is rebound under traced control flow; else the user's ``alloc_var``, which is
    passed by reference. ``fresh``: an alloc_var that no name holds yet.
    """

    __slots__ = ("buffer", "fresh", "implicit", "name")

    def __init__(self, name: str, buffer: Buffer, implicit: bool) -> None:
        self.name = name
        self.buffer = buffer
        self.implicit = implicit
        self.fresh = not implicit
        self.let = None
        self.element = None

    @property
    def expr(self) -> Expr:
        tracer = kernel_tracer(f"the variable {self.name}")
        return tracer.bind(self.name, Load(self.buffer, (), self.buffer.dtype))

    @property
    def ir_dtype(self) -> DType:
        return self.buffer.dtype

    def snapshot(self) -> Value:
        return Value(self.expr)

    def store(self, value: Any) -> None:
        """Assigns; the value is cast to the variable's dtype, for an implicit one only where that loses nothing."""
        tracer = kernel_tracer(f"the variable {self.name}")
        if self.implicit:
            expr = operations.fitting(self.name, value, self.buffer.dtype)
        else:
            expr = operations.converted(value, self.buffer.dtype)
        tracer.emit(Store(self.buffer, (), expr, location=user_location()))

    def __getitem__(self, index: Any) -> Value:
        self._check_index(index)
        return self.snapshot()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_index(index)
        self.store(value)

    def _check_index(self, index: Any) -> None:
        if self.implicit or index not in (0, (0,), -1):
            raise TraceError(
                f"the scalar variable {self.name} is indexed", location=user_location(), expected="no index, or [0]"
            )


class Undefined(Value):
    """A name without a value on some path through traced control flow. Every use is an error at its line."""

    __slots__ = ("hoist", "local", "name", "reason")

    def __init__(self, name: str, reason: str, hoist: Any = None) -> None:
        self.name = name
        self.reason = reason
        self.hoist = hoist
        self.local: Local | None = None
        self.let = None
        self.element = None

    def refuse(self) -> NoReturn:
        raise TraceError(
            f"{self.name} may have no value here: {self.reason}",
            location=user_location(),
            hint=f"give {self.name} a value before, such as `{self.name} = T.float32(0)`",
        )

    @property
    def expr(self) -> Expr:
        self.refuse()

    @property
    def ir_dtype(self) -> DType:
        self.refuse()


def is_number(value: object) -> bool:
    """Whether ``value`` is a Python (or NumPy) number."""
    return isinstance(value, (bool, int, float)) or operations.numpy_number(value) is not None


def as_value(value: Any, dtype: DType | None = None) -> Value:
    """A number or Value as a Value; ``dtype`` is what a number becomes, else the rule of promotion.number_dtype."""
    if isinstance(value, Value):
        return Value(value.expr)
    return Value(operations.number_expr(value, dtype))


def index_expr(value: Any, what: str) -> Expr:
    """An integer index as an expression: int32, or the value's own integer dtype."""
    if isinstance(value, Value):
        expr = value.expr
        if expr.dtype.is_integer:
            return expr
        raise TypeMismatchError(
            f"{what} must be an integer", location=user_location(), expected="an integer", got=str(expr.dtype),
            hint="write T.int32(...) around it",
        )  # fmt: skip
    number = operations.numpy_number(value)
    if number is not None:
        value = number
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeMismatchError(
            f"{what} must be an integer", location=user_location(), expected="an integer", got=repr(value)
        )
    return constant(value, operations.number_dtype(value))
