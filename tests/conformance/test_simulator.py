"""Every conformance case in the simulator, against what plain Python says, and through the assembler.

tests/gpu/test_conformance_on_card.py compares the card with the simulator, so that together the two cover the emitter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ptxtile import target as targets
from ptxtile.errors import TargetError, VerificationError
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.types import DType
from ptxtile.ir.verifier import verify
from ptxtile.lower.math import ULP
from ptxtile.nvvm import emit
from ptxtile.nvvm.emission import write_module
from tests import ptxas
from tests.conformance import compositions, expected, mathematics, operators, tensor_cores
from tests.conformance.cases import Case, load, program_names
from tests.conformance.comparison import differences, report
from tests.conformance.values import ARITHMETIC, FLOATS, as_raw, decode
from tests.lower.math.reference import distances

GENERATED: dict[str, Callable[[], Case]] = operators.CASES | compositions.CASES | mathematics.CASES | tensor_cores.CASES


def check(case: Case) -> None:
    """The verifier takes it, its text reads back, and the simulator gives what is expected."""
    verify(case.program)
    if case.sample is not None:
        beyond = {key: np.arange(tensor.numel()) >= case.sample for key, tensor in (case.expected or {}).items()}
        case = replace(case, unspecified=beyond)
    found = differences(case, case.expected or {}, case.simulate())
    assert not found, report(found)


@pytest.mark.parametrize("name", program_names())
def test_programs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = load(name)
    check(case)
    lines = capsys.readouterr().out.splitlines()
    printed = expected.PRINTED.get(name, lambda A: [])(case.arguments[0])
    assert sorted(lines) == sorted(printed)


@pytest.mark.parametrize("name", program_names())
def test_programs_change_something(name: str) -> None:
    """What is expected differs from what was there before; a program that only prints is compared by its lines."""
    case = load(name)
    assert case.expected is not None
    before = case.binding().tensors
    changed = [key for key in case.expected if as_raw(before[key], case.dtypes[key]).tobytes()
               != as_raw(case.expected[key], case.dtypes[key]).tobytes()]  # fmt: skip
    assert changed or name in expected.PRINTED


@pytest.mark.parametrize("name", program_names())
def test_programs_read_back(name: str) -> None:
    program = load(name).program
    assert parse_program(print_program(program)) == program


def test_every_program_has_an_expectation() -> None:
    assert set(expected.EXPECTED) == set(program_names())


@pytest.mark.parametrize("name", operators.CASES)
def test_operators(name: str) -> None:
    case = operators.CASES[name]()
    missing = set(case.operands) - set(case.expected or {})
    assert all(output.startswith("bits_") for output in missing), missing
    check(case)


@pytest.mark.parametrize("name", tensor_cores.CASES)
def test_tensor_cores(name: str) -> None:
    check(tensor_cores.CASES[name]())


@pytest.mark.parametrize("name", compositions.CASES)
def test_compositions(name: str) -> None:
    check(compositions.CASES[name]())


@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_fresh_random_expressions(dtype: DType, request: pytest.FixtureRequest) -> None:
    check(compositions.random_case(dtype, request.config.option.random_seed))


# --- mathematics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("group", range(len(mathematics.GROUPS)))
def test_functions(group: int, dtype: DType) -> None:
    """Within the documented error, and one unit more for the reference, which is the processor's long double."""
    case = mathematics.function_case(group, dtype)
    got = case.simulate()
    numbers = {key: np.array(decode(as_raw(got[key], dtype), dtype), dtype=np.float64) for key in ("a", "b")}
    for name in mathematics.GROUPS[group]:
        reference = mathematics.REFERENCES[name]
        with np.errstate(all="ignore"):
            exact = reference(*(numbers[key].astype(np.longdouble) for key in case.operands[name]))
            held = np.float32 if dtype.element_name == "bfloat16" else dtype.element_name
            wanted = exact.astype(np.float64).astype(held)
        values = np.array(decode(as_raw(got[name], dtype), dtype), dtype=np.float64).astype(held)
        apart = distances(values, wanted, dtype)
        worst = int(np.argmax(apart))
        place = tuple(float(numbers[key][worst]) for key in case.operands[name])
        bound = ULP[name, dtype.element_name] + 1
        assert apart[worst] <= bound, f"{name}{place}: {values[worst]!r}, not {wanted[worst]!r}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_classification(dtype: DType) -> None:
    check(mathematics.classification_case(dtype))


def test_approximations() -> None:
    """The simulator's own values lie within the bounds that the card is held to."""
    case = mathematics.approximation_case()
    verify(case.program)
    got = case.simulate()
    for name, within in case.errors.items():
        values = np.array(decode(as_raw(got[name], case.dtypes[name]), case.dtypes[name]))
        promised = ~case.unspecified[name]
        assert promised.sum() > 400, name
        assert within(values)[promised].all(), name


# --- emission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", targets.names())
def test_programs_assemble(architecture: str) -> None:
    """Each program for each architecture that has what it needs; the others refuse it."""
    target = targets.get(architecture)
    for name in program_names():
        case = load(name)
        if not case.claims(target):
            with pytest.raises((VerificationError, TargetError)):
                write_module(case.program, target)
            continue
        log = ptxas.assemble(emit(case.program, target).ptx, architecture)
        assert not any(code in log for code in ptxas.IGNORED_SETMAXNREG), (name, log)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_cases_assemble(name: str, request: pytest.FixtureRequest) -> None:
    """Each for one of its architectures, another one in another run: all of them would take minutes, and
    tests/nvvm/test_assembles.py has every operator for all."""
    case = GENERATED[name]()
    claimed = [other for other in targets.names() if case.claims(targets.get(other))]
    architecture = claimed[(list(GENERATED).index(name) + request.config.option.random_seed) % len(claimed)]
    ptxas.assemble(emit(case.program, targets.get(architecture)).ptx, architecture)
