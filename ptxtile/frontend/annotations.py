"""How a function says what its tensors are: ``T.Tensor``, ``T.StridedTensor``, ``T.const``, ``T.dynamic``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ptxtile.errors import Location, TraceError, TypeMismatchError
from ptxtile.frontend.buffers import BufferData, Size, shape_of, shape_text, view_of
from ptxtile.frontend.current import tracer_for
from ptxtile.frontend.dtypes import as_dtype, is_dtype
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.operations import cast_value
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Var
from ptxtile.ir.types import DType

if TYPE_CHECKING:
    from ptxtile.frontend.tracer import Tracer


@dataclass(frozen=True)
class TensorAnnotation:
    """``T.Tensor((M, N), T.float32)``. ``strides`` in elements: None when nothing is declared about them."""

    shape: tuple[Size, ...]
    dtype: DType
    strides: tuple[Size, ...] | None = None
    location: Location | None = None

    def __str__(self) -> str:
        return f"T.Tensor({shape_text(self.shape)}, {self.dtype})"


class _TensorFactory:
    """``T.Tensor(shape, dtype)`` and ``T.Tensor[shape, dtype]``; ``T.Tensor(shape, dtype, A.data)`` is a view of A."""

    def __call__(self, shape: Any, dtype: Any = "float32", data: Any = None, scope: Any = None) -> Any:
        if isinstance(data, BufferData):
            return view_of(data.buffer, shape, dtype, None, "T.Tensor")
        if data is not None or scope is not None:
            raise TraceError(
                "T.Tensor with data or scope",
                location=user_location(),
                hint="T.view and T.reshape make views of a buffer",
            )
        return TensorAnnotation(shape_of(shape, "the shape of T.Tensor"), as_dtype(dtype), None, user_location())

    def __getitem__(self, keys: Any) -> TensorAnnotation:
        if isinstance(keys, tuple) and len(keys) == 2 and (is_dtype(keys[1]) or isinstance(keys[1], str)):
            return self(keys[0], keys[1])
        return self(keys)


class _StridedTensorFactory:
    """``T.StridedTensor(shape, strides, dtype)`` and ``T.StridedTensor[shape, strides, dtype]``."""

    def __call__(self, shape: Any, strides: Any, dtype: Any = "float32") -> TensorAnnotation:
        sizes = shape_of(shape, "the shape of T.StridedTensor")
        steps = shape_of(strides, "the strides of T.StridedTensor")
        if len(sizes) != len(steps):
            raise TypeMismatchError(
                "T.StridedTensor", location=user_location(), expected=f"{len(sizes)} strides", got=str(len(steps))
            )
        return TensorAnnotation(sizes, as_dtype(dtype), steps, user_location())

    def __getitem__(self, keys: Any) -> TensorAnnotation:
        return self(*keys)


Tensor = Buffer = _TensorFactory()
StridedTensor = _StridedTensorFactory()


class UndeclaredParameter:
    """A tensor parameter before its annotation in the body has run. Every use is an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def parameter_name(self) -> str:
        return self._name

    def refuse(self) -> NoReturn:
        raise TraceError(
            f"the tensor {self._name} is used before it is declared", location=user_location(),
            hint=f"write `{self._name}: T.Tensor(shape, dtype)` before",
        )  # fmt: skip

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self.refuse()

    def __getitem__(self, index: Any) -> Any:
        self.refuse()

    def __setitem__(self, index: Any, value: Any) -> None:
        self.refuse()

    def __bool__(self) -> bool:
        self.refuse()


def declare_parameter(tracer: Tracer, undeclared: UndeclaredParameter, annotation: Any) -> Any:
    """The traced parameter for an annotation in the body."""
    assert tracer.parameter_source is not None
    return tracer.parameter_source.declare(tracer, undeclared.parameter_name, annotation)


def _names(text: str, what: str) -> tuple[str, ...]:
    names = tuple(name for name in re.split(r"[\s,]+", text.strip()) if name)
    for name in names:
        if not name.isidentifier():
            raise TraceError(f"{what} takes names", location=user_location(), expected='such as "M, N"', got=repr(text))
    if not names:
        raise TraceError(f"{what} takes names", location=user_location(), expected='such as "M, N"', got=repr(text))
    return names


def const(name: str | int | float, dtype: Any = "int32") -> Any:
    """``M, N = T.const("M, N")``: sizes that are known when the kernel is compiled, solved from the tensors' shapes.

    ``T.const(15, T.uint8)``: a number with a dtype, as TVM's tirx writes it.
    """
    if isinstance(name, (int, float)):
        return cast_value(name, dtype)
    tracer = tracer_for("T.const")
    names = _names(name, "T.const")
    if tracer.parameter_source is None:
        raise TraceError("T.const here", location=user_location(), hint="it belongs into a function under @ptxtile.jit")
    values = tracer.parameter_source.constants(names, as_dtype(dtype))
    return values[0] if len(values) == 1 else values


def dynamic(name: str, dtype: Any = "int32") -> Any:
    """``m = T.dynamic("m")``: a size that is known at launch, solved from the tensors' shapes; int32 unless said.

    A tensor has it as a size, or a sum such as ``4 * m + 1`` in which it is the only one not known otherwise.
    """
    element = as_dtype(dtype)
    if not element.is_integer or element.bits < 32:
        raise TypeMismatchError("T.dynamic", location=user_location(), expected="int32 or int64", got=str(element))
    values = tuple(SizeVariable(symbol, dtype) for symbol in _names(name, "T.dynamic"))
    return values[0] if len(values) == 1 else values


class SizeVariable(Value):
    """What ``T.dynamic`` gives, and the type ``T.Var`` that scripts ask for: ``isinstance(M, T.Var)``."""

    __slots__ = ()

    def __init__(self, name: str, dtype: Any = "int32") -> None:
        super().__init__(Var(name, as_dtype(dtype)))


symbolic = dynamic
