"""Printer and parser: what is printed reads back as the same tree, and bad text is refused with its line."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.errors import ParseError
from ptxtile.ir import expressions as ir
from ptxtile.ir import text
from ptxtile.ir.buffers import Scope, Storage, allocate
from ptxtile.ir.expressions import Const, Var, constant
from ptxtile.ir.gpu_ops import MbarrierArrive
from ptxtile.ir.layouts import Fragment, Layout, SharedLayout, Swizzle
from ptxtile.ir.parser import names_in, parse_expression, parse_program, parse_statement
from ptxtile.ir.printer import print_node, print_program
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Seq, Store, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Region
from ptxtile.ir.types import BY_NAME, float16, float32, float64, int32, int64, uint8, uint64
from tests.ir.sample_programs import (
    BUFFERS,
    NAMES,
    REGISTERS,
    SHARED_TILE,
    TABLE,
    any_expression,
    gpu_program,
    kernel,
    record_with_everything,
    scalars,
    tile_program,
    whole,
    zero,
)

x, y, flag = Var("x", int32), Var("y", int32), Var("flag", BY_NAME["bool"])
SMALL = {"x": x, "y": y, "flag": flag}


@pytest.mark.parametrize("make", [tile_program, gpu_program])
def test_programs_read_back(make):
    program = make()
    printed = print_program(program)
    ast.parse(printed)
    assert parse_program(printed) == program
    assert print_program(parse_program(printed)) == printed


def test_functions_out_of_line_read_back():
    program = gpu_program()
    program = replace(program, functions=(replace(program.functions[0], out_of_line=True),))
    assert parse_program(print_program(program)) == program


def test_a_launch_record_reads_back():
    program = replace(gpu_program(), launch=record_with_everything())
    assert parse_program(print_program(program)).launch == program.launch


@pytest.mark.parametrize("make", [tile_program, gpu_program])
def test_program_text_is_as_in_the_golden_file(make, golden):
    golden(f"ir/{make.__name__}.txt", print_program(make()))


@given(any_expression())
@settings(max_examples=600)
def test_random_expressions_read_back(expression):
    printed = print_node(expression)
    ast.parse(printed, mode="eval")
    assert parse_expression(printed, NAMES) == expression


@given(scalars(float32, 2), scalars(int32, 2), st.lists(st.sampled_from(range(8)), max_size=4))
@settings(max_examples=100)
def test_random_statements_read_back(value, index, shape_of_body):
    """Seqs of any nesting: of no, one or several statements, and Seqs inside Seqs."""
    store = Store(TABLE, (index, index), value)
    parts = [store, Seq(()), Seq((store,)), Seq((store, Seq((store, store)))), If(flag, Seq(()), Seq((store,))),
             If(flag, store, If(flag, store, Seq(()))), If(flag, Seq((If(flag, store),))),
             For(x, index, index, -3, LoopKind.SERIAL, Seq((Seq(()),)))]  # fmt: skip
    body = Seq(tuple(parts[n] for n in shape_of_body))
    names = NAMES | SMALL
    for node in (body, If(flag, body, body), Seq((body,)), For(y, index, index, 1, LoopKind.UNROLLED, body)):
        assert parse_statement(print_node(node), names) == node


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (x + y * 2, "x + y * 2"),
        ((x + y) * 2, "(x + y) * 2"),
        (x - (y - 1), "x - (y - 1)"),
        (x - y - 1, "x - y - 1"),
        (constant(-3) * x, "-3 * x"),
        (ir.unary("neg", constant(3)), "neg(3)"),
        (ir.unary("neg", x + y), "-(x + y)"),
        (ir.logical_not(x.lt(y)), "not x < y"),
        (ir.unary("not", x), "~x"),
        (ir.binary("truncdiv", x, y), "truncdiv(x, y)"),
        (ir.select(flag, x, y) + 1, "(x if flag else y) + 1"),
        (ir.compare("eq", flag, x.lt(y)), "flag == (x < y)"),
        (constant(1.5, float32), "float32(1.5)"),
        (constant(0.1, float16), "float16(0.1)"),
        (constant(float("nan"), float64), 'float64("nan")'),
        (constant(float("-inf"), float32), 'float32("-inf")'),
        (constant(-0.0, float32), "float32(-0.0)"),
        (constant(3, int64), "int64(3)"),
        (constant(True, BY_NAME["bool"]), "True"),
        (ir.cast(x, float32), "cast(x, float32)"),
        (ir.Call("exp", (Var("x", int32),), float32), 'call("exp", x, dtype=float32)'),
        (ir.Call("min", (x, y), int32), 'call("min", x, y, dtype=int32)'),
        (ir.Binary("add", x, y, int64), 'Binary(operator="add", left=x, right=y, dtype=int64)'),
        (ir.load(TABLE, (x, y), 4), "table.x4[x, y]"),
        (ir.load(BUFFERS[1], ()), "plain[()]"),
    ],
)
def test_expression_forms(expression, expected):
    assert print_node(expression) == expected
    assert parse_expression(expected, NAMES | SMALL) == expression


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (Copy(Region(TABLE, (x, zero()), (4, 16)), whole(TABLE)), "copy(table[x, 0].tile(4, 16), table)"),
        (Copy(whole(TABLE), whole(TABLE), CopyPath.TMA_LOAD), "copy(table, table, path=CopyPath.TMA_LOAD)"),
        (Allocate(allocate("s", Scope.SHARED, uint8, (4, 8))), "s = allocate_shared(uint8, (4, 8))"),
        (Store(BUFFERS[1], (), constant(-128, BY_NAME["int8"])), "plain[()] = int8(-128)"),
    ],
)
def test_statement_forms(node, expected):
    assert print_node(node) == expected
    assert parse_statement(expected, NAMES | SMALL) == node


@pytest.mark.parametrize("dtype", [d for d in BY_NAME.values() if d.is_integer])
def test_integer_limits_read_back(dtype):
    for value in (dtype.minimum, dtype.maximum):
        assert parse_expression(print_node(Const(value, dtype))) == Const(value, dtype)


@pytest.mark.parametrize(
    "buffer",
    [
        SHARED_TILE,
        REGISTERS,
        replace(TABLE, name="shifted", strides=(1, 16), offset=8),
        replace(TABLE, name="odd", storage=Storage("elsewhere", Scope.SHARED, 77, 4, 256)),
        replace(TABLE, name="unsized", storage=Storage("unsized", Scope.SHARED, None)),
        replace(TABLE, name="boxed", layout=SharedLayout(Layout((16, (2, 8)), (8, (128, 1))), Swizzle(2, 4, 3), 4)),
        replace(TABLE, name="own", layout=Fragment((16, 16), (16, 16), Layout((2, 16), (0, 1)), Layout((16,), (16,)))),
    ],
    ids=lambda buffer: buffer.name,
)
def test_declarations_read_back(buffer):
    node = Allocate(buffer)
    assert parse_statement(print_node(node)) == node


def with_alias():
    """A gpu-stage kernel that reads its shared tile through another name, and a barrier that nothing allocates."""
    program = gpu_program()
    kernel = program.kernels[0]
    shared = kernel.body.statements[0].buffer
    flat = replace(shared, name="A_flat", dtype=int32, shape=(4096,), strides=(1,))
    reads = [Let(Var(f"r{n}", int32), ir.load(flat, (constant(n),))) for n in range(2)]
    x_is_zero = kernel.thread.eq(0)
    wait = MbarrierArrive(allocate("elsewhere", Scope.BARRIER, uint64, (1,)), zero())
    return replace(program, kernels=(replace(kernel, body=seq(kernel.body, If(x_is_zero, wait), *reads)),))


def test_a_buffer_that_no_statement_declares_has_an_alias_line():
    printed = print_program(with_alias())
    lines = [line.strip() for line in printed.splitlines()]
    assert lines.count('A_flat = alias(int32, (4096,), "A_shared")') == 1
    assert lines.count("elsewhere = alias_barrier(uint64, (1,))") == 1
    assert parse_program(printed) == with_alias()


def test_constant_sizes_stay_constants():
    """A grid may hold an int or an int32 constant: the two print differently."""
    program = replace(tile_program(), kernels=(kernel(Seq(()), grid=(4, constant(4), constant(4, int64))),))
    assert "grid=(4, int32(4), int64(4))" in print_program(program)
    assert parse_program(print_program(program)) == program


def test_locations_are_comments():
    parsed = parse_program(print_program(tile_program()), "kernel.txt")
    with_locations = print_program(parsed, locations=True)
    assert "# kernel.txt:" in with_locations
    assert parse_program(with_locations) == tile_program()


def test_parsed_statements_point_at_their_lines():
    printed = print_program(tile_program())
    copy = next(s for s in parse_program(printed).kernels[0].body.statements if isinstance(s, Copy))
    assert printed.splitlines()[copy.location.line - 1].strip().startswith("copy(")


@pytest.mark.parametrize("name", sorted(text.op_classes()))
def test_every_op_reads_back(name):
    """Every op class that there is, filled from its annotations."""
    samples = {
        text.FieldKind.BUFFER: TABLE, text.FieldKind.EXPRESSION: x + 1, text.FieldKind.REGION: whole(TABLE),
        text.FieldKind.VARIABLE: x,
    }  # fmt: skip
    cls = text.op_classes()[name]
    values = {}
    for field in text.text_fields(cls):
        kind, annotation = text.field_kind(str(field.type)), str(field.type)
        value = samples.get(kind)
        if value is None:
            value = {"int": 3, "bool": True, "str": "word", "DType": float32}.get(annotation)
            if value is None and not text.is_required(field):
                continue
            assert value is not None, f"no sample for {annotation}"
        values[field.name] = (value,) if annotation.startswith("tuple") else value
    node = cls(**values)
    printed = print_node(node)
    assert printed.startswith(name + "(")
    assert parse_statement(printed, names_in(node) | SMALL) == node


def test_the_vocabulary_covers_every_operator():
    assert set(text.BINARY_SIGNS) | set(text.BINARY_FUNCTIONS) == set(ir.BINARY_OPERATORS)
    assert set(text.COMPARISON_SIGNS) == set(ir.COMPARISONS)
    assert {*text.UNARY_FUNCTIONS, "not"} == set(ir.UNARY_OPERATORS)


HEADER = 'ptxtile_ir(1)\nprogram("p", stage="tile")\n'
KERNEL = HEADER + "@kernel(grid=(1, 1, 1), threads=32)\ndef k(bx, by, bz, thread):\n    "


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("", None, "not IR text"),
        ("x = 1\n", 1, "not IR text"),
        ("ptxtile_ir(2)\n", 1, "another version"),
        ("ptxtile_ir(1)\nfoo bar\n", 2, "not valid syntax"),
        (HEADER + "M = symbol(int33)\n", 3, "not a dtype"),
        (HEADER + "spam(1)\n", 3, "not a part of a program"),
        (HEADER + "A = tensor(float32)\n", 3, "not a declaration"),
        (HEADER + "A = tensor(float32, (N,))\n", 3, "unknown variable N"),
        (HEADER + "def k(a, b, c, d):\n    pass\n", 3, "neither a kernel nor a function"),
        (KERNEL + "a: int32 = b\n", 5, "unknown variable b"),
        (KERNEL + "A[0] = 1\n", 5, "unknown buffer A"),
        (KERNEL + "a: int32 = 1 + int64(2)\n", 5, "operands of different dtypes"),
        (KERNEL + "a: int32 = 1.5\n", 5, "without a dtype"),
        (KERNEL + "a: uint8 = uint8(256)\n", 5, "cannot hold"),
        (KERNEL + "a: bool = bx < by < bz\n", 5, "not a comparison"),
        (KERNEL + "a: int32 = bx ** 2\n", 5, "not an operator"),
        (KERNEL + "a: int32 = (lambda: 1)\n", 5, "not an expression"),
        (KERNEL + "frobnicate(1)\n", 5, "not an op"),
        (KERNEL + "bar_sync(id=1)\n", 5, "needs threads"),
        (KERNEL + "bar_sync(id=1, threads=32, colour=3)\n", 5, "no field colour"),
        (KERNEL + "for i in range(3):\n        pass\n", 5, "not a loop"),
        (KERNEL + "with open(1):\n        pass\n", 5, "not a block"),
        (KERNEL + "with specialized():\n        bar_sync(id=1, threads=32)\n", 5, "only roles"),
        (KERNEL + 'V = view(float32, (4,), "S")\n', 5, "unknown storage"),
        (KERNEL + "S = allocate_moon(float32, (4,))\n", 5, "not a declaration"),
        (KERNEL + "S = allocate_shared(float32, (4,), colour=3)\n", 5, "no colour"),
        (KERNEL + "import os\n", 5, "not a statement"),
    ],
)
def test_bad_text_is_refused_with_its_line(source, line, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse_program(source)
    if line is not None:
        assert caught.value.location.line == line
        if source.splitlines()[line - 1].strip():
            assert source.splitlines()[line - 1].strip() in str(caught.value)
