"""Kernels as operators of torch, on CPU tensors: eager, compiled, exported, differentiated; and what is refused."""

from __future__ import annotations

import copy
import pickle
import shutil
import uuid

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm as example_gemm
from ptxtile.errors import ArgumentError, PtxtileError
from ptxtile.ir.written_tensors import written_tensors
from tests.operators import kernels

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(
    shutil.which("g++") is None, reason="inductor needs a C++ compiler for CPU tensors"
))]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def named() -> str:
    """A name that no other test has registered."""
    return f"ptxtile_tests::operator_{uuid.uuid4().hex}"


def gemm_operator(kernel=kernels.gemm) -> ptxtile.torch_op:
    """With gradients by the kernel itself: dA = dC · B, dB = dCᵀ · A."""

    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:2])

    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return (operator(gradient, b.t()), operator(gradient.t(), a.t()), *[None] * others)

    operator = ptxtile.torch_op(named(), kernel, backward=backward, setup_context=setup_context)
    others = len(operator.kernels.parameters) - 2
    return operator


def silu_operator():
    return ptxtile.torch_op(named(), kernels.silu_scale, backward=kernels.silu_scale_backward)


class Block(torch.nn.Module):
    """Two kernels between operations of torch."""

    def __init__(self, gemm, silu, dtype: torch.dtype) -> None:
        super().__init__()
        self.gemm, self.silu = gemm, silu
        self.weight = torch.nn.Parameter((torch.randn(72, 40) / 40**0.5).to(dtype))
        self.bias = torch.nn.Parameter(torch.randn(72).half())

    def forward(self, x):
        return self.silu(self.gemm(x, self.weight).half() + self.bias, 1.5).float().square().mean(0)


def gradients(model, compiled, x):
    model.zero_grad()
    x = x.clone().requires_grad_()
    result = compiled(x)
    result.sum().backward()
    return [result.detach(), x.grad, model.weight.grad.clone(), model.bias.grad.clone()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel, dtype", [(example_gemm, torch.bfloat16), (kernels.gemm, torch.float16)])
def test_a_model_of_two_kernels(backend, kernel, dtype) -> None:
    """Compiled as one graph, forward and backward, equal to eager, and close to float64."""
    model = Block(gemm_operator(kernel), silu_operator(), dtype)
    x = torch.randn(24, 40).to(dtype)
    eager = gradients(model, model, x)
    counter = CompileCounterWithBackend(backend)
    compiled = gradients(model, torch.compile(model, fullgraph=True, backend=counter), x)
    assert counter.frame_count == 1
    exact = [tensor.double().requires_grad_() for tensor in (x, model.weight.detach(), model.bias.detach())]
    wanted = (torch.nn.functional.silu(exact[0] @ exact[1].T + exact[2]) * 1.5).square().mean(0)
    wanted.sum().backward()
    for one, other, reference in zip(eager, compiled, [wanted.detach(), *(t.grad for t in exact)], strict=True):
        # inductor may keep sums of half precision in float32
        torch.testing.assert_close(one, other, rtol=0.03 if backend == "inductor" else 0, atol=1e-2)
        assert (one.double() - reference).norm() < 0.03 * reference.norm()


@pytest.mark.parametrize("name", ["gemm", "silu_scale", "row_sums_and_doubles", "add_into", "activated", "transposed"])
def test_opcheck(name) -> None:
    """torch's own test of schema, fake kernel, autograd registration, and tracing with symbolic sizes."""
    operator, arguments = {
        "gemm": lambda: (gemm_operator(), (half(20, 40).requires_grad_(), half(30, 40).requires_grad_())),
        "silu_scale": lambda: (silu_operator(), (half(4, 50).requires_grad_(), 0.5)),
        "row_sums_and_doubles": lambda: (
            ptxtile.torch_op(named(), kernels.row_sums_and_doubles), (torch.randn(5, 8),)),
        "add_into": lambda: (ptxtile.torch_op(named(), kernels.add_into), (torch.randn(40), torch.randn(40), 3)),
        "activated": lambda: (ptxtile.torch_op(named(), kernels.activated), (torch.randn(40), "square")),
        "transposed": lambda: (ptxtile.torch_op(named(), kernels.transposed(20, 30)), (torch.randn(20, 30),)),
    }[name]()  # fmt: skip
    assert set(torch.library.opcheck(operator.op, arguments).values()) == {"SUCCESS"}


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def test_dynamic_sizes_compile_once() -> None:
    operator = ptxtile.torch_op(named(), kernels.row_sums_and_doubles)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(operator, fullgraph=True, backend=counter, dynamic=True)
    for rows in (5, 9, 40, 33):
        x = torch.randn(rows, 8)
        wide, narrow = compiled(x)
        assert wide.shape == (rows + 1, 2) and torch.equal(narrow, torch.arange(rows, dtype=torch.int32))
        assert torch.equal(wide, torch.tensor([1.0, 2.0]).expand(rows + 1, 2))
    assert counter.frame_count == 1


def test_const_sizes_compile_again() -> None:
    operator = gemm_operator()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda a, b: operator(a, b) * 2, fullgraph=True, backend=counter)
    for rows in (16, 24, 40):
        a, b = half(rows, 32), half(8, 32)
        torch.testing.assert_close(compiled(a, b), operator(a, b) * 2, rtol=0, atol=0)
    assert 2 <= counter.frame_count <= 3


def test_a_const_size_that_data_decide() -> None:
    operator = ptxtile.torch_op(named(), kernels.activated)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def chosen(x):
        return operator(x[x > 0])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        with pytest.raises(Exception, match="the size N of activated is a T.const one.* declare it with T.dynamic"):
            chosen(torch.randn(20))


def test_writes_are_seen() -> None:
    """An argument that the kernel writes, which is also what it returns; autograd's version counter moves."""
    operator = ptxtile.torch_op(named(), kernels.add_into)
    assert operator.schema == "(Tensor A, Tensor(a0!) B, SymInt factor, int tile=32) -> ()"
    a, b = torch.randn(40), torch.randn(40)
    wanted, version = b + 3 * a, b._version
    assert operator(a, b, 3) is b and torch.allclose(b, wanted) and b._version > version

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(a, b, n):
        c = b + 1
        return operator(a, b, factor=n), operator(a, B=c, factor=n) * 2

    before = b.clone()
    first, second = twice(a, b, 2)
    torch.testing.assert_close(b, before + 2 * a)
    torch.testing.assert_close(first, b, rtol=0, atol=0)
    torch.testing.assert_close(second, 2 * (before + 1 + 2 * a))


def test_python_arguments() -> None:
    operator = ptxtile.torch_op(named(), kernels.activated)
    x = torch.randn(70)
    compiled = torch.compile(lambda x, kind: operator(x, kind, slope=0.5), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, "relu"), torch.maximum(x, x / 2))
    torch.testing.assert_close(compiled(x, "square"), x * x)
    halves = ptxtile.torch_op(named(), kernels.activated, python_arguments={"dtype": T.float16, "kind": "square"})
    assert "kind" not in halves.schema
    torch.testing.assert_close(halves(x.half()), x.half() * x.half())


def test_as_a_decorator_and_a_factory_s_kernel() -> None:
    @ptxtile.torch_op(named())
    @ptxtile.jit
    def doubled(X, tile=32):
        N = T.dynamic("N")
        X: T.Tensor((N,), T.float32)
        Y = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, tile), threads=tile) as bx:
            for i in T.Parallel(tile):
                Y[bx * tile + i] = X[bx * tile + i] * 2.0
        return Y

    x = torch.randn(50)
    assert torch.equal(doubled(x), 2 * x)
    assert torch.equal(doubled(torch.zeros(0)), torch.zeros(0))
    operator = ptxtile.torch_op(named(), kernels.transposed(20, 30))
    assert torch.equal(torch.compile(operator, fullgraph=True, backend="aot_eager")(x[:0].new_ones(20, 30)),
                       torch.ones(30, 20))  # fmt: skip


def test_sizes_that_sums_give() -> None:
    @ptxtile.torch_op(named())
    @ptxtile.jit
    def thirds(X, tile=32):
        N = T.dynamic("N")
        X: T.Tensor((N * 3,), T.float32)
        Y = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, tile), threads=tile) as bx:
            for i in T.Parallel(tile):
                if bx * tile + i < N:
                    Y[bx * tile + i] = X[(bx * tile + i) * 3]
        return Y

    compiled = torch.compile(thirds, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (20, 7, 50):
        x = torch.randn(3 * count)
        assert torch.equal(thirds(x), x[::3]) and torch.equal(compiled(x), x[::3])
    with pytest.raises(ArgumentError, match="for a whole number N"):
        thirds(torch.zeros(10))


def test_export() -> None:
    class Module(torch.nn.Module):
        def forward(self, x):
            return operator(x)[0].sum(), operator(x)[1]

    operator = ptxtile.torch_op(named(), kernels.row_sums_and_doubles)
    exported = torch.export.export(
        Module(), (torch.randn(6, 8),), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=1000)},)
    )
    total, narrow = exported.module()(torch.randn(11, 8))
    assert total == 36 and narrow.shape == (11,)


def test_functional_gradients_agree_with_numerical_ones() -> None:
    x = half(3, 40).requires_grad_()
    silu_operator()(x, 0.25).float().sum().backward()
    exact = x.detach().double().requires_grad_()
    (torch.nn.functional.silu(exact) * 0.25).sum().backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-3, atol=1e-3)


REFUSED = [
    (lambda: ptxtile.torch_op("nothing", kernels.gemm), "namespace::name"),
    (lambda: ptxtile.torch_op("a::b", torch.relu), "needs a kernel"),
    (lambda: ptxtile.torch_op("a::b", kernels.transposed), "call the factory with its sizes"),
    (lambda: ptxtile.torch_op(named(), kernels.activated, python_arguments={"other": 1}), "no Python argument 'other'"),
    (lambda: ptxtile.torch_op(named(), kernels.activated, mutates=["Q"]), "no tensor 'Q'"),
    (lambda: ptxtile.torch_op(named(), kernels.activated, sizes={"Q": 4}), "no size 'Q'"),
    (lambda: ptxtile.torch_op(named(), kernels.add_into, backward=lambda ctx, g: g), "no gradients of operators"),
    (lambda: ptxtile.torch_op(named(), kernels.gemm, backward=kernels.silu_scale_backward), "takes 'X'"),
    (lambda: ptxtile.torch_op(named(), kernels.silu_scale, backward=kernels.silu_scale), "returns Y"),
]


@pytest.mark.parametrize("register, part", REFUSED)
def test_what_cannot_be_registered(register, part) -> None:
    with pytest.raises(ArgumentError, match=part):
        register()


def test_wrong_calls_are_refused_when_they_are_traced() -> None:
    operator = gemm_operator()
    for arguments, part in (
        ((half(8, 32), half(8, 40)), "wrong size of dimension 1"),
        ((half(8, 32), torch.zeros(8, 32)), "wrong dtype"),
        ((half(8, 32), half(32)), "wrong number of dimensions"),
    ):
        with pytest.raises(PtxtileError, match=part):
            operator(*arguments)
        with pytest.raises(Exception, match=part):
            torch.compile(operator, fullgraph=True, backend="aot_eager")(*arguments)


def test_vmap_and_missing_gradients_are_said() -> None:
    operator = ptxtile.torch_op(named(), kernels.activated)
    with pytest.raises(ArgumentError, match=r"no rule for torch.vmap(.|\n)*vmap="):
        torch.vmap(operator)(torch.randn(3, 40))
    with pytest.raises(RuntimeError, match="autograd"):
        operator(torch.randn(40, requires_grad=True)).sum().backward()
    rows = ptxtile.torch_op(
        named(), kernels.activated,
        vmap=lambda info, dims, x, *rest: (operator(x.movedim(dims[0], 0).reshape(-1), *rest).view(info.batch_size, -1),
                                           0),
    )  # fmt: skip
    x = torch.randn(3, 40)
    assert torch.equal(torch.vmap(rows)(x), torch.relu(x))


def test_effects_that_differ_from_the_registered_ones() -> None:
    @ptxtile.jit
    def sometimes(A, B, write=False):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N,), T.float32)
        C = T.empty((N,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                C[i] = A[i] + B[i]
                if write:
                    B[i] = 0.0
        return C

    a, b = torch.randn(20), torch.randn(20)
    operator = ptxtile.torch_op(named(), sometimes)
    assert torch.equal(operator(a, b), a + b)
    with pytest.raises(ArgumentError, match=r"writes 'B', which torch was not told(.|\n)*mutates"):
        operator(a, b, True)
    wanted = a + b
    assert torch.equal(b, wanted - a) or b.any()  # nothing ran
    operator = ptxtile.torch_op(named(), sometimes, mutates=["B"])
    assert torch.equal(operator(a, b, True), wanted) and not b.any()


def test_a_kernel_that_refuses_usual_sizes() -> None:
    @ptxtile.jit
    def thirds(X):
        N = T.const("N")
        X: T.Tensor((N,), T.float32)
        Y = T.empty((N,), T.float32)
        assert N % 3 == 0, "N must be a multiple of 3"
        with T.Kernel(3, threads=32) as bx:
            for i in T.Parallel(N // 3):
                Y[bx * (N // 3) + i] = -X[bx * (N // 3) + i]
        return Y

    with pytest.raises(ArgumentError, match=r"sizes=\{name(.|\n)*multiple of 3"):
        ptxtile.torch_op(named(), thirds)
    x = torch.randn(30)
    assert torch.equal(ptxtile.torch_op(named(), thirds, sizes={"N": 9})(x), -x)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_written_is_seen_at_both_ends(arch) -> None:
    """The same of the traced and of the lowered program, in which stores may have become TMA stores."""
    from ptxtile.compiler import lower
    from ptxtile.target import get

    gemm = kernels.gemm.specialize(M=128, N=128, K=128)
    add = kernels.add_into.specialize(N=64)
    in_place = ptxtile.compile(kernels.transposed.function(64, 64))
    for kernel, wanted in ((gemm, set()), (add, {"B"}), (in_place, {"B"})):
        program = kernel.variant.tile_program
        assert written_tensors(program) == wanted
        assert written_tensors(lower(program, get(arch)).program) == wanted


@pytest.mark.parametrize("way", ["python", "native"])
def test_a_kernel_that_is_no_operator_is_not_traced(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code, that is: compiled code ends before it, and with fullgraph the error names the remedy, or, where
    calls are native already, the method that torch does not know."""
    from examples.elementwise_add import elementwise_add, elementwise_add_factory
    from ptxtile.native import launcher

    a = torch.randn(30, 40)
    made = launcher.get()
    for kernel in (elementwise_add, elementwise_add_factory(30, 40)):
        monkeypatch.setattr(type(kernel), "__call__", type(kernel)._call_checked)
        message = "ptxtile.torch_op makes an operator of it"
        if way == "native":
            if made is None:
                pytest.skip("no native launcher here")
            assert made.install(type(kernel))
            message = "does not know how to trace method `__call__` of class `JIT"
        torch.compiler.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(lambda x, kernel=kernel: kernel(x, x) * 2, fullgraph=True, backend="aot_eager")(a)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda x, kernel=kernel: kernel(x + 1, x) * 2, backend=counter)
        for _ in range(2):
            torch.testing.assert_close(compiled(a), (2 * a + 1) * 2)
        assert counter.frame_count == 2  # before and behind the call


def test_modules_that_hold_operators_are_copied_and_pickled() -> None:
    model = Block(gemm_operator(), silu_operator(), torch.float16)
    model.kernel, model.function = kernels.transposed(8, 8), kernels.gemm
    copied = copy.deepcopy(model)
    assert copied.gemm is model.gemm and copied.kernel is model.kernel and copied.function is model.function
    assert copied.weight is not model.weight
    assert pickle.loads(pickle.dumps(model.gemm)) is model.gemm
    x = half(4, 40)
    assert torch.equal(copied(x), model(x))
    unknown = pickle.dumps(model.gemm).replace(model.gemm.name.encode(), b"ptxtile_tests::" + b"x" * 41)
    with pytest.raises(ArgumentError, match="import the module that registers it"):
        pickle.loads(unknown)


def test_a_size_that_was_marked_dynamic() -> None:
    """T.const sizes cannot be: torch says that it was made a constant."""
    operator = ptxtile.torch_op(named(), kernels.activated)
    x = torch.randn(40)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(Exception, match="marked .* as dynamic but .* constant"):
        torch.compile(operator, fullgraph=True, backend="aot_eager")(x)
