"""Cases that apply every operator to special and random numbers of every dtype, element by element.

Each case has a tensor for every operand and one for every operator, called by its name; thread i computes element i of
each. The same operators run once on scalars and once on vectors of 16 bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ptxtile.ir import expressions as ir
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.expressions import Expr, Var, constant
from ptxtile.ir.program import Function, Kernel, Program, TensorParameter
from ptxtile.ir.statements import Let, Statement, Store, seq
from ptxtile.ir.types import DType, Kind, bool_, int32
from ptxtile.target import Feature
from tests.conformance import exact
from tests.conformance.cases import Case, with_launch
from tests.conformance.values import (
    ARITHMETIC,
    SMALL_FLOATS,
    Number,
    as_tensor,
    decode,
    encode,
    limits,
    random_patterns,
    round_number,
    special,
    triples,
)

THREADS = 128
COUNT = 4096
"""Elements of a case: enough for every pair of special numbers."""


@dataclass(frozen=True)
class Operator:
    """``build`` makes the expression from its operands, ``reference`` gives its value, None where it is open."""

    name: str
    operands: tuple[str, ...]
    build: Callable[..., Expr]
    reference: Callable[..., Number | None] | None = None


def tensor(name: str, dtype: DType, count: int) -> Buffer:
    return Buffer(name, dtype, (count,), (1,), Storage(name, Scope.GLOBAL))


def elementwise(
    name: str,
    inputs: dict[str, DType],
    operators: Sequence[Operator],
    count: int,
    *,
    lanes: int = 1,
    functions: tuple[Function, ...] = (),
) -> Program:
    """A kernel that computes each operator of each element; ``lanes`` of them at a time as vectors."""
    blocks, thread = tuple(Var(f"block_{axis}", int32) for axis in "xyz"), Var("thread", int32)
    threads = min(THREADS, count // lanes)
    first = Var("first", int32)
    body: list[Statement] = [Let(first, (blocks[0] * threads + thread) * lanes)]
    values: dict[str, Expr] = {}
    buffers = {key: tensor(key, dtype, count) for key, dtype in inputs.items()}
    for key, buffer in buffers.items():
        value = Var(f"value_{key}", buffer.dtype.with_lanes(lanes))
        body.append(Let(value, ir.load(buffer, (first,), lanes)))
        values[key] = value
    for operator in operators:
        result = operator.build(*(values[key] for key in operator.operands))
        output = buffers[operator.name] = tensor(operator.name, result.dtype.element, count)
        body.append(Store(output, (first,), result))
    parameters = tuple(TensorParameter(buffer) for buffer in buffers.values())
    kernel = Kernel("kernel", (count // (threads * lanes), 1, 1), threads, blocks, thread, seq(*body), threads,
                    shared_bytes=0)  # fmt: skip
    return with_launch(Program(name, parameters, (kernel,), functions=functions, stage="gpu"))


def case(
    name: str,
    columns: dict[str, tuple[DType, np.ndarray]],
    operators: Sequence[Operator],
    needs: tuple[Feature, ...] = (),
    *,
    lanes: int = 1,
    functions: tuple[Function, ...] = (),
    computed: dict[str, list[Number | None]] | None = None,
    sample: int | None = None,
) -> Case:
    """The case of ``columns`` (dtype and bit patterns of each operand); every output starts as zeros. ``computed``
    keeps the references' results by operator, for a second case of the same columns. ``sample``: the references give
    the first elements only."""
    count = len(next(iter(columns.values()))[1])
    program = elementwise(name, {key: dtype for key, (dtype, _) in columns.items()}, operators, count, lanes=lanes,
                          functions=functions)  # fmt: skip
    dtypes = {key: buffer.dtype for key, buffer in program.global_buffers().items()}
    arguments = [as_tensor(raw, dtype) for dtype, raw in columns.values()]
    numbers = {key: decode(raw[:sample], dtype) for key, (dtype, raw) in columns.items()}
    expected, unspecified = {}, {}
    known = computed if computed is not None else {}
    for operator in operators:
        dtype = dtypes[operator.name]
        arguments.append(as_tensor(np.zeros(count, np.dtype(f"uint{dtype.bits}")), dtype))
        if operator.reference is None:
            continue
        if operator.name not in known:
            rows = zip(*(numbers[key] for key in operator.operands), strict=True)
            known[operator.name] = [operator.reference(*row) for row in rows]
        results = known[operator.name]
        results = results + [0] * (count - len(results))
        open_ = np.array([result is None for result in results])
        expected[operator.name] = as_tensor(encode([r if r is not None else 0 for r in results], dtype), dtype)
        if open_.any():
            unspecified[operator.name] = open_
    return Case(name, program, tuple(arguments), needs, expected, unspecified,
                operands={operator.name: operator.operands for operator in operators}, sample=sample)  # fmt: skip


def _seed(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


# --- the operators of a dtype ---------------------------------------------------------------------------------------


def binary_names(dtype: DType) -> tuple[str, ...]:
    return tuple(exact.FLOAT if dtype.is_float else exact.BOOL if dtype.is_bool else exact.INTEGER)


def _binary_reference(name: str, dtype: DType) -> Callable[..., Number | None]:
    if dtype.is_bool:
        return exact.BOOL[name]
    table = exact.FLOAT if dtype.is_float else exact.INTEGER
    return lambda a, b: table[name](a, b, dtype)  # type: ignore[operator]


def _unary_reference(name: str, dtype: DType) -> Callable[..., Number]:
    if dtype.is_bool:
        return lambda a: not a
    if dtype.is_float:
        return lambda a: exact.FLOAT_UNARY[name](a, dtype)
    return exact.INTEGER_UNARY[name]


def unary_names(dtype: DType) -> tuple[str, ...]:
    return tuple(exact.FLOAT_UNARY if dtype.is_float else ("not",) if dtype.is_bool else exact.INTEGER_UNARY)


def operators_of(dtype: DType) -> list[Operator]:
    """Binary, Compare, Unary, Select, and the functions of the hardware that are exact."""
    found = []
    for name in binary_names(dtype):
        build = lambda a, b, name=name: ir.binary(name, a, b)  # noqa: E731
        found.append(Operator(f"op_{name}", ("a", "b"), build, _binary_reference(name, dtype)))
    for name in ir.COMPARISONS if not dtype.is_bool else ("eq", "ne"):
        reference = exact.COMPARISON[name]
        found.append(Operator(f"is_{name}", ("a", "b"), lambda a, b, name=name: ir.compare(name, a, b), reference))
    for name in unary_names(dtype):
        build = lambda a, name=name: ir.unary(name, a)  # noqa: E731
        found.append(Operator(f"op_{name}_1", ("a",), build, _unary_reference(name, dtype)))
    if dtype.is_float:
        fma = lambda a, b, c: exact.fma(a, b, c, dtype)  # noqa: E731
        found.append(Operator("fma", ("a", "b", "c"), lambda a, b, c: ir.call("fma", a, b, c), fma))
    if dtype.is_integer:
        for name, count in (("popcount", exact.popcount), ("leading_zeros", exact.leading_zeros)):
            # an int32 from a single value; vectors keep their width
            build = lambda a, name=name: ir.call(name, a, dtype=int32 if a.dtype.lanes == 1 else a.dtype)  # noqa: E731
            found.append(Operator(name, ("a",), build, lambda a, count=count: count(a, dtype)))
    return found


def scalar_operators(dtype: DType) -> list[Operator]:
    """Operators of :func:`operators_of` and those that take single bools."""
    flag = ("flag", "a", "b")
    both = lambda a, b: ir.logical_and(ir.compare("ne", a, b), ir.compare("eq", b, b))  # noqa: E731
    either = lambda a, b: ir.logical_or(ir.compare("eq", a, b), ir.compare("ne", a, a))  # noqa: E731
    return [
        *operators_of(dtype),
        Operator("select", flag, lambda f, a, b: ir.select(f, a, b), lambda f, a, b: a if f else b),
        Operator("logical_and", ("a", "b"), both, lambda a, b: a != b and b == b),
        Operator("logical_or", ("a", "b"), either, lambda a, b: a == b or a != a),
    ]


def vector_operators(dtype: DType, lanes: int) -> list[Operator]:
    """On vectors, and Broadcast, which has them as its result."""
    one, wide = constant(1, dtype), dtype.with_lanes(lanes)
    name = "xor" if dtype.is_bool else "add"
    broadcast = lambda a: ir.binary(name, a, ir.Broadcast(one, wide))  # noqa: E731
    reference = _binary_reference(name, dtype)
    return [*operators_of(dtype), Operator("broadcast", ("a",), broadcast, lambda a: reference(a, one.value))]


@cache
def _operands(dtype: DType) -> tuple[dict[str, tuple[DType, np.ndarray]], dict[str, list[Number | None]]]:
    """The columns of :func:`operator_case`, and a place for the references' results."""
    generator = _seed(f"operators_{dtype}")
    a, b, c = triples(generator, dtype, COUNT)
    columns = {"a": (dtype, a), "b": (dtype, b), "c": (dtype, c)}
    columns["flag"] = (bool_, random_patterns(generator, bool_, COUNT))
    return columns, {}


@cache
def operator_case(dtype: DType, vectors: bool) -> Case:
    """Every operator of ``dtype``, on scalars or on vectors of 16 bytes."""
    columns, computed = _operands(dtype)
    columns = {key: value for key, value in columns.items() if (key != "c" or dtype.is_float) and key != "flag"}
    if vectors:
        lanes = 16 * 8 // dtype.bits
        return case(f"vector_operators_{dtype}", columns, vector_operators(dtype, lanes), lanes=lanes,
                    computed=computed)  # fmt: skip
    columns["flag"] = _operands(dtype)[0]["flag"]
    return case(f"scalar_operators_{dtype}", columns, scalar_operators(dtype), computed=computed)


# --- constants ------------------------------------------------------------------------------------------------------

CONSTANTS = {
    Kind.INT: (0, 1, -1, 2, 3, 8, -7, 100),
    Kind.UINT: (0, 1, 2, 3, 8, 100, 255),
    Kind.FLOAT: (0.0, -0.0, 1.0, -1.0, 2.0, 0.1, float("inf"), float("nan")),
    Kind.BOOL: (False, True),
}
"""Operands that the emitter takes other ways with: identities, powers of two, offsets of sums, shifts too far."""


@cache
def constant_case(dtype: DType) -> Case:
    """Every operator with a constant on one side, and fully constant expressions, which the emitter folds."""
    name = f"constants_{dtype}"
    generator = _seed(name)
    column = np.concatenate([special(dtype), random_patterns(generator, dtype, 128)])[:128]
    operators = []
    for operator in binary_names(dtype):
        reference = _binary_reference(operator, dtype)
        for position, written in enumerate(CONSTANTS[dtype.kind]):
            known = constant(written, dtype)
            number = round_number(known.value, dtype) if dtype.is_float else known.value
            right = lambda a, o=operator, k=known: ir.binary(o, a, k)  # noqa: E731
            left = lambda a, o=operator, k=known: ir.binary(o, k, a)  # noqa: E731
            operators += [
                Operator(f"{operator}_{position}", ("a",), right, lambda a, r=reference, n=number: r(a, n)),
                Operator(f"c{position}_{operator}", ("a",), left,
                         lambda a, r=reference, n=number: r(n, a)),
            ]  # fmt: skip
    return case(name, {"a": (dtype, column)}, operators)


@cache
def folded_case(dtype: DType) -> Case:
    """Operators of constants alone: output k is of the k-th pair of numbers."""
    name = f"folded_{dtype}"
    numbers = decode(special(dtype), dtype)
    generator = _seed(name)
    operators = []
    chosen = [tuple(numbers[i] for i in generator.integers(0, len(numbers), 2)) for _ in range(16)]
    for operator in binary_names(dtype):
        reference = _binary_reference(operator, dtype)
        for position, (p, q) in enumerate(chosen):
            build = lambda a, o=operator, p=p, q=q: ir.binary(o, constant(p, dtype), constant(q, dtype))  # noqa: E731
            operators.append(
                Operator(f"{operator}_{position}", ("a",), build, lambda a, r=reference, p=p, q=q: r(p, q))
            )
    for operator in unary_names(dtype):
        reference = _unary_reference(operator, dtype)
        for position, (p, _) in enumerate(chosen):
            build = lambda a, o=operator, p=p: ir.unary(o, constant(p, dtype))  # noqa: E731
            operators.append(Operator(f"{operator}_1_{position}", ("a",), build, lambda a, r=reference, p=p: r(p)))
    return case(name, {"a": (dtype, special(dtype)[:1])}, operators)


# --- conversions ----------------------------------------------------------------------------------------------------


def cast_column(dtype: DType) -> np.ndarray:
    """Special numbers, the ends of other types, random patterns, and (floats) numbers of ordinary size."""
    generator = _seed(f"cast_{dtype}")
    if dtype in SMALL_FLOATS:
        return np.arange(256, dtype=np.uint8)
    parts = [special(dtype), limits(dtype), random_patterns(generator, dtype, 1024)]
    if dtype.is_float:
        sizes = np.exp2(generator.uniform(-20, 66, 800)) * generator.choice([-1.0, 1.0], 800)
        parts.append(encode([round_number(x, dtype) for x in sizes.tolist()], dtype))
    whole = np.concatenate(parts)
    return whole[: len(whole) // THREADS * THREADS]


def _casts(source: DType, wanted: Sequence[DType]) -> list[Operator]:
    return [
        Operator(f"to_{target}", ("a",), lambda a, t=target: ir.Cast(a, t.with_lanes(a.dtype.lanes)),
                 lambda a, t=target: exact.cast(a, source, t))
        for target in wanted
        if target != source
    ]  # fmt: skip


@cache
def cast_case(source: DType) -> Case:
    """A cast to every other dtype, and a bit cast to every one of the same width (but float8, which is a byte)."""
    column = cast_column(source)
    operators = _casts(source, (bool_, *ARITHMETIC))
    for target in () if source.is_bool else (*ARITHMETIC, *SMALL_FLOATS):
        if target.bits == source.bits and target != source:
            bits = lambda a, t=target: decode(encode([a], source), t)[0]  # noqa: E731
            reference = None if source.is_float else bits  # a NaN's payload is lost in a Python float
            operators.append(Operator(f"bits_{target}", ("a",), lambda a, t=target: ir.bitcast(a, t), reference))
    needs = (Feature.FP8_CONVERT,) if source in SMALL_FLOATS else ()
    return case(f"cast_{source}", {"a": (source, column)}, operators, needs)


@cache
def small_float_cast_case(source: DType) -> Case:
    """Casts to the 8-bit floats."""
    return case(f"cast_to_float8_{source}", {"a": (source, cast_column(source))}, _casts(source, SMALL_FLOATS),
                (Feature.FP8_CONVERT,))  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {}
"""Makers of all cases by name."""
for _dtype in (bool_, *ARITHMETIC):
    CASES[f"scalar_operators_{_dtype}"] = lambda d=_dtype: operator_case(d, False)
    CASES[f"vector_operators_{_dtype}"] = lambda d=_dtype: operator_case(d, True)
    CASES[f"constants_{_dtype}"] = lambda d=_dtype: constant_case(d)
    CASES[f"folded_{_dtype}"] = lambda d=_dtype: folded_case(d)
for _dtype in (bool_, *ARITHMETIC, *SMALL_FLOATS):
    CASES[f"cast_{_dtype}"] = lambda d=_dtype: cast_case(d)
    CASES[f"cast_to_float8_{_dtype}"] = lambda d=_dtype: small_float_cast_case(d)
