"""Arrays of other libraries as arguments: stand-ins that speak the protocols over CPU memory, and a fake card."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import call_keys
from ptxtile.errors import ArgumentError, DriverError
from ptxtile.runtime import arguments, context, driver, foreign_arrays
from tests.runtime.fake_bindings import PRIMARY, FakeBindings

STREAM = 0x5150


def adding(**options: Any):
    @ptxtile.jit(target="sm_80", **options)
    def add(A, B, C):
        """C = A + B, and C is given back."""
        M, N = T.const("M, N")
        A: T.Tensor((M, N), T.float32)
        B: T.Tensor((M, N), T.float32)
        C: T.Tensor((M, N), T.float32)
        with T.Kernel(M, threads=32) as row:
            for j in T.Parallel(N):
                C[row, j] = A[row, j] + B[row, j]
        return C

    return add


class DLPack:
    """A producer over the memory of a NumPy array or tensor, said to be on ``device``; it notes what it is asked."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        stream = {"stream": None} if "stream" in options else {}
        return self.array.__dlpack__(**{**options, **stream})


class OldDLPack(DLPack):
    """One that knows nothing of versions."""

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked.append({"stream": stream})
        return self.array.__dlpack__()


class CudaArray:
    """A device array whose pointer is that of CPU memory."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self.array = array
        self.interface = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3,
            "strides": None if array.flags.c_contiguous else array.strides, "stream": None, **changes,
        }  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface


def arrays() -> list[np.ndarray]:
    made = np.random.default_rng(3).standard_normal((3, 6, 40), dtype=np.float32)
    return [*made[:2], np.full((6, 40), np.nan, np.float32)]


# ---------------------------------------------------------------- in the simulator


@pytest.mark.parametrize("wrap", [lambda a: a, DLPack, OldDLPack, lambda a: DLPack(torch.from_numpy(a))])
def test_cpu_arrays_run_in_the_simulator_on_their_own_memory(wrap) -> None:
    a, b, c = arrays()
    passed = wrap(c)
    assert adding()(wrap(a), torch.from_numpy(b), passed) is passed
    np.testing.assert_array_equal(c, a + b)


def test_views_keep_their_strides() -> None:
    a, b, c = arrays()
    wide = np.zeros((40, 12), np.float32)
    wide[:, ::2] = a.T
    adding()(DLPack(wide[:, ::2].T), b, c)
    np.testing.assert_array_equal(c, a + b)


def test_a_read_only_array_is_read_and_never_written() -> None:
    a, b, c = arrays()
    kernel = adding()
    for array in (a, b):
        array.setflags(write=False)
    kernel(a, DLPack(b), c)
    np.testing.assert_array_equal(c, a + b)
    for written in (a, DLPack(a)):
        with pytest.raises(ArgumentError, match=r"add: argument 'C' is read-only, and the kernel writes it(.|\n)*copy"):
            kernel(a, b, written)


WRONG = [
    lambda a: a.astype(np.float64),
    lambda a: a[0],
    lambda a: np.concatenate([a, a]),
    lambda a: a[:, :20],
    lambda a: a.astype(np.int32),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("wrap", [lambda a: a, DLPack])
def test_the_same_errors_as_of_tensors(wrong, wrap) -> None:
    a, b, c = arrays()
    messages = []
    for convert in (torch.from_numpy, wrap):
        with pytest.raises(ArgumentError) as caught:
            adding()(a, convert(wrong(b)), c)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "argument 'B' (2 of 3)" in messages[0]


@pytest.mark.parametrize(
    "value, part",
    [
        (np.zeros((6, 40), np.float32)[::-1], "negative"),
        (np.zeros((6, 40), np.dtype(">f4")), "byte order"),
        (np.zeros((6, 40), np.dtype([("x", "f4")])), "ndarray cannot be shared"),
        ([[1.0]], "not a tensor"),
    ],
)
def test_what_cannot_be_shared(value, part) -> None:
    a, _, c = arrays()
    with pytest.raises(ArgumentError, match=f"argument 'B' .2 of 3.: (.|\n)*{part}"):
        adding()(a, value, c)


def test_check_takes_them() -> None:
    a, b, c = arrays()
    assert adding().check(a, DLPack(b), c, seeds=1).clean
    assert np.isnan(c).all()


# ---------------------------------------------------------------- on a fake card


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    """Tensors on the CPU stand for those of the card, as in test_kernel_calls."""
    made = FakeBindings(sizes=(8, 8, 8))
    made.stack.append(PRIMARY)
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: STREAM)
    bind, read = arguments.bind, call_keys.call_key
    monkeypatch.setattr(arguments, "bind", lambda record, args, kwargs=None, *, device_type: bind(
        record, args, kwargs, device_type="cpu"))  # fmt: skip
    monkeypatch.setattr(call_keys, "call_key", lambda args: (read(args)[0], "cuda", 0))
    monkeypatch.setattr(foreign_arrays, "tensor_over", on_cpu)
    return made


def on_cpu(export: Any, device: int) -> torch.Tensor:
    """What torch makes on a card: a tensor of the described memory that keeps ``export``."""
    described = export.__cuda_array_interface__
    assert described["data"][1] is False and described["version"] == 2 and "stream" not in described

    class Interface:
        def __init__(self) -> None:
            self.owner = export
            self.__array_interface__ = {**described, "version": 3}  # the same dictionary, but for the stream

    return torch.from_numpy(np.asarray(Interface()))


def addresses(fake: FakeBindings) -> list[int]:
    return [struct.unpack("Q", content)[0] for content in fake.launched[-1]["parameters"]]


def test_device_arrays_reach_the_launch(fake) -> None:
    a, b, c = arrays()
    passed = CudaArray(c)
    kernel = adding()
    for _ in range(3):
        assert kernel(CudaArray(a), DLPack(b, (2, 0)), passed) is passed
        assert addresses(fake) == [array.ctypes.data for array in (a, b, c)]
        assert fake.launched[-1]["stream"] == STREAM
    assert not [call for call in fake.calls if call[0] in ("record", "wait")]
    assert len([call for call in fake.calls if call[0] == "load"]) == 1


@pytest.mark.parametrize(
    "stream, current, waits", [(1, 0, False), (1, STREAM, True), (2, STREAM, True), (0x77, STREAM, True),
                               (0x77, 0, True), (STREAM, STREAM, False), (None, STREAM, False)],
)  # fmt: skip
def test_the_stream_of_an_interface(fake, monkeypatch, stream, current, waits) -> None:
    """torch's current stream waits for the producer's before the launch, with the card's context current."""
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: current)
    fake.device_of_pointers = 0
    a, b, c = arrays()
    adding()(CudaArray(a, stream=stream), torch.from_numpy(b), torch.from_numpy(c))
    ordered = [call for call in fake.calls if call[0] in ("record", "wait")]
    assert ordered == ([("record", stream), ("wait", current, PRIMARY)] if waits else [])


def test_the_stream_is_of_version_3(fake) -> None:
    a, b, c = arrays()
    adding()(CudaArray(a, stream=7, version=2), torch.from_numpy(b), torch.from_numpy(c))
    assert not [call for call in fake.calls if call[0] == "record"]


@pytest.mark.parametrize("current, told", [(0, 1), (2, 2), (STREAM, STREAM)])
def test_the_stream_for_dlpack(fake, monkeypatch, current, told) -> None:
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: current)
    a, b, c = arrays()
    one, other = DLPack(a, (2, 0)), OldDLPack(b, (2, 0))
    adding()(one, other, torch.from_numpy(c))
    assert one.asked == [{"max_version": (1, 0), "stream": told}] and other.asked == [{"stream": told}]


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"stream": 0}, "its stream is 0, which the protocol forbids"),
        ({"mask": object()}, "has a mask"),
        ({"data": (0, False)}, "its address is null"),
        ({"typestr": "<V2"}, "cannot be shared"),
    ],
)
def test_what_an_interface_may_not_say(fake, changes, part) -> None:
    a, b, c = arrays()
    with pytest.raises(ArgumentError, match=f"argument 'A' .1 of 3.: (.|\n)*{part}"):
        adding()(CudaArray(a, **changes), torch.from_numpy(b), torch.from_numpy(c))
    assert not fake.launched


def test_a_read_only_interface(fake) -> None:
    a, b, c = arrays()
    kernel = adding()
    kernel(CudaArray(a, data=(a.ctypes.data, True)), torch.from_numpy(b), CudaArray(c))
    assert len(fake.launched) == 1
    with pytest.raises(ArgumentError, match="argument 'C' is read-only"):
        kernel(CudaArray(a), torch.from_numpy(b), CudaArray(c, data=(c.ctypes.data, True)))
    assert len(fake.launched) == 1


def test_misaligned_and_strided_interfaces(fake) -> None:
    """Other variants for them, as for tensors: the launches pass the address, and the stride where it is needed."""
    _, b, c = arrays()
    memory = np.zeros(6 * 40 + 1, np.float32)
    one = memory[1:].reshape(6, 40)
    kernel = adding()
    kernel(CudaArray(one), torch.from_numpy(b), torch.from_numpy(c))
    assert addresses(fake)[0] == one.ctypes.data
    wide = np.zeros((6, 80), np.float32)
    fake.parameter_sizes = (8, 8, 8, 4)
    kernel(CudaArray(wide[:, :40]), torch.from_numpy(b), torch.from_numpy(c))
    assert 80 in struct.unpack("I", fake.launched[-1]["parameters"][3])


@pytest.mark.parametrize("wrap", [CudaArray, lambda a: DLPack(a, (2, 0))])
def test_an_array_lives_until_all_is_enqueued(fake, wrap) -> None:
    a, b, c = arrays()
    alive = []

    class Owned(np.ndarray):
        """An array that can be referred to weakly, as its memory's owner."""

    owner = a.copy().view(Owned)
    reference = weakref.ref(owner)
    launch = fake._launch
    fake._launch = lambda *args: (alive.append(reference() is not None), launch(*args))[1]
    kernel = adding()
    kernel(wrap(owner), torch.from_numpy(b), torch.from_numpy(c))
    del owner
    gc.collect()
    assert alive == [True] and reference() is None


def test_memory_of_no_card(fake) -> None:
    fake.results["cuPointerGetAttribute"] = driver._import_bindings().CUresult.CUDA_ERROR_INVALID_VALUE
    a, b, c = arrays()
    with pytest.raises(DriverError, match="cuPointerGetAttribute"):
        adding()(CudaArray(a), torch.from_numpy(b), torch.from_numpy(c))


def test_flags_of_capsules() -> None:
    array = np.zeros(3)
    assert foreign_arrays._flags(array.__dlpack__()) == 0
    assert foreign_arrays._flags(array.__dlpack__(max_version=(1, 0))) == 0
    array.setflags(write=False)
    assert foreign_arrays._flags(array.__dlpack__(max_version=(1, 0))) == 1
