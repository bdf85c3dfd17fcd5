"""A card made of two numbers: what time it is on the host, and when the card will be done with its queue.

Work is enqueued through :meth:`StandInClock.launch`, which takes host time at once and the card's time when its turn
comes. A mark is a point in the card's time. So a measurement that lets the host be seen gives wrong numbers here as on
a card.
"""

from __future__ import annotations

from collections.abc import Callable

QUEUE = 1024
"""Entries that the queue holds; one more while it is held would be a mistake of the measurement."""


class StandInClock:
    """``warm_factor``: what a call takes of its time when its inputs are in the cache."""

    name = "a stand-in"
    asynchronous = True

    def __init__(self, flush_seconds: float = 50e-6, warm_factor: float = 0.5) -> None:
        self.host = 0.0
        self.card = 0.0
        self.is_warm = self.is_held = False
        self.flushes = self.launches = self.waiting = self.most_waiting = 0
        self._flush_seconds = flush_seconds
        self._warm_factor = warm_factor

    def _enqueue(self, seconds: float, host_seconds: float = 5e-6) -> None:
        self.host += host_seconds
        self.card = max(self.card, self.host) + seconds
        if self.is_held:
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)

    def launch(self, seconds: float, host_seconds: float = 5e-6, count: int = 1) -> None:
        for _ in range(count):
            self._enqueue(seconds * (self._warm_factor if self.is_warm else 1.0), host_seconds)
            self.is_warm = True
        self.launches += count

    def flush(self) -> None:
        self._enqueue(self._flush_seconds)
        self.is_warm = False
        self.flushes += 1

    def hold(self, seconds: float) -> None:
        self.is_held = True
        self._enqueue(seconds)

    def mark(self) -> float:
        self._enqueue(0.0)
        return self.card

    def wait(self) -> None:
        self.host = max(self.host, self.card)
        self.waiting, self.is_held = 0, False

    def milliseconds(self, start: float, stop: float) -> float:
        return 1e3 * (stop - start)

    def captured(self, function: Callable[[], object], count: int) -> Callable[[], object]:
        """A replay takes the card's time of the calls, and the host's of one launch."""

        def replay() -> None:
            before = self.host
            for _ in range(count):
                function()
            self.host = before + 5e-6

        return replay
