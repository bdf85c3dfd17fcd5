"""Sweeps in the simulator, with times of a stand-in clock: what is tried, what is left out, what is found again."""

from __future__ import annotations

import functools
import json
import logging
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
from ptxtile.autotuner import AutoTuner, get_autotune_inputs, set_autotune_inputs
from ptxtile.errors import ArgumentError, TuningError
from ptxtile.tune import measure_task, store, sweep
from ptxtile.tune.results import Status
from tests.autotune import kernels
from tests.autotune.kernels import numbered_clock


class Here(Executor):
    """Compiles in this process, at once; counts what it is given."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += args
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path))
    kernels.restart_clocks()
    return tmp_path


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def tuned(here: Here):
    return functools.partial(ptxtile.autotune, executor=here, clock=numbered_clock, warmup=1, rep=1, progress=False)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 96), torch.randn(4, 96)


# -- the forms


def test_the_eager_form_returns_results(tuned) -> None:
    function = tuned(configs={"block": [32, 96], "threads": [32]}, ref_prog=torch.add)(kernels.add)
    a, b = tensors()
    torch.testing.assert_close(function(a, b), a + b)
    result = function.tune(a, b)
    assert result.config == {"block": 32, "threads": 32} and result.latency == 1.0
    assert [row.latency for row in result.rows] == [1.0, 2.0]
    assert function.get_best_config(a, b) == result.config
    assert result.kernel.config == result.config and result.kernel.latency == 1.0


def test_other_shapes_are_another_sweep(tuned, here: Here) -> None:
    function = tuned(configs=[{"block": 32}])(kernels.add)
    a, b = tensors()
    for _ in range(3):
        function(a, b)
        function(a * 2, b)  # other values are not
    assert len(here.tasks) == 1
    function(a[:2], b[:2])
    assert len(here.tasks) == 2


def test_numbers_of_the_call_and_named_arguments_make_no_sweep_of_their_own(tuned, here: Here) -> None:
    function = tuned(configs=[{"threads": 32}])(kernels.scale)
    a = torch.randn(4, 32)
    for factor in (1.0, 2.0, 3.5):
        torch.testing.assert_close(function(a, factor), a * factor)
    assert len(here.tasks) == 1
    loose = tuned(configs=[{"threads": 64}], do_not_specialize=("A",))(kernels.scale)
    for rows in (1, 2, 3):
        torch.testing.assert_close(loose(a[:rows], 2.0), a[:rows] * 2)
    assert len(here.tasks) == 2


def test_threads_share_a_sweep(tuned, here: Here) -> None:
    function = tuned(configs={"block": [32, 96]})(kernels.add)
    a, b = tensors()
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: function.tune(a, b), range(8)))
    assert all(result is results[0] for result in results) and len(here.tasks) == 2


def test_sizes_instead_of_tensors(tuned) -> None:
    function = tuned(configs=[{"block": 32}, {"block": 64}], ref_prog=torch.add)(kernels.add)
    kernel = function.compile(M=4, N=64)
    a, b = torch.randn(2, 4, 64)
    torch.testing.assert_close(kernel(a, b), a + b)
    assert kernel.ref_latency is None  # the stand-in's times and the host's are not for comparing


def test_the_factory_form_returns_the_kernel(tuned) -> None:
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    configs = {"block_M": [64, 32], "threads": [64]}
    function = tuned(configs=configs, ref_prog=lambda a, b: a.float() @ b.float())(factory)
    kernel = function(64, 32, 64)
    assert kernel.config == {"block_M": 64, "threads": 64}
    a, b = torch.randn(64, 64).half(), torch.randn(64, 32).half()
    torch.testing.assert_close(kernel(a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-3)
    assert function(64, 32, 64) is kernel
    assert function(64, 32, 64, block_M=32).config is None  # steered by hand: not tuned


def test_tilelangs_get_best_config(here: Here) -> None:
    """Its examples' way: a plain factory of tuned arguments alone."""
    M, N, K = 64, 64, 64

    def kernel(block_M=None, threads=None):
        return kernels.product_factory(M, N, K, block_M=block_M, threads=threads)

    tuner = (
        AutoTuner.from_kernel(kernel=kernel, configs=[{"block_M": 32, "threads": 64}, {"block_M": 64, "threads": 64}])
        .set_compile_args(out_idx=[-1], target="sm_90a")
        .set_profile_args(
            supply_type=ptxtile.TensorSupplyType.Integer, ref_prog=lambda a, b: a.float() @ b.float(), skip_check=False,
            executor=here, clock=numbered_clock, progress=False,
        )
    )  # fmt: skip
    result = tuner.run(warmup=1, rep=1)
    assert result.config["block_M"] == 32 and result.latency == 1.0 and "entry" in result.libcode
    result.kernel.get_profiler().assert_allclose(lambda a, b: a.float() @ b.float())


def test_arguments_of_the_users_own(tuned) -> None:
    """``double`` of ones: the reference is only right for these."""
    function = tuned(configs=[{"threads": 32}], ref_prog=lambda a: torch.full((2, 32), 2.0))(kernels.double)
    with set_autotune_inputs(torch.ones(2, 32)):
        assert get_autotune_inputs() is not None
        function.tune(M=2, N=32)
    assert get_autotune_inputs() is None
    supplied = tuned(
        configs=[{"threads": 64}], ref_prog=lambda a: torch.full((2, 32), 2.0),
        supply_prog=lambda parameters: [torch.ones(2, 32) for _ in parameters],
    )(kernels.double)  # fmt: skip
    assert supplied.tune(M=2, N=32).rows[0].status is Status.MEASURED


def test_options_of_the_compiler_in_a_configuration(tuned, here: Here) -> None:
    configs = [{"block": 32}, {"block": 32, "pass_configs": {"tl.disable_tma_lower": True}}]
    found = tuned(configs=configs)(kernels.add).tune(*tensors())
    assert [task.options.disable_tma for task in here.tasks] == [False, True]
    assert [row.status for row in found.rows] == [Status.MEASURED] * 2


# -- what is left out, and why


def test_a_wrong_configuration_does_not_win(tuned) -> None:
    function = tuned(configs={"shift": [0.5, 0.0]}, ref_prog=torch.add)(kernels.add)
    found = function.tune(*tensors())
    assert [row.status for row in found.rows] == [Status.WRONG, Status.MEASURED]
    assert "384 of 384 elements" in found.rows[0].reason and found.config == {"shift": 0.0}


def test_what_is_not_written_is_not_right_by_luck(tuned) -> None:
    """The right results of an earlier configuration may lie where the next one's are allocated."""
    function = tuned(configs={"rows": [4, 2]}, ref_prog=torch.clone)(kernels.incomplete)
    found = function.tune(torch.randn(4, 32))
    assert [row.status for row in found.rows] == [Status.MEASURED, Status.WRONG]


def test_the_users_own_check(tuned) -> None:
    def check(got, wanted):
        assert len(got) == len(wanted) == 1 and torch.equal(got[0], wanted[0]), "not the same"

    function = tuned(configs={"shift": [0.5, 0.0]}, ref_prog=torch.add, manual_check_prog=check)(kernels.add)
    found = function.tune(*tensors())
    assert [row.status for row in found.rows] == [Status.WRONG, Status.MEASURED]
    assert "not the same" in found.rows[0].reason


def test_what_cannot_fit_is_not_compiled(tuned, here: Here) -> None:
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    configs = [
        {"block_M": 32, "block_K": 64, "num_stages": 2, "threads": 64},
        {"block_M": 224, "block_K": 256, "num_stages": 2, "threads": 64},  # a ring of 2 · (224 + 32) · 256 · 2 bytes
        {"block_M": 32, "block_K": 64, "num_stages": 2, "threads": 4096},
    ]
    found = tuned(configs=configs)(factory).tune(32, 32, 512)
    assert [row.status for row in found.rows] == [Status.MEASURED, Status.PRUNED, Status.PRUNED]
    assert "262144 bytes of shared memory" in found.rows[1].reason and "threads" in found.rows[2].reason
    assert len(here.tasks) == 1


def test_what_lowering_refuses_is_left_out_with_its_reason(tuned, here: Here) -> None:
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    configs = [{"block_K": block_K, "num_stages": 1} for block_K in (64, 2048)]
    found = tuned(configs=configs)(factory).tune(32, 32, 64)
    assert len(here.tasks) == 2 and found.rows[1].status is Status.PRUNED
    assert "needs more shared memory" in found.rows[1].reason and "hint" in found.rows[1].reason


def test_none_that_works_is_an_error_with_every_reason(tuned) -> None:
    function = tuned(configs={"shift": [0.5, 1.5]}, ref_prog=torch.add)(kernels.add)
    with pytest.raises(TuningError, match="(?s)no configuration of add works.*shift=0.5.*shift=1.5"):
        function.tune(*tensors())


def test_failing_kernels_do_not_end_a_sweep(tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = measure_task.measure_task, []

    def fails_once(task):
        calls.append(task)
        if len(calls) == 1:
            raise RuntimeError("the card is on fire")
        return plain(task)

    monkeypatch.setattr(sweep, "measure_task", fails_once)
    function = tuned(configs={"block": [32, 96]})(kernels.add)
    found = function.tune(*tensors())
    assert [row.status for row in found.rows] == [Status.FAILED, Status.MEASURED]
    assert "on fire" in found.rows[0].reason
    again = function.tune(*tensors())
    assert again is found  # a failure is not tried again in this process, but in the next
    assert "fire" not in str([row.reason for row in fresh(function).run().rows])


def fresh(function, *args):
    """The sweep that another process would make of the same call."""
    made = function._sweep(args or tensors(), {}, None, False)
    return made


def test_early_stop(tuned) -> None:
    function = tuned(configs={"block": [32, 64, 96]}, early_stop=True, early_stop_factor=1.5)(kernels.add)
    found = function.tune(*tensors())
    assert [row.status for row in found.rows] == [Status.MEASURED, Status.SLOWER, Status.SLOWER]
    assert found.rows[2].latency == 3.0 and found.latency == 1.0


# -- arguments that kernels change


def test_arguments_that_are_changed_are_restored(tuned) -> None:
    a = torch.randn(2, 32)
    before = a.clone()
    function = tuned(configs={"threads": [32, 64]}, ref_prog=lambda a: a * 2)(kernels.double)
    found = function.tune(a)
    assert [row.status for row in found.rows] == [Status.MEASURED] * 2  # each from the same values
    assert torch.equal(a, before)
    function(a)
    torch.testing.assert_close(a, before * 2)  # the call itself, once


def test_a_call_is_measured_on_the_same_values_each_time(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    """Doubled again and again they would end as infinities."""
    seen: list[float] = []
    plain = measure_task.measure

    def spying(run, **kwargs):
        def watched():
            run()
            seen.append(float(run.__closure__[0].cell_contents.tensors["A"].abs().max()))

        return plain(watched, **kwargs)

    monkeypatch.setattr(measure_task, "measure", spying)
    a = torch.full((2, 32), 3.0)
    ptxtile.autotune(configs=[{"threads": 32}], executor=here, clock=numbered_clock, rep=30, progress=False)(
        kernels.double
    ).tune(a)
    assert len(seen) > 5 and set(seen[1:]) == {6.0}


# -- kept and found again


def test_an_interrupted_sweep_goes_on(tuned, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    function = tuned(configs={"block": [32, 64, 96]})(kernels.add)
    plain, measured = measure_task.measure_task, []

    def interrupted(task):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(task)
        return plain(task)

    monkeypatch.setattr(sweep, "measure_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        function.tune(*tensors())
    monkeypatch.setattr(sweep, "measure_task", plain)
    here.tasks.clear()
    found = function.tune(*tensors())
    assert [row.resumed for row in found.rows] == [True, True, False] and len(here.tasks) == 1
    assert [row.latency for row in found.rows] == [1.0, 2.0, 3.0]


def test_the_best_is_found_by_another_process(tuned, here: Here) -> None:
    decorate = tuned(configs={"block": [32, 64]})
    first = decorate(kernels.add).tune(*tensors())
    here.tasks.clear()
    other = decorate(kernels.add)
    second = other.tune(*tensors())
    assert second.from_disk and not first.from_disk and here.tasks == []
    assert (second.config, second.latency) == (first.config, first.latency)
    a, b = tensors()
    torch.testing.assert_close(other(a, b), a + b)
    assert not other.tune(a, b, again=True).from_disk


def test_other_code_is_measured_anew(tuned, here: Here) -> None:
    """The same source with another closure: the traced program tells."""

    def factory_of(scale):
        import ptxtile.language as T

        def scaled(N, threads=32):
            @T.prim_func
            def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
                with T.Kernel(1, threads=threads):
                    for j in T.Parallel(N):
                        B[j] = A[j] * scale

            return main

        return ptxtile.jit(out_idx=[-1], target="sm_90a")(scaled)

    decorate = tuned(configs={"threads": [32, 64]})
    decorate(factory_of(2.0)).tune(64)
    here.tasks.clear()
    assert decorate(factory_of(2.0)).tune(64).from_disk and not here.tasks
    assert not decorate(factory_of(3.0)).tune(64).from_disk and len(here.tasks) == 2


@pytest.mark.parametrize("spoil", ["truncate", "garbage", "other config"])
def test_spoilt_rows_are_measured_anew(tuned, own_folder: Path, spoil: str) -> None:
    decorate = tuned(configs={"block": [32, 64]})
    decorate(kernels.add).tune(*tensors())
    files = [path for path in (own_folder / store.FOLDER).rglob("*.json")]
    assert len(files) == 3
    for path in files:
        content = path.read_bytes()
        if spoil == "truncate":
            path.write_bytes(content[: len(content) // 2])
        elif spoil == "garbage":
            path.write_bytes(b"\x80\x04garbage")
        else:
            header, _, body = content.partition(b"\n")
            fields = json.loads(body) | {"config": "block=1", "program": ""}
            import hashlib

            body = json.dumps(fields).encode()
            path.write_bytes(header[:-64] + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    found = decorate(kernels.add).tune(*tensors())
    assert not found.from_disk and not any(row.resumed for row in found.rows)


def test_a_configuration_that_is_gone_is_not_taken(tuned) -> None:
    tuned(configs={"block": [32, 64]})(kernels.add).tune(*tensors())
    found = tuned(configs={"block": [64, 96]})(kernels.add).tune(*tensors())
    assert not found.from_disk and [row.resumed for row in found.rows] == [True, False]


def test_no_cache_keeps_nothing(tuned, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_CACHE_MEGABYTES", "0")
    for _ in range(2):
        assert not tuned(configs=[{"block": 32}])(kernels.add).tune(*tensors()).from_disk
    assert not list(own_folder.iterdir())


def test_sweeps_can_be_forgotten(tuned) -> None:
    tuned(configs=[{"block": 32}])(kernels.add).tune(*tensors())
    assert store.clear() == 1 and store.clear() == 0


# -- configurations and mistakes


def test_configurations_from_a_function_of_the_arguments(tuned) -> None:
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    seen = []

    def configs(M, N, K):
        seen.append((M, N, K))
        return {"block_M": [M], "block_N": [N], "block_K": [K]}

    function = tuned(configs=configs)(factory)
    assert function(64, 32, 32).config == {"block_M": 64, "block_N": 32, "block_K": 32}
    assert set(seen) == {(64, 32, 32)}
    assert function(64, 32, 32, block_M=32).config is None
    assert tuned(configs=lambda: [{"block": 96}])(kernels.add).tune(*tensors()).config == {"block": 96}


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "no configuration to try"),
        ({"block": []}, "no configuration to try"),
        ({"block": 32}, "choices of 'block'"),
        ({"blocks": [32]}, "no argument 'blocks'"),
        ([{"block": 32}, {"threads": 32}], "different arguments"),
    ],
)
def test_mistakes_in_configurations(tuned, configs, message: str) -> None:
    with pytest.raises((TuningError, ArgumentError), match=message):
        tuned(configs=configs)(kernels.add).tune(*tensors())


def test_equal_configurations_are_one(tuned, here: Here) -> None:
    tuned(configs=[{"block": 32}, {"block": 32}])(kernels.add).tune(*tensors())
    assert len(here.tasks) == 1


def test_the_command_line_takes_a_tuned_function_as_it_is(tmp_path: Path) -> None:
    from ptxtile.inspect import subject

    path = tmp_path / "tuned_kernel.py"
    path.write_text(
        "import ptxtile\nfrom tests.autotune import kernels\n"
        "tuned = ptxtile.autotune(configs={'block': [32, 64]})(kernels.add)\n"
    )
    found = subject.find(f"{path}:tuned", {"M": 4, "N": 96, "block": 96}, "sm_80", {})
    assert found.program.name == "add" and found.target.name == "sm_80"


def test_only_jitted_functions_are_tuned(tuned) -> None:
    with pytest.raises(ArgumentError, match="under @ptxtile.jit"):
        tuned(configs=[{"block": 32}])(lambda a: a)


# -- what is shown


def test_table_rows_and_log(tuned, caplog: pytest.LogCaptureFixture) -> None:
    configs = {"shift": [0.5, 0.0], "block": [32, 96]}
    with caplog.at_level(logging.WARNING, "ptxtile"):
        found = tuned(configs=configs, ref_prog=torch.add, verbose=True)(kernels.add).tune(*tensors())
    text = str(found)
    assert text in caplog.text and "wrong: result 0" in text and "2.00" in text  # times the best
    assert [row.config["block"] for row in found.ranked()][:2] == [32, 96]
    rows = found.to_rows()
    assert [row["status"] for row in rows] == ["wrong", "wrong", "measured", "measured"]
    assert json.loads(json.dumps(rows))[3]["latency"] == 2.0 and rows[0]["compile_seconds"] > 0


def test_a_plot_says_what_is_missing_or_draws(tuned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys
    import types

    found = tuned(configs={"block": [32, 96]})(kernels.add).tune(*tensors())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TuningError, match=r"ptxtile\[plot\]"):
        found.plot()
    drawn: dict[str, Any] = {}

    class Axes:
        def __getattr__(self, name):
            return lambda *args, **kwargs: drawn.setdefault(name, (args, kwargs))

    class Figure:
        def __init__(self, figsize):
            self.axes = Axes()

        def subplots(self):
            return self.axes

        def savefig(self, path, **_):
            Path(path).write_text("drawn")

    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", types.SimpleNamespace(Figure=Figure))
    found.plot(tmp_path / "sweep.png")
    (_, lengths), _ = drawn["barh"]
    assert lengths == [1.0, 2.0] and (tmp_path / "sweep.png").read_text() == "drawn"


def test_a_bar_on_request(tuned, capsys: pytest.CaptureFixture[str]) -> None:
    ptxtile.autotune(configs={"block": [32, 64]}, executor=Here(), clock=numbered_clock, progress=True)(
        kernels.add
    ).tune(*tensors())
    shown = capsys.readouterr().err
    assert "compiling" in shown and "2/2" in shown and "best" in shown


# -- in other processes


def test_compiling_elsewhere_and_measuring_in_a_process_of_its_own(random_generator) -> None:
    """The whole road with real processes and wall time; one configuration hangs, and the sweep goes on."""
    function = ptxtile.autotune(
        configs={"forever": [True, False]}, ref_prog=lambda a: a + 1, isolate=True, timeout=5,
        warmup=0.1, rep=0.1, workers=2, progress=False,
    )(kernels.spin)  # fmt: skip
    a = torch.from_numpy(random_generator.standard_normal(64, dtype="float32"))
    found = function.tune(a)
    assert [row.status for row in found.rows] == [Status.TIMEOUT, Status.MEASURED]
    assert "did not end within 5 s" in found.rows[0].reason
    assert found.ref_latency is not None and found.ref_latency > 0
    torch.testing.assert_close(function(a), a + 1)


def test_thread_and_process_executors() -> None:
    a, b = tensors()
    with ThreadPoolExecutor(2) as executor:
        function = ptxtile.autotune(
            configs={"block": [32, 96]}, executor=executor, clock=numbered_clock, progress=False
        )(kernels.add)  # fmt: skip
        torch.testing.assert_close(function(a, b), a + b)
