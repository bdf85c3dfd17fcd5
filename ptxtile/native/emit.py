"""The launcher as LLVM IR text: what a call does when nothing is wrong with it.

``call`` is the method ``__call__`` of kernels: (callable, arguments, number of positional ones, tuple of names or 0,
table). It reads the arguments, compares them with the plans of the callable's block, and runs the first that fits.
Whatever does not fit, or goes wrong before the driver has taken a launch, is left to the callable's checked way, as if
this code were not there: its errors are the only ones that a caller sees, except for the refusal of a launch.

The text holds no constants in memory, no tables of jumps and calls no function of a library, so the machine code has
no relocations and runs wherever it lies. The interpreter's lock is held but while the driver launches.
"""

from __future__ import annotations

from ptxtile.native.emit_numbers import converted
from ptxtile.native.emit_run import leave_context, let_go, run
from ptxtile.native.layout import (
    ADDRESS_CLASS,
    MAX_ARGUMENTS,
    Argument,
    Block,
    Kind,
    Plan,
    Table,
    View,
)
from ptxtile.native.llvm_text import Function

ENTRY = "call"
MISFIT = 1
"""No object lies there: what :func:`ptxtile.native.emit_run.run` gives for a call that the checked way has to make."""

_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" "no-jump-tables"="true" "frame-pointer"="none" }\n'


def module() -> str:
    functions = [checked(), is_plain(), read(), fits(), converted(), let_go(), leave_context(), run(), call()]
    return "\n".join([function.text() for function in functions]) + _ATTRIBUTES


def call() -> Function:
    f = Function(ENTRY, ("callable", "arguments", "positional", "names", "table"), linkage="")
    callable_, arguments, positional, names, table = f.parameters
    whole = (callable_, arguments, positional, names, table)
    holder = f.call(f.load(table, Table.GET_ATTRIBUTE), (callable_, f.load(table, Table.BLOCK_NAME)))
    with f.when(f.is_("eq", holder, 0)):
        f.call(f.load(table, Table.CLEAR_ERROR), (), "void")
        f.give(f.call_own("checked", whole))
    block = f.call(f.load(table, Table.AS_ADDRESS), (holder,))
    f.call(f.load(table, Table.DECREASE), (holder,), "void")
    with f.when(f.is_("eq", block, 0)):
        f.give(f.call_own("checked", whole))
    total = _total(f, positional, names, table)
    empty = f.is_("eq", f.load(block, Block.PLANS_COUNT), 0)
    unusable = f.or_(f.as_word(empty), f.as_word(f.is_("ugt", total, MAX_ARGUMENTS)))
    with f.when(f.is_("ne", unusable, 0)):
        f.give(f.call_own("checked", whole))
    views, addresses = f.room(View.COUNT * MAX_ARGUMENTS), f.room(MAX_ARGUMENTS)
    with f.when(f.is_("eq", f.call_own("read", (arguments, total, views, table)), 0)):
        f.give(f.call_own("checked", whole))
    with f.repeat(f.load(block, Block.PLANS_COUNT)) as position:
        plan = f.load(block, f.add(position, Block.PLANS))
        found = f.call_own("fits", (plan, arguments, positional, total, names, views, addresses, table))
        with f.when(f.is_("ne", found, 0)):
            _move_to_front(f, block, position, plan)
            result = f.call_own("run", (plan, arguments, addresses, table))
            with f.when(f.is_("eq", result, MISFIT)):
                f.give(f.call_own("checked", whole))
            f.store(f.add(f.load(block, Block.USES), 1), block, Block.USES)
            f.give(result)
    f.give(f.call_own("checked", whole))
    return f


def _total(f: Function, positional: str, names: str, table: str) -> str:
    total = f.variable(positional)
    with f.when(f.is_("ne", names, 0)):
        total.set(f.add(positional, f.call(f.load(table, Table.TUPLE_SIZE), (names,))))
    return total.get()


def _move_to_front(f: Function, block: str, position: str, plan: str) -> None:
    """Before anything that gives up the interpreter's lock: other threads change the order, too."""
    first = f.at(block, Block.PLANS)
    with f.repeat(position) as step:
        to = f.subtract(position, step)
        f.store(f.load(first, f.subtract(to, 1)), first, to)
    f.store(plan, first)


def checked() -> Function:
    """The callable's checked way, with the same arguments; its result is the call's."""
    f = Function("checked", ("callable", "arguments", "positional", "names", "table"))
    callable_, arguments, positional, names, table = f.parameters
    total = _total(f, positional, names, table)
    given = f.room_of(f.add(total, 1), 16)
    f.store(callable_, given)
    with f.repeat(total) as position:
        f.store(f.load(arguments, position), given, f.add(position, 1))
    name = f.load(table, Table.CHECKED_NAME)
    f.give(f.call(f.load(table, Table.CALL_METHOD), (name, given, f.add(positional, 1), names)))
    return f


def is_plain() -> Function:
    """1 for a tensor that is no negative view, whose memory holds its values with the other sign."""
    f = Function("is_plain", ("tensor", "table"))
    tensor, table = f.parameters
    key = f.load(table, Table.NEGATIVE_KEY)
    with f.when(f.is_("ne", key, 0)):
        implementation = f.load(f.add(tensor, f.load(table, Table.TENSOR_AT)))
        keys = f.load(f.add(implementation, f.load(table, Table.KEYS_AT)))
        f.give(f.as_word(f.is_("eq", f.and_(keys, key), 0)))
    given = f.room(1)
    f.store(tensor, given)
    answer = f.call(f.load(table, Table.VECTORCALL), (f.load(table, Table.IS_NEGATIVE), given, 1, 0))
    with f.when(f.is_("eq", answer, 0)):
        f.call(f.load(table, Table.CLEAR_ERROR), (), "void")
        f.give(0)
    f.call(f.load(table, Table.DECREASE), (answer,), "void")  # True and False live for ever
    f.give(f.as_word(f.is_("eq", answer, f.load(table, Table.FALSE))))
    return f


def read() -> Function:
    """Fills ``views``; 0 when there is a tensor whose memory cannot be told, or does not hold its values."""
    f = Function("read", ("arguments", "total", "views", "table"))
    arguments, total, views, table = f.parameters
    tensor_type, parameter_type = f.load(table, Table.TENSOR_TYPE), f.load(table, Table.PARAMETER_TYPE)
    type_at, view = f.load(table, Table.TYPE_AT), f.load(table, Table.VIEW)
    with f.repeat(total) as position:
        argument = f.load(arguments, position)
        place = f.add(views, f.multiply(position, 8 * View.COUNT))
        f.store(0, place, View.DATA)
        kind = f.load(f.add(argument, type_at))
        either = f.or_(f.as_word(f.is_("eq", kind, tensor_type)), f.as_word(f.is_("eq", kind, parameter_type)))
        with f.when(f.is_("ne", either, 0)):
            with f.when(f.is_("ne", f.call(view, (argument, place), "i32"), 0)):
                f.call(f.load(table, Table.CLEAR_ERROR), (), "void")
                f.give(0)
            data = f.load(place, View.DATA)
            with f.when(f.is_("eq", data, 0)):
                f.give(0)
            f.store(f.add(data, f.load(place, View.BYTE_OFFSET)), place, View.DATA)
            with f.when(f.is_("eq", f.call_own("is_plain", (argument, table)), 0)):
                f.give(0)
    f.give(1)
    return f


def fits() -> Function:
    """1 when the arguments are such as ``plan`` was made for; ``addresses`` then holds those of its tensors, in the
    order of its values."""
    f = Function("fits", ("plan", "arguments", "positional", "total", "names", "views", "addresses", "table"))
    plan, arguments, positional, total, names, views, addresses, table = f.parameters
    _refuse_unless_equal(f, positional, f.load(plan, Plan.POSITIONAL))
    _refuse_unless_equal(f, total, f.load(plan, Plan.TOTAL))
    expected_names = f.at(plan, f.load(plan, Plan.NAMES_AT))
    with f.repeat(f.subtract(total, positional)) as position:
        name = f.call(f.load(table, Table.GET_ITEM), (names, position))
        _refuse_unless_equal(f, name, f.load(expected_names, position))
    with f.repeat(total) as position:
        expected = f.add(plan, f.add(8 * Plan.ARGUMENTS, f.multiply(position, 8 * Argument.COUNT)))
        argument = f.load(arguments, position)
        kind = f.load(expected, Argument.KIND)
        with f.either(f.is_("eq", kind, Kind.TENSOR)) as branches:
            next(branches)
            _compare_tensor(f, plan, expected, f.add(views, f.multiply(position, 8 * View.COUNT)), addresses)
            next(branches)
            _compare_other(f, kind, expected, argument, table)
    _compare_overlaps(f, plan, addresses)
    f.give(1)
    return f


def _refuse_unless_equal(f: Function, left: str, right: str) -> None:
    with f.when(f.is_("ne", left, right)):
        f.give(0)


def _compare_tensor(f: Function, plan: str, expected: str, view: str, addresses: str) -> None:
    address = f.load(view, View.DATA)
    with f.when(f.is_("eq", address, 0)):  # no tensor
        f.give(0)
    _refuse_unless_equal(f, f.load(view, View.RANK_AND_DTYPE), f.load(expected, Argument.SECOND))
    _refuse_unless_equal(f, f.load(view, View.DEVICE), f.load(expected, Argument.FIRST))
    _refuse_unless_equal(f, f.and_(address, ADDRESS_CLASS), f.load(expected, Argument.THIRD))
    shape, strides = f.load(view, View.SHAPE), f.load(view, View.STRIDES)
    rank, wanted = f.load(expected, Argument.FOURTH), f.at(plan, f.load(expected, Argument.FIFTH))
    with f.repeat(rank) as dimension:
        _refuse_unless_equal(f, f.load(shape, dimension), f.load(wanted, dimension))
        _refuse_unless_equal(f, f.load(strides, dimension), f.load(wanted, f.add(rank, dimension)))
    f.store(address, addresses, f.load(expected, Argument.SIXTH))


def _compare_other(f: Function, kind: str, expected: str, argument: str, table: str) -> None:
    first = f.load(expected, Argument.FIRST)
    with f.when(f.is_("eq", kind, Kind.SAME)):
        _refuse_unless_equal(f, argument, first)
    argument_type = f.load(f.add(argument, f.load(table, Table.TYPE_AT)))
    with f.when(f.is_("eq", kind, Kind.EQUAL)), f.when(f.is_("ne", argument, first)):
        _refuse_unless_equal(f, argument_type, f.load(expected, Argument.SECOND))
        equal = f.call(f.load(table, Table.COMPARE), (argument, first, _EQUAL), "i32")
        with f.when(f.is_("ne", equal, 1)):
            with f.when(f.is_("slt", equal, 0)):
                f.call(f.load(table, Table.CLEAR_ERROR), (), "void")
            f.give(0)
    with f.when(f.is_("eq", kind, Kind.NUMBER)):
        _refuse_unless_equal(f, argument_type, first)
        with f.when(f.is_("ne", f.load(expected, Argument.SEVENTH), 0)):
            overflow = f.room(1)
            f.store(0, overflow)
            value = f.call(f.load(table, Table.AS_LONG_LONG), (argument, overflow))
            _refuse_unless_equal(f, value, f.load(expected, Argument.EIGHTH))
            # The value of too large an integer is -1, the half of the word that is written is not 0.
            with f.when(f.is_("ne", f.load(overflow), 0)):
                f.give(0)


_EQUAL = 2
"""Py_EQ (CPython, object.h)."""


def _compare_overlaps(f: Function, plan: str, addresses: str) -> None:
    expected = f.at(plan, f.load(plan, Plan.OVERLAPS_AT))
    with f.repeat(f.load(plan, Plan.TENSORS)) as one:
        start = f.load(addresses, one)
        stop = f.add(start, f.load(expected, f.shift_left(one, 1)))
        overlapping = f.variable(0)
        with f.repeat(one) as other:
            first = f.load(addresses, other)
            last = f.add(first, f.load(expected, f.shift_left(other, 1)))
            both = f.and_(f.as_word(f.is_("ult", start, last)), f.as_word(f.is_("ult", first, stop)))
            overlapping.set(f.or_(overlapping.get(), f.shift_left(both, other)))
        _refuse_unless_equal(f, overlapping.get(), f.load(expected, f.add(f.shift_left(one, 1), 1)))
