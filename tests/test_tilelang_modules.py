"""Modules under TileLang's names, from which scripts import what is not in the language."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import testing
from ptxtile.carver.arch import CDNA, CUDA, driver
from ptxtile.carver.roller.rasterization import NoRasterization
from ptxtile.carver.template import MatmulTemplate
from ptxtile.cuda.intrinsics import make_mma_swizzle_layout
from ptxtile.errors import ArgumentError, PtxtileError, TargetError
from ptxtile.language.fp8 import determine_fp8_type, determine_torch_fp8_type
from ptxtile.lower.options import Options
from ptxtile.pass_configs import options_from
from ptxtile.transform import PassConfigKey
from ptxtile.utils.tensor import TensorSupplyType, get_tensor_supply, torch_assert_close


def test_the_float8_of_the_platform() -> None:
    assert determine_fp8_type() == T.float8_e4m3fn and determine_fp8_type("e5m2") == T.float8_e5m2
    assert determine_torch_fp8_type("e5m2") is torch.float8_e5m2
    with pytest.raises(ArgumentError, match="e4m3 or e5m2"):
        determine_fp8_type("e3m4")


def test_multiprocessors() -> None:
    if torch.cuda.is_available():
        assert driver.get_num_sms() == torch.cuda.get_device_properties(0).multi_processor_count
        assert driver.get_device_name() and driver.get_shared_memory_per_block(format="kb") >= 48
        return
    assert driver.get_num_sms() == driver.SIMULATED_MULTIPROCESSORS and driver.get_device_name() is None
    for question in (
        driver.get_shared_memory_per_block, driver.get_max_dynamic_shared_size_bytes, driver.get_registers_per_block,
    ):  # fmt: skip
        with pytest.raises(PtxtileError, match="there is none"):
            question()


STEERING = {
    "TL_DISABLE_TMA_LOWER", "TL_DISABLE_WGMMA", "TL_DISABLE_WARP_SPECIALIZED", "TL_ENABLE_FAST_MATH",
    "TL_DISABLE_FAST_MATH", "TL_ENABLE_AUTO_WARP_SPECIALIZATION",
}  # fmt: skip


@pytest.mark.parametrize("key", [key for key in PassConfigKey if "SIMPLIFY_" not in key.name])
def test_every_pass_config_is_taken(key: PassConfigKey) -> None:
    """Those of other names than these change no option."""
    found = [options_from(Options(), {key: value}) for value in (True, False)]
    assert ptxtile.PassConfigKey is PassConfigKey
    assert (found == [Options(), Options()]) == (key.name not in STEERING)


def test_a_layout_of_a_module_of_cudas() -> None:
    assert make_mma_swizzle_layout is T.make_mma_swizzle_layout


def _marks(requirement: Any) -> list[Any]:
    def test() -> None: ...

    return [mark.args for mark in requirement(test).pytestmark]


def test_requirements_of_tests() -> None:
    no_card = not torch.cuda.is_available()
    assert _marks(testing.requires_cuda) == [(no_card,)]
    assert _marks(testing.requires_cuda_compute_version(99)) == [(True,)]
    assert _marks(testing.requires_cuda_compute_version_lt(99)) == [(no_card,)]
    assert _marks(testing.requires_rocm) == [(True,)]
    with pytest.raises(ArgumentError, match="ge, gt, le, lt, eq"):
        testing.requires_cuda_compute_version(9, 0, "is")


def test_seeds() -> None:
    testing.set_random_seed(5)
    first = torch.rand(3)
    testing.set_random_seed(5)
    assert torch.equal(first, torch.rand(3))


def test_comparison() -> None:
    a = torch.linspace(-1, 1, 1000)
    b = a.clone()
    b[17] += 1
    assert torch_assert_close(a, b, max_mismatched_ratio=0.001)
    with pytest.raises(AssertionError, match=r"1 of 1000 elements differ, 0\.00% may: the first at \(17,\)"):
        torch_assert_close(a, b, max_mismatched_ratio=0)
    with pytest.raises(AssertionError, match="the dtype differs"):
        torch_assert_close(a, a.double())
    with pytest.raises(AssertionError, match="the shape differs"):
        torch_assert_close(a, a[:500])
    assert torch_assert_close(a, a.double(), check_dtype=False)
    nan = torch.tensor([torch.nan])
    assert torch_assert_close(nan, nan)
    with pytest.raises(AssertionError):
        torch_assert_close(nan, nan, equal_nan=False)


def test_supplied_tensors_differ() -> None:
    @T.prim_func
    def main(A: T.Tensor((8, 16), T.float16), B: T.Tensor((8, 16), T.float16)):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    supply = get_tensor_supply(TensorSupplyType.Auto)
    first, second = (supply(parameter).cpu() for parameter in ptxtile.compile(main).signature.inputs)
    assert first.shape == (8, 16) and first.dtype is torch.float16 and not torch.equal(first, second)


SCRIPT = """
import ptxtile as tilelang
import ptxtile.testing

def test_right(): assert True
def test_wrong(): assert False

def regression_first():
    tilelang.testing.process_func(lambda n: n / 2, "first", n=3)

if __name__ == "__main__":
    tilelang.testing.regression()
    tilelang.testing.main()
"""


def test_main_of_a_script(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [sys.executable, str(script), "-q", "-p", "no:cacheprovider", "-n", "0"]
    path = str(Path(ptxtile.__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | {"PYTHONPATH": path}
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "first: 1.5000 ms" in done.stdout


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (128, 256, 64), (16, 8192, 512), (100, 100, 33)])
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_recommended_tiles_fit(shape: tuple[int, int, int], dtype: str, name: str) -> None:
    arch = CUDA(name)
    hints = MatmulTemplate(*shape, in_dtype=dtype).with_arch(arch).recommend_hints(topk=7)
    assert 1 <= len(hints) <= 7 and len({(h.block, h.rstep) for h in hints}) == len(hints)
    for hint in hints:
        (rows, columns), (depth,) = hint.block, hint.rstep
        warps = rows // hint.warp[0] * (columns // hint.warp[1])
        assert warps in (4, 8) and rows * columns <= 128 * 32 * warps
        stage = (rows + columns) * depth * T.dtype(dtype).bits // 8
        assert hint.pipeline_stage >= 2 and hint.pipeline_stage * stage <= arch.target.max_shared_bytes
        assert hint.warp[0] % 16 == 0 and hint.warp[1] % 8 == 0


def test_large_products_get_large_tiles() -> None:
    (large,) = MatmulTemplate(8192, 8192, 8192).with_arch(CUDA("sm_90a")).recommend_hints(topk=1)
    (small,) = MatmulTemplate(64, 128, 8192).with_arch(CUDA("sm_90a")).recommend_hints(topk=1)
    assert large.block[0] * large.block[1] >= 128 * 128 > small.block[0] * small.block[1]
    assert large.rasterization_plan is not NoRasterization and small.rasterization_plan is NoRasterization


def test_the_function_of_a_template() -> None:
    a, b = torch.rand(4, 5), torch.rand(6, 5)
    assert torch.equal(MatmulTemplate(4, 6, 5).equivalent_function()(a, b), a @ b.T)


def test_the_other_vendors_architecture() -> None:
    with pytest.raises(TargetError, match="NVIDIA"):
        CDNA("hip")
