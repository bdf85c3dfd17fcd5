"""What one compiled variant knows about its arguments. Equal specializations share code."""

from __future__ import annotations

from ptxtile.records import record

CONTIGUOUS = -1
"""In a stride pattern: the stride is the product of the inner sizes."""


@record
class TensorSpecialization:
    """One tensor.

    strides: for each dimension CONTIGUOUS, 0 or 1 (constants), or None (a symbol of the launch, ``A_stride0``).
    stride_divisors: powers of two up to 16 that divide the strides. wide_strides: a stride needs int64.
    alignment: bytes that the base address is a multiple of: 16, 8, 4, 2 or 1. alias_group: tensors of the same group
    may overlap; None overlaps no other.
    """

    strides: tuple[int | None, ...]
    stride_divisors: tuple[int, ...]
    alignment: int = 16
    alias_group: int | None = None
    wide_strides: bool = False


@record
class Specialization:
    """All arguments of a variant.

    constants: values of ``T.const`` sizes. tensors: by parameter name. divisors: 16 or 1 for each dynamic size.
    uppers: upper bounds of symbols under which tensor offsets stay below 2³¹; a symbol that is not there has none.
    """

    constants: tuple[tuple[str, int], ...] = ()
    tensors: tuple[tuple[str, TensorSpecialization], ...] = ()
    divisors: tuple[tuple[str, int], ...] = ()
    uppers: tuple[tuple[str, int], ...] = ()

    def tensor(self, name: str) -> TensorSpecialization:
        return dict(self.tensors)[name]

    def constant(self, name: str) -> int | None:
        return dict(self.constants).get(name)


def stride_symbol(tensor: str, dimension: int) -> str:
    """The symbol of a stride that only the launch knows."""
    return f"{tensor}_stride{dimension}"
