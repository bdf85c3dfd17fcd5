"""Kernel objects whose calls go to a fake card: plans are made and used, and nothing else changes.

CPU tensors stand for those of the card: the device type is replaced where a call is read and where it is bound.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import call_keys
from ptxtile.errors import ArgumentError, PtxtileError
from ptxtile.native import calls
from ptxtile.runtime import arguments, context, driver
from ptxtile.runtime.call_plan import CallPlan
from tests.runtime.fake_bindings import FakeBindings

WIDTHS = {"pointer": 8, "tensor_map": 128}
NUMBERS = {"float32": 4, "int32": 4, "int64": 8}


@pytest.fixture(params=["python", "native"])
def fake(monkeypatch, request) -> FakeBindings:
    """Every test with launches from Python alone, and with those in native code."""
    made = FakeBindings()
    if request.param == "native":
        request.getfixturevalue("native_stream").value = 5
    monkeypatch.setenv("PTXTILE_LAUNCHER", request.param)
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: 5)
    bind, read = arguments.bind, call_keys.call_key

    def bind_on_cpu(record, args, kwargs=None, *, device_type):
        return bind(record, args, kwargs, device_type="cpu")

    monkeypatch.setattr(arguments, "bind", bind_on_cpu)
    monkeypatch.setattr(call_keys, "call_key", lambda args: (read(args)[0], "cuda", 0))
    return made


class PlansRun(list[CallPlan]):
    """Every plan that has run from Python, in order; its length counts the calls in native code, too."""

    def __init__(self) -> None:
        self._kept = list(calls._ALL)  # none of them goes away while calls are counted
        self._before = self._native()

    @staticmethod
    def _native() -> int:
        return sum(plans.uses for plans in calls._ALL)

    def __len__(self) -> int:
        return super().__len__() + self._native() - self._before


@pytest.fixture
def plans_run(monkeypatch) -> PlansRun:
    ran = PlansRun()
    run = CallPlan.run

    def recorded(self, *args: Any) -> Any:
        ran.append(self)
        return run(self, *args)

    monkeypatch.setattr(CallPlan, "run", recorded)
    return ran


def expect_parameters(fake: FakeBindings, launch) -> None:
    (one,) = launch.launches
    fake.parameter_sizes = tuple(WIDTHS.get(p.kind) or NUMBERS[p.dtype] for p in one.parameters)


def scaled(**options: Any):
    @ptxtile.jit(target="sm_90a", **options)
    def scale(A, factor, threads=32, tile=32):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        factor: T.float32
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, tile), threads=threads) as bx:
            for i in T.Parallel(tile):
                B[bx * tile + i] = A[bx * tile + i] * factor
        return B

    return scale


def test_the_eager_form(fake, plans_run) -> None:
    scale, a = scaled(), torch.zeros(64)
    fake.parameter_sizes = (8, 8, 4)
    first = scale(a, 2.0)
    expect_parameters(fake, next(iter(scale._kernels.values())).launch)
    assert plans_run == []
    for factor in (3.0, 0.25, 7):
        result = scale(a, factor)
        assert result.shape == (64,) and result.data_ptr() != first.data_ptr()
        assert struct.pack("<f", factor) in fake.launched[-1]["parameters"]
        assert result.data_ptr().to_bytes(8, "little") in fake.launched[-1]["parameters"]
    assert len(plans_run) == 2  # an int is another kind of call, checked the first time
    scale(a, factor=3.0)
    scale(factor=3.0, A=a)
    assert len(plans_run) == 4 and len({id(plan) for plan in plans_run}) == 1
    assert len(scale._kernels) == 1


def test_python_arguments_choose_the_kernel(fake, plans_run) -> None:
    scale, a = scaled(), torch.zeros(64)
    fake.parameter_sizes = (8, 8, 4)
    for _ in range(2):
        for arguments_, block, grid in (
            (((a, 1.0), {}), 32, 2),
            (((a, 1.0, 64), {}), 64, 2),
            (((a, 1.0), {"threads": 64}), 64, 2),
            (((a, 1.0), {"tile": 16, "threads": 64}), 64, 4),
            (((a, 1.0), {"threads": 64, "tile": 16}), 64, 4),
            (((), {"threads": 64, "A": a, "factor": 1.0}), 64, 2),
        ):
            args, kwargs = arguments_
            scale(*args, **kwargs)
            assert fake.launched[-1]["block"] == (block, 1, 1) and fake.launched[-1]["grid"] == (grid, 1, 1)
    assert len(scale._kernels) == 3 and len(plans_run) == 9


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((), {}), ((1,), {}), ((torch.zeros(64),), {}), ((torch.zeros(64), 1.0, 32, 32, 5), {}),
        ((torch.zeros(64), 1.0), {"A": torch.zeros(64)}), ((torch.zeros(64), 1.0), {"other": 1}),
        ((torch.zeros(64), "x"), {}), ((torch.zeros(64), None), {}), ((torch.zeros(64).double(), 1.0), {}),
        ((torch.zeros(64, 1), 1.0), {}), ((torch.zeros(64), 1e40), {}), ((None, 1.0), {}),
        ((torch.zeros(64), torch.zeros(2)), {}), ((torch.zeros(64, device="meta"), 1.0), {}),
    ],
)  # fmt: skip
def test_wrong_arguments_after_a_right_call(fake, args, kwargs) -> None:
    """The same error as of a kernel that was never called before."""
    fresh, used, a = scaled(), scaled(), torch.zeros(64)
    fake.parameter_sizes = (8, 8, 4)
    used(a, 1.0)
    used(a, 1.0)
    with pytest.raises(PtxtileError) as expected:
        fresh(*args, **kwargs)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as caught:
            used(*args, **kwargs)
        assert str(caught.value) == str(expected.value)
        names = {frame.path.name for frame in caught.traceback}
        assert names <= {"test_kernel_calls.py", "user_calls.py"}
    used(a, 1.0)


def test_forms_that_are_alike(fake, random_generator) -> None:
    """As many arguments of the same kinds, but under other names, or without."""
    scale, a = scaled(), torch.zeros(128)
    fake.parameter_sizes = (8, 8, 4)
    forms = (
        ((a, 1.0, 64), {}, 64, 4), ((a, 1.0), {"threads": 64}, 64, 4), ((a, 1.0), {"tile": 64}, 32, 2),
        ((a, 1.0, 64, 32), {}, 64, 4), ((a, 1.0, 32), {"tile": 64}, 32, 2), ((a,), {"factor": 1.0, "tile": 64}, 32, 2),
        ((a,), {"tile": 64, "factor": 1.0}, 32, 2), ((a,), {"factor": 1.0, "threads": 64}, 64, 4),
    )  # fmt: skip
    for position in random_generator.integers(0, len(forms), 150):
        args, kwargs, block, grid = forms[position]
        scale(*args, **kwargs)
        assert fake.launched[-1]["block"] == (block, 1, 1) and fake.launched[-1]["grid"] == (grid, 1, 1)


class Choice:
    """A Python argument that is equal to others of its value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and other.value == self.value

    def __hash__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Choice({self.value})"


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0), (0.0, -0.0, 0), ("a", "b", "ab"), (None, False, 0), (2.5, -2.5, 2.0),
        (torch.float16, torch.bfloat16, "float16"), ((1, 2), (1, 2.0), (1, (2,))), ([1], [2], (1,)),
        (Choice(1), Choice(2), Choice(3)), (float("nan"), float("inf"), 0.0), (2**70, 2**70 + 1, 5),
    ],
    ids=repr,
)  # fmt: skip
def test_python_arguments_that_are_alike(fake, values, random_generator) -> None:
    """Each value has its kernel, which sees it and no other, whatever was called before."""

    def threads_for(choice: Any) -> int:
        return 32 * next(n for n, value in enumerate(values, start=1) if value is choice)

    @ptxtile.jit(target="sm_90a")
    def fill(A, choice=None):
        A: T.Tensor((64,), T.float32)
        with T.Kernel(1, threads=threads_for(choice)):
            for i in T.Parallel(64):
                A[i] = 1.0

    fake.parameter_sizes = (8,)
    for position in [*range(3), *random_generator.integers(0, 3, 40)]:
        value = values[position]
        fill(torch.zeros(64), value) if random_generator.random() < 0.5 else fill(torch.zeros(64), choice=value)
        assert fake.launched[-1]["block"] == (32 * (position + 1), 1, 1)
    assert len(fill._kernels) == 3


def test_defaults_of_numbers(fake) -> None:
    @ptxtile.jit(target="sm_90a")
    def scale(A, factor=0.1, offset=7):
        A: T.Tensor((64,), T.float32)
        factor: T.float32
        offset: T.int32
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                A[i] = A[i] * factor + offset

    fake.parameter_sizes = (8, 4, 4)
    for _ in range(4):
        for args, kwargs, factor, offset in (
            ((), {}, 0.1, 7), ((0.5,), {}, 0.5, 7), ((0.25,), {}, 0.25, 7), ((), {"offset": -1}, 0.1, -1),
            ((2.0, 3), {}, 2.0, 3), ((), {"offset": 4, "factor": -0.5}, -0.5, 4),
        ):  # fmt: skip
            scale(torch.zeros(64), *args, **kwargs)
            assert fake.launched[-1]["parameters"][1:] == [struct.pack("<f", factor), struct.pack("<i", offset)]


def test_overlap_needs_another_variant(fake, plans_run) -> None:
    @ptxtile.jit(target="sm_90a")
    def add(A, B):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] + 1.0

    fake.parameter_sizes = (8, 8)
    memory = torch.zeros(256)
    x, y, shifted = memory[:64], memory[64:128], memory[4:68]
    for _ in range(2):
        add(x, y), add(x, x), add(x, shifted), add(y, x)
    (kernel,) = add._kernels.values()
    # A first call of each kind is checked; add(y, x) is of the same kind as add(x, y), add(x, shifted) as add(x, x).
    assert len(plans_run) == 6 and len(kernel._variants) == 2
    add(x, x)
    overlapping = kernel.variant
    add(x, y)
    assert kernel.variant is not overlapping  # the variant of the latest call, planned or not


def test_dynamic_sizes(fake, plans_run) -> None:
    @ptxtile.jit(target="sm_90a")
    def add(A):
        N = T.dynamic("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < N:
                    B[bx * 32 + i] = A[bx * 32 + i] + 1.0
        return B

    fake.parameter_sizes = (8, 8, 4)
    for size in (64, 96, 64, 96, 33, 64, 0, 0):
        launches = len(fake.launched)
        assert add(torch.zeros(size)).shape == (size,)
        if size:
            assert fake.launched[-1]["grid"] == (-(-size // 32), 1, 1)
            assert fake.launched[-1]["parameters"][2] == size.to_bytes(4, "little")
        else:
            assert len(fake.launched) == launches
    assert len(plans_run) == 3


def test_keywords_of_a_kernel_object(fake, plans_run) -> None:
    @T.prim_func
    def copy(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[i] = A[i]

    kernel = ptxtile.compile(copy, target="sm_90a")
    fake.parameter_sizes = (8, 8)
    a, b = torch.zeros(64), torch.zeros(64)
    kernel(a, b), kernel(A=a, B=b), kernel(a, B=b)
    assert len(plans_run) == 2
    launched = [launch["parameters"] for launch in fake.launched]
    assert launched[0] == launched[1] == launched[2]
    with pytest.raises(ArgumentError, match="unknown argument 'C'"):
        kernel(a, b, C=1)


def test_threads_call_one_kernel(fake) -> None:
    scale = scaled()
    fake.parameter_sizes = (8, 8, 4)
    scale(torch.zeros(64), 1.0)
    fake.launched.clear()
    wrong: list[Any] = []

    def work(n: int) -> None:
        a = torch.zeros(64)
        for _ in range(40):
            result = scale(a, float(n))
            if result.shape != (64,):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(fake.launched) == 200
    counts = [sum(struct.pack("<f", n) in launch["parameters"] for launch in fake.launched) for n in range(1, 5)]
    assert counts == [40] * 4


def test_mutable_defaults_are_read_at_each_call(fake) -> None:
    shape = [32]

    @ptxtile.jit(target="sm_90a")
    def fill(A, tile=shape):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        with T.Kernel(T.ceildiv(N, tile[0]), threads=32) as bx:
            for i in T.Parallel(tile[0]):
                A[bx * tile[0] + i] = 1.0

    fake.parameter_sizes = (8,)
    for tile in (32, 32, 32, 16, 16, 32):
        shape[0] = tile
        fill(torch.zeros(64))
    grids = [launch["grid"][0] for launch in fake.launched]
    assert grids == [2, 2, 2, 4, 4, 2]


@ptxtile.jit(target="sm_90a")
def in_clusters(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 128), threads=128, cluster_dims=2) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] + 1.0
    return B


@ptxtile.jit(target="sm_90a")
def together(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] + 1.0
        T.sync_grid()
        for i in T.Parallel(128):
            B[bx * 128 + i] = B[bx * 128 + i] * 2.0
    return B


@pytest.mark.parametrize(
    "kernel, attributes",
    [
        (in_clusters, {"CLUSTER_DIMENSION": (2, 1, 1), "PROGRAMMATIC_STREAM_SERIALIZATION": 1}),
        (together, {"COOPERATIVE": 1}),
    ],
)
def test_planned_calls_launch_clusters_and_whole_grids(fake, plans_run, kernel, attributes) -> None:
    """The attributes of the checked first call are those of every planned one, for every size."""
    fake.parameter_sizes = (8, 8)
    kernel = ptxtile.jit(kernel.function.function, target="sm_90a")  # without plans for another stand-in
    for size in (1024, 256, 1024):
        for _ in range(3):
            kernel(torch.zeros(size))
            assert fake.launched[-1]["attributes"] == attributes and fake.launched[-1]["grid"] == (size // 128, 1, 1)
    assert len(plans_run) == 2 + 2 + 3
