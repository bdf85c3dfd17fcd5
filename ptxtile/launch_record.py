"""The host part of a compiled program as plain records: what to check, what to allocate, what to launch with which
bytes.

``lower`` completes it, ``runtime`` runs it on a card, ``sim`` runs it on the CPU, and a disk cache can store it:
nothing here refers to the IR. A *size* is an integer known when the call's arguments are known, written as a small
expression over symbols; symbols are solved from tensor shapes and strides, or are integer arguments.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import field
from functools import reduce

from ptxtile.records import record

Size = "int | Symbol | SizeOperation"


@record
class Symbol:
    """An integer of the call: a dynamic dimension, a stride, or an integer argument."""

    name: str

    def __str__(self) -> str:
        return self.name


@record
class SizeOperation:
    """``operator`` is one of add, sub, mul, floordiv, mod, min, max; floordiv and mod floor as in Python."""

    operator: str
    left: int | Symbol | SizeOperation
    right: int | Symbol | SizeOperation

    def __str__(self) -> str:
        signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
        if self.operator in signs:
            return f"({self.left} {signs[self.operator]} {self.right})"
        return f"{self.operator}({self.left}, {self.right})"


_OPERATORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}
SIZE_OPERATORS = frozenset(_OPERATORS)


def evaluate_size(size: int | Symbol | SizeOperation, symbols: Mapping[str, int]) -> int:
    """The value of a size. KeyError names a symbol that has no value."""
    if isinstance(size, int):
        return size
    if isinstance(size, Symbol):
        return symbols[size.name]
    return _OPERATORS[size.operator](evaluate_size(size.left, symbols), evaluate_size(size.right, symbols))


def solvable(
    size: int | Symbol | SizeOperation, known: Container[str]
) -> tuple[str, int, int | Symbol | SizeOperation] | None:
    """(n, c, d) where ``size`` is c · n + d with an integer c other than 0, n the only one of its symbols that is not
    ``known``, and d a sum of known ones; else None. A dimension of that size determines n."""
    form = _linear_form(size)
    if form is None:
        return None
    factors, offset = form
    unknown = [name for name, factor in factors.items() if factor and name not in known]
    if len(unknown) != 1:
        return None
    parts: list[int | Symbol | SizeOperation] = [offset] if offset else []
    for name, factor in factors.items():
        if factor and name != unknown[0]:
            parts.append(Symbol(name) if factor == 1 else SizeOperation("mul", factor, Symbol(name)))
    rest = reduce(lambda left, right: SizeOperation("add", left, right), parts) if parts else 0
    return unknown[0], factors[unknown[0]], rest


def _linear_form(size: int | Symbol | SizeOperation) -> tuple[dict[str, int], int] | None:
    """The factor of each symbol, and the constant; None where the size is no such sum."""
    if isinstance(size, int):
        return {}, size
    if isinstance(size, Symbol):
        return {size.name: 1}, 0
    left, right = _linear_form(size.left), _linear_form(size.right)
    if left is None or right is None or size.operator not in ("add", "sub", "mul"):
        return None
    if size.operator == "mul":
        if left[0] and right[0]:
            return None
        form, by = (left, right[1]) if left[0] else (right, left[1])
        return {name: factor * by for name, factor in form[0].items()}, form[1] * by
    sign = 1 if size.operator == "add" else -1
    factors = {name: left[0].get(name, 0) + sign * right[0].get(name, 0) for name in {**left[0], **right[0]}}
    return factors, left[1] + sign * right[1]


@record
class TensorArgument:
    """A tensor that the caller passes.

    shape: expected sizes, outermost first. strides: expected element strides, same order; a bare symbol there is
    *solved* from the tensor (a dynamic stride). alignment: bytes that the base address is known to be a multiple of.
    unused: the kernel never touches it, so None is allowed.
    """

    name: str
    dtype: str
    shape: tuple[int | Symbol | SizeOperation, ...]
    strides: tuple[int | Symbol | SizeOperation, ...]
    alignment: int
    unused: bool = False


@record
class ScalarArgument:
    """A number that the caller passes; an integer one is also a symbol of the same name."""

    name: str
    dtype: str


@record
class Allocation:
    """A contiguous tensor that the call allocates: an output (returned) or a workspace."""

    name: str
    dtype: str
    shape: tuple[int | Symbol | SizeOperation, ...]


@record
class Divisibility:
    """The compiled variant relies on ``size`` being a multiple of ``divisor``; the variant key proves it, tests check
    it."""

    size: int | Symbol | SizeOperation
    divisor: int


@record
class TensorMapRecord:
    """The arguments of cuTensorMapEncodeTiled (CUDA driver API, «Tensor Map Object Management»).

    dimensions, strides and box run from the innermost dimension outwards, as the driver takes them. ``dimensions`` in
    elements; ``strides`` in bytes, without the innermost one, so one fewer; ``box`` in elements, 1 ≤ box ≤ 256.
    ``offset`` in bytes is added to the tensor's base address. ``swizzle`` in bytes: 0 (none), 32, 64 or 128.
    Out-of-bounds elements read as zero.
    """

    name: str
    tensor: str
    dtype: str
    dimensions: tuple[int | Symbol | SizeOperation, ...]
    strides: tuple[int | Symbol | SizeOperation, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 128
    offset: int = 0

    @property
    def rank(self) -> int:
        return len(self.dimensions)


@record
class KernelParameter:
    """One parameter of the PTX entry, in order.

    kind: ``pointer`` (base address of tensor ``name``), ``tensor_map`` (128 bytes, the record ``name``) or ``scalar``
    (``value`` of ``dtype``: a size, or the scalar argument ``name`` when value is None).
    """

    kind: str
    name: str
    dtype: str = ""
    value: int | Symbol | SizeOperation | None = None


@record
class KernelLaunch:
    """One launch. ``grid`` (x, y, z) in CTAs; ``block`` (x, y, z) in threads; ``shared_bytes`` of dynamic shared
    memory."""

    kernel: str
    grid: tuple[int | Symbol | SizeOperation, int | Symbol | SizeOperation, int | Symbol | SizeOperation]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[KernelParameter, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    dependent_launch: bool = False


@record
class LaunchRecord:
    """Everything that a call of a compiled program does on the host, in order.

    ``arguments`` are those that the caller passes, in order. ``returns`` names the tensors that the call gives back (an
    allocation or an argument); one name is returned alone, several as a tuple.
    """

    name: str
    arguments: tuple[TensorArgument | ScalarArgument, ...]
    allocations: tuple[Allocation, ...] = ()
    tensor_maps: tuple[TensorMapRecord, ...] = ()
    launches: tuple[KernelLaunch, ...] = ()
    returns: tuple[str, ...] = ()
    divisibilities: tuple[Divisibility, ...] = field(default=())

    def tensor_map(self, name: str) -> TensorMapRecord:
        return next(record for record in self.tensor_maps if record.name == name)
