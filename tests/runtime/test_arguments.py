"""Binding: every refusal with its message, symbols solved, outputs allocated, grids."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.errors import ArgumentError, LaunchError
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    evaluate_size,
    solvable,
)
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.symbols import symbols_of

M, N, S = Symbol("M"), Symbol("N"), Symbol("S")


def ceildiv(size, divisor: int):
    return SizeOperation("floordiv", SizeOperation("add", size, divisor - 1), divisor)


def tensor(name: str, shape=(M, N), strides=(N, 1), dtype: str = "float32", alignment: int = 4, unused: bool = False):
    return TensorArgument(name, dtype, shape, strides, alignment, unused)


def record(*arguments, **fields) -> LaunchRecord:
    return LaunchRecord("add", arguments, **fields)


ADD = record(
    tensor("A"),
    tensor("B"),
    allocations=(Allocation("C", "float16", (N, SizeOperation("mul", M, 2))),),
    launches=(KernelLaunch("add_kernel", (ceildiv(N, 64), ceildiv(M, 64), 1), (128, 1, 1), 0, ()),),
    returns=("C",),
)


def refused(what: LaunchRecord, *args, error=ArgumentError, device_type: str = "cpu", **kwargs) -> str:
    with pytest.raises(error) as caught:
        bind(what, args, kwargs, device_type=device_type)
    return str(caught.value)


def test_a_call_is_bound() -> None:
    a, b = torch.randn(70, 33), torch.randn(70, 33)
    bound = bind(ADD, (a,), {"B": b}, device_type="cpu")
    assert bound.tensors["A"] is a and bound.tensors["B"] is b
    assert bound.symbols == {"M": 70, "N": 33}
    assert bound.results is bound.tensors["C"]
    assert bound.results.shape == (33, 140) and bound.results.dtype is torch.float16 and bound.results.is_contiguous()
    assert bound.grids == ((1, 2, 1),) and not bound.is_empty


@pytest.mark.parametrize(
    "args, kwargs, parts",
    [
        ((1, 2, 3), {}, ["too many", "2 (A, B)", "3"]),
        ((1,), {}, ["too few", "'B' missing", "2 (A, B)"]),
        ((), {}, ["'A', 'B' missing"]),
        ((1,), {"C": 2}, ["unknown argument 'C'", "2 (A, B)"]),
        ((1,), {"A": 2}, ["'A' is given twice"]),
        ((1, 2), {"B": 2}, ["'B' is given twice"]),
    ],
)
def test_wrong_count(args, kwargs, parts) -> None:
    message = refused(ADD, *args, **kwargs)
    assert message.startswith("add: ")
    for part in parts:
        assert part in message


def test_a_misspelt_keyword_gets_a_hint() -> None:
    what = record(tensor("weight"), tensor("x"))
    assert "did you mean 'weight'?" in refused(what, 1, wieght=2)


def value_of(kind: str):
    from torch._subclasses import FakeTensorMode

    if kind == "fake":
        with FakeTensorMode():
            return torch.zeros(2, 2)
    if kind == "quantised":
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.quantize_per_tensor(torch.zeros(2, 2), 1.0, 0, torch.quint8)
    read_only = np.zeros((2, 2), np.float32)
    read_only.setflags(write=False)
    return {
        "none": None,
        "number": 3.5,
        "list": [[1.0, 2.0]],
        "text": "A",
        "sparse": torch.eye(2).to_sparse(),
        "conjugate": torch.zeros(2, 2, dtype=torch.complex64).conj(),
        "negative": torch._neg_view(torch.zeros(2, 2)),
        "meta": torch.zeros(2, 2, device="meta"),
        "float64": torch.zeros(2, 2, dtype=torch.float64),
        "rank 1": torch.zeros(4),
        "rank 3": torch.zeros(1, 2, 2),
        "read-only": read_only,
        "reversed": np.zeros((2, 2), np.float32)[::-1],
    }[kind]


@pytest.mark.parametrize(
    "kind, parts",
    [
        ("none", ["not a tensor", "NoneType"]),
        ("number", ["not a tensor", "float 3.5"]),
        ("list", ["not a tensor", "list [[1.0, 2.0]]"]),
        ("text", ["not a tensor", "str 'A'"]),
        ("sparse", ["sparse", "to_dense()"]),
        ("conjugate", ["conjugate view", "resolve_conj()"]),
        ("negative", ["negative view", "resolve_neg()"]),
        ("quantised", ["quantised", "int_repr()"]),
        ("fake", ["FakeTensor has no memory", "torch_op"]),
        ("meta", ["wrong device", "a cpu tensor", "meta", "no data"]),
        ("float64", ["wrong dtype", "expected: float32", "got:      float64"]),
        ("rank 1", ["wrong number of dimensions", "2, shape (M, N)", "1, shape (4,)"]),
        ("rank 3", ["wrong number of dimensions", "3, shape (1, 2, 2)"]),
        ("read-only", ["ndarray cannot be shared", "read-only"]),
        ("reversed", ["ndarray cannot be shared", "negative"]),
    ],
)
def test_what_is_no_readable_tensor(kind, parts) -> None:
    message = refused(ADD, torch.zeros(2, 2), value_of(kind))
    assert message.startswith("add: argument 'B' (2 of 2): ")
    for part in parts:
        assert part in message


def test_a_tensor_under_vmap_is_refused() -> None:
    what = record(tensor("A", (N,), (1,)))
    messages = []
    torch.vmap(lambda row: (messages.append(refused(what, row)), row)[1])(torch.zeros(2, 3))
    assert "torch.func" in messages[0]


def test_a_cpu_tensor_for_the_card() -> None:
    message = refused(ADD, torch.zeros(2, 2), torch.zeros(2, 2), device_type="cuda")
    assert "argument 'A' (1 of 2): wrong device" in message
    assert "expected: a cuda tensor" in message and "got:      a tensor on cpu" in message and ".cuda()" in message


def test_two_devices(monkeypatch) -> None:
    """Meta tensors stand for cards: what is compared is the device of each."""
    from ptxtile.runtime import arguments

    devices = iter([torch.device("cuda", 0), torch.device("cuda", 1)])
    made = [SimpleNamespace(device=device) for device in devices]
    with pytest.raises(ArgumentError) as caught:
        arguments._one_device(ADD, dict(zip("AB", made, strict=True)), "cuda")  # type: ignore[arg-type]
    message = str(caught.value)
    assert "argument 'B' (2 of 2): on another device" in message
    assert "expected: cuda:0, the device of argument 'A'" in message and "got:      cuda:1" in message


def test_a_symbol_must_agree_across_arguments() -> None:
    message = refused(ADD, torch.zeros(5, 4), torch.zeros(5, 7))
    assert "argument 'B' (2 of 2): wrong size of dimension 1" in message
    assert "expected: shape (5, 4) (N = 4, fixed by dimension 1 of argument 'A')" in message
    assert "got:      shape (5, 7)" in message


def test_a_symbol_must_agree_within_one_argument() -> None:
    what = record(tensor("A", (M, M), (M, 1)))
    assert "M = 3, fixed by dimension 0 of argument 'A'" in refused(what, torch.zeros(3, 4))
    assert bind(what, (torch.zeros(3, 3),), device_type="cpu").symbols == {"M": 3}


def test_fixed_and_computed_sizes() -> None:
    what = record(tensor("A", (N, 8), (8, 1)), tensor("B", (SizeOperation("mul", N, 2),), (1,)))
    assert "expected: shape (3, 8)" in refused(what, torch.zeros(3, 9), torch.zeros(6))
    message = refused(what, torch.zeros(3, 8), torch.zeros(5))
    assert "expected: shape (6,) (from (N * 2); N = 3, fixed by dimension 0 of argument 'A')" in message


def test_a_size_that_no_argument_determines() -> None:
    for size in (SizeOperation("mul", N, N), SizeOperation("floordiv", N, 2), SizeOperation("add", N, M)):
        what = record(tensor("A", (size,), (1,)))
        assert "needs 'N', which no argument determines" in refused(what, torch.zeros(4))
    what = record(tensor("A", (N,), (1,), unused=True), launches=(KernelLaunch("k", (N, 1, 1), (32, 1, 1), 0, ()),))
    assert "the grid of 'k' needs 'N'" in refused(what, None)


def test_sums_give_the_size_that_they_leave_open() -> None:
    """In whatever order they come: 4 N = 12, then M + N = 8, then S − 2 M + 1 = 0."""
    size = SizeOperation("add", SizeOperation("sub", S, SizeOperation("mul", 2, M)), 1)
    arguments = tensor("A", (size,), (1,)), tensor("B", (SizeOperation("add", M, N),), (1,))
    what = record(*arguments, tensor("C", (SizeOperation("mul", N, 4),), (1,)))
    shapes = torch.zeros(0), torch.zeros(8), torch.zeros(12)
    assert bind(what, shapes, device_type="cpu").symbols == {"N": 3, "M": 5, "S": 9}
    message = refused(what, *shapes[:2], torch.zeros(14))
    assert "argument 'C' (3 of 3): wrong size of dimension 0" in message
    assert "expected: (N * 4) for a whole number N ≥ 0" in message and "got:      14, shape (14,)" in message
    message = refused(what, shapes[0], torch.zeros(2), shapes[2])
    assert "expected: (M + N) for a whole number M ≥ 0 (N = 3, fixed by dimension 0 of argument 'C'" in message


@given(st.data())
def test_a_solvable_size_is_that_sum(data) -> None:
    """Against the value of the size for random values of its symbols."""
    leaves = st.one_of(st.integers(-4, 4), st.sampled_from([M, N, S]))
    sums = st.recursive(
        leaves, lambda inner: st.builds(SizeOperation, st.sampled_from(["add", "sub", "mul"]), inner, inner)
    )
    size, known = data.draw(sums), data.draw(st.sets(st.sampled_from(["M", "N", "S"])))
    found = solvable(size, known)
    if found is None:
        return
    name, factor, offset = found
    assert factor and name not in known and set(symbols_of(offset)) <= known
    values = {one: data.draw(st.integers(-9, 9)) for one in ("M", "N", "S")}
    assert evaluate_size(size, values) == factor * values[name] + evaluate_size(offset, values)


def test_an_integer_argument_is_a_symbol() -> None:
    what = record(ScalarArgument("N", "int32"), tensor("A", (N,), (1,)))
    assert bind(what, (3, torch.zeros(3)), device_type="cpu").symbols == {"N": 3}
    assert "N = 3, fixed by argument 'N'" in refused(what, 3, torch.zeros(4))
    later = record(tensor("A", (N,), (1,)), ScalarArgument("N", "int32"))
    assert "N = 3, fixed by argument 'N'" in refused(later, torch.zeros(4), 3)


def test_strides() -> None:
    a = torch.zeros(6, 5)
    message = refused(ADD, a, torch.zeros(5, 6).T)
    assert "argument 'B' (2 of 2): wrong stride of dimension 0, 1" in message
    assert "expected: strides (5, 1) (N = 5, fixed by dimension 1 of argument 'A')" in message
    assert "got:      strides (1, 6) for shape (6, 5)" in message and "B.contiguous()" in message


def test_a_bare_stride_is_solved() -> None:
    what = record(tensor("A", strides=(S, 1)), tensor("B", strides=(S, 1)))
    a, b = torch.zeros(4, 9)[:, :6], torch.zeros(4, 9)[:, 3:]
    assert bind(what, (a, b), device_type="cpu").symbols == {"M": 4, "N": 6, "S": 9}
    message = refused(what, a, torch.zeros(4, 6))
    assert "S = 9, fixed by the stride of dimension 0 of argument 'A'" in message
    assert "got:      strides (6, 1)" in message


def test_strides_that_do_not_matter() -> None:
    one_row = torch.zeros(9, 1).T  # shape (1, 9), strides (1, 1)
    assert bind(ADD, (one_row, torch.zeros(1, 9)), device_type="cpu").symbols == {"M": 1, "N": 9}
    empty = torch.zeros(5, 0).T.expand(0, 5)
    assert bind(ADD, (empty, empty), device_type="cpu").symbols == {"M": 0, "N": 5}
    what = record(tensor("A", strides=(S, 1)), tensor("B", (N, M), strides=(S, 1)))
    solved = bind(what, (torch.zeros(1, 3), torch.zeros(3, 7)[:, :1]), device_type="cpu").symbols
    assert solved["S"] == 7  # the stride of A's only row says nothing
    alone = bind(record(tensor("A", strides=(S, 1))), (torch.zeros(1, 3),), device_type="cpu")
    assert alone.symbols["S"] == 0


def test_alignment() -> None:
    what = record(tensor("A", (N,), (1,), alignment=16))
    base = torch.zeros(64)
    offset = (-base.data_ptr() // 4) % 4
    assert bind(what, (base[offset:],), device_type="cpu").symbols["N"] == 64 - offset
    message = refused(what, base[offset + 1 :])
    assert "the base address is not aligned" in message and "expected: a multiple of 16 bytes" in message
    assert "a multiple of 4" in message
    assert bind(what, (base[offset + 1 : offset + 1],), device_type="cpu").symbols == {"N": 0}


def test_none_only_where_it_is_never_touched() -> None:
    what = record(tensor("A"), tensor("B", unused=True))
    bound = bind(what, (torch.zeros(2, 3), None), device_type="cpu")
    assert set(bound.tensors) == {"A"}
    assert "argument 'A' (1 of 2): not a tensor" in refused(what, None, None)


def test_requires_grad_is_read_like_any_other() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    bound = bind(ADD, (weight, torch.zeros(2, 3, requires_grad=True)), device_type="cpu")
    assert bound.tensors["A"] is weight and not bound.results.requires_grad


def test_numpy_and_dlpack_share_memory() -> None:
    class Array:
        def __init__(self, array) -> None:
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    bound = bind(record(tensor("A"), tensor("B"), returns=("A",)), (a, Array(b)), device_type="cpu")
    bound.tensors["A"].fill_(1.0)
    bound.tensors["B"].fill_(2.0)
    assert (a == 1.0).all() and (b == 2.0).all()
    assert bound.results is a


def test_results() -> None:
    one, two = Allocation("C", "int8", (N,)), Allocation("D", "bool", ())
    a = torch.zeros(3)
    arguments = (tensor("A", (N,), (1,)),)
    nothing = bind(record(*arguments, allocations=(one,)), (a,), device_type="cpu")
    assert nothing.results is None and nothing.tensors["C"].shape == (3,)
    several = bind(record(*arguments, allocations=(one, two), returns=("D", "A")), (a,), device_type="cpu")
    assert several.results[0].dtype is torch.bool and several.results[0].shape == () and several.results[1] is a
    negative = record(*arguments, allocations=(Allocation("C", "int8", (SizeOperation("sub", N, 5),)),))
    assert "'C' would have a negative size" in refused(negative, a)


def test_divisibilities() -> None:
    what = record(tensor("A"), divisibilities=(Divisibility(SizeOperation("mul", N, 4), 16),))
    assert bind(what, (torch.zeros(2, 8),), device_type="cpu").symbols["N"] == 8
    message = refused(what, torch.zeros(2, 7))
    assert "(N * 4) is not a multiple of 16" in message and "got:      28" in message
    assert "N = 7, fixed by dimension 1 of argument 'A'" in message


def test_zero_sizes_launch_nothing() -> None:
    bound = bind(ADD, (torch.zeros(0, 4), torch.zeros(0, 4)), device_type="cpu")
    assert bound.is_empty and bound.grids == ((1, 0, 1),) and bound.results.shape == (4, 0)


@pytest.mark.parametrize("axis, limit", [(0, 2**31 - 1), (1, 65535), (2, 65535)])
def test_grid_limits(axis, limit) -> None:
    """Limits: CUDA C++ Programming Guide, technical specifications of compute capabilities 8.0 to 12.0."""
    grid = tuple(N if index == axis else 1 for index in range(3))
    what = record(ScalarArgument("N", "int64"), launches=(KernelLaunch("k", grid, (32, 1, 1), 0, ()),))
    assert bind(what, (limit,), device_type="cpu").grids[0][axis] == limit
    for wrong in (limit + 1, -1):
        message = refused(what, wrong, error=LaunchError)
        assert f"grid dimension {'xyz'[axis]} of kernel 'k'" in message
        assert f"0 to {limit} CTAs along {'xyz'[axis]}" in message and f"got:      {wrong}" in message
        assert "N = " in message and "fixed by argument 'N'" in message


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_symbols_are_solved_from_any_view(data) -> None:
    """A view of a random allocation, sliced and permuted, binds to its own shape and strides, as torch tells them."""
    rank = data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    steps = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    order = data.draw(st.permutations(range(rank)))
    view = torch.zeros([size * step for size, step in zip(sizes, steps, strict=True)])
    view = view[tuple(slice(None, None, step) for step in steps)].permute(order)
    shape = tuple(Symbol(f"n{index}") for index in range(rank))
    strides = tuple(Symbol(f"s{index}") for index in range(rank))
    shapes_twice = record(tensor("A", shape, strides), tensor("B", shape, strides))
    symbols = bind(shapes_twice, (view, view), device_type="cpu").symbols
    assert tuple(symbols[f"n{index}"] for index in range(rank)) == tuple(view.shape)
    for index in range(rank):
        if view.shape[index] > 1 and view.numel():
            assert symbols[f"s{index}"] == view.stride(index)
    grown = data.draw(st.integers(0, rank - 1))
    other = torch.zeros([size + (index == grown) for index, size in enumerate(view.shape)])
    assert f"fixed by dimension {grown} of argument 'A'" in refused(shapes_twice, view, other)


def test_an_allocation_under_a_mode_that_gives_no_memory() -> None:
    from torch._subclasses import FakeTensorMode

    what, a = record(tensor("A", (N,), (1,)), allocations=(Allocation("C", "int8", (N,)),)), torch.zeros(4)
    with FakeTensorMode(), pytest.raises(ArgumentError, match="add: 'C', which the call allocates: a Fake"):
        bind(what, (a,), device_type="cpu")
