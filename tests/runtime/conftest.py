"""The native launcher with a stand-in for the driver."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from ptxtile.native import launcher


class Stream:
    """torch's current stream, for native code: ``value`` + the card's number, or no answer where ``fails``."""

    def __init__(self) -> None:
        self.value, self.fails = 0x5150, False
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        self._function = kind(self._tell)
        self.address: Any = ctypes.cast(self._function, ctypes.c_void_p).value

    def _tell(self, device_type: int, device: int, out: int) -> int:
        assert device_type == 2  # kDLCUDA (dlpack.h)
        ctypes.c_uint64.from_address(out).value = self.value + device
        return -1 if self.fails else 0


@pytest.fixture
def native_stream(monkeypatch) -> Stream:
    """Native code is on, and asks this for the stream."""
    monkeypatch.setenv("PTXTILE_LAUNCHER", "native")
    made = launcher.get()
    assert made is not None
    stream = Stream()
    monkeypatch.setattr(made, "reading", replace(made.reading, stream=stream.address))
    return stream
