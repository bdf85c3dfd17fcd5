"""Arrays of other libraries on a card, and exported kernels run by a C program."""

from __future__ import annotations

import ctypes
import gc
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm
from ptxtile.errors import ArgumentError
from tests.export import programs
from tests.runtime.test_foreign_arrays import DLPack, OldDLPack


@ptxtile.jit
def add(A, B, C):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(M, threads=128) as row:
        for j in T.Parallel(N):
            C[row, j] = A[row, j] + B[row, j]
    return C


class CudaArray:
    """A device array of another library: all that it tells is the interface."""

    def __init__(self, tensor: torch.Tensor, **changes: Any) -> None:
        self.tensor = tensor
        self.interface = {**tensor.__cuda_array_interface__, "version": 3, "stream": 1, **changes}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface


class DLPackOf(DLPack):
    """A producer over a CUDA tensor, which is given the consumer's stream and waits for it as torch's own does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor, tuple(int(part) for part in tensor.__dlpack_device__()))

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.array.__dlpack__(**options)


class OldDLPackOf(OldDLPack):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor, tuple(int(part) for part in tensor.__dlpack_device__()))

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__(stream=stream)


def tensors(card) -> list[torch.Tensor]:
    return [torch.randn(40, 96, device=card), torch.randn(40, 96, device=card), torch.zeros(40, 96, device=card)]


@pytest.mark.parametrize("wrap", [CudaArray, lambda t: CudaArray(t, stream=None), DLPackOf, OldDLPackOf])
def test_shared_memory(card, wrap) -> None:
    a, b, c = tensors(card)
    for turn in range(3):
        a += 1
        passed = wrap(c)
        assert add(wrap(a), b, passed) is passed
        assert torch.equal(c, a + b), turn


def test_strides_and_small_views(card) -> None:
    a, b, c = tensors(card)
    add(CudaArray(a[:, 1:33]), b[:, :32], CudaArray(c[:, :32]))
    assert torch.equal(c[:, :32], a[:, 1:33] + b[:, :32]) and not c[:, 32:].any()
    empty = torch.zeros(0, 96, device=card)
    add(CudaArray(empty), empty, DLPackOf(empty))


def test_the_stream_of_the_producer(card) -> None:
    """What the producer has enqueued on its stream has happened when the kernel reads."""
    a, b, c = tensors(card)
    add(a, b, c)
    producer = torch.cuda.Stream(card)
    for number in range(3):
        torch.cuda.synchronize(card)
        with torch.cuda.stream(producer):
            torch.cuda._sleep(50_000_000)
            a.fill_(number)
        add(CudaArray(a, stream=producer.cuda_stream), b, c)
        assert torch.equal(c, b + number)


def test_read_only(card) -> None:
    a, b, c = tensors(card)
    read_only = [CudaArray(t, data=(t.data_ptr(), True)) for t in (a, b, c)]
    add(read_only[0], read_only[1], c)
    assert torch.equal(c, a + b)
    with pytest.raises(ArgumentError, match="argument 'C' is read-only"):
        add(a, b, read_only[2])


def test_an_array_is_released(card) -> None:
    a, b, c = tensors(card)
    wrapped = CudaArray(a.clone())
    add(wrapped, b, c)
    torch.cuda.synchronize(card)
    before = torch.cuda.memory_allocated(card)
    del wrapped
    gc.collect()
    assert torch.cuda.memory_allocated(card) < before


@pytest.mark.parametrize("library", ["numba", "cupy", "jax"])
def test_other_libraries(card, library) -> None:
    if library == "numba":
        cuda = pytest.importorskip("numba.cuda")
        try:
            a, b, c = (cuda.to_device(np.random.randn(40, 96).astype(np.float32)) for _ in range(3))
        except Exception as error:  # whatever keeps numba from this card
            pytest.skip(f"numba cannot use this card: {error}")
        as_numpy = [a.copy_to_host(), b.copy_to_host()]
        add(a, b, c)
        result = c.copy_to_host()
    elif library == "cupy":
        cupy = pytest.importorskip("cupy")
        a, b, c = (cupy.random.randn(40, 96).astype(cupy.float32) for _ in range(3))
        as_numpy = [a.get(), b.get()]
        add(a, b, c)
        torch.cuda.synchronize(card)
        result = c.get()
    else:
        jax = pytest.importorskip("jax")
        a, b = (jax.numpy.asarray(np.random.randn(40, 96).astype(np.float32)) for _ in range(2))
        if a.devices().pop().platform not in ("gpu", "cuda"):
            pytest.skip("jax has no card here")
        as_numpy = [np.asarray(a), np.asarray(b)]
        c = torch.zeros(40, 96, device=card)
        add(a, b, c)
        result = c.cpu().numpy()
    np.testing.assert_array_equal(result, as_numpy[0] + as_numpy[1])


# ---------------------------------------------------------------- export


def driver_library() -> str:
    """The path of the libcuda that this process uses."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if "libcuda.so" in path:
            return path
    raise AssertionError("libcuda is loaded, and not among the maps of this process")


@pytest.mark.parametrize("image", ["ptx", "cubin"])
def test_a_c_program_runs_an_exported_kernel(card, tmp_path, image) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    rows, columns, inner = 200, 136, 264
    made = gemm.compile(M=rows, N=columns, K=inner).export(tmp_path, "product")
    assert made.cubin is not None and made.cubin_reason.startswith("made by the driver")
    assert json.loads(made.description.read_text())["files"]["cubin"] == "product.cubin"
    sizes = [f"-DROWS={rows}", f"-DCOLUMNS={columns}", f"-DINNER={inner}"]
    program = programs.compiled(
        tmp_path, programs.WHOLE, extra=[*sizes, driver_library(), "-Wl,--allow-shlib-undefined"]
    )
    a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
    for name, tensor in (("a", a), ("b", b)):
        (tmp_path / name).write_bytes(tensor.view(torch.uint8).numpy().tobytes())
    files = [tmp_path / f"product.{image}", tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    done = subprocess.run([str(program), *map(str, files)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    c = torch.frombuffer(bytearray((tmp_path / "c").read_bytes()), dtype=torch.bfloat16).view(rows, columns)
    assert torch.equal(c, gemm(a.to(card), b.to(card)).cpu())
    wanted = a.double() @ b.double().T
    assert (c.double() - wanted).norm() < 4e-3 * wanted.norm()
