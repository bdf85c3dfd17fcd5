"""Worker processes for compiling and measuring, as a :class:`concurrent.futures.Executor`.

The processes are started with ``subprocess``, not with ``multiprocessing``: they do not import the user's ``__main__``
again, so that a script may tune at its top level without an ``if __name__ == "__main__"``. A process that dies or does
not answer in time is replaced, and the error is that call's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection
from typing import Any

from ptxtile.errors import WorkerError, WorkerTimeout
from ptxtile.records import record
from ptxtile.tune.worker import call_bytes

COMPILER = ("ptxtile.tune.compile_task", "ptxtile.lower.pipeline", "ptxtile.nvvm.emission", "llvmlite.binding")
"""What a process that compiles imports."""
_START = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
    "from ptxtile.tune.worker import serve; serve(given['descriptors'], given['preload'], given['prepare'])"
)
_GRACE = 10.0
"""Seconds that processes get to end by themselves."""
_START_LIMIT = 300.0
"""Seconds that a process gets to import what it needs."""


def default_workers() -> int:
    """As many as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@record
class _Call:
    future: Future[Any]
    request: bytes
    timeout: float | None
    what: str


class WorkerPool(Executor):
    """``workers`` processes that have imported ``preload``; they start with the first call, or with :meth:`start`.

    ``timeout``: seconds after which a call's process is killed, and the call's future raises
    :class:`~ptxtile.errors.WorkerTimeout`; None: never. ``prepare``: functions, as ``module:name``, that the processes
    call first. A function that raises :class:`~ptxtile.errors.WorkerError` asks for its process to be replaced.
    """

    def __init__(
        self,
        workers: int | None = None,
        preload: Sequence[str] = COMPILER,
        timeout: float | None = None,
        prepare: Sequence[str] = (),
    ) -> None:
        self.workers = max(1, workers or default_workers())
        self.timeout = timeout
        self._preload = tuple(preload)
        self._prepare = tuple(prepare)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._processes: set[int] = set()

    def start(self) -> None:
        """Start the processes now; they import while the caller goes on."""
        with self._lock:
            if self._threads or self._closed:
                return
            for place, connection in enumerate(self._start(self.workers)):
                name = f"ptxtile worker {place}"
                thread = threading.Thread(target=self._serve_calls, args=(connection,), daemon=True, name=name)
                self._threads.append(thread)
                thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of ``fn(*args, **kwargs)`` in a worker; all of it must be picklable."""
        return self.submit_with_timeout(self.timeout, fn, *args, **kwargs)

    def submit_with_timeout(
        self, timeout: float | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """The same with a time limit of its own, in seconds from when a worker takes it."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self.start()
        self._calls.put(_Call(future, call_bytes(fn, args, kwargs), timeout, getattr(fn, "__name__", "a call")))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if cancel_futures:
            self._cancel()
        for _ in self._threads:
            self._calls.put(None)
        if not wait:
            return
        for thread in self._threads:
            thread.join()
        for server in self._servers:
            try:
                server.wait(_GRACE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def kill(self) -> None:
        """End all processes now, whatever they are at; nothing more can be submitted."""
        self._cancel()
        for process in list(self._processes):
            _kill(process)
        self.shutdown(cancel_futures=True)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """At the end of a ``with`` block: wait for what was submitted; after an exception, such as Ctrl-C, do not."""
        if kind is not None:
            self.kill()
        self.shutdown()

    def _cancel(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.future.cancel()

    # -- processes

    def _start(self, count: int) -> list[Connection]:
        """``count`` new workers of one new server."""
        pairs = [socket.socketpair() for _ in range(count)]
        given = {
            "path": sys.path,
            "descriptors": [theirs.fileno() for _, theirs in pairs],
            "preload": self._preload,
            "prepare": self._prepare,
        }
        server = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(given)],
            pass_fds=given["descriptors"], stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._servers.append(server)
        for _, theirs in pairs:
            theirs.close()
        return [Connection(ours.detach()) for ours, _ in pairs]

    # -- one thread for each worker

    def _serve_calls(self, connection: Connection) -> None:
        process: int | None = None
        while True:
            call = self._calls.get()
            if call is None:
                break
            if not call.future.set_running_or_notify_cancel():
                continue
            if connection.closed:
                (connection,) = self._start(1)
                self._processes.discard(process or 0)
                process = None
            try:
                if process is None:
                    if not connection.poll(_START_LIMIT):
                        raise EOFError
                    process = int(pickle.loads(connection.recv_bytes()))
                    self._processes.add(process)
                connection.send_bytes(call.request)
                if not connection.poll(call.timeout):
                    raise TimeoutError
                returned, value = pickle.loads(connection.recv_bytes())
            except TimeoutError:
                _kill(process)
                connection.close()
                call.future.set_exception(WorkerTimeout(f"{call.what} did not end within {call.timeout:g} s"))
            except (EOFError, OSError):
                connection.close()
                call.future.set_exception(
                    WorkerError(
                        f"the process of {call.what} died", hint="what it wrote on standard error says more"
                    )
                )  # fmt: skip
            except Exception as error:  # the answer cannot be read here
                call.future.set_exception(error)
            else:
                if returned:
                    call.future.set_result(value)
                else:
                    if isinstance(value, WorkerError):
                        _kill(process)
                        connection.close()
                    call.future.set_exception(value)
        connection.close()


def _kill(process: int | None) -> None:
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
