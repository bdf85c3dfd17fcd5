"""Guards of accesses: which are proven away, which stay, and what out-of-range accesses mean; the guarded program
against a brute force over all indices."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.errors import LoweringError
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Load, Select
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, ParallelFor, Store
from ptxtile.lower import guard_bounds
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, reasons, text

DECLARATIONS = """
M = symbol(int32)
N = symbol(int32)
K = symbol(int32)
L = symbol(int64)
fact(K, lower=1)
A = tensor(float32, (M, N))
B = tensor(float32, (128, 128))
C = tensor(float32, (1000,))
D = tensor(float32, (K,))
W = tensor(float32, (L,))
E = tensor(float32, (0,))
rows = tensor(int32, (128,))
counter = tensor(int32, (4,))
"""


def program(body: str, grid: str = "(4, 4, 1)") -> Program:
    return kernel_program(text(body), DECLARATIONS, grid=grid, stage="async")


def guarded(body: str, grid: str = "(4, 4, 1)") -> str:
    return body_text(apply(guard_bounds, program(body, grid)))


# ---- nothing to guard


@pytest.mark.parametrize(
    "body",
    [
        "for i, j in parallel(32, 32):\n    B[by * 32 + i, bx * 32 + j] = float32(0.0)",
        "for i in parallel(128):\n    B[i, 127 - i] = B[tx, i // 2]",
        "for k in serial(0, M):\n    if k < 128:\n        C[k] = float32(0.0)",
        "for i in parallel(128):\n    if by * 128 + i < 1000 and by * 128 + i >= 0:\n"
        "        C[by * 128 + i] = float32(0.0)",
        "for i in parallel(128):\n    if by * 128 + i >= 1000:\n        pass\n    else:\n"
        "        C[by * 128 + i] = float32(0.0)",
        "for k in serial(K - 1, -1, -1):\n    D[k] = float32(0.0)",
        "if N > 0:\n    for k in serial(0, M, 3):\n        A[k, 0] = A[k, 0]",
        "x: float32 = C[tx] if tx < 1000 else float32(1.0)",
        "x: bool = tx >= 1 and C[tx - 1] > float32(0.0)",
    ],
)
def test_proven_accesses_stay_as_they_are(body: str):
    given_program = program(body)
    result = apply(guard_bounds, given_program)
    assert result == given_program and not result.why


def test_registers_and_barriers_have_no_bounds():
    body = "R = allocate_register(float32, (4,))\nfor k in unrolled(0, 4):\n    R[k] = float32(0.0)\nR[tx] = R[tx + 1]"
    assert not apply(guard_bounds, program(body)).why


# ---- guards


def test_a_store_is_dropped_and_a_load_is_zero():
    body = """
    for i in parallel(256):
        C[by * 256 + i] = C[by * 256 + i + 1] + float32(1.0)
    """
    assert guarded(body) == text(
        """
        for i in parallel(256):
            if by * 256 + i < 1000:
                C[by * 256 + i] = (C[by * 256 + i + 1] if by * 256 + i + 1 < 1000 else float32(0.0)) + float32(1.0)
        """
    )


def test_each_dimension_and_each_end_is_asked_for():
    body = "for i, j in parallel(64, 64):\n    A[i - 1, j + bx * 64] = float32(0.0)"
    assert guarded(body) == text(
        """
        for i, j in parallel(64, 64):
            if i - 1 >= 0 and i - 1 < M and j + bx * 64 < N:
                A[i - 1, j + bx * 64] = float32(0.0)
        """
    )


def test_the_reason_names_what_is_not_proven():
    result = apply(guard_bounds, program("for i in parallel(128):\n    C[by * 512 + i] = float32(0.0)"))
    assert reasons(result, "guard_bounds") == ["not proven: by * 512 + i < 1000"]
    assert result.why[0].subject == "write of C" and result.why[0].location is not None


def test_every_scope_but_registers_is_guarded():
    body = """
    S = allocate_shared(float32, (64,))
    X = allocate_local(float32, (64,))
    F = allocate_fragment(float32, (64,))
    for i in parallel(128):
        S[i] = float32(0.0)
        X[i] = float32(0.0)
        F[i] = float32(0.0)
    """
    result = apply(guard_bounds, program(body))
    assert [why.subject for why in result.why] == ["write of S", "write of X", "write of F"]


def test_a_view_has_the_bounds_that_it_declares():
    body = 'V = view(float32, (100,), "C", offset=900)\nfor i in parallel(128):\n    V[i] = float32(0.0)'
    assert "if i < 100:" in guarded(body)


def test_the_condition_of_a_lazy_operator_guards_one_side_only():
    body = "x: float32 = C[M] if M >= 0 and M < 1000 else C[M + 1]"
    assert guarded(body) == (
        "x: float32 = C[M] if M >= 0 and M < 1000 else "
        + "(C[M + 1] if cast(M, int64) + int64(1) >= int64(0) and cast(M, int64) + int64(1) < int64(1000)"
        + " else float32(0.0))"
    )


def test_or_guards_nothing_on_its_right_side():
    result = apply(guard_bounds, program("x: bool = tx < 1 or C[tx * 10] > float32(0.0)"))
    assert len(result.why) == 1


def test_an_index_that_is_read_from_memory_is_guarded_itself():
    body = "for i in parallel(256):\n    C[rows[i]] = float32(0.0)"
    result = apply(guard_bounds, program(body))
    assert sorted(why.subject for why in result.why) == ["read of rows", "write of C"]
    inside = [n for n in nodes(result, Load) if n.buffer.name == "rows"]
    assert len(inside) >= 2  # in the guard and in the access
    lazy = [n for n in nodes(result, Select) if isinstance(n.if_true, Load) and n.if_true.buffer.name == "rows"]
    assert len(lazy) == len(inside), "an unguarded read of rows"


def test_a_condition_on_memory_that_changes_is_not_believed():
    """The scalar grows between its test and its use."""
    body = """
    n = allocate_local(int32, ())
    n[()] = M
    if n[()] >= 0 and n[()] < 128:
        n[()] = n[()] + 100
        B[n[()], 0] = float32(0.0)
    """
    result = apply(guard_bounds, program(body))
    assert [why.subject for why in result.why] == ["write of B"]


def test_atomics_do_nothing_out_of_range_and_give_zero():
    body = """
    old = allocate_local(int32, ())
    atomic(operator="add", buffer=counter, indices=(tx,), value=1, result=old)
    atomic(operator="add", buffer=counter, indices=(tx,), value=1)
    atomic_load(buffer=counter, indices=(tx,), result=old)
    atomic_store(buffer=counter, indices=(tx,), value=1)
    atomic_store(buffer=counter, indices=(3,), value=1)
    """
    assert guarded(body) == text(
        """
        old = allocate_local(int32, ())
        if tx < 4:
            atomic(operator="add", buffer=counter, indices=(tx,), value=1, result=old)
        else:
            old[()] = 0
        if tx < 4:
            atomic(operator="add", buffer=counter, indices=(tx,), value=1)
        if tx < 4:
            atomic_load(buffer=counter, indices=(tx,), result=old)
        else:
            old[()] = 0
        if tx < 4:
            atomic_store(buffer=counter, indices=(tx,), value=1)
        atomic_store(buffer=counter, indices=(3,), value=1)
        """
    )


# ---- width of the comparison


def test_an_index_that_may_wrap_is_compared_in_64_bits():
    """by · M + i may leave int32; the index in the access itself is widened later."""
    result = apply(guard_bounds, program("for i in parallel(128):\n    C[by * M + i] = float32(0.0)"))
    assert "int64" in result.why[0].reason
    assert "cast(by, int64) * cast(M, int64)" in result.why[0].reason


def test_a_size_of_64_bits_is_compared_in_64_bits():
    assert "if cast(tx, int64) < L:" in guarded("W[tx] = float32(0.0)")
    assert "if 1 < cast(L, int32)" not in guarded("W[1] = float32(0.0)")


# ---- errors


@pytest.mark.parametrize(
    ("body", "dimension", "index"),
    [
        ("C[1000] = float32(0.0)", 0, "1000"),
        ("C[-1] = float32(0.0)", 0, "-1"),
        ("x: float32 = A[M, 0]", 0, "M"),
    ],
)
def test_an_access_that_is_always_out_of_range_is_an_error(body: str, dimension: int, index: str):
    with pytest.raises(LoweringError, match=f"always out of range in dimension {dimension}") as caught:
        guard_bounds.run(program(body), target.get("sm_90a"), Options())
    assert caught.value.got == f"index {index}"
    assert caught.value.location is not None and caught.value.expected is not None


@pytest.mark.parametrize(
    "body", ["for i, j in parallel(8, 8):\n    B[i, j + 128] = float32(0.0)", "x: float32 = C[tx + 1000]"]
)
def test_a_varying_index_is_guarded_also_where_it_always_misses(body: str):
    """A stencil reads the row after the last one, which for a tensor of one row is always outside."""
    assert "if " in guarded(body)


def test_a_tensor_without_elements_is_no_error():
    assert "E[tx]" in guarded("E[tx] = float32(0.0)")


# ---- the meaning of the guarded program


@st.composite
def indices(draw) -> str:
    parts = [f"{draw(st.sampled_from((-2, -1, 1, 2, 3)))} * {name}" for name in draw(st.sets(st.sampled_from("ij")))]
    return " + ".join([*sorted(parts), str(draw(st.integers(-3, 6)))])


@st.composite
def bodies(draw) -> str:
    access = f"X[{draw(indices())}, {draw(indices())}]"
    condition = f"{draw(indices())} {draw(st.sampled_from(('<', '>=', '==', '!=')))} {draw(indices())}"
    store = f"Y[{draw(indices())}] = {access} if {condition} else float32(1.0)"
    form = draw(
        st.sampled_from(("{}", "if " + condition + ":\n    {}", "if " + condition + ":\n    pass\nelse:\n    {}"))
    )
    return form.format(store)


@given(bodies())
def test_what_is_left_unguarded_is_in_range(body: str):
    """Every access that the guarded body performs is in range, and those in range are still performed."""
    declared = "X = tensor(float32, (4, 5))\nY = tensor(float32, (7,))"
    lines = "\n".join("    " + line for line in body.splitlines())
    given_program = kernel_program(f"for i, j in parallel(3, 4):\n{lines}", declared, stage="async")
    try:
        result = apply(guard_bounds, given_program)
    except LoweringError:
        return  # always out of range
    shapes = {"X": (4, 5), "Y": (7,)}

    def performed(node, values: dict[str, int]) -> list[tuple]:
        """The accesses of a point in order, lazily."""
        if isinstance(node, If):
            found = performed(node.condition, values)
            branch = node.then if evaluate(node.condition, values) else node.otherwise
            return found + ([] if branch is None else performed(branch, values))
        if isinstance(node, Select):
            taken = node.if_true if evaluate(node.condition, values) else node.if_false
            return performed(node.condition, values) + performed(taken, values)
        if isinstance(node, (Load, Store)):
            found = [] if isinstance(node, Load) else performed(node.value, values)
            return [*found, (type(node), node.buffer.name, tuple(int(evaluate(x, values)) for x in node.indices))]
        return []

    before, after = (nodes(p, ParallelFor)[0].body for p in (given_program, result))
    for i, j in itertools.product(range(3), range(4)):
        values = {"i": i, "j": j}
        done = performed(after, values)
        for _, name, index in done:
            assert all(0 <= x < n for x, n in zip(index, shapes[name], strict=True))
        wanted = performed(before, values)
        stores = [access for access in wanted if access[0] is Store]
        dropped = bool(stores) and not 0 <= stores[0][2][0] < 7
        expected = [a for a in wanted if all(0 <= x < n for x, n in zip(a[2], shapes[a[1]], strict=True))]
        assert done == ([] if dropped else expected)
