"""One compiled specialization of a kernel, and the settings that it is compiled with."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ptxtile import config
from ptxtile.compiler import Artifact, emit_ptx, lower
from ptxtile.ir.program import Program
from ptxtile.ir.written_tensors import written_tensors
from ptxtile.launch_record import LaunchRecord
from ptxtile.lower.options import Options
from ptxtile.target import Target

if TYPE_CHECKING:
    from ptxtile.compiled_programs import CompiledProgram
    from ptxtile.runtime.arguments import Binding
    from ptxtile.runtime.executable import Executable, KeptLogs
    from ptxtile.runtime.resources import KernelResources


@dataclass(frozen=True)
class Settings:
    """What a decorator says about compiling."""

    options: Options = field(default_factory=Options)
    target: str | None = None
    verbose: bool = False


class Variant:
    """One compiled specialization. PTX is made when it is first needed; the simulator does without."""

    def __init__(
        self, tile_program: Program, target: Target, settings: Settings, timings: dict[str, float], number: int
    ) -> None:
        self.tile_program = tile_program
        self.number = number  # of its kernel's variants, from 1
        self.target = target
        self.settings = settings
        self.trace_timings = timings
        self._lowered: Artifact | None = None
        self._compiled: Artifact | None = None
        self._executable: Executable | None = None
        self._resources: Mapping[str, KernelResources] | None = None
        self._lock = threading.RLock()  # threads that need it at the same time share one compile

    def lowered(self) -> Artifact:
        """At least lowered to the gpu stage."""
        with self._lock:
            if self._compiled is not None:
                return self._compiled
            if self._lowered is None:
                artifact = lower(self.tile_program, self.target, self.settings.options)
                self._lowered = replace(artifact, timings=self.trace_timings | artifact.timings)
            return self._lowered

    def compiled(self) -> Artifact:
        """With PTX."""
        with self._lock:
            if self._compiled is None:
                artifact = self._compiled = emit_ptx(self.lowered())
                if self.settings.verbose:
                    config.logger().warning(
                        "compiled %s for %s in %.1f ms", self.tile_program.name, self.target.name,
                        1e3 * sum(artifact.timings.values()),
                    )  # fmt: skip
            return self._compiled

    def executable(self) -> Executable:
        """What the driver loads and launches; made when first needed, of what an earlier process has compiled where
        that is kept on disk."""
        with self._lock:
            if self._executable is None:
                self._executable = self._make_executable()
            return self._executable

    def _make_executable(self) -> Executable:
        from ptxtile import compiled_programs
        from ptxtile.runtime.executable import Executable

        if not compiled_programs.is_on():
            made = compiled_programs.CompiledProgram.of(self.compiled())
            return Executable(made.ptx, made.launch, self.target.name)
        key = compiled_programs.key_of(self.tile_program, self.target, self.settings.options)
        found = compiled_programs.find(key)
        if found is None:
            found = compiled_programs.CompiledProgram.of(self.compiled())
            compiled_programs.keep(key, found)
        elif self._compiled is None and self._lowered is None:
            found.warn_again()
            if self.settings.verbose:
                config.logger().warning("took %s for %s from disk", self.tile_program.name, self.target.name)
        return Executable(found.ptx, found.launch, self.target.name, logs=compiled_programs.AssemblerLogs(key))

    @property
    def is_compiled(self) -> bool:
        """Whether a call on a card would find its PTX made."""
        return self._compiled is not None or self._executable is not None

    def adopt(self, made: CompiledProgram, logs: KeptLogs | None = None) -> None:
        """Take over what another process has compiled of the same program, unless it is there already. ``logs``: what
        was said when it was assembled."""
        from ptxtile.runtime.executable import Executable

        with self._lock:
            if self._executable is None:
                self._executable = Executable(made.ptx, made.launch, self.target.name, logs=logs)

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the tensors of a call that it may write, other than those that it makes."""
        return written_tensors(self.tile_program)

    def launch_on(self, device_type: str) -> LaunchRecord:
        """The host part of a call on such a device."""
        return self.executable().record if device_type == "cuda" else self.lowered().launch

    def resources(self) -> Mapping[str, KernelResources]:
        """What each kernel takes, by name: of the card that it is loaded on, else of a card that can run it, else of
        ptxas. ToolMissing when there is neither."""
        if self._resources is None:
            from ptxtile.inspect import machine_code
            from ptxtile.runtime.device import card_for

            loaded = self._executable.devices if self._executable is not None else ()
            device = loaded[0] if loaded else card_for(self.target)
            if device is not None:
                self._resources = self.executable().resources(device)
            else:
                artifact = self.compiled()
                assert artifact.ptx is not None
                self._resources, _ = machine_code.resources(artifact.ptx, artifact.launch, self.target.name)
        return self._resources

    def run(self, binding: Binding, device_type: str) -> Any:
        """Runs the bound call on the card or in the simulator; gives its results."""
        if device_type == "cuda":
            return self.executable()(binding)
        if not binding.is_empty:
            from ptxtile import sim

            sim.run(self.lowered().program, binding.tensors, binding.scalars)
        return binding.results
