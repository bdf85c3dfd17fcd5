"""The two forms of a kernel, and what a function may say about its parameters."""

from __future__ import annotations

import numpy as np
import pytest

import ptxtile.language as T
from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.signature import Signature, TensorSignature, size_number, specialize, specialize_tensor, typical
from ptxtile.frontend.specialization import CONTIGUOUS
from ptxtile.frontend.trace import learn_signature, trace
from ptxtile.ir.expressions import Var
from ptxtile.ir.program import Fact, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, Let, ParallelFor, Seq, Store
from ptxtile.ir.tile_ops import Copy
from ptxtile.ir.types import float32, int32
from tests.frontend.interpreter import run
from tests.frontend.tracing import from_source, traced


def add(A, B, block_M=64, block_N=64, threads=128):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_N), T.float32)
        B_shared = T.alloc_shared((block_M, block_N), T.float32)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.copy(A[by * block_M, bx * block_N], A_shared)
        T.copy(B[by * block_M, bx * block_N], B_shared)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = A_shared[i, j] + B_shared[i, j]
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def factory(M, N, block_M=64, block_N=64, dtype="float32"):
    @T.prim_func
    def add(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_N), dtype)
            B_shared = T.alloc_shared((block_M, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), dtype)
            T.copy(A[by * block_M, bx * block_N], A_shared)
            T.copy(B[by * block_M, bx * block_N], B_shared)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = A_shared[i, j] + B_shared[i, j]
            T.copy(C_local, C[by * block_M, bx * block_N])

    return add


PYTHON = {"block_M": 64, "block_N": 64, "threads": 128}


def test_the_add_kernel_statement_by_statement():
    program = traced(add, constants={"M": 1000, "N": 500}, **PYTHON)
    assert [p.name for p in program.parameters] == ["A", "B"]
    assert [(b.name, b.shape, b.strides) for b in program.allocations] == [("C", (1000, 500), (500, 1))]
    assert program.returns == ("C",) and program.stage == "tile" and not program.symbols
    (kernel,) = program.kernels
    assert kernel.grid == (8, 16, 1) and kernel.threads == kernel.user_threads == 128
    assert [var.name for var in kernel.block_vars] == ["bx", "by", "bz"]
    body = kernel.body
    assert isinstance(body, Seq)
    assert [type(node) for node in body.statements] == [Allocate] * 3 + [Copy] * 2 + [ParallelFor, Copy]
    loop = body.statements[5]
    assert isinstance(loop, ParallelFor) and loop.extents == (64, 64) and [v.name for v in loop.vars] == ["i", "j"]
    assert isinstance(loop.body, Seq)
    assert [type(node) for node in loop.body.statements] == [Let, Let, Store]
    source = body.statements[3]
    assert isinstance(source, Copy)
    assert source.source.buffer == program.parameters[0].buffer and source.source.extents == (64, 64)
    assert source.location is not None and source.location.file == __file__
    line = open(__file__).read().splitlines()[source.location.line - 1]
    assert line[source.location.column - 1 : source.location.end_column - 1] == (
        "T.copy(A[by * block_M, bx * block_N], A_shared)"
    )


@pytest.mark.parametrize("form", ["eager", "factory"])
def test_both_forms_compute_the_sum(form):
    rng = np.random.default_rng(3)
    a, b = rng.random((70, 130), np.float32), rng.random((70, 130), np.float32)
    if form == "eager":
        program = traced(add, constants={"M": 70, "N": 130}, **PYTHON)
    else:
        program = traced(factory(70, 130), outputs=("C",))
    memory = {"A": a, "B": b}
    run(program, memory)
    np.testing.assert_array_equal(memory["C"], a + b)


def test_both_forms_give_the_same_program():
    eager = traced(add, constants={"M": 256, "N": 128}, **PYTHON)
    lazy = traced(factory(256, 128), outputs=("C",))
    assert eager == lazy


def test_out_idx_makes_allocations():
    program = traced(factory(64, 64), outputs=("B", "A"))
    assert [p.name for p in program.parameters] == ["C"] and program.returns == ("B", "A")
    assert [b.name for b in program.allocations] == ["A", "B"]


def test_phase_one_stops_at_the_last_annotation():
    ran = []

    def kernel(A, B, n=3):
        M = T.const("M")
        half = M // 2
        A: T.Tensor((M, n), T.float32)
        B: T.Tensor((half * 2, M + 1), T.float16)
        ran.append(M)
        with T.Kernel(1, threads=32):
            A[0, 0] = B[0, 0]

    user = UserFunction(kernel)
    signature = learn_signature(user, {"n": 3})
    assert ran == []
    assert signature.constants == ("M",)
    shape = signature.tensors[1].shape
    assert [size_number(size, {"M": 9}) for size in shape] == [8, 10]
    program = trace(user, {"n": 3}, typical(signature, {"M": 8}), signature)
    assert ran == [8]
    assert [p.buffer.shape for p in program.parameters if isinstance(p, TensorParameter)] == [(8, 3), (8, 9)]


def test_string_annotations_name_the_factorys_locals():
    source = """
from __future__ import annotations

def main(rows, kind):
    @T.prim_func
    def kernel(A: T.Tensor((rows, 4), kind), n: T.int32):
        with T.Kernel(1, threads=32):
            A[0, 0] = n
    return kernel
"""
    program = traced(from_source(source)(6, "float16"))
    tensor, scalar = program.parameters
    assert (
        isinstance(tensor, TensorParameter) and tensor.buffer.shape == (6, 4) and tensor.buffer.dtype.name == "float16"
    )
    assert isinstance(scalar, ScalarParameter) and scalar.var == Var("n", int32)


def test_quoted_annotations_in_the_body():
    def kernel(A):
        A: "T.Tensor((4,), 'int32')"  # noqa: UP037
        with T.Kernel(1, threads=32):
            A[0] = 1

    assert traced(kernel).parameters[0].name == "A"


def test_dynamic_sizes_are_symbols():
    m = T.dynamic("m")
    k = T.symbolic("k", dtype="int64")

    @T.prim_func
    def main(A: T.Tensor((m, 32), "float32"), B: T.Tensor((k, m), "float32"), C: T.Tensor((m * 2, 32), "float32")):
        with T.Kernel(T.ceildiv(m, 16), threads=32):
            for i in range(m):
                A[i, 0] = C[2 * i, 0] + A.shape[0]

    program = traced(main)
    assert program.symbols == (Var("m", int32), Var("k", k.ir_dtype))
    assert [fact.divisor for fact in program.facts] == [16, 16]
    assert program.facts[0].upper is not None and program.facts[0].upper * 32 < 2**31
    memory = {"A": np.zeros((5, 32), np.float32), "B": np.zeros((1, 5)), "C": np.ones((10, 32), np.float32)}
    run(program, memory, {"m": 5, "k": 1})
    assert memory["A"][:, 0].tolist() == [6.0] * 5


@pytest.mark.parametrize(
    "of", [lambda m, k: m * m, lambda m, k: m // 2, lambda m, k: m + k, lambda m, k: m * 2 - m * 2]
)
def test_a_dynamic_size_that_cannot_be_solved(of):
    m, k = T.dynamic("m, k")

    @T.prim_func
    def main(A: T.Tensor((of(m, k),), "float32")):
        with T.Kernel(m, threads=32):
            A[0] = 1

    with pytest.raises(TraceError, match="dynamic size m cannot be solved"):
        traced(main)


def test_dynamic_sizes_that_sums_give():
    m, k = T.dynamic("m, k")

    @T.prim_func
    def main(A: T.Tensor((m * 2 - k,), "float32"), B: T.Tensor((k * 4 + 3,), "float32")):
        with T.Kernel(m, threads=32):
            A[0] = 1

    assert [symbol.name for symbol in traced(main).symbols] == ["m", "k"]


def test_scalars_by_signature_and_in_the_body():
    def kernel(A, alpha: T.float32, n, flag: T.bool, plain: int = 3):
        A: T.Tensor((4,), T.float32)
        n: T.int32
        with T.Kernel(n, threads=32):
            if flag:
                A[0] = alpha * n + plain

    program = traced(kernel, plain=3)
    assert [(p.name, p.var.dtype.name) for p in program.parameters if isinstance(p, ScalarParameter)] == [
        ("alpha", "float32"), ("n", "int32"), ("flag", "bool"),
    ]  # fmt: skip
    memory = {"A": np.zeros(4, np.float32)}
    run(program, memory, {"alpha": 1.5, "n": 2, "flag": True})
    assert memory["A"][0] == 6


def test_several_kernels_and_host_python():
    def kernel(A, times=3):
        n = T.const("n")
        A: T.Tensor((n,), T.int32)
        work = T.empty((n,), T.int32)
        out = T.empty((n,), T.int32)
        sources = [A, work]
        for k in range(2):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    target = work if k == 0 else out
                    target[i] = sources[k][i] * times
        return out

    program = traced(kernel, constants={"n": 8}, times=3)
    assert [k.name for k in program.kernels] == ["kernel_kernel", "kernel_kernel_1"]
    assert program.returns == ("out",) and [b.name for b in program.allocations] == ["work", "out"]
    memory = {"A": np.arange(8, dtype=np.int32)}
    run(program, memory)
    assert memory["out"].tolist() == [9 * i for i in range(8)]


def test_macros_take_buffers_and_give_values():
    @T.macro
    def clipped(buffer, i, low=0):
        x = buffer[i]
        if x < low:
            x = low
        return x

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in range(8):
                A[i] = clipped(A, i) + clipped(A, i, low=2)

    memory = {"A": np.array([-3, -1, 0, 1, 2, 3, 4, 5], np.int32)}
    run(traced(main), memory)
    assert memory["A"].tolist() == [max(x, 0) + max(x, 2) for x in [-3, -1, 0, 1, 2, 3, 4, 5]]


def test_methods_as_macros():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @T.macro
        def apply(self, x):
            return x * self.factor if x > 0 else x

    scale = Scale(3)

    @T.prim_func
    def main(A: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = scale.apply(A[0])
            A[1] = scale.apply(A[1])

    memory = {"A": np.array([2, -2], np.int32)}
    run(traced(main), memory)
    assert memory["A"].tolist() == [6, -2]


def test_returning_a_parameter_and_several_tensors():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        B = T.empty(4, dtype="float16")
        with T.Kernel(1, threads=32):
            A[0] = 1
        return B, A

    program = traced(kernel)
    assert program.returns == ("B", "A") and program.allocations[0].dtype.name == "float16"


def test_declared_strides():
    s = T.dynamic("s")

    @T.prim_func
    def main(A: T.StridedTensor((4, 8), (s, 1), "float32"), B: T.StridedTensor((4, 8), (16, 2), "float32")):
        with T.Kernel(1, threads=32):
            A[1, 2] = B[3, 4]

    program = traced(main)
    first, second = (p.buffer for p in program.parameters if isinstance(p, TensorParameter))
    assert first.strides == (Var("s", int32), 1) and second.strides == (16, 2)
    memory = {"A": np.zeros(40, np.float32), "B": np.arange(64, dtype=np.float32)}
    run(program, memory, {"s": 10})
    assert memory["A"][12] == 56


def test_integer_scalars_as_sizes():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), blocks: T.int32):
        with T.Kernel(blocks, threads=32) as b:
            A[b] = blocks

    program = traced(main)
    memory = {"A": np.zeros(64, np.int32)}
    run(program, memory, {"blocks": 3})
    assert memory["A"].tolist() == [3] * 3 + [0] * 61


# ---------------------------------------------------------------- specialization


def specialized(shape, strides, address=0):
    tensor = TensorSignature("A", float32, tuple(Var(f"s{d}", int32) for d in range(len(shape))))
    signature = Signature((tensor,))
    known = specialize_tensor(shape, strides, address, None)
    values = {f"s{d}": size for d, size in enumerate(shape)}
    return specialize(signature, values, {"A": known}, {"A": strides})


@pytest.mark.parametrize(
    "shape, strides, pattern",
    [
        ((4, 8), (8, 1), (CONTIGUOUS, CONTIGUOUS)),
        ((4, 8), (24, 1), (None, CONTIGUOUS)),
        ((4, 8), (1, 4), (1, None)),
        ((4, 8), (0, 1), (0, CONTIGUOUS)),
        ((4, 1, 8), (8, 999, 1), (CONTIGUOUS,) * 3),
        ((2, 3, 8), (48, 16, 2), (None, None, None)),
        ((0, 8), (99, 7), (CONTIGUOUS, CONTIGUOUS)),
    ],
)
def test_stride_patterns(shape, strides, pattern):
    known = specialize_tensor(shape, strides, 0, None)
    assert known.strides == pattern


@pytest.mark.parametrize("address, alignment", [(0, 16), (256, 16), (8, 8), (4, 4), (6, 2), (3, 1)])
def test_alignment_classes(address, alignment):
    assert specialize_tensor((4,), (1,), address, None).alignment == alignment


def test_free_strides_become_symbols_with_facts():
    def kernel(A):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), T.float32)
        with T.Kernel(1, threads=32):
            A[1, 2] = A.strides[0]

    user = UserFunction(kernel)
    signature = learn_signature(user, {})
    known = {"A": specialize_tensor((4, 8), (24, 1), 8, 5)}
    spec = specialize(signature, {"M": 4, "N": 8}, known, {"A": (24, 1)})
    program = trace(user, {}, spec, signature)
    (parameter,) = program.parameters
    assert isinstance(parameter, TensorParameter)
    assert parameter.alignment == 8 and parameter.alias_group == 5
    assert parameter.buffer.strides == (Var("A_stride0", int32), 1)
    (fact,) = program.facts
    assert fact == Fact(Var("A_stride0", int32), 0, fact.upper, 8)
    assert fact.upper is not None and 3 * fact.upper + 7 < 2**31
    memory = {"A": np.zeros(96, np.float32)}
    run(program, memory, {"A_stride0": 24})
    assert memory["A"][26] == 24


def test_sizes_whose_offsets_may_pass_2_31_have_no_bound():
    small, large = specialized((4096, 4096), (4096, 1)), specialized((2**17, 2**17), (2**17, 1))
    bounds = dict(small.uppers)
    assert bounds["s0"] * bounds["s1"] < 2**31 and not large.uppers
    assert small == specialized((64, 32), (32, 1))
    assert small != specialized((64, 33), (33, 1))  # divisibility by 16
    one = dict(specialized((2**30,), (1,)).uppers)
    assert one == {"s0": 2**31 - 1}


def test_wide_strides_are_int64():
    known = specialize_tensor((2, 2), (2**33, 1), 0, None)
    assert known.wide_strides and known.strides == (None, CONTIGUOUS)


# ---------------------------------------------------------------- misuse


def fails(function, match, error=TraceError, outputs=(), **python):
    with pytest.raises(error, match=match) as caught:
        traced(function, outputs, **python)
    return caught.value


def test_used_before_it_is_declared():
    def kernel(A):
        A.shape
        A: T.Tensor((4,), T.float32)

    fails(kernel, "the tensor A is used before it is declared")


def test_const_that_no_tensor_gives():
    def kernel(A):
        M, K = T.const("M, K")
        A: T.Tensor((M,), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = K

    with pytest.raises((TraceError, KeyError)):
        traced(kernel, constants={"M": 4})


def test_no_kernel():
    def kernel(A):
        A: T.Tensor((4,), T.float32)

    fails(kernel, "has no T.Kernel")


def test_an_annotation_that_is_none():
    def kernel(A):
        A: 3
        with T.Kernel(1):
            pass

    fails(kernel, "the annotation of A", TypeMismatchError)


def test_returns_something_else():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            A[0] = 1
        return 3

    fails(kernel, "returns something else than its tensors", TypeMismatchError)


def test_outside_of_a_kernel():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        A[0] = 1
        with T.Kernel(1):
            pass

    fails(kernel, "outside of T.Kernel")


def test_kernel_inside_a_kernel():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            with T.Kernel(1):
                A[0] = 1

    fails(kernel, "T.Kernel inside of T.Kernel")


def test_grid_rank():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1, 2, 3, 4):
            A[0] = 1

    fails(kernel, "the grid of T.Kernel")


def test_host_branch_on_a_dynamic_size():
    m = T.dynamic("m")

    def kernel(A):
        A: T.Tensor((m,), T.float32)
        blocks = 1
        if m > 100:
            blocks = 2
        with T.Kernel(blocks):
            A[0] = 1

    fails(kernel, "outside of T.Kernel")


@pytest.mark.parametrize(
    "name, match",
    [
        ("copyy", "did you mean T.copy"),
        ("gemm_sp", "not supported yet"),
        ("call_extern", "C\\+\\+ or CUDA source"),
        ("import_source", "C\\+\\+ or CUDA source"),
        ("qwertz", "has no T.qwertz"),
        ("loop_break", "in its place: write `break`"),
        ("async_copy", "in its place: T.copy in T.Pipelined"),
    ],
)
def test_unknown_operations(name, match):
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            getattr(T, name)(A)

    error = fails(kernel, "T\\.")
    import re

    assert re.search(match, str(error)), str(error)
    assert error.location is not None and error.location.file == __file__
    assert not hasattr(T, name)


def test_what_is_offered_instead_exists():
    import re

    from ptxtile.frontend.unavailable import _CPP_SOURCE, _INSTEAD, _LATER

    for name, instead in _INSTEAD.items():
        assert all(hasattr(T, offered) for offered in re.findall(r"T\.(\w+)", instead)), instead
    assert not any(hasattr(T, name) for name in (*_INSTEAD, *_LATER, *_CPP_SOURCE))


def test_tensors_outside_of_tracing():
    with pytest.raises(TraceError, match="outside of a traced function"):
        T.alloc_shared((4,), "float32")
    with pytest.raises(TraceError, match="outside of a traced function"):
        T.Kernel(1)


def test_no_source():
    namespace = {"T": T}
    exec("def kernel(A):\n    A: T.Tensor((4,), T.float32)\n", namespace)
    with pytest.raises(TraceError, match="the source of kernel is not available") as caught:
        traced(namespace["kernel"])
    assert caught.value.location is not None


def test_lambda():
    with pytest.raises(TraceError, match="not defined by a plain `def`"):
        traced(lambda A: A)


def test_prim_func_called():
    with pytest.raises(TraceError, match="is called directly"):
        factory(4, 4)(1, 2, 3)


def test_error_report_has_line_and_caret():
    def kernel(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            A[0] = T.exp(A)

    text = str(fails(kernel, "not a scalar", TypeMismatchError)).splitlines()
    assert "A[0] = T.exp(A)" in text[-3]
    assert text[-2].strip() == "^" * len("T.exp(A)") and text[-2].index("^") == text[-3].index("T.exp")
    assert any(node for node in walk(Seq(())))
