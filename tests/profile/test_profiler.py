"""``kernel.get_profiler()`` in the simulator: arguments, comparison with a reference, figures."""

from __future__ import annotations

import logging

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import ArgumentError
from ptxtile.profile import Profiler, TensorSupplyType, figures, ranges
from ptxtile.profile.comparison import copied, difference, poison
from ptxtile.profile.supply import WHOLE_RANGE, default_device, make_arguments, make_tensor
from ptxtile.runtime.dtypes import FORMATS, torch_dtype

CPU = torch.device("cpu")


@ptxtile.jit(target="sm_90a")
def scaled_sum(A, B, factor: T.float32, threads=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=threads) as row:
        for j in T.Parallel(N):
            C[row, j] = A[row, j] + B[row, j] * factor
    return C


@T.prim_func
def double_in_place(A: T.Tensor((T.dynamic("m"), 32), "float32")):
    with T.Kernel(A.shape[0], threads=32) as row:
        for j in T.Parallel(32):
            A[row, j] = A[row, j] * 2


@pytest.fixture
def profiler() -> Profiler:
    return Profiler(scaled_sum.specialize(M=4, N=40), device="cpu", scalars={"factor": 3.0})


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("supply", list(TensorSupplyType))
def test_values_are_of_the_kind(dtype: str, supply: TensorSupplyType) -> None:
    made = make_tensor((40, 50), dtype, supply, CPU, torch.Generator().manual_seed(1))
    assert made.shape == (40, 50) and made.dtype is torch_dtype(dtype)
    values = made.double()
    assert torch.isfinite(values).all()
    kind = FORMATS[dtype].kind
    if supply in (TensorSupplyType.Zero, TensorSupplyType.One):
        # e8m0 has no zero; its smallest number is 2⁻¹²⁷
        assert torch.allclose(values, torch.full_like(values, supply is TensorSupplyType.One), atol=1e-38)
    elif dtype == "float8_e8m0fnu":
        assert (values > 0).all()
    elif kind != "float" or supply is TensorSupplyType.Integer:
        assert (values == values.round()).all() and values.abs().max() <= WHOLE_RANGE and values.unique().numel() > 1
    else:
        assert values.unique().numel() > 10 and values.min() < 0 < values.max()
        if supply in (TensorSupplyType.Uniform, TensorSupplyType.Auto):
            assert values.abs().max() <= 1
        else:
            assert values.std() == pytest.approx(1.0, rel=0.2)


def test_arguments_are_the_same_for_a_seed(profiler: Profiler) -> None:
    first, second = profiler.inputs(), profiler.inputs()
    assert all(torch.equal(a, b) for a, b in zip(first[:2], second[:2], strict=True)) and first[2] == 3.0
    other = Profiler(profiler.kernel, device="cpu", seed=1).inputs()
    assert not torch.equal(other[0], first[0]) and other[2] == 1


def test_strides_are_as_declared() -> None:
    @T.prim_func
    def strided(A: T.StridedTensor((4, 8), (16, 1), "float32"), B: T.Tensor((4, 8), "float32")):
        with T.Kernel(4, threads=32) as row:
            for j in T.Parallel(8):
                B[row, j] = A[row, j]

    kernel = ptxtile.compile(strided, target="sm_90a", out_idx=[-1])
    (made,) = make_arguments(kernel.signature, {}, device="cpu")
    assert made.stride() == (16, 1)
    Profiler(kernel, device="cpu").assert_allclose(lambda a: a.clone(), atol=0, rtol=0)


def test_a_size_that_nobody_gives_is_named() -> None:
    kernel = ptxtile.compile(double_in_place, target="sm_90a")
    with pytest.raises(ArgumentError, match="(?s)size m of A.*dynamic_symbolic_constraints"):
        kernel.get_profiler().inputs()
    assert Profiler(kernel, device="cpu").inputs({"m": 3})[0].shape == (3, 32)


def test_one_call_and_a_right_reference(profiler: Profiler) -> None:
    a, b, factor = profiler.inputs()
    torch.testing.assert_close(profiler.run_once(), a + b * factor)
    torch.testing.assert_close(profiler.run_once(lambda a, b, factor: a - b), a - b)
    profiler.assert_allclose(lambda a, b, factor: a + b * factor)
    profiler.assert_consistent(3)


def test_a_wrong_reference_is_told_with_place_and_values(profiler: Profiler) -> None:
    def reference(a, b, factor):
        wanted = a + b * factor
        wanted[2, 5] += 1
        return wanted

    profiler.assert_allclose(reference)  # one of 160 is fewer than a hundredth
    with pytest.raises(AssertionError, match=r"1 of 160 elements.*\[2, 5\]"):
        profiler.assert_allclose(reference, max_mismatched_ratio=0.0)


def test_arguments_that_are_changed_are_results() -> None:
    kernel = ptxtile.compile(double_in_place, target="sm_90a")
    profiler = Profiler(kernel, device="cpu")
    tensor = torch.randn(3, 32)
    before = tensor.clone()
    profiler.assert_allclose(lambda a: a * 2, [tensor])
    profiler.assert_allclose(lambda a: a.mul_(2), [tensor])
    with pytest.raises(AssertionError, match="elements differ"):
        profiler.assert_allclose(lambda a: a * 3, [tensor])
    assert torch.equal(tensor, before)


def test_the_users_own_check(profiler: Profiler) -> None:
    seen = []
    profiler.manual_assert_close(
        lambda a, b, factor: a, manual_check_prog=lambda got, wanted: seen.append((got, wanted))
    )
    (got,), (wanted,) = seen[0]
    a, b, factor = profiler.inputs()
    torch.testing.assert_close(got, a + b * factor)
    assert torch.equal(wanted, a)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_nan_is_never_near(broken: float) -> None:
    wanted = torch.zeros(1000)
    got = wanted.clone()
    got[17] = broken
    said = difference([got], [wanted])
    assert said is not None and "[17]" in said
    assert difference([got], [got]) is None  # where the reference has it too
    assert difference([wanted], [wanted, wanted]) == "1 results, where the reference has 2"
    assert "shape" in (difference([wanted], [wanted[:-1]]) or "")


@pytest.mark.parametrize("dtype", sorted({element.torch_name for element in FORMATS.values()}))
def test_poison_leaves_no_element_and_copies_are_apart(dtype: str) -> None:
    tensor = torch.zeros(7, 3).to(getattr(torch, dtype))[:, :2]
    (copy,) = copied([tensor])
    poison([copy])
    assert copy.stride() == tensor.stride() and (tensor.double() == torch.zeros(7, 2).to(tensor.dtype).double()).all()
    assert (copy.double() != tensor.double()).all()


def test_simulated_times_are_said_to_be(profiler: Profiler, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ptxtile"):
        low, high = profiler.do_bench(warmup=0.1, rep=0.1, n_repeat=3, quantiles=[0.0, 1.0])
    assert 0 < low <= high and "wall time" in caplog.text
    assert profiler.do_bench(lambda a, b, factor: a + b, warmup=0.1, rep=0.1) < low  # torch adds faster


def test_figures_of_a_call(profiler: Profiler) -> None:
    found = profiler.figures(latency=0.001, flops=2 * 160)
    assert found.bytes == 3 * 160 * 4  # two arguments and a result
    assert found.gigabytes_per_second == pytest.approx(1920 / 1e-6 / 1e9)
    assert found.teraflops == pytest.approx(320 / 1e-6 / 1e12)
    (resources,) = found.resources.values()
    (occupancy,) = found.occupancy.values()
    assert resources.registers > 0 and occupancy.blocks == 32 and occupancy.share == 0.5  # 32 CTAs of a warp of 64
    assert "GB/s" in str(found) and "registers" in str(found)
    assert profiler.figures(latency=0.001, bytes=7).bytes == 7


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (128, 32, 0, 16),  # 2048 threads
        (32, 32, 0, 32),  # the most CTAs
        (128, 255, 0, 2),  # 8192 registers of a warp, 64 Ki in all
        (256, 168, 0, 1),  # 5376 · 8 = 43008
        (128, 32, 100 * 1024, 2),  # 228 KiB, 101 each
        (1024, 65, 0, 0),  # 2304 · 32 > 64 Ki: does not run
    ],
)
def test_occupancy_is_the_occupancy_calculators(threads: int, registers: int, shared: int, blocks: int) -> None:
    """Figures of the CUDA occupancy calculator for compute capability 9.0."""
    from ptxtile.profile.figures import counted_occupancy
    from ptxtile.runtime.resources import KernelResources
    from ptxtile.target import get

    found = KernelResources(registers, 0, 0, 0, 0, shared, threads, (8, 0))
    occupancy = counted_occupancy(get("sm_90a"), found)
    assert (occupancy.blocks, occupancy.warps) == (blocks, blocks * threads // 32)
    assert occupancy.share == pytest.approx(blocks * threads / 2048)


def test_the_driver_is_asked_for_occupancy() -> None:
    from ptxtile.launch_record import KernelLaunch
    from ptxtile.profile.figures import driver_occupancy
    from ptxtile.runtime.driver import Driver

    asked = []

    class Bindings:
        class CUdevice_attribute:
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = "threads"

        @staticmethod
        def cuDeviceGet(device):
            return 0, device

        @staticmethod
        def cuDeviceGetAttribute(attribute, handle):
            return 0, {"threads": 2048}[attribute]

        @staticmethod
        def cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared):
            asked.append((function, threads, shared))
            return 0, 3

    launch = KernelLaunch("k", (1, 1, 1), (128, 2, 1), 4096, ())
    found = driver_occupancy(Driver(Bindings), 0, "function", launch)
    assert asked == [("function", 256, 4096)]
    assert (found.blocks, found.warps, found.share, found.by_driver) == (3, 24, 0.375, True)


def test_no_assembler_and_no_card_leave_figures_empty(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxtile.inspect import machine_code

    def missing(*_: object, **__: object) -> None:
        raise machine_code.ToolMissing("no ptxas")

    monkeypatch.setattr(machine_code, "resources", missing)
    found = figures(scaled_sum.specialize(M=4, N=48), Profiler(scaled_sum.specialize(M=4, N=48)).inputs(), 1.0)
    if default_device().type == "cpu":
        assert not found.resources and not found.occupancy and found.latency == 1.0


def test_calls_are_inside_of_named_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(events or True))
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", events.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: events.append("pop"))
    a, b = torch.randn(2, 4, 40)
    kernel = scaled_sum.specialize(M=4, N=40)
    scaled_sum(a, b, 2.0)
    assert events == []
    with ranges.named_ranges():
        scaled_sum(a, b, 2.0)
        kernel(a, b, 2.0)
        with pytest.raises(ArgumentError):
            kernel(a, b)
    assert events == ["scaled_sum", "pop"] * 3
    scaled_sum(a, b, 2.0)
    assert len(events) == 6


def test_tilelangs_names() -> None:
    from ptxtile import profiler as module

    assert module.Profiler is Profiler and ptxtile.TensorSupplyType.Auto is TensorSupplyType.Auto
    assert ptxtile.profile.do_bench is module.do_bench
    assert callable(scaled_sum.specialize(M=4, N=40).get_profiler(TensorSupplyType.Integer).do_bench)
