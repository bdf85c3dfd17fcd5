"""Kernels as operators of torch on a card: compiled by inductor, differentiated, and inside of CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import ptxtile
from examples.gemm import gemm as example_gemm
from tests.operators import kernels
from tests.operators.test_torch_op import Block, gemm_operator, gradients, half, named, silu_operator


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def exact_gradients(model, x) -> list[torch.Tensor]:
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, model.weight, model.bias)]
    result = (torch.nn.functional.silu(leaves[0] @ leaves[1].T + leaves[2]) * 1.5).square().mean(0)
    result.sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def test_a_model_of_two_kernels(card) -> None:
    model = Block(gemm_operator(example_gemm), silu_operator(), torch.bfloat16).to(card)
    x = torch.randn(24, 40, device=card).bfloat16()
    eager = gradients(model, model, x)
    counter = CompileCounterWithBackend("inductor")
    compiled = gradients(model, torch.compile(model, fullgraph=True, backend=counter), x)
    assert counter.frame_count == 1
    for one, other, wanted in zip(eager, compiled, exact_gradients(model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0.03, atol=1e-2)
        assert (one.double() - wanted).norm() < 0.03 * wanted.norm()


def test_reduce_overhead(card) -> None:
    """inductor's CUDA graphs: warm-up, recording, replays on new content."""
    gemm, silu = gemm_operator(), silu_operator()
    w = half(72, 40).to(card)
    compiled = torch.compile(lambda x: silu(gemm(x, w), 0.5) + 1, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x = half(24, 40).to(card)
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(x).clone(), silu(gemm(x, w), 0.5) + 1, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["gemm", "silu", "add_into"])
def test_opcheck(card, name) -> None:
    operator, arguments = {
        "gemm": lambda: (gemm_operator(), (half(24, 40), half(32, 40))),
        "silu": lambda: (silu_operator(), (half(4, 50), 0.5)),
        "add_into": lambda: (ptxtile.torch_op(named(), kernels.add_into), (torch.randn(40), torch.randn(40), 3)),
    }[name]()
    arguments = [a.to(card) if isinstance(a, torch.Tensor) else a for a in arguments]
    assert set(torch.library.opcheck(operator.op, arguments).values()) == {"SUCCESS"}
