"""The tracer that is running in this thread, if any."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ptxtile.errors import TraceError
from ptxtile.frontend.locations import user_location

if TYPE_CHECKING:
    from ptxtile.frontend.tracer import Tracer


class _State(threading.local):
    tracer: Tracer | None = None


_state = _State()


def active_tracer() -> Tracer | None:
    return _state.tracer


def set_active_tracer(tracer: Tracer | None) -> Tracer | None:
    """Makes ``tracer`` the active one and returns the one before it."""
    before = _state.tracer
    _state.tracer = tracer
    return before


def tracer_for(what: str) -> Tracer:
    """The active tracer; TraceError when ``what`` is used outside of a traced function."""
    tracer = _state.tracer
    if tracer is None:
        raise TraceError(
            f"{what} is used outside of a traced function",
            location=user_location(),
            expected="a call inside of a function under @ptxtile.jit or @T.prim_func (or a @T.macro called from one)",
            hint="decorate the function that holds this line with @T.macro, or call it from a kernel",
        )
    return tracer


def kernel_tracer(what: str) -> Tracer:
    """The active tracer inside of ``with T.Kernel(...)``; TraceError elsewhere."""
    tracer = tracer_for(what)
    if tracer.kernel is None:
        raise TraceError(
            f"{what} is used outside of T.Kernel",
            location=user_location(),
            hint="put it inside of `with T.Kernel(...)`: only that part runs on the device",
        )
    return tracer
