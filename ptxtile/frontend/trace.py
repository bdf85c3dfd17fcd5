"""From a user's function to a tile-stage :class:`~ptxtile.ir.program.Program`.

The function runs once to learn its signature (sizes are placeholders, and it is left as soon as the last parameter is
declared), and once for each specialization, with ``T.const`` sizes as Python ints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.allocation import global_buffer
from ptxtile.frontend.annotations import TensorAnnotation, UndeclaredParameter
from ptxtile.frontend.buffers import TracedBuffer, dense_strides
from ptxtile.frontend.current import set_active_tracer
from ptxtile.frontend.dtypes import as_dtype, is_dtype
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.locations import mark_trace_entry, user_location
from ptxtile.frontend.signature import ScalarSignature, Signature, TensorSignature, size_number
from ptxtile.frontend.specialization import CONTIGUOUS, Specialization, stride_symbol
from ptxtile.frontend.tracer import Tracer
from ptxtile.frontend.values import Value
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.program import Fact, Program, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.types import DType, int32, int64


class _SignatureComplete(Exception):
    """Leaves the function once all parameters are declared."""


def runtime_parameters(function: UserFunction) -> tuple[str, ...]:
    """Names of the parameters that calls pass: those annotated in the body, as a tensor, or with a dtype."""
    annotated = set(function.rewritten.annotated)
    for name, annotation in function.annotations.items():
        if isinstance(annotation, TensorAnnotation) or (is_dtype(annotation) and not isinstance(annotation, type)):
            annotated.add(name)
    return tuple(name for name in function.python_signature.parameters if name in annotated)


def _describe(name: str, annotation: Any) -> TensorSignature | ScalarSignature:
    if isinstance(annotation, TensorAnnotation):
        if annotation.dtype.bits < 8 and not annotation.dtype.is_bool:
            raise TypeMismatchError(
                f"{name} is a tensor of {annotation.dtype}, which calls cannot pass yet", location=annotation.location,
                expected="a dtype of whole bytes", got=str(annotation.dtype),
                hint="declare T.uint8 with two elements in each byte, and unpack them: (A[i // 2] >> (i % 2 * 4)) & 15",
            )  # fmt: skip
        return TensorSignature(name, annotation.dtype, annotation.shape, annotation.strides, annotation.location)
    if is_dtype(annotation):
        return ScalarSignature(name, as_dtype(annotation))
    raise TypeMismatchError(
        f"the annotation of {name}", location=user_location(),
        expected="T.Tensor(shape, dtype) or a dtype such as T.int32",
        got=operations.describe(annotation),
    )  # fmt: skip


class _Learner:
    """Collects declarations; sizes are symbols."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.found: dict[str, TensorSignature | ScalarSignature] = {}
        self.constant_names: list[str] = []

    def declare(self, tracer: Tracer, name: str, annotation: Any) -> Any:
        described = _describe(name, annotation)
        self.found[name] = described
        if self.wanted <= set(self.found):
            raise _SignatureComplete
        if isinstance(described, ScalarSignature):
            return Value(Var(name, described.dtype))
        return TracedBuffer(global_buffer(name, described.dtype, described.shape, described.strides))

    def constants(self, names: tuple[str, ...], dtype: DType) -> tuple[Any, ...]:
        self.constant_names += [name for name in names if name not in self.constant_names]
        return tuple(Value(Var(name, dtype)) for name in names)


def learn_signature(
    function: UserFunction, python_arguments: Mapping[str, Any], outputs: tuple[str, ...] = ()
) -> Signature:
    """The run-time parameters of ``function``, called with ``python_arguments`` for the others."""
    runtime = runtime_parameters(function)
    learner = _Learner(set(runtime))
    tracer = Tracer(function.function.__name__, parameter_source=learner)
    for name in runtime:
        if name not in function.rewritten.annotated:
            learner.found[name] = _describe(name, function.annotations[name])
    if learner.wanted - set(learner.found):
        arguments = {name: UndeclaredParameter(name) for name in runtime if name not in learner.found}
        signature_arguments = {name: _stand_in(learner.found[name]) for name in runtime if name in learner.found}
        try:
            _run(tracer, function.rewritten.call, {**python_arguments, **signature_arguments, **arguments})
        except _SignatureComplete:
            pass
        else:
            missing = sorted(learner.wanted - set(learner.found))
            raise TraceError(
                f"the parameter {missing[0]} of {function.function.__name__} was never declared",
                location=function.rewritten.location, hint="its annotation in the body did not run",
            )  # fmt: skip
    found = learner.found
    signature = Signature(tuple(found[name] for name in runtime), tuple(learner.constant_names), outputs)
    signature.check()
    return signature


def _stand_in(described: TensorSignature | ScalarSignature) -> Any:
    if isinstance(described, ScalarSignature):
        return Value(Var(described.name, described.dtype))
    return TracedBuffer(global_buffer(described.name, described.dtype, described.shape, described.strides))


class _Builder:
    """Makes the parameters of a program for one specialization."""

    def __init__(self, tracer: Tracer, signature: Signature, specialization: Specialization) -> None:
        self.signature = signature
        self.specialization = specialization
        self.tracer = tracer
        self.values = dict(specialization.constants)
        self.buffers: dict[str, Buffer] = {}
        self.strides: dict[str, Var] = {}
        for name in (*signature.symbols, *(p.name for p in signature.parameters)):
            tracer.unique(name)

    def declare(self, tracer: Tracer, name: str, annotation: Any) -> Any:
        described = _describe(name, annotation)
        if isinstance(described, ScalarSignature):
            return self.scalar(described)
        return TracedBuffer(self.tensor(described))

    def constants(self, names: tuple[str, ...], dtype: DType) -> tuple[Any, ...]:
        for name in names:
            if name not in self.values:
                raise TraceError(
                    f"the size {name} has no value", location=user_location(),
                    hint="T.const sizes must be sizes of tensors, declared before the tensors that use them",
                )  # fmt: skip
        return tuple(self.values[name] for name in names)

    def scalar(self, described: ScalarSignature) -> Value:
        var = Var(described.name, described.dtype)
        self.tracer.parameters[described.name] = ScalarParameter(var)
        return Value(var)

    def tensor(self, described: TensorSignature) -> Buffer:
        name = described.name
        known = self.specialization.tensor(name)
        shape = tuple(self._size(size) for size in described.shape)
        if described.strides is not None:
            strides = tuple(self._size(stride) for stride in described.strides)
        else:
            dense = dense_strides(shape)
            strides = tuple(
                self._stride(name, d, dense[d], kind, known.wide_strides) for d, kind in enumerate(known.strides)
            )
        buffer = global_buffer(name, described.dtype, shape, strides)
        self.buffers[name] = buffer
        if name in self.signature.outputs:
            self.tracer.allocations.append(buffer)
        else:
            self.tracer.parameters[name] = TensorParameter(
                buffer, known.alignment, known.alias_group, location=described.location
            )
        return buffer

    def _size(self, size: int | Expr) -> int | Expr:
        """A size of this specialization; one that was written outside of the trace may still hold names."""
        if isinstance(size, int) or not self.values:
            return size
        number = size_number(size, self.values)
        return size if number is None else number

    def _stride(self, tensor: str, dimension: int, dense: int | Expr, kind: int | None, wide: bool) -> int | Expr:
        if kind == CONTIGUOUS:
            return dense
        if kind is not None:
            return kind
        name = stride_symbol(tensor, dimension)
        var = Var(name, int64 if wide else int32)
        self.strides[name] = var
        return var


def trace(
    function: UserFunction,
    python_arguments: Mapping[str, Any],
    specialization: Specialization,
    signature: Signature | None = None,
) -> Program:
    """The tile-stage program of ``function`` for the given Python arguments and specialization."""
    if signature is None:
        signature = learn_signature(function, python_arguments)
    tracer = Tracer(function.function.__name__, specialization)
    builder = _Builder(tracer, signature, specialization)
    tracer.parameter_source = builder
    arguments: dict[str, Any] = dict(python_arguments)
    for parameter in signature.parameters:
        if parameter.name in function.rewritten.annotated:
            arguments[parameter.name] = UndeclaredParameter(parameter.name)
        elif isinstance(parameter, ScalarSignature):
            arguments[parameter.name] = builder.scalar(parameter)
        else:
            arguments[parameter.name] = TracedBuffer(builder.tensor(parameter))
    result = _run(tracer, function.rewritten.call, arguments)
    if not tracer.kernels:
        raise TraceError(
            f"{function.function.__name__} has no T.Kernel", location=function.rewritten.location,
            expected="at least one `with T.Kernel(...)`",
        )  # fmt: skip
    return _program(function, tracer, builder, signature, result)


def _run(tracer: Tracer, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    before = set_active_tracer(tracer)
    try:
        return function(**arguments)
    finally:
        set_active_tracer(before)


mark_trace_entry(_run.__code__)


def _returns(function: UserFunction, tracer: Tracer, result: Any) -> tuple[str, ...]:
    if result is None:
        return ()
    results = result if isinstance(result, (tuple, list)) else (result,)
    known = {buffer.name for buffer in tracer.allocations} | set(tracer.parameters)
    for value in results:
        if not isinstance(value, TracedBuffer) or value.name not in known:
            raise TypeMismatchError(
                f"{function.function.__name__} returns something else than its tensors",
                location=function.rewritten.location, expected="tensors from T.empty, or parameters",
                got=operations.describe(value),
            )  # fmt: skip
    return tuple(value.name for value in results)


def _program(function: UserFunction, tracer: Tracer, builder: _Builder, signature: Signature, result: Any) -> Program:
    returns = _returns(function, tracer, result)
    if signature.outputs:
        returns = signature.outputs
    inputs = tuple(tracer.parameters[p.name] for p in signature.inputs)
    symbols = {**signature.symbols, **builder.strides}
    program = Program(
        tracer.name, inputs, tuple(tracer.kernels), tuple(tracer.allocations), returns, tuple(symbols.values()),
        _facts(symbols, builder.specialization),
    )  # fmt: skip
    _check_symbols(program, function)
    return program


def _facts(symbols: Mapping[str, Var], specialization: Specialization) -> tuple[Fact, ...]:
    divisors, uppers = dict(specialization.divisors), dict(specialization.uppers)
    for name, tensor in specialization.tensors:
        for dimension, divisor in enumerate(tensor.stride_divisors):
            divisors.setdefault(stride_symbol(name, dimension), divisor)
    return tuple(Fact(var, 0, uppers.get(name), divisors.get(name, 1)) for name, var in symbols.items())


def _check_symbols(program: Program, function: UserFunction) -> None:
    """Host-side sizes may only use symbols and integer scalar parameters."""
    known = {var.name for var in program.symbols}
    known |= {p.name for p in program.parameters if isinstance(p, ScalarParameter)}
    sizes = [size for buffer in program.global_buffers().values() for size in buffer.shape]
    sizes += [size for kernel in program.kernels for size in kernel.grid]
    for size in sizes:
        for node in walk(size) if isinstance(size, Expr) else ():
            if isinstance(node, Var) and node.name not in known:
                raise TraceError(
                    f"the size {node.name} is not known at launch", location=function.rewritten.location,
                    expected="sizes of the tensors that are passed, or scalar parameters",
                )  # fmt: skip
