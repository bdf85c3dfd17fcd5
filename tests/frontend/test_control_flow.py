"""Traced control flow means what Python means: each body runs as plain Python and as a kernel, on fresh data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptxtile.language as T
from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.ir import statements as s
from ptxtile.ir.expressions import Load
from ptxtile.ir.rewrite import walk
from tests.frontend.interpreter import run
from tests.frontend.tracing import from_source, kernel_of, same_as_python, traced

SMALL = st.integers(-5, 5)
ROWS = st.lists(SMALL, min_size=8, max_size=8).map(lambda values: np.array(values, np.int32))
FLOATS = st.lists(st.floats(-8, 8, width=32), min_size=8, max_size=8).map(lambda v: np.array(v, np.float32))
OUT = np.zeros(8, np.int32)


@given(ROWS, st.integers(0, 8))
def test_if_elif_else(row, n):
    def body(A, B, n):
        for i in range(n):
            if A[i] > 2:
                B[i] = 1
            elif A[i] < -2:
                B[i] = 2
            else:
                B[i] = A[i]

    same_as_python(body, row, OUT, n=n)


@given(ROWS, st.integers(0, 8))
def test_accumulate_and_break_and_continue(row, n):
    def body(A, B, n):
        total = 0
        last = -1
        for i in range(n):
            if A[i] == 0:
                continue
            if A[i] > 4:
                break
            total += A[i]
            last = i
        B[0] = total
        B[1] = last

    same_as_python(body, row, OUT, n=n)


@given(ROWS, st.integers(-3, 12))
def test_while_with_loads_in_the_condition(row, limit):
    def body(A, B, limit):
        i = 0
        total = 0
        while i < 8 and total + A[i] < limit:
            total = total + A[i]
            i += 1
        B[0] = i
        B[1] = total

    same_as_python(body, row, OUT, limit=limit)


@given(ROWS)
def test_while_true_leaves_by_break(row):
    def body(A, B):
        i = 0
        while True:
            if i >= 8:
                break
            if A[i] < 0:
                B[1] = i
                break
            i += 1
        B[0] = i

    same_as_python(body, row, OUT)


@given(ROWS)
def test_while_on_an_assigned_flag(row):
    def body(A, B):
        i = 0
        going = A[0] < 3
        while going:
            i += 1
            going = (i < 8) and A[i] < 3
        B[0] = i

    same_as_python(body, row, OUT)


@given(ROWS)
def test_walrus_in_while(row):
    def body(A, B):
        i = 0
        while (x := A[i]) > 0:
            B[i] = x
            i += 1
            if i == 8:
                break

    same_as_python(body, row, OUT)


@given(ROWS, st.integers(-2, 10), st.integers(-2, 10))
def test_dynamic_range_bounds(row, lo, hi):
    def body(A, B, lo, hi):
        count = 0
        for i in range(lo, hi):
            count += 1
        for i in range(hi, lo, -2):
            count += 100
        B[0] = count

    same_as_python(body, row, OUT, lo=lo, hi=hi)


@given(ROWS)
def test_nested_loops_carry_through_both(row):
    def body(A, B):
        total = 0
        for i in range(4):
            inner = 0
            for j in range(i, 8):
                inner += A[j]
                if inner > 3:
                    break
            total += inner
        B[0] = total

    same_as_python(body, row, OUT)


@given(ROWS)
def test_swap_and_tuple_assignment(row):
    def body(A, B):
        a, b = 0, 1
        for i in range(8):
            if A[i] > 0:
                a, b = b, a + b
            else:
                a, b = b, a
        B[0] = a
        B[1] = b

    same_as_python(body, row, OUT)


@given(ROWS)
def test_logical_operators_and_chains(row):
    def body(A, B):
        for i in range(8):
            x = A[i]
            ok = (-3 <= x <= 3 and not x == 0) or x == 5
            B[i] = 1 if ok else 0
            if 0 < x < 4 != 2:
                B[i] += 10
            if x != 1 and x != 2 and x != 3:
                B[i] += 100

    same_as_python(body, row, OUT)


@given(ROWS)
def test_sides_not_taken_are_not_loaded(row):
    def body(A, B):
        for i in range(-2, 10):
            inside = i >= 0 and i < 8
            if i >= 0 and i < 8 and A[i] > 0:
                B[i] = 1
            x = A[i] if inside else 7
            y = A[i + 1] if 0 <= i < 7 else (A[i] if inside else 0)
            if i < 0 or i > 7 or A[i] < 0:
                x = x + 1
            if inside:
                B[i] += x * 10 + y

    same_as_python(body, row, OUT)


def test_if_then_else_guards_its_loads():
    row = np.arange(8, dtype=np.int32)

    def body(A, B):
        for i in range(-2, 10):
            if i < 8:
                B[0] += T.if_then_else(i >= 0, A[i], 3)

    out = OUT.copy()
    arrays = {"A": row.copy(), "B": out}
    machine = run(kernel_of(body, arrays, {}), arrays)
    assert out[0] == row.sum() + 6
    assert all(0 <= i < 8 for name, (i,) in machine.loads if name == "A")


@given(ROWS, st.booleans())
def test_python_conditions_take_one_branch(row, flag):
    names = ["x", "y"]

    def body(A, B):
        for name in names:
            if name == "x" and flag:
                B[0] = A[1]
            elif name == "y":
                B[1] = A[2]
            else:
                continue
            B[2] += 1
        for k, (a, b) in enumerate(zip([1, 2, 3], [4, 5, 6], strict=True)):
            if k == 2:
                break
            B[3 + k] = a * b + A[k]
        table = {i: i * i for i in range(4)}
        B[6] = sum([table[i] for i in (1, 2, 3)])

    same_as_python(body, row, OUT)


@given(ROWS)
def test_assigned_in_both_branches(row):
    def body(A, B):
        for i in range(8):
            if A[i] > 0:
                kind = 1
                if A[i] > 3:
                    bonus = 5
                else:
                    bonus = 0
            else:
                kind = 2
                bonus = A[i]
            B[i] = kind * 10 + bonus

    same_as_python(body, row, OUT)


@given(ROWS)
def test_branch_that_leaves_does_not_need_a_value(row):
    def body(A, B):
        for i in range(8):
            if A[i] > 0:
                x = A[i] * 2
            else:
                continue
            B[i] = x

    same_as_python(body, row, OUT)


@given(ROWS)
def test_names_reused_for_unrelated_things(row):
    def body(A, B):
        for i in range(4):
            t = A[i] + 1
            B[i] = t
        for i in range(4):
            t = A[i] > 0
            if t:
                B[i + 4] = 1
        t = A[0]
        B[7] += t

    same_as_python(body, row, OUT)


@given(FLOATS)
def test_program_order_of_loads_and_stores(row):
    def body(A):
        x = A[0]
        A[0] = A[1]
        A[1] = x
        y = A[2]
        A[2] = A[2] + 1
        A[3] = y + A[2]
        A[4], A[5] = A[5], A[4]

    same_as_python(body, row)


@given(ROWS)
def test_augmented_assignment_evaluates_once(row):
    def body(A, B):
        i = 0
        for _ in range(4):
            i += 1
            B[i] += A[i]
            B[i] *= 2
            B[i] -= 1
            B[i] //= 3
            B[i] %= 5
            B[i] <<= 2
            B[i] ^= 3

    same_as_python(body, row, OUT)


@given(ROWS)
def test_closures_nested_functions_and_lambdas(row):
    factor = 3

    def body(A, B):
        offset = 2

        def scaled(x):
            return x * factor + offset

        double = lambda x: x + x  # noqa: E731
        for i in range(4):
            B[i] = scaled(A[i]) + double(A[i + 1])

    same_as_python(body, row, OUT)


def test_loops_keep_their_kinds():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(2, 8, 2):
                A[i] = 1.0
            for i in T.unroll(4):
                A[i] = 2.0
            for i in T.vectorized(4):
                A[i] = 3.0
            for i in T.Pipelined(4, num_stages=3):
                A[i] = 4.0
            for i in range(8):
                A[i] = 5.0

    loops = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, s.For)]
    assert [loop.kind.value for loop in loops] == ["serial", "unrolled", "vectorized", "pipelined", "serial"]
    assert loops[0].step == 2
    assert loops[3].option("num_stages") == 3


def test_an_unrolled_loop_with_break_stays_a_loop():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.unroll(8):
                if A[i] > 1.0:
                    break

    (loop,) = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, s.For)]
    assert loop.kind is s.LoopKind.SERIAL


def test_while_condition_on_own_variables_needs_no_break():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            i = T.int32(0)
            while i < 5:
                i += 1
            while A[i] > 0:
                i += 1

    body = traced(main).kernels[0].body
    first, second = [node for node in walk(body) if isinstance(node, s.While)]
    assert any(isinstance(node, Load) for node in walk(first.condition))
    assert not any(isinstance(node, s.Break) for node in walk(first))
    assert any(isinstance(node, s.Break) for node in walk(second))


@pytest.mark.parametrize("start, kind", [(0, "int32"), (0.0, "float32"), (False, "bool"), (2**40, "int64")])
def test_dtype_of_a_rebound_number(start, kind):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=1):
            x = start
            for i in range(4):
                if A[i] > 0:
                    x = start
            A[0] = x

    (allocation,) = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, s.Allocate)]
    assert allocation.buffer.dtype.name == kind
    assert allocation.buffer.name == "x"


def test_alloc_var_is_assigned_not_rebound():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=1):
            v = T.alloc_var(T.float16, 1.5)
            w = T.alloc_var("int32", init=3)
            v = A[0]
            v += 2.5
            w = v
            other = v
            v = 0
            A[1] = w
            A[2] = other

    program = traced(main)
    allocations = [node.buffer.dtype.name for node in walk(program.kernels[0].body) if isinstance(node, s.Allocate)]
    assert allocations == ["float16", "int32"]
    memory = {"A": np.array([4] + [0] * 7, np.int32)}
    run(program, memory)
    assert memory["A"][1] == 6 and memory["A"][2] == 6


def errors_in(body, match, error=TraceError, line=None):
    """Tracing ``body(A)`` fails with ``match`` at the line that says ``line``."""
    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((8, 8), "int32"), F: T.Tensor((8, 8), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            inline(A, F, n)

    with pytest.raises(error, match=match) as caught:
        traced(main)
    if line is not None:
        assert line in str(caught.value), str(caught.value)
    return caught.value


def test_used_after_one_branch():
    def body(A, F, n):
        if n > 0:
            x = 1
        A[0, 0] = x  # here

    errors_in(body, "x may have no value here", line="A[0, 0] = x  # here")


def test_used_after_a_loop_that_may_not_run():
    def body(A, F, n):
        for i in range(n):
            x = A[i, 0]
        A[0, 0] = x

    errors_in(body, "may not run")


def test_a_loop_that_surely_runs_defines():
    def body(A, F, n):
        for i in range(3):
            x = A[i, 0]
        A[0, 0] = x

    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((8, 8), "int32")):
        with T.Kernel(1, threads=32):
            inline(A, None, 3)

    traced(main)


def test_loop_index_after_its_loop():
    def body(A, F, n):
        for i in range(n):
            A[i, 0] = 1
        A[0, 0] = i

    errors_in(body, "index of a traced loop that has ended")


def test_rebound_to_another_dtype():
    def body(A, F, n):
        acc = 0
        for i in range(n):
            acc = acc + F[i, 0]

    error = errors_in(body, "acc is a int32 here", TypeMismatchError)
    assert error.hint is not None and "acc = T.float32(" in error.hint


@pytest.mark.parametrize("start", [None, [1], "text"])
def test_rebound_from_an_object(start):
    def body(A, F, n):
        x = start
        for i in range(n):
            x = A[i, 0]
        A[0, 0] = x

    errors_in(body, "x is rebound under the traced control flow", TypeMismatchError)


def test_rebound_to_a_buffer():
    def body(A, F, n):
        x = A
        if n > 0:
            x = F
        x[0, 0] = 1

    errors_in(body, "not a scalar", TypeMismatchError)


def test_a_python_list_changed_in_a_traced_loop():
    def body(A, F, n):
        seen = []
        for i in range(n):
            seen.append(A[i, 0])  # here

    errors_in(body, "changes a Python list under traced control flow", line="seen.append(A[i, 0])  # here")


def test_a_python_dict_item_set_in_a_traced_if():
    table = {}

    def body(A, F, n):
        if n > 0:
            table["x"] = 1

    errors_in(body, "changes a Python dict")


def test_containers_made_in_the_loop_may_change_there():
    def body(A, F, n):
        for i in range(n):
            parts = [A[i, j] for j in range(4)]
            parts.append(A[i, 4])
            more = {}
            more["a"] = sum(parts)
            A[i, 5] = more["a"]

    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((8, 8), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            inline(A, None, n)

    traced(main)


def test_break_of_a_python_loop_under_a_traced_condition():
    def body(A, F, n):
        for k in [0, 1, 2]:
            if A[k, 0] > 0:
                break

    errors_in(body, "`break` of a loop that Python unrolls")


@pytest.mark.parametrize("word", ["for", "while"])
def test_else_of_a_traced_loop(word):
    def with_for(A, F, n):
        for i in range(n):
            A[i, 0] = 1
        else:
            A[0, 0] = 2

    def with_while(A, F, n):
        while A[0, 0] > 0:
            A[0, 0] -= 1
        else:
            A[0, 0] = 2

    errors_in(with_for if word == "for" else with_while, "`else` of a traced loop")


def test_return_under_a_traced_condition():
    def body(A, F, n):
        if n > 0:
            return
        A[0, 0] = 1

    errors_in(body, "`return` under the traced control flow")


def test_endless_loop():
    def body(A, F, n):
        while True:
            A[0, 0] += 1

    errors_in(body, "never ends")


def test_a_while_that_turns_traced():
    def body(A, F, n):
        going = True
        while going:
            going = A[0, 0] > 0

    errors_in(body, "became a traced one|was a Python value at first")


def test_plain_helper_with_a_traced_if_names_macro():
    namespace = {}
    exec("def helper(x):\n    if x > 0:\n        return 1\n    return 2\n", namespace)
    helper = namespace["helper"]

    def body(A, F, n):
        A[0, 0] = helper(n)

    error = errors_in(body, "plain Python function helper")
    assert "T.macro" in str(error.hint)


def test_macros_show_the_chain_of_calls():
    @T.macro
    def inner(A, i):
        A[i] = 1  # wrong number of indices

    def body(A, F, n):
        for i in range(n):
            inner(A, i)

    error = errors_in(body, "wrong number of indices", TypeMismatchError)
    assert error.location.function == "inner"
    assert error.location.caller.function == "body"
    assert error.location.caller.caller is not None
    assert "inner(A, i)" in str(error)


def test_a_name_rebound_by_an_inner_loop_is_gone():
    def body(A, F, n):
        j = 5
        for i in range(n):
            for j in range(3):
                A[i, j] = 1
        A[0, 0] = j

    errors_in(body, "j may have no value here: it was bound by a `for`")


def test_a_name_rebound_by_a_python_loop_in_a_branch_is_gone():
    def body(A, F, n):
        k = 5
        if n > 0:
            for k in [1, 2]:
                A[k, 0] = 1
        else:
            A[0, 1] = 1
        A[0, 0] = k

    errors_in(body, "k may have no value here: it was bound by a `for`")


@given(ROWS)
def test_builtins(row):
    def body(A, B):
        B[0] = max(A[0], A[1], 2)
        B[1] = min(A[0], 3)
        B[2] = max([1, 5, 2])
        B[3] = sum(A[i] for i in (0, 1, 2))
        B[4] = abs(A[3]) + len([A[0], A[1]])
        name = f"{3}{'x'}"
        B[5] = int(name[0])

    same_as_python(body, row, OUT)


@given(ROWS, st.integers(0, 4))
def test_dead_code_after_break(row, n):
    def body(A, B, n):
        for i in range(n):
            x = A[i]
            if x > 0:
                B[i] = x
                continue
                B[i] = 99
            B[i] = -x
            if x < -3:
                break
                x = 7
            B[i + 4] = x

    same_as_python(body, row, OUT, n=n)


@given(ROWS)
def test_carried_values_read_late_keep_their_value(row):
    def body(A, B):
        x = 1
        for i in range(4):
            pair = (x, x + 1)
            old = x
            x = A[i]
            B[i] = pair[0] * 100 + pair[1] * 10 + old

    same_as_python(body, row, OUT)


@given(ROWS)
def test_defined_at_every_break(row):
    def body(A, B):
        i = 0
        while True:
            x = A[i]
            if x > 0:
                break
            i += 1
            if i == 8:
                break
        B[0] = x
        for k in range(8):
            y = A[k]
            if y < 0:
                continue
            if y == 3:
                break
        B[1] = y

    same_as_python(body, row, OUT)


@pytest.mark.parametrize("endless", [True, False])
def test_undefined_at_some_jump(endless):
    def with_while(A, F, n):
        while True:
            if A[0, 0] > 0:
                break
            x = 1
        A[0, 0] = x

    def with_for(A, F, n):
        for i in range(4):
            if A[i, 0] > 0:
                continue
            x = 1
        A[0, 0] = x

    errors_in(with_while if endless else with_for, "x may have no value here")


def test_a_host_branch_before_the_declarations():
    def kernel(A):
        M = T.const("M")
        if M > 3:
            M = M + 1
        A: T.Tensor((M,), T.float32)

    with pytest.raises(TraceError, match="before all tensors are declared"):
        traced(kernel, constants={"M": 3})


def test_a_device_index_into_a_python_list():
    def body(A, F, n):
        values = [1, 2, 3]
        for i in range(3):
            A[i, 0] = values[i]

    error = errors_in(body, "where Python needs an integer now")
    assert "list(range(n))" in str(error.hint)


@given(ROWS)
def test_a_branch_does_not_see_what_the_other_assigns(row):
    def body(A, B):
        for i in range(4):
            x = A[i]
            t = 3
            if x > 0:
                x = x * 2
                t = x + 1
                B[i] = t
            elif x < -1:
                x -= 1
                B[i] = x
            else:
                B[i] = x + t
            x = 5
            t = x
            B[i + 4] = t

    same_as_python(body, row, OUT)


def random_body(draw, depth, names):
    """Statements over int variables ``names``, arrays A and B, as source lines; every name has a value at the start."""
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(names))
        kind = draw(
            st.sampled_from(["set", "aug", "if", "for", "store", "while"] if depth else ["set", "aug", "store"])
        )
        value = draw(random_value(names))
        if kind == "set":
            lines.append(f"{name} = {value}")
        elif kind == "aug":
            lines.append(f"{name} {draw(st.sampled_from(['+', '-', '^']))}= {value}")
        elif kind == "store":
            lines.append(f"B[{draw(st.integers(0, 7))}] = {value}")
        elif kind == "if":
            lines.append(f"if {draw(random_condition(names))}:")
            lines += ["    " + line for line in random_body(draw, depth - 1, names)]
            if draw(st.booleans()):
                lines.append(draw(st.sampled_from(["else:", f"elif {draw(random_condition(names))}:"])))
                lines += ["    " + line for line in random_body(draw, depth - 1, names)]
        else:
            index = f"i{depth}"
            if kind == "for":
                lines.append(f"for {index} in range({draw(st.sampled_from(['3', f'({name} & 3)', '1, 5, 2']))}):")
            else:
                lines += [f"{index} = A[0] & 1", f"while {index} < 3:", f"    {index} += 1"]
            inner = random_body(draw, depth - 1, names)
            lines += ["    " + line for line in inner]
            if draw(st.booleans()):
                lines.append(f"    if {draw(random_condition(names))}:")
                lines.append("        " + draw(st.sampled_from(["break", "continue"])))
                lines += ["    " + line for line in random_body(draw, 0, names)]
    return lines


@st.composite
def random_value(draw, names):
    a, b = (draw(st.sampled_from([*names, "A[1]", "A[2]", "B[3]", "7", "-2"])) for _ in range(2))
    form = draw(st.sampled_from(["{a}", "{a} + {b}", "{a} * 3 - {b}", "({a} if {c} else {b})", "{a} // 3 % 5"]))
    return form.format(a=a, b=b, c=draw(random_condition(names)))


@st.composite
def random_condition(draw, names):
    a, b = (draw(st.sampled_from([*names, "A[4]", "B[5]"])) for _ in range(2))
    return draw(
        st.sampled_from([f"{a} > {b}", f"-3 < {a} <= {b}", f"{a} > 0 and A[6] < {b}", f"not ({a} == 1 or {b} < 2)"])
    )


@st.composite
def programs(draw):
    names = ["x", "y", "z"]
    start = [f"{name} = A[{k}]" for k, name in enumerate(names)]
    ending = [f"B[{k}] += {name}" for k, name in enumerate(names)]
    lines = [*start, *random_body(draw, 3, names), *ending]
    return "def main(A, B):\n" + "".join(f"    {line}\n" for line in lines)


@given(programs(), ROWS)
def test_random_bodies_mean_what_python_means(source, row):
    same_as_python(from_source(source), row, OUT)
