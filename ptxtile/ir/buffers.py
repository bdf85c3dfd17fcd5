"""Storage and the typed views of it.

A :class:`Storage` is an allocation with a scope. A :class:`Buffer` is a typed, shaped view of a storage; several
buffers may view one storage (``T.view``, ``T.reshape``), and then they alias. Names are unique within a program, so a
buffer may be looked up by its name.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from ptxtile.ir.types import DType
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.ir.expressions import Expr
    from ptxtile.ir.layouts import Fragment, SharedLayout
    from ptxtile.ir.mapped_layouts import MappedLayout


class Scope(Enum):
    """Where a storage lives.

    GLOBAL: device memory. SHARED: the CTA's shared memory. FRAGMENT: a tile distributed over the registers of the
    threads (before ``lower_loops``). REGISTER: one thread's registers, indexed by constants once unrolled loops are
    expanded. LOCAL: one thread's private array or scalar, any index. BARRIER: mbarrier objects in shared memory, 8
    bytes each.
    """

    GLOBAL = "global"
    SHARED = "shared"
    FRAGMENT = "fragment"
    REGISTER = "register"
    LOCAL = "local"
    BARRIER = "barrier"


@record
class Storage:
    """``size`` in bytes (of one thread's part for REGISTER and LOCAL; None: a tensor of the caller's). ``alignment`` in
    bytes. ``offset``: bytes from the start of dynamic shared memory, once ``place_shared_memory`` has chosen it."""

    name: str
    scope: Scope
    size: int | None = None
    alignment: int = 16
    offset: int | None = None


@record
class Buffer:
    """A view of ``storage``: ``shape`` and ``strides`` (in elements), starting ``offset`` elements into it.

    Sizes are ints, or expressions over the program's symbols for global tensors. ``layout`` replaces ``strides`` where
    it is not None: a swizzled, boxed or mapped arrangement in shared memory, or the distribution of a fragment over
    threads.
    """

    name: str
    dtype: DType
    shape: tuple[int | Expr, ...]
    strides: tuple[int | Expr, ...]
    storage: Storage
    offset: int | Expr = 0
    layout: SharedLayout | MappedLayout | Fragment | None = None

    @property
    def scope(self) -> Scope:
        return self.storage.scope

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of an on-chip buffer, whose sizes are always ints."""
        for size in self.shape:
            if not isinstance(size, int):
                raise TypeError(f"{self.name} has a symbolic size")
        return self.shape  # type: ignore[return-value]

    @property
    def elements(self) -> int:
        return prod(self.static_shape)

    def with_layout(self, layout: SharedLayout | MappedLayout | Fragment | None) -> Buffer:
        return replace(self, layout=layout)


def contiguous_strides(shape: tuple[int | Expr, ...]) -> tuple[int | Expr, ...]:
    """Row-major element strides of ``shape``."""
    strides: list[int | Expr] = []
    running: int | Expr = 1
    for size in reversed(shape):
        strides.append(running)
        running = size if isinstance(running, int) and running == 1 else running * size  # type: ignore[operator]
    return tuple(reversed(strides))


def allocate(name: str, scope: Scope, dtype: DType, shape: tuple[int, ...], alignment: int = 16) -> Buffer:
    """A buffer that is the whole of a new storage of the same name, row-major."""
    size = prod(shape) * dtype.bits * dtype.lanes // 8
    return Buffer(name, dtype, shape, contiguous_strides(shape), Storage(name, scope, size, alignment))
