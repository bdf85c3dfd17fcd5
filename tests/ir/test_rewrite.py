"""Walking and rewriting with the kinds of nodes that a tree holds: the same as without them, in fewer places."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Binary, Call, Cast, Const, Expr, Load, Select, Var, constant
from ptxtile.ir.gpu_ops import BarSync, GpuOp, TmaLoad
from ptxtile.ir.nodes import Node
from ptxtile.ir.rewrite import Rewriter, contains, copy_with, map_children, replace_buffers, statements_in, walk
from ptxtile.ir.statements import Allocate, For, Let, Seq, Statement, Store, While
from ptxtile.ir.tile_ops import Copy, Region
from ptxtile.ir.types import BY_NAME, DType, int32
from tests.ir.sample_programs import any_expression, gpu_program, tile_program

KINDS = (Binary, Call, Cast, Const, Expr, Load, Select, Var, BarSync, GpuOp, TmaLoad, Allocate, For, Let, Seq)
KINDS += (Statement, Store, While, Copy, Region)
BODIES = [kernel.body for program in (tile_program(), gpu_program()) for kernel in program.kernels]


def everything_in(node: Any) -> list[Any]:
    """``node`` and the nodes inside of it, found by looking at all fields but those that bind variables."""
    found = [node]
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Node) and field.name not in ("var", "vars"):
                found += everything_in(item)
    return found


@pytest.mark.parametrize("body", BODIES, ids=["tile", "gpu"])
@pytest.mark.parametrize("kinds", [*[(kind,) for kind in KINDS], (Store, Let), (TmaLoad, Load, Region), (While, Call)])
def test_walk_finds_the_nodes_of_the_kinds_in_order(body: Statement, kinds: tuple[type[Node], ...]) -> None:
    wanted = [node for node in everything_in(body) if isinstance(node, kinds)]
    found = list(walk(body, *kinds))
    assert len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))
    assert contains(body, *kinds) == bool(wanted)


@given(any_expression(), st.sampled_from(KINDS))
def test_contains_looks_everywhere(expression: Expr, kind: type[Node]) -> None:
    assert contains(expression, kind) == any(isinstance(node, kind) for node in everything_in(expression))


def test_what_is_remembered_of_a_node_is_no_part_of_it() -> None:
    fresh, asked = (Var("x", int32) + constant(1) for _ in range(2))
    assert contains(asked, Var) and not contains(asked, Load)
    assert fresh == asked and hash(fresh) == hash(asked) and repr(fresh) == repr(asked)
    assert pickle.dumps(fresh) == pickle.dumps(asked)
    assert copy.deepcopy(asked) == fresh
    changed = copy_with(asked, {"right": Cast(Var("y", BY_NAME["int64"]), int32)})
    assert contains(changed, Cast) and not contains(asked, Cast)


class _Doubled(Rewriter):
    def rewrite_Const(self, node: Const) -> Const:
        return Const(2 * node.value, node.dtype) if node.dtype == int32 else node


class _SeesAll(Rewriter):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def visit(self, node: Any) -> Any:
        self.seen.append(node)
        return Rewriter.visit(self, node)


class _SeesStores(Rewriter, kinds=(Store,)):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    visit = _SeesAll.visit


def doubled(node: Any) -> Any:
    """What :class:`_Doubled` makes, without passing anything over."""
    node = map_children(node, doubled)
    return Const(2 * node.value, int32) if isinstance(node, Const) and node.dtype == int32 else node


@pytest.mark.parametrize("body", BODIES, ids=["tile", "gpu"])
def test_a_rewriter_reaches_all_nodes_that_it_has_methods_for(body: Statement) -> None:
    assert _Doubled().visit(body) == doubled(body) != body


@given(any_expression())
def test_a_rewriter_reaches_them_in_expressions(expression: Expr) -> None:
    assert _Doubled().visit(expression) == doubled(expression)


@pytest.mark.parametrize("body", BODIES, ids=["tile", "gpu"])
def test_a_rewriter_with_a_visit_of_its_own_sees_everything(body: Statement) -> None:
    rewriter = _SeesAll()
    assert rewriter.visit(body) is body
    assert len(rewriter.seen) == len(everything_in(body))
    stores = _SeesStores()
    assert stores.visit(body) is body
    assert {id(node) for node in walk(body, Store)} <= set(map(id, stores.seen))
    assert len(stores.seen) < len(rewriter.seen)


@pytest.mark.parametrize("body", BODIES, ids=["tile", "gpu"])
def test_buffers_are_replaced_wherever_nodes_name_them(body: Statement) -> None:
    buffers = {b.name: b for node in everything_in(body) for b in named_by(node)}
    renamed = {name: copy_with(buffer, {"name": f"{name}_2"}) for name, buffer in buffers.items()}
    found = replace_buffers(body, renamed)
    assert {b.name for node in everything_in(found) for b in named_by(node)} == {b.name for b in renamed.values()}
    assert replace_buffers(body, {"nobody": next(iter(buffers.values()))}) is body


def named_by(node: Any) -> list[Buffer]:
    values = [getattr(node, field.name) for field in fields(node)]
    return [
        item
        for value in values
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Buffer)
    ]


def test_statements_are_those_of_the_walk() -> None:
    for body in BODIES:
        assert list(map(id, statements_in(body))) == list(map(id, walk(body, Statement)))


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("name", BY_NAME)
def test_what_follows_from_a_dtype_survives_copies(name: str, lanes: int) -> None:
    dtype = BY_NAME[name].with_lanes(lanes)
    for other in (pickle.loads(pickle.dumps(dtype)), copy.deepcopy(dtype), DType(name, dtype.kind, dtype.bits, lanes)):
        assert other == dtype and hash(other) == hash(dtype) and other.element == BY_NAME[name]
        for known in ("name", "is_float", "is_integer", "is_bool", "minimum", "maximum"):
            assert getattr(other, known) == getattr(dtype, known)
    assert dtype.name == (name if lanes == 1 else f"{name}x{lanes}")
