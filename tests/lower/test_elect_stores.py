"""Scalar stores at block level are done by one thread; what depends on the thread stays."""

from __future__ import annotations

import pytest

from ptxtile.ir.program import Program
from ptxtile.lower import elect_stores
from tests.lower.kernel_texts import apply, body_text, kernel_program, text

DECLARATIONS = "C = tensor(int32, (128,))\nM = symbol(int32)"
SCALARS = """S = allocate_shared(int32, (128,))
n = allocate_local(int32, ())
n[()] = 0
"""


def elected(body: str, stage: str = "async") -> str:
    result = apply(elect_stores, program(body, stage))
    return body_text(result).removeprefix(SCALARS)


def program(body: str, stage: str = "async") -> Program:
    return kernel_program(SCALARS + text(body), DECLARATIONS, grid="(4, 4, 1)", stage=stage)


@pytest.mark.parametrize("store", ["C[bx] = 1", "S[0] = M", "C[0] = C[0] + 1", "C[n[()]] = n[()]", "S[by] = S[bx]"])
def test_a_store_that_all_threads_agree_on_is_done_by_thread_0(store: str):
    assert elected(store) == f"if tx == 0:\n    {store}"


@pytest.mark.parametrize(
    "body",
    [
        "C[tx] = 1",
        "C[bx] = tx",
        "C[bx] = C[tx]",
        "n[()] = bx",
        "t: int32 = tx + 1\nC[t] = 0",
        "if tx == 5:\n    C[bx] = 1",
        "if tx == 5:\n    pass\nelse:\n    C[bx] = 1",
        "for k in serial(0, tx):\n    C[k] = 1",
        "for k in serial(0, 8):\n    if tx == k:\n        break\n    C[0] = 1",
        "while n[()] < tx:\n    n[()] = n[()] + 1\n    C[0] = 1",
        "for i in parallel(128):\n    C[i] = 1",
        "for i in parallel(128):\n    C[0] = bx",
    ],
)
def test_stores_of_single_threads_and_of_parallel_loops_stay(body: str):
    given = program(body)
    result = apply(elect_stores, given)
    assert result == given
    assert result.kernels[0].body is given.kernels[0].body


def test_stores_in_uniform_control_flow_are_elected_where_they_stand():
    body = """
    for k in serial(0, M):
        if bx == 0:
            C[k] = k
        else:
            S[k] = k
    while M < 3:
        C[0] = 1
    """
    assert elected(body) == text(
        """
        for k in serial(0, M):
            if bx == 0:
                if tx == 0:
                    C[k] = k
            elif tx == 0:
                S[k] = k
        while M < 3:
            if tx == 0:
                C[0] = 1
        """
    )


def test_a_role_elects_its_own_first_thread():
    body = """
    with specialized():
        with role("consumer", first_thread=0, threads=64):
            C[0] = 1
        with role("producer", first_thread=64, threads=64):
            C[1] = 2
            if bx == 0:
                S[0] = 3
    C[2] = 4
    """
    assert elected(body) == text(
        """
        with specialized():
            with role("consumer", first_thread=0, threads=64):
                if tx == 0:
                    C[0] = 1
            with role("producer", first_thread=64, threads=64):
                if tx == 64:
                    C[1] = 2
                if bx == 0:
                    if tx == 64:
                        S[0] = 3
        if tx == 0:
            C[2] = 4
        """
    )
