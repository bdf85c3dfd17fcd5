"""Random programs as trees: what a generator draws, what is rendered as source text and what NumPy carries out.

Expressions know their dtype by the rules of :mod:`tests.random_programs.numbers`. Regions carry their extents always;
how they are written (``A``, ``A[y, x]``, ``A[y0:y1, x0:x1]``) is a matter of ``form``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.random_programs.numbers import COMPARISONS, arithmetic, promote

# ---------------------------------------------------------------- memory


@dataclass(frozen=True)
class Buffer:
    """``labels``: per dimension which dimension of the iteration space it follows (None: none). ``declared``: the sizes
    as source text. ``storage``: the name of the memory that views and aliases share."""

    name: str
    scope: str
    dtype: str
    shape: tuple[int, ...]
    labels: tuple[str | None, ...]
    storage: str
    declared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A tensor of the function. ``strides`` and ``offset`` in elements from the start of a storage of ``elements``.

    ``role``: "argument", or "empty" for an output that the call allocates.
    """

    buffer: Buffer
    strides: tuple[int, ...]
    offset: int
    elements: int
    role: str = "argument"


@dataclass(frozen=True)
class Scalar:
    name: str
    dtype: str
    value: int | float | bool


@dataclass(frozen=True)
class Size:
    """A named size: "const" (T.const) or "dynamic" (T.dynamic)."""

    name: str
    value: int
    kind: str


# ---------------------------------------------------------------- expressions


class Expression:
    dtype: str


@dataclass(frozen=True)
class Number(Expression):
    value: int | float | bool
    dtype: str


@dataclass(frozen=True)
class Name(Expression):
    name: str
    dtype: str


@dataclass(frozen=True)
class Read(Expression):
    buffer: Buffer
    indices: tuple[Expression, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@dataclass(frozen=True)
class Binary(Expression):
    """Operands are promoted; ``div`` of integers is float32."""

    operator: str
    left: Expression
    right: Expression

    @property
    def operands(self) -> str:
        """The dtype that it computes in."""
        common = promote(self.left.dtype, self.right.dtype)
        if self.operator in COMPARISONS or self.operator in ("and", "or", "xor", "min", "max"):
            return common
        common = arithmetic(common)
        return "float32" if self.operator == "div" and "float" not in common else common

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "bool" if self.operator in COMPARISONS else self.operands


@dataclass(frozen=True)
class Unary(Expression):
    operator: str
    operand: Expression

    @property
    def dtype(self) -> str:  # type: ignore[override]
        if self.operator == "isnan":
            return "bool"
        return self.operand.dtype if self.operator == "not" else arithmetic(self.operand.dtype)


@dataclass(frozen=True)
class Cast(Expression):
    operand: Expression
    dtype: str


@dataclass(frozen=True)
class Choice(Expression):
    """``T.if_then_else`` or Python's ternary; lazy."""

    condition: Expression
    if_true: Expression
    if_false: Expression
    ternary: bool

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return promote(self.if_true.dtype, self.if_false.dtype)


@dataclass(frozen=True)
class Logical(Expression):
    """Python's ``and``, ``or`` of bools."""

    operator: str
    left: Expression
    right: Expression
    dtype: str = "bool"


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Region:
    """``form``: "whole", "point" or "slice"."""

    buffer: Buffer
    starts: tuple[Expression, ...]
    extents: tuple[int, ...]
    form: str


class Statement:
    pass


@dataclass(frozen=True)
class Allocate(Statement):
    buffer: Buffer


@dataclass(frozen=True)
class ViewOf(Statement):
    """``buffer = T.view(source, shape, dtype)``."""

    buffer: Buffer
    source: Buffer


@dataclass(frozen=True)
class Copy(Statement):
    source: Region
    destination: Region
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Fill(Statement):
    """``value`` None: T.clear."""

    destination: Region
    value: Expression | None


@dataclass(frozen=True)
class Parallel(Statement):
    names: tuple[str, ...]
    extents: tuple[int, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Store(Statement):
    buffer: Buffer
    indices: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True)
class Assign(Statement):
    """Binds or rebinds a scalar name; the value has the name's dtype. ``variable``: bound by T.alloc_var."""

    name: str
    value: Expression
    variable: bool = False


@dataclass(frozen=True)
class Loop(Statement):
    """``kind``: range, serial, unroll, vectorized or pipelined."""

    kind: str
    name: str
    start: Expression
    stop: Expression
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class While(Statement):
    """``while name < stop: body; name = name + 1``."""

    name: str
    stop: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Leave(Statement):
    """``if condition: break`` of the innermost loop."""

    condition: Expression


@dataclass(frozen=True)
class If(Statement):
    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


# ---------------------------------------------------------------- programs


@dataclass(frozen=True)
class Kernel:
    grid: tuple[Expression, ...]
    blocks: tuple[str, ...]
    threads: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Program:
    """``form``: eager or factory. ``options``: of ptxtile.jit, target included."""

    seed: int
    form: str
    options: tuple[tuple[str, object], ...]
    sizes: tuple[Size, ...]
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    kernels: tuple[Kernel, ...] = field(default=())
