"""Buffers that a kernel or the host part allocates."""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import TracedBuffer, dense_strides, shape_of, view_of
from ptxtile.frontend.current import kernel_tracer, tracer_for
from ptxtile.frontend.dtypes import as_dtype, is_dtype
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Local
from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate
from ptxtile.ir.statements import Allocate

_ALIGNMENT = {Scope.SHARED: 16, Scope.FRAGMENT: 16, Scope.LOCAL: 16}


def _on_chip(what: str, scope: Scope, shape: Any, dtype: Any) -> TracedBuffer:
    tracer = kernel_tracer(what)
    if tracer.parallel_depth and scope is not Scope.LOCAL:
        raise TraceError(f"{what} inside of T.Parallel", location=user_location(), hint="allocate it before the loop")
    sizes: list[int] = []
    for size in shape_of(shape, f"the shape of {what}"):
        if not isinstance(size, int) or size == 0:
            raise TraceError(
                f"a size of {what}", location=user_location(), expected="an int ≥ 1, known at compile time",
                got="0" if size == 0 else "a size that is only known at launch",
            )  # fmt: skip
        sizes.append(size)
    element = as_dtype(dtype)
    if element.bits % 8 and (not sizes or sizes[-1] * element.bits % 8):
        raise TypeMismatchError(
            f"{what} of {element}",
            location=user_location(),
            expected="rows that fill whole bytes",
            got=str(tuple(sizes)),
        )
    buffer = allocate(tracer.name_for(what.removeprefix("T.alloc_")), scope, element, tuple(sizes), _ALIGNMENT[scope])
    tracer.emit(Allocate(buffer, location=user_location()))
    return TracedBuffer(buffer)


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> TracedBuffer:
    """A tile in the block's shared memory, uninitialised."""
    return _on_chip("T.alloc_shared", Scope.SHARED, shape, dtype)


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> TracedBuffer:
    """A tile spread over the registers of the block's threads, uninitialised."""
    return _on_chip("T.alloc_fragment", Scope.FRAGMENT, shape, dtype)


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> TracedBuffer:
    """An array of each thread's own."""
    return _on_chip("T.alloc_local", Scope.LOCAL, shape, dtype)


def alloc_var(dtype: Any, *args: Any, scope: str = "local.var", init: Any = None) -> Local:
    """A scalar of each thread's own: after ``x = T.alloc_var(T.float32, 0)``, ``x = …`` and ``x += …`` assign it.

    ``T.alloc_var(dtype, init)``, ``T.alloc_var(dtype, init=…)``; a string as an argument is TileLang's scope name.
    """
    tracer = kernel_tracer("T.alloc_var")
    values = [argument for argument in args if not isinstance(argument, str)]
    if len(values) > 1 or (values and init is not None):
        raise TraceError(
            "T.alloc_var takes one initial value", location=user_location(), got=f"{len(values) + (init is not None)}"
        )
    init = values[0] if values else init
    local = tracer.new_local(tracer.pending_name or "var", as_dtype(dtype), None, implicit=False)
    tracer.initialise(local, operations.converted(0 if init is None else init, local.buffer.dtype))
    return local


def empty(*shape: Any, dtype: Any = "float32") -> TracedBuffer:
    """``T.empty((M, N), T.float32)``: a new contiguous tensor that the call allocates, an output when returned."""
    tracer = tracer_for("T.empty")
    if tracer.kernel is not None:
        raise TraceError(
            "T.empty inside of T.Kernel",
            location=user_location(),
            hint="outputs are allocated before the kernel starts",
        )
    if shape and isinstance(shape[0], (tuple, list)):
        if len(shape) == 2:
            dtype = shape[1]
        sizes: Any = shape[0]
    elif len(shape) > 1 and (is_dtype(shape[-1]) or isinstance(shape[-1], str)):
        sizes, dtype = shape[:-1], shape[-1]
    else:
        sizes = shape
    buffer = global_buffer(tracer.name_for("output"), as_dtype(dtype), shape_of(sizes, "the shape of T.empty"))
    tracer.allocations.append(buffer)
    return TracedBuffer(buffer)


def global_buffer(name: str, dtype: Any, shape: Any, strides: Any = None) -> Buffer:
    """A tensor in device memory; contiguous unless strides are given."""
    return Buffer(name, dtype, shape, strides or dense_strides(shape), Storage(name, Scope.GLOBAL))


def view(src: Any, shape: Any = None, dtype: Any = None, strides: Any = None) -> TracedBuffer:
    """Another view of a buffer's storage, of as many bits; shares its data."""
    return view_of(src, shape, dtype, strides, "T.view")


def reshape(src: Any, shape: Any) -> TracedBuffer:
    """The same data in another shape."""
    return view_of(src, shape, None, None, "T.reshape")
