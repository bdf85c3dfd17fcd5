"""The forms of a kernel: eager, factory, out_idx, compile(), annotations as strings, dtypes by all their names."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.annotations import plain_factory
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def three(N, dtype="float32"):
    """B = A + 1, C = A * 2, with the outputs in any place of the parameters."""

    @T.prim_func
    def main(B: T.Tensor((N,), dtype), A: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < N:
                    B[bx * 32 + i] = A[bx * 32 + i] + 1
                    C[bx * 32 + i] = A[bx * 32 + i] * 2

    return main


OUT_IDX = {
    "none": (None, lambda a, b, c: (b, a, c), lambda a: None, {0, 2}),
    "last": (-1, lambda a, b, c: (b, a), lambda a: a * 2, {0}),
    "two": (2, lambda a, b, c: (b, a), lambda a: a * 2, {0}),
    "list": ([-1], lambda a, b, c: (b, a), lambda a: a * 2, {0}),
    "first": (0, lambda a, b, c: (a, c), lambda a: a + 1, {1}),
    "both": ([0, 2], lambda a, b, c: (a,), lambda a: (a + 1, a * 2), set()),
    "both_turned": ([2, 0], lambda a, b, c: (a,), lambda a: (a * 2, a + 1), set()),
    "negative": ([-1, -3], lambda a, b, c: (a,), lambda a: (a * 2, a + 1), set()),
}
"""By name: out_idx, the arguments that remain, the results, positions of the outputs among the arguments."""


@cases(
    CASES,
    card=lambda out, how: how == "jit" and out in ("none", "last", "both_turned"),
    out=OUT_IDX,
    how=["jit", "compile", "decorated", "lazy"],
)
def out_idx(generator, out, how):
    index, arguments, results, outputs = OUT_IDX[out]
    a, b, c = (inputs.moderate(generator, (70,)) for _ in range(3))
    if how == "jit":
        kernel = ptxtile.jit(out_idx=index)(three)(70)
    elif how == "lazy":
        kernel = ptxtile.jit(out_idx=index, mode="lazy")(three).compile(70)
    elif how == "decorated":
        kernel = ptxtile.jit(three(70), out_idx=index)
    else:
        kernel = ptxtile.compile(three(70), out_idx=index)
    passed = arguments(a, b, c)
    changes = {position: a + 1 if passed[position] is b else a * 2 for position in outputs}
    return Call(kernel, passed, results(a), changes)


@ptxtile.jit
def eager(A, B, scale=2.0, block: int = 32):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B: "T.Tensor((N,), T.float32)"  # noqa: UP037
    C = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            if bx * block + i < N:
                C[bx * block + i] = A[bx * block + i] * scale + B[bx * block + i]
    return C


CALLS = {
    "positions": lambda a, b: eager(a, b),
    "keywords": lambda a, b: eager(B=b, A=a, scale=2.0),
    "python_arguments": lambda a, b: eager(a, b, 2, block=48),
    "compiled": lambda a, b: eager.compile(N=50)(a, b),
    "compiled_with_arguments": lambda a, b: eager.compile(A=a, B=b, block=16)(a, b),
    "compiled_by_keyword": lambda a, b: eager.compile(N=50, scale=2.0)(a, B=b),
    "plain_annotations": lambda a, b: ptxtile.compile(plain_factory(50, 2.0), out_idx=-1)(a, b),
}


def eager_prim_func(N):
    """out_idx of ptxtile.compile; parameters by the names of the factory's locals, in strings."""

    @ptxtile.compile
    @T.prim_func
    def kernel(A: "T.Tensor((N,), 'float32')", B: T.Tensor([N], torch.float32), C: T.Tensor[(N,), "float32"]):  # noqa: UP037
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if i < N:
                    C[i] = A[i] * 2 + B[i]

    def call(a, b):
        c = torch.empty_like(a)
        assert kernel(a, b, c) is None
        return c

    return call


CALLS["module_compile"] = lambda a, b: eager_prim_func(50)(a, b)


@cases(CASES, card=True, call=CALLS)
def calls(generator, call):
    a, b = (torch.from_numpy(generator.integers(-9, 9, 50)).float() for _ in range(2))
    return Call(CALLS[call], (a, b), a * 2 + b)


NAMES = {"object": T.float16, "string": "float16", "torch": torch.float16, "alias": "half", "attribute": T.half}


@cases(CASES, card=False, spelling=NAMES)
def dtype_names(generator, spelling):
    a = inputs.moderate(generator, (40,), torch.float16)
    kernel = ptxtile.jit(out_idx=[0, 2])(three)(40, NAMES[spelling])
    return Call(kernel, (a,), (a + 1, a * 2))


@cases(CASES, card=False, key=["tl.disable_tma_lower", ptxtile.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED, "fast_math"])
def pass_configs(generator, key):
    a = inputs.moderate(generator, (40,))
    kernel = ptxtile.jit(out_idx=[0, 2], pass_configs={key: True})(three)(40)
    return Call(kernel, (a,), (a + 1, a * 2))


@cases(CASES, card=True)
def many_calls_of_one_kernel(generator):
    """Variants of one kernel by size, stride and alignment, called in turn."""
    a, b = inputs.moderate(generator, (200,)), inputs.moderate(generator, (200,))
    pieces = [slice(0, 64), slice(1, 65), slice(3, 53), slice(0, 200, 2), slice(0, 64), slice(5, 5)]

    def every(a, b):
        return tuple(eager(a[piece], b[piece]) for piece in pieces)

    return Call(every, (a, b), tuple(torch.addcmul(b[p], a[p], torch.tensor(2.0)) for p in pieces))
