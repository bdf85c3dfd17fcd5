"""What times a call: a card's events in the order of its stream, or the clock of the host.

Measuring (:mod:`ptxtile.profile.bench`) goes through a :class:`Clock` alone, so that tests put another in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

FLUSH_FACTOR = 2
"""Bytes that are written to empty the L2 cache, in sizes of that cache: twice its size leaves nothing in it."""
QUEUE_DEPTH = 1024
"""Launches and events that a stream holds before the host has to wait. NVIDIA documents no figure; 1024 is what is
observed."""
MOST_HOLD = 0.05
"""Seconds for which the queue is held at once, at most."""
WITHOUT_RATE = 2e9
"""Cycles a second of a multiprocessor where torch does not know: about the fastest there are, so that a hold is no
shorter than asked for."""


class Clock(Protocol):
    """Times what is enqueued between two marks.

    ``name``: for messages. ``asynchronous``: calls return before their work is done, so the host can run ahead.
    """

    name: str
    asynchronous: bool

    def flush(self) -> None:
        """Empty the L2 cache, as work like any other."""
        ...

    def hold(self, seconds: float) -> None:
        """Keep the queue busy for about that long, so that what follows is enqueued before it begins."""
        ...

    def mark(self) -> Any:
        """A point between two pieces of work."""
        ...

    def wait(self) -> None:
        """Until all work is done."""
        ...

    def milliseconds(self, start: Any, stop: Any) -> float:
        """Between two marks, after :meth:`wait`."""
        ...

    def captured(self, function: Callable[[], object], count: int) -> Callable[[], object]:
        """One call that does the work of ``count`` calls of ``function`` without the host."""
        ...


class HostClock:
    """Wall time on the host: for the simulator, and for functions that are done when they return.

    ``device``: a card to wait for before each mark, None: none.
    """

    name = "wall time"
    asynchronous = False

    def __init__(self, device: Any = None) -> None:
        self._device = device

    def flush(self) -> None:
        pass

    def hold(self, seconds: float) -> None:
        pass

    def mark(self) -> float:
        self.wait()
        return time.perf_counter()

    def wait(self) -> None:
        if self._device is not None:
            import torch

            torch.cuda.synchronize(self._device)

    def milliseconds(self, start: float, stop: float) -> float:
        return 1e3 * (stop - start)

    def captured(self, function: Callable[[], object], count: int) -> Callable[[], object]:
        def repeated() -> None:
            for _ in range(count):
                function()

        return repeated


class CudaClock:
    """CUDA events on torch's current stream of ``device`` (None: the current one)."""

    name = "CUDA events"
    asynchronous = True

    def __init__(self, device: Any = None, flush_bytes: int | None = None) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device() if device is None else index_of(device))
        properties = torch.cuda.get_device_properties(self._device)
        size = FLUSH_FACTOR * properties.L2_cache_size if flush_bytes is None else flush_bytes
        self._scratch = torch.empty(max(1, size // 4), dtype=torch.int32, device=self._device)
        self._rate = 1e3 * (getattr(properties, "clock_rate", 0) or WITHOUT_RATE / 1e3)  # torch gives kHz

    def flush(self) -> None:
        self._scratch.zero_()

    def hold(self, seconds: float) -> None:
        with self._torch.cuda.device(self._device):
            self._torch.cuda._sleep(int(min(seconds, MOST_HOLD) * self._rate))

    def mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def milliseconds(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop)

    def captured(self, function: Callable[[], object], count: int) -> Callable[[], object]:
        torch = self._torch
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            function()  # what happens at a first call only must not be captured
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph):
            for _ in range(count):
                function()
        return graph.replay


def index_of(device: Any) -> int:
    """The number of a card: of an int, ``"cuda:1"``, or a torch.device."""
    import torch

    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index
