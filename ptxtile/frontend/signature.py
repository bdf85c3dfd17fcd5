"""What a function says about its run-time parameters, and how actual tensors specialize it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ptxtile.errors import ArgumentError, Location, TraceError
from ptxtile.frontend.buffers import Size
from ptxtile.frontend.specialization import CONTIGUOUS, Specialization, TensorSpecialization, stride_symbol
from ptxtile.ir.expressions import Binary, Cast, Const, Expr, Var
from ptxtile.ir.rewrite import walk
from ptxtile.ir.types import DType, int32
from ptxtile.launch_record import LaunchRecord, ScalarArgument, SizeOperation, Symbol, TensorArgument, solvable

_INDEX_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class TensorSignature:
    """A tensor parameter; sizes are ints or expressions over T.const and T.dynamic sizes."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None
    location: Location | None = None


@dataclass(frozen=True)
class ScalarSignature:
    """A number that each call passes."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Signature:
    """The run-time parameters in order. ``constants``: names of ``T.const`` sizes. ``outputs``: parameters that the
    call allocates and returns instead of taking them."""

    parameters: tuple[TensorSignature | ScalarSignature, ...]
    constants: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[TensorSignature, ...]:
        return tuple(p for p in self.parameters if isinstance(p, TensorSignature))

    @property
    def inputs(self) -> tuple[TensorSignature | ScalarSignature, ...]:
        """The parameters that the caller passes."""
        return tuple(p for p in self.parameters if p.name not in self.outputs)

    @property
    def symbols(self) -> dict[str, Var]:
        """The T.dynamic sizes by name."""
        scalars = {p.name for p in self.parameters if isinstance(p, ScalarSignature)}
        found: dict[str, Var] = {}
        for tensor in self.tensors:
            for size in (*tensor.shape, *(tensor.strides or ())):
                if isinstance(size, Expr):
                    for node in walk(size):
                        if isinstance(node, Var) and node.name not in self.constants and node.name not in scalars:
                            found.setdefault(node.name, node)
        return found

    def check(self) -> None:
        """TraceError when a size of a tensor that is passed can never be solved."""
        passed = [t for t in self.tensors if t.name not in self.outputs]
        solved = {size.name for t in passed for size in t.shape if isinstance(size, Var)}
        solved |= {*self.constants, *(p.name for p in self.inputs if isinstance(p, ScalarSignature))}
        found = True
        while found:  # what is solved may leave one unknown in another size
            sums = (solvable(size_record(size), solved) for t in passed for size in t.shape)
            new = {one[0] for one in sums if one is not None}
            solved, found = solved | new, bool(new)
        solved |= {size.name for t in passed for size in t.strides or () if isinstance(size, Var)}
        for name in self.symbols:
            if name not in solved:
                raise TraceError(
                    f"the dynamic size {name} cannot be solved from the tensors",
                    expected="a tensor of which it, or a sum of it times a number and of other sizes, is a size",
                    got=f"only expressions with {name}", hint=f"pass it as a scalar parameter: `{name}: T.int32`",
                )  # fmt: skip


def size_number(size: Size, values: Mapping[str, int]) -> int | None:
    """The value of a size, or None while a name of it has no value."""
    if isinstance(size, int):
        return size
    if isinstance(size, Const):
        return int(size.value)
    if isinstance(size, Var):
        return values.get(size.name)
    if isinstance(size, Cast):
        return size_number(size.operand, values)
    if isinstance(size, Binary) and size.operator in _SIZE_OPERATIONS:
        left, right = size_number(size.left, values), size_number(size.right, values)
        if left is None or right is None or (right == 0 and "div" in size.operator):
            return None
        return _SIZE_OPERATIONS[size.operator](left, right)
    return None


_SIZE_OPERATIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b if b else 0, "min": min, "max": max,
}  # fmt: skip


def size_record(size: Size) -> int | Symbol | SizeOperation:
    """A size as launch records write it. TraceError for an operation that the host does not do."""
    if isinstance(size, int):
        return size
    if isinstance(size, Const):
        return int(size.value)
    if isinstance(size, Var):
        return Symbol(size.name)
    if isinstance(size, Cast):
        return size_record(size.operand)
    if isinstance(size, Binary) and size.operator in _SIZE_OPERATIONS:
        operator = "mod" if size.operator == "floormod" else size.operator
        return SizeOperation(operator, size_record(size.left), size_record(size.right))
    raise TraceError("a tensor's size uses an operation that the host does not do", expected="+ - * // % min max")


def call_record(signature: Signature, function: str) -> LaunchRecord:
    """What a call must look like before a variant is chosen: const and dynamic sizes and free strides are symbols."""
    arguments: list[TensorArgument | ScalarArgument] = []
    for parameter in signature.inputs:
        if isinstance(parameter, ScalarSignature):
            arguments.append(ScalarArgument(parameter.name, parameter.dtype.name))
            continue
        shape = tuple(size_record(size) for size in parameter.shape)
        if parameter.strides is None:
            strides = tuple(Symbol(stride_symbol(parameter.name, d)) for d in range(len(shape)))
        else:
            strides = tuple(size_record(stride) for stride in parameter.strides)
        arguments.append(TensorArgument(parameter.name, parameter.dtype.name, shape, strides, 1, unused=True))
    return LaunchRecord(function, tuple(arguments))


def stride_pattern(shape: Sequence[int], strides: Sequence[int]) -> tuple[int | None, ...]:
    """CONTIGUOUS for the inner dimensions that are dense; of the others 0 and 1 are constants, the rest None."""
    pattern: list[int | None] = []
    expected, dense = 1, True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        dense = dense and (stride == expected or size == 1)
        if dense:
            pattern.append(CONTIGUOUS)
            expected *= size
        elif size == 1:
            pattern.append(0)
        else:
            pattern.append(stride if stride in (0, 1) else None)
    return tuple(reversed(pattern))


def _power_of_two_divisor(value: int, limit: int = 16) -> int:
    return limit if value == 0 else min(limit, value & -value)


def specialize_tensor(
    shape: Sequence[int], strides: Sequence[int], address: int, alias_group: int | None
) -> TensorSpecialization:
    """What a variant knows about one actual tensor; ``address`` in bytes, ``strides`` in elements."""
    if prod(shape) == 0:
        return TensorSpecialization((CONTIGUOUS,) * len(shape), (1,) * len(shape), 16, alias_group)
    pattern = stride_pattern(shape, strides)
    divisors = tuple(
        _power_of_two_divisor(stride) if kind is None else 1 for stride, kind in zip(strides, pattern, strict=True)
    )
    wide = any(kind is None and abs(stride) > _INDEX_LIMIT for stride, kind in zip(strides, pattern, strict=True))
    return TensorSpecialization(pattern, divisors, _power_of_two_divisor(address), alias_group, wide)


def typical(signature: Signature, constants: Mapping[str, int]) -> Specialization:
    """The variant of contiguous, aligned tensors that do not overlap and whose dynamic sizes are multiples of 16."""
    tensors = tuple(
        (t.name, TensorSpecialization((CONTIGUOUS,) * len(t.shape), (1,) * len(t.shape))) for t in signature.tensors
    )
    symbols = signature.symbols
    sizes = {**dict.fromkeys(symbols, 16), **constants}
    return Specialization(
        tuple((name, constants[name]) for name in signature.constants), tensors,
        tuple((name, 16) for name in symbols), _uppers(signature, dict(tensors), sizes, {}),
    )  # fmt: skip


def specialize(
    signature: Signature, values: Mapping[str, int], tensors: Mapping[str, TensorSpecialization],
    strides: Mapping[str, Sequence[int]],
) -> Specialization:  # fmt: skip
    """The specialization of a call. ``values``: of the const and dynamic sizes. A tensor that is not there (None was
    passed) counts as contiguous, aligned and apart."""
    missing = [name for name in signature.constants if name not in values]
    if missing:
        raise ArgumentError(
            f"the size {missing[0]} is not known",
            expected=f"a tensor of which it is a size, or compile({missing[0]}=…)",
            hint="T.const sizes are solved from the shapes of the tensors",
        )  # fmt: skip
    for tensor in signature.tensors:
        if tensor.name not in tensors:
            rank = len(tensor.shape)
            tensors = {**tensors, tensor.name: TensorSpecialization((CONTIGUOUS,) * rank, (1,) * rank)}
    ordered = tuple((t.name, tensors[t.name]) for t in signature.tensors)
    divisors = tuple((name, 16 if values.get(name, 1) % 16 == 0 else 1) for name in signature.symbols)
    return Specialization(
        tuple((name, values[name]) for name in signature.constants), ordered, divisors,
        _uppers(signature, tensors, values, strides),
    )  # fmt: skip


def _uppers(
    signature: Signature, tensors: Mapping[str, TensorSpecialization], values: Mapping[str, int],
    strides: Mapping[str, Sequence[int]],
) -> tuple[tuple[str, int], ...]:  # fmt: skip
    """Bounds for symbols, chosen from the signature alone, kept where the actual values obey them.

    The symbols of one tensor share the room below 2³¹ evenly, so there are two variants for each tensor (all below
    their bound, or not) however sizes change.
    """
    bounds: dict[str, int] = {}
    for tensor in signature.tensors:
        pattern = tensors[tensor.name].strides
        if all(kind == CONTIGUOUS for kind in pattern) and tensor.strides is None:
            groups = [(list(tensor.shape), _INDEX_LIMIT, {})]
        else:
            groups = []
            for position, size in enumerate(tensor.shape):
                name = stride_symbol(tensor.name, position)
                actual = {name: abs(strides[tensor.name][position])} if tensor.name in strides else {}
                stride: Size = Var(name, int32) if pattern[position] is None else 1
                groups.append(([size, stride], _INDEX_LIMIT // len(tensor.shape), actual))
        for sizes, limit, actual in groups:
            _bound_group(sizes, limit, {**values, **actual}, signature.constants, bounds)
    return tuple(sorted(bounds.items()))


def _bound_group(
    sizes: list[Size], limit: int, values: Mapping[str, int], constants: Sequence[str], bounds: dict[str, int]
) -> None:
    known = {name: values[name] for name in constants if name in values}
    fixed, symbols = 1, []
    for size in sizes:
        number = size_number(size, known)
        if number is not None:
            fixed *= max(number, 1)
        elif isinstance(size, Var):
            symbols.append(size.name)
        else:
            return
    if not symbols or fixed > limit:
        return
    share = int((limit // fixed) ** (1 / len(symbols)))
    while share ** len(symbols) > limit // fixed:
        share -= 1
    if all(values.get(name, share + 1) <= share for name in symbols):
        for name in symbols:
            bounds[name] = min(bounds.get(name, share), share)
