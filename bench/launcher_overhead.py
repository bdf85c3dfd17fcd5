"""Host time of a call without a card: what the native launcher and the way through Python add to the driver's call.

Run it:  python bench/launcher_overhead.py [--turns 40] [--calls 2000]

CPU tensors stand for those of a card, and functions that do next to nothing for the driver's: a launch notes its
arguments, a tensor map is filled with zeros. What remains is what a call costs besides the driver. The kernels are
those of bench/launch.py. Contenders alternate; a call of an empty C function from the same loop is the floor. Writes
bench/results/launcher_overhead.json; times in microseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import launch
import torch
from measure import interval, save

from ptxtile.kernel import JITKernel
from ptxtile.native import code_memory, launcher, python_facts
from ptxtile.native.calls import calls_without_python
from ptxtile.native.layout import Table
from ptxtile.runtime import context, driver
from ptxtile.runtime.arguments import bind

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.runtime.driver_in_native_code import NAMES, StandIn
from tests.runtime.fake_bindings import FakeBindings


def _checked(kernel: JITKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """CPU tensors as if they were on a card: bound, launched, remembered."""
    variant = kernel._variant_for(args, kwargs, "cpu", None)
    binding = bind(variant.lowered().launch, args, kwargs, device_type="cpu")
    results = variant.executable()(binding)
    kernel._planned.remember(args, variant.executable(), binding, variant)
    kernel._latest = variant
    return results


@contextlib.contextmanager
def without_a_card(stand_in: StandIn) -> Iterator[None]:
    bindings = FakeBindings()
    keep = {}
    for name in NAMES:
        bindings._by_address[name.encode()] = keep[name] = ctypes.c_void_p(stand_in.addresses[name])
    made = launcher.get()
    assert made is not None, "there is no native launcher here"
    reading = made.reading
    made.reading = replace(reading, stream=stand_in.addresses["stream"])
    try:
        with (
            mock.patch.object(driver, "_import_bindings", return_value=bindings),
            mock.patch.object(driver, "_library", None),
            mock.patch.object(driver, "_initialised_in", None),
            mock.patch.object(context, "stream_reader", return_value=lambda device: 7),
            mock.patch.object(JITKernel, "_run_checked", _checked),
        ):
            yield
    finally:
        made.reading = reading


def empty_method(stand_in: StandIn) -> Any:
    """An object whose call is a C function that does nothing."""
    table = (ctypes.c_uint64 * Table.COUNT)()
    table[Table.NONE], table[Table.INCREASE] = id(None), python_facts.address_of("Py_IncRef")
    memory = code_memory.CodeMemory(stand_in.empty_code, os.uname().machine, ctypes.addressof(table))
    owner = type("Empty", (), {"keep": (table, memory)})
    owner.__call__ = python_facts.method(owner, "__call__", memory.entry, "Does nothing.")
    return owner()


def kernels_and_arguments() -> Iterator[tuple[str, Callable[[], Any], tuple[Any, ...]]]:
    """Name, what makes the kernel, arguments."""
    import ptxtile

    def tensors(count: int) -> tuple[Any, ...]:
        return tuple(torch.zeros(launch.ROWS, launch.COLUMNS) for _ in range(count))

    with tempfile.TemporaryDirectory() as folder:
        kernels = launch.load(Path(folder))
        yield "0 tensors", lambda: ptxtile.compile(kernels.nothing, target="sm_90a"), (7,)
        for count in launch.COUNTS:
            for form in ("plain", "tma"):
                function = getattr(kernels, f"{form}_{count}")
                options: dict[str, Any] = {"disable_tma": form == "plain", "target": "sm_90a"}
                passed, made = f"{count} tensors, {form}", f"{count} tensors, {form}, out allocated"
                yield passed, lambda f=function, o=options: ptxtile.compile(f, **o), tensors(count)
                yield made, lambda f=function, o=options: ptxtile.compile(f, out_idx=-1, **o), tensors(count - 1)
        yield "3 tensors, plain, eager", lambda: ptxtile.jit(kernels.eager.function.function), tensors(3)


def contenders(calls: int, stand_in: StandIn) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    empty = empty_method(stand_in)
    for name, make, args in kernels_and_arguments():
        for way in ("native", "python"):
            with mock.patch.dict(os.environ, PTXTILE_LAUNCHER=way):
                kernel = make()
                if way == "python":
                    kernel.__class__ = type("FromPython", (type(kernel),), {"__call__": type(kernel)._call_checked})
                for _ in range(4):
                    kernel(*args)
            assert (calls_without_python(kernel) > 0) == (way == "native"), f"{name}: {way}"
            found[f"{name}: {way}"] = launch.repeated(kernel, calls, *args)
        if name == "0 tensors" or name.endswith(", plain"):
            found[f"{name}: empty method"] = launch.repeated(empty, calls, *args)
    shape = (launch.ROWS, launch.COLUMNS)
    found["torch.empty"] = launch.repeated(torch.empty, calls, shape)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    stand_in = StandIn()
    times: dict[str, list[float]] = {}
    with without_a_card(stand_in):
        runs = contenders(arguments.calls, stand_in)
        os.environ["PTXTILE_LAUNCHER"] = "python"  # the contenders stay what they are
        for turn in range(arguments.turns):
            for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
                start = time.perf_counter()
                runs[name]()
                times.setdefault(name, []).append(1e6 * (time.perf_counter() - start) / arguments.calls)
    rows = []
    for name in runs:
        low, high = interval(times[name])
        middle = statistics.median(times[name])
        rows.append({"contender": name, "µs": round(middle, 3), "µs 95%": [round(low, 3), round(high, 3)]})
        print(f"{middle:9.3f} µs  (least {min(times[name]):.3f})  {name}", flush=True)
    notes = "host time of a call with stand-ins for the driver and CPU tensors"
    print("written to", save("launcher_overhead", rows, notes))


if __name__ == "__main__":
    main()
