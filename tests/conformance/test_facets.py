"""Everything that the gpu stage may hold has all that it needs: rules of the emitter and of the simulator, a text
form, a place in the verifier, and a conformance case that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from ptxtile import target as targets
from ptxtile.ir import expressions, gpu_ops, types
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Binary, Bitcast, Call, Cast, Compare, Expr, Load, Unary
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import For, LoopKind, Role, Statement, Store
from ptxtile.ir.text import op_classes, snake_case
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import DType
from ptxtile.ir.verifier import STAGES
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_statements import StatementVerifier
from ptxtile.nvvm import gpu_ops as emitted_ops
from ptxtile.nvvm import inline_ptx, intrinsics
from ptxtile.nvvm import statements as emitted_statements
from ptxtile.nvvm.emission import write_module
from ptxtile.sim import control_flow, evaluator
from ptxtile.sim.named_barriers import EXPANDED
from ptxtile.sim.rules import RULES
from tests.conformance import mathematics, operators
from tests.conformance.cases import PROGRAMS, Case, load, program_names
from tests.conformance.values import ARITHMETIC, SMALL_FLOATS

OPS = tuple(cls for cls in op_classes().values() if issubclass(cls, gpu_ops.GpuOp))
STATEMENTS = tuple(sorted(STAGES["gpu"].statements - set(OPS), key=lambda cls: cls.__name__))
"""In one order: the workers of pytest-xdist must collect the same list."""
EXPRESSIONS = tuple(cls for cls in vars(expressions).values()
                    if isinstance(cls, type) and issubclass(cls, Expr) and cls is not Expr)  # fmt: skip


@cache
def in_programs(name: str) -> frozenset[type]:
    """The kinds of nodes in programs/``name``.ir, aliases of a name included."""
    program = load(name).program
    roots = [*(kernel.body for kernel in program.kernels), *(function.body for function in program.functions)]
    return frozenset(type(node) for root in roots for node in walk(root))


def generated() -> Iterator[Case]:
    for make in (operators.CASES | mathematics.CASES).values():
        yield make()


@cache
def nodes_of_generated() -> tuple[Expr, ...]:
    """The expressions of the kernels of the cases of single operators and functions."""
    return tuple(node for case in generated() for node in walk(case.program.kernels[0].body) if isinstance(node, Expr))


# --- GPU ops --------------------------------------------------------------------------------------------------------


def test_every_op_is_an_op_of_the_text() -> None:
    """A new subclass of GpuOp is found here without being named anywhere."""
    # by name: a dataclass with slots is made from another class of that name, which may still be alive
    assert {cls.__name__ for cls in gpu_ops.GpuOp.__subclasses__()} == {cls.__name__ for cls in OPS}
    assert len(OPS) >= 13


@pytest.mark.parametrize("op", OPS, ids=lambda cls: cls.__name__)
def test_every_op_has_all_facets(op: type[Statement]) -> None:
    assert op in emitted_ops._RULES, "no rule in ptxtile/nvvm/gpu_ops.py"
    assert op in RULES or op in EXPANDED, "no rule in ptxtile/sim/rules"
    assert op in STAGES["gpu"].statements, "not in the verifier's gpu stage"
    verifier = StatementVerifier(Context(load("print").program))
    assert op in verifier._rules or op in verifier.gpu_ops._rules, "the verifier has no rule"
    name = snake_case(op.__name__)
    assert (PROGRAMS / f"{name}.ir").exists(), f"no conformance file programs/{name}.ir"
    assert op in in_programs(name), f"programs/{name}.ir does not use it"
    # that each of these programs reads back from its text is tested in test_simulator.py


def test_print_has_all_facets() -> None:
    assert Print in emitted_statements._RULES and Print in RULES and Print in STAGES["gpu"].statements
    assert Print in in_programs("print")


# --- statements and expressions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", STATEMENTS, ids=lambda cls: cls.__name__)
def test_every_statement_has_all_facets(cls: type[Statement]) -> None:
    assert cls in emitted_statements._RULES or cls is Role, "no rule in ptxtile/nvvm/statements.py"
    simulated = {*control_flow._PLAIN, *control_flow._STRUCTURED, *RULES}
    assert cls in simulated or cls.__name__ in ("Specialized", "Role"), "no rule in ptxtile/sim"
    assert any(cls in in_programs(name) for name in program_names()), "in no program of programs/"


def test_both_kinds_of_loops_and_every_width_of_access_are_in_programs() -> None:
    kinds, widths = set(), set()
    for name in program_names():
        for kernel in load(name).program.kernels:
            for node in walk(kernel.body):
                if isinstance(node, For):
                    kinds.add(node.kind)
                if isinstance(node, Load):
                    widths.add((node.buffer.scope.value, node.dtype.bits * node.dtype.lanes // 8))
                if isinstance(node, Store):
                    widths.add((node.buffer.scope.value, node.value.dtype.bits * node.value.dtype.lanes // 8))
    assert kinds == {LoopKind.SERIAL, LoopKind.UNROLLED} == STAGES["gpu"].loop_kinds
    assert {("global", bytes_) for bytes_ in (1, 2, 4, 8, 16)} <= widths
    assert {("shared", bytes_) for bytes_ in (2, 4, 8, 16)} <= widths


@pytest.mark.parametrize("cls", EXPRESSIONS, ids=lambda cls: cls.__name__)
def test_every_expression_has_all_facets(cls: type[Expr]) -> None:
    from ptxtile.ir.print_expressions import _PRINTERS
    from ptxtile.nvvm.expressions import _RULES

    assert cls in _RULES and cls in evaluator._RULES and cls in _PRINTERS
    used = any(cls in in_programs(name) for name in program_names())
    assert used or any(type(node) is cls for node in nodes_of_generated())


def test_every_operator_is_in_a_case_for_every_dtype() -> None:
    """What the verifier lets through (invariants 8 to 12) is applied by a case, to scalars and to vectors."""
    found: set[tuple[str, DType, bool]] = set()
    for node in nodes_of_generated():
        if isinstance(node, (Binary, Unary, Call)):
            operand = node.arguments[0].dtype if isinstance(node, Call) else node.dtype
            name = node.function if isinstance(node, Call) else node.operator
            found.add((name, operand.element, operand.lanes > 1))
        elif isinstance(node, Compare):
            found.add((node.operator, node.left.dtype.element, node.left.dtype.lanes > 1))
    wanted: set[tuple[str, DType]] = set()
    integers = [dtype for dtype in ARITHMETIC if dtype.is_integer]
    floats = [dtype for dtype in ARITHMETIC if dtype.is_float]
    for operator in expressions.BINARY_OPERATORS:
        both = operator in ("add", "sub", "mul", "min", "max")
        wanted |= {(operator, dtype) for dtype in floats if both or operator == "div"}
        wanted |= {(operator, dtype) for dtype in integers if operator != "div"}
        wanted |= {(operator, types.bool_)} if operator in ("and", "or", "xor") else set()
    for operator in expressions.COMPARISONS:
        wanted |= {(operator, dtype) for dtype in ARITHMETIC}
    for operator in expressions.UNARY_OPERATORS:
        wanted |= {(operator, dtype) for dtype in floats if operator != "not"}
        wanted |= {(operator, dtype) for dtype in integers if operator in ("neg", "abs", "not")}
    wanted |= {("fma", dtype) for dtype in floats}
    wanted |= {(name, dtype) for name in ("popcount", "leading_zeros") for dtype in integers}
    wanted |= {("eq", types.bool_), ("ne", types.bool_), ("not", types.bool_)}
    assert not {(*pair, vectors) for pair in wanted for vectors in (False, True)} - found
    approximations = {(name, types.float32, False) for name in HARDWARE_FUNCTIONS if name.startswith("approx_")}
    assert approximations <= found


def test_every_pair_of_dtypes_is_cast() -> None:
    everything = (types.bool_, *ARITHMETIC, *SMALL_FLOATS)
    casts = {(node.operand.dtype, node.dtype) for node in nodes_of_generated() if isinstance(node, Cast)}
    assert {(a, b) for a in everything for b in everything if a != b} <= casts
    bits = {(node.operand.dtype, node.dtype) for node in nodes_of_generated() if isinstance(node, Bitcast)}
    numbers = (*ARITHMETIC, *SMALL_FLOATS)
    assert {(a, b) for a in numbers for b in numbers if a != b and a.bits == b.bits} <= bits


# --- the emitter's tables -------------------------------------------------------------------------------------------


def programs() -> Iterator[tuple[Program, Case]]:
    for name in program_names():
        yield load(name).program, load(name)
    for case in generated():
        yield case.program, case


def test_every_template_and_intrinsic_is_reached_by_a_case() -> None:
    """A template of inline PTX, or an LLVM intrinsic, that no case runs on the card is one that nobody has tried."""
    templates: set[str] = set()
    used: set[str] = set()
    for program, case in programs():
        for architecture in ("sm_90a", "sm_120a"):
            target = targets.get(architecture)
            if case.claims(target):
                module = write_module(program, target)
                templates |= set(module.isa_reasons)
                used |= set(module._declarations)
    unreached = set(inline_ptx.TABLE) - templates, set(intrinsics.INTRINSICS) - used
    assert unreached == (set(), set())
