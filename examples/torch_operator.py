"""A layer of two kernels under torch.compile, with gradients: ptxtile.torch_op makes operators of torch of them.

Run it:  python examples/torch_operator.py [M N K]

``silu`` has its gradient from another kernel, whose parameters and result say by their names what they are (``A`` was
an input, ``dC`` is the gradient of the result, ``dA`` that of the input). The gradient of the product is two products,
which a Python function calls. The whole model is one graph, forward and backward (``fullgraph=True``), and gives what
it gives without torch.compile; both are checked against float64.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def product_kernel(A, B, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """A: [M, K], B: [N, K] bfloat16 → A · Bᵀ, [M, N] bfloat16."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def silu_kernel(A, tile=1024, threads=128):
    """A: [M, N] bfloat16 → A · sigmoid(A), in float32 inside."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, tile), M, threads=threads) as (bx, by):
        for j in T.Parallel(tile):
            a = T.cast(A[by, bx * tile + j], T.float32)
            C[by, bx * tile + j] = a * T.sigmoid(a)
    return C


@ptxtile.jit
def silu_backward_kernel(A, dC, tile=1024, threads=128):
    """dA = dC · s · (1 + A · (1 - s)), s = sigmoid(A)."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.bfloat16)
    dC: T.Tensor((M, N), T.bfloat16)
    dA = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, tile), M, threads=threads) as (bx, by):
        for j in T.Parallel(tile):
            a = T.cast(A[by, bx * tile + j], T.float32)
            s = T.sigmoid(a)
            dA[by, bx * tile + j] = T.cast(dC[by, bx * tile + j], T.float32) * s * (1.0 + a * (1.0 - s))
    return dA


def keep_operands(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.others = len(inputs) - 2


def product_backward(ctx, gradient):
    """dA = dC · B and dB = dCᵀ · A, by the same operator; tile sizes have no gradients."""
    a, b = ctx.saved_tensors
    return (product(gradient, b.t()), product(gradient.t(), a.t()), *[None] * ctx.others)


product = ptxtile.torch_op(
    "ptxtile_examples::product", product_kernel, backward=product_backward, setup_context=keep_operands
)
silu = ptxtile.torch_op("ptxtile_examples::silu", silu_kernel, backward=silu_backward_kernel)


class Layer(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter((torch.randn(outputs, inputs) / inputs**0.5).bfloat16())
        self.bias = torch.nn.Parameter(torch.randn(outputs).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return silu(product(x, self.weight) + self.bias)


def step(layer: Layer, run, x: torch.Tensor) -> list[torch.Tensor]:
    """Result and gradients of x, weight and bias, of the sum of squares."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    result = run(x)
    result.float().square().sum().backward()
    return [result.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


def exact(layer: Layer, x: torch.Tensor) -> list[torch.Tensor]:
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, layer.weight, layer.bias)]
    result = torch.nn.functional.silu(leaves[0] @ leaves[1].T + leaves[2])
    result.square().sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def error_of(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative error of a result or gradient; bfloat16 rounds each step to 8 bits."""
    error = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))
    assert error < 2e-2, error
    return error


def check(M: int, N: int, K: int, device: str, backend: str | None = None) -> float:
    """The relative error of compiled code against float64; eager is held to the same bound."""
    layer = Layer(K, N).to(device)
    x = torch.randn(M, K, device=device).bfloat16()
    wanted = exact(layer, x)
    error_of([layer(x).detach()], wanted[:1])
    error_of(step(layer, layer, x), wanted)
    # on a card inductor fuses the bias; for CPU tensors it would need a C++ compiler
    backend = backend or ("inductor" if device == "cuda" else "aot_eager")
    return error_of(step(layer, torch.compile(layer, fullgraph=True, backend=backend), x), wanted)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [72, 136, 64])
    error = check(*sizes, device)
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: forward and backward, relative error {error:.1e}")


if __name__ == "__main__":
    main()
