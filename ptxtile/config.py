"""Every environment variable that ptxtile reads, in one place.

Values are read when asked for, so that a test or a notebook can change them; nothing is cached at import.
"""

from __future__ import annotations

import logging
import os
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
        "where the disk cache, once there is one, keeps compiled kernels; default: the user's cache folder",
    ),
    Variable("PTXTILE_DUMP", "", "a folder: the IR after each pass, the LLVM IR and the PTX are written there"),
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


def logger() -> logging.Logger:
    """The logger ``ptxtile``. Where PTXTILE_LOG is set, at its level and with messages on standard error."""
    log = logging.getLogger("ptxtile")
    if is_set("PTXTILE_LOG"):
        log.setLevel(logging.getLevelNamesMapping().get(read("PTXTILE_LOG").upper(), logging.WARNING))
        if not log.handlers:
            log.addHandler(logging.StreamHandler())
    return log


def cache_directory() -> Path:
    """Where compiled kernels live on disk."""
    chosen = read("PTXTILE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("ptxtile"))


def dump_directory() -> Path | None:
    chosen = read("PTXTILE_DUMP")
    return Path(chosen) if chosen else None


def verify_between_passes() -> bool:
    return read("PTXTILE_VERIFY") == "1"
