"""126 distinct kernels over the layers of nine open models: what a program that serves or trains them compiles.

Of each model, for a long and a short batch: the projections into attention and out of it, gate and up with their
activation as one product, and down; then element by element: residual sum, casts to bfloat16 and to e4m3, the gated
activation, its gradient, and the sum of gradients in float32. Norms, softmax and attention are not among them: they
need reductions over a tile (``T.reduce_sum``, ``T.reduce_max``), which the language does not have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm

LONG, SHORT = 8192, 64
"""Tokens of a batch that is prefilled or trained on, and of one that is decoded."""


@dataclass(frozen=True)
class Model:
    """Sizes of one layer. ``attention_in``: outputs of the projections of queries, keys and values together;
    ``attention_out``: inputs of the projection behind attention. ``activation`` of the gate."""

    name: str
    hidden: int
    feed_forward: int
    attention_in: int
    attention_out: int
    activation: str = "silu"


def grouped_query(heads: int, key_heads: int, width: int) -> tuple[int, int]:
    """``attention_in`` and ``attention_out`` for heads of ``width`` each."""
    return (heads + 2 * key_heads) * width, heads * width


MODELS = (
    Model("Llama 3.2 1B", 2048, 8192, *grouped_query(32, 8, 64)),
    Model("Llama 3 8B", 4096, 14336, *grouped_query(32, 8, 128)),
    Model("Llama 3 70B", 8192, 28672, *grouped_query(64, 8, 128)),
    Model("Qwen 2.5 7B", 3584, 18944, *grouped_query(28, 4, 128)),
    Model("Qwen 3 4B", 2560, 9728, *grouped_query(32, 8, 128)),
    Model("Mistral Small 24B", 5120, 32768, *grouped_query(32, 8, 128)),
    Model("DeepSeek V3", 7168, 18432, 1536 + 512 + 64, 128 * 128),
    Model("Gemma 2 27B", 4608, 36864, *grouped_query(32, 16, 128), "gelu"),
    Model("Gemma 3 12B", 3840, 15360, *grouped_query(16, 8, 256), "gelu"),
)
"""Source: ``config.json`` next to each model's published weights (hidden_size, intermediate_size, num_attention_heads,
num_key_value_heads, head_dim). DeepSeek V3 projects into low ranks first: q_lora_rank, kv_lora_rank, qk_rope_head_dim;
behind attention 128 heads with v_head_dim 128."""


def gated(gate: Any, activation: str) -> Any:
    """SiLU, or GELU by tanh as Gemma has it."""
    if activation == "silu":
        return gate * T.sigmoid(gate)
    return 0.5 * gate * (1.0 + T.tanh(0.7978845608 * (gate + 0.044715 * gate * gate * gate)))


@ptxtile.jit
def gate_up(X, gate, up, activation="silu", block_M=128, block_N=128, block_K=64, num_stages=4, threads=256):
    """X: [M, K], gate and up: [N, K] → activation(X · gateᵀ) · (X · upᵀ): [M, N], bfloat16."""
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, K), T.bfloat16)
    gate: T.Tensor((N, K), T.bfloat16)
    up: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        X_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        gate_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        up_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        gate_local = T.alloc_fragment((block_M, block_N), T.float32)
        up_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(gate_local)
        T.clear(up_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(X[by * block_M, k * block_K], X_shared)
            T.copy(gate[bx * block_N, k * block_K], gate_shared)
            T.copy(up[bx * block_N, k * block_K], up_shared)
            T.gemm(X_shared, gate_shared, gate_local, transpose_B=True)
            T.gemm(X_shared, up_shared, up_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            up_local[i, j] *= gated(gate_local[i, j], activation)
        T.copy(up_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def residual(X, Y, block_M=8, block_N=512, threads=128):
    """X + Y: [M, N] bfloat16, summed in float32."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.bfloat16)
    Y: T.Tensor((M, N), T.bfloat16)
    Z = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            row, column = by * block_M + i, bx * block_N + j
            Z[row, column] = T.cast(X[row, column], T.float32) + T.cast(Y[row, column], T.float32)
    return Z


@ptxtile.jit
def cast(X, to=T.bfloat16, block_M=8, block_N=512, threads=128):
    """X: [M, N] float32 → the dtype ``to``."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.float32)
    Z = T.empty((M, N), to)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            Z[by * block_M + i, bx * block_N + j] = X[by * block_M + i, bx * block_N + j]
    return Z


@ptxtile.jit
def quantize(X, scale: T.float32, block_M=8, block_N=512, threads=128):
    """X: [M, N] bfloat16 times ``scale``, within ±448 → e4m3."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.bfloat16)
    Z = T.empty((M, N), T.float8_e4m3fn)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            scaled = T.cast(X[by * block_M + i, bx * block_N + j], T.float32) * scale
            Z[by * block_M + i, bx * block_N + j] = T.max(T.min(scaled, 448.0), -448.0)
    return Z


@ptxtile.jit
def gated_activation(X, activation="silu", block_M=4, block_N=512, threads=128):
    """X: [M, 2, N] bfloat16, gate and up → activation(gate) · up: [M, N]."""
    M, N = T.const("M, N")
    X: T.Tensor((M, 2, N), T.bfloat16)
    Z = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            row, column = by * block_M + i, bx * block_N + j
            gate, up = T.cast(X[row, 0, column], T.float32), T.cast(X[row, 1, column], T.float32)
            Z[row, column] = gated(gate, activation) * up
    return Z


@ptxtile.jit
def gated_gradient(X, dZ, block_M=4, block_N=512, threads=128):
    """The gradient of SiLU(gate) · up by X: [M, 2, N] bfloat16, from that by the result: [M, N]."""
    M, N = T.const("M, N")
    X: T.Tensor((M, 2, N), T.bfloat16)
    dZ: T.Tensor((M, N), T.bfloat16)
    dX = T.empty((M, 2, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            row, column = by * block_M + i, bx * block_N + j
            gate, up = T.cast(X[row, 0, column], T.float32), T.cast(X[row, 1, column], T.float32)
            given = T.cast(dZ[row, column], T.float32)
            share = T.sigmoid(gate)
            dX[row, 0, column] = given * up * share * (1.0 + gate * (1.0 - share))
            dX[row, 1, column] = given * gate * share
    return dX


@ptxtile.jit
def accumulate(total, gradient, block_M=8, block_N=256, threads=128):
    """``total`` (float32) += ``gradient`` (bfloat16): [M, N]."""
    M, N = T.const("M, N")
    total: T.Tensor((M, N), T.float32)
    gradient: T.Tensor((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            total[by * block_M + i, bx * block_N + j] += T.cast(gradient[by * block_M + i, bx * block_N + j], T.float32)


def of_model(model: Model) -> Iterator[tuple[str, Callable[[], ptxtile.JITKernel]]]:
    """(name, what makes the kernel, before anything of it is compiled) of each of a model's 14 kernels."""
    hidden, wide = model.hidden, model.feed_forward
    products = {
        "attention in": (model.attention_in, hidden),
        "attention out": (hidden, model.attention_out),
        "down": (hidden, wide),
    }
    tiles = {LONG: {"block_N": 256}, SHORT: {"block_M": 64, "block_N": 128, "threads": 128}}
    for tokens, tile in tiles.items():
        for name, (outputs, inputs) in products.items():
            yield (
                f"{model.name}: {name}, {tokens} tokens",
                lambda n=outputs, k=inputs, m=tokens, tile=tile: gemm.specialize(M=m, N=n, K=k, num_stages=4, **tile),
            )
        narrow = {**tile, "block_N": 64} if tokens == SHORT else {}
        yield (
            f"{model.name}: gate and up, {tokens} tokens",
            lambda m=tokens, tile=narrow: gate_up.specialize(
                M=m, N=wide, K=hidden, activation=model.activation, **tile
            ),
        )  # fmt: skip
    yield f"{model.name}: residual", lambda: residual.specialize(M=LONG, N=hidden)
    yield f"{model.name}: cast to bfloat16", lambda: cast.specialize(M=LONG, N=hidden)
    yield f"{model.name}: cast to e4m3", lambda: quantize.specialize(M=LONG, N=hidden)
    yield (
        f"{model.name}: gated activation",
        lambda: gated_activation.specialize(M=LONG, N=wide, activation=model.activation),
    )
    yield f"{model.name}: gradient of it", lambda: gated_gradient.specialize(M=LONG, N=wide)
    yield f"{model.name}: sum of gradients", lambda: accumulate.specialize(M=wide, N=hidden)


def zoo() -> dict[str, Callable[[], ptxtile.JITKernel]]:
    """All of them by name."""
    return {name: make for model in MODELS for name, make in of_model(model)}
