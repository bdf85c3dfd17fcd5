"""What of bench/gemm.py runs without a card: its statistics, its file, its configurations, the PTX of the hand-written
kernel, and a whole run of small products in the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptxtile.jit import jit
from tests.ptxas import IGNORED_SETMAXNREG, assemble

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
for folder in (ROOT, BENCH):
    sys.path.append(str(folder))

import gemm_ours  # noqa: E402
import gemm_peers  # noqa: E402
import gemm_probe  # noqa: E402
import gemm_results  # noqa: E402
import gemm_rows  # noqa: E402
import measure  # noqa: E402
from gemm_rows import GROUPS, Contender, Row  # noqa: E402

MULTIPROCESSORS = 132
ALL_ROWS = [row for rows in GROUPS.values() for row in rows]


# ---------------------------------------------------------------- statistics


def test_the_interval_of_a_median_is_that_of_order_statistics():
    """For 101 values the binomial distribution puts the median between the 41st and the 61st with 95 %."""
    low, high = measure.interval(list(range(101)))
    assert abs(low - 40.5) <= 1.5 and abs(high - 59.5) <= 1.5


def test_a_ratio_is_taken_turn_by_turn():
    """Drift that hits both contenders of a turn alike does not widen the interval."""
    drift = [1.0, 1.5, 2.0, 3.0]
    found = measure.ratio([1.2 * d for d in drift], drift)
    assert found["median"] == pytest.approx(1.2) and found["high"] - found["low"] < 1e-3


def record(row: Row, ours: float, peers: dict[str, float], run: str = "now") -> dict:
    contenders = [Contender("a", "ours", None), *(Contender(name, "peer", None) for name in peers)]
    times = {"a": [ours] * 3, **{name: [time] * 3 for name, time in peers.items()}}
    return gemm_results.record(row, contenders, times, dict.fromkeys(times, (1e-3, 1e-3)), {}, run)


def test_ratios_to_peers_and_to_what_was_recorded_of_tilelang():
    row = Row("square", 2048, 2048, 2048)
    found = record(row, 0.1, {"cuBLAS NT": 0.13, "cuBLAS NN": 0.14, "Triton": 0.12})
    assert found["best"] == {"ours": "a", "peer": "Triton"}
    assert found["ours / best"]["peer"]["median"] == pytest.approx(1.2)
    recorded = found["ours / TileLang as recorded"]
    assert recorded["range"] == [pytest.approx(1.3 / 1.29, abs=1e-4), pytest.approx(1.3 / 1.16, abs=1e-4)]
    entry = next(e for e in found["contenders"] if e["contender"] == "a")
    assert entry["TFLOP/s"] == pytest.approx(2 * 2048**3 / 1e-4 / 1e12, abs=0.1)
    assert "ours / TileLang as recorded" not in record(row, 0.1, {"cuBLAS NT": 0.13, "TileLang x": 0.1})


def test_means_are_geometric_and_name_the_lowest_row():
    rows = [
        record(Row("square", 64, 64, 64), 1.0, {"cuBLAS NT": 2.0}),
        record(Row("k-sweep", 64, 64, 128), 1.0, {"cuBLAS NT": 0.5}),
        record(Row("decode", 64, 64, 64), 1.0, {"cuBLAS NT": 1.5}),
    ]
    found = gemm_results.summary(rows)
    assert found["compute-bound bf16"]["ours / peer"] == {"mean": pytest.approx(1.0), "lowest": 0.5, "at": "64x64x128"}
    assert found["decode, m <= 64"]["ours / peer"]["mean"] == 1.5
    assert gemm_results.summary_text(found) and "64x64x128" in gemm_results.table(rows)


# ---------------------------------------------------------------- the file


def test_single_launches_stand_beside_the_others():
    row = record(Row("square", 64, 64, 64), 1.0, {"cuBLAS NT": 1.0}) | gemm_results.single_launches(
        {"ours": "ours", "peer": "cuBLAS NT"}, {"ours": [0.1, 0.2, 0.4], "cuBLAS NT": [0.2, 0.5, 0.8]}
    )
    assert row["single launches"]["ours us"] == 200.0 and row["single launches"]["peer us"] == 500.0
    assert row["single launches"]["ours / best"]["peer"]["median"] == 2.0
    mean = gemm_results.summary([row])["compute-bound bf16"]
    assert mean["ours / peer, single launches"] == {"mean": 2.0, "lowest": 2.0, "at": "64x64x64"}
    assert mean["ours / peer"]["mean"] == 1.0


def test_rows_are_merged_one_by_one(tmp_path: Path):
    path = tmp_path / "gemm.json"
    gemm_results.write(path, {"rows": [{"size": 1, "contender": "of an older form"}]})
    content = gemm_results.load(path)
    assert content["rows"] == []
    first, second = Row("square", 64, 64, 64), Row("square", 128, 64, 64)
    for run, row, time in (("r1", first, 1.0), ("r1", second, 1.0), ("r2", first, 2.0)):
        content = gemm_results.merge(gemm_results.load(path), record(row, time, {}, run), run, {"date": run})
        gemm_results.write(path, content)
    assert [(row["m"], row["run"], row["contenders"][0]["us"]) for row in gemm_results.load(path)["rows"]] == [
        (64, "r2", 2000.0), (128, "r1", 1000.0),
    ]  # fmt: skip
    assert set(gemm_results.load(path)["runs"]) == {"r1", "r2"}
    content = gemm_results.merge(gemm_results.load(path), record(second, 1.0, {}, "r2"), "r2", {"date": "r2"})
    assert set(content["runs"]) == {"r2"}


# ---------------------------------------------------------------- rows and configurations


def test_every_product_that_is_asked_for_is_there():
    sizes = {(row.group, row.m, row.n, row.k) for row in ALL_ROWS}
    assert {("square", s, s, s) for s in (16384, 8192, 4096, 2048, 1024)} <= sizes
    assert {("k-sweep", 8192, 8192, k) for k in (256, 512, 1024, 2048, 4096, 16384)} <= sizes
    weights = ((8192, 8192), (14336, 4096))
    assert {("decode", m, n, k) for n, k in weights for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)} <= sizes
    float8 = {("fp8", 8192, 8192, 1024), *(("fp8", s, s, s) for s in (2048, 4096, 8192))}
    assert float8 <= sizes
    assert gemm_rows.selected(["all"], []) == ALL_ROWS
    assert gemm_rows.selected(["fp8"], ["4096,4096,4096"]) == [Row("fp8", 4096, 4096, 4096, "float8_e4m3fn")]
    assert gemm_rows.selected(["square"], ["384x256x128"]) == [Row("square", 384, 256, 128)]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: f"{row.group}-{row}")
def test_at_most_four_configurations_with_names_of_their_own(row: Row):
    names = [name for name, _, _ in gemm_ours.configurations(row, MULTIPROCESSORS)]
    assert 1 <= len(names) == len(set(names)) <= 4


@pytest.mark.parametrize(
    "row",
    [GROUPS["square"][1], GROUPS["square"][4], GROUPS["fp8"][0], *(GROUPS["decode"][i] for i in (0, 6, 7, 8))],
    ids=lambda row: f"{row.group}-{row}",
)
def test_our_configurations_compile_for_the_card(row: Row):
    """At full size: they fit into shared memory and the register pool, and each multiplies by wgmma."""
    decode = gemm_ours.example("gemm_decode")
    for name, kernel, options in gemm_ours.configurations(row, MULTIPROCESSORS):
        function = gemm_ours.TILES.get(kernel, decode)
        sizes = {"m" if function is decode else "M": row.m, "N": row.n, "K": row.k}
        compiled = jit(function.function.function, target="sm_90a").specialize(**sizes, **options)
        assert "Wgmma" in str({type(op).__name__ for op in operations(compiled.variant.lowered().program)}), name


def operations(program):
    from ptxtile.ir.rewrite import walk

    return (node for kernel in program.kernels for node in walk(kernel.body))


def test_the_timed_kernel_has_nothing_by_hand():
    source = (BENCH / "gemm_kernels.py").read_text()
    for name in ("T.ws", "barrier", "T.ptx", "tma_copy", "max_nreg", "fence"):
        assert name not in source


# ---------------------------------------------------------------- the hand-written kernel


@pytest.mark.parametrize("name", gemm_probe.VARIANTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_the_hand_written_kernel_assembles(name: str, dtype: str):
    cluster, group = gemm_probe.VARIANTS[name]
    ptx = gemm_probe.ptx_of(gemm_probe.Variant(cluster, group, dtype))
    log = assemble(ptx, "sm_90a")
    assert "0 bytes spill stores" in log and not any(mark in log for mark in (*IGNORED_SETMAXNREG, "C751"))
    assert ptx.count("wgmma.mma_async") == 4 and ptx.count("stmatrix") == 16
    assert ("multicast" in ptx) == (cluster == 2)


def test_the_hand_written_kernel_takes_whole_tiles():
    assert gemm_probe.Variant(1, 8).fits(128, 256, 64) and not gemm_probe.Variant(2, 8).fits(128, 256, 64)
    assert not gemm_probe.Variant(1, 8, "float8_e4m3fn").fits(128, 256, 64)


# ---------------------------------------------------------------- a whole run


def test_a_run_in_the_simulator(tmp_path: Path):
    """Everything but the card: contenders, checks, times, the merged file; what needs a card says why it is missing."""
    path = tmp_path / "results" / "gemm.json"
    for sizes, groups in ((["128x512x128"], ["k-sweep"]), (["3x512x128"], ["decode"])):
        command = ["bench/gemm.py", "--dry-run", "--rows", *groups, "--sizes", *sizes, "--results", str(path)]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WRONG" not in done.stdout + done.stderr
    content = json.loads(path.read_text())
    mine = [row for row in content["rows"] if len(content["runs"][row["run"]]) and row["n"] == 512]
    assert [(row["group"], row["m"], row["k"]) for row in mine] == [("k-sweep", 128, 128), ("decode", 3, 128)]
    for row in mine:
        ours = [entry for entry in row["contenders"] if entry["side"] == "ours"]
        assert ours and all(max(entry["relative error"]) < 4e-3 for entry in ours)
        assert row["ours / best"]["peer"]["median"] > 0
    assert "share of the copy rate" in mine[1] and mine[0]["best"]["plain"].startswith("examples/gemm.py")
    environment = content["runs"][mine[0]["run"]]
    assert {"date", "torch", "llvm", "ptxtile", "command"} <= set(environment)


def test_contenders_that_cannot_run_say_why():
    operands = gemm_rows.Operands(Row("square", 64, 64, 64), "cpu", 3)
    missing = gemm_peers.unavailable("Triton", "peer", "there is no card")
    with pytest.raises(gemm_rows.Unavailable, match="no card"):
        missing.build()
    assert [contender.name for contender in gemm_peers.contenders(operands)] == [gemm_peers.NT]


def test_a_wrong_result_is_not_timed():
    operands = gemm_rows.Operands(Row("square", 96, 80, 64), "cpu", 3)
    right = operands.a.float() @ operands.b.float().T
    assert max(operands.errors(right.bfloat16())) < operands.bound
    wrong = right.bfloat16()
    wrong[int(np.random.default_rng().integers(96))] = 0
    assert not max(operands.errors(wrong)) <= operands.bound
    assert not max(operands.errors(operands.c)) <= operands.bound, "the poison of an unwritten result passes"
