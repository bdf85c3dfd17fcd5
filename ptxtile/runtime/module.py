"""Loading PTX (or a cubin) into a context: version checks first, the JIT's log kept and read, resource figures of
each kernel.

A loaded module stays loaded until the process ends: unloading one whose kernels may still run is not safe.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ptxtile.errors import CompileError, DriverError, LaunchError, TargetError
from ptxtile.launch_record import KernelLaunch
from ptxtile.runtime.driver import Driver
from ptxtile.target.ptx_isa import format_isa, newest_of_driver

LOG_BYTES = 64 * 1024
SHARED_WITHOUT_OPTING_IN = 48 * 1024
"""Shared memory of a CTA that needs no attribute (CUDA C++ Programming Guide, «Technical Specifications per Compute
Capability», note on dynamic shared memory)."""
PORTABLE_CLUSTER = 8
"""CTAs of a cluster that need no attribute (CUDA C++ Programming Guide, «Thread Block Clusters»)."""


class PerformanceWarning(UserWarning):
    """The assembler could not do what the compiler asked for; results are right, speed is not what it should be."""


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel takes: registers of a thread, local memory of a thread in bytes (arrays and spilled registers),
    static and dynamic shared memory of a CTA in bytes, constant memory in bytes, the largest CTA in threads."""

    registers: int
    local_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    constant_bytes: int
    max_threads: int


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module in one device's context. ``functions`` and ``resources`` by kernel name; ``log`` is what the JIT
    said."""

    handle: Any
    functions: Mapping[str, Any]
    resources: Mapping[str, KernelResources]
    log: str


def load(
    driver: Driver, device: int, image: str | bytes, launches: tuple[KernelLaunch, ...], *, line_info: bool = True
) -> LoadedModule:
    """Load ``image`` (PTX text, or the bytes of a cubin) into the current context, which is that of ``device``.

    CompileError with the JIT's log when the driver refuses it; TargetError when the PTX is newer than the driver or
    for other cards; LaunchError when a kernel wants more shared memory than the card has. ``line_info`` keeps the
    Python lines of the PTX for profilers.
    """
    if isinstance(image, str):
        check_version(image, driver.version())
        check_target(image, driver.compute_capability(device))
        image = image.encode() + b"\0"
    info, errors = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
    options = {
        "INFO_LOG_BUFFER": info,
        "INFO_LOG_BUFFER_SIZE_BYTES": LOG_BYTES,
        "ERROR_LOG_BUFFER": errors,
        "ERROR_LOG_BUFFER_SIZE_BYTES": LOG_BYTES,
        "LOG_VERBOSE": 1,
        "GENERATE_LINE_INFO": int(line_info),
    }
    result, handle = driver.load_module(image, options)
    if result != 0:
        raise _refused(driver, result, info, errors)
    functions, resources = {}, {}
    for launch in launches:
        if launch.kernel not in functions:
            functions[launch.kernel] = driver.get_function(handle, launch.kernel)
        # The driver may put off compiling a kernel until it is asked for, so the log is complete only after this.
        resources[launch.kernel] = _prepare(driver, device, functions[launch.kernel], launch)
    log = _text(info)
    for message in performance_messages(log):
        warnings.warn(f"{', '.join(functions)}: {message}", PerformanceWarning, stacklevel=2)
    return LoadedModule(handle, functions, resources, log)


def _refused(driver: Driver, result: Any, info: bytearray, errors: bytearray) -> CompileError:
    name, text = driver.describe(result)
    log = "\n".join(part for part in (_text(errors), _text(info)) if part) or "the driver gave no log"
    return CompileError(f"the driver's JIT refused the module: {name}: {text}\n{log}")


def _prepare(driver: Driver, device: int, function: Any, launch: KernelLaunch) -> KernelResources:
    """Ask for what the launch needs beyond the defaults, and read the figures."""
    static = driver.function_attribute(function, "SHARED_SIZE_BYTES")
    needed = static + launch.shared_bytes
    if needed > SHARED_WITHOUT_OPTING_IN:
        limit = driver.device_attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if needed > limit:
            raise LaunchError(
                f"kernel {launch.kernel!r} needs more shared memory than this card has",
                expected=f"at most {limit} bytes for a CTA",
                got=f"{needed} bytes ({launch.shared_bytes} dynamic, {static} static)",
            )
        driver.set_function_attribute(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", launch.shared_bytes)
    if prod(launch.cluster) > PORTABLE_CLUSTER:
        driver.set_function_attribute(function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    return KernelResources(
        registers=driver.function_attribute(function, "NUM_REGS"),
        local_bytes=driver.function_attribute(function, "LOCAL_SIZE_BYTES"),
        static_shared_bytes=static,
        dynamic_shared_bytes=launch.shared_bytes,
        constant_bytes=driver.function_attribute(function, "CONST_SIZE_BYTES"),
        max_threads=driver.function_attribute(function, "MAX_THREADS_PER_BLOCK"),
    )


# -- what the PTX asks for

_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)(\d)([af]?)\b", re.MULTILINE)


def check_version(ptx: str, driver_version: tuple[int, int]) -> None:
    """TargetError when the PTX is of a newer PTX ISA than a driver of CUDA ``driver_version`` knows.

    The driver would only say CUDA_ERROR_UNSUPPORTED_PTX_VERSION, and has no compatibility between minor versions.
    """
    found = _VERSION.search(ptx)
    if found is None:
        raise CompileError("the PTX has no .version line", got=ptx[:60] or "an empty text")
    isa = (int(found[1]), int(found[2]))
    newest = newest_of_driver(driver_version)
    if isa > newest:
        raise TargetError(
            f"the PTX is of PTX ISA {format_isa(isa)}, which this driver does not know",
            expected=f"PTX ISA {format_isa(newest)} or older (the driver supports CUDA {format_isa(driver_version)})",
            got=f".version {format_isa(isa)}",
            hint="update the driver, or compile for an architecture or feature that needs no newer PTX ISA",
        )


def check_target(ptx: str, capability: tuple[int, int]) -> None:
    """TargetError when a card of that compute capability cannot run the PTX (PTX ISA, «.target»).

    Plain PTX runs on its architecture and newer ones; ``a`` only on its own; ``f`` on its own family, the same major
    number.
    """
    found = _TARGET.search(ptx)
    if found is None:
        raise CompileError("the PTX has no .target line", got=ptx[:60])
    wanted, suffix = (int(found[1]), int(found[2])), found[3]
    runs = capability >= wanted
    if suffix == "a":
        runs = capability == wanted
    elif suffix == "f":
        runs = runs and capability[0] == wanted[0]
    if not runs:
        rule = {"a": "exactly", "f": "the same family as"}.get(suffix, "at least")
        raise TargetError(
            f"the kernel was compiled for sm_{found[1]}{found[2]}{suffix}, which this card cannot run",
            expected=f"a card of compute capability {rule} {format_isa(wanted)}",
            got=f"compute capability {format_isa(capability)}",
        )


# -- what the JIT said

_SERIALISED = re.compile(r"C751\d|wgmma\.mma_async instructions are serialized", re.IGNORECASE)
_IGNORED = re.compile(r"C750[468]|setmaxnreg.*ignored|ignor\w*.*setmaxnreg", re.IGNORECASE)


def performance_messages(log: str) -> list[str]:
    """Lines of a JIT or ptxas log that say that wgmma was serialised or setmaxnreg ignored, each with what it means.

    C7510 to C7519 are ptxas's reasons for serialising wgmma, C7504, C7506 and C7508 those for ignoring setmaxnreg.
    """
    messages = []
    for line in log.splitlines():
        if _SERIALISED.search(line):
            messages.append(f"the assembler made asynchronous wgmma instructions wait for each other: {line.strip()}")
        elif _IGNORED.search(line):
            messages.append(f"the assembler ignored setmaxnreg: {line.strip()}")
    return messages


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0", 1)[0].decode(errors="replace").strip()


def to_cubin(driver: Driver, device: int, ptx: str) -> bytes:
    """The machine code that the driver's JIT makes of ``ptx`` for ``device``, whose context is current.

    CompileError with the log when it refuses.
    """
    check_version(ptx, driver.version())
    check_target(ptx, driver.compute_capability(device))
    errors = bytearray(LOG_BYTES)
    options = {"ERROR_LOG_BUFFER": errors, "ERROR_LOG_BUFFER_SIZE_BYTES": LOG_BYTES, "GENERATE_LINE_INFO": 1}
    try:
        return driver.link(ptx.encode() + b"\0", options)
    except DriverError as error:
        raise CompileError(f"the driver's JIT refused the module: {error.message}\n{_text(errors)}") from error
