"""Writing one LLVM function as text: values, instructions, basic blocks.

Text and not an object model: llvmlite's has no bfloat type, and text costs little to make and to parse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from ptxtile.errors import Location, VerificationError
from ptxtile.ir.types import BY_NAME, DType
from ptxtile.nvvm.dtypes import constant_text, value_type
from ptxtile.nvvm.folding import wrap
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.nvvm.module import ModuleWriter


@record
class Value:
    """One scalar: the LLVM operand ``text`` plus the integer ``offset``, of ``dtype`` (never with lanes).

    ``constant`` is set for integers and bools whose value is known. Keeping the constant part of a sum apart lets
    memory accesses of unrolled loops share one address register and differ in the immediate offset only."""

    text: str
    dtype: DType
    constant: int | bool | None = None
    offset: int = 0


def constant_value(value: int | float | bool, dtype: DType) -> Value:
    if dtype.is_float:
        return _float_constant(float(value).hex(), dtype.element_name)
    return _integer_constant(int(value), dtype.element_name)


@lru_cache(maxsize=1 << 14)
def _integer_constant(value: int, dtype_name: str) -> Value:
    """Also bools. Remembered: unrolled loops ask for the same ones again and again."""
    dtype = BY_NAME[dtype_name]
    known = wrap(value, dtype)
    return Value(constant_text(known, dtype), dtype, known)


@lru_cache(maxsize=1 << 10)
def _float_constant(digits: str, dtype_name: str) -> Value:
    """``digits`` hexadecimal, for -0.0 and 0.0 are equal but not the same constant."""
    dtype = BY_NAME[dtype_name]
    return Value(constant_text(float.fromhex(digits), dtype), dtype, None)


class FunctionWriter:
    """The text of one function under construction; ``module`` collects what it needs outside of it.

    ``allocations`` and ``lines`` may be empty texts, whose places are filled when ``before_body`` is called."""

    def __init__(self, module: ModuleWriter, function_name: str) -> None:
        self.module = module
        self.function_name = function_name
        self.allocations: list[str] = []
        self.lines: list[str] = []
        self.label = "entry"
        self.terminated = False
        self.location: Location | None = None
        self.debug = ""
        self.before_control: list[Callable[[], None]] = []
        self.before_body: list[Callable[[], None]] = []
        self._count = 0
        self._known: list[dict[str, str]] = [{}]

    # -- errors and places ------------------------------------
    def error(self, message: str, **details: str) -> VerificationError:
        return VerificationError(message, location=self.location, **details)

    def name(self, stem: str = "t") -> str:
        """A new name, for a value (with % before it) or a block."""
        self._count += 1
        return f"{stem}{self._count}"

    # -- instructions ------------------------------------
    def line(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}{self.debug}")

    def register(self, text: str) -> str:
        """A pure instruction with a result; gives the result's name.

        The same instruction is not written again where the first one is sure to have run: indices of unrolled loops
        repeat themselves, and text that is never written costs nothing to parse, to simplify and to allocate
        registers for."""
        for known in reversed(self._known):
            if text in known:
                return known[text]
        name = self.effect(text)
        self._known[-1][text] = name
        return name

    def effect(self, text: str) -> str:
        """An instruction with a result that is to be written each time: a load, a phi, a call with effects."""
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}{self.debug}")
        return name

    def piece(self, text: str) -> str:
        """As :meth:`effect`, for what becomes no instruction of the card's and needs no line of the user's: a part of a
        structure, a slot of registers."""
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Instructions written inside may not have run after it: the arm of a branch, the body of a loop."""
        self._known.append({})
        yield
        self._known.pop()

    @property
    def is_conditional(self) -> bool:
        """Whether what is written now may never run."""
        return len(self._known) > 1

    def value(self, text: str, dtype: DType) -> Value:
        return Value(self.register(text), dtype.element)

    def operand(self, value: Value) -> str:
        """The operand text of ``value`` with its offset added; LLVM unites equal additions."""
        if value.offset == 0:
            return value.text
        kind = value_type(value.dtype)
        return self.register(f"add {kind} {value.text}, {wrap(value.offset, value.dtype)}")

    def typed(self, value: Value) -> str:
        return f"{value_type(value.dtype)} {self.operand(value)}"

    def call_intrinsic(self, name: str, *arguments: str, attributes: str = "") -> str:
        """A call of an intrinsic of the allow-list with operand texts; gives the result's name."""
        result, kinds = self.module.intrinsic(name)
        typed = ", ".join(f"{kind} {argument}" for kind, argument in zip(kinds, arguments, strict=True))
        return self.register(f"call {attributes}{result} @{name}({typed})")

    def allocate(self, kind: str, alignment: int) -> str:
        """An alloca in the entry block; gives the pointer's name."""
        name = "%" + self.name("slot")
        self.allocations.append(f"  {name} = alloca {kind}, align {alignment}")
        return name

    # -- control flow ------------------------------------
    def _end_block(self) -> None:
        """Lets whoever put instructions off write them (``before_control``, called once)."""
        while self.before_control:
            self.before_control.pop(0)()

    def block(self, label: str) -> None:
        """Starts a block; the block before it falls through unless it has ended."""
        if not self.terminated:
            self.jump(label)
        self.lines.append(f"{label}:")
        self.label = label
        self.terminated = False

    def jump(self, label: str) -> None:
        self._end_block()
        self.line(f"br label %{label}")
        self.terminated = True

    def branch(self, condition: str, if_true: str, if_false: str) -> None:
        self._end_block()
        self.line(f"br i1 {condition}, label %{if_true}, label %{if_false}")
        self.terminated = True

    def finish(self, text: str) -> None:
        """A return."""
        self._end_block()
        self.line(text)
        self.terminated = True

    def body(self) -> str:
        """The whole text, once ``before_body`` was called.

        The last allocation comes first. LLVM makes phis in the order of the allocas, and in this one ptxas 13.0 needs
        up to 4 instructions fewer for a GEMM (sm_120a)."""
        for write in self.before_body:
            write()
        return "\n".join(["entry:", *filter(None, reversed(self.allocations)), *filter(None, self.lines)])
