"""What the driver's JIT says about real modules: ptxas's own sentences, as warnings, and figures on the kernel."""

from __future__ import annotations

import uuid
import warnings

import pytest
import torch

from ptxtile.errors import PerformanceWarning
from ptxtile.inspect.subject import Subject
from ptxtile.inspect.views import View, show
from ptxtile.launch_record import KernelLaunch, KernelParameter, LaunchRecord
from ptxtile.runtime.executable import Executable
from tests.gemm import kernels as gemm_kernels
from tests.runtime import test_jit_log as texts


@pytest.fixture(autouse=True)
def needs_hopper(card) -> None:
    if torch.cuda.get_device_capability(card) != (9, 0):
        pytest.skip("the PTX is for compute capability 9.0")


def executable(ptx: str, threads: int = 128) -> Executable:
    """A module whose kernel has a name of its own, so that the driver's cache does not have it."""
    name = f"gemm_{uuid.uuid4().hex}"
    parameters = (KernelParameter("scalar", "p", "int64", 0), KernelParameter("scalar", "d", "int64", 0))
    launch = KernelLaunch(name, (1, 1, 1), (threads, 1, 1), 0, parameters)
    return Executable(ptx.replace("entry gemm", f"entry {name}"), LaunchRecord(name, (), launches=(launch,)))


@pytest.mark.parametrize(
    "part, effect",
    [
        ("is injected in around line", "inserted a wait"),
        ("unable to determine register count", "ignored setmaxnreg"),
        ("minimum register requirements", "ignored setmaxnreg"),
        ("defining accumulator registers", "wait for each other"),
        ("WG.AR in divergent path", "wait for each other"),
    ],
)
def test_advice_is_a_warning_at_the_python_line(card, part, effect) -> None:
    made = executable(texts.SAID[part][0])
    with pytest.warns(PerformanceWarning) as caught:
        made.load(card.index)
    (warning,) = (w for w in caught if part in str(w.message) or part.startswith("is injected"))
    assert effect in str(warning.message) and warning.filename == "/home/user/kernel.py", made.log(card.index)
    assert warning.lineno in (8, 17)  # of the kernel, or of the instruction where the sentence has a line


def test_spills_are_counted_and_warned_of(card) -> None:
    made = executable(texts.kernel(texts.loads(120) + "bar.sync 0;\n" + texts.stores(120), ".maxntid 128\n.maxnreg 32"))
    with pytest.warns(PerformanceWarning, match="local memory"):
        made.load(card.index)
    (figures,) = made.resources(card.index).values()
    assert figures.registers == 32 and figures.spill_stores and figures.spill_loads
    assert figures.local_bytes >= 4 * (120 - 32)


def test_a_clean_kernel_has_no_warning(card) -> None:
    made = executable(texts.CLEAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        made.load(card.index)
    (figures,) = made.resources(card.index).values()
    assert figures.spill_stores == figures.spill_loads == figures.local_bytes == 0 and figures.registers >= 16


@pytest.mark.parametrize("tile", [(128, 128), (128, 256)])
def test_a_product_s_resources(card, tile) -> None:
    a, b = (torch.randn(512, 256, device=card, dtype=torch.bfloat16) for _ in range(2))
    options = {"block_M": tile[0], "block_N": tile[1], "num_stages": 3, "threads": 256, "transpose_B": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        kernel = gemm_kernels.gemm.compile(A=a, B=b, **options)
        kernel(a, b)
        torch.cuda.synchronize()
    (figures,) = kernel.resources.values()
    assert figures.registers >= 64 and not figures.local_bytes and not figures.spill_stores
    assert figures.dynamic_shared_bytes >= 3 * (tile[0] + tile[1]) * 64 * 2 and figures.max_threads >= figures.threads
    assert figures.ptx_isa >= (8, 0)


def test_inspect_times_the_driver(card) -> None:
    variant = gemm_kernels.gemm.specialize(M=512, N=512, K=256, transpose_B=True).variant
    shown = show(View.TIMING, Subject(variant.tile_program, variant.target, variant.settings.options, {}))
    assert "driver JIT" in shown and "all of these" in shown
