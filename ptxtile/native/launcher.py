"""The launcher of this process: its code from the disk cache, or compiled and kept there; its table; a self-test.

Made at the end of the second call of a kernel with arguments of one kind (:mod:`ptxtile.native.calls`), so that no
first launch waits for it. Code from the cache costs two milliseconds and does not import llvmlite; compiling it, once
for a machine, costs some fifty.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import struct
import sys
import threading
from typing import Any

from ptxtile import config
from ptxtile.errors import PtxtileError
from ptxtile.native import code_memory, python_facts, torch_facts
from ptxtile.native.code_memory import CodeMemory
from ptxtile.native.layout import WORD, Block, Table
from ptxtile.native.object_code import MachineCode
from ptxtile.native.python_facts import FUNCTIONS, TYPE_AT
from ptxtile.native.torch_facts import Reading
from ptxtile.runtime import disk_cache

BLOCK_NAME, CHECKED_NAME, REFUSED_NAME = sys.intern("_block"), sys.intern("_call_checked"), sys.intern("_refused")
_FILE = "launcher.code"
_SOURCES = ("emit.py", "emit_numbers.py", "emit_run.py", "layout.py", "llvm_text.py", "object_code.py")


class Launcher:
    """The launcher's code with its table. ``reading``: how torch's tensors are read."""

    def __init__(self, code: MachineCode, reading: Reading) -> None:
        self.reading = reading
        self._table = (ctypes.c_uint64 * Table.COUNT)(*_table(reading))
        self._memory = CodeMemory(code, platform.machine(), ctypes.addressof(self._table))
        self._methods: list[Any] = []
        # Classes keep methods in this code, and when the process ends a thread may still be in a launch.
        python_facts.keep_for_ever(self._table, self._memory)

    def install(self, owner: type) -> bool:
        """Calls of ``owner``'s objects go through the native code from now on (:func:`ptxtile.native.emit.call`).

        False for a class whose calls are not those of its method ``_call_checked``.
        """
        given: Any = owner
        if given.__call__ is given._call_checked:
            given.__call__ = python_facts.method(owner, "__call__", self._memory.entry, "Calls the kernel.")
            self._methods.append(given.__call__)
        return any(given.__call__ is method for method in self._methods)  # its own, or that of a class above


def _table(reading: Reading) -> list[int]:
    import torch

    words = [0] * Table.COUNT
    for place, name in FUNCTIONS.items():
        words[place] = python_facts.address_of(name)
    objects = {
        Table.NONE: None, Table.FALSE: False, Table.TENSOR_TYPE: torch.Tensor, Table.PARAMETER_TYPE: torch.nn.Parameter,
        Table.BLOCK_NAME: BLOCK_NAME, Table.CHECKED_NAME: CHECKED_NAME, Table.REFUSED_NAME: REFUSED_NAME,
        Table.IS_NEGATIVE: torch.Tensor.is_neg,
    }  # fmt: skip
    python_facts.keep_for_ever(*objects.values())
    for place, thing in objects.items():
        words[place] = id(thing)
    words[Table.VIEW], words[Table.TYPE_AT] = reading.view, TYPE_AT
    words[Table.TENSOR_AT], words[Table.KEYS_AT] = reading.tensor_at, reading.keys_at
    words[Table.NEGATIVE_KEY] = reading.negative_key
    return words


def unfit() -> str:
    """Why this process takes the way of Python; empty when it need not."""
    if sys.platform != "linux" or platform.machine() not in code_memory.MACHINES:
        return f"the machine is {sys.platform} on {platform.machine()}"
    return python_facts.unfit()


_lock = threading.Lock()
_made: Launcher | None = None
_tried = False
_reason = ""


def get() -> Launcher | None:
    """The process's launcher, made at the first call; None where there can be none, which is said once."""
    global _made, _tried
    if _tried:
        return _made
    with _lock:
        if not _tried:
            _made = _make()
            _tried = True
    return _made


def describe() -> str:
    """How repeated calls are launched, and why so."""
    return "in native code" if get() is not None else f"from Python: {_reason}"


def _make() -> Launcher | None:
    global _reason
    reason = unfit()
    reading = None if reason else torch_facts.reading()
    if not reason and reading is None:
        reason = "this torch has no DLPack exchange table"
    if reason or reading is None:
        _reason = reason
        config.logger().info("kernels are launched from Python: %s", reason)
        return None
    try:
        launcher = Launcher(code(), reading)
        check(launcher)
    except (PtxtileError, OSError, ImportError, AttributeError, RuntimeError, ValueError) as error:
        _reason = str(error).split("\n")[0]
        config.logger().warning("kernels are launched from Python, which takes longer: the native launcher cannot be "
                                "made here (%s)", error)  # fmt: skip
        return None
    return launcher


# -- the code


def code() -> MachineCode:
    """From the disk cache where it is there; else compiled, and kept."""
    cache = disk_cache.opened()
    key = _key()
    content = cache.read(key, _FILE) if cache is not None else None
    if content is not None and len(content) > WORD:
        return MachineCode(content[WORD:], struct.unpack_from("<Q", content)[0])
    made = compiled()
    if cache is not None:
        cache.write(key, _FILE, struct.pack("<Q", made.entry) + made.text)
    return made


def compiled() -> MachineCode:
    from ptxtile.native import emit, object_code

    return object_code.compile_text(emit.module(), emit.ENTRY)


@functools.cache
def _key() -> str:
    from ptxtile import __version__

    digest = hashlib.sha256()
    parts = ["launcher", __version__, importlib.metadata.version("llvmlite"), sys.version, platform.machine()]
    for name in _SOURCES:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            parts.append(file.read())
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


# -- the self-test


class _Tried:
    """A callable without a plan: what it is given comes to its checked way."""

    def __init__(self, block: int) -> None:
        self._block = block

    def _call_checked(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    __call__ = _call_checked


def check(launcher: Launcher) -> None:
    """RuntimeError unless calls without a block, with an empty one and with a plan for other arguments arrive as they
    were made."""
    owner = type("Tried", (_Tried,), {})
    launcher.install(owner)
    block = (ctypes.c_uint64 * (Block.PLANS + 1))()
    for tried in (owner(0), owner(ctypes.addressof(block))):
        if tried() != ((), {}) or tried(1, "a", b=2.5) != ((1, "a"), {"b": 2.5}):
            raise RuntimeError("its self-test failed: arguments do not arrive")
