"""torch's primary context of a device, made current in the calling thread, and torch's current stream.

A new thread has no context at all, and a thread that worked on another card has that card's. :func:`enter` notices
and pushes the right one; what it pushed is popped again, so the caller's state is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ptxtile.runtime import driver as cuda
from ptxtile.runtime.driver import Driver

LEGACY_STREAM = 1
"""CU_STREAM_LEGACY (cuda.h), the name of the legacy default stream where 0 may also mean that of the thread."""


def enter(driver: Driver, device: int) -> bool:
    """Make the primary context of ``device`` current. True when it was pushed and :func:`leave` is due."""
    context = driver.primary_contexts.get(device)
    if context is None:
        with driver.captures_unharmed():
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


def device_of(address: int) -> int:
    """The number of the card whose memory ``address`` is of. DriverError for memory that no card has."""
    driver = cuda.initialised()
    if driver.current_context():
        return driver.device_of_pointer(address)
    import torch

    with current(torch.cuda.current_device()):  # the driver answers no thread that has no context
        return driver.device_of_pointer(address)


def wait_for(device: int, producer: int) -> None:
    """Make torch's current stream on ``device`` wait for what has been enqueued on the stream ``producer``, a CUstream
    handle (1: the legacy default stream, 2: that of the thread)."""
    consumer = current_stream(device)
    if producer != (consumer or LEGACY_STREAM):
        with current(device) as driver:
            driver.order_streams(producer, consumer)
