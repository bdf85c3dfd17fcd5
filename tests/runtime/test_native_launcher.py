"""The launcher in native code against the checked way: the driver gets the same, callers get the same results and
errors, and nothing is held, lost or waited for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import os
import random
import struct
import sys
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cuda.bindings import driver as bindings

from ptxtile.errors import ArgumentError, DriverError, LaunchError
from ptxtile.launch_record import (
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
)
from ptxtile.native import calls, code_memory, emit, launcher, object_code, python_facts, torch_facts
from ptxtile.native.calls import CallForm, Latest, NativeCallable
from ptxtile.native.code_memory import CodeMemory
from ptxtile.native.layout import PLANS_IN_A_BLOCK, Argument, Plan
from ptxtile.native.llvm_text import Function
from ptxtile.runtime import context, driver
from ptxtile.runtime.call_plan import UNFIT
from tests.runtime.driver_in_native_code import NAMES, StandIn
from tests.runtime.fake_bindings import PRIMARY, FakeBindings
from tests.runtime.random_calls import RandomCall
from tests.runtime.test_call_plans import (
    ADD_SIZES,
    VALUES,
    WIDTHS,
    WRONG,
    Calls,
    add_record,
    changing_calls,
    numbers_record,
    tensors,
)


class Kernel(NativeCallable):
    """Calls with all checks, by plans from Python, then in native code."""

    def __init__(self, fake: FakeBindings, record: LaunchRecord) -> None:
        self.calls = Calls(fake, record)
        self.latest = Latest()
        self.from_python = 0
        self.form = CallForm(len(record.arguments), (), tuple(range(len(record.arguments))))

    def _call_checked(self, *args: Any) -> Any:
        self.from_python += 1
        found = self.calls.plans.find(args)
        if found is None:
            return self.calls.planned(*args)
        result = found[0].run(args, *found[1:])
        if result is UNFIT:
            return self.calls.checked(*args)
        self._offer(found[0], self.form, args, 5, self.latest)
        return result

    __call__ = _call_checked

    @property
    def plans(self) -> Any:
        return self._plans

    @property
    def in_native_code(self) -> int:
        return calls.calls_without_python(self)

    def learn(self, *args: Any) -> None:
        self(*args)
        self(*args)

    def agree(self, *args: Any, native: bool | None = None) -> None:
        """The driver gets the same from this and from the checked way."""
        before = self.in_native_code
        expected, checked = self.calls.launched(self.calls.checked, *args)
        got, results = self.calls.launched(self, *args)
        assert got == expected
        assert native is None or (self.in_native_code - before == 1) == native
        assert type(results) is type(checked)
        for one, other in zip(_tuple(checked), _tuple(results), strict=True):
            assert type(one) is type(other)
            if isinstance(one, torch.Tensor):
                assert one.shape == other.shape and one.stride() == other.stride()
                assert one.dtype is other.dtype and one.device == other.device
                assert (one is other) == any(one is argument for argument in args)


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.fixture
def fake(monkeypatch, native_stream) -> FakeBindings:
    made = FakeBindings()
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: native_stream.value + device)
    return made


def added(fake: FakeBindings, rows: int = 6, **changes: Any) -> tuple[Kernel, tuple[Any, ...]]:
    """The kernel of add_record, native for the arguments that come with it."""
    fake.parameter_sizes = ADD_SIZES
    kernel, args = Kernel(fake, add_record(**changes)), tensors(rows)
    kernel.learn(*args)
    return kernel, args


def test_the_same_bytes_reach_the_driver(fake) -> None:
    kernel, args = added(fake)
    kernel.agree(*args, native=True)
    kernel.learn(*tensors(9))
    for rows in (6, 9, 9, 6):
        kernel.agree(*tensors(rows), native=True)
    kernel.agree(*tensors(7), native=False)
    assert {map_["aligned"] for map_ in fake.encoded} == {True} and fake.stack == []
    assert kernel.latest.number == 5


def test_a_dependent_launch_has_its_attribute(fake) -> None:
    """The launches of native code carry CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION where the record says."""
    record = add_record()
    first, second = record.launches
    early = replace(first, cluster=(2, 1, 1), dependent_launch=True)
    kernel, args = added(fake, rows=9, launches=(early, replace(second, cooperative=False, dependent_launch=False)))
    kernel.agree(*args, native=True)
    assert [launch["attributes"] for launch in fake.launched[-2:]] == [
        {"CLUSTER_DIMENSION": (2, 1, 1), "PROGRAMMATIC_STREAM_SERIALIZATION": 1},
        {},
    ]


def test_random_records(fake, random_generator) -> None:
    """Random records, each called often: most calls after the second are in native code."""
    draw = random.Random(int(random_generator.integers(2**63)))
    in_native_code = 0
    for _ in range(150):
        call = RandomCall(draw)
        fake.sizes_of = call.parameter_sizes
        kernel = Kernel(fake, call.record)
        with context.current(0):  # a call without tensors needs the plan's context
            for _ in range(6):
                kernel.agree(*call.arguments())
                kernel.agree(*call.arguments())
        assert fake.stack == []
        in_native_code += kernel.in_native_code
    assert in_native_code > 300


def test_whatever_changes_between_calls(fake, random_generator) -> None:
    fake.parameter_sizes = ADD_SIZES
    kernel = Kernel(fake, add_record())
    for arguments in changing_calls(int(random_generator.integers(2**63)), 300):
        kernel.agree(*arguments)
    assert kernel.in_native_code > 50


@pytest.mark.parametrize("dtype", WIDTHS)
def test_numbers(fake, dtype) -> None:
    """Every number gives the same bytes or the same error as with all checks."""
    fake.parameter_sizes = (8, WIDTHS[dtype])
    kernel, a = Kernel(fake, numbers_record(dtype)), torch.zeros(4, dtype=torch.int8)

    def outcome(call, value: Any) -> Any:
        try:
            return kernel.calls.launched(call, a, value)
        except ArgumentError as error:
            return str(error)

    for first in (1, 1.0, True):
        kernel.learn(a, first)
    before = kernel.in_native_code
    for value in VALUES:
        assert outcome(kernel, value) == outcome(kernel.calls.checked, value)
    assert kernel.in_native_code > before or dtype.startswith("float8")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_step_of_the_short_floats(fake, dtype, random_generator) -> None:
    """Numbers at, and close to, the middle between two values of the format, and random ones, against torch."""
    fake.parameter_sizes = (8, 2)
    kernel, a = Kernel(fake, numbers_record(dtype)), torch.zeros(4, dtype=torch.int8)
    kernel.learn(a, 1.0)
    bits = random_generator.integers(0, 2**16 - 1, 400).astype(np.uint16)
    values = torch.from_numpy(bits).view(getattr(torch, dtype)).double()
    neighbours = torch.from_numpy(bits + np.uint16(1)).view(getattr(torch, dtype)).double()
    middles = (values + neighbours) / 2
    singles = torch.cat([values, middles, middles * (1 + 1e-7), middles * (1 - 1e-7)]).float()
    finite = singles[singles.to(getattr(torch, dtype)).isfinite() & singles.isfinite()]
    for value in finite.tolist():
        kernel(a, value)
        expected = torch.tensor([value]).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
        assert fake.launched[-1]["parameters"][1] == expected, value
    assert kernel.from_python == 2


@pytest.mark.parametrize("change", WRONG)
def test_wrong_arguments_after_a_right_call(fake, change) -> None:
    kernel, right = added(fake)
    kernel.agree(*right, native=True)
    wrong = change(*right)
    with pytest.raises(ArgumentError) as expected:
        kernel.calls.checked(*wrong)
    for _ in range(2):
        with pytest.raises(ArgumentError) as caught:
            kernel(*wrong)
        assert str(caught.value) == str(expected.value)
    kernel.agree(*right, native=True)


def test_sizes_that_sums_give(fake) -> None:
    """4 N + 1 elements: N is a parameter of the kernel and its grid."""
    fake.parameter_sizes = (8, 4)
    count = Symbol("N")
    argument = TensorArgument("A", "float32", (SizeOperation("add", SizeOperation("mul", count, 4), 1),), (1,), 4)
    parameters = (KernelParameter("pointer", "A"), KernelParameter("scalar", "N", "int32", count))
    launch = KernelLaunch("k", (count, 1, 1), (32, 1, 1), 0, parameters)
    kernel = Kernel(fake, LaunchRecord("k", (argument,), launches=(launch,)))
    for rows in (3, 20):
        kernel.learn(torch.zeros(4 * rows + 1))
    for rows in (20, 3, 3, 20):
        kernel.agree(torch.zeros(4 * rows + 1), native=True)
        assert fake.launched[-1]["parameters"][1] == rows.to_bytes(4, "little")
    with pytest.raises(ArgumentError, match=r"\(\(N \* 4\) \+ 1\) for a whole number N"):
        kernel(torch.zeros(12))


class Mine(torch.Tensor):
    pass


def anything(draw: random.Random, like: Any) -> Any:
    """An object that a caller might pass by mistake, or a good one of another kind than ``like``."""
    tensor = like if isinstance(like, torch.Tensor) else torch.zeros(6, 8)
    makers = (
        lambda: None, lambda: "text", lambda: b"bytes", lambda: 1, lambda: 1.5, lambda: True, lambda: 10**400,
        lambda: -(2**63) - 1, lambda: 2**64, lambda: math.nan, lambda: -math.inf, lambda: [1, 2], lambda: {},
        lambda: object(), lambda: int, lambda: 1j, lambda: np.float32(2.5), lambda: np.zeros((6, 8), np.float32),
        lambda: np.int64(3), lambda: torch.float32, lambda: tensor.double(), lambda: tensor.to(torch.complex64).conj(),
        lambda: torch._neg_view(tensor), lambda: tensor[..., :0], lambda: tensor[None], lambda: tensor.to("meta"),
        lambda: tensor.to_sparse(), lambda: torch.zeros(6, 8).as_subclass(Mine),
        lambda: torch.nn.Parameter(tensor.float()), lambda: tensor.float().requires_grad_(),
        lambda: torch.zeros(6, 9)[:, 1:], lambda: torch.zeros(8, 6).t(),
        lambda: torch._efficientzerotensor((6, 8)), lambda: torch._to_functional_tensor(tensor),
        lambda: torch.tensor(2.5), lambda: torch.zeros(6, 8), lambda: torch.zeros(49)[1:].view(6, 8),
        lambda: torch.zeros(6, 8, dtype=torch.complex64).conj().imag, lambda: memoryview(bytearray(4)),
        lambda: tensor.expand(2, *tensor.shape), lambda: torch.zeros(6, dtype=torch.float16),
    )  # fmt: skip
    try:
        return draw.choice(makers)()
    except (NotImplementedError, RuntimeError, IndexError, TypeError):  # torch cannot make it of this tensor
        return None


def test_any_arguments(fake, random_generator) -> None:
    """Never a crash, and always what the checked way does: the same launches or the same error."""
    draw = random.Random(int(random_generator.integers(2**63)))
    kernel, right = added(fake)

    def outcome(call, args: tuple[Any, ...]) -> Any:
        try:
            return kernel.calls.launched(call, *args)[0]
        except Exception as error:
            return type(error), str(error)

    for _ in range(600):
        args = list(right)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            position = draw.randrange(4)
            args[position] = anything(draw, args[position])
        if draw.random() < 0.1:
            args = args[: draw.randrange(4)] if draw.random() < 0.5 else [*args, anything(draw, None)]
        assert outcome(kernel, tuple(args)) == outcome(kernel.calls.checked, tuple(args)), args
        if draw.random() < 0.1:
            kernel.agree(*right, native=True)
    assert fake.stack == []


def test_tensors_under_a_transform(fake) -> None:
    kernel, (a, scale, b, d) = added(fake)
    with pytest.raises(ArgumentError, match=r"torch\.func"):
        torch.func.vmap(lambda x: kernel(x, scale, b, d))(torch.zeros(3, 6, 8))
    with pytest.raises(ArgumentError, match=r"torch\.func"):
        torch.func.grad(lambda x: kernel(x, scale, b, d)[0].sum())(a)


def test_modes_and_fake_tensors(fake) -> None:
    """What is allocated under a mode is no tensor with memory: the checked way says what it always says."""
    from torch._subclasses import FakeTensorMode

    kernel, args = added(fake)
    before = kernel.in_native_code
    with FakeTensorMode() as mode:
        made = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        with pytest.raises(ArgumentError, match="has no memory of its own"):
            kernel(*made)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with contextlib.suppress(RuntimeError, ArgumentError):  # the way of Python is not made for it
            kernel(*args)
    assert kernel.in_native_code == before
    kernel.agree(*args, native=True)


def test_parameters_and_tensors_that_require_grad(fake) -> None:
    kernel, (a, scale, b, d) = added(fake)
    kernel.agree(torch.nn.Parameter(a), scale, b.requires_grad_(), d, native=True)
    results = kernel(torch.nn.Parameter(a), scale, b, d)
    assert results[1] is d and not results[0].requires_grad


def test_without_the_keys_of_tensors(fake, monkeypatch) -> None:
    """A torch whose tensors cannot be looked into is asked: the same tensors are refused."""
    made = launcher.get()
    assert made is not None and made.reading.negative_key
    slower = launcher.Launcher(launcher.code(), torch_facts.Reading(made.reading.view, made.reading.stream))
    monkeypatch.setattr(slower, "reading", replace(slower.reading, stream=made.reading.stream))
    monkeypatch.setattr(launcher, "_made", slower)

    class Other(Kernel):
        __call__ = Kernel._call_checked

    fake.parameter_sizes = ADD_SIZES
    kernel, args = Other(fake, add_record()), tensors()
    kernel.learn(*args)
    kernel.agree(*args, native=True)
    with pytest.raises(ArgumentError, match="negative view"):
        kernel(args[0], args[1], torch._neg_view(args[2]), args[3])
    kernel.agree(*args, native=True)


def test_contexts_and_streams(fake, native_stream) -> None:
    kernel, args = added(fake)
    before = len(fake.calls)
    kernel(*args)  # no context is current
    assert fake.calls[before:] == [("push", PRIMARY), ("pop",)]
    with context.current(1):
        native_stream.value = 8
        kernel(*args)
        assert fake.stack == [PRIMARY + 1]
    with context.current(0):
        before = len(fake.calls)
        native_stream.value = 0
        kernel(*args)
        assert len(fake.calls) == before  # nothing is pushed where it is current
    assert kernel.in_native_code == 3 and fake.stack == []
    assert [launched["context"] for launched in fake.launched] == [PRIMARY] * 5
    assert [launched["stream"] for launched in fake.launched[2:]] == [0x5150, 8, 0]


def test_a_thread_without_context(fake) -> None:
    kernel, args = added(fake)
    with context.current(0):
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append((kernel(*args), list(fake.stack))))
        thread.start()
        thread.join()
    assert seen[0][1] == [] and kernel.in_native_code == 1 and fake.launched[-1]["context"] == PRIMARY


@pytest.mark.parametrize("call", ["cuCtxGetCurrent", "cuTensorMapEncodeTiled"])
def test_what_fails_before_a_launch_is_left_to_the_checked_way(fake, call) -> None:
    kernel, args = added(fake)
    fake.results[call] = bindings.CUresult.CUDA_ERROR_INVALID_VALUE
    launches = len(fake.launched)
    with pytest.raises((ArgumentError, DriverError)) as expected:
        kernel.calls.planned(*args)
    with pytest.raises(type(expected.value)) as caught:
        kernel(*args)
    assert type(caught.value) is type(expected.value) and "CUDA_ERROR_INVALID_VALUE" in str(caught.value)
    assert len(fake.launched) == launches and fake.stack == []
    fake.results.clear()
    kernel.agree(*args, native=True)


def test_a_stream_that_is_not_told(fake, native_stream) -> None:
    kernel, args = added(fake)
    native_stream.fails = True
    kernel.agree(*args, native=False)
    native_stream.fails = False
    kernel.agree(*args, native=True)


@pytest.mark.parametrize(
    "result, error", [("CUDA_ERROR_INVALID_VALUE", LaunchError), ("CUDA_ERROR_ILLEGAL_ADDRESS", DriverError)]
)
def test_refused_launches(fake, result, error) -> None:
    kernel, args = added(fake, rows=9)  # with two launches
    from_python = kernel.from_python
    fake.results["cuLaunchKernelEx"] = getattr(bindings.CUresult, result)
    with pytest.raises(error) as expected:
        kernel.calls.checked(*args)
    launches = len(fake.launched)
    with pytest.raises(error) as caught:
        kernel(*args)
    assert str(caught.value) == str(expected.value) and fake.stack == []
    assert len(fake.launched) == launches + 1 and kernel.from_python == from_python
    fake.results.clear()
    kernel.agree(*args, native=True)


@pytest.mark.usefixtures("stand_in")
def test_refusals_leave_nothing_behind(fake) -> None:
    kernel, args = added(fake)
    (plan,) = kernel.plans._owners.values()
    f = Function("launch", ("config", "function", "parameters", "extra"), linkage="")
    f.give(999)  # CUDA_ERROR_UNKNOWN
    code = object_code.compile_text(f.text() + "attributes #0 = { nounwind }\n", "launch")
    memory, start = code_memory.mapped(code.text)
    plan._words[Plan.LAUNCH] = start + code.entry

    def refused(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(LaunchError):
                kernel(*args)

    refused(50)
    gc.collect()
    blocks, counts = sys.getallocatedblocks(), [sys.getrefcount(thing) for thing in (*args, plan, None)]
    refused(2000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500
    after = [sys.getrefcount(thing) for thing in (*args, plan, None)]
    assert all(abs(new - old) < 50 for new, old in zip(after, counts, strict=True)), (counts, after)
    with pytest.raises(LaunchError, match="CUDA_ERROR_UNKNOWN"):
        kernel(*args)
    del memory


@pytest.mark.parametrize("word", [1, 2, 3], ids=["device", "rank and dtype", "alignment"])
def test_tensors_elsewhere_are_others(fake, word) -> None:
    """There is no second device here with memory: the plan is changed to be for tensors of another."""
    kernel, args = added(fake)
    (plan,) = kernel.plans._owners.values()
    kernel.agree(*args, native=True)
    plan._words[Plan.ARGUMENTS + 2 * Argument.COUNT + word] ^= 1 << 33  # of the third argument
    kernel.agree(*args, native=False)


def test_the_second_launch_is_refused(fake) -> None:
    kernel, args = added(fake, rows=9)
    launch = fake._launch

    def second(*arguments: int) -> int:
        launch(*arguments)
        return 1 if len(fake.launched) % 2 == 0 else 0

    refusing = fake.function_of("cuLaunchKernelEx", second)
    (plan,) = kernel.plans._owners.values()
    plan._words[Plan.LAUNCH] = ctypes.cast(refusing, ctypes.c_void_p).value
    fake.launched.clear()
    with pytest.raises(LaunchError, match="launch of kernel 'second' refused: CUDA_ERROR_INVALID_VALUE"):
        kernel(*args)
    assert len(fake.launched) == 2


def test_threads_share_a_plan_and_no_memory(fake) -> None:
    """The driver is slow to read the parameters, so that calls of several threads are in it at once."""
    kernel, _ = added(fake, returns=())
    fake.launched.clear()
    launch, inside, most = fake._launch, [0], [0]

    def slow(*arguments: int) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        inside[0] -= 1
        return launch(*arguments)

    slow_function = fake.function_of("cuLaunchKernelEx", slow)
    (plan,) = kernel.plans._owners.values()
    plan._words[Plan.LAUNCH] = ctypes.cast(slow_function, ctypes.c_void_p).value
    sets = [tensors() for _ in range(6)]

    def work(n: int) -> None:
        a, _, b, d = sets[n]
        for _ in range(10):
            kernel(a, float(n), b, d)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] > 1 and kernel.in_native_code == 60 and len(fake.launched) == 60
    by_address = {sets[n][0].data_ptr().to_bytes(8, "little"): n for n in range(6)}
    for launched in fake.launched:
        a, b_map, scale, _, rows, _, d = launched["parameters"]
        n = by_address[a]
        assert scale == struct.pack("<f", n) and rows == (6).to_bytes(4, "little")
        assert d == sets[n][3].data_ptr().to_bytes(8, "little")
        assert fake.map_of(b_map)["address"] == sets[n][2].data_ptr() + 32
        assert launched["context"] == PRIMARY
    assert fake.stack == []


def sleeping(microseconds: int) -> tuple[Any, int]:
    """A launch that keeps its thread in C for a while, and never gives up the interpreter's lock itself."""
    libc = ctypes.CDLL(None)
    usleep = ctypes.cast(libc.usleep, ctypes.c_void_p).value
    assert usleep is not None
    f = Function("launch", ("config", "function", "parameters", "extra"), linkage="")
    f.give(f.call(usleep, (microseconds,), "i32"))
    code = object_code.compile_text(f.text() + "attributes #0 = { nounwind }\n", "launch")
    memory, start = code_memory.mapped(code.text)
    return memory, start + code.entry


def test_other_threads_run_while_the_driver_launches(fake) -> None:
    kernel, args = added(fake)
    (plan,) = kernel.plans._owners.values()
    memory, plan._words[Plan.LAUNCH] = sleeping(300_000)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)  # gives up the lock

    thread = threading.Thread(target=count)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # no thread takes the lock from another that does not give it up
    try:
        before = counted[0]
        kernel(*args)
        after = counted[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
        del memory
    assert kernel.in_native_code == 1 and after > before


def test_plans_change_while_threads_call(fake, monkeypatch) -> None:
    """More kinds of calls than a block holds, from several threads: plans are made, thrown out and used at once."""
    monkeypatch.setattr(calls, "PLANS_IN_A_BLOCK", 3)
    monkeypatch.setattr(calls, "_AGAIN", 2)
    fake.parameter_sizes = ADD_SIZES
    kernel, wrong = Kernel(fake, add_record()), []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(150):
            rows = draw.randrange(1, 9)
            a, scale, b, d = tensors(rows)
            made, same = kernel(a, scale, b, d)
            if made.shape != (rows, 16) or same is not d:
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and kernel.in_native_code > 20 and len(kernel.plans) == 3
    assert len(kernel.plans._owners) == 3


def test_the_plan_used_last_is_first_and_the_block_is_limited(fake) -> None:
    fake.parameter_sizes = ADD_SIZES
    kernel = Kernel(fake, add_record())
    for rows in range(1, PLANS_IN_A_BLOCK + 3):
        kernel.learn(*tensors(rows))
    assert len(kernel.plans) == PLANS_IN_A_BLOCK and len(kernel.plans._owners) == PLANS_IN_A_BLOCK
    for rows in (3, PLANS_IN_A_BLOCK + 2, 3):
        kernel.agree(*tensors(rows), native=True)
    words = kernel.plans._words
    assert len(set(words[2 : 2 + PLANS_IN_A_BLOCK])) == PLANS_IN_A_BLOCK
    for rows in (1, 2):
        kernel.agree(*tensors(rows), native=False)  # later ones took their places


def test_calls_without_tensors(fake) -> None:
    """They run on torch's current card: in native code where the plan's context is current, else from Python."""
    fake.parameter_sizes = (4,)
    launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (KernelParameter("scalar", "x", "int32"),))
    kernel = Kernel(fake, LaunchRecord("f", (ScalarArgument("x", "int32"),), launches=(launch,)))
    kernel.learn(3)
    kernel.agree(4, native=False)
    with context.current(0):
        kernel.agree(5, native=True)
    with context.current(1):
        for number in range(300):  # and no plan is made a second time for it
            kernel.agree(number, native=False)
    assert len(kernel.plans) == 1


def test_a_forked_child_has_no_plans(fake) -> None:
    kernel, args = added(fake)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel(*args)
            message = "no error"
        except DriverError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "forked" in pipe.read()
    os.waitpid(child, 0)
    kernel.agree(*args, native=True)


def test_plans_keep_no_tensor_alive(fake) -> None:
    kernel, args = added(fake)
    for _ in range(3):
        results = kernel(*args)
        references = [weakref.ref(tensor) for tensor in (args[0], args[2], args[3], results[0])]
        del results
        args = tensors()
        assert [reference() for reference in references] == [None] * 4
    assert kernel.in_native_code == 3


def test_a_kernel_that_goes_takes_its_plans_along(fake) -> None:
    kernel, args = added(fake)
    plans = weakref.ref(kernel.plans)
    (owner,) = kernel.plans._owners.values()
    owner = weakref.ref(owner) if hasattr(owner, "__weakref__") else None
    del kernel
    gc.collect()
    assert plans() is None and (owner is None or owner() is None)
    del args


@pytest.fixture
def stand_in(fake, monkeypatch) -> StandIn:
    """A driver that forgets what it is given, so that many calls leave nothing behind."""
    made = StandIn()
    for name in NAMES:
        fake._by_address[name.encode()] = ctypes.c_void_p(made.addresses[name])
    loaded = launcher.get()
    assert loaded is not None
    monkeypatch.setattr(loaded, "reading", replace(loaded.reading, stream=made.addresses["stream"]))
    return made


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("number", [1.5, 3, -1.0, 10**400, "text", None], ids=str)
def test_nothing_leaks(fake, number) -> None:
    """References to whatever a call touches, and memory: over calls that succeed, that native code gives up half way,
    and that it does not take."""
    kernel, args = added(fake)
    kernel.learn(args[0], 3, *args[2:])
    again = args[0], number, *args[2:]
    succeeds = isinstance(number, float) or number == 3
    watched = (
        None, True, False, *again, float, int, torch.Tensor, kernel, kernel._block, *kernel.plans._owners.values()
    )  # fmt: skip

    def many(count: int) -> None:
        for _ in range(count):
            try:
                kernel(*again)
            except ArgumentError:
                continue

    many(300)
    gc.collect()
    counts, memory = [sys.getrefcount(thing) for thing in watched], resident_bytes()
    many(100_000 if succeeds else 1000)
    gc.collect()
    after = [sys.getrefcount(thing) for thing in watched]
    assert all(abs(new - old) < 50 for new, old in zip(after, counts, strict=True)), (counts, after)
    assert resident_bytes() - memory < 4 * 2**20
    assert not succeeds or kernel.in_native_code > 100_000


# -- the code


def test_the_code_needs_no_linker_on_either_architecture() -> None:
    for triple in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"):
        code = object_code.compile_text(emit.module(), emit.ENTRY, triple)
        assert 0 <= code.entry < len(code.text) < 32_768 and code.entry % 4 == 0


def test_code_that_needs_a_linker_is_refused() -> None:
    for text in (
        "declare i64 @other()\ndefine i64 @call() {\n %a = call i64 @other()\n ret i64 %a\n}\n",
        "@data = global i64 3\ndefine i64 @call() {\n %a = load i64, ptr @data\n ret i64 %a\n}\n",
        "define double @call(double %x) {\n %a = fadd double %x, 2.5\n ret double %a\n}\n",
    ):
        with pytest.raises(Exception, match="would need a linker"):
            object_code.compile_text(text, "call", "x86_64-unknown-linux-gnu")


def test_the_thunk_for_aarch64() -> None:
    """ldr (literal): 01 011 000 imm19 Rt; b: 000101 imm26 (Arm Architecture Reference Manual, C4.1); offsets in
    instructions of four bytes, from where the instruction stands."""
    load, jump, table = struct.unpack("<IIQ", code_memory.thunk("aarch64", 0x1122334455667788, -0x1000))
    assert (load >> 24, load >> 5 & 0x7FFFF, load & 31) == (0b01011000, 8 // 4, 4) and table == 0x1122334455667788
    assert (jump >> 26, jump & 0x3FFFFFF) == (0b000101, (-0x1004 // 4) & 0x3FFFFFF)


# -- where it comes from, and where there is none


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No launcher yet, and an empty disk cache."""
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launcher, "_made", None)
    monkeypatch.setattr(launcher, "_tried", False)
    return tmp_path


def test_the_code_is_kept_on_disk(fresh, monkeypatch) -> None:
    assert launcher.get() is not None
    (file,) = fresh.rglob(launcher._FILE)
    content = file.read_bytes()
    monkeypatch.setattr(launcher, "compiled", lambda: pytest.fail("compiled again"))
    monkeypatch.setattr(launcher, "_tried", False)
    assert launcher.get() is not None
    file.write_bytes(content[:-1] + b"?")  # damaged: not run, made anew
    made = []
    monkeypatch.setattr(launcher, "compiled", lambda: made.append(1) or object_code.MachineCode(b"\xc3", 0))
    launcher.code()
    assert made and file.read_bytes() != content


def test_a_warm_start_does_without_llvmlite(fresh) -> None:
    import subprocess

    assert launcher.get() is not None
    program = (
        "import sys; from ptxtile.native import launcher; assert launcher.get() is not None; "
        "print('llvmlite' in sys.modules)"
    )
    environment = {**os.environ, "PTXTILE_CACHE_DIR": str(fresh)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert result.stdout.strip() == "False"


def _no_code() -> Any:
    raise OSError("no memory to run code in")


@pytest.mark.parametrize(
    "patch",
    [
        lambda m: m.setattr(launcher, "code", _no_code),
        lambda m: m.setattr(launcher, "check", lambda made: _raise(RuntimeError("its self-test failed"))),
        lambda m: m.setattr(code_memory, "mapped", lambda content: _no_code()),
    ],
)
def test_where_it_cannot_be_made_calls_come_from_python(fresh, monkeypatch, caplog, fake, patch) -> None:
    patch(monkeypatch)
    monkeypatch.setattr(launcher, "_tried", False)
    monkeypatch.setattr(launcher, "_made", None)

    class Other(Kernel):
        __call__ = Kernel._call_checked

    fake.parameter_sizes = ADD_SIZES
    kernels = [Other(fake, add_record()) for _ in range(2)]
    with caplog.at_level(logging.INFO, "ptxtile"):
        for kernel in kernels:
            for _ in range(4):
                kernel.agree(*tensors(), native=False)
    said = [record for record in caplog.records if "launched from Python" in record.getMessage()]
    assert len(said) == 1 and said[0].levelno == logging.WARNING


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "patch, reason",
    [
        (lambda m: m.setattr(python_facts.sysconfig, "get_config_var", lambda name: 1), "no global lock"),
        (lambda m: m.setattr(python_facts.sys.implementation, "name", "pypy"), "pypy"),
        (lambda m: m.setattr(launcher.platform, "machine", lambda: "riscv64"), "riscv64"),
        (lambda m: m.setattr(torch_facts, "reading", lambda: None), "DLPack exchange table"),
        (lambda m: m.setattr(python_facts, "TYPE_AT", 0), "reference count"),
    ],
)
def test_where_it_is_not_meant_to_be(fresh, monkeypatch, caplog, patch, reason) -> None:
    with caplog.at_level(logging.INFO, "ptxtile"), monkeypatch.context() as patched:
        patch(patched)
        assert launcher.get() is None and launcher.get() is None
        assert launcher.describe().startswith("from Python: ") and reason in launcher.describe()
    assert [record.levelno for record in caplog.records] == [logging.INFO] and reason in caplog.text


def test_it_can_be_turned_off(fake, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_LAUNCHER", "python")
    fake.parameter_sizes = ADD_SIZES
    kernel = Kernel(fake, add_record())
    for _ in range(4):
        kernel.agree(*tensors(), native=False)


def test_plans_can_be_forgotten(fake) -> None:
    """For ranges in a profiler's timeline, which are made in Python around each call."""
    kernel, args = added(fake)
    kernel.agree(*args, native=True)
    calls.forget()
    kernel.agree(*args, native=False)
    kernel.agree(*args, native=True)


def test_classes_with_calls_of_their_own_keep_them(fake) -> None:
    class Own(Kernel):
        def __call__(self, *args: Any) -> Any:
            return self._call_checked(*args)

    fake.parameter_sizes = ADD_SIZES
    kernel = Own(fake, add_record())
    for _ in range(4):
        kernel.agree(*tensors(), native=False)
    assert Own.__call__ is Own.__dict__["__call__"] and kernel.from_python == 4


def test_the_thunk_jumps_backwards_to_code() -> None:
    """On this machine: a function that gives its fifth parameter, called with four."""
    f = Function("call", ("a", "b", "c", "d", "table"), linkage="")
    f.give(f.add(f.parameters[4], f.parameters[3]))
    code = object_code.compile_text(f.text() + "attributes #0 = { nounwind }\n", "call")
    memory = CodeMemory(code, os.uname().machine, 1 << 40)
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * 4)(memory.entry)
    assert function(1, 2, 3, 4) == (1 << 40) + 4


def test_unused_tensors_and_none(fake) -> None:
    """None has no plan, so the checked way takes it, before and after calls in native code."""
    fake.parameter_sizes = (8, 8)
    parameters = (KernelParameter("pointer", "A"), KernelParameter("pointer", "B"))
    arguments = (
        TensorArgument("A", "float32", (4,), (1,), 4), TensorArgument("B", "float32", (4,), (1,), 4, unused=True)
    )  # fmt: skip
    record = LaunchRecord("f", arguments, launches=(KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, parameters),))
    kernel, a, b = Kernel(fake, record), torch.zeros(4), torch.zeros(4)
    kernel.learn(a, b)
    kernel.agree(a, b, native=True)
    for _ in range(3):
        kernel.agree(a, None, native=False)
    kernel.agree(a, b, native=True)
