"""What rewritten code calls: one :class:`Frame` for each invocation of a traced function or macro."""

from __future__ import annotations

import builtins
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.control_flow import (
    UNBOUND,
    PythonIf,
    PythonLoop,
    PythonWhile,
    Region,
    TracedFor,
    TracedGrid,
    TracedIf,
    TracedParallel,
    TracedWhile,
    peek,
)
from ptxtile.frontend.current import tracer_for
from ptxtile.frontend.dtypes import as_dtype, is_dtype
from ptxtile.frontend.lazy_operators import LazyOperators, is_scalar
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.loops import GridLoop, ParallelLoop, PersistentLoop, SequentialLoop, serial
from ptxtile.frontend.mathematics import max_, min_
from ptxtile.frontend.persistent import TracedPersistent
from ptxtile.frontend.tracer import Tracer
from ptxtile.frontend.values import Local, Undefined, Value
from ptxtile.ir.expressions import Const
from ptxtile.ir.statements import Break, Continue, LoopKind

_CONTAINERS = (list, dict, set, bytearray, deque)


def open_frame(name: str) -> Frame:
    """The first statement of every rewritten function."""
    return Frame(tracer_for(name), name)


class Frame(LazyOperators):
    """The traced control flow of one invocation, and the operations of its rewritten source."""

    def __init__(self, tracer: Tracer, function: str) -> None:
        super().__init__(tracer)
        self.function = function
        self.regions: list[Region] = []

    # ---------------------------------------------------------------- names

    def name(self, name: str) -> None:
        """The value that is evaluated next will be assigned to ``name``: buffers and kernels take it as theirs."""
        self.tracer.pending_name = name

    def read(self, name: str, value: Any) -> Any:
        """What a name holds: of a rebound variable, its value now."""
        if isinstance(value, Undefined):
            value.refuse()
        if isinstance(value, Local) and value.implicit:
            return value.snapshot()
        return value

    def assign(self, name: str, value: Any, old_thunk: Callable[[], Any]) -> Any:
        """What ``name`` holds after ``name = value``."""
        self.tracer.pending_name = None
        if isinstance(value, Undefined):
            value.refuse()
        old = peek(old_thunk)
        fresh = isinstance(value, Local) and value.fresh
        if isinstance(old, Local) and not old.implicit and is_scalar(value) and not fresh:
            old.store(value)
            return old
        region = self._carrying(name)
        if region is None:
            return self._bind(name, value)
        if isinstance(region, TracedParallel):
            region.refuse_rebinding(name)
        if fresh or not is_scalar(value):
            self._refuse_object(name, value, region)
        if isinstance(old, Undefined):
            if old.local is None:
                old.local = self._local_for(old, value)
            old.local.store(value)
            return old.local
        if not isinstance(old, Local):
            self._refuse_object(name, old, region)
        old.store(value)
        return old

    def _carrying(self, name: str) -> Region | None:
        """The innermost traced region of this frame that carries ``name``; a parallel one counts first."""
        carrying = [region for region in self.regions if name in region.carried]
        parallel = [region for region in carrying if region.parallel]
        return (parallel or carrying or [None])[-1]

    def _local_for(self, undefined: Undefined, value: Any) -> Local:
        dtype = value.ir_dtype if isinstance(value, Value) else operations.number_dtype(value)
        return self.tracer.new_local(undefined.name, dtype, undefined.hoist, implicit=True)

    def _refuse_object(self, name: str, value: Any, region: Region) -> None:
        line = f" at line {region.location.line}" if region.location else ""
        what = "None" if value is None else operations.describe(value)
        raise TypeMismatchError(
            f"{name} is rebound under the traced control flow{line} and needed outside of it, but it is not a scalar",
            location=user_location(), expected="a number or traced scalar before and after", got=what,
            hint=f"start it as a scalar, such as `{name} = T.float32(0)`, or use a buffer and write to its elements",
        )  # fmt: skip

    def _bind(self, name: str, value: Any) -> Any:
        """A name for a value: a traced expression gets a Let of that name."""
        if isinstance(value, Local):
            if value.fresh:
                value.fresh = False
                return value
            return Value(self.tracer.bind(name, value.expr))
        if not isinstance(value, Value) or self.tracer.kernel is None:
            return value
        if value.let is not None and self.tracer.rename_last(value, name):
            return Value(value.expr)
        return Value(self.tracer.bind(name, value.expr))

    def declare(self, name: str, annotation: Callable[[], Any], old_thunk: Callable[[], Any]) -> Any:
        """``A: T.Tensor(...)`` without a value: declares the parameter A; None for a local's bare annotation."""
        from ptxtile.frontend.annotations import UndeclaredParameter, declare_parameter

        old = peek(old_thunk)
        if not isinstance(old, UndeclaredParameter):
            return None if old is UNBOUND else old
        return declare_parameter(self.tracer, old, annotation())

    def annotated(self, value: Any, annotation: Callable[[], Any]) -> Any:
        """``x: T.int32 = value``: cast where the annotation is a dtype."""
        dtype = annotation()
        if is_dtype(dtype) and not isinstance(dtype, type) and is_scalar(value):
            return operations.cast_value(value, as_dtype(dtype))
        return value

    # ---------------------------------------------------------------- Python objects under traced control flow

    def made(self, container: Any) -> Any:
        """A container made here may be changed here."""
        if self.tracer.regions:
            self.tracer.made[id(container)] = (container, self.tracer.regions[-1])
        return container

    def _check_mutation(self, container: Any, what: str) -> None:
        if not self.tracer.regions:
            return
        if not isinstance(container, _CONTAINERS) and type(container).__name__ != "ndarray":
            return
        owner = self.tracer.made.get(id(container))
        if owner is not None and owner[0] is container and owner[1] is self.tracer.regions[-1]:
            return
        region = self.tracer.regions[-1]
        line = f" (line {region.location.line})" if region.location else ""
        raise TraceError(
            f"{what} changes a Python {type(container).__name__} under traced control flow{line}",
            location=user_location(),
            got="a container made outside of it, which would change once, while tracing",
            hint="use a buffer (T.alloc_local, T.alloc_var), or loop over a Python list, which unrolls",
        )

    def mutating_method(self, owner: Any, name: str) -> Any:
        self._check_mutation(owner, f".{name}()")
        return getattr(owner, name)

    def set_item(self, owner: Any, index: Any, value: Any) -> None:
        self._check_mutation(owner, "an item assignment")
        if isinstance(owner, Value) and not isinstance(owner, Local):
            raise TraceError("an element of a traced scalar is assigned", location=user_location())
        owner[index] = value

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        if self.tracer.regions:
            raise TraceError(
                f"the attribute {name} of a Python object is assigned under traced control flow",
                location=user_location(),
                hint="it would change once, while tracing: use a variable or T.alloc_var",
            )
        setattr(owner, name, value)

    def in_place(self, operation: str, old: Any, value: Any) -> Any:
        """The new value of ``old <operation>= value``."""
        if hasattr(old, "description") and not isinstance(old, Value):
            raise TypeMismatchError(
                "augmented assignment to a whole buffer", location=user_location(), got=operations.describe(old),
                hint="update elements: `for i, j in T.Parallel(...): C[i, j] += ...`",
            )  # fmt: skip
        if isinstance(old, Value) or isinstance(value, Value):
            return getattr(operator, operation)(old, value)
        self._check_mutation(old, "an augmented assignment")
        return getattr(operator, "i" + operation.rstrip("_"))(old, value)

    @staticmethod
    def slice_(start: Any, stop: Any, step: Any) -> slice:
        return slice(start, stop, step)

    # ---------------------------------------------------------------- control flow

    def if_(self, condition: Any, names: tuple[str, ...]) -> PythonIf | TracedIf:
        if not isinstance(condition, Value):
            if hasattr(condition, "description"):
                self._refuse_buffer_condition(condition)
            return PythonIf(condition)
        expr = operations.truth(condition, "if")
        if isinstance(expr, Const):
            return PythonIf(expr.value)
        self._require_kernel("if")
        return TracedIf(self, names, expr)

    def _refuse_buffer_condition(self, condition: Any) -> None:
        raise TypeMismatchError(
            "a whole buffer is used as a condition", location=user_location(), expected="a scalar",
            got=operations.describe(condition), hint="read one element, such as A[i]",
        )  # fmt: skip

    def _require_kernel(self, word: str) -> None:
        if self.tracer.kernel is None and self.tracer.specialization is None:
            raise TraceError(
                f"`{word}` on a T.const size before all tensors are declared", location=user_location(),
                hint="put it after the annotations of all tensor parameters",
            )  # fmt: skip
        if self.tracer.kernel is None:
            raise TraceError(
                f"`{word}` on a size that is only known at launch, outside of T.Kernel", location=user_location(),
                expected="Python values in the host part", hint="use T.const for sizes that the host part branches on",
            )  # fmt: skip

    def for_(
        self, iterable: Any, targets: tuple[str, ...], names: tuple[str, ...], has_else: bool, tuple_of_one: bool
    ) -> Any:
        if isinstance(iterable, range) and self.tracer.kernel is not None:
            iterable = SequentialLoop(LoopKind.SERIAL, iterable.start, iterable.stop, iterable.step)
        if isinstance(iterable, Value):
            raise TraceError(
                "`for` over a traced scalar", location=user_location(), got=f"one {iterable.ir_dtype}",
                hint="write `for i in range(n):`",
            )  # fmt: skip
        if not isinstance(iterable, (SequentialLoop, ParallelLoop, GridLoop, PersistentLoop)):
            if hasattr(iterable, "description"):
                raise TraceError(
                    "`for` over a buffer", location=user_location(), got=operations.describe(iterable),
                    hint="loop over its indices: `for i in range(A.shape[0]):`",
                )  # fmt: skip
            return PythonLoop(iterable, len(self.tracer.regions))
        self._require_kernel("for")
        if has_else:
            raise TraceError("`else` of a traced loop", location=user_location(), hint="use a flag variable")
        if isinstance(iterable, ParallelLoop):
            return TracedParallel(self, names, iterable, targets, tuple_of_one)
        if isinstance(iterable, GridLoop):
            return TracedGrid(self, names, iterable, targets, tuple_of_one)
        if isinstance(iterable, PersistentLoop):
            return TracedPersistent(self, names, iterable, targets)
        loop = TracedFor(self, names, iterable, targets[0] if targets else "")
        if loop.constant and not loop.runs_at_least_once:
            return PythonLoop((), len(self.tracer.regions))
        return loop

    def while_(self, test: Callable[[], Any], names: tuple[str, ...], endless: bool, has_else: bool) -> Any:
        if self.tracer.kernel is None:
            return PythonWhile(test, len(self.tracer.regions))
        if not endless:
            first, _ = self.tracer.capture(test)
            if not isinstance(first, Value):
                return PythonWhile(test, len(self.tracer.regions))
        if has_else:
            raise TraceError("`else` of a traced loop", location=user_location(), hint="use a flag variable")
        return TracedWhile(self, names, test, endless)

    def break_(self, loop: Any) -> bool:
        """Whether Python shall break; a traced loop gets a Break instead."""
        return self._jump(loop, Break(location=user_location()), "break")

    def continue_(self, loop: Any) -> bool:
        return self._jump(loop, Continue(location=user_location()), "continue")

    def _jump(self, loop: Any, statement: Break | Continue, word: str) -> bool:
        if loop.traced:
            loop.jump(statement, word)
            return False
        if len(self.tracer.regions) > loop.depth:
            region = self.tracer.regions[-1]
            line = f" at line {region.location.line}" if region.location else ""
            raise TraceError(
                f"`{word}` of a loop that Python unrolls, under the traced control flow{line}",
                location=user_location(),
                got="a condition that is only known on the device",
                hint="loop over range(...), which is a device loop, or make the condition a Python value",
            )
        return True

    def return_(self) -> None:
        if self.regions:
            region = self.regions[-1]
            line = f" at line {region.location.line}" if region.location else ""
            raise TraceError(
                f"`return` under the traced control flow{line}", location=user_location(),
                hint="assign the result to a variable and return it at the end",
            )  # fmt: skip

    def raise_(self) -> None:
        if self.tracer.regions:
            raise TraceError(
                "`raise` under traced control flow", location=user_location(),
                hint="whether it is reached is only known on the device",
            )  # fmt: skip

    def with_(self, context: Any, names: tuple[str, ...], tuple_of_one: bool) -> Any:
        from ptxtile.frontend.kernel_launch import KernelLaunch

        if isinstance(context, KernelLaunch):
            context.names = tuple(name for name in names if name)
            context.tuple_of_one = tuple_of_one
        return context

    @staticmethod
    def extremum(function: Any, *arguments: Any) -> Any:
        """min(...) and max(...), with traced arguments allowed."""
        if function in (builtins.min, builtins.max) and any(isinstance(argument, Value) for argument in arguments):
            return min_(*arguments) if function is builtins.min else max_(*arguments)
        return function(*arguments)

    def range_(self, function: Any, *arguments: Any) -> Any:
        """range(...), with traced bounds allowed."""
        if function is builtins.range and any(isinstance(argument, Value) for argument in arguments):
            return serial(*arguments)
        return function(*arguments)
