"""What worker processes run: a server imports once what all need and forks them; each answers calls on a socket.

Importing the compiler takes a quarter of a second of a processor, a fork some milliseconds. The server has no threads
and touches no CUDA, so that a fork is safe. A process that is to import torch, which has threads, is not forked: it is
started for itself (``preload`` names torch, one socket).

A call is a pickle of (function, arguments) and its answer one of (whether it returned, value or error), over a socket
that only the two processes have. When the other end is closed, the process ends.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any


def serve(descriptors: Sequence[int], preload: Sequence[str], prepare: Sequence[str] = ()) -> None:
    """One worker for each socket; returns when all of them have ended. ``prepare``: functions (``module:name``) to call
    before forking."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's Ctrl-C is for the process that started this one
    for module in preload:
        importlib.import_module(module)
    for name in prepare:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()
    if len(descriptors) == 1:
        work(descriptors[0])
        return
    gc.freeze()  # what is there now is never collected, so that the workers go on sharing its pages
    children = []
    for descriptor in descriptors:
        child = os.fork()
        if child == 0:
            for other in descriptors:
                if other != descriptor:
                    os.close(other)
            work(descriptor)
            os._exit(0)
        children.append(child)
    for descriptor in descriptors:
        os.close(descriptor)
    for child in children:
        os.waitpid(child, 0)


def work(descriptor: int) -> None:
    """Say who this is, then answer calls until the other end is closed."""
    with Connection(descriptor) as connection:
        try:
            connection.send_bytes(pickle.dumps(os.getpid()))
            while True:
                request = connection.recv_bytes()
                connection.send_bytes(_answer(request))
        except (EOFError, OSError):
            return


def _answer(request: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(request)
        answer: tuple[bool, Any] = (True, function(*args, **kwargs))
    except Exception as error:
        answer = (False, error)
    try:
        return pickle.dumps(answer)
    except Exception as error:  # what pickle raises depends on the value
        what = "error" if not answer[0] else "result"
        return pickle.dumps((False, RuntimeError(f"the {what} of a worker cannot be sent ({error}): {answer[1]!r}")))


def call_bytes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call as the worker reads it. Raises what pickle raises when it cannot be sent."""
    return pickle.dumps((function, args, kwargs))
