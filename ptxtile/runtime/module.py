"""Loading PTX (or a cubin) into a context: version checks first, the JIT's log kept and read, resource figures of
each kernel.

A loaded module stays loaded until the process ends: unloading one whose kernels may still run is not safe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from ptxtile.errors import CompileError, DriverError, LaunchError, TargetError
from ptxtile.launch_record import KernelLaunch
from ptxtile.records import record
from ptxtile.runtime import jit_log, performance_warnings
from ptxtile.runtime.driver import Driver
from ptxtile.runtime.jit_log import FunctionFigures
from ptxtile.runtime.resources import KernelResources
from ptxtile.target.ptx_isa import format_isa, newest_of_driver

LOG_BYTES = 64 * 1024
SHARED_WITHOUT_OPTING_IN = 48 * 1024
"""Shared memory of a CTA that needs no attribute (CUDA C++ Programming Guide, «Technical Specifications per Compute
Capability», note on dynamic shared memory)."""
PORTABLE_CLUSTER = 8
"""CTAs of a cluster that need no attribute (CUDA C++ Programming Guide, «Thread Block Clusters»)."""


@record
class LoadedModule:
    """A module in one device's context. ``functions`` and ``resources`` by kernel name; ``log`` is what the JIT
    said."""

    handle: Any
    functions: Mapping[str, Any]
    resources: Mapping[str, KernelResources]
    log: str


def load(
    driver: Driver,
    device: int,
    ptx: str,
    launches: tuple[KernelLaunch, ...],
    *,
    cubin: bytes | None = None,
    line_info: bool = True,
    known_log: str = "",
) -> LoadedModule:
    """Load ``ptx``, or the ``cubin`` that was made of it, into the current context, which is that of ``device``.

    While this thread captures a stream (CUDA graphs), drivers of CUDA 12.3 and newer can load all the same, outside of
    the graph; where the driver refuses, a DriverError says what to do. CompileError with the JIT's log when the driver
    refuses the module; TargetError when the PTX is newer than the driver or for other cards; LaunchError when a kernel
    wants more shared memory than the card has. A PerformanceWarning for each thing that the JIT could not do as told.
    ``line_info`` keeps the Python lines of the PTX for profilers.
    ``known_log``: what it said earlier, for a driver that takes the code from its own cache and says nothing.
    """
    if cubin is None:
        check_version(ptx, driver.version())
        check_target(ptx, driver.compute_capability(device))
    info, errors = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
    options = {
        "INFO_LOG_BUFFER": info,
        "INFO_LOG_BUFFER_SIZE_BYTES": LOG_BYTES,
        "ERROR_LOG_BUFFER": errors,
        "ERROR_LOG_BUFFER_SIZE_BYTES": LOG_BYTES,
        "LOG_VERBOSE": 1,
        "GENERATE_LINE_INFO": int(line_info),
    }
    with driver.captures_unharmed():
        result, handle = driver.load_module(ptx.encode() + b"\0" if cubin is None else cubin, options)
        if result != 0:
            raise _refused(driver, result, info, errors)
        # The driver may put off compiling a kernel until it is asked for, so the log is complete only after this, and
        # nothing is left to load while a launch is captured.
        functions = {launch.kernel: driver.get_function(handle, launch.kernel) for launch in launches}
        for launch in launches:
            _prepare(driver, device, functions[launch.kernel], launch)
    text = _text(info) or known_log
    log = jit_log.parse(text)
    isa = isa_of(ptx)
    resources = {
        launch.kernel: _resources(driver, functions[launch.kernel], launch, log.functions.get(launch.kernel), isa)
        for launch in launches
    }
    performance_warnings.warn(log, ptx, tuple(functions))
    return LoadedModule(handle, functions, resources, text)


CAPTURE_ERRORS = range(900, 909)
"""CUresult values for calls that a stream capture does not allow (CUDA driver API, «CUresult»)."""


def assembler_of(driver: Driver, device: int) -> str:
    """Whose JIT makes the code of ``device``: architecture of the card and CUDA version of the driver, a part of a file
    name."""
    return f"sm_{''.join(map(str, driver.compute_capability(device)))}-{format_isa(driver.version())}"


def _refused(driver: Driver, result: Any, info: bytearray, errors: bytearray) -> CompileError | DriverError:
    name, text = driver.describe(result)
    if int(result) in CAPTURE_ERRORS:
        return DriverError(
            f"a kernel cannot be loaded while a CUDA graph is captured: {name} ({int(result)}): {text}",
            hint="call it once before the capture, with arguments of the same kind",
        )
    log = "\n".join(part for part in (_text(errors), _text(info)) if part) or "the driver gave no log"
    return CompileError(f"the driver's JIT refused the module: {name}: {text}\n{log}")


def _prepare(driver: Driver, device: int, function: Any, launch: KernelLaunch) -> None:
    """Ask for what the launch needs beyond the defaults."""
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


def _resources(
    driver: Driver, function: Any, launch: KernelLaunch, assembled: FunctionFigures | None, isa: tuple[int, int]
) -> KernelResources:
    """The driver's figures of a loaded function; spills are only in the log of the JIT that ``assembled`` it."""
    return KernelResources(
        registers=driver.function_attribute(function, "NUM_REGS"),
        local_bytes=driver.function_attribute(function, "LOCAL_SIZE_BYTES"),
        spill_stores=assembled.spill_stores if assembled else None,
        spill_loads=assembled.spill_loads if assembled else None,
        static_shared_bytes=driver.function_attribute(function, "SHARED_SIZE_BYTES"),
        dynamic_shared_bytes=launch.shared_bytes,
        threads=prod(launch.block),
        ptx_isa=isa,
        constant_bytes=driver.function_attribute(function, "CONST_SIZE_BYTES"),
        max_threads=driver.function_attribute(function, "MAX_THREADS_PER_BLOCK"),
    )


# -- what the PTX asks for

_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(sm_\d+[af]?)\b", re.MULTILINE)
_NAME = re.compile(r"sm_(\d+)(\d)([af]?)")


def isa_of(ptx: str) -> tuple[int, int]:
    """The PTX ISA version that a PTX text asks for. CompileError when it has no ``.version``."""
    found = _VERSION.search(ptx)
    if found is None:
        raise CompileError("the PTX has no .version line", got=ptx[:60] or "an empty text")
    return int(found[1]), int(found[2])


def check_version(ptx: str, driver_version: tuple[int, int]) -> None:
    """TargetError when the PTX is of a newer PTX ISA than a driver of CUDA ``driver_version`` knows.

    The driver would only say CUDA_ERROR_UNSUPPORTED_PTX_VERSION, and has no compatibility between minor versions.
    """
    isa = isa_of(ptx)
    newest = newest_of_driver(driver_version)
    if isa > newest:
        raise TargetError(
            f"the PTX is of PTX ISA {format_isa(isa)}, which this driver does not know",
            expected=f"PTX ISA {format_isa(newest)} or older (the driver supports CUDA {format_isa(driver_version)})",
            got=f".version {format_isa(isa)}",
            hint="update the driver, or compile for an architecture or feature that needs no newer PTX ISA",
        )


def runs_on(target_name: str, capability: tuple[int, int]) -> bool:
    """Whether a card of that compute capability can run PTX for ``target_name`` (PTX ISA, «.target»).

    Plain PTX runs on its architecture and newer ones; ``a`` only on its own; ``f`` on its own family, the same major
    number.
    """
    found = _NAME.fullmatch(target_name)
    if found is None:
        return False
    wanted = (int(found[1]), int(found[2]))
    if found[3] == "a":
        return capability == wanted
    return capability >= wanted and (found[3] != "f" or capability[0] == wanted[0])


def check_target(ptx: str, capability: tuple[int, int]) -> None:
    """TargetError when a card of that compute capability cannot run the PTX."""
    found = _TARGET.search(ptx)
    if found is None:
        raise CompileError("the PTX has no .target line", got=ptx[:60])
    if not runs_on(found[1], capability):
        name = _NAME.fullmatch(found[1])
        assert name is not None
        rule = {"a": "exactly", "f": "the same family as"}.get(name[3], "at least")
        raise TargetError(
            f"the kernel was compiled for {found[1]}, which this card cannot run",
            expected=f"a card of compute capability {rule} {name[1]}.{name[2]}",
            got=f"compute capability {format_isa(capability)}",
        )


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
