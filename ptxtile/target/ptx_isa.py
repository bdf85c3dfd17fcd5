"""PTX ISA versions: which exist, which architecture knows which, and what a driver accepts.

LLVM ends the process when it is given an architecture and a PTX ISA version that do not go together, so every pair is
checked here first.
"""

from __future__ import annotations

from ptxtile.errors import TargetError
from ptxtile.target.description import Target

ISA_OF_CUDA: dict[tuple[int, int], tuple[int, int]] = {
    (11, 0): (7, 0), (11, 1): (7, 1), (11, 2): (7, 2), (11, 3): (7, 3), (11, 4): (7, 4),
    (11, 5): (7, 5), (11, 6): (7, 6), (11, 7): (7, 7), (11, 8): (7, 8), (12, 0): (8, 0),
    (12, 1): (8, 1), (12, 2): (8, 2), (12, 3): (8, 3), (12, 4): (8, 4), (12, 5): (8, 5),
    (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7), (12, 9): (8, 8), (13, 0): (9, 0),
}  # fmt: skip
"""CUDA version → PTX ISA version (PTX ISA, «Release Notes»: table «PTX Release History»)."""

VERSIONS: tuple[tuple[int, int], ...] = tuple(sorted(set(ISA_OF_CUDA.values())))
"""The versions that can be asked for: all of them are known to LLVM 22's NVPTX target."""


def format_isa(isa: tuple[int, int]) -> str:
    return f"{isa[0]}.{isa[1]}"


def check_pair(target: Target, isa: tuple[int, int]) -> None:
    """TargetError unless PTX ISA ``isa`` exists and knows ``target``."""
    if isa not in VERSIONS:
        known = ", ".join(format_isa(version) for version in VERSIONS)
        raise TargetError("unknown PTX ISA version", expected=f"one of {known}", got=_shown(isa))
    if isa < target.minimum_ptx_isa:
        raise TargetError(
            f"PTX ISA {format_isa(isa)} does not know {target.name}",
            expected=f"PTX ISA {format_isa(target.minimum_ptx_isa)} or newer",
            got=format_isa(isa),
        )


def _shown(isa: object) -> str:
    return ".".join(str(part) for part in isa) if isinstance(isa, tuple) else repr(isa)


def newest_of_driver(cuda_version: tuple[int, int]) -> tuple[int, int]:
    """The newest PTX ISA that a driver of CUDA ``cuda_version`` (cuDriverGetVersion) accepts.

    A driver newer than the table accepts all of it. TargetError for a driver older than CUDA 11.0.
    """
    usable = [isa for cuda, isa in ISA_OF_CUDA.items() if cuda <= cuda_version]
    if not usable:
        raise TargetError(
            "the driver is too old", expected="CUDA 11.0 or newer", got=f"CUDA {cuda_version[0]}.{cuda_version[1]}"
        )
    return max(usable)
