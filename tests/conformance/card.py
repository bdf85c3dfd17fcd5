"""Runs programs on the card in a process of its own, which is ended and started again when a program hangs or faults.

A fault (an illegal address or instruction) leaves a CUDA context unusable for good, and a kernel that waits for what
never comes runs forever; neither may take the other cases with it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from ptxtile.launch_record import LaunchRecord

SECONDS_TO_START = 180
SECONDS_OF_A_CASE = 60
"""The JIT's time included."""

Argument = tuple[str, tuple[int, ...], bytes] | int | float
"""A tensor travels as the name of its dtype, its shape and its bytes."""


class CardFailure(Exception):
    """The program could not be run: refused, faulted, or never came to an end."""


@dataclass(frozen=True)
class CardRun:
    tensors: dict[str, torch.Tensor]
    printed: str


def pack(value: torch.Tensor | int | float) -> Argument:
    if not isinstance(value, torch.Tensor):
        return value
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), raw.numpy().tobytes()


def unpack(value: Argument) -> torch.Tensor | int | float:
    if not isinstance(value, tuple):
        return value
    name, shape, raw = value
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, name)).reshape(shape)


Answer = tuple[str, bool, dict[str, Argument], str]
"""What went wrong (empty: nothing), whether the context is still usable, every tensor after the run, what was
printed."""


class Card:
    """``run`` starts the process when there is none. ``serve`` is what the process does, ``seconds`` its time for a
    case."""

    def __init__(self, serve: Callable[[Connection], None] | None = None, seconds: float = SECONDS_OF_A_CASE) -> None:
        self.serve = serve or serve_card
        self.seconds = seconds
        self._process: Any = None
        self._connection: Connection | None = None

    def run(self, ptx: str, record: LaunchRecord, arguments: Sequence[torch.Tensor | int | float]) -> CardRun:
        """Every tensor after the launches of ``record``, and what was printed. CardFailure says what went wrong."""
        connection = self._connection or self._start()
        connection.send((ptx, record, [pack(argument) for argument in arguments]))
        try:
            if not connection.poll(self.seconds):
                self.stop()
                raise CardFailure(f"the kernel did not end within {self.seconds} s")
            failure, usable, tensors, printed = connection.recv()
        except (EOFError, ConnectionError) as error:
            self.stop()
            raise CardFailure(f"the process ended: {error!r}") from error
        if not usable:
            self.stop()
        if failure:
            raise CardFailure(failure)
        return CardRun({name: unpack(value) for name, value in tensors.items()}, printed)  # type: ignore[misc]

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=self.serve, args=(there,), daemon=True)
        self._process.start()
        there.close()
        try:
            if not here.poll(SECONDS_TO_START):
                raise EOFError
            here.recv()
        except EOFError:
            self.stop()
            raise CardFailure("the process for the card did not start") from None
        self._connection = here
        return here

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(30)
        self._process = self._connection = None


def serve_card(connection: Connection) -> None:
    """The process: says that it is ready, then answers each request with an :data:`Answer`."""
    torch.zeros(1, device="cuda")
    connection.send("ready")
    while True:
        try:
            ptx, record, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_answer(ptx, record, arguments))


def _answer(ptx: str, record: LaunchRecord, arguments: Sequence[Argument]) -> Answer:
    from ptxtile.errors import PerformanceWarning
    from ptxtile.runtime.arguments import bind
    from ptxtile.runtime.executable import Executable

    failure, tensors, printed = "", {}, ""
    warnings.simplefilter("error", PerformanceWarning)  # such as a setmaxnreg that the assembler ignored
    warnings.filterwarnings("ignore", "(?s).*spill stores", PerformanceWarning)  # drawn expressions may be large
    try:
        values = [unpack(argument) for argument in arguments]
        binding = bind(record, [v.cuda() if isinstance(v, torch.Tensor) else v for v in values], device_type="cuda")
        for allocation in record.allocations:
            binding.tensors[allocation.name].zero_()
        with _Captured() as captured:
            Executable(ptx, record).launch(binding)
            torch.cuda.synchronize()
        printed = captured.text
        tensors = {name: pack(tensor.cpu()) for name, tensor in binding.tensors.items()}
    except Exception:
        failure = traceback.format_exc(limit=-4)
    return failure, not failure or _usable(), tensors, printed


def _usable() -> bool:
    try:
        torch.cuda.synchronize()
        return bool((torch.ones(4, device="cuda") == 1).all())
    except Exception:
        return False


class _Captured:
    """What anything in this process writes to standard output meanwhile, the driver's vprintf included."""

    text = ""

    def __enter__(self) -> _Captured:
        self._file = tempfile.TemporaryFile()
        ctypes.CDLL(None).fflush(None)
        self._saved = os.dup(1)
        os.dup2(self._file.fileno(), 1)
        return self

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(None).fflush(None)
        os.dup2(self._saved, 1)
        os.close(self._saved)
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace")
        self._file.close()
