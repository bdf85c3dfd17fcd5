"""Planned calls against checked calls: a fake driver must be given the same bytes, whatever changes between calls."""

from __future__ import annotations

import math
import os
import random
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cuda.bindings import driver as bindings

from ptxtile.errors import ArgumentError, DriverError, LaunchError
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)
from ptxtile.runtime import context, driver, planned_calls
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.call_plan import UNFIT, CallPlan
from ptxtile.runtime.executable import Executable
from ptxtile.runtime.planned_calls import PlannedCalls, overlapping
from tests.runtime.fake_bindings import PRIMARY, FakeBindings

PTX = ".version 8.0\n.target sm_90a\n.address_size 64\n"
M, N, S = Symbol("M"), Symbol("N"), Symbol("S")
STREAM = 0x5150


class Calls:
    """One kernel, called with all checks (``checked``) or by plans where there are some (``planned``)."""

    def __init__(self, fake: FakeBindings, record: LaunchRecord) -> None:
        self.fake = fake
        self.record = record
        self.executable = Executable(PTX, record)
        self.plans = PlannedCalls()
        self.found = 0

    def checked(self, *args: Any) -> Any:
        return self.executable(bind(self.record, args, device_type="cpu"))

    def planned(self, *args: Any) -> Any:
        found = self.plans.find(args)
        if found is not None:
            result = found[0].run(args, *found[1:])
            if result is not UNFIT:
                self.found += 1
                return result
        binding = bind(self.record, args, device_type="cpu")
        result = self.executable(binding)
        self.plans.remember(args, self.executable, binding, "owner")
        return result

    def launched(self, call, *args: Any) -> tuple[list[dict[str, Any]], Any]:
        """What the driver was given, maps as what was encoded, addresses of results as their numbers; the results."""
        before = len(self.fake.launched)
        results = call(*args)
        made = results if isinstance(results, tuple) else () if results is None else (results,)
        names = {t.data_ptr(): f"result {n}" for n, t in enumerate(made) if not any(t is a for a in args)}
        seen = []
        for launch in self.fake.launched[before:]:
            parameters: list[Any] = []
            for content in launch["parameters"]:
                if len(content) == 128:
                    encoded = dict(self.fake.map_of(content))
                    encoded["address"] = names.get(encoded["address"], encoded["address"])
                    parameters.append(encoded)
                else:
                    number = int.from_bytes(content, "little") if len(content) == 8 else None
                    parameters.append(names.get(number, content) if number is not None else content)
            for at, content in zip(launch["alignments"], launch["parameters"], strict=True):
                assert at % min(len(content), 64) == 0
            seen.append({**launch, "parameters": parameters, "alignments": None})
        return seen, results

    def agree(self, *args: Any, by_plan: bool | None = None) -> None:
        before = self.found
        expected, checked = self.launched(self.checked, *args)
        got, planned = self.launched(self.planned, *args)
        assert got == expected
        if by_plan is not None:
            assert (self.found - before == 1) == by_plan
        for one, other in zip(_tuple(checked), _tuple(planned), strict=True):
            assert type(one) is type(other)
            if isinstance(one, torch.Tensor):
                assert one.shape == other.shape and one.stride() == other.stride()
                assert one.dtype is other.dtype and one.device == other.device


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    made = FakeBindings()
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: STREAM + device)
    return made


def add_record(**changes: Any) -> LaunchRecord:
    """Tensors in, passed out and allocated, maps of two, two launches of which the second may be empty."""
    parameters = (
        KernelParameter("pointer", "A"),
        KernelParameter("tensor_map", "B_map"),
        KernelParameter("scalar", "scale", "float32"),
        KernelParameter("tensor_map", "C_map"),
        KernelParameter("scalar", "M", "int32", M),
        KernelParameter("scalar", "stride", "int64", SizeOperation("mul", S, 4)),
        KernelParameter("pointer", "D"),
    )
    launch = KernelLaunch("first", (N, M, 1), (128, 1, 1), 50_000, parameters, cluster=(2, 1, 1))
    record = LaunchRecord(
        "add",
        (
            TensorArgument("A", "float32", (M, N), (S, 1), 4),
            ScalarArgument("scale", "float32"),
            TensorArgument("B", "float32", (M, N), (N, 1), 16),
            TensorArgument("D", "float16", (M,), (1,), 2),
        ),
        allocations=(Allocation("C", "bfloat16", (M, SizeOperation("mul", N, 2))), Allocation("W", "int8", (N,))),
        tensor_maps=(
            TensorMapRecord("B_map", "B", "float32", (N, M), (SizeOperation("mul", N, 4),), (32, 8), 128, offset=32),
            TensorMapRecord("C_map", "C", "bfloat16", (N, M), (SizeOperation("mul", N, 4),), (32, 8), 64),
        ),
        launches=(
            launch,
            replace(launch, kernel="second", grid=(SizeOperation("max", SizeOperation("sub", M, 6), 0), 1, 1),
                    cluster=(1, 1, 1), cooperative=True, dependent_launch=True),
        ),
        returns=("C", "D"),
        divisibilities=(Divisibility(N, 4),),
    )  # fmt: skip
    return replace(record, **changes)


ADD_SIZES = (8, 128, 4, 128, 4, 8, 8)


def tensors(rows: int = 6, columns: int = 8) -> tuple[torch.Tensor, float, torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, columns), 1.5, torch.zeros(rows, columns), torch.zeros(rows, dtype=torch.float16)


def test_the_same_bytes_reach_the_driver(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    for rows in (6, 6, 9, 9, 6, 9):
        a, scale, b, d = tensors(rows)
        calls.agree(a, scale, b, d)
    assert calls.found == 4 and len(calls.plans) == 2
    assert fake.stack == []
    assert {map_["aligned"] for map_ in fake.encoded} == {True}


def changing_calls(seed: int, count: int) -> Iterator[tuple[torch.Tensor, float, torch.Tensor, torch.Tensor]]:
    """Random calls of the record of :func:`add_record` in a row: sizes, strides, offsets (alignment), overlaps, the
    same tensor twice, fresh memory."""
    draw = random.Random(seed)
    memory, halves = torch.zeros(4096), torch.zeros(256, dtype=torch.float16)
    for _ in range(count):
        rows, columns = draw.choice((6, 9)), draw.choice((4, 8))
        stride = draw.choice((columns, 20))
        a = memory.as_strided((rows, columns), (stride, 1), draw.choice((0, 1, 64)))
        b = memory[(start := draw.choice((0, 64))) : start + rows * columns].view(rows, columns)
        if draw.random() < 0.2:
            a = b
        if draw.random() < 0.2:
            b = torch.zeros(rows, columns)
        d = halves[(start := draw.choice((0, 1, 8))) : start + rows]
        yield a, draw.choice((0.5, -0.0, 3, True, math.inf, 1e-42)), b, d


def test_whatever_changes_between_calls(fake, random_generator) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    for arguments in changing_calls(int(random_generator.integers(2**63)), 150):
        calls.agree(*arguments)
    assert calls.found > 20


def numbers_record(dtype: str) -> LaunchRecord:
    parameter = KernelParameter("scalar", "x", dtype)
    launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (KernelParameter("pointer", "A"), parameter))
    return LaunchRecord(
        "f", (TensorArgument("A", "int8", (4,), (1,), 1), ScalarArgument("x", dtype)), launches=(launch,)
    )


WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
VALUES = (
    0, 1, -1, 2, 127, 128, 255, 256, -129, 65504, 65519, 65520, 2**31, -(2**31), 2**53 + 1, 2**64 - 1, 2**64, 10**400,
    True, False, 0.0, -0.0, 1.0, 0.1, 1 / 3, 1.5, 448.0, 464.1, 65519.9, 65520.0, 3.3895e38, 3.4028235e38, 3.5e38,
    1e300, 1e-45, 1e-8, math.inf, -math.inf, math.nan, -math.nan,
)  # fmt: skip


@pytest.mark.parametrize("dtype", WIDTHS)
def test_numbers(fake, dtype) -> None:
    """Every number gives the same bytes or the same error by a plan (made by an earlier call) as with all checks."""
    fake.parameter_sizes = (8, WIDTHS[dtype])
    calls, a = Calls(fake, numbers_record(dtype)), torch.zeros(4, dtype=torch.int8)

    def outcome(call, value: Any) -> Any:
        try:
            return calls.launched(call, a, value)
        except ArgumentError as error:
            return str(error)

    for first in (1, 1.0, True):
        calls.planned(a, first)
    for value in VALUES:
        assert outcome(calls.planned, value) == outcome(calls.checked, value)
    assert calls.found > 1


def test_numbers_that_sizes_depend_on(fake) -> None:
    """An integer in a grid or an allocation: each value has its own plan, and one that breaks a rule its error."""
    fake.parameter_sizes = (8, 4, 4)
    count = Symbol("n")
    parameters = (
        KernelParameter("pointer", "C"),
        KernelParameter("scalar", "n", "int32"),
        KernelParameter("scalar", "f", "float32"),
    )
    record = LaunchRecord(
        "f",
        (TensorArgument("A", "int8", (4,), (1,), 1), ScalarArgument("f", "float32"), ScalarArgument("n", "int32")),
        allocations=(Allocation("C", "float32", (count,)),),
        launches=(KernelLaunch("k", (SizeOperation("floordiv", count, 2), 1, 1), (32, 1, 1), 0, parameters),),
        returns=("C",),
    )
    calls, a = Calls(fake, record), torch.zeros(4, dtype=torch.int8)
    for n in (4, 6, 4, 6, 6, 1, 1, 0):
        calls.agree(a, n / 3, n)
    assert calls.found == 4 and len(calls.plans) == 4
    assert [launch["grid"][0] for launch in fake.launched[::2]] == [2, 3, 2, 3, 3]  # none for 1 and 0
    with pytest.raises(LaunchError, match="n = -2"):
        calls.planned(a, 1.0, -2)


def test_a_number_that_only_the_kernel_reads_needs_no_plan_of_its_own(fake) -> None:
    fake.parameter_sizes = (8, 4)
    calls, a = Calls(fake, numbers_record("int32")), torch.zeros(4, dtype=torch.int8)
    for value in range(5):
        calls.agree(a, value)
    assert len(calls.plans) == 1 and calls.found == 4


WRONG = (
    lambda a, s, b, d: (a.t().contiguous().t(), s, b, d),  # the inner stride is not 1
    lambda a, s, b, d: (a.double(), s, b, d),
    lambda a, s, b, d: (a[:, :3], s, b, d),
    lambda a, s, b, d: (a[:4], s, b, d),
    lambda a, s, b, d: (a, s, torch.zeros(49)[1:].view(6, 8), d),  # four bytes off
    lambda a, s, b, d: (a, s, b.to("meta"), d),
    lambda a, s, b, d: (a, s, b.to_sparse(), d),
    lambda a, s, b, d: (a, s, torch.zeros(6, 8, dtype=torch.complex64).conj().imag, d),  # a negative view
    lambda a, s, b, d: (a, s, torch._neg_view(b), d),
    lambda a, s, b, d: (a, s, torch._efficientzerotensor((6, 8)), d),
    lambda a, s, b, d: (a, s, None, d),
    lambda a, s, b, d: (a, s, "text", d),
    lambda a, s, b, d: (a, s, 2, d),
    lambda a, s, b, d: (a, None, b, d),
    lambda a, s, b, d: (a, "1", b, d),
    lambda a, s, b, d: (a, 1e39, b, d),
    lambda a, s, b, d: (a, 10**400, b, d),
    lambda a, s, b, d: (a, a, b, d),
    lambda a, s, b, d: (a, s, b),
    lambda a, s, b, d: (a, s, b, d, d),
    lambda a, s, b, d: (d, s, b, a),
    lambda a, s, b, d: (),
    lambda a, s, b, d: (torch.zeros(6, 6), s, torch.zeros(6, 6), d),  # no multiple of 4
    lambda a, s, b, d: (a, s, torch._to_functional_tensor(b), d),
    lambda a, s, b, d: (_without_memory(a), s, b, d),
)
"""Changes to right arguments that must be refused."""


@pytest.mark.parametrize("change", WRONG)
def test_wrong_arguments_after_a_right_call(fake, change) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    right = tensors()
    calls.agree(*right, by_plan=False)
    calls.agree(*right, by_plan=True)
    wrong = change(*right)
    with pytest.raises(ArgumentError) as expected:
        calls.checked(*wrong)
    for _ in range(2):
        with pytest.raises(ArgumentError) as caught:
            calls.planned(*wrong)
        assert str(caught.value) == str(expected.value)
    calls.agree(*right, by_plan=True)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def test_tensors_under_a_transform_are_refused_as_before(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    a, scale, b, d = tensors()
    calls.planned(a, scale, b, d)
    with pytest.raises(ArgumentError, match=r"torch\.func"):
        torch.func.vmap(lambda x: calls.planned(x, scale, b, d))(torch.zeros(3, 6, 8))
    with pytest.raises(ArgumentError, match=r"torch\.func"):
        torch.func.grad(lambda x: calls.planned(x, scale, b, d)[0].sum())(a)


def test_what_takes_the_checked_way_works(fake) -> None:
    """Other array types, tensor subclasses, zero sizes: no plan, same launches."""
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())

    class Mine(torch.Tensor):
        pass

    a, scale, b, d = tensors()
    for args in (
        (a.numpy(), scale, b, d),
        (a, torch.tensor(1.5), b, d),
        (a.as_subclass(Mine), scale, b, d),
        (a[:0], scale, b[:0], d[:0]),
    ):
        calls.agree(*args, by_plan=False)
        calls.agree(*args, by_plan=False)
    assert len(calls.plans) == 0


def test_parameters_and_tensors_that_require_grad_have_plans(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    a, scale, b, d = tensors()
    calls.agree(a, scale, b, d)
    calls.agree(torch.nn.Parameter(a), scale, b.requires_grad_(), d, by_plan=True)
    results = calls.planned(torch.nn.Parameter(a), scale, b, d)
    assert results[1] is d and not results[0].requires_grad


def test_allocations_under_a_mode_are_refused(fake) -> None:
    """They have no memory, so the call is refused, also where there is a plan for it."""
    from torch._subclasses import FakeTensorMode

    fake.parameter_sizes = (8,)
    launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (KernelParameter("pointer", "A"),))
    record = LaunchRecord(
        "f",
        (TensorArgument("A", "float32", (M,), (1,), 4),),
        (Allocation("C", "float32", (M,)),),
        (),
        (launch,),
        ("C",),
    )
    calls, a = Calls(fake, record), torch.zeros(4)
    for turn in range(3):
        with FakeTensorMode(), pytest.raises(ArgumentError, match="'C', which the call allocates: a FakeTensor has no"):
            calls.planned(a)
        assert len(calls.plans) == (turn > 0)
        assert type(calls.planned(a)) is torch.Tensor
    assert calls.found == 2 and len(fake.launched) == 3


def test_the_device_is_part_of_the_key(fake) -> None:
    """There is no second device here with memory, so an object stands for a tensor on it."""
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    a, scale, b, d = tensors()
    calls.planned(a, scale, b, d)

    class Elsewhere:
        dtype, shape, device = b.dtype, b.shape, b.device
        stride, data_ptr, is_neg = b.stride, b.data_ptr, b.is_neg

    calls.plans._tensor_types |= {Elsewhere}
    elsewhere: Any = Elsewhere()
    assert calls.plans.find((a, scale, elsewhere, d)) is not None
    elsewhere.device = torch.device("cuda", 1)
    assert calls.plans.find((a, scale, elsewhere, d)) is None


def test_aliasing_is_part_of_the_plan(fake) -> None:
    """a(x, x) after a(x, y): another plan, since another variant may be behind it."""
    fake.parameter_sizes = (8, 8)
    parameters = (KernelParameter("pointer", "A"), KernelParameter("pointer", "B"))
    sizes = tuple(TensorArgument(name, "float32", (8,), (1,), 4) for name in "AB")
    record = LaunchRecord("f", sizes, launches=(KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, parameters),))
    plans, memory = PlannedCalls(), torch.zeros(64)
    executable = Executable(PTX, record)

    def owner(first: int, second: int) -> Any:
        found = plans.find((memory[first : first + 8], memory[second : second + 8]))
        return None if found is None else found[0].owner

    def remember(first: int, second: int, name: str) -> None:
        args = (memory[first : first + 8], memory[second : second + 8])
        plans.remember(args, executable, bind(record, args, device_type="cpu"), name)

    remember(0, 16, "apart")
    assert owner(0, 16) == owner(16, 0) == owner(0, 8) == owner(8, 0) == "apart"
    assert owner(0, 0) is None and owner(0, 4) is None and owner(4, 0) is None
    remember(0, 0, "same")
    assert owner(0, 0) == owner(0, 4) == "same" and owner(0, 8) == "apart"


def test_overlapping_against_sets_of_bytes(random_generator) -> None:
    draw = random.Random(int(random_generator.integers(2**63)))
    for _ in range(3000):
        count = draw.randrange(1, 6)
        starts = [draw.randrange(40) for _ in range(count)]
        sizes = [draw.randrange(1, 12) for _ in range(count)]
        bytes_of = [set(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
        expected = {(i, j) for i in range(count) for j in range(i) if bytes_of[i] & bytes_of[j]}
        assert {divmod(pair, count) for pair in overlapping(starts, sizes)} == expected


def test_threads_share_a_plan_and_no_memory(fake) -> None:
    """The driver is slow to read the parameters, so that calls of several threads are in it at once."""
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record(returns=()))
    calls.planned(*tensors())
    calls.planned(*tensors())
    fake.launched.clear()
    calls.found = 0
    launch, inside, most = fake._launch, [0], [0]

    def slow(*arguments: int) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        inside[0] -= 1
        return launch(*arguments)

    slow_function = fake.function_of("cuLaunchKernelEx", slow)
    (family,) = calls.plans._families.values()
    (plan,) = family.plans.values()
    assert isinstance(plan, CallPlan)
    plan._launch_kernel = slow_function
    sets = [tensors() for _ in range(6)]

    def work(n: int) -> None:
        a, _, b, d = sets[n]
        for _ in range(10):
            calls.planned(a, float(n), b, d)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] > 1 and calls.found == 60 and len(fake.launched) == 60
    by_address = {sets[n][0].data_ptr().to_bytes(8, "little"): n for n in range(6)}
    for launched in fake.launched:
        a, b_map, scale, _, rows, _, d = launched["parameters"]
        n = by_address[a]
        assert scale == struct.pack("<f", n) and rows == (6).to_bytes(4, "little")
        assert d == sets[n][3].data_ptr().to_bytes(8, "little")
        assert fake.map_of(b_map)["address"] == sets[n][2].data_ptr() + 32
        assert launched["context"] == PRIMARY
    assert fake.stack == []
    assert 1 < len(plan._frames) <= 6


def test_contexts_and_streams(fake, monkeypatch) -> None:
    fake.parameter_sizes = ADD_SIZES
    stream = [7]
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: stream[0])
    calls = Calls(fake, add_record())
    args = tensors()
    calls.planned(*args)
    pushes = [call for call in fake.calls if call[0] == "push"]
    calls.planned(*args)  # no context is current
    assert [call for call in fake.calls if call[0] == "push"] == [*pushes, ("push", PRIMARY)]
    with context.current(1):
        stream[0] = 8
        calls.planned(*args)
        assert fake.stack == [PRIMARY + 1]
    with context.current(0):
        before = len(fake.calls)
        calls.planned(*args)
        assert len(fake.calls) == before  # nothing is pushed where it is current
        stream[0] = 0
        calls.planned(*args)
    fake.results["cuCtxGetCurrent"] = bindings.CUresult.CUDA_ERROR_DEINITIALIZED
    with pytest.raises(DriverError, match="CUDA_ERROR_DEINITIALIZED"):
        calls.planned(*args)
    assert calls.found == 4
    assert [launched["context"] for launched in fake.launched] == [PRIMARY] * 5
    assert [launched["stream"] for launched in fake.launched] == [7, 7, 8, 8, 0]


@pytest.mark.parametrize(
    "result, error",
    [("CUDA_ERROR_INVALID_VALUE", LaunchError), ("CUDA_ERROR_ILLEGAL_ADDRESS", DriverError)],
)
def test_refused_launches(fake, result, error) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    args = tensors(9)
    calls.planned(*args)
    fake.results["cuLaunchKernelEx"] = getattr(bindings.CUresult, result)
    with pytest.raises(error) as expected:
        calls.checked(*args)
    found = calls.plans.find(args)
    assert found is not None
    with pytest.raises(error) as caught:
        found[0].run(args, *found[1:])
    assert str(caught.value) == str(expected.value) and fake.stack == []
    fake.results.clear()
    calls.agree(*args, by_plan=True)


def test_a_refused_map(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    calls.planned(*tensors())
    fake.results["cuTensorMapEncodeTiled"] = bindings.CUresult.CUDA_ERROR_INVALID_VALUE
    args = tensors()
    with pytest.raises(ArgumentError) as expected:
        calls.checked(*args)
    with pytest.raises(ArgumentError) as caught:
        calls.planned(*args)
    assert str(caught.value) == str(expected.value)


def test_maps_are_encoded_again_only_for_another_address(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    record = add_record()
    calls = Calls(fake, record)
    a, scale, b, d = tensors()
    calls.planned(a, scale, b, d)
    other = torch.zeros(6, 8)
    before = len(fake.encoded)
    for one in (b, b, other, other, b):
        calls.planned(a, scale, one, d)
    addresses = [e["address"] for e in fake.encoded[before:] if e["data_type"] == 7]  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    assert addresses == [b.data_ptr() + 32, other.data_ptr() + 32, b.data_ptr() + 32]


def test_calls_without_tensors(fake) -> None:
    fake.parameter_sizes = (8, 4)
    parameters = (KernelParameter("pointer", "C"), KernelParameter("scalar", "x", "int32"))
    record = LaunchRecord(
        "f", (ScalarArgument("x", "int32"),), (Allocation("C", "int32", (4,)),), (),
        (KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, parameters),), ("C",),
    )  # fmt: skip
    calls = Calls(fake, record)
    for value in (1, 2, -3):
        calls.agree(value)
    assert calls.found == 2


def test_plans_are_limited(fake, monkeypatch) -> None:
    monkeypatch.setattr(planned_calls, "PLANS_KEPT", 3)
    fake.parameter_sizes = ADD_SIZES
    calls = Calls(fake, add_record())
    for rows in range(1, 9):
        calls.agree(*tensors(rows), by_plan=False)
        assert len(calls.plans) <= 3
        calls.agree(*tensors(rows), by_plan=True)


def test_a_forked_child_has_no_plans(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    calls, args = Calls(fake, add_record()), tensors()
    calls.planned(*args)
    calls.planned(*args)
    assert calls.found == 1
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            calls.planned(*args)
            message = "no error"
        except DriverError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "forked" in pipe.read()
    os.waitpid(child, 0)
    calls.agree(*args, by_plan=True)


def test_plans_keep_no_tensor_alive(fake) -> None:
    """Neither the arguments nor the results, before and after the plan has run."""
    fake.parameter_sizes = ADD_SIZES
    calls, args = Calls(fake, add_record()), tensors()
    for _ in range(3):
        results = calls.planned(*args)
        references = [weakref.ref(tensor) for tensor in (args[0], args[2], args[3], results[0])]
        del results
        args = tensors()
        assert [reference() for reference in references] == [None] * 4
    assert calls.found == 2
