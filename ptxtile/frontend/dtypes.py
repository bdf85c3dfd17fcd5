"""The dtype objects of the language: ``T.float16`` is a name for a dtype, an annotation, and a cast function."""

from __future__ import annotations

import difflib
from typing import Any

from ptxtile.errors import TypeMismatchError
from ptxtile.frontend.locations import user_location
from ptxtile.ir.types import BY_NAME, DType, parse_dtype

_ALIASES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "boolean": "bool",
    "float8_e4m3": "float8_e4m3fn",
    "e4m3_float8": "float8_e4m3fn",
    "e5m2_float8": "float8_e5m2",
}
_PYTHON_TYPES: dict[type, str] = {bool: "bool", int: "int32", float: "float32"}


_STORED_IN_TORCH = {"int4": "int8", "uint4": "uint8", "tfloat32": "float32", "float4_e2m1fn": "float4_e2m1fn_x2"}
"""The torch dtype of tensors whose elements have a dtype that torch lacks."""


class DataType(str):
    """``T.float16``: equal to ``"float16"`` and to ``torch.float16``; called, it casts.

    It is a string, its name, so that ``getattr(torch, T.float16)`` and what else takes names works with it.
    ``T.dtype(x)``: the one for a name, a torch dtype or a Python number type.
    """

    __slots__ = ("ir",)

    ir: DType

    def __new__(cls, value: Any) -> DataType:
        ir = as_dtype(value)
        made = super().__new__(cls, ir.name)
        made.ir = ir
        return made

    @property
    def name(self) -> str:
        return self.ir.name

    @property
    def bits(self) -> int:
        return self.ir.bits

    @property
    def lanes(self) -> int:
        return self.ir.lanes

    @property
    def itemsize(self) -> int:
        return self.ir.itemsize

    def as_torch(self) -> Any:
        """The torch dtype of tensors with such elements."""
        import torch

        return getattr(torch, _STORED_IN_TORCH.get(self.name, self.name))

    def __call__(self, value: Any = 0) -> Any:
        from ptxtile.frontend.operations import cast_value

        return cast_value(value, self.ir)

    def __eq__(self, other: object) -> bool:
        found = _find(other)
        return found is not None and found == self.ir

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.ir.name)

    def __str__(self) -> str:
        return self.ir.name

    def __repr__(self) -> str:
        return self.ir.name


def _find(value: object) -> DType | None:
    if isinstance(value, DataType):
        return value.ir
    if isinstance(value, DType):
        return value
    if isinstance(value, type):
        name = _PYTHON_TYPES.get(value, "")
    elif isinstance(value, str):
        name = value
    elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        name = str(value).removeprefix("torch.")
    else:
        return None
    try:
        return parse_dtype(_ALIASES.get(name, name))
    except KeyError:
        return None


def as_dtype(value: object) -> DType:
    """The IR dtype for ``T.float16``, ``"float16"``, ``torch.float16`` or a Python number type."""
    found = _find(value)
    if found is not None:
        return found
    close = difflib.get_close_matches(str(value).removeprefix("torch."), list(BY_NAME), n=3)
    raise TypeMismatchError(
        f"unsupported dtype {value!r}",
        location=user_location(),
        expected="one of " + ", ".join(BY_NAME),
        got=repr(value),
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )


def is_dtype(value: object) -> bool:
    """Whether it is a dtype, and no plain string that names one."""
    return _find(value) is not None and (isinstance(value, DataType) or not isinstance(value, str))


DATA_TYPES: dict[str, DataType] = {name: DataType(dtype) for name, dtype in BY_NAME.items()}


def data_type(dtype: DType) -> DataType:
    """The language's object for an IR dtype."""
    return DATA_TYPES.get(dtype.name) or DataType(dtype)
