"""Compiled programs kept on disk: a process that needs one that was compiled before takes its PTX and launch record.

The key is a hash of what the compiler is given and of the compiler itself: the traced program as text, which names no
places, the target, the options, LLVM's version and the source of the passes and of the emitter. So a kernel is found
again when other lines of its file have changed; the Python lines in its PTX are then those of the time when it was
compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path

from ptxtile import __version__, config
from ptxtile.compiler import Artifact, warn, warnings_of
from ptxtile.errors import Location, PerformanceWarning
from ptxtile.ir.program import Program
from ptxtile.launch_record import LaunchRecord
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.runtime import disk_cache, record_text
from ptxtile.runtime.disk_cache import DiskCache
from ptxtile.target import Target

_PROGRAM = "program.json"
_SOURCES = ("ir", "lower", "nvvm", "target", "compiler.py", "launch_record.py")


@record
class CompiledProgram:
    """``warned``: (text, file, line, column) of what the passes warned of; no file and line 0 where it has no place."""

    name: str
    target_name: str
    ptx: str
    launch: LaunchRecord
    warned: tuple[tuple[str, str, int, int], ...] = ()

    @classmethod
    def of(cls, artifact: Artifact) -> CompiledProgram:
        """Of a compile that has PTX."""
        assert artifact.ptx is not None
        warned = []
        for warning in warnings_of(artifact.program):
            place = warning.location or Location("", 0)
            warned.append((str(warning), place.file, place.line, place.column))
        return cls(artifact.program.name, artifact.target.name, artifact.ptx, artifact.launch, tuple(warned))

    def warn_again(self) -> None:
        """Issue the warnings of the compile, for the process that does without it."""
        warn(
            PerformanceWarning(text, location=Location(file, line, column) if line else None)
            for text, file, line, column in self.warned
        )


def key_of(program: Program, target: Target, options: Options) -> str:
    """What ``program`` (as traced) is found by, a hexadecimal text."""
    from ptxtile.ir.printer import print_program

    parts = (print_program(program), repr(target), repr(options), __version__, _llvm_version(), _compiler_hash())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def is_on() -> bool:
    """Whether programs are looked for and kept."""
    return _cache() is not None


_disabled = False


def disable_cache() -> None:
    """From now on this process neither looks for compiled programs on disk nor keeps any."""
    global _disabled
    _disabled = True


def enable_cache() -> None:
    """Undoes :func:`disable_cache`; PTXTILE_CACHE_MEGABYTES=0 still keeps none."""
    global _disabled
    _disabled = False


def is_cache_enabled() -> bool:
    """Whether compiled programs are looked for and kept on disk."""
    return not _disabled and config.cache_bytes() > 0


def find(key: str) -> CompiledProgram | None:
    """The program of that key; None when it is not on disk, or the user wants the compiler to run."""
    cache = _cache()
    content = cache.read(key, _PROGRAM) if cache is not None else None
    if content is None:
        return None
    try:
        fields = json.loads(content)
        launch = record_text.from_json(fields["launch"])
        warned = tuple([(text, file, line, column) for text, file, line, column in fields["warned"]])
        return CompiledProgram(fields["name"], fields["target"], fields["ptx"], launch, warned)
    except (ValueError, KeyError, TypeError) as error:
        config.logger().info("entry %s of the kernel cache cannot be read (%s) and is made anew", key, error)
        return None


def keep(key: str, compiled: CompiledProgram) -> None:
    """Keep ``compiled`` on disk, if there is a place."""
    cache = _cache()
    if cache is not None:
        fields = {
            "name": compiled.name,
            "target": compiled.target_name,
            "ptx": compiled.ptx,
            "launch": record_text.to_json(compiled.launch),
            "warned": compiled.warned,
        }
        cache.write(key, _PROGRAM, json.dumps(fields).encode())


def described(cache: DiskCache, key: str) -> tuple[str, str]:
    """Program and target of an entry, for lists."""
    content = cache.read(key, _PROGRAM)
    try:
        fields = json.loads(content or b"")
        return str(fields["name"]), str(fields["target"])
    except (ValueError, KeyError, TypeError):
        return "?", "?"


class AssemblerLogs:
    """What a driver's JIT has said about a program, kept for the times when it takes the code from its own cache and
    says nothing."""

    def __init__(self, key: str) -> None:
        self._key = key

    def find(self, assembler: str) -> str:
        cache = _cache()
        content = cache.read(self._key, f"{assembler}.log") if cache is not None else None
        return (content or b"").decode(errors="replace")

    def keep(self, assembler: str, log: str) -> None:
        cache = _cache()
        if cache is not None:
            cache.write(self._key, f"{assembler}.log", log.encode())


def _cache() -> DiskCache | None:
    """None also where the compiler has to run: its IR is to be dumped or verified."""
    if _disabled or config.dump_directory() is not None or config.verify_between_passes():
        return None
    return disk_cache.opened()


@functools.cache
def _llvm_version() -> str:
    return importlib.metadata.version("llvmlite")


@functools.cache
def _compiler_hash() -> str:
    """Of the source of what turns a traced program into PTX: no version number changes with each edit of it.

    Every process reads the some two hundred files once: with os.walk and open that takes half the time of pathlib.
    """
    root, digest = os.path.dirname(__file__), hashlib.sha256()
    for name in sorted(_source_files(root)):
        with open(os.path.join(root, name), "rb") as file:
            content = file.read()
        digest.update(f"{Path(name).as_posix()}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def _source_files(root: str) -> Iterator[str]:
    """Paths below ``root`` of the files that :data:`_SOURCES` names."""
    for part in _SOURCES:
        if part.endswith(".py"):
            yield part
        for folder, _, names in os.walk(os.path.join(root, part)):
            below = os.path.relpath(folder, root)
            yield from (os.path.join(below, name) for name in names if name.endswith(".py"))
