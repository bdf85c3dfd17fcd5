"""Random programs in the simulator against the reference; the reference itself against torch; reproduction by seed.

``python -m tests.random_programs`` runs any number of them.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.random_programs import model as m
from tests.random_programs import numbers, reference, runner
from tests.random_programs.generator import generate
from tests.random_programs.memory import Invalid, Storage
from tests.random_programs.source import render

PROGRAMS = 240
SECONDS = 60
"""Whichever comes first: the machines that run this are shared."""

ASSEMBLED = 0.08
"""The fraction that ptxas assembles."""


def test_random_programs(random_generator: np.random.Generator):
    """A failure shows the source, the seed, and the command that runs this program alone."""
    deadline = time.monotonic() + SECONDS
    statuses: dict[str, int] = {}
    for _ in range(PROGRAMS):
        seed = int(random_generator.integers(2**31))
        try:
            outcome = runner.run_seed(seed, ptx=random_generator.random() < ASSEMBLED)
        except Exception as error:
            pytest.fail(f"random program {seed}\n{runner.describe(seed, generate(seed), error)}")
        statuses[outcome.status] = statuses.get(outcome.status, 0) + 1
        if time.monotonic() > deadline:
            break
    print(statuses)
    assert statuses.get("ok", 0) >= 0.6 * sum(statuses.values()), f"the generator draws too much in vain: {statuses}"


def test_a_seed_gives_one_program(random_generator: np.random.Generator):
    for seed in random_generator.integers(2**31, size=20).tolist():
        assert generate(seed) == generate(seed)
        compile(render(generate(seed)), "program", "exec")


def test_programs_use_what_they_should(random_generator: np.random.Generator):
    """The generator reaches every kind of statement, region, dtype, scope and form."""
    seen: set[object] = set()

    def visit(node: object) -> None:
        if isinstance(node, tuple):
            for child in node:
                visit(child)
            return
        if not type(node).__module__.endswith("random_programs.model"):
            return
        seen.add(type(node).__name__)
        if isinstance(node, m.Buffer):
            seen.update((node.scope, node.dtype, f"rank {len(node.shape)}"))
        if isinstance(node, m.Region):
            seen.add(node.form)
        if isinstance(node, m.Loop):
            seen.add(node.kind)
        for name in node.__dataclass_fields__:  # type: ignore[attr-defined]
            visit(getattr(node, name))

    for seed in random_generator.integers(2**31, size=400).tolist():
        program = generate(seed)
        seen.add(program.form)
        visit(program)
    statements = {"Copy", "Fill", "Parallel", "Store", "Assign", "Loop", "While", "Leave", "If", "ViewOf", "Allocate"}
    expressions = {"Read", "Binary", "Unary", "Cast", "Choice", "Logical", "Number", "Name"}
    kinds = {"whole", "point", "slice", "range", "serial", "unroll", "pipelined", "eager", "factory"}
    memory = {"global", "shared", "fragment", *(f"rank {rank}" for rank in range(1, 6)), *numbers.DTYPES}
    missing = (statements | expressions | kinds | memory) - seen
    assert not missing, f"never drawn: {missing}"


def test_a_wrong_result_is_found(random_generator: np.random.Generator):
    """The comparison fails when one written element differs, and when one is written that must not be."""
    caught = 0
    for seed in random_generator.integers(2**31, size=60).tolist():
        program = generate(seed)
        expected = runner.storages_of(program)
        start = {name: Storage(0, storage.data.copy()) for name, storage in expected.items()}
        try:
            reference.run(program, expected)
        except Invalid:
            continue
        output = next((t for t in program.tensors if t.buffer.name == "C0" and t.role == "argument"), None)
        if output is None or any(t.role == "empty" for t in program.tensors) or output.buffer.dtype == "bool":
            continue
        right = {name: replace_data(storage) for name, storage in expected.items()}
        runner._compare(program, expected, start, runner.tensors_of(program, right), None)
        storage = right["C0"]
        place = int(random_generator.integers(storage.data.size))
        storage.data[place] ^= 0x11
        try:
            runner._compare(program, expected, start, runner.tensors_of(program, right), None)
        except runner.Mismatch:
            caught += 1
            continue
        stored = numbers.STORED[output.buffer.dtype]
        element = numbers.decode(expected["C0"].data.view(stored)[place // stored.itemsize], output.buffer.dtype)
        assert output.buffer.dtype in numbers.FLOATS and not np.isfinite(element), "a changed byte was not noticed"
    assert caught >= 5


def replace_data(storage: Storage) -> Storage:
    """A copy of a storage's bytes."""
    return Storage(0, storage.data.copy())


@pytest.mark.parametrize("source", numbers.DTYPES)
@pytest.mark.parametrize("target", numbers.DTYPES)
def test_conversions_are_those_of_torch(source: str, target: str, random_generator: np.random.Generator):
    """Where torch's CPU conversion is defined: everything but floats out of an integer's range."""
    values = runner._values(random_generator, source, 300)
    if source in numbers.FLOATS and target in numbers.INTEGERS:
        limits = np.iinfo(numbers.HELD[target].name)
        low, high = max(limits.min, -(2**30)), min(limits.max, 2**30)
        whole = np.trunc(values.astype(np.float64))
        values = values[np.isfinite(whole) & (whole >= low) & (whole <= high)]
    raw = np.ascontiguousarray(numbers.encode(values, source))
    tensor = torch.from_numpy(raw.view(np.uint8)).view(getattr(torch, source))
    expected = tensor.to(getattr(torch, target))
    got = numbers.encode(numbers.convert(values, source, target), target)
    expected_raw = expected.view(torch.uint8).numpy().reshape(-1).view(numbers.STORED[target])
    a, b = numbers.decode(expected_raw, target), numbers.decode(got, target)
    with np.errstate(all="ignore"):
        assert ((a == b) | ((a != a) & (b != b))).all()


def test_the_reference_refuses_races():
    """Iterations that read their neighbour's element, and blocks that write one element, have no one meaning."""
    tensor = m.Buffer("C0", "global", "int32", (8,), (None,), "C0", ("8",))
    i, b = m.Name("i", "int32"), m.Name("b", "int32")
    neighbour = m.Read(tensor, (m.Binary("add", i, m.Number(1, "int32")),))
    cases = {
        "iterations": m.Parallel(("i",), (7,), (m.Store(tensor, (i,), neighbour),)),
        "blocks": m.Store(tensor, (m.Number(0, "int32"),), b),
    }
    for what, statement in cases.items():
        kernel = m.Kernel((m.Number(2 if what == "blocks" else 1, "int32"),), ("b",), 32, (statement,))
        program = m.Program(0, "eager", (), (), (m.Tensor(tensor, (1,), 0, 8),), (), (kernel,))
        with pytest.raises(Invalid, match=what):
            reference.run(program, runner.storages_of(program))
        alone = replace(program, kernels=(replace(kernel, grid=(m.Number(1, "int32"),)),))
        if what == "blocks":
            reference.run(alone, runner.storages_of(alone))
