"""Buffers as kernels see them: elements by index, regions by slices, views."""

from __future__ import annotations

from math import prod
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.affine import linear
from ptxtile.frontend.current import kernel_tracer, tracer_for
from ptxtile.frontend.dtypes import DataType, as_dtype, data_type
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value, index_expr
from ptxtile.ir.buffers import Buffer, Scope, contiguous_strides
from ptxtile.ir.expressions import Const, Expr, Load, cast, constant
from ptxtile.ir.statements import Store, View
from ptxtile.ir.tile_ops import Region
from ptxtile.ir.types import int64

Size = int | Expr


def size_value(size: Size) -> Any:
    """A size as users see it: an int, or a traced value."""
    return size if isinstance(size, int) else Value(size)


def size_of(value: Any, what: str) -> Size:
    """A size from what a user wrote: an int ≥ 0, or an expression over symbols."""
    if isinstance(value, Value):
        expr = index_expr(value, what)
        return int(expr.value) if isinstance(expr, Const) else expr
    number = operations.numpy_number(value)
    value = value if number is None else number
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeMismatchError(what, location=user_location(), expected="an integer ≥ 0", got=repr(value))
    return value


def shape_of(shape: Any, what: str) -> tuple[Size, ...]:
    """A shape from an int, a value, or a tuple or list of them."""
    if isinstance(shape, (Value, int)):
        shape = (shape,)
    if not isinstance(shape, (tuple, list)):
        raise TypeMismatchError(what, location=user_location(), expected="a tuple of sizes", got=repr(shape))
    return tuple(size_of(size, what) for size in shape)


def dense_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Row-major strides; in int64 where a size is int64."""
    if any(isinstance(size, Expr) and size.dtype == int64 for size in shape):
        shape = tuple(size if isinstance(size, int) else cast(size, int64) for size in shape)
    return contiguous_strides(shape)


def shape_text(shape: Any) -> str:
    """A shape for messages; symbols by name."""
    parts = [str(size) if isinstance(size, int) else getattr(size, "name", "…") for size in shape]
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"


class TracedBuffer:
    """A buffer of the kernel: global tensor, shared, fragment or local."""

    __slots__ = ("ir",)

    def __init__(self, ir: Buffer) -> None:
        self.ir = ir

    @property
    def description(self) -> str:
        """What this is, for messages."""
        return f"the {self.ir.scope.value} buffer {self.ir.name} of shape {shape_text(self.ir.shape)}, {self.ir.dtype}"

    @property
    def name(self) -> str:
        return self.ir.name

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(size_value(size) for size in self.ir.shape)

    @property
    def strides(self) -> tuple[Any, ...]:
        return tuple(size_value(stride) for stride in self.ir.strides)

    @property
    def dtype(self) -> DataType:
        return data_type(self.ir.dtype)

    @property
    def ndim(self) -> int:
        return self.ir.rank

    @property
    def data(self) -> BufferData:
        """The buffer's memory, for ``T.Tensor(shape, dtype, A.data)``."""
        return BufferData(self)

    def scope(self) -> str:
        return self.ir.scope.value

    def __repr__(self) -> str:
        return f"<{self.description}>"

    def __len__(self) -> int:
        size = self.ir.shape[0]
        if isinstance(size, int):
            return size
        raise TraceError(f"len() of {self.name}, whose size is known at launch", location=user_location())

    def __bool__(self) -> bool:
        raise TypeMismatchError(
            "a whole buffer is used as a condition", location=user_location(), expected="a scalar", got=self.description
        )

    def __iter__(self) -> Any:
        raise TraceError(
            "a buffer cannot be iterated over or unpacked", location=user_location(), got=self.description,
            hint="loop over its indices: `for i in range(A.shape[0]):`",
        )  # fmt: skip

    def _arithmetic(self, *_: Any) -> Any:
        raise TypeMismatchError(
            "arithmetic on a whole buffer", location=user_location(), expected="scalars", got=self.description,
            hint="compute elements in `for i, j in T.Parallel(...)`, such as C[i, j] = A[i, j] + B[i, j]",
        )  # fmt: skip

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _arithmetic
    __floordiv__ = __mod__ = __pow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = _arithmetic

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, slice) for part in indices):
            return BufferRegion(self, region_of(self, indices))
        exprs = self._element(indices)
        tracer = kernel_tracer(f"an element of {self.name}")
        let = tracer.bind_let(f"{self.name}_value", Load(self.ir, exprs, self.ir.dtype))
        return Value(let.var, let, (self, exprs))

    def __setitem__(self, index: Any, value: Any) -> None:
        indices = index if isinstance(index, tuple) else (index,)
        tracer = kernel_tracer(f"an element of {self.name}")
        if any(isinstance(part, slice) for part in indices):
            from ptxtile.frontend.tile_operations import assign_region

            assign_region(BufferRegion(self, region_of(self, indices)), value)
            return
        if isinstance(value, (TracedBuffer, BufferRegion)):
            raise TypeMismatchError(
                f"a tile is assigned to one element of {self.name}", location=user_location(), expected="a scalar",
                got=value.description, hint="use T.copy(source, destination)",
            )  # fmt: skip
        exprs = self._element(indices)
        stored = operations.converted(value, self.ir.dtype)
        tracer.emit(Store(self.ir, exprs, stored, location=user_location()))

    def _element(self, indices: tuple[Any, ...]) -> tuple[Expr, ...]:
        """The checked indices of one element."""
        if len(indices) != self.ir.rank:
            raise TypeMismatchError(
                f"wrong number of indices for {self.name}", location=user_location(),
                expected=f"{self.ir.rank} ({self.description})", got=str(len(indices)),
            )  # fmt: skip
        return tuple(self._index(position, part) for position, part in enumerate(indices))

    def _index(self, position: int, part: Any) -> Expr:
        """One index; a constant one is checked, and a negative one counts from the end."""
        if part is Ellipsis or part is None:
            raise TypeMismatchError(
                f"an index of {self.name}", location=user_location(), expected="an integer or slice", got=repr(part)
            )
        expr = index_expr(part, f"index {position} of {self.name}")
        size = self.ir.shape[position]
        if isinstance(expr, Const) and isinstance(expr.value, int):
            value = expr.value
            if isinstance(size, int) and not -size <= value < size:
                raise TraceError(
                    f"index {position} of {self.name} is out of range", location=user_location(),
                    expected=f"{-size} … {size - 1} ({self.description})", got=str(value),
                )  # fmt: skip
            if value < 0:
                return index_expr(size_value(size) + value, "an index")
        return expr


class BufferData:
    """The memory of a buffer, of which ``T.Tensor`` makes another view."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: TracedBuffer) -> None:
        self.buffer = buffer


class BufferRegion:
    """A box of a buffer, from slices; an argument of T.copy, T.fill and T.clear."""

    __slots__ = ("buffer", "region")

    def __init__(self, buffer: TracedBuffer, region: Region) -> None:
        self.buffer = buffer
        self.region = region

    @property
    def description(self) -> str:
        return f"a region of shape {shape_text(self.region.extents)} of {self.buffer.description}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.region.extents

    @property
    def dtype(self) -> DataType:
        return self.buffer.dtype

    def __repr__(self) -> str:
        return f"<{self.description}>"

    def __bool__(self) -> bool:
        raise TypeMismatchError(
            "a region is used as a condition", location=user_location(), expected="a scalar", got=self.description
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = TracedBuffer._arithmetic


def region_of(buffer: TracedBuffer, indices: tuple[Any, ...]) -> Region:
    """The region of slices and indices: an index has extent 1, a slice the constant difference of its ends."""
    if len(indices) != buffer.ir.rank:
        raise TypeMismatchError(
            f"wrong number of indices for {buffer.name}", location=user_location(),
            expected=f"{buffer.ir.rank} ({buffer.description})", got=str(len(indices)),
        )  # fmt: skip
    starts, extents = [], []
    for position, part in enumerate(indices):
        if isinstance(part, slice):
            start, extent = _slice(buffer, position, part)
        else:
            start, extent = buffer._index(position, part), 1
        starts.append(start)
        extents.append(extent)
    return Region(buffer.ir, tuple(starts), tuple(extents))


def _slice(buffer: TracedBuffer, position: int, part: slice) -> tuple[Expr, int]:
    what = f"slice {position} of {buffer.name}"
    if part.step not in (None, 1):
        raise TraceError(f"{what} has a step", location=user_location(), expected="step 1", got=repr(part.step))
    size = buffer.ir.shape[position]
    start = _slice_end(0 if part.start is None else part.start, size, what)
    stop = _slice_end(size_value(size) if part.stop is None else part.stop, size, what)
    tracer = tracer_for(what)
    definitions = {**tracer.definitions, **tracer.snapshots()}
    difference = linear(stop, definitions) - linear(start, definitions)
    if not difference.is_constant:
        raise TraceError(
            f"the extent of {what} is not known at compile time", location=user_location(),
            expected="ends that differ by a constant, such as A[i * 64 : (i + 1) * 64]",
            got=f"a size that the device computes ({buffer.description})",
            hint="give only the start, A[y, x]: T.copy takes the extent from the other side",
        )  # fmt: skip
    extent = difference.constant
    if extent <= 0:
        raise TraceError(f"{what} is empty", location=user_location(), expected="an extent ≥ 1", got=str(extent))
    if isinstance(size, int) and isinstance(start, Const):
        # A region of a tensor may begin in it and reach beyond its end, as where the start is not known yet.
        last = size - 1 if buffer.ir.scope is Scope.GLOBAL else size - extent
        if not 0 <= int(start.value) <= last:
            raise TraceError(
                f"{what} is out of range", location=user_location(), expected=f"0 … {size} ({buffer.description})",
                got=f"{start.value}:{int(start.value) + extent}",
            )  # fmt: skip
    return start, extent


def _slice_end(end: Any, size: Size, what: str) -> Expr:
    expr = index_expr(end, f"an end of {what}")
    if isinstance(expr, Const) and isinstance(expr.value, int) and expr.value < 0:
        return index_expr(size_value(size) + expr.value, what)
    return expr


def view_of(source: Any, shape: Any, dtype: Any, strides: Any, what: str) -> TracedBuffer:
    """``T.view`` and ``T.reshape``: another buffer on the same storage, of as many bits."""
    if not isinstance(source, TracedBuffer):
        raise TypeMismatchError(
            f"{what} of something that is no buffer", location=user_location(), expected="a buffer",
            got=operations.describe(source),
        )  # fmt: skip
    tracer = tracer_for(what)
    ir = source.ir
    new_dtype = ir.dtype if dtype is None else as_dtype(dtype)
    new_shape = ir.shape if shape is None else shape_of(shape, f"the shape of {what}")
    if strides is None and not _is_contiguous(ir, tracer.definitions):
        raise TraceError(
            f"{what} of {ir.name}, which is not contiguous", location=user_location(), got=source.description,
            hint="give strides= in elements of the new dtype, or copy it first",
        )  # fmt: skip
    _check_bits(ir, new_shape, new_dtype, what, source)
    new_strides = dense_strides(new_shape) if strides is None else shape_of(strides, f"the strides of {what}")
    if len(new_strides) != len(new_shape):
        raise TypeMismatchError(
            f"the strides of {what}", location=user_location(), expected=f"{len(new_shape)} strides",
            got=str(len(new_strides)),
        )  # fmt: skip
    buffer = Buffer(tracer.name_for(f"{ir.name}_view"), new_dtype, new_shape, new_strides, ir.storage)
    if tracer.kernel is not None:
        tracer.emit(View(buffer, location=user_location()))
    else:
        tracer.host_views.append(View(buffer, location=user_location()))
    return TracedBuffer(buffer)


def _is_contiguous(ir: Buffer, definitions: dict[str, Expr]) -> bool:
    for size, have, want in zip(ir.shape, ir.strides, dense_strides(ir.shape), strict=True):
        if size != 1 and have != want:
            difference = linear(have, definitions) - linear(want, definitions)
            if not difference.is_constant or difference.constant:
                return False
    return True


def _check_bits(ir: Buffer, shape: tuple[Size, ...], dtype: Any, what: str, source: TracedBuffer) -> None:
    def bits(sizes: tuple[Size, ...], each: int) -> Any:
        total: Any = constant(each, int64)
        for size in sizes:
            total = total * (size if isinstance(size, int) else cast(size, int64))
        return linear(total, {})

    if all(isinstance(size, int) for size in (*ir.shape, *shape)):
        same = prod(ir.static_shape) * ir.dtype.bits == prod(shape) * dtype.bits  # type: ignore[arg-type]
    else:
        symbols = sorted(map(str, (s for s in ir.shape if not isinstance(s, int))))
        same_symbols = symbols == sorted(map(str, (s for s in shape if not isinstance(s, int))))
        known = prod(s for s in ir.shape if isinstance(s, int)) * ir.dtype.bits
        same = same_symbols and known == prod(s for s in shape if isinstance(s, int)) * dtype.bits
        same = same or bits(ir.shape, ir.dtype.bits) == bits(shape, dtype.bits)
    if not same:
        raise TypeMismatchError(
            f"{what} does not keep the number of bits", location=user_location(), expected=source.description,
            got=f"{shape_text(shape)}, {dtype}",
        )  # fmt: skip
