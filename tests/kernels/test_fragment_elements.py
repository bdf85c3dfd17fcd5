"""Single elements of fragments: on each target with and without roles, what is refused, and what is recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import LoweringError
from tests.kernels import fragment_elements
from tests.kernels.case import Case, generator_of, parameters, run
from tests.kernels.fragment_elements import gathered_product, picked_rows, sparse_product
from tests.ptxas import assemble

TARGETS = ("sm_80", "sm_90a", "sm_120a")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of kernels are checked for races."""
    monkeypatch.setenv("PTXTILE_SIM", "check")


def products(generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
    a, b = generator.integers(-2, 3, (6 * 64, 64)), generator.integers(-2, 3, (5 * 64, 64))
    index = torch.from_numpy(generator.integers(0, 6, (2, 5))).to(torch.int32)
    a, b = torch.from_numpy(a).half(), torch.from_numpy(b).half()
    blocks = a.float().reshape(6, 64, 64)[index.long()]
    expected = torch.einsum("tkmd,kdn->tmn", blocks, b.float().reshape(5, 64, 64)).reshape(128, 64)
    return a, b, index, expected


def masked(generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
    a, b = (torch.from_numpy(generator.integers(-2, 3, shape)).half() for shape in ((64, 192), (192, 64)))
    mask = torch.from_numpy(generator.random((1, 1, 6)) > 0.4)
    wide = mask[0, 0].repeat_interleave(32)
    return a, b, mask, (a.float() * wide @ b.float()).half()


MAKERS = {"gathered": (gathered_product, products), "sparse": (sparse_product, masked)}


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("table", ["fragment", "local"])
@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", MAKERS)
def test_tables_on_each_target(kind, target, roles, table, random_generator):
    """Right, free of races, and accepted by the assembler; where TMA can load, the producer has a table of its own."""
    plain, make = MAKERS[kind]
    a, b, which, expected = make(random_generator)
    kernel = ptxtile.jit(target=target, specialize_warps=roles)(plain.function.function)
    c = torch.full_like(expected, 9)
    kernel(a, b, which, c, table=table)
    torch.testing.assert_close(c, expected, rtol=0, atol=0)
    compiled, _ = kernel.kernel_for(a, b, which, c, table=table)
    assert "warning" not in assemble(kernel.get_kernel_source(a, b, which, c, table=table), target).lower()
    decided = {why.decision for why in compiled.why}
    assert ("producer and consumers" in decided) is (roles and target != "sm_80")
    assert ("every thread holds all of it" in decided) is (table == "fragment")


ON_EACH_TARGET = ("block_sparse_products", "products_of_gathered_blocks")
"""Cases whose kernels are checked for each target above."""


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    "case", parameters([c for c in fragment_elements.CASES if not c.name.startswith(ON_EACH_TARGET)])
)
def test_no_races(case: Case, request: pytest.FixtureRequest):
    run(case.make(generator_of(case, request.config.option.random_seed)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["outside", "inside", "unrolled", "condition"])
def test_assembles(way, target):
    arguments = torch.zeros(50, 32), torch.zeros(4, dtype=torch.int32), torch.zeros(4, 32), 4
    kernel = ptxtile.jit(target=target)(picked_rows.function.function)
    log = assemble(kernel.get_kernel_source(*arguments, way=way), target)
    assert "warning" not in log.lower() and "0 bytes spill stores" in log


def refusal(given: bool, target: str = "sm_90a") -> LoweringError:
    @ptxtile.jit(target=target)
    def kernel(A, C):
        A: T.Tensor((64, 64), T.float16)
        C: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((64, 64), T.float16)
            total = T.alloc_fragment((64, 64) if not given else (8, 16), T.float32)
            if given:
                T.annotate_layout({total: T.Fragment((8, 16), forward_fn=lambda i, j: (i * 16 + j, 0))})
            T.copy(A, S)
            T.clear(total)
            if not given:
                T.gemm(S, S, total)
            C[0, 0] = total[1, 2]

    with pytest.raises(LoweringError, match="element of the fragment total is used outside of T.Parallel") as caught:
        kernel(torch.zeros(64, 64).half(), torch.zeros(64, 64))
    return caught.value


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_an_accumulator_has_no_elements_outside_of_parallel(target):
    error = refusal(given=False, target=target)
    assert "accumulator of a gemm" in str(error.got) and "shared memory" in str(error.hint)
    assert "C[0, 0] = total[1, 2]" in str(error)


def test_a_fragment_with_a_given_layout_keeps_it():
    assert "T.annotate_layout" in str(refusal(given=True).got)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_an_operand_in_registers_is_handed_over(target, random_generator):
    """Its elements are used alone, so every thread holds it; the gemm gets it by way of shared memory."""

    @ptxtile.jit(target=target)
    def kernel(A, B, C):
        A: T.Tensor((64, 16), T.float16)
        B: T.Tensor((16, 64), T.float16)
        C: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            left, right = T.alloc_fragment((64, 16), T.float16), T.alloc_shared((16, 64), T.float16)
            total = T.alloc_fragment((64, 64), T.float32)
            T.copy(A, left)
            T.copy(B, right)
            left[3, 5] = left[3, 5] + left[63, 15]
            T.clear(total)
            T.gemm(left, right, total)
            T.copy(total, C)

    a, b = (torch.from_numpy(random_generator.integers(-3, 4, shape)).half() for shape in ((64, 16), (16, 64)))
    c = torch.zeros(64, 64)
    kernel(a, b, c)
    changed = a.clone()
    changed[3, 5] += changed[63, 15]
    torch.testing.assert_close(c, changed.float() @ b.float(), rtol=0, atol=0)


@pytest.mark.usefixtures("checked")
def test_a_tile_too_large_for_each_thread_goes_through_shared_memory(random_generator):
    """In T.Parallel an index that only the run knows needs no table in every thread."""

    @ptxtile.jit
    def kernel(A, B, count):
        A: T.Tensor((64, 32), T.float32)
        B: T.Tensor((8, 32), T.float32)
        count: T.int32
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((64, 32), T.float32)
            T.copy(A, tile)
            for k in range(count):
                for j in T.Parallel(32):
                    B[k, j] = tile[k, 3] + j

    a, b = torch.from_numpy(random_generator.standard_normal((64, 32))).float(), torch.zeros(8, 32)
    kernel(a, b, 8)
    torch.testing.assert_close(b, a[:8, 3:4] + torch.arange(32.0), rtol=0, atol=0)
