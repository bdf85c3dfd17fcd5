"""Machine code in memory that can be run: never writable and executable at once.

The code is written into an anonymous file in memory, and that is mapped to be read and run only. The kernel then sees
to the instruction cache, which aarch64 does not keep in step with memory by itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import Any

from ptxtile.native.object_code import MachineCode

_ALIGNMENT = 64

MACHINES = ("x86_64", "aarch64")


def thunk(machine: str, table: int, distance: int) -> bytes:
    """The code that calls a function with ``table`` behind the four arguments that it is called with itself: puts the
    table into the register of a function's fifth parameter, and jumps. ``distance``: from its start to the function,
    bytes.

    x86-64 (System V ABI, 3.2.3): movabs r8, table; jmp function. aarch64 (AAPCS64, 6.4): ldr x4, table; b function;
    then the table's word.
    """
    if machine == "x86_64":
        return b"\x49\xb8" + struct.pack("<Q", table) + b"\xe9" + struct.pack("<i", distance - 15)
    jump = 0x14000000 | ((distance - 4) >> 2 & 0x3FFFFFF)
    return struct.pack("<IIQ", 0x58000044, jump, table)


class CodeMemory:
    """``code``, mapped, and a thunk for ``table`` at :attr:`entry`. OSError where the system maps no code."""

    def __init__(self, code: MachineCode, machine: str, table: int) -> None:
        thunk_at = -(-len(code.text) // _ALIGNMENT) * _ALIGNMENT
        self._map, start = mapped(code.text.ljust(thunk_at, b"\0") + thunk(machine, table, code.entry - thunk_at))
        self.entry = start + thunk_at


def mapped(content: bytes) -> tuple[mmap.mmap, int]:
    """``content`` in memory that can be read and run, for as long as the mapping lives, and its address."""
    descriptor = os.memfd_create("ptxtile launcher", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        made = mmap.mmap(descriptor, len(content), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(descriptor)
    return made, _address_of(made)


def _address_of(mapped: mmap.mmap) -> int:
    """Of a mapping that cannot be written, which ctypes' own way refuses."""
    holder = _Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, get.restype = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int), ctypes.c_int
    release.argtypes, release.restype = (ctypes.POINTER(_Buffer),), None
    get(mapped, ctypes.byref(holder), 0)
    address: Any = holder.buf
    release(ctypes.byref(holder))
    return int(address)


class _Buffer(ctypes.Structure):
    """Py_buffer (CPython, «Buffer Protocol»)."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip
