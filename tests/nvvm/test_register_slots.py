"""Elements of register storages, whole and as 32-bit words, over branches and loops: random functions run on this
machine's processor and compared with the same steps in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ptxtile import target
from ptxtile.ir.types import DType, int8, int16, int32
from ptxtile.nvvm.function import FunctionWriter
from ptxtile.nvvm.module import ModuleWriter
from ptxtile.nvvm.register_slots import RegisterSlots

ELEMENTS = 8
MASK = 0xFFFFFFFF
FACTOR = 2654435761

Step = tuple[Any, ...]
"""``("look", element)``: a load. ``("put", element, factor)``: an element becomes factor · x. ``("add", to, one,
other)``. ``("words", first, count, factor)``: so many words become multiples of x. ``("move", to, first, words)``.
``("if", bit of x, steps, steps)``. ``("repeat", times, steps)``."""


def random_steps(generator: np.random.Generator, per_word: int, depth: int = 0) -> list[Step]:
    def element() -> int:
        return int(generator.integers(ELEMENTS))

    def factor() -> int:
        return int(generator.integers(1, 1 << 31))

    steps: list[Step] = []
    for _ in range(generator.integers(1, 6)):
        kind = generator.choice(["look", "put", "add", "words", "move", "if", "repeat"][: 5 if depth == 2 else 7])
        count = int(generator.integers(1, ELEMENTS // per_word + 1))
        first, to = (int(generator.integers(ELEMENTS - count * per_word + 1)) for _ in range(2))
        if kind == "look":
            steps.append(("look", element()))
        elif kind == "put":
            steps.append(("put", element(), factor()))
        elif kind == "add":
            steps.append(("add", element(), element(), element()))
        elif kind == "words":
            steps.append(("words", first, count, factor()))
        elif kind == "move":
            steps.append(("move", to, first, count))
        elif kind == "if":
            arms = [random_steps(generator, per_word, depth + 1) for _ in range(2)]
            steps.append(("if", int(generator.integers(32)), *arms))
        else:
            steps.append(("repeat", int(generator.integers(0, 4)), random_steps(generator, per_word, depth + 1)))
    return steps


# -- in Python ----------------------------------------
def interpret(steps: Sequence[Step], x: int, held: list[int], bits: int) -> None:
    per_word, low = 32 // bits, (1 << bits) - 1
    for kind, *more in steps:
        if kind == "put":
            held[more[0]] = more[1] * x & low
        elif kind == "add":
            held[more[0]] = held[more[1]] + held[more[2]] & low
        elif kind == "words":
            first, count, factor = more
            for place in range(count * per_word):
                word = factor * (place // per_word + 1) * x & MASK
                held[first + place] = word >> bits * (place % per_word) & low
        elif kind == "move":
            to, first, count = more
            held[to : to + count * per_word] = held[first : first + count * per_word]
        elif kind == "if":
            interpret(more[1] if x >> more[0] & 1 else more[2], x, held, bits)
        elif kind == "repeat":
            for _ in range(more[0]):
                interpret(more[1], x, held, bits)


def expected(steps: Sequence[Step], x: int, bits: int) -> int:
    held = [(element + 1) * x & (1 << bits) - 1 for element in range(ELEMENTS)]
    interpret(steps, x, held, bits)
    total = 0
    for value in held:
        total = total * FACTOR + value & MASK
    return total


# -- as LLVM IR ----------------------------------------
def write(writer: FunctionWriter, slots: RegisterSlots, steps: Sequence[Step]) -> None:
    kind = slots.kind

    def multiple(factor: int) -> str:
        return writer.register(f"mul i32 %x, {factor & MASK}")

    def narrow(text: str) -> str:
        return text if kind == "i32" else writer.register(f"trunc i32 {text} to {kind}")

    per_word = 32 // slots.dtype.bits
    for name, *more in steps:
        if name == "look":
            slots.load(more[0])
        elif name == "put":
            slots.store(more[0], narrow(multiple(more[1])))
        elif name == "add":
            one, other = slots.load(more[1]), slots.load(more[2])
            slots.store(more[0], writer.register(f"add {kind} {one}, {other}"))
        elif name == "words":
            slots.store_words(more[0], [multiple(more[2] * (word + 1)) for word in range(more[1])])
        elif name == "move":
            to, first, count = more
            slots.store_words(to, slots.load_words(range(first, first + count * per_word)))
        elif name == "if":
            condition = writer.register(f"trunc i32 {writer.register(f'lshr i32 %x, {more[0]}')} to i1")
            then, otherwise, join = (writer.name(stem) for stem in ("then", "else", "join"))
            writer.branch(condition, then, otherwise)
            for label, arm in ((then, more[1]), (otherwise, more[2])):
                writer.block(label)
                with writer.scope():
                    write(writer, slots, arm)
                writer.jump(join)
            writer.block(join)
        else:
            head, body, latch, end, following = (writer.name(stem) for stem in ("head", "body", "latch", "end", "next"))
            before = writer.label
            writer.block(head)
            current = writer.effect(f"phi i32 [ 0, %{before} ], [ %{following}, %{latch} ]")
            writer.branch(writer.effect(f"icmp ult i32 {current}, {more[0]}"), body, end)
            writer.block(body)
            with writer.scope():
                write(writer, slots, more[1])
            writer.block(latch)
            writer.lines.append(f"  %{following} = add i32 {current}, 1")
            writer.jump(head)
            writer.block(end)


def text_of(steps: Sequence[Step], dtype: DType) -> str:
    writer = FunctionWriter(ModuleWriter(target.get("sm_80")), "f")
    slots = RegisterSlots(writer, dtype, ELEMENTS)
    write(writer, slots, [("put", element, element + 1) for element in range(ELEMENTS)])
    write(writer, slots, steps)
    total = "0"
    for element in range(ELEMENTS):
        value = slots.load(element)
        wide = value if slots.kind == "i32" else writer.effect(f"zext {slots.kind} {value} to i32")
        total = writer.effect(f"add i32 {writer.effect(f'mul i32 {total}, {FACTOR}')}, {wide}")
    writer.finish(f"ret i32 {total}")
    return f"define i32 @f(i32 %x) {{\n{writer.body()}\n}}\n"


def compiled(text: str) -> tuple[Callable[[int], int], object]:
    """The function and what has to live as long."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"\n{text}')
    module.verify()
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(opt=1))
    engine.finalize_object()
    return ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(engine.get_function_address("f")), engine


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("dtype", [int8, int16, int32], ids=str)
def test_random_functions(dtype: DType, number: int, random_generator: np.random.Generator) -> None:
    steps = random_steps(random_generator, 32 // dtype.bits)
    text = text_of(steps, dtype)
    function, engine = compiled(text)
    for x in random_generator.integers(0, 1 << 32, 20):
        assert function(int(x)) == expected(steps, int(x), dtype.bits), (hex(x), steps, text)
    del engine


def test_only_what_passes_between_blocks_has_a_slot() -> None:
    """Elements 0 and 1 are set before the branch and read after it; 2 and 3 as words within each block."""
    writer = FunctionWriter(ModuleWriter(target.get("sm_80")), "f")
    slots = RegisterSlots(writer, int16, 4)
    slots.store_words(0, ["%x"])
    slots.store_words(2, ["%x"])
    assert slots.load_words(range(2, 4)) == ["%x"]
    writer.jump("next")
    writer.block("next")
    slots.store_words(2, ["7"])
    assert slots.load_words(range(2, 4)) == ["7"]
    slots.load(0)
    slots.load(1)
    slots.load(0)
    writer.finish("ret void")
    body = writer.body()
    assert body.count("alloca i16") == body.count("load i16") == body.count("store i16") == 2, body
