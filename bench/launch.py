"""Host time of one launch: our calls against the driver's own call, torch.add(out=), torch.add and Triton's.

Run it:  python bench/launch.py [--turns 60] [--calls 200]

Kernels of 0, 3, 8 and 16 tensors that do next to nothing, with plain accesses and through TMA, the output passed and
allocated. Our calls are made twice: by the launcher in native code, and from Python. Each measurement is the mean over
``--calls`` calls in a row, which the queue of the card can hold, then the card is waited for; contenders alternate. Two
floors, with the same function, configuration and parameters: cuLaunchKernelEx from a native loop, and called from
Python through ctypes. Writes bench/results/launch.json; times in microseconds. It takes about half a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from measure import interval, save

import ptxtile
from ptxtile.kernel import JITKernel
from ptxtile.native import launcher
from ptxtile.native.calls import calls_without_python, is_on

COUNTS = (3, 8, 16)
ROWS, COLUMNS = 16, 64

HEADER = """\
import ptxtile
import ptxtile.language as T


@T.prim_func
def nothing(x: T.int32):
    with T.Kernel(1, threads=32):
        seen = T.alloc_local((1,), "int32")
        seen[0] = x


@ptxtile.jit
def eager(A0, A1, C, threads=128):
    M, N = T.const("M, N")
    A0: T.Tensor((M, N), T.float32)
    A1: T.Tensor((M, N), T.float32)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(1, threads=threads):
        for i, j in T.Parallel(M, N):
            C[i, j] = A0[i, j] + A1[i, j]
"""
PLAIN = """

@T.prim_func
def plain_{count}({parameters}):
    with T.Kernel(1, threads=128):
        for i, j in T.Parallel({rows}, {columns}):
            C[i, j] = {sum}
"""
THROUGH_SHARED = """

@T.prim_func
def tma_{count}({parameters}):
    with T.Kernel(1, threads=128):
{allocations}
        total = T.alloc_fragment(({rows}, {columns}), "float32")
        result = T.alloc_shared(({rows}, {columns}), "float32")
{copies}
        for i, j in T.Parallel({rows}, {columns}):
            total[i, j] = {sum}
        T.copy(total, result)
        T.copy(result, C)
"""


def source() -> str:
    """The kernels: sums of all tensors but the last into the last."""
    text, tensor = HEADER, f'T.Tensor(({ROWS}, {COLUMNS}), "float32")'
    for count in COUNTS:
        names = [f"A{n}" for n in range(count - 1)]
        fields = {
            "count": count, "rows": ROWS, "columns": COLUMNS,
            "parameters": ", ".join(f"{name}: {tensor}" for name in [*names, "C"]),
            "allocations": "\n".join(
                f'        {name}_shared = T.alloc_shared(({ROWS}, {COLUMNS}), "float32")' for name in names
            ),
            "copies": "\n".join(f"        T.copy({name}, {name}_shared)" for name in names),
        }  # fmt: skip
        text += PLAIN.format(sum=" + ".join(f"{name}[i, j]" for name in names), **fields)
        text += THROUGH_SHARED.format(sum=" + ".join(f"{name}_shared[i, j]" for name in names), **fields)
    return text


TRITON_HEADER = """\
import triton
import triton.language as tl
"""
TRITON = """

@triton.jit
def triton_{count}({names}, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(C + offsets, {sum})
"""


def triton_source() -> str:
    """The plain kernels as Triton's."""
    text = TRITON_HEADER
    for count in COUNTS:
        names = [f"A{n}" for n in range(count - 1)]
        loads = " + ".join(f"tl.load({name} + offsets)" for name in names)
        text += TRITON.format(count=count, names=", ".join([*names, "C"]), sum=loads)
    return text


def load(folder: Path, name: str = "launch_kernels", text: str | None = None) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source() if text is None else text)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # Triton looks for the source of its kernels there
    specification.loader.exec_module(module)
    return module


NATIVE_LOOP = """
define i32 @loop(ptr %launch, ptr %config, ptr %function, ptr %parameters, i64 %count) {
entry:
  br label %body
body:
  %i = phi i64 [0, %entry], [%next, %body]
  %result = call i32 %launch(ptr %config, ptr %function, ptr %parameters, ptr null)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret i32 %result
}
"""


def native_loop() -> tuple[Any, Any]:
    """The loop as a ctypes function, and what keeps its code alive."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(NATIVE_LOOP)
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer, ctypes.c_int64)
    return kind(engine.get_function_address("loop")), engine


def repeated(call: Callable[..., object], calls: int, *args: Any) -> Callable[[], None]:
    """A loop of calls, written out as a user would, so that nothing else is measured."""
    names = [f"a{n}" for n in range(len(args))]
    heading, inside = ", ".join(["call", *names]), ", ".join(names)
    text = f"def run({heading}):\n    for _ in range({calls}):\n        call({inside})\n"
    scope: dict[str, Any] = {}
    exec(text, scope)  # an unpacked tuple would be an argument more to take apart
    return partial(scope["run"], call, *args)


def floors(kernel: Any, args: tuple[Any, ...], calls: int, loop: Any) -> dict[str, Callable[[], None]]:
    """cuLaunchKernelEx alone, with all that a planned call of ``kernel`` gives it."""
    found = kernel._planned.find(args)
    assert found is not None, "the call has no plan"
    plan = found[0]
    ((config, function, parameters),) = plan._frames[-1].launches
    launch = plan._launch_kernel
    address = ctypes.cast(launch, ctypes.c_void_p).value

    def native(owner: Any = plan) -> None:  # the configuration and the parameters lie in the plan's memory
        assert loop(address, config, function, parameters, calls) == 0

    def by_ctypes(owner: Any = plan) -> None:
        launch(config, function, parameters, 0)

    return {FLOOR: native, "driver, ctypes": repeated(by_ctypes, calls)}


FLOOR = "driver, native loop"


def of_triton(folder: Path, calls: int) -> dict[str, Callable[[], None]]:
    """Triton's calls, where it is installed."""
    if importlib.util.find_spec("triton") is None:
        return {}
    kernels, found = load(folder, "launch_triton", triton_source()), {}
    for count in COUNTS:
        tensors = [torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(count)]
        launch = getattr(kernels, f"triton_{count}")[1,]
        launch(*tensors, ROWS * COLUMNS)
        expected = torch.stack(tensors[:-1]).sum(0)
        torch.testing.assert_close(tensors[-1], expected, rtol=1e-4, atol=1e-4, msg="Triton's kernel is wrong")
        found[f"{count} tensors, plain, out passed: Triton"] = repeated(launch, calls, *tensors, ROWS * COLUMNS)
    return found


def contenders(kernels: ModuleType, calls: int, loop: Any) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}

    def add(name: str, kernel: Any, args: tuple[Any, ...], expected: torch.Tensor | None) -> None:
        for _ in range(4):
            result = kernel(*args)
        out = args[-1] if result is None and expected is not None else result
        if expected is not None:
            # float32 sums of up to 15 numbers in another order
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4, msg=f"{name} is wrong")
        in_native_code = calls_without_python(kernel) > 0
        assert in_native_code or not native or expected is None, f"{name}: not launched in native code"
        found[f"{name}: ptxtile"] = repeated(kernel, calls, *args)
        found[f"{name}: ptxtile, from Python"] = repeated(kernel._call_checked, calls, *args)
        if name == "3 tensors, plain, out passed":
            found[f"{name}: ptxtile, all checks"] = repeated(lambda: kernel._run_checked(args, {}), calls)
        if isinstance(kernel, JITKernel):
            found.update({f"{name}: {floor}": run for floor, run in floors(kernel, args, calls, loop).items()})

    native = launcher.get() is not None and is_on()
    if not native:
        print("the launcher in native code is not used here")
    add("0 tensors, plain", ptxtile.compile(kernels.nothing), (7,), None)
    for count in COUNTS:
        inputs = tuple(torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(count - 1))
        expected = torch.stack(inputs).sum(0)
        for form in ("plain", "tma"):
            function = getattr(kernels, f"{form}_{count}")
            passed = ptxtile.compile(function, disable_tma=form == "plain")
            add(f"{count} tensors, {form}, out passed", passed, (*inputs, torch.empty_like(expected)), expected)
            maps = sum(p.kind == "tensor_map" for p in passed.launch.launches[0].parameters)
            assert maps == (count if form == "tma" else 0), f"{maps} tensor maps"
            allocating = ptxtile.compile(function, out_idx=-1, disable_tma=form == "plain")
            add(f"{count} tensors, {form}, out allocated", allocating, inputs, expected)
    inputs = tuple(torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(3))
    add("3 tensors, plain, eager", kernels.eager, inputs, inputs[0] + inputs[1])
    a, b, c = (torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(3))
    found["torch.add(out=)"] = repeated(lambda: torch.add(a, b, out=c), calls)
    found["torch.add"] = repeated(torch.add, calls, a, b)
    found["torch.empty"] = repeated(lambda: torch.empty((ROWS, COLUMNS), dtype=torch.float32, device="cuda"), calls)
    return found


def microseconds(runs: Mapping[str, Callable[[], None]], turns: int, calls: int) -> dict[str, list[float]]:
    """Host time of one call of each contender, one value a turn; every second turn runs in reverse order."""
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
            start = time.perf_counter()
            runs[name]()
            times[name].append(1e6 * (time.perf_counter() - start) / calls)
            torch.cuda.synchronize()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200, help="in a row; the card's queue holds about 1000")
    arguments = parser.parse_args()
    loop, keep = native_loop()
    with tempfile.TemporaryDirectory() as folder:
        runs = contenders(load(Path(folder)), arguments.calls, loop)
        runs.update(of_triton(Path(folder), arguments.calls))
        times = microseconds(runs, arguments.turns, arguments.calls)
    del keep
    rows = []
    for name, values in times.items():
        low, high = interval(values)
        middle = statistics.median(values)
        row: dict[str, Any] = {
            "contender": name, "µs": round(middle, 3), "µs 95%": [round(low, 3), round(high, 3)],
        }  # fmt: skip
        floor = times.get(f"{name.rpartition(':')[0].replace('eager', 'out passed')}: {FLOOR}")
        if floor is not None:
            row["above the floor"] = round(middle - statistics.median(floor), 3)
            row["of the floor"] = round(middle / statistics.median(floor), 3)
        rows.append(row)
        compared = f"{row['of the floor']:6.2f} x floor" if floor is not None else " " * 14
        print(f"{middle:9.2f} µs {compared}  {name}", flush=True)
    notes = f"host time of a call, {arguments.calls} calls in a row, {ROWS}x{COLUMNS} f32"
    print("written to", save("launch", rows, notes))


if __name__ == "__main__":
    main()
