"""The runtime on a card, with PTX written by hand: loading, JIT log, streams, threads, shared memory, tensor maps."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

import pytest
import torch

from ptxtile.errors import ArgumentError, CompileError, LaunchError, TargetError
from ptxtile.launch_record import (
    Allocation,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)
from ptxtile.runtime import context, module
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.executable import Executable

M, N = Symbol("M"), Symbol("N")

SCALE = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p_in, .param .u64 p_out, .param .u32 p_n, .param .b16 p_factor, .param .u8 p_negate)
{
    .reg .pred %p<3>;
    .reg .b16 %h<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    .reg .f32 %f<5>;
    ld.param.u64 %rd1, [p_in];
    ld.param.u64 %rd2, [p_out];
    ld.param.u32 %r1, [p_n];
    ld.param.b16 %h1, [p_factor];
    ld.param.u8 %h2, [p_negate];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 ret;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    cvt.u32.u16 %r6, %h1;
    shl.b32 %r7, %r6, 16;
    mov.b32 %f2, %r7;
    mul.f32 %f3, %f1, %f2;
    setp.ne.u16 %p2, %h2, 0;
    @%p2 neg.f32 %f3, %f3;
    st.global.f32 [%rd5], %f3;
    ret;
}
"""
SCALE_RECORD = LaunchRecord(
    "scale",
    (
        TensorArgument("A", "float32", (N,), (1,), 4),
        ScalarArgument("factor", "bfloat16"),
        ScalarArgument("negate", "bool"),
    ),
    allocations=(Allocation("C", "float32", (N,)),),
    launches=(
        KernelLaunch(
            "scale",
            (SizeOperation("floordiv", SizeOperation("add", N, 127), 128), 1, 1),
            (128, 1, 1),
            0,
            (
                KernelParameter("pointer", "A"),
                KernelParameter("pointer", "C"),
                KernelParameter("scalar", "N", "int32", N),
                KernelParameter("scalar", "factor", "bfloat16"),
                KernelParameter("scalar", "negate", "bool"),
            ),
        ),
    ),
    returns=("C",),
)

FAR_SHARED = """\
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry far(.param .u64 p_out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p_out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, memory;
    mad.lo.u32 %r2, %r1, 4, %r2;
    st.shared.u32 [%r2+98304], %r1;
    bar.sync 0;
    ld.shared.u32 %r3, [%r2+98304];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
"""

CLUSTER = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry cluster(.param .u64 p_out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p_out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %cluster_nctaid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""

TMA_READ = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry tma_read(.param .align 64 .b8 p_map[128], .param .u64 p_out, .param .u32 p_column, .param .u32 p_row)
{
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 barrier;
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    mov.b64 %rd1, p_map;
    cvta.param.u64 %rd2, %rd1;
    ld.param.u64 %rd3, [p_out];
    ld.param.u32 %r1, [p_column];
    ld.param.u32 %r2, [p_row];
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, tile;
    mov.u32 %r5, barrier;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra SKIP;
    mbarrier.init.shared::cta.b64 [%r5], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%rd2, {%r1, %r2}], [%r5];
SKIP:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;
    @!%p2 bra WAIT;
    mad.lo.u32 %r6, %r3, 4, %r4;
    ld.shared.b32 %r7, [%r6];
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd5, %rd3, %rd4;
    st.global.b32 [%rd5], %r7;
    ret;
}
"""
TMA_RECORD = LaunchRecord(
    "tma_read",
    (
        TensorArgument("A", "float32", (M, N), (Symbol("S"), 1), 16),
        ScalarArgument("column", "int32"),
        ScalarArgument("row", "int32"),
    ),
    allocations=(Allocation("C", "float32", (4, 8)),),
    tensor_maps=(TensorMapRecord("A_map", "A", "float32", (N, M), (SizeOperation("mul", Symbol("S"), 4),), (8, 4)),),
    launches=(
        KernelLaunch(
            "tma_read",
            (1, 1, 1),
            (32, 1, 1),
            0,
            (
                KernelParameter("tensor_map", "A_map"),
                KernelParameter("pointer", "C"),
                KernelParameter("scalar", "column", "int32"),
                KernelParameter("scalar", "row", "int32"),
            ),
        ),
    ),
    returns=("C",),
)


def writes_integers(name: str, ptx: str, count: int, **launch) -> tuple[Executable, LaunchRecord]:
    """A kernel that fills an int32 output of ``count`` elements."""
    made = KernelLaunch(name, (1, 1, 1), (32, 1, 1), 0, (KernelParameter("pointer", "C"),))
    record = LaunchRecord(
        name, (), allocations=(Allocation("C", "int32", (count,)),), launches=(replace(made, **launch),), returns=("C",)
    )
    return Executable(ptx, record), record


def scaled(a: torch.Tensor, factor: float, negate: bool, executable: Executable | None = None) -> torch.Tensor:
    return (executable or Executable(SCALE, SCALE_RECORD))(bind(SCALE_RECORD, (a, factor, negate), device_type="cuda"))


@pytest.fixture
def needs_hopper(card) -> None:
    if torch.cuda.get_device_capability(card) < (9, 0):
        pytest.skip("this card is older than compute capability 9.0")


def test_load_and_launch(card) -> None:
    a = torch.randn(1000, device=card)
    executable = Executable(SCALE, SCALE_RECORD)
    assert torch.equal(scaled(a, -2.5, False, executable), a * -2.5)
    assert torch.equal(scaled(a, 0.125, True, executable), a * -0.125)
    figures = executable.resources(card.index)["scale"]
    assert 4 <= figures.registers <= 64 and figures.local_bytes == 0 and figures.max_threads >= 128


def test_zero_elements(card) -> None:
    assert scaled(torch.zeros(0, device=card), 1.0, False).shape == (0,)


def test_the_log_of_the_jit(card) -> None:
    """A name of its own, so that the driver's cache does not have it."""
    name = f"scale_{uuid.uuid4().hex}"
    record = replace(SCALE_RECORD, launches=(replace(SCALE_RECORD.launches[0], kernel=name),))
    assert "registers" in Executable(SCALE.replace("entry scale", f"entry {name}"), record).log(card.index)


def test_ptx_that_the_jit_refuses(card) -> None:
    with pytest.raises(CompileError) as caught:
        scaled(
            torch.zeros(4, device=card), 1.0, False, Executable(SCALE.replace("neg.f32", "no_such.f32"), SCALE_RECORD)
        )
    assert "CUDA_ERROR_INVALID_PTX" in str(caught.value) and "no_such" in str(caught.value)


def test_a_name_that_the_module_lacks(card) -> None:
    record = replace(SCALE_RECORD, launches=(replace(SCALE_RECORD.launches[0], kernel="other"),))
    with pytest.raises(Exception, match="cuModuleGetFunction.'other'. failed: CUDA_ERROR_NOT_FOUND"):
        Executable(SCALE, record).load(card.index)


def test_ptx_newer_than_the_driver(card) -> None:
    with pytest.raises(TargetError, match="which this driver does not know"):
        scaled(torch.zeros(4, device=card), 1.0, False, Executable(SCALE.replace("7.0", "99.0"), SCALE_RECORD))


def test_ptx_for_another_card(card) -> None:
    other = "sm_120a" if torch.cuda.get_device_capability(card) != (12, 0) else "sm_90a"
    ptx = SCALE.replace("sm_80", other).replace("7.0", "8.7")
    with pytest.raises(TargetError, match=f"compiled for {other}, which this card cannot run|does not know"):
        scaled(torch.zeros(4, device=card), 1.0, False, Executable(ptx, SCALE_RECORD))


def test_a_side_stream(card) -> None:
    """The kernel comes after work that is still running on the stream that is current."""
    executable, a = Executable(SCALE, SCALE_RECORD), torch.zeros(1 << 16, device=card)
    executable.load(card.index)
    torch.cuda.synchronize(card)
    side = torch.cuda.Stream(card)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        a.fill_(3.0)
        result = scaled(a, 2.0, False, executable)
        side.synchronize()
    assert torch.equal(result, torch.full_like(a, 6.0))


def test_a_second_thread(card) -> None:
    """A new thread has no context; afterwards it has none again."""
    executable, a, results = Executable(SCALE, SCALE_RECORD), torch.randn(5000, device=card), []

    def work() -> None:
        from ptxtile.runtime import driver

        loaded = driver.initialised()
        before = loaded.current_context()
        bound = bind(SCALE_RECORD, (a, 2.0, False), device_type="cuda")
        inside = loaded.current_context()  # torch may have made its own current while it allocated
        executable.launch(bound)
        results.append((bound.results, before, inside == loaded.current_context()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize(card)
    assert len(results) == 4
    for result, before, restored in results:
        assert before == 0 and restored and torch.equal(result, a * 2.0)


def test_more_than_48_kb_of_shared_memory(card) -> None:
    executable, record = writes_integers("far", FAR_SHARED, 32, shared_bytes=98304 + 128)
    assert executable(bind(record, (), device_type="cuda")).tolist() == list(range(32))


def test_more_shared_memory_than_the_card_has(card) -> None:
    executable, _ = writes_integers("far", FAR_SHARED, 32, shared_bytes=1 << 20)
    with pytest.raises(LaunchError, match="needs more shared memory than this card has"):
        executable.load(card.index)


def test_too_many_threads_are_refused_by_name(card) -> None:
    executable, record = writes_integers("far", FAR_SHARED, 32, block=(2048, 1, 1))
    with pytest.raises(LaunchError, match="launch of kernel 'far' refused: CUDA_ERROR_INVALID_VALUE"):
        executable(bind(record, (), device_type="cuda"))


@pytest.mark.usefixtures("needs_hopper")
@pytest.mark.parametrize("cooperative", [False, True])
def test_clusters(cooperative) -> None:
    executable, record = writes_integers(
        "cluster", CLUSTER, 8, grid=(8, 1, 1), block=(1, 1, 1), cluster=(4, 1, 1), cooperative=cooperative
    )
    assert executable(bind(record, (), device_type="cuda")).tolist() == [4] * 8


@pytest.mark.usefixtures("needs_hopper")
def test_dependent_launch() -> None:
    executable, record = writes_integers("cluster", CLUSTER, 4, grid=(4, 1, 1), dependent_launch=True)
    for _ in range(3):
        assert executable(bind(record, (), device_type="cuda")).tolist() == [1] * 4


@pytest.mark.usefixtures("needs_hopper")
@pytest.mark.parametrize(
    "rows, columns, width, row, column",
    [(16, 16, 16, 4, 8), (6, 12, 16, 4, 8), (1, 12, 12, 0, 0), (3, 7, 8, 0, 0), (1, 7, 7, 0, 4), (5, 8, 8, -1, -4)],
)
def test_tensor_maps(card, rows, columns, width, row, column) -> None:
    """A box of 4 rows × 8 columns that starts at any row and every fourth column (16 bytes), zeros outside of the
    tensor; a single row has any stride."""
    a = torch.randn(rows, width, device=card)[:, :columns]
    result = Executable(TMA_READ, TMA_RECORD)(bind(TMA_RECORD, (a, column, row), device_type="cuda"))
    padded = torch.zeros(40, 40, device=card)
    padded[8 : 8 + rows, 8 : 8 + columns] = a
    assert torch.equal(result, padded[8 + row : 12 + row, 8 + column : 16 + column])


@pytest.mark.usefixtures("needs_hopper")
def test_a_tensor_map_of_nothing(card) -> None:
    bound = bind(TMA_RECORD, (torch.zeros(0, 8, device=card), 0, 0), device_type="cuda")
    assert not Executable(TMA_READ, TMA_RECORD)(bound).any()


@pytest.mark.usefixtures("needs_hopper")
def test_a_stride_that_tma_cannot_take(card) -> None:
    bound = bind(TMA_RECORD, (torch.zeros(4, 9, device=card), 0, 0), device_type="cuda")
    with pytest.raises(ArgumentError, match="tma_read: the tensor map of 'A': stride of dimension 1(.|\n)*36 bytes"):
        Executable(TMA_READ, TMA_RECORD)(bound)


def test_a_cubin_from_the_driver(card) -> None:
    with context.current(card.index) as driver:
        cubin = module.to_cubin(driver, card.index, SCALE)
    assert cubin[:4] == b"\x7fELF"
    a = torch.randn(300, device=card)
    assert torch.equal(scaled(a, 4.0, False, Executable(SCALE, SCALE_RECORD, image=cubin)), a * 4.0)


def test_a_cpu_tensor_is_refused(card) -> None:
    with pytest.raises(ArgumentError, match="argument 'A' .1 of 3.: wrong device"):
        scaled(torch.zeros(4), 1.0, False)
