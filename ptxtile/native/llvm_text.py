"""Writes functions over 64-bit words as LLVM IR text.

A word is an operand as text: a register such as ``%12``, or a number. Addresses are words. Variables live on the stack;
LLVM's mem2reg makes registers of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Word = str | int


class Variable:
    """A word that changes."""

    def __init__(self, function: Function, start: Word) -> None:
        self._function = function
        self._place = function.register("alloca i64")
        self.set(start)

    def get(self) -> str:
        return self._function.register(f"load i64, ptr {self._place}")

    def set(self, value: Word) -> None:
        self._function.line(f"store i64 {_text(value)}, ptr {self._place}")


class Function:
    """One function under construction; its parameters and its result are words."""

    def __init__(self, name: str, parameters: Sequence[str], linkage: str = "internal") -> None:
        self._head = f"define {linkage} i64 @{name}({', '.join(f'i64 %{p}' for p in parameters)}) #0 {{"
        self.parameters = tuple(f"%{parameter}" for parameter in parameters)
        self._allocations: list[str] = []
        self._lines: list[str] = []
        self._registers = self._labels = 0
        self._ended = False

    def text(self) -> str:
        return "\n".join([self._head, "entry:", *self._allocations, *self._lines, "}", ""])

    # -- lines

    def line(self, text: str) -> None:
        if not self._ended:  # what follows a return in the same branch cannot be reached
            self._lines.append("  " + text)

    def register(self, text: str) -> str:
        self._registers += 1
        name = f"%r{self._registers}"
        if text.startswith("alloca i64") and "," not in text:  # in the entry block, where mem2reg looks for them
            self._allocations.append(f"  {name} = {text}")
        else:
            self.line(f"{name} = {text}")
        return name

    def _label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self._ended = False

    def _end(self, text: str) -> None:
        self.line(text)
        self._ended = True

    # -- words

    def add(self, left: Word, right: Word) -> str:
        return self._binary("add", left, right)

    def subtract(self, left: Word, right: Word) -> str:
        return self._binary("sub", left, right)

    def multiply(self, left: Word, right: Word) -> str:
        return self._binary("mul", left, right)

    def and_(self, left: Word, right: Word) -> str:
        return self._binary("and", left, right)

    def or_(self, left: Word, right: Word) -> str:
        return self._binary("or", left, right)

    def shift_left(self, left: Word, right: Word) -> str:
        return self._binary("shl", left, right)

    def shift_right(self, left: Word, right: Word) -> str:
        """Zeros come in."""
        return self._binary("lshr", left, right)

    def invert(self, value: Word) -> str:
        return self._binary("xor", value, -1)

    def _binary(self, operation: str, left: Word, right: Word) -> str:
        return self.register(f"{operation} i64 {_text(left)}, {_text(right)}")

    def is_(self, relation: str, left: Word, right: Word) -> str:
        """``relation``: eq, ne, slt, sgt, ult, ugt… of LLVM's icmp. The result is no word but a condition."""
        return self.register(f"icmp {relation} i64 {_text(left)}, {_text(right)}")

    def as_word(self, condition: str) -> str:
        """1 or 0."""
        return self.register(f"zext i1 {condition} to i64")

    def variable(self, start: Word) -> Variable:
        return Variable(self, start)

    # -- memory

    def room(self, words: int) -> str:
        """The address of as many words on the stack, in the function's first block."""
        self._registers += 1
        place = f"%r{self._registers}"
        self._allocations.append(f"  {place} = alloca [{words} x i64], align 16")
        return self.register(f"ptrtoint ptr {place} to i64")

    def room_of(self, words: Word, alignment: int) -> str:
        """The address of a number of words that only the call knows."""
        place = self.register(f"alloca i64, i64 {_text(words)}, align {alignment}")
        return self.register(f"ptrtoint ptr {place} to i64")

    def at(self, base: Word, index: Word) -> str:
        """The address of word ``index``."""
        if isinstance(index, int):
            return self.add(base, 8 * index)
        return self.add(base, self.shift_left(index, 3))

    def _pointer(self, address: Word) -> str:
        return self.register(f"inttoptr i64 {_text(address)} to ptr")

    def load(self, base: Word, index: Word = 0) -> str:
        return self.register(f"load i64, ptr {self._pointer(self.at(base, index))}")

    def store(self, value: Word, base: Word, index: Word = 0) -> None:
        self.line(f"store i64 {_text(value)}, ptr {self._pointer(self.at(base, index))}")

    def store_bits(self, value: Word, address: Word, bits: int) -> None:
        """The lowest ``bits`` of a word, at any address."""
        low = self.register(f"trunc i64 {_text(value)} to i{bits}") if bits < 64 else _text(value)
        self.line(f"store i{bits} {low}, ptr {self._pointer(address)}, align 1")

    # -- control

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        self._labels += 1
        inside, behind = f"then{self._labels}", f"behind{self._labels}"
        self._end(f"br i1 {condition}, label %{inside}, label %{behind}")
        self._label(inside)
        yield
        self._end(f"br label %{behind}")
        self._label(behind)

    @contextmanager
    def either(self, condition: str) -> Iterator[Iterator[None]]:
        """``with f.either(c) as branches: next(branches); …; next(branches); …``: the first where ``c`` holds."""
        self._labels += 1
        names = [f"{what}{self._labels}" for what in ("then", "else", "behind")]

        def branches() -> Iterator[None]:
            self._end(f"br i1 {condition}, label %{names[0]}, label %{names[1]}")
            self._label(names[0])
            yield
            self._end(f"br label %{names[2]}")
            self._label(names[1])
            yield

        yield branches()
        self._end(f"br label %{names[2]}")
        self._label(names[2])

    @contextmanager
    def repeat(self, count: Word) -> Iterator[str]:
        """Runs the body with 0 … count - 1."""
        self._labels += 1
        head, body, behind = (f"{what}{self._labels}" for what in ("head", "body", "behind"))
        position = self.variable(0)
        self._end(f"br label %{head}")
        self._label(head)
        index = position.get()
        more = self.is_("ult", index, count)
        self._end(f"br i1 {more}, label %{body}, label %{behind}")
        self._label(body)
        yield index
        position.set(self.add(index, 1))
        self._end(f"br label %{head}")
        self._label(behind)

    def give(self, value: Word) -> None:
        self._end(f"ret i64 {_text(value)}")

    # -- calls

    def call(self, address: Word, arguments: Sequence[Word], result: str = "i64") -> str:
        """A C function whose parameters are words (an ``int`` is the lower half of one: so it is on the stack and in
        registers of the System V and AAPCS64 conventions). ``result``: i64, i32 (sign-extended here), double, void."""
        given = ", ".join(f"i64 {_text(argument)}" for argument in arguments)
        text = f"call {result} {self._pointer(address)}({given})"
        if result == "void":
            self.line(text)
            return ""
        value = self.register(text)
        return self.register(f"sext i32 {value} to i64") if result == "i32" else value

    def call_own(self, name: str, arguments: Sequence[Word]) -> str:
        """Another function of the module."""
        return self.register(f"call i64 @{name}({', '.join(f'i64 {_text(a)}' for a in arguments)})")


def _text(word: Word) -> str:
    return word if isinstance(word, str) else str(int(word))
