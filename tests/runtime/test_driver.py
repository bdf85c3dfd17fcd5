"""The driver wrapper: errors with the driver's names, no driver, no card, fork; contexts of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from cuda.bindings import driver as bindings

from ptxtile.errors import DriverError
from ptxtile.runtime import context, driver
from ptxtile.runtime.driver import Driver
from tests.runtime.fake_bindings import PRIMARY, FakeBindings


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    """The process's driver is a fake one."""
    made = FakeBindings()
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    return made


def test_version(fake) -> None:
    fake.driver_version = 12080
    assert driver.library().version() == (12, 8)
    assert fake.calls == []  # cuInit is not needed for that


def test_initialised_once(fake) -> None:
    assert driver.initialised() is driver.initialised()
    assert fake.calls == [("cuInit",)]


def test_errors_carry_name_number_and_text(fake) -> None:
    fake.results["cuModuleGetFunction"] = bindings.CUresult.CUDA_ERROR_NOT_FOUND
    with pytest.raises(DriverError) as caught:
        driver.initialised().get_function("module", "add")
    expected = "cuModuleGetFunction('add') failed: CUDA_ERROR_NOT_FOUND (500): text of CUDA_ERROR_NOT_FOUND"
    assert str(caught.value) == expected


def test_no_card(fake) -> None:
    fake.results["cuInit"] = bindings.CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DriverError) as caught:
        driver.initialised()
    for part in ("no usable CUDA card", "CUDA_ERROR_NO_DEVICE (100)", "ptxtile doctor"):
        assert part in str(caught.value)
    fake.results.clear()
    driver.initialised()  # a later try may succeed


def test_no_libcuda(fake, monkeypatch) -> None:
    def missing():
        raise RuntimeError('"cuda" is an NVIDIA driver library\nand more')

    monkeypatch.setattr(fake, "cuDriverGetVersion", missing)
    with pytest.raises(DriverError) as caught:
        driver.initialised()
    assert "no CUDA driver on this machine" in str(caught.value) and "simulator" in str(caught.value)
    assert "and more" not in str(caught.value)


def test_no_cuda_python(monkeypatch) -> None:
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(DriverError, match="cuda-python cannot be imported"):
        driver.library()


def test_a_forked_child_is_told(fake) -> None:
    driver.initialised()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            driver.initialised()
            message = "no error"
        except DriverError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    assert "forked" in message and str(os.getpid()) in message and "spawn" in message


def test_a_context_is_pushed_only_where_it_is_not_current(fake) -> None:
    with context.current(1):
        assert fake.stack == [PRIMARY + 1]
        with context.current(1):
            assert fake.stack == [PRIMARY + 1]
        with context.current(0):
            assert fake.stack == [PRIMARY + 1, PRIMARY]
        assert fake.stack == [PRIMARY + 1]
    assert fake.stack == []
    assert [call for call in fake.calls if call[0] == "retain"] == [("retain", 1), ("retain", 0)]


def test_one_primary_context_for_all_threads(fake) -> None:
    def enter() -> None:
        with context.current(0):
            pass

    for _ in range(3):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert [call[0] for call in fake.calls].count("retain") == 1
    assert [call[0] for call in fake.calls].count("push") == 3


def test_nothing_touches_cuda_at_import() -> None:
    """In a process of its own: neither the bindings nor torch are loaded by importing the runtime."""
    modules = "arguments driver context module tensor_maps executable device parameters"
    imports = "; ".join(f"import ptxtile.runtime.{name}" for name in modules.split())
    code = (
        f"{imports}; import sys; print([n for n in ('torch', 'cuda.bindings', 'numpy', 'numba') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_attributes_of_a_launch_are_the_drivers_own() -> None:
    real = Driver(bindings)
    shape = driver.LaunchShape((1, 1, 1), (32, 1, 1), 0, cluster=(2, 3, 4), cooperative=True, dependent_launch=True)
    cluster, cooperative, dependent = real.launch_attributes(shape)
    assert (cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z) == (2, 3, 4)
    assert cooperative.value.cooperative == 1 and dependent.value.programmaticStreamSerializationAllowed == 1
    names = [attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for attribute in (cluster, cooperative, dependent)]
    assert names == ["CLUSTER_DIMENSION", "COOPERATIVE", "PROGRAMMATIC_STREAM_SERIALIZATION"]
    assert real.launch_attributes(driver.LaunchShape((1, 1, 1), (32, 1, 1), 0)) == []
