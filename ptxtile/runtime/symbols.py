"""The integers of a call and where each came from, so that a contradiction can say which argument fixed what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptxtile.errors import ArgumentError
from ptxtile.launch_record import Divisibility, SizeOperation, Symbol, evaluate_size

SizeExpression = int | Symbol | SizeOperation


class Symbols:
    """Values of symbols with their origin; the first definition stands, later ones are ignored and compared
    elsewhere."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.values: dict[str, int] = {}
        self._origins: dict[str, str] = {}

    def define(self, name: str, value: int, origin: str) -> None:
        if name not in self.values:
            self.values[name] = value
            self._origins[name] = origin

    def evaluate_all(self, sizes: Iterable[SizeExpression], what: str) -> tuple[int, ...]:
        """The sizes' values. ArgumentError, starting with ``what``, when no argument determines a symbol."""
        try:
            return tuple(size if isinstance(size, int) else evaluate_size(size, self.values) for size in sizes)
        except KeyError as error:
            raise ArgumentError(
                f"{self.function}: {what} needs {error.args[0]!r}, which no argument determines"
            ) from None
        except ZeroDivisionError:
            raise ArgumentError(f"{self.function}: {what} divides by zero", got=self._assignments(sizes)) from None

    def explain(self, sizes: Sequence[SizeExpression]) -> str:
        """`` (M = 3, fixed by dimension 0 of argument 'A')`` for the symbols in ``sizes``; empty without symbols."""
        parts = []
        expressions = [str(size) for size in sizes if isinstance(size, SizeOperation)]
        if expressions:
            parts.append("from " + ", ".join(expressions))
        for name in dict.fromkeys(name for size in sizes for name in symbols_of(size)):
            parts.append(f"{name} = {self.values[name]}, fixed by {self._origins[name]}")
        return f" ({'; '.join(parts)})" if parts else ""

    def check_divisible(self, divisibility: Divisibility) -> None:
        """ArgumentError unless the size is a multiple of the divisor."""
        (size,) = self.evaluate_all((divisibility.size,), f"the size {divisibility.size}")
        if size % divisibility.divisor:
            raise ArgumentError(
                f"{self.function}: {divisibility.size} is not a multiple of {divisibility.divisor}",
                expected=f"a multiple of {divisibility.divisor}: this variant of the kernel was compiled for that",
                got=f"{size}{self.explain([divisibility.size])}",
            )

    def _assignments(self, sizes: Iterable[SizeExpression]) -> str:
        names = dict.fromkeys(name for size in sizes for name in symbols_of(size))
        return ", ".join(f"{name} = {self.values.get(name, 'unknown')}" for name in names)


def symbols_of(size: SizeExpression) -> Iterable[str]:
    """Names of the symbols in a size, left to right."""
    if isinstance(size, Symbol):
        yield size.name
    elif isinstance(size, SizeOperation):
        yield from symbols_of(size.left)
        yield from symbols_of(size.right)
