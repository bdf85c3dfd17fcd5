"""Every environment variable that ptxtile reads, in one place.

Values are read when asked for, so that a test or a notebook can change them; nothing is cached at import.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ptxtile.records import record


@record
class Variable:
    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "PTXTILE_CACHE_DIR",
        "",
        "where compiled kernels are kept on disk; default: ptxtile in the user's cache folder (XDG_CACHE_HOME)",
    ),
    Variable("PTXTILE_CACHE_MEGABYTES", "1024", "what the compiled kernels may take on disk; 0: none are kept"),
    Variable("PTXTILE_DUMP", "", "a folder: the IR after each pass, the LLVM IR and the PTX are written there"),
    Variable(
        "PTXTILE_LAUNCHER", "native", "python: each launch is made from Python, never by the launcher in native code"
    ),
    Variable("PTXTILE_NVTX", "0", "1 puts each call of a kernel into an NVTX range of its name, for profilers"),
    Variable(
        "PTXTILE_SIM", "run", "check: each simulated call is checked for races, deadlocks and their kin before it runs"
    ),
    Variable("PTXTILE_TARGET", "", "architecture to compile for when no card says so, such as sm_90a"),
    Variable("PTXTILE_LOG", "warning", "level of the logger 'ptxtile': debug, info, warning or error"),
    Variable("PTXTILE_VERIFY", "0", "1 verifies the IR after each pass (tests always do)"),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


def read(name: str) -> str:
    """The value of a variable of the table; an unknown name is a mistake of ours (KeyError)."""
    return os.environ.get(name, _BY_NAME[name].default)


def is_set(name: str) -> bool:
    """Whether the environment says anything about a variable of the table."""
    return _BY_NAME[name].name in os.environ


def set_log_level(level: str | int) -> None:
    """The level of the logger ``ptxtile``, a name ("INFO") or a number of :mod:`logging`, with messages on standard
    error. ValueError for another name."""
    log = logging.getLogger("ptxtile")
    log.setLevel(level.upper() if isinstance(level, str) else level)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def logger() -> logging.Logger:
    """The logger ``ptxtile``. Where PTXTILE_LOG is set, at its level and with messages on standard error."""
    log = logging.getLogger("ptxtile")
    if is_set("PTXTILE_LOG"):
        log.setLevel(logging.getLevelNamesMapping().get(read("PTXTILE_LOG").upper(), logging.WARNING))
        if not log.handlers:
            log.addHandler(logging.StreamHandler())
    return log


def cache_directory() -> Path:
    """Where compiled kernels live on disk: XDG Base Directory Specification, and its likes on other systems."""
    chosen = read("PTXTILE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ptxtile" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ptxtile"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "ptxtile"


def cache_bytes() -> int:
    """What compiled kernels may take on disk; 0 where none shall be kept, also for what is no number."""
    try:
        return max(0, int(float(read("PTXTILE_CACHE_MEGABYTES")) * 2**20))
    except (ValueError, OverflowError):
        return 0


def dump_directory() -> Path | None:
    chosen = read("PTXTILE_DUMP")
    return Path(chosen) if chosen else None


def verify_between_passes() -> bool:
    return read("PTXTILE_VERIFY") == "1"
