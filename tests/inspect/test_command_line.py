"""The command line: finding the subject, definitions and options, views, output files, exit codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ptxtile import compiler
from ptxtile.compiler import Artifact
from ptxtile.errors import LoweringError
from ptxtile.inspect.command_line import app
from ptxtile.inspect.subject import UsageError, parse_definitions, with_options
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.launch_record import LaunchRecord
from ptxtile.lower.options import Options

IR = """\
ptxtile_ir(1)
program("add", stage="tile")
A = tensor(float32, (64,))

@kernel(grid=(1, 1, 1), threads=32)
def add(bx, by, bz, thread):
    pass
"""
FILE = f"""\
from dataclasses import replace
from types import SimpleNamespace
from ptxtile import target
from ptxtile.errors import TraceError
from ptxtile.ir.parser import parse_program
from ptxtile.lower.options import Options

class Kernel:
    def __init__(self, **sizes):
        self.sizes = sizes

    @property
    def variant(self):
        name = "_".join(["add", *(f"{{k}}{{v!r}}" for k, v in self.sizes.items())])
        settings = SimpleNamespace(options=Options(contract=False))
        program = replace(parse_program({IR!r}), name=name)
        timings = {{"rewrite": 0.0005, "trace": 0.001}}
        return SimpleNamespace(
            tile_program=program, target=target.get("sm_80"), settings=settings, trace_timings=timings
        )

class Jitted:
    def specialize(self, **sizes):
        if sizes.get("M") == 7:
            raise TraceError("M is seven", expected="another", got="7")
        return Kernel(**sizes)

add = Jitted()
kernel = Kernel()
number = 5

class Broken:
    def specialize(self, **sizes):
        return 1 // 0

broken = Broken()
if __name__ == "__main__":
    raise SystemExit("the guard ran")
"""


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "kernels.py"
    path.write_text(FILE)
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(app, ["inspect", *arguments])


@pytest.fixture
def compiled(monkeypatch) -> list[dict]:
    """The compiler's steps are stand-ins; the list receives what they are given."""
    given: list[dict] = []

    def lower(program, chosen, options):
        given.append({"program": program.name, "target": chosen.name, "options": options, "emit_ptx": False})
        lowered = parse_program(IR.replace('"add"', '"lowered"'))
        object.__setattr__(lowered, "launch", LaunchRecord("add", ()))
        return Artifact(program, lowered, chosen, options, timings={"legalize": 0.0015, "llvm emit": 0.25})

    def emit_ptx(artifact):
        given[-1]["emit_ptx"] = True
        return replace(artifact, ptx="the ptx\n", llvm_ir="the llvm\n")

    def lower_program(program, chosen, options, observe):
        observe("trace", program)
        observe("first pass", parse_program(IR.replace('"add"', '"after_first"')))
        if options.fast_math:
            raise LoweringError("the second pass failed")
        observe("second pass", parse_program(IR.replace('"add"', '"after_second"')))

    monkeypatch.setattr(compiler, "lower", lower)
    monkeypatch.setattr(compiler, "emit_ptx", emit_ptx)
    monkeypatch.setattr(compiler, "lower_program", lower_program)
    return given


def test_tile_ir(file) -> None:
    shown = run(f"{file}:kernel", "--tile-ir")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.strip() == print_program(parse_program(IR)).strip()


def test_definitions_reach_the_kernel(file) -> None:
    shown = run(f"{file}:add", "--tile-ir", "-D", "M=1024", "-D", "dtype=float16")
    assert "program(\"add_M1024_dtype'float16'\"" in shown.stdout.replace("\\", "")


def test_views(file, compiled) -> None:
    expected = {
        "--ptx": "the ptx\n",
        "--llvm": "the llvm\n",
        "--host": "host part of add\n",
        "--why": "no decisions were recorded\n",
    }
    for flag, text in expected.items():
        shown = run(f"{file}:add", flag)
        assert (shown.exit_code, shown.stdout) == (0, text)
    assert [given["emit_ptx"] for given in compiled] == [True, True, False, False]
    assert 'program("lowered"' in run(f"{file}:add", "--gpu-ir").stdout
    assert run(f"{file}:add").stdout == "the ptx\n"
    timing = run(f"{file}:add", "--timing").stdout.splitlines()
    figures = {line.rpartition(" ")[0].strip(): float(line.rpartition(" ")[2]) for line in timing[1:]}
    assert (figures["passes"], figures["legalize"], figures["LLVM"], figures["emit"]) == (1.5, 1.5, 250.0, 250.0)
    assert figures["rewrite"] == 0.5 and figures["trace + passes + LLVM"] == 253.0
    assert not any("JIT" in name for name in figures)  # no card can run the stand-in


def test_target_and_options(file, compiled) -> None:
    run(f"{file}:add", "--ptx")
    assert compiled[-1]["target"] == "sm_80" and compiled[-1]["options"] == Options(contract=False)
    run(f"{file}:add", "--ptx", "--arch", "sm_90a", "-O", "specialize_warps=True", "-O", "fast_math=true")
    assert compiled[-1]["target"] == "sm_90a"
    assert compiled[-1]["options"] == Options(specialize_warps=True, fast_math=True, contract=False)


def test_passes(file, compiled, tmp_path) -> None:
    shown = run(f"{file}:add", "--passes")
    heads = [line for line in shown.stdout.splitlines() if line.startswith("# =====")]
    assert heads == ["# ===== 00 trace =====", "# ===== 01 first pass =====", "# ===== 02 second pass ====="]
    assert shown.stdout.index("after_first") < shown.stdout.index("after_second")
    assert run(f"{file}:add", "--passes", "-o", str(tmp_path / "all.txt")).exit_code == 0
    assert (tmp_path / "all.txt").read_text() == shown.stdout
    assert run(f"{file}:add", "--passes", "-o", str(tmp_path / "stages")).exit_code == 0
    names = sorted(path.name for path in (tmp_path / "stages").iterdir())
    assert names == ["00_trace.ir.py", "01_first_pass.ir.py", "02_second_pass.ir.py"]
    assert parse_program((tmp_path / "stages" / "01_first_pass.ir.py").read_text()).name == "after_first"


REAL_FILE = """\
import ptxtile
import ptxtile.language as T

@ptxtile.jit
def large(A):
    N = T.const("N")
    A: T.Tensor((N, 256), T.float32)
    B = T.empty((N, 256), T.float32)
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((128, 256), T.float32)
        T.copy(A[0, 0], tile)
        T.copy(tile, B[0, 0])
    return B
"""


def test_a_kernel_that_only_another_target_can_have(tmp_path, monkeypatch) -> None:
    """128 KiB of shared memory: too much for sm_86, which is the default here, and its earlier passes are shown."""
    file = tmp_path / "large.py"
    file.write_text(REAL_FILE)
    monkeypatch.setenv("PTXTILE_TARGET", "sm_86")
    refused = run(f"{file}:large", "--passes", "-D", "N=128")
    assert refused.exit_code == 1 and "needs more shared memory than sm_86 has" in refused.stderr
    assert "select_paths (select paths) =====" in refused.stdout
    assert run(f"{file}:large", "--tile-ir", "-D", "N=128").exit_code == 0
    shown = run(f"{file}:large", "--ptx", "--arch", "sm_90a", "-D", "N=128")
    assert shown.exit_code == 0 and ".target sm_90a" in shown.stdout


@pytest.mark.parametrize("value", ["abc", "1.5", "-3", "True"])
def test_a_size_that_is_no_size(tmp_path, value) -> None:
    file = tmp_path / "large.py"
    file.write_text(REAL_FILE)
    shown = run(f"{file}:large", "-D", f"N={value}")
    assert shown.exit_code == 1 and shown.stderr.startswith("the size N of large\n  expected: an integer ≥ 0\n  got: ")
    assert "on the command line: -D N=…" in run(f"{file}:large").stderr


def test_passes_before_an_error_are_shown(file, compiled) -> None:
    shown = run(f"{file}:add", "--passes", "-O", "fast_math=True")
    assert shown.exit_code == 1 and "after_first" in shown.stdout and "the second pass failed" in shown.stderr


def test_output_file(file, compiled, tmp_path) -> None:
    assert run(f"{file}:add", "--ptx", "-o", str(tmp_path / "add.ptx")).stdout == ""
    assert (tmp_path / "add.ptx").read_text() == "the ptx\n"


def test_an_error_of_the_tree_is_its_report_alone(file) -> None:
    shown = run(f"{file}:add", "-D", "M=7")
    assert shown.exit_code == 1 and shown.stdout == ""
    assert shown.stderr == "M is seven\n  expected: another\n  got:      7\n"


def test_a_missing_tool_is_one_line_and_code_1(file, compiled, monkeypatch) -> None:
    from ptxtile.inspect import machine_code

    monkeypatch.setattr(machine_code, "find_tool", lambda name: None)
    shown = run(f"{file}:add", "--sass")
    assert shown.exit_code == 1 and shown.stderr.startswith("machine code cannot be shown: neither nvdisasm nor")


def test_the_users_own_error_keeps_its_traceback(file) -> None:
    shown = run(f"{file}:broken")
    assert shown.exit_code == 1 and "ZeroDivisionError" in shown.stderr and "kernels.py" in shown.stderr
    assert "command_line.py" not in shown.stderr
    path = file.replace("kernels", "wrong")
    with open(path, "w") as wrong:
        wrong.write("def f(:\n")
    shown = run(f"{path}:f")
    assert shown.exit_code == 1 and "SyntaxError" in shown.stderr and "command_line.py" not in shown.stderr


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["{file}"], "is not FILE.py:NAME"),
        (["/no/such/file.py:add"], "there is no file"),
        (["{file}:nothing"], "has no 'nothing'"),
        (["{file}:number"], "decorate it with @ptxtile.jit"),
        (["{file}:kernel", "-D", "M=1"], "-D cannot change it"),
        (["{file}:add", "-D", "M"], "is not NAME=VALUE"),
        (["{file}:add", "-O", "fast=1"], "unknown option 'fast'"),
        (["{file}:add", "-O", "fast_math=3"], "True or False"),
        (["{file}:add", "--ptx", "--llvm"], "one view at a time: --llvm, --ptx"),
        (["{file}:add", "--nonsense"], "--nonsense"),
        ([], ""),
    ],
)
def test_usage_errors_are_code_2(file, arguments, part) -> None:
    shown = run(*(argument.format(file=file) for argument in arguments))
    assert shown.exit_code == 2, shown.output
    assert part in " ".join(shown.stderr.split())


def test_an_unknown_architecture(file) -> None:
    shown = run(f"{file}:add", "--arch", "sm_90b")
    assert shown.exit_code == 1 and "unknown architecture 'sm_90b'" in shown.stderr


def test_values_of_definitions() -> None:
    texts = ["i=12", "h=0x10", "f=1e-5", "n=-3", "t=True", "l=false", "s=float16", "q='1'", "p=(1, 2)", "e=a=b"]
    expected = {"i": 12, "h": 16, "f": 1e-5, "n": -3, "t": True, "l": False, "s": "float16", "q": "1", "p": (1, 2)}
    assert parse_definitions(texts) == {**expected, "e": "a=b"}


def test_the_values_of_options() -> None:
    assert with_options(Options(), {"specialize_warps": "auto"}).specialize_warps == "auto"
    for wrong in ("yes", 1, None):
        with pytest.raises(UsageError):
            with_options(Options(), {"specialize_warps": wrong})


def test_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.stdout.startswith("ptxtile ")
