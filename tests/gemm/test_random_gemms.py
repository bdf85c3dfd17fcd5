"""Random gemms in the simulator against float64, with asynchronous effects early and late; a sample is assembled.

``python -m tests.gemm.random_gemms`` runs any number of them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.gemm import problem
from tests.gemm.check_problem import GUARD, Output, WrongResult, check, inputs_of, policies
from tests.gemm.problem import Problem

EXAMPLES = 30
ASSEMBLED = 6
"""One in so many is assembled by ptxas."""

CHECKED = 5
"""One in so many is looked at by the checker for races, if it is small."""

ONE_IN_THREE = 1 / 3


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    return problem.draw(lambda values: draw(st.sampled_from(values)))


@settings(max_examples=EXAMPLES)
@given(problems())
def test_random_gemms(p: Problem):
    note(f'python -m tests.gemm.random_gemms --one "{p}"')
    check(p, ptx=p.seed % ASSEMBLED == 0, effects=("early", "late"), checked=p.seed % CHECKED == 0)


def test_most_problems_are_taken(random_generator: np.random.Generator):
    """What is refused for want of shared memory is no more than a third."""
    rng = random.Random(int(random_generator.integers(2**31)))
    refused = sum(check(problem.draw(rng.choice), effects=()).status == "refused" for _ in range(20))
    assert refused <= 20 * ONE_IN_THREE


def test_the_generator_reaches_everything(random_generator: np.random.Generator):
    rng = random.Random(int(random_generator.integers(2**31)))
    drawn = [problem.draw(rng.choice) for _ in range(600)]
    seen = {f.name: Counter(getattr(p, f.name) for p in drawn) for f in fields(Problem)}
    assert set(seen["target"]) == {"sm_80", "sm_89", "sm_90a", "sm_120a"}
    assert set(seen["block_m"]) == set(seen["block_n"]) == {64, 80, 96, 128, 192, 256}
    assert set(seen["stages"]) == {1, 2, 3, 4, 5, 6} and set(seen["threads"]) == {128, 256, 384, 512}
    assert set(seen["dtypes"]) == set(problem.DTYPES) and set(seen["epilogue"]) == set(problem.EPILOGUES)
    assert {layout for pair in seen["layouts"] for layout in pair} == {"", *problem.LAYOUTS}
    assert set(seen["cluster"]) == set(problem.CLUSTERS) and set(seen["registers"]) == {"", "A", "B", "AB"}
    assert len(seen["persistent"]) > 3 and set(seen["specialize_warps"]) == {"auto", False}
    for size, block in (("m", "block_m"), ("n", "block_n"), ("k", "block_k")):
        tails = {getattr(p, size) % getattr(p, block) for p in drawn}
        assert 0 in tails and len(tails) > 20
        assert any(getattr(p, size) < getattr(p, block) for p in drawn)


@pytest.mark.parametrize("dtypes", problem.DTYPES)
def test_a_wrong_element_is_found(dtypes: tuple[str, str, str, str], random_generator: np.random.Generator):
    """The comparison takes torch's product; it refuses one that lacks a term, an unwritten element, a write outside."""
    p = Problem(40, 24, 64, dtypes=dtypes, epilogue="bias", seed=int(random_generator.integers(1000)))
    inputs = inputs_of(p)
    output = Output(p, inputs)

    def found(operand: torch.Tensor, **outside: int) -> float:
        output.raw.fill_(0xFF)
        output.c.copy_(operand.double() @ inputs.b.double() + inputs.bias.double())
        for place in outside.values():
            output.raw[place] = 0
        return output.check(p, inputs, set(), on_card=False)

    assert found(inputs.a) < 0.1
    for place in (GUARD - 1, -GUARD):
        with pytest.raises(WrongResult, match="outside of C"):
            found(inputs.a, place=place)
    lacking = inputs.a.clone()
    lacking.view(torch.uint8)[:, -8 * inputs.a.element_size() :] = 0
    with pytest.raises(WrongResult, match="elements are wrong"):
        found(lacking)
    found(inputs.a)
    row, column = (int(random_generator.integers(size)) for size in (p.m, p.n))
    unwritten = output.raw[GUARD:-GUARD].view(p.m, p.n, -1)
    if (unwritten[row, column] != 0xFF).any():
        unwritten[row, column] = 0xFF
        with pytest.raises(WrongResult, match="elements are wrong"):
            output.check(p, inputs, set(), on_card=False)


def test_policies_differ():
    """Early and late effects are not the same schedule: a late load is not there when it is issued."""
    made = {name: policy() for name, policy in policies(3).items()}
    assert {name: policy._delay["tma_load"] for name, policy in made.items()} == {"early": 0, "late": 1, "mixed": 0.5}


def test_problems_print_as_they_are_written():
    p = replace(Problem(100, 72, 80), stages=3, dtypes=problem.DTYPES[5], specialize_warps=False)
    assert eval(str(p), {"Problem": Problem}) == p
