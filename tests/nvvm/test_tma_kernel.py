"""An add kernel with TMA, mbarriers, roles and setmaxnreg, as specialize_warps makes it."""

from __future__ import annotations

import re

import pytest

from ptxtile import target as targets
from ptxtile.errors import VerificationError
from ptxtile.ir import gpu_ops as gpu
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Binary, Compare, Var, load
from ptxtile.ir.program import Program
from ptxtile.ir.statements import For, If, LoopKind, Role, Specialized, seq
from ptxtile.ir.types import bool_, float32, int32, int64
from ptxtile.launch_record import TensorMapRecord
from ptxtile.nvvm import emit
from tests import ptxas
from tests.nvvm.programs import BLOCKS, THREAD, number, program, put, shared

WITH_SETMAXNREG = ("sm_90a", "sm_100a", "sm_120a")
WITH_TMA = ("sm_90", *WITH_SETMAXNREG)


def record(name: str, rank: int = 2) -> TensorMapRecord:
    return TensorMapRecord(name, name, "float32", (1024,) * rank, (4096,) * (rank - 1), (64,) * rank)


def is_thread(index: int) -> Compare:
    return Compare("eq", THREAD, number(index), bool_)


def add_kernel(*, roles: bool = True, registers: bool = True) -> Program:
    """Tile 64×64 of f32, 128 consumer threads and, with roles, 128 producer threads."""
    a, b = shared("a_shared", float32, 4096, 0), shared("b_shared", float32, 4096, 16384)
    barrier = shared("barrier", int64, 1, 32768, Scope.BARRIER)
    zero = number(0)
    coordinates = (BLOCKS[0] * 64, BLOCKS[1] * 64)
    threads = 256 if roles else 128
    begin = If(is_thread(0), seq(gpu.MbarrierInit(barrier, zero, 1), gpu.FenceMbarrierInit()))
    loads = seq(
        gpu.PrefetchTensorMap("A"),
        gpu.MbarrierArriveExpectTx(barrier, zero, 32768),
        gpu.TmaLoad("A", coordinates, a, zero, barrier, zero),
        gpu.TmaLoad("B", coordinates, b, zero, barrier, zero),
    )
    i = Var("i", int32)
    index = THREAD * 4 + i * 512
    wide = float32.with_lanes(4)
    total = Binary("add", load(a, (index,), 4), load(b, (index,), 4), wide)
    compute = seq(
        gpu.MbarrierWait(barrier, zero, zero, (a, b)),
        For(i, zero, number(8), 1, LoopKind.UNROLLED, put(a, index, total)),
        gpu.FenceProxyAsync("shared"),
        gpu.BarSync(3, 128),
        If(
            is_thread(0),
            seq(gpu.TmaStore("C", coordinates, a, zero), gpu.BulkCommitGroup(), gpu.BulkWaitGroup(0, True)),
        ),
    )
    if not roles:
        body = seq(begin, gpu.BarSync(0, threads), If(is_thread(0), loads), compute)
    else:
        down, up = (gpu.SetMaxRegisters("dec", 24), gpu.SetMaxRegisters("inc", 240)) if registers else (None, None)
        consumer = Role("consumer", 0, 128, seq(up, compute), 240)
        producer = Role("producer", 128, 128, seq(down, If(is_thread(128), loads)), 24)
        body = seq(begin, gpu.BarSync(0, threads), Specialized((consumer, producer)))
    return program(body, tensor_maps=[record("A"), record("B"), record("C")], threads=threads)


@pytest.mark.parametrize("name", WITH_SETMAXNREG)
def test_roles_with_setmaxnreg(name: str) -> None:
    target = targets.get(name)
    module = emit(add_kernel(), target)
    log = ptxas.assemble(module.ptx, name)
    assert not any(code in log for code in ptxas.IGNORED_SETMAXNREG), log
    assert "0 bytes stack frame" in log, log
    assert module.ptx_isa == target.minimum_ptx_isa
    counts = {
        "mbarrier.init.shared::cta.b64": 1,
        "fence.mbarrier_init.release.cluster": 1,
        "mbarrier.arrive.expect_tx.shared::cta.b64": 1,
        "mbarrier.try_wait.parity.shared::cta.b64": 1,
        "setmaxnreg.dec.sync.aligned.u32 24": 1,
        "setmaxnreg.inc.sync.aligned.u32 240": 1,
        "prefetch.tensormap": 1,
        "fence.proxy.async.shared::cta": 1,
        "bar.sync 0": 1,
        "bar.sync 3, 128": 1,
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group": 1,
        "cp.async.bulk.commit_group": 1,
        "cp.async.bulk.wait_group.read 0": 1,
        "ld.shared.v4.b32": 16,
        "st.shared.v4.b32": 8,
    }
    assert {text: module.ptx.count(text) for text in counts} == counts
    space = "cluster" if name == "sm_90a" else "cta"
    assert module.ptx.count(f"cp.async.bulk.tensor.2d.shared::{space}.global") == 2
    assert ".maxntid 256, 1, 1" in module.ptx and ".minnctapersm 1" in module.ptx
    assert "st.local" not in module.ptx and ".extern .func" not in module.ptx


@pytest.mark.parametrize("name", WITH_TMA)
def test_without_setmaxnreg(name: str) -> None:
    for roles in (True, False):
        module = emit(add_kernel(roles=roles, registers=False), targets.get(name))
        assert "setmaxnreg" not in module.ptx and ".minnctapersm" not in module.ptx
        ptxas.assemble(module.ptx, name)


def test_an_architecture_without_the_instructions() -> None:
    with pytest.raises(VerificationError, match="needs a target with SETMAXNREG"):
        emit(add_kernel(), targets.get("sm_90"))
    with pytest.raises(VerificationError, match="needs a target with"):
        emit(add_kernel(roles=False), targets.get("sm_80"))


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("name", ["sm_90a", "sm_120a"])
def test_ranks(name: str, rank: int) -> None:
    tile = shared("tile", float32, 32, 128)
    barrier = shared("barrier", int64, 4, 64, Scope.BARRIER)
    coordinates = tuple(Var(f"c{axis}", int32) for axis in range(rank))
    index, parity = Var("index", int32), Var("parity", int32)
    body = seq(
        gpu.TmaLoad("A", coordinates, tile, index * 4, barrier, index),
        gpu.MbarrierWait(barrier, index, parity),
        gpu.MbarrierArrive(barrier, index + 1),
        gpu.TmaStore("A", coordinates, tile, number(8)),
        gpu.BulkWaitGroup(1, False),
        gpu.FenceProxyAsync("global"),
    )
    made = program(body, tensor_maps=[record("A", rank)], scalars=[*coordinates, index, parity])
    ptx = emit(made, targets.get(name)).ptx
    ptxas.assemble(ptx, name)
    assert len(re.findall(rf"cp\.async\.bulk\.tensor\.{rank}d\.", ptx)) == 2
    load_line = next(line for line in ptx.splitlines() if "complete_tx" in line)
    coordinate_list = re.search(r", \{(.*?)\}", load_line)
    assert coordinate_list is not None and len(coordinate_list.group(1).split(",")) == rank


def test_clusters_and_min_blocks() -> None:
    made = program(gpu.BarSync(0, 128), cluster=(2, 1, 1), min_blocks=3)
    module = emit(made, targets.get("sm_90"))
    assert ".minnctapersm 3" in module.ptx
    assert ".explicitcluster" in module.ptx and ".reqnctapercluster 2, 1, 1" in module.ptx
    ptxas.assemble(module.ptx, "sm_90")
