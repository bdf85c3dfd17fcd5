"""What scripts and tests of kernels take from ``tilelang.testing``: requirements, seeds, comparison, a main function.

``ptxtile.testing`` offers these names. A test that requires CUDA is skipped where there is no card: its tensors say
``device="cuda"``. Tests with CPU tensors, which the simulator runs, need no requirement.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, TypeVar

from ptxtile.errors import ArgumentError

if TYPE_CHECKING:
    import torch

_Test = TypeVar("_Test", bound=Callable[..., Any])
_COMPARISONS = {"ge": ge, "gt": gt, "le": le, "lt": lt, "eq": eq}


def _skipped_unless(holds: bool, reason: str) -> Callable[[_Test], _Test]:
    import pytest

    return pytest.mark.skipif(not holds, reason=reason)


def _capability() -> tuple[int, int] | None:
    """The compute capability of the current card, None without one."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def requires_cuda(test: _Test) -> _Test:
    """Skips the test where there is no card."""
    return _skipped_unless(_capability() is not None, "needs a CUDA device")(test)


def requires_cuda_compute_version(
    major_version: int, minor_version: int = 0, mode: str = "ge"
) -> Callable[[_Test], _Test]:
    """Skips the test unless the card's compute capability compares so with ``major_version.minor_version``.

    mode: ge, gt, le, lt or eq. ArgumentError for another.
    """
    if mode not in _COMPARISONS:
        raise ArgumentError("mode of requires_cuda_compute_version", expected=", ".join(_COMPARISONS), got=repr(mode))
    found = _capability()
    holds = found is not None and _COMPARISONS[mode](found, (major_version, minor_version))
    return _skipped_unless(holds, f"needs compute capability {mode} {major_version}.{minor_version}, got {found}")


def requires_cuda_compute_version_ge(major_version: int, minor_version: int = 0) -> Callable[[_Test], _Test]:
    return requires_cuda_compute_version(major_version, minor_version, "ge")


def requires_cuda_compute_version_gt(major_version: int, minor_version: int = 0) -> Callable[[_Test], _Test]:
    return requires_cuda_compute_version(major_version, minor_version, "gt")


def requires_cuda_compute_version_le(major_version: int, minor_version: int = 0) -> Callable[[_Test], _Test]:
    return requires_cuda_compute_version(major_version, minor_version, "le")


def requires_cuda_compute_version_lt(major_version: int, minor_version: int = 0) -> Callable[[_Test], _Test]:
    return requires_cuda_compute_version(major_version, minor_version, "lt")


def requires_cuda_compute_version_eq(major_version: int, minor_version: int = 0) -> Callable[[_Test], _Test]:
    return requires_cuda_compute_version(major_version, minor_version, "eq")


def _never(platform: str) -> Callable[[_Test], _Test]:
    def requires(test: _Test) -> _Test:
        return _skipped_unless(False, f"needs {platform}, and ptxtile is for NVIDIA's cards")(test)

    requires.__doc__ = f"Skips the test: it is for {platform}."
    return requires


requires_rocm, requires_metal, requires_llvm = _never("ROCm"), _never("Metal"), _never("TVM's LLVM back end")
requires_cdna, requires_gfx950 = _never("a CDNA card"), _never("a gfx950 card")
requires_cuda_or_cdna = requires_cuda


def set_random_seed(seed: int = 42) -> None:
    """Seeds Python's, NumPy's and torch's generators."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    """Runs the tests of the script that calls it, with the script's arguments, and exits."""
    import pytest

    script = inspect.getsourcefile(sys._getframe(1))
    assert script is not None
    sys.exit(pytest.main([script, *sys.argv[1:]]))


def process_func(func: Callable[..., float], name: str | None = None, /, **kwargs: Any) -> float:
    """The milliseconds that ``func(**kwargs)`` returns, printed with its name."""
    latency = func(**kwargs)
    print(f"{name or getattr(func, '__module__', func)}: {latency:.4f} ms")
    return latency


def regression(prefixes: tuple[str, ...] = ("regression_",), verbose: bool = True) -> None:
    """Runs the functions of the calling script whose names begin so, in the order of their definition."""
    for name, value in list(sys._getframe(1).f_globals.items()):
        if name.startswith(tuple(prefixes)) and callable(value):
            value()


def torch_assert_close(
    tensor_a: torch.Tensor,
    tensor_b: torch.Tensor,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    base_name: str = "LHS",
    ref_name: str = "RHS",
) -> bool:
    """True; AssertionError when more than ``max_mismatched_ratio`` of the elements differ by more than
    ``atol + rtol · |tensor_b|``, or shape, dtype or device do."""
    checked = [("shape", True), ("device", check_device), ("dtype", check_dtype), ("layout", check_layout)]
    for attribute in [name for name, wanted in checked if wanted]:
        a, b = getattr(tensor_a, attribute), getattr(tensor_b, attribute)
        if a != b:
            raise AssertionError(f"the {attribute} differs: {base_name} {a}, {ref_name} {b}")
    if check_stride and tensor_a.stride() != tensor_b.stride():
        raise AssertionError(f"the strides differ: {base_name} {tensor_a.stride()}, {ref_name} {tensor_b.stride()}")
    a, b = (tensor.detach().cpu().to_dense().double() for tensor in (tensor_a, tensor_b))
    wrong = ~a.isclose(b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count = int(wrong.sum())
    if verbose:
        print(f"{count} of {wrong.numel()} elements differ")
    if count > int(max_mismatched_ratio * wrong.numel()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{count} of {wrong.numel()} elements differ, {max_mismatched_ratio:.2%} may: the first at {place}, "
            f"{base_name} {a[place].item()}, {ref_name} {b[place].item()}"
        )
    return True
