"""Loading and launching through a fake driver: what the driver is given, in which context, and its refusals."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch
from cuda.bindings import driver as bindings

from ptxtile.errors import CompileError, DriverError, LaunchError, PerformanceWarning, TargetError
from ptxtile.launch_record import (
    Allocation,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)
from ptxtile.runtime import context, driver, module
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.executable import Executable
from ptxtile.runtime.resources import KernelResources
from tests.runtime.fake_bindings import PRIMARY, FakeBindings

PTX = ".version 8.0\n.target sm_90a\n.address_size 64\n"
M, N = Symbol("M"), Symbol("N")
LAUNCH = KernelLaunch(
    "add_kernel",
    (N, M, 1),
    (128, 1, 1),
    100_000,
    (
        KernelParameter("pointer", "A"),
        KernelParameter("tensor_map", "A_map"),
        KernelParameter("scalar", "M", "int32", M),
        KernelParameter("scalar", "scale", "bfloat16"),
        KernelParameter("pointer", "C"),
    ),
    cluster=(2, 1, 1),
    cooperative=True,
)
RECORD = LaunchRecord(
    "add",
    (TensorArgument("A", "float32", (M, N), (N, 1), 4), ScalarArgument("scale", "bfloat16")),
    allocations=(Allocation("C", "float32", (M,)),),
    tensor_maps=(
        TensorMapRecord("A_map", "A", "float32", (N, M), (SizeOperation("mul", N, 4),), (32, 8), swizzle=128),
        TensorMapRecord("unused_map", "A", "float32", (N, M), (SizeOperation("mul", N, 4),), (3, 8)),
    ),
    launches=(LAUNCH, replace(LAUNCH, kernel="second", grid=(SizeOperation("sub", M, 6), 1, 1), cluster=(1, 1, 1))),
    returns=("C",),
)
STREAM = 0x5150


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    made = FakeBindings(sizes=(8, 128, 4, 2, 8))
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "current_stream", lambda device: STREAM + device)
    return made


def binding(rows: int = 6):
    return bind(RECORD, (torch.zeros(rows, 8), 1.5), device_type="cpu")


def test_one_launch(fake) -> None:
    bound = binding()
    result = Executable(PTX, RECORD)(bound)
    assert result is bound.tensors["C"] and result.shape == (6,)
    (launched,) = fake.launched  # the second launch has an empty grid
    assert launched["function"] == "function add_kernel"
    assert launched["grid"] == (8, 6, 1) and launched["block"] == (128, 1, 1) and launched["shared"] == 100_000
    assert launched["stream"] == STREAM and launched["context"] == PRIMARY
    assert launched["attributes"] == {"CLUSTER_DIMENSION": (2, 1, 1), "COOPERATIVE": 1}
    address_a, address_c = bound.tensors["A"].data_ptr(), bound.tensors["C"].data_ptr()
    assert launched["parameters"] == [
        struct.pack("<Q", address_a), b"\x01" * 128, struct.pack("<i", 6), b"\xc0\x3f", struct.pack("<Q", address_c),
    ]  # fmt: skip
    assert launched["alignments"][1] == 0
    assert len(fake.encoded) == 1 and fake.encoded[0]["dimensions"] == (8, 6)
    assert fake.stack == []  # the caller's context is back


def test_a_tensor_map_is_encoded_again_only_for_another_address_or_size(fake) -> None:
    executable, base = Executable(PTX, RECORD), torch.zeros(16, 8)
    for rows in (base[:6], base[:6], base[:7], base[2:8], base[:6]):
        executable(bind(RECORD, (rows, 1.5), device_type="cpu"))
    assert [(map_["address"] - base.data_ptr(), map_["dimensions"]) for map_ in fake.encoded] == [
        (0, (8, 6)), (0, (8, 7)), (64, (8, 6)),
    ]  # fmt: skip
    first_launches = [launched for launched in fake.launched if launched["function"] == "function add_kernel"]
    assert [launched["parameters"][1][0] for launched in first_launches] == [1, 1, 2, 3, 1]


def test_both_launches_in_order(fake) -> None:
    Executable(PTX, RECORD)(binding(rows=9))
    assert [launched["function"] for launched in fake.launched] == ["function add_kernel", "function second"]
    assert fake.launched[1]["grid"] == (3, 1, 1) and fake.launched[1]["attributes"] == {"COOPERATIVE": 1}


def test_loaded_once_with_its_attributes(fake) -> None:
    executable = Executable(PTX, RECORD)
    for _ in range(3):
        executable(binding())
    loads = [call for call in fake.calls if call[0] == "load"]
    assert len(loads) == 1 and loads[0][3] == PRIMARY
    assert loads[0][1] == PTX.encode() + b"\0"
    assert loads[0][2]["GENERATE_LINE_INFO"] == 1 and loads[0][2]["LOG_VERBOSE"] == 1
    sets = [call[1:] for call in fake.calls if call[0] == "set"]
    assert sets == [
        ("function add_kernel", "MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000),
        ("function second", "MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000),
    ]
    figures = executable.resources()["add_kernel"]
    assert (figures.registers, figures.local_bytes, figures.static_shared_bytes) == (40, 16, 64)


def test_nothing_runs_for_an_empty_grid(fake) -> None:
    result = Executable(PTX, RECORD)(
        bind(replace(RECORD, launches=(LAUNCH,)), (torch.zeros(0, 8), 1.0), device_type="cpu")
    )
    assert result.shape == (0,) and fake.calls == [] and fake.launched == []


def test_an_argument_passed_as_none_is_a_null_pointer(fake) -> None:
    fake.parameter_sizes = (8,)
    launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (KernelParameter("pointer", "A"),))
    what = LaunchRecord("f", (TensorArgument("A", "int8", (4,), (1,), 1, unused=True),), launches=(launch,))
    Executable(PTX, what)(bind(what, (None,), device_type="cpu"))
    assert fake.launched[0]["parameters"] == [bytes(8)]
    assert not [call for call in fake.calls if call[0] == "set"]  # 48 KB and less need no attribute


@pytest.mark.parametrize(
    "result, error, part",
    [
        ("CUDA_ERROR_INVALID_VALUE", LaunchError, "launch of kernel 'add_kernel' refused"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", LaunchError, "grid (8, 6, 1), block (128, 1, 1), cluster (2, 1, 1)"),
        ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", LaunchError, "T.sync_grid must fit on the card"),
        ("CUDA_ERROR_INVALID_CLUSTER_SIZE", LaunchError, "a multiple of cluster_dims"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", DriverError, "earlier work on the card failed"),
        ("CUDA_ERROR_LAUNCH_FAILED", DriverError, "earlier work on the card failed"),
    ],
)
def test_refused_launches(fake, result, error, part) -> None:
    fake.results["cuLaunchKernelEx"] = getattr(bindings.CUresult, result)
    with pytest.raises(error) as caught:
        Executable(PTX, RECORD)(binding())
    assert part in str(caught.value) and f"{result} (" in str(caught.value) and str(caught.value).startswith("add: ")
    assert fake.stack == []


def test_a_refused_module_shows_the_log(fake) -> None:
    fake.results["cuModuleLoadDataEx"] = bindings.CUresult.CUDA_ERROR_INVALID_PTX
    fake.errors, fake.info = "ptxas application ptx input, line 5; fatal: Parsing error", "info line"
    with pytest.raises(CompileError) as caught:
        Executable(PTX, RECORD)(binding())
    assert "CUDA_ERROR_INVALID_PTX" in str(caught.value)
    assert "line 5; fatal: Parsing error" in str(caught.value) and "info line" in str(caught.value)
    assert fake.stack == []


@pytest.mark.parametrize(
    "version, isa, accepted",
    [(12000, "8.0", True), (12000, "8.1", False), (12060, "8.5", True), (12060, "8.6", False), (13000, "9.0", True)],
)
def test_ptx_newer_than_the_driver_is_not_loaded(fake, version, isa, accepted) -> None:
    """PTX ISA, release history: CUDA 12.0 has 8.0, CUDA 12.6 has 8.5, CUDA 13.0 has 9.0."""
    fake.driver_version = version
    executable = Executable(PTX.replace("8.0", isa), RECORD)
    if accepted:
        executable(binding())
        return
    with pytest.raises(TargetError) as caught:
        executable(binding())
    assert f".version {isa}" in str(caught.value) and "update the driver" in str(caught.value)
    assert not [call for call in fake.calls if call[0] == "load"]


@pytest.mark.parametrize(
    "name, capability, runs",
    [
        ("sm_80", (9, 0), True), ("sm_90", (9, 0), True), ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False),
        ("sm_90", (10, 0), True), ("sm_100a", (9, 0), False), ("sm_100a", (10, 0), True), ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True), ("sm_100f", (12, 0), False), ("sm_120a", (12, 0), True), ("sm_89", (8, 6), False),
    ],
)  # fmt: skip
def test_targets(name, capability, runs) -> None:
    """PTX ISA, «.target»: generic PTX is forward compatible, ``a`` is for one architecture, ``f`` for one family."""
    ptx = f".version 8.8\n.target {name}\n"
    if runs:
        module.check_target(ptx, capability)
    else:
        with pytest.raises(TargetError, match=f"compiled for {name}"):
            module.check_target(ptx, capability)


def test_too_much_shared_memory(fake) -> None:
    what = replace(RECORD, launches=(replace(LAUNCH, shared_bytes=232_448),))
    with pytest.raises(LaunchError) as caught:
        Executable(PTX, what).load(0)
    assert "at most 232448 bytes" in str(caught.value) and "232512 bytes (232448 dynamic, 64 static)" in str(
        caught.value
    )


def test_a_cluster_of_more_than_eight(fake) -> None:
    Executable(PTX, replace(RECORD, launches=(replace(LAUNCH, cluster=(16, 1, 1)),))).load(0)
    assert ("set", "function add_kernel", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1) in fake.calls


LOST = "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to wgmma pipeline crossing "
LOST += "function boundary at a function call in the function 'add_kernel'"
IGNORED = "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."
SPILLED = "    24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads"
FIGURES = """\
ptxas info    : Compiling entry function 'add_kernel' for 'sm_90a'
ptxas info    : Function properties for add_kernel
ptxas         . {stack}
ptxas info    : Used 40 registers, used 1 barriers
"""
CLEAN = FIGURES.format(stack="    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
PLACED = """\
.visible .entry add_kernel()
{
.loc 1 12 9
ret;
}
.file 1 "/home/user/add.py"
"""


@pytest.mark.parametrize(
    "line, part", [(LOST, "wait for each other"), (IGNORED, "ignored setmaxnreg"), (SPILLED, "local memory")]
)
def test_lost_performance_is_a_warning_at_the_user_s_line(fake, line, part) -> None:
    fake.info = FIGURES.format(stack=line) if line is SPILLED else f"ptxas info    : {line}\n{CLEAN}"
    executable = Executable(PTX + PLACED, RECORD)
    with pytest.warns(PerformanceWarning, match=part) as caught:
        executable.load(0)
    assert len(caught) == 1 and line.strip().removeprefix("24 bytes stack frame, ")[:8] in str(caught[0].message)
    assert line in executable.log()
    assert (caught[0].filename, caught[0].lineno) == ("/home/user/add.py", 12)
    kernels = "add_kernel" if line is not IGNORED else "add_kernel, second"  # that sentence names no function
    assert f"kernel {kernels} (/home/user/add.py:12:9): " in str(caught[0].message)
    executable.load(0)  # once for each time that it is loaded


@pytest.mark.parametrize("log", [CLEAN, ""])
def test_an_ordinary_log_is_no_warning(fake, log, recwarn) -> None:
    fake.info = log
    Executable(PTX + PLACED, RECORD).load(0)
    assert not recwarn.list


def test_resources(fake) -> None:
    """The driver's figures; spills where its JIT has assembled, unknown where it took the code from its cache."""
    fake.info = FIGURES.format(stack=SPILLED)
    with pytest.warns(PerformanceWarning):
        found = Executable(PTX, RECORD).resources(0)
    assert found["add_kernel"] == KernelResources(
        registers=40, local_bytes=16, spill_stores=20, spill_loads=28, static_shared_bytes=64,
        dynamic_shared_bytes=100_000, threads=128, ptx_isa=(8, 0), constant_bytes=400, max_threads=1024,
    )  # fmt: skip
    assert found["add_kernel"].shared_bytes == 100_064
    fake.info = ""
    figures = Executable(PTX, RECORD).resources(0)["second"]
    assert figures.spill_stores is None and figures.spill_loads is None and figures.registers == 40
