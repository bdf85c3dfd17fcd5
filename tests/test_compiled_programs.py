"""Kernels of an earlier process: found by what they are, launched as if compiled, made anew when in doubt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ptxtile
import ptxtile.language as T
from ptxtile import call_keys, compiled_programs, compiler, target, variant
from ptxtile.errors import Location, PerformanceWarning
from ptxtile.inspect.command_line import app
from ptxtile.lower.options import Options
from ptxtile.runtime import arguments, context, disk_cache, driver
from tests.gemm import kernels
from tests.runtime.fake_bindings import FakeBindings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def cache(monkeypatch, tmp_path) -> disk_cache.DiskCache:
    """A cache of the test's own, in use."""
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PTXTILE_VERIFY", "0")
    found = disk_cache.opened()
    assert found is not None
    return found


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    """CPU tensors stand for those of a card that the driver's stand-in has."""
    made = FakeBindings(sizes=(8, 8, 4))
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: 5)
    bind, read = arguments.bind, call_keys.call_key

    def bind_on_cpu(record, args, kwargs=None, *, device_type):
        return bind(record, args, kwargs, device_type="cpu")

    monkeypatch.setattr(arguments, "bind", bind_on_cpu)
    monkeypatch.setattr(call_keys, "call_key", lambda args: (read(args)[0], "cuda", 0))
    return made


@pytest.fixture
def compiles(monkeypatch) -> list[str]:
    """Names of the programs that the passes have run over."""
    names: list[str] = []
    lower = compiler.lower

    def noted(program, *rest):
        names.append(program.name)
        return lower(program, *rest)

    monkeypatch.setattr(variant, "lower", noted)
    return names


def scaled(factor: float = 2.0, **options):
    """A kernel as a new process would define it."""

    @ptxtile.jit(target="sm_90a", **options)
    def scale(A, n):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        n: T.int32
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] * factor + T.cast(n, "float32")
        return B

    return scale


def loaded(fake: FakeBindings) -> list[bytes]:
    return [call[1] for call in fake.calls if call[0] == "load"]


def test_a_second_process_does_not_compile(cache, fake, compiles) -> None:
    a = torch.zeros(1000)
    for _ in range(3):
        result = scaled()(a, 7)
        assert result.shape == (1000,)
    assert compiles == ["scale"] and len(cache.entries()) == 1
    assert len(set(loaded(fake))) == 1 and len(loaded(fake)) == 3
    first, *others = fake.launched
    for other in others:
        assert {**other, "parameters": None} == {**first, "parameters": None}
        assert other["parameters"][2] == first["parameters"][2]
    kernel = scaled().compile(N=1000)  # asked for its IR, a kernel is compiled whatever is on disk, and is the same
    assert kernel.ptx.encode() + b"\0" == loaded(fake)[0] and kernel.launch.launches[0].block == (128, 1, 1)


def test_what_makes_another_kernel(cache, fake, compiles, monkeypatch) -> None:
    a = torch.zeros(1024)
    scaled()(a, 7)
    for count, other in enumerate((
        lambda: scaled(3.0)(a, 7),  # a closure
        lambda: scaled(fast_math=True)(a, 7),  # an option
        lambda: scaled()(torch.zeros(512), 7),  # a size
        lambda: scaled()(torch.zeros(1025)[1:], 7),  # an alignment
    ), start=2):  # fmt: skip
        other()
        other()
        assert len(compiles) == count and len(cache.entries()) == count
    monkeypatch.setattr(compiled_programs, "_compiler_hash", lambda: "another compiler")
    scaled()(a, 7)
    assert len(compiles) == 6


def test_the_key_counts_every_part(monkeypatch) -> None:
    program = scaled().specialize(N=64).variant.tile_program
    where, options = target.get("sm_90a"), Options()
    keys = {
        compiled_programs.key_of(program, where, options),
        compiled_programs.key_of(program, target.get("sm_90"), options),
        compiled_programs.key_of(program, where, Options(contract=False)),
        compiled_programs.key_of(scaled().specialize(N=65).variant.tile_program, where, options),
    }
    for name in ("_llvm_version", "_compiler_hash"):
        monkeypatch.setattr(compiled_programs, name, lambda: "another")
        keys.add(compiled_programs.key_of(program, where, options))
        monkeypatch.undo()
    monkeypatch.setattr(compiled_programs, "__version__", "another")
    keys.add(compiled_programs.key_of(program, where, options))
    assert len(keys) == 7 and all(len(key) == 64 and int(key, 16) for key in keys)


def test_an_edit_of_the_compiler_changes_its_hash(monkeypatch, tmp_path) -> None:
    for part in compiled_programs._SOURCES:
        if part.endswith(".py"):
            (tmp_path / part).write_text("a = 1\n")
        else:
            (tmp_path / part / "deep").mkdir(parents=True)
            (tmp_path / part / "deep" / "file.py").write_text("b = 2\n")
    monkeypatch.setattr(compiled_programs, "__file__", str(tmp_path / "compiled_programs.py"))
    find = compiled_programs._compiler_hash.__wrapped__
    hashes = {find()}
    for part in ("compiler.py", "lower/deep/file.py"):
        path = tmp_path / part
        path.write_text(path.read_text().replace("=", "=="))
        hashes.add(find())
    (tmp_path / "ir" / "deep" / "file.py").rename(tmp_path / "ir" / "deep" / "other.py")
    hashes.add(find())
    (tmp_path / "nvvm" / "new.py").write_text("")
    hashes.add(find())
    assert len(hashes) == 5 and find() == find()


PRINT_KEYS = """
import sys
sys.path[:0] = [{root!r}, {folder!r}]
import moved
from ptxtile import compiled_programs, target
from ptxtile.lower.options import Options
from tests.gemm import kernels
gemm = kernels.gemm.specialize(M=300, N=264, K=520, transpose_B=True, block_M=128, block_N=128, threads=256)
for kernel in (moved.scale.specialize(N=64), gemm):
    variant = kernel.variant
    print(compiled_programs.key_of(variant.tile_program, variant.target, variant.settings.options))
    import hashlib
    print(hashlib.sha256(variant.compiled().llvm_ir.encode()).hexdigest() if kernel is gemm else "")
"""
MOVED = """\
import ptxtile, ptxtile.language as T
{lines}
@ptxtile.jit(target="sm_90a")
def scale(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[i]
    return B
"""


def test_other_processes_find_and_make_the_same(tmp_path) -> None:
    """Whatever Python's hashes are, and wherever in its file the kernel stands: one key, and the same code."""
    seen = set()
    for seed in ("0", "1", "77"):
        (tmp_path / "moved.py").write_text(MOVED.format(lines="\n" * int(seed)))
        text = textwrap.dedent(PRINT_KEYS).format(root=str(ROOT), folder=str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed, "PTXTILE_VERIFY": "0"},
            capture_output=True, text=True, timeout=250, check=True,
        )  # fmt: skip
        seen.add(done.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize("damage", ["cut", "another format", "no record", "not JSON"])
def test_an_entry_that_cannot_be_read_is_made_anew(cache, fake, compiles, damage) -> None:
    a = torch.zeros(256)
    scaled()(a, 7)
    (entry,) = cache.entries()
    content = cache.read(entry.key, "program.json")
    assert content is not None
    fields = json.loads(content)
    if damage == "cut":
        path = next(cache.folder.rglob("program.json"))
        path.write_bytes(path.read_bytes()[:-10])
    else:
        changed = {"another format": fields | {"warned": 3}, "no record": fields | {"launch": "{}"}}.get(damage)
        cache.write(entry.key, "program.json", b"{" if changed is None else json.dumps(changed).encode())
    scaled()(a, 7)
    scaled()(a, 7)
    assert compiles == ["scale", "scale"] and len(set(loaded(fake))) == 1
    assert cache.read(entry.key, "program.json") == content


@pytest.mark.parametrize(
    "variable, value", [("PTXTILE_CACHE_MEGABYTES", "0"), ("PTXTILE_VERIFY", "1"), ("PTXTILE_DUMP", "x")]
)
def test_when_the_compiler_has_to_run(cache, fake, compiles, monkeypatch, tmp_path, variable, value) -> None:
    a = torch.zeros(256)
    scaled()(a, 7)
    monkeypatch.setenv(variable, str(tmp_path / "dump") if value == "x" else value)
    scaled()(a, 7)
    scaled()(a, 7)
    assert len(compiles) == 3 and len(cache.entries()) == 1


def test_a_full_disk_changes_nothing_but_time(cache, fake, compiles, monkeypatch, caplog) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache.tempfile, "mkstemp", full)
    a = torch.zeros(256)
    for _ in range(3):
        assert scaled()(a, 7).shape == (256,)
    assert len(compiles) == 3 and caplog.text.count("No space left on device") == 1
    cache._writable = True


def test_threads_share_one_compile(cache, fake, compiles) -> None:
    variant = scaled().specialize(N=512).variant
    found, started = [], threading.Barrier(8)

    def work() -> None:
        started.wait()
        found.append(variant.executable())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({id(executable) for executable in found}) == 1 and compiles == ["scale"]


def test_warnings_of_the_passes_come_again(cache, fake, monkeypatch) -> None:
    place = Location("/home/user/k.py", 12, 5)
    made = [PerformanceWarning("slow because", location=place), PerformanceWarning("and slow")]
    monkeypatch.setattr(compiled_programs, "warnings_of", lambda program: made)
    scaled()(torch.zeros(256), 7)
    with pytest.warns(PerformanceWarning) as caught:
        scaled()(torch.zeros(256), 7)
    assert [str(warning.message) for warning in caught] == ["slow because", "and slow"]
    assert (caught[0].filename, caught[0].lineno) == ("/home/user/k.py", 12)
    assert isinstance(caught[0].message, PerformanceWarning) and caught[0].message.location == place


SAID = """\
ptxas info    : Compiling entry function 'scale_kernel' for 'sm_90a'
ptxas info    : Function properties for scale_kernel
ptxas         .     24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 40 registers
"""


def test_what_the_assembler_said_is_kept(cache, fake) -> None:
    """A driver that takes the code from its own cache says nothing: figures and warnings come from the first time."""
    fake.info = SAID
    with pytest.warns(PerformanceWarning, match="local memory"):
        scaled()(torch.zeros(256), 7)
    fake.info = ""
    kernel = scaled().specialize(N=256)
    with pytest.warns(PerformanceWarning, match="local memory"):
        figures = kernel.variant.executable().resources(0)["scale_kernel"]
    assert (figures.spill_stores, figures.spill_loads) == (20, 28)
    fake.driver_version = 12080  # another driver has not said anything yet
    fresh = scaled().specialize(N=256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh.variant.executable().resources(0)["scale_kernel"].spill_stores is None


def test_a_product_from_disk_is_the_compiled_one(cache, compiles) -> None:
    """All of a launch record, maps and roles among it."""

    def variant():
        kernels.gemm._kernels.clear()
        return kernels.gemm.specialize(M=512, N=512, K=256, block_M=128, block_N=128, threads=256).variant

    first, second = variant().executable(), variant().executable()
    assert compiles == ["gemm"] and second.ptx == first.ptx and second.record == first.record
    assert second.record.tensor_maps and second.target_name == first.target_name


def test_the_command(cache, fake) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["cache", "path"]).stdout.strip() == str(cache.folder.parent)
    assert "0 kernels" in runner.invoke(app, ["cache", "list"]).stdout
    scaled()(torch.zeros(256), 7)
    scaled()(torch.zeros(384), 7)
    shown = runner.invoke(app, ["cache", "list"]).stdout.splitlines()
    assert len(shown) == 3 and shown[2].startswith("2 kernels, 0.0 MB of 1074 MB in ")
    keys = {entry.key for entry in cache.entries()}
    assert all("scale" in line and "sm_90a" in line for line in shown[:2])
    assert {line.split()[0] for line in runner.invoke(app, ["cache", "list", "--full"]).stdout.splitlines()[:2]} == keys
    assert runner.invoke(app, ["cache", "clear"]).stdout == "removed 2 kernels\n" and cache.entries() == []


def test_the_command_without_a_cache(monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_CACHE_MEGABYTES", "0")
    for words in (["cache", "list"], ["cache", "clear"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1 and "PTXTILE_CACHE_MEGABYTES is 0" in result.stderr


def test_a_process_can_do_without_the_cache(cache: disk_cache.DiskCache) -> None:
    """As TileLang's scripts ask for it; the entries that are there stay."""
    assert ptxtile.is_cache_enabled() and compiled_programs.is_on()
    ptxtile.disable_cache()
    try:
        assert not ptxtile.is_cache_enabled() and not compiled_programs.is_on()
    finally:
        ptxtile.enable_cache()
    assert ptxtile.is_cache_enabled() and compiled_programs.is_on()
