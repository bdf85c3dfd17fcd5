"""torch's primary context of a device, made current in the calling thread, and torch's current stream.

A new thread has no context at all, and a thread that worked on another card has that card's. :func:`enter` notices
and pushes the right one; what it pushed is popped again, so the caller's state is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ptxtile.runtime import driver as cuda
from ptxtile.runtime.driver import Driver


def enter(driver: Driver, device: int) -> bool:
    """Make the primary context of ``device`` current. True when it was pushed and :func:`leave` is due."""
    context = driver.primary_contexts.get(device)
    if context is None:
        context = driver.primary_contexts.setdefault(device, driver.retain_primary_context(device))
    if driver.current_context() == context:
        return False
    driver.push_context(context)
    return True


def leave(driver: Driver) -> None:
    driver.pop_context()


@contextmanager
def current(device: int) -> Iterator[Driver]:
    """The initialised driver with the primary context of ``device`` current in this thread."""
    driver = cuda.initialised()
    pushed = enter(driver, device)
    try:
        yield driver
    finally:
        if pushed:
            leave(driver)


def stream_reader() -> Callable[[int], int]:
    """torch's function that gives the current stream on a device as a CUstream handle."""
    import torch

    return torch._C._cuda_getCurrentRawStream


def current_stream(device: int) -> int:
    """torch's current stream on ``device`` as a CUstream handle; 0 is the legacy default stream."""
    return stream_reader()(device)
