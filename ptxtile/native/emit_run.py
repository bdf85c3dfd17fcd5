"""One call by a plan, in native code: parameters, allocations, stream, context, tensor maps, launches, results.

What a call needs lies on the stack of its thread, so that any number of threads may run a plan at once; the driver
copies parameters and tensor maps when it takes a launch. The plan's owner is held meanwhile: while the interpreter's
lock is given up, another thread may throw the plan away.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.native.layout import (
    CONFIG_WORDS,
    MAP_WORDS,
    MAX_ALLOCATIONS,
    MAX_LAUNCHES,
    Argument,
    Kind,
    Launch,
    Map,
    Plan,
    Table,
    View,
)
from ptxtile.native.llvm_text import Function

_MISFIT = 1
_FRAME_ALIGNMENT = 64
"""Bytes, of a CUtensorMap (CUDA driver API, cuTensorMapEncodeTiled)."""


class _Call:
    """The operands that all steps of a call share."""

    def __init__(self, f: Function) -> None:
        self.plan, self.arguments, self.addresses, self.table = f.parameters
        self.keeper = f.load(self.plan, Plan.KEEPER)
        f.call(f.load(self.table, Table.INCREASE), (self.keeper,), "void")
        self.allocations = f.load(self.plan, Plan.ALLOCATIONS)
        self.made, self.made_count = f.room(MAX_ALLOCATIONS), f.variable(0)
        self.launches = f.load(self.plan, Plan.LAUNCHES)
        self.pushed = f.variable(0)
        self.frame = f.room_of(f.load(self.plan, Plan.FRAME_WORDS), _FRAME_ALIGNMENT)
        self.values = f.at(self.frame, f.multiply(f.load(self.plan, Plan.MAPS), MAP_WORDS))
        self.pointers = f.at(self.values, f.load(self.plan, Plan.VALUES))

    def finish(self, f: Function, result: str | int) -> None:
        """Gives up what the call holds, and returns."""
        f.call_own("let_go", (self.plan, self.made, self.made_count.get(), self.table))
        f.give(result)

    def misfit_when(self, f: Function, condition: str, clear: bool = False) -> None:
        with f.when(condition):
            if clear:
                f.call(f.load(self.table, Table.CLEAR_ERROR), (), "void")
            self.leave_context(f)
            self.finish(f, _MISFIT)

    def leave_context(self, f: Function) -> None:
        f.call_own("leave_context", (self.plan, self.pushed.get()))


def let_go() -> Function:
    """Gives up the objects that were made, and the plan's owner."""
    f = Function("let_go", ("plan", "made", "count", "table"))
    plan, made, count, table = f.parameters
    with f.repeat(count) as position:
        f.call(f.load(table, Table.DECREASE), (f.load(made, position),), "void")
    f.call(f.load(table, Table.DECREASE), (f.load(plan, Plan.KEEPER),), "void")
    f.give(0)
    return f


def leave_context() -> Function:
    """Pops the context of ``plan`` if it was pushed."""
    f = Function("leave_context", ("plan", "pushed"))
    plan, pushed = f.parameters
    with f.when(f.is_("ne", pushed, 0)):
        f.call(f.load(plan, Plan.POP_CONTEXT), (f.room(1),), "i32")
    f.give(0)
    return f


def run() -> Function:
    """The call's result, a new reference; 0 with an error set when the driver has refused a launch; 1, and nothing has
    happened, when the checked way has to make the call."""
    f = Function("run", ("plan", "arguments", "addresses", "table"))
    call = _Call(f)
    _write_values(f, call)
    needs_context = _check_context(f, call)
    _allocate(f, call)
    _write_pointers(f, call)
    with f.when(f.is_("ne", call.launches, 0)):
        configs = _write_configs(f, call)
        with f.when(f.is_("ne", needs_context, 0)):
            refused = f.call(f.load(call.plan, Plan.PUSH_CONTEXT), (f.load(call.plan, Plan.CONTEXT),), "i32")
            call.misfit_when(f, f.is_("ne", refused, 0))
            call.pushed.set(1)
        _encode_maps(f, call)
        _launch(f, call, configs)
    f.store_bits(f.load(call.plan, Plan.NUMBER), f.load(call.plan, Plan.LATEST_AT), 64)
    call.finish(f, _results(f, call))
    return f


def _write_values(f: Function, call: _Call) -> None:
    template = f.at(call.plan, f.load(call.plan, Plan.VALUES_AT))
    with f.repeat(f.load(call.plan, Plan.VALUES)) as position:
        f.store(f.load(template, position), call.values, position)
    with f.repeat(f.load(call.plan, Plan.TENSORS)) as position:
        f.store(f.load(call.addresses, position), call.values, position)
    with f.repeat(f.load(call.plan, Plan.TOTAL)) as position:
        expected = f.add(call.plan, f.add(8 * Plan.ARGUMENTS, f.multiply(position, 8 * Argument.COUNT)))
        with f.when(f.is_("eq", f.load(expected, Argument.KIND), Kind.NUMBER)):
            argument = f.load(call.arguments, position)
            fitting = f.call_own("converted", (argument, expected, call.values, call.table))
            call.misfit_when(f, f.is_("eq", fitting, 0))


def _check_context(f: Function, call: _Call) -> str:
    """Whether the plan's context is to be pushed. A call without tensors runs on torch's current card, which is the
    plan's where its context is current; elsewhere the checked way asks torch."""
    needed = f.variable(0)
    with f.when(f.is_("ne", call.launches, 0)):
        current = f.room(1)
        f.store(0, current)
        refused = f.call(f.load(call.plan, Plan.GET_CONTEXT), (current,), "i32")
        call.misfit_when(f, f.is_("ne", refused, 0))
        with f.when(f.is_("ne", f.load(current), f.load(call.plan, Plan.CONTEXT))):
            call.misfit_when(f, f.is_("eq", f.load(call.plan, Plan.TENSORS), 0))
            needed.set(1)
    return needed.get()


def _allocate(f: Function, call: _Call) -> None:
    """Behind the addresses of the arguments come those of what is allocated. Modes of torch may give other objects
    than plain tensors: those are for the checked way."""
    recipes, tensors = f.at(call.plan, f.load(call.plan, Plan.ALLOCATIONS_AT)), f.load(call.plan, Plan.TENSORS)
    view = f.room(View.COUNT)
    with f.repeat(call.allocations) as position:
        recipe = f.add(recipes, f.multiply(position, 24))
        parts: Sequence[str] = [f.load(recipe, part) for part in range(3)]
        made = f.call(f.load(call.table, Table.CALL), parts)
        call.misfit_when(f, f.is_("eq", made, 0), clear=True)
        f.store(made, call.made, position)
        call.made_count.set(f.add(position, 1))
        kind = f.load(f.add(made, f.load(call.table, Table.TYPE_AT)))
        call.misfit_when(f, f.is_("ne", kind, f.load(call.table, Table.TENSOR_TYPE)))
        unreadable = f.call(f.load(call.table, Table.VIEW), (made, view), "i32")
        call.misfit_when(f, f.is_("ne", unreadable, 0), clear=True)
        address = f.add(f.load(view, View.DATA), f.load(view, View.BYTE_OFFSET))
        f.store(address, call.values, f.add(tensors, position))


def _write_pointers(f: Function, call: _Call) -> None:
    offsets = f.at(call.plan, f.load(call.plan, Plan.POINTERS_AT))
    with f.repeat(f.load(call.plan, Plan.POINTERS)) as position:
        f.store(f.add(call.frame, f.load(offsets, position)), call.pointers, position)


def _write_configs(f: Function, call: _Call) -> str:
    stream, configs = f.room(1), f.room(CONFIG_WORDS * MAX_LAUNCHES)
    device = (f.load(call.plan, Plan.DEVICE_TYPE), f.load(call.plan, Plan.DEVICE_INDEX), stream)
    f.store(0, stream)
    unknown = f.call(f.load(call.plan, Plan.STREAM), device, "i32")
    call.misfit_when(f, f.is_("ne", unknown, 0), clear=True)
    templates = f.at(call.plan, f.load(call.plan, Plan.LAUNCHES_AT))
    with f.repeat(call.launches) as position:
        template = f.add(templates, f.multiply(position, 8 * Launch.COUNT))
        config = f.add(configs, f.multiply(position, 8 * CONFIG_WORDS))
        for word in range(CONFIG_WORDS):
            f.store(f.load(stream) if word == Launch.STREAM else f.load(template, word), config, word)
    return configs


def _encode_maps(f: Function, call: _Call) -> None:
    maps = f.at(call.plan, f.load(call.plan, Plan.MAPS_AT))
    encode = f.load(call.plan, Plan.ENCODE)
    with f.repeat(f.load(call.plan, Plan.MAPS)) as position:
        described = f.add(maps, f.multiply(position, 8 * Map.COUNT))
        tensor = f.load(call.values, f.load(described, Map.TENSOR))
        target = f.add(call.frame, f.multiply(position, 8 * MAP_WORDS))
        arguments = (
            target,
            f.load(described, Map.DATA_TYPE),
            f.load(described, Map.RANK),
            f.add(tensor, f.load(described, Map.OFFSET)),
            f.load(described, Map.SIZES),
            f.load(described, Map.STRIDES),
            f.load(described, Map.BOX),
            f.load(described, Map.ELEMENT_STRIDES),
            0,  # CU_TENSOR_MAP_INTERLEAVE_NONE
            f.load(described, Map.SWIZZLE),
            f.load(described, Map.PROMOTION),
            0,  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros
        )
        call.misfit_when(f, f.is_("ne", f.call(encode, arguments, "i32"), 0))


def _launch(f: Function, call: _Call, configs: str) -> None:
    """Everything in order, up to the first launch that the driver refuses, whose error the plan's owner raises."""
    templates = f.at(call.plan, f.load(call.plan, Plan.LAUNCHES_AT))
    launch = f.load(call.plan, Plan.LAUNCH)
    refused, refusal = f.variable(-1), f.variable(0)
    thread = f.call(f.load(call.table, Table.SAVE_THREAD), ())
    with f.repeat(call.launches) as position, f.when(f.is_("eq", refusal.get(), 0)):
        template = f.add(templates, f.multiply(position, 8 * Launch.COUNT))
        config = f.add(configs, f.multiply(position, 8 * CONFIG_WORDS))
        parameters = f.at(call.pointers, f.load(template, Launch.POINTER))
        refusal.set(f.call(launch, (config, f.load(template, Launch.FUNCTION), parameters, 0), "i32"))
        refused.set(position)
    call.leave_context(f)
    f.call(f.load(call.table, Table.RESTORE_THREAD), (thread,), "void")
    with f.when(f.is_("ne", refusal.get(), 0)):
        given, number = f.room(3), f.load(call.table, Table.FROM_LONG)
        f.store(call.keeper, given)
        for place, value in ((1, refused), (2, refusal)):
            f.store(f.call(number, (value.get(),)), given, place)
        name = f.load(call.table, Table.REFUSED_NAME)
        f.call(f.load(call.table, Table.CALL_METHOD), (name, given, 3, 0))  # raises, always
        for place in (1, 2):
            f.call(f.load(call.table, Table.DECREASE), (f.load(given, place),), "void")
        call.finish(f, 0)


def _results(f: Function, call: _Call) -> str:
    """None, one object, or a tuple."""
    count, returns = f.load(call.plan, Plan.RETURNS), f.at(call.plan, f.load(call.plan, Plan.RETURNS_AT))
    result = f.variable(f.load(call.table, Table.NONE))
    with f.either(f.is_("ult", count, 2)) as branches:
        next(branches)
        with f.when(f.is_("eq", count, 1)):
            result.set(_result(f, call, f.load(returns)))
        f.call(f.load(call.table, Table.INCREASE), (result.get(),), "void")
        next(branches)
        result.set(f.call(f.load(call.table, Table.NEW_TUPLE), (count,)))
        with f.when(f.is_("ne", result.get(), 0)), f.repeat(count) as position:
            one = _result(f, call, f.load(returns, position))
            f.call(f.load(call.table, Table.INCREASE), (one,), "void")
            f.call(f.load(call.table, Table.SET_ITEM), (result.get(), position, one), "i32")
    return result.get()


def _result(f: Function, call: _Call, place: str) -> str:
    result = f.variable(0)
    with f.either(f.is_("slt", place, 0)) as branches:
        next(branches)
        result.set(f.load(call.made, f.invert(place)))
        next(branches)
        result.set(f.load(call.arguments, place))
    return result.get()
