"""The launch record: just the parameters that each kernel's body uses, in the program's order."""

from __future__ import annotations

from textwrap import dedent

from ptxtile import target
from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Program
from ptxtile.ir.verifier import verify
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
)
from ptxtile.lower import complete_launch
from ptxtile.lower.options import Options

M, N = Symbol("M"), Symbol("N")


def completed(text: str) -> LaunchRecord:
    result = completed_program(text)
    assert result.launch is not None
    return result.launch


def completed_program(text: str) -> Program:
    program = parse_program('ptxtile_ir(1)\nprogram("two", stage="gpu")\n' + dedent(text))
    result = complete_launch.run(program, target.get("sm_90a"), Options())
    verify(result)
    assert {**_fields(program), "launch": None} == {**_fields(result), "launch": None}
    return result


def _fields(program: Program) -> dict[str, object]:
    return {name: getattr(program, name) for name in program.__dataclass_fields__}


TWO_KERNELS = """
M = symbol(int32)
N = symbol(int64)
stride = symbol(int32)
fact(M, lower=1, divisor=8)
fact(N, lower=1)
A = tensor(float32, (M, 64), strides=(stride, 1))
B = tensor(float16, (64, 64), alignment=2, alias_group=0)
spare = tensor(float32, (M,))
alpha = scalar(float32)
count = scalar(int32)
C = allocation(float32, (M, 64))
work = allocation(int32, (M + 1,))
returns("C")
TensorMapRecord(name="B_map", tensor="B", dtype="float16", dimensions=(64, 64), strides=(128,), box=(64, 64))

@kernel(grid=((M + 63) // 64, 4, 1), threads=128, user_threads=128, shared_bytes=8192)
def first(bx, by, bz, tx):
    S = allocate_shared(float16, (4096,), storage_alignment=128, storage_offset=0)
    if tx < M:
        work[tx] = tx
    if tx == 0:
        tma_store(tensor_map="B_map", coordinates=(0, 0), shared=S, offset=0)

@kernel(grid=(1, 1, count), threads=64, user_threads=64, cluster=(2, 1, 1), shared_bytes=0)
def second(bx2, by2, bz2, tx2):
    own: int32 = work[tx2] + cast(N, int32)
    C[own] = A[own * stride] * alpha
"""


def test_each_kernel_gets_the_parameters_that_its_body_uses_in_order():
    first, second = completed(TWO_KERNELS).launches
    assert first.parameters == (
        KernelParameter("pointer", "work"),
        KernelParameter("tensor_map", "B_map"),
        KernelParameter("scalar", "M", "int32", M),
    )
    assert second.parameters == (
        KernelParameter("pointer", "A"),
        KernelParameter("pointer", "C"),
        KernelParameter("pointer", "work"),
        KernelParameter("scalar", "alpha", "float32"),
        KernelParameter("scalar", "N", "int64", N),
        KernelParameter("scalar", "stride", "int32", Symbol("stride")),
    )


def test_grid_block_cluster_and_shared_memory():
    first, second = completed(TWO_KERNELS).launches
    blocks = SizeOperation("floordiv", SizeOperation("add", M, 63), 64)
    assert (first.kernel, first.grid, first.block) == ("first", (blocks, 4, 1), (128, 1, 1))
    assert (first.shared_bytes, first.cluster) == (8192, (1, 1, 1))
    assert (second.kernel, second.grid, second.block) == ("second", (1, 1, Symbol("count")), (64, 1, 1))
    assert (second.shared_bytes, second.cluster) == (0, (2, 1, 1))


def test_arguments_in_the_callers_order_with_what_no_kernel_touches_marked():
    record = completed(TWO_KERNELS)
    assert record.arguments == (
        TensorArgument("A", "float32", (M, 64), (Symbol("stride"), 1), 16),
        TensorArgument("B", "float16", (64, 64), (64, 1), 2),  # through its tensor map
        TensorArgument("spare", "float32", (M,), (1,), 16, unused=True),
        ScalarArgument("alpha", "float32"),
        ScalarArgument("count", "int32"),
    )


def test_allocations_returns_maps_and_divisibilities():
    record = completed(TWO_KERNELS)
    assert record.name == "two" and record.returns == ("C",)
    assert record.allocations == (
        Allocation("C", "float32", (M, 64)),
        Allocation("work", "int32", (SizeOperation("add", M, 1),)),
    )
    assert [each.name for each in record.tensor_maps] == ["B_map"]
    assert record.divisibilities == (Divisibility(M, 8),)


def test_a_tensor_that_is_returned_is_used_though_no_kernel_touches_it():
    record = completed(
        """
        A = tensor(float32, (4,))
        B = tensor(float32, (4,))
        returns("A")

        @kernel(grid=(1, 1, 1), threads=32)
        def nothing(bx, by, bz, tx):
            pass
        """
    )
    assert [argument.unused for argument in record.arguments if isinstance(argument, TensorArgument)] == [False, True]
    assert record.launches[0].parameters == () and record.launches[0].shared_bytes == 0


def test_a_tensor_map_that_no_kernel_uses_does_not_use_its_tensor():
    record = completed(
        """
        B = tensor(float16, (64, 64))
        TensorMapRecord(name="B_map", tensor="B", dtype="float16", dimensions=(64, 64), strides=(128,), box=(64, 64))

        @kernel(grid=(1, 1, 1), threads=32)
        def nothing(bx, by, bz, tx):
            pass
        """
    )
    (argument,) = record.arguments
    assert isinstance(argument, TensorArgument) and argument.unused


def test_a_prefetched_map_is_a_parameter():
    record = completed(
        """
        B = tensor(float16, (64, 64))
        TensorMapRecord(name="B_map", tensor="B", dtype="float16", dimensions=(64, 64), strides=(128,), box=(64, 64))

        @kernel(grid=(1, 1, 1), threads=32)
        def fetch(bx, by, bz, tx):
            if tx == 0:
                prefetch_tensor_map(tensor_map="B_map")
        """
    )
    assert record.launches[0].parameters == (KernelParameter("tensor_map", "B_map"),)


def test_an_integer_argument_that_is_a_symbol_too_is_passed_once():
    record = completed(
        """
        n = symbol(int32)
        n = scalar(int32)
        A = tensor(float32, (n,))

        @kernel(grid=(n, 1, 1), threads=32)
        def use(bx, by, bz, tx):
            A[n - 1] = float32(0.0)
        """
    )
    assert record.launches[0].parameters == (KernelParameter("pointer", "A"), KernelParameter("scalar", "n", "int32"))


def test_a_tensor_used_by_an_atomic_alone():
    record = completed(
        """
        A = tensor(int32, (4,))

        @kernel(grid=(1, 1, 1), threads=32)
        def use(bx, by, bz, tx):
            atomic(operator="add", buffer=A, indices=(0,), value=1)
        """
    )
    assert record.launches[0].parameters == (KernelParameter("pointer", "A"),)
