"""Exported kernels: the header compiles as C and C++ and launches what the runtime launches, and the description alone
says as much."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm
from ptxtile.compiler import Artifact, lower
from ptxtile.errors import ArgumentError
from ptxtile.export import export as export_module
from ptxtile.export.c_names import identifier, size_expression
from ptxtile.export.c_support import SUPPORT
from ptxtile.export.description import describe, size
from ptxtile.export.header import header
from ptxtile.ir.expressions import Var
from ptxtile.ir.program import Fact, Program
from ptxtile.ir.types import int32
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
    evaluate_size,
)
from ptxtile.lower.options import Options
from ptxtile.runtime import context, driver
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.executable import Executable
from ptxtile.target import get
from tests.export import programs
from tests.operators.kernels import row_sums_and_doubles
from tests.runtime.fake_bindings import FakeBindings

STREAM = 0x5150
M, N, S = Symbol("M"), Symbol("N"), Symbol("S")


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    made = FakeBindings()
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: STREAM)
    return made


@pytest.fixture
def no_machine_code(monkeypatch) -> None:
    monkeypatch.setattr(export_module, "_machine_code", lambda ptx, target: (None, "left out: nobody asked"))


def artifact_of(record: LaunchRecord, facts: tuple[Fact, ...] = ()) -> Artifact:
    """A compiled program that has this launch record, made by hand."""
    from ptxtile.frontend.allocation import global_buffer
    from ptxtile.ir.program import TensorParameter
    from ptxtile.ir.types import parse_dtype

    tensors = tuple(
        TensorParameter(global_buffer(a.name, parse_dtype(a.dtype), (1,), None))
        for a in record.arguments if isinstance(a, TensorArgument)
    )  # fmt: skip
    program = Program(record.name, tensors, (), facts=facts, launch=record)
    return Artifact(program, program, get("sm_90a"), Options(), ".version 8.0\n.target sm_90a\n", "; nothing\n")


def everything() -> LaunchRecord:
    """Numbers of every kind, tensors with and without maps, two launches with every attribute, sizes of every kind."""
    numbers = {"flag": "bool", "i8": "int8", "u16": "uint16", "i64": "int64", "half": "float16", "brain": "bfloat16",
               "single": "float32", "double": "float64"}  # fmt: skip
    grid = (
        SizeOperation("mul", SizeOperation("floordiv", SizeOperation("add", M, 7), 8), 2),
        SizeOperation("max", SizeOperation("mod", SizeOperation("sub", N, 100), 3), 1),
        SizeOperation("min", Symbol("i64"), 5),
    )
    parameters = (
        KernelParameter("pointer", "A"),
        KernelParameter("tensor_map", "B_map"),
        KernelParameter("scalar", "S", "int64", S),
        *[KernelParameter("scalar", name, dtype) for name, dtype in numbers.items()],
        KernelParameter("tensor_map", "C_map"),
        KernelParameter("scalar", "bytes", "uint32", SizeOperation("mul", N, 4)),
        KernelParameter("pointer", "register"),
        KernelParameter("pointer", "W"),
    )
    first = KernelLaunch("first", grid, (96, 1, 1), 90_000, parameters, cluster=(2, 1, 1))
    second = replace(
        first, kernel="second", grid=(SizeOperation("sub", M, 6), 1, 16), cluster=(1, 1, 16), cooperative=True,
        dependent_launch=True, shared_bytes=128, parameters=parameters[-2:],
    )  # fmt: skip
    return LaunchRecord(
        "everything",
        (
            TensorArgument("A", "float32", (M, N), (S, 1), 4),
            *[ScalarArgument(name, dtype) for name, dtype in numbers.items()],
            TensorArgument("B", "float32", (M, N), (N, 1), 16),
            TensorArgument("register", "float16", (M, 1, 2), (Symbol("T0"), Symbol("T1"), 1), 2),
            TensorArgument("nothing", "int8", (N,), (1,), 1, unused=True),
            TensorArgument("scalar_tensor", "int32", (), (), 4),
        ),
        allocations=(Allocation("C", "bfloat16", (M, SizeOperation("mul", N, 2))), Allocation("W", "int8", ())),
        tensor_maps=(
            TensorMapRecord("B_map", "B", "float32", (N, M), (SizeOperation("mul", N, 4),), (32, 8), 128, offset=32),
            TensorMapRecord("C_map", "C", "bfloat16", (N, M), (SizeOperation("mul", N, 4),), (32, 8), 64, 256),
            TensorMapRecord("never_used", "B", "float32", (N,), (), (4,)),
        ),
        launches=(first, second),
        returns=("C", "A"),
        divisibilities=(Divisibility(N, 4),),
    )  # fmt: skip


NUMBERS = {
    "flag": True,
    "i8": -3,
    "u16": 65535,
    "i64": 2**40,
    "half": 1.5,
    "brain": -0.1,
    "single": 3.25,
    "double": 0.1,
}


def everything_call(rows: int, columns: int) -> dict[str, Any]:
    return {
        "A": torch.zeros(rows, columns + 6)[:, :columns], **NUMBERS, "B": torch.zeros(rows, columns),
        "register": torch.zeros(rows, 1, 4, dtype=torch.float16)[:, :, :2], "nothing": None,
        "scalar_tensor": torch.zeros((), dtype=torch.int32),
    }  # fmt: skip


def compared(
    fake: FakeBindings, folder: Path, artifact: Artifact, call: dict[str, Any], language: str
) -> dict[str, Any]:
    """Runs the call by the runtime and by C, and compares what the driver was given; gives what C gave it."""
    made = export_module.export(artifact, folder)
    description = json.loads(made.description.read_text())
    record = artifact.launch
    fake.parameter_sizes = ()  # each launch has its own
    by_runtime = Recorder(fake, description)
    binding = bind(record, [call[argument.name] for argument in record.arguments], device_type="cpu")
    Executable(artifact.ptx or "", record).launch(binding)
    dtypes = {a.name: a.dtype for a in record.arguments if isinstance(a, ScalarArgument)}
    scalars = {name: programs.packed(dtype, call[name]) for name, dtype in dtypes.items()}
    statements = programs.filled(description, binding.tensors, scalars)
    calls = programs.recorded(folder, description, statements, STREAM, language)
    assert calls["end"] == [{"result": 0, "reason": ""}]
    assert calls.get("encode", []) == fake.encoded
    launched = [{key: value for key, value in launch.items() if key != "extra"} for launch in calls.get("launch", [])]
    for one, other in zip(launched, by_runtime.launched, strict=True):
        assert one["parameters"] == other["parameters"]
        assert one == other
    for shape in calls.get("shape", []):
        tensor = binding.tensors[shape["name"]]
        assert shape["shape"] == tuple(tensor.shape) and shape["bytes"] == tensor.nbytes
    assert by_description(description, binding.tensors, call) == launched
    attributes = {"MAX_DYNAMIC_SHARED_SIZE_BYTES": 8, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 14}
    asked = [(str(f).removeprefix("function "), attributes[name], value)
             for kind, f, name, value in (c for c in fake.calls if c[0] == "set")]  # fmt: skip
    assert [(c["function"], c["attribute"], c["value"]) for c in calls.get("set", [])] == asked
    return calls


class Recorder:
    """The launches that the runtime makes, as the C program prints them."""

    def __init__(self, fake: FakeBindings, description: dict[str, Any]) -> None:
        self.launched: list[dict[str, Any]] = []
        sizes = {one["kernel"]: tuple(p["bytes"] for p in one["parameters"]) for one in description["launches"]}
        launch = fake._launch

        def recording(config: int, function: int, parameters: int, extra: int) -> int:
            name = str(fake.handles[function]).removeprefix("function ")
            fake.parameter_sizes = sizes[name]
            result = launch(config, function, parameters, extra)
            seen = fake.launched[-1]
            kept = ("grid", "block", "shared", "stream", "attributes", "parameters")
            self.launched.append({"function": name, **{key: seen[key] for key in kept}})
            return result

        fake._launch = recording


def by_description(description: dict[str, Any], tensors: dict[str, torch.Tensor], call: dict[str, Any]) -> list[Any]:
    """The launches that a loader would make who has the description alone."""

    def value(what: Any) -> int:
        if isinstance(what, (int, str)):
            return what if isinstance(what, int) else symbols[what]
        left, right = value(what["left"]), value(what["right"])
        return {
            "add": left + right,
            "sub": left - right,
            "mul": left * right,
            "floordiv": left // (right or 1),
            "mod": left % (right or 1),
            "min": min(left, right),
            "max": max(left, right),
        }[what["operator"]]

    symbols: dict[str, int] = {}
    for symbol in description["symbols"]:
        symbols[symbol["name"]] = 0
        for place in symbol["sources"]:
            if place["property"] == "value":
                symbols[symbol["name"]] = call[place["argument"]]
                break
            tensor = tensors.get(place["argument"])
            if tensor is None:
                continue
            dimension = place["dimension"]
            if place["property"] == "size":
                solved, rest = divmod(tensor.shape[dimension] - value(place["offset"]), place["factor"])
                assert not rest
                symbols[symbol["name"]] = solved
                break
            if tensor.shape[dimension] > 1 and tensor.numel():
                symbols[symbol["name"]] = tensor.stride(dimension)
                break
    maps = {p["name"] for launch in description["launches"] for p in launch["parameters"] if p["kind"] == "tensor_map"}
    numbers = {m["name"]: n for n, m in enumerate((m for m in description["tensor_maps"] if m["name"] in maps), 1)}
    launches = []
    for launch in description["launches"]:
        grid = tuple(value(each) for each in launch["grid"])
        if 0 in grid:
            continue
        parameters = []
        for parameter in launch["parameters"]:
            if parameter["kind"] == "pointer":
                parameters.append(tensors[parameter["name"]].data_ptr().to_bytes(8, "little"))
            elif parameter["kind"] == "tensor_map":
                parameters.append(bytes([numbers[parameter["name"]]]) * 128)
            else:
                number = call[parameter["name"]] if parameter["value"] is None else value(parameter["value"])
                parameters.append(programs.packed(parameter["dtype"], number))
        attributes: dict[str, Any] = {}
        if launch["cluster"] != [1, 1, 1]:
            attributes["CLUSTER_DIMENSION"] = tuple(launch["cluster"])
        if launch["cooperative"]:
            attributes["COOPERATIVE"] = 1
        if launch["programmatic_stream_serialization"]:
            attributes["PROGRAMMATIC_STREAM_SERIALIZATION"] = 1
        launches.append({
            "function": launch["kernel"], "grid": grid, "block": tuple(launch["block"]),
            "shared": launch["shared_bytes"], "stream": STREAM, "attributes": attributes, "parameters": parameters,
        })  # fmt: skip
    return launches


# ---------------------------------------------------------------- what the driver is given


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("language", programs.COMPILERS)
@pytest.mark.parametrize("rows, columns", [(9, 40), (6, 8), (1, 4)])
def test_a_record_with_everything(fake, tmp_path, rows, columns, language) -> None:
    """(6, …): the second launch has no CTA. A row of its own: strides that do not count."""
    artifact = artifact_of(everything(), (Fact(Var("M", int32), 0, 1000), Fact(Var("N", int32), 0, None, 4)))
    if rows == 1:  # a grid below 0
        record = replace(everything(), launches=everything().launches[:1])
        artifact = artifact_of(record)
    calls = compared(fake, tmp_path, artifact, everything_call(rows, columns), language)
    assert len(calls["launch"]) == (2 if rows == 9 else 1)


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_gemm(fake, tmp_path, arch) -> None:
    kernel = gemm.specialize(M=256, N=320, K=128)
    artifact = kernel.variant.compiled() if arch == kernel.target.name else None
    if artifact is None:
        from ptxtile.compiler import compile_program

        artifact = compile_program(kernel.tile_program, get(arch))
    call = {"A": torch.zeros(256, 128).bfloat16(), "B": torch.zeros(320, 128).bfloat16()}
    calls = compared(fake, tmp_path, artifact, call, "C99")
    assert ("encode" in calls) == (arch == "sm_90a")


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("rows", [0, 16, 48])
def test_dynamic_sizes(fake, tmp_path, rows) -> None:
    kernel = row_sums_and_doubles.compile(N=8)
    compared(fake, tmp_path, kernel.artifact, {"X": torch.zeros(rows, 8)}, "C99")


@ptxtile.jit
def summed(X, Y, tile=32):
    n, m = T.dynamic("n, m")
    X: T.Tensor((n * 4 + 2,), T.float32)
    Y: T.Tensor((m + 2 * n, 3), T.float32)
    Z = T.empty((n, m), T.float32)
    with T.Kernel(T.ceildiv(m, tile), n, threads=tile) as (bx, by):
        for i in T.Parallel(tile):
            Z[by, bx * tile + i] = X[by * 4] + Y[bx * tile + i, 1]
    return Z


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("n, m", [(16, 32), (3, 0), (5, 7)])
def test_sizes_that_sums_give(fake, tmp_path, n, m) -> None:
    call = {"X": torch.zeros(n * 4 + 2), "Y": torch.zeros(m + 2 * n, 3)}
    compared(fake, tmp_path, summed.compile().variant_for(*call.values()).compiled(), call, "C99")


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize(
    "change, reason",
    [
        ("arguments.X.shape[0] = 15;", "X: the shape is not [((n * 4) + 2)]"),
        ("arguments.Y.shape[0] = 4;", "m would be negative"),
        ("arguments.X.shape[0] = 1; ", "X: the shape is not [((n * 4) + 2)]"),
    ],
)
def test_sums_that_do_not_fit(fake, tmp_path, change, reason) -> None:
    tensors = {"X": torch.zeros(3 * 4 + 2), "Y": torch.zeros(5 + 6, 3), "Z": torch.zeros(3, 5)}
    made = summed.compile().export(tmp_path, arguments=[tensors["X"], tensors["Y"]])
    description = json.loads(made.description.read_text())
    (end,) = programs.recorded(tmp_path, description, [*programs.filled(description, tensors, {}), change])["end"]
    assert end["result"] == 1 and end["reason"].startswith(reason)


@pytest.mark.usefixtures("no_machine_code")
def test_the_variant_of_a_call(fake, tmp_path) -> None:
    """Rows that are no multiple of 16, in a tensor with a stride of its own."""
    kernel, x = row_sums_and_doubles.compile(N=8), torch.zeros(7, 11)[:, 1:9]
    made = kernel.export(tmp_path, arguments=[x])
    description = json.loads(made.description.read_text())
    assert {symbol["name"]: symbol["divisor"] for symbol in description["symbols"]} == {"rows": 1, "X_stride0": 1}
    compared(fake, tmp_path, kernel.variant_for(x).compiled(), {"X": x}, "C99")


# ---------------------------------------------------------------- what is refused

REFUSALS = [
    ("arguments.A.shape[0] = 10;", "B: the shape is not [M, N]"),
    ("arguments.B.strides[0] += 4;", "B: the strides are not [N, 1] elements"),
    ("arguments.B.data += 4;", "B: the address is not a multiple of 16 bytes"),
    ("arguments.A.data = 0;", "A: the address is null"),
    ("arguments.C = 0;", "C: the address is null"),
    ("arguments.C += 8;", "C: the address is not a multiple of 16 bytes"),
    ("arguments.A.shape[1] = arguments.B.shape[1] = arguments.B.strides[0] = 42;", "N is not a multiple of 4"),
    ("arguments.C = arguments.B.data;", "B and C overlap in memory"),
    ("arguments.i64 = -1;", "the grid of first is out of range"),
    ("arguments.A.shape[0] = arguments.B.shape[0] = arguments.register_.shape[0] = 2000;", "M is above 1000"),
    ("arguments.nothing.data = 64; arguments.nothing.shape[0] = 3;", "nothing: the shape is not [N]"),
]


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("change, reason", REFUSALS)
def test_refused_calls(fake, tmp_path, change, reason) -> None:
    artifact = artifact_of(everything(), (Fact(Var("M", int32), 0, 1000),))
    made = export_module.export(artifact, tmp_path)
    description = json.loads(made.description.read_text())
    call = everything_call(9, 40)
    binding = bind(artifact.launch, [call[a.name] for a in artifact.launch.arguments], device_type="cpu")
    dtypes = {a.name: a.dtype for a in artifact.launch.arguments if isinstance(a, ScalarArgument)}
    scalars = {name: programs.packed(dtype, call[name]) for name, dtype in dtypes.items()}
    statements = [*programs.filled(description, binding.tensors, scalars), change]
    calls = programs.recorded(tmp_path, description, statements)
    (end,) = calls["end"]
    assert end["result"] == 1 and end["reason"].startswith(reason)
    assert "launch" not in calls


@pytest.mark.usefixtures("no_machine_code")
def test_overlap_matters_where_one_is_written(fake, tmp_path) -> None:
    @ptxtile.jit
    def scaled_into(A, B, C):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N,), T.float32)
        C: T.Tensor((N,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                C[i] = A[i] + B[i]

    artifact = scaled_into.compile(N=64).artifact
    made = export_module.export(artifact, tmp_path)
    description = json.loads(made.description.read_text())
    assert [argument["written"] for argument in description["arguments"]] == [False, False, True]
    a, c = torch.zeros(64), torch.zeros(64)
    for tensors, reason in (({"A": a, "B": a, "C": c}, ""), ({"A": a, "B": c, "C": c}, "B and C overlap in memory")):
        calls = programs.recorded(tmp_path, description, programs.filled(description, tensors, {}))
        assert calls["end"][0]["reason"].startswith(reason) and (len(calls.get("launch", ())) == 1) == (not reason)


# ---------------------------------------------------------------- files and names


def test_files(tmp_path) -> None:
    made = gemm.compile(M=128, N=128, K=64).export(tmp_path / "new", "product")
    assert {path.suffix for path in made.files} >= {".ptx", ".ll", ".json", ".h"}
    assert ".visible .entry gemm_kernel" in made.ptx.read_text() and "define" in made.llvm_ir.read_text()
    description = json.loads(made.description.read_text())
    assert description["format"] == "ptxtile-launch" and description["version"] == 1
    assert description["name"] == "product" and "product_launch" in made.header.read_text()
    assert (made.cubin is None) == (description["files"]["cubin"] is None)
    if made.cubin is not None:
        assert made.cubin.read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(ArgumentError, match="a name in C"):
        gemm.compile(M=128, N=128, K=64).export(tmp_path, "not a name")


def test_without_a_driver_and_without_ptxas_there_is_no_cubin(tmp_path, monkeypatch) -> None:
    from ptxtile.inspect import machine_code

    def missing() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(driver.Driver, "version", lambda self: missing())
    monkeypatch.setattr(machine_code, "find_tool", lambda name: None)
    (tmp_path / "gemm.cubin").write_bytes(b"of an earlier export")
    made = gemm.compile(M=128, N=128, K=64).export(tmp_path)
    assert made.cubin is None and not (tmp_path / "gemm.cubin").exists()
    assert made.cubin_reason == "left out: no CUDA driver on this machine; and ptxas was not found"
    assert json.loads(made.description.read_text())["cubin_reason"] == made.cubin_reason


def test_the_cubin_of_a_driver(fake, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(driver.Driver, "link", lambda self, ptx, options: b"\x7fELF of the driver")
    made = gemm.compile(M=128, N=128, K=64).export(tmp_path)
    assert made.cubin is not None and made.cubin.read_bytes() == b"\x7fELF of the driver"
    assert made.cubin_reason == "made by the driver for compute capability 9.0"


def test_the_command(tmp_path) -> None:
    file = Path(__file__).parent.parent.parent / "examples" / "gemm.py"
    command = [sys.executable, "-m", "ptxtile", "export", f"{file}:gemm", "-D", "M=128", "-D", "N=128", "-D", "K=64"]
    done = subprocess.run(
        [*command, "--arch", "sm_80", "-o", str(tmp_path), "--name", "g"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"g.ptx", "g.ll", "g.json", "g.h"}
    assert json.loads((tmp_path / "g.json").read_text())["target"] == "sm_80" and "cubin: " in done.stderr


def test_names_that_c_has_taken() -> None:
    assert [identifier(name) for name in ("A", "register", "größe", "x_1")] == [
        "A",
        "register_",
        "gr_u00f6_u00dfe",
        "x_1",
    ]


def test_the_checker_of_headers_can_fail(tmp_path) -> None:
    """A warning is an error."""
    with pytest.raises(AssertionError, match="unused"):
        programs.compiled(tmp_path, "int main(void) { int x; return 0; }\n")


def test_random_sizes_have_the_values_of_python(tmp_path, random_generator) -> None:
    draw = random.Random(int(random_generator.integers(2**63)))
    values = {name: draw.randint(-40, 40) for name in ("M", "N", "K")}

    def drawn(depth: int) -> Any:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice([draw.randint(-9, 9), Symbol(draw.choice("MNK"))])
        operator = draw.choice(["add", "sub", "mul", "floordiv", "mod", "min", "max"])
        return SizeOperation(operator, drawn(depth - 1), drawn(depth - 1))

    chosen, wanted = [], []
    while len(chosen) < 200:
        expression = drawn(4)
        try:
            wanted.append(evaluate_size(expression, values))
        except ZeroDivisionError:
            continue
        chosen.append(expression)
    lines = [f'    printf("%lld\\n", (long long){size_expression(size(one), "")});' for one in chosen]
    source = ["#include <stdio.h>\n#include <string.h>\n#include <cuda.h>", SUPPORT, "int main(void) {"]
    source += [f"    int64_t {name} = {value};" for name, value in values.items()]
    source += ["    (void)M; (void)N; (void)K;", *lines, "    return 0;", "}", ""]
    program = programs.compiled(
        tmp_path, "\n".join(source), [programs.DRIVER / "recording_driver.c"],
        extra=["-DPTXTILE_NOTHING", "-Wno-unused-function", str(_sizes_file(tmp_path))],
    )  # fmt: skip
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in printed.split()] == wanted


def _sizes_file(folder: Path) -> Path:
    path = folder / "sizes.c"
    path.write_text(
        "int parameter_sizes(const char *kernel, int number);\n"
        "int parameter_sizes(const char *kernel, int number) { (void)kernel; (void)number; return 0; }\n"
    )
    return path


@pytest.mark.parametrize("language", programs.COMPILERS)
def test_two_headers_in_one_program(tmp_path, language) -> None:
    for name in ("one", "other"):
        artifact = artifact_of(replace(everything(), name=name))
        description = {**describe(artifact, {"ptx": "p", "llvm_ir": "l", "header": "h", "cubin": None}, "")}
        (tmp_path / f"{name}.h").write_text(header(description))
    source = '#include "one.h"\n#include "other.h"\n#include "one.h"\nint main(void) { return 0; }\n'
    programs.compiled(tmp_path, source, language=language, extra=["-fsyntax-only"])


@pytest.mark.usefixtures("no_machine_code")
def test_the_program_for_a_card_compiles(tmp_path) -> None:
    gemm.compile(M=64, N=64, K=64).export(tmp_path, "product")
    sizes = ["-DROWS=64", "-DCOLUMNS=64", "-DINNER=64"]
    for language in programs.COMPILERS:
        programs.compiled(tmp_path, programs.WHOLE, language=language, extra=["-fsyntax-only", *sizes])


def test_with_the_toolkit_s_own_header(tmp_path) -> None:
    found = [path for path in (Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include"))
             if (path / "cuda.h").exists()]  # fmt: skip
    if not found:
        pytest.skip("there is no cuda.h of a CUDA toolkit here")
    artifact = artifact_of(everything())
    export_module.export(artifact, tmp_path)
    for language in programs.COMPILERS:
        command = [*programs.compiler(language), *programs.STRICT, f"-I{tmp_path}", "-isystem", str(found[0])]
        (tmp_path / "main.c").write_text('#include "everything.h"\nint main(void) { return 0; }\n')
        done = subprocess.run([*command, "-fsyntax-only", str(tmp_path / "main.c")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_lowered_programs_are_exported_too(tmp_path) -> None:
    kernel = row_sums_and_doubles.specialize(N=8)
    made = export_module.export(lower(kernel.tile_program, get("sm_80")), tmp_path)
    assert "maximum" in made.description.read_text()
