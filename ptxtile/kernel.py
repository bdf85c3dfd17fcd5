"""The kernel object: a family of compiled variants of one function, and the call that picks one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxtile import config
from ptxtile.compiler import Artifact, emit_ptx, lower
from ptxtile.errors import ArgumentError, PtxtileError
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.locations import without_package_frames
from ptxtile.frontend.signature import (
    ScalarSignature,
    Signature,
    TensorSignature,
    call_record,
    specialize,
    specialize_tensor,
    typical,
)
from ptxtile.frontend.specialization import Specialization, TensorSpecialization
from ptxtile.frontend.trace import learn_signature, trace
from ptxtile.ir.program import Program, Why
from ptxtile.ir.written_tensors import written_tensors
from ptxtile.launch_record import LaunchRecord
from ptxtile.lower.options import Options
from ptxtile.native.calls import CallForm, Latest, NativeCallable
from ptxtile.operators.untraced import untraced
from ptxtile.runtime.call_plan import UNFIT
from ptxtile.runtime.planned_calls import PlannedCalls
from ptxtile.target import Target
from ptxtile.target import get as get_target

if TYPE_CHECKING:
    from ptxtile.compiled_programs import CompiledProgram
    from ptxtile.export.export import Exported
    from ptxtile.profile.profiler import Profiler
    from ptxtile.runtime.arguments import Binding
    from ptxtile.runtime.executable import Executable, KeptLogs
    from ptxtile.runtime.resources import KernelResources
    from ptxtile.sim.check import Report

_CACHED_CALLS = 4096
"""Exact call patterns (shapes, strides, address classes) remembered by a kernel before the memory is cleared."""


@dataclass(frozen=True)
class Settings:
    """What a decorator says about compiling."""

    options: Options = field(default_factory=Options)
    target: str | None = None
    verbose: bool = False


def without_our_frames(error: BaseException) -> BaseException:
    """The error as the user shall see it: its traceback holds the user's lines only."""
    if isinstance(error, PtxtileError):
        return error.with_traceback(None)
    return error.with_traceback(without_package_frames(error.__traceback__))


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


class JITKernel(NativeCallable):
    """A function with its Python arguments fixed. Called with tensors and numbers, it compiles what they need and runs.

    CUDA tensors run on their card, on torch's current stream; CPU tensors in the simulator. ``latency``, ``config`` and
    ``ref_latency`` are what tuning found, where the kernel comes from it: milliseconds, and the configuration.
    """

    latency: float | None = None
    config: Mapping[str, Any] | None = None
    ref_latency: float | None = None

    def __init__(
        self,
        function: UserFunction,
        python_arguments: Mapping[str, Any],
        settings: Settings,
        outputs: tuple[str, ...] = (),
        constants: Mapping[str, int] | None = None,
    ) -> None:
        self.function = function
        self.python_arguments = dict(python_arguments)
        self.settings = settings
        self.outputs = outputs
        self.constants = dict(constants or {})
        self._variants: dict[tuple[Specialization, str], Variant] = {}
        self._calls: dict[tuple[Any, ...], Variant] = {}
        self._planned = PlannedCalls()
        self._numbers = itertools.count(1)
        self._numbered: dict[int, Variant] = {}
        self._latest_call = Latest()
        self._call_forms: dict[tuple[int | str, ...], CallForm] = {}
        self._signature_seconds = 0.0
        self._tracing = threading.RLock()  # threads that call it at the same time share one variant

    def __repr__(self) -> str:
        return f"<ptxtile kernel {self.function.function.__name__}, {len(self._variants)} variants>"

    def __deepcopy__(self, memo: Any) -> JITKernel:
        """Itself, so that modules which hold kernels can be copied."""
        return self

    @cached_property
    def signature(self) -> Signature:
        _ = self.function.rewritten  # has its own time
        started = time.perf_counter()
        signature = learn_signature(self.function, self.python_arguments, self.outputs)
        self._signature_seconds = time.perf_counter() - started
        return signature

    def adopt_signature(self, other: JITKernel) -> None:
        """Take over what ``other``, of the same function and Python arguments, has learned about its parameters."""
        self.__dict__["signature"] = other.signature
        self._signature_seconds, other._signature_seconds = other._signature_seconds, 0.0

    @cached_property
    def _call_record(self) -> LaunchRecord:
        return call_record(self.signature, self.function.function.__name__)

    # ---------------------------------------------------------------- calling

    @untraced
    def _call_checked(self, *args: Any, **kwargs: Any) -> Any:
        try:
            form = self._call_forms.get((len(args), *kwargs)) or self._form(args, kwargs)
            values = (*args, *kwargs.values())
            if kwargs:
                args, kwargs = self._positional(args, kwargs)
            return self._run(args, kwargs, self, form, values)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    __call__ = _call_checked  # calls that repeat are made in native code, which takes this place

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallForm:
        """Of a call with so many positional arguments and these keywords in this order."""
        order = list(range(len(args)))
        names = list(kwargs)
        for parameter in self.signature.inputs[len(args) :]:
            if parameter.name in kwargs:
                order.append(len(args) + names.index(parameter.name))
        form = self._call_forms[len(args), *kwargs] = CallForm(len(args), tuple(names), tuple(order))
        return form

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: NativeCallable | None = None,
        form: CallForm | None = None,
        values: tuple[Any, ...] = (),
    ) -> Any:
        """By the plan of an earlier call like this one where there is one; else, and for what a plan cannot run, with
        all checks. ``caller``, ``form``, ``values``: the call as it was written, for native code to take over."""
        found = None if kwargs else self._planned.find(args)
        if found is not None:
            plan, addresses, numbers = found
            result = plan.run(args, addresses, numbers)
            if result is not UNFIT:
                self._latest = plan.owner
                if caller is not None and form is not None:
                    caller._offer(plan, form, values, plan.owner.number, self._latest_call)
                return result
        return self._run_checked(args, kwargs)

    def _run_checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        variant, binding, device_type = self._bound(args, kwargs)
        results = variant.run(binding, device_type)
        if device_type == "cuda" and not kwargs:
            self._planned.remember(args, variant.executable(), binding, variant)
        return results

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Binding, str]:
        """The variant for a call, its arguments bound, and the type of device that they are on."""
        from ptxtile.runtime.arguments import bind
        from ptxtile.runtime.foreign_arrays import adopt

        adopted = adopt(self._call_record, args)
        args = args if adopted is None else adopted.args
        key, device_type, device = _call_key(args)
        variant = self._calls.get(key) if key is not None else None
        if variant is None:
            variant = self._variant_for(args, kwargs, device_type, device)
            if key is not None:
                if len(self._calls) >= _CACHED_CALLS:
                    self._calls.clear()
                self._calls[key] = variant
        self._latest = variant
        if adopted is not None:
            adopted.refuse_writes(self.function.function.__name__, variant.written)
        binding = bind(variant.launch_on(device_type), args, kwargs, device_type=device_type)
        if adopted is not None:
            binding = replace(binding, results=adopted.restored(binding.results))
        return variant, binding, device_type

    def check(
        self,
        *args: Any,
        seeds: int | range = 2,
        strict: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> Report:
        """What the checker finds in a call with these arguments: races, missing waits and fences, wrong counts,
        deadlocks, accesses out of bounds, uninitialised reads (:func:`ptxtile.sim.check.run.check`).

        It runs the program that the call would run, on the CPU and on copies, once for each of ``seeds`` (of that many
        where it is a number); CUDA tensors are copied to the CPU. No argument is changed. ``strict``: also tell of
        threads that hang if they come to a wait a whole phase later than others. ``progress`` is told of (blocks done,
        blocks in all) of each launch and seed.
        """
        from ptxtile.checked_calls import check_binding

        try:
            if kwargs:
                args, kwargs = self._positional(args, kwargs)
            variant, binding, _ = self._bound(args, kwargs)
            return check_binding(variant.lowered().program, binding, seeds, progress, strict)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Keyword arguments moved to their places; what does not fit is left for the argument checks to refuse."""
        names = [parameter.name for parameter in self.signature.inputs][len(args) :]
        taken = list(args)
        rest = dict(kwargs)
        for name in names:
            if name not in rest:
                break
            taken.append(rest.pop(name))
        return tuple(taken), rest

    def _variant_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device_type: str, device: int | None
    ) -> Variant:
        """Checks the call against the signature and gives the variant for its arguments, compiled or traced now."""
        from ptxtile.runtime.arguments import bind

        binding = bind(self._call_record, args, kwargs, device_type=device_type)
        values = {**self.constants, **binding.symbols}
        self._require_sizes(values, binding.tensors)
        for name, given in self.constants.items():
            if values[name] != given:
                raise ArgumentError(
                    f"the size {name} is fixed in this kernel", expected=str(given), got=str(values[name]),
                    hint="call the function itself to compile for other sizes",
                )  # fmt: skip
        specialization = specialize(
            self.signature, values, _specialize_tensors(binding.tensors),
            {name: tensor.stride() for name, tensor in binding.tensors.items()},
        )  # fmt: skip
        return self._variant(specialization, self._target(device_type, device))

    def _require_sizes(self, values: Mapping[str, int], tensors: Mapping[str, Any]) -> None:
        """ArgumentError when None was passed for a tensor whose shape gives a ``T.const`` size."""
        missing = [name for name in self.signature.constants if name not in values]
        absent = [p.name for p in self.signature.inputs if isinstance(p, TensorSignature) and p.name not in tensors]
        if missing and absent:
            raise ArgumentError(
                f"argument {absent[0]!r} of {self.function.function.__name__} is None, but its size {missing[0]} is "
                "needed", expected="a tensor", got="None",
            )  # fmt: skip

    def _target(self, device_type: str, device: int | None) -> Target:
        if self.settings.target is not None:
            return get_target(self.settings.target)
        from ptxtile.runtime.device import default_target, target_of_device

        if device_type == "cuda":
            return target_of_device(device)
        chosen = config.read("PTXTILE_TARGET")
        return get_target(chosen) if chosen else default_target()

    def _variant(self, specialization: Specialization, target: Target) -> Variant:
        key = (specialization, target.name)
        variant = self._variants.get(key)
        if variant is None:
            with self._tracing:
                variant = self._variants.get(key)
                if variant is None:
                    variant = self._variants[key] = self._trace(specialization, target)
        return variant

    def _trace(self, specialization: Specialization, target: Target) -> Variant:
        started = time.perf_counter()
        program = trace(self.function, self.python_arguments, specialization, self.signature)
        timings = {
            "rewrite": self.function.rewrite_seconds,
            "signature": self._signature_seconds,
            "trace": time.perf_counter() - started,
        }
        self.function.rewrite_seconds = self._signature_seconds = 0.0  # once, for the first variant
        variant = Variant(program, target, self.settings, timings, next(self._numbers))
        self._numbered[variant.number] = variant
        return variant

    def variant_for(self, *args: Any) -> Variant:
        """The variant that a call with these arguments takes, traced and not compiled yet."""
        try:
            _, device_type, device = _call_key(args)
            return self._variant_for(args, {}, device_type, device)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    # ---------------------------------------------------------------- looking inside

    @property
    def _latest(self) -> Variant | None:
        """The variant of the latest call, whoever made it."""
        return self._numbered.get(self._latest_call.number)

    @_latest.setter
    def _latest(self, variant: Variant) -> None:
        self._latest_call.number = variant.number

    @property
    def variant(self) -> Variant:
        """The variant of the latest call; before the first, the typical one (contiguous, aligned, apart)."""
        if self._latest is None:
            missing = [name for name in self.signature.constants if name not in self.constants]
            if missing:
                raise ArgumentError(
                    f"the size {missing[0]} of {self.function.function.__name__} is not known yet",
                    hint=f"call the kernel, or compile({', '.join(f'{name}=…' for name in missing)}); "
                    f"on the command line: {' '.join(f'-D {name}=…' for name in missing)}",
                )
            self._latest = self._variant(typical(self.signature, self.constants), self._target("cpu", None))
        return self._latest

    @property
    def artifact(self) -> Artifact:
        """The compiled program: IR at both ends, PTX, timings."""
        return self.variant.compiled()

    @property
    def tile_program(self) -> Program:
        return self.variant.tile_program

    @property
    def program(self) -> Program:
        """The lowered program."""
        return self.variant.lowered().program

    @property
    def launch(self) -> LaunchRecord:
        return self.variant.lowered().launch

    @property
    def target(self) -> Target:
        return self.variant.target

    @property
    def ptx(self) -> str:
        ptx = self.artifact.ptx
        assert ptx is not None
        return ptx

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by step."""
        return self.artifact.timings

    @property
    def resources(self) -> Mapping[str, KernelResources]:
        """Registers, spills, shared memory, largest CTA and PTX ISA of each kernel of the latest variant, by name.

        From its card where it has run or can be loaded, else from ptxas, which knows less; an error when there is
        neither. See :class:`ptxtile.runtime.resources.KernelResources`.
        """
        return self.variant.resources()

    @property
    def why(self) -> tuple[Why, ...]:
        return self.variant.lowered().why

    def get_profiler(self, tensor_supply_type: Any = None) -> Profiler:
        """What times and tries this kernel with tensors of its own making: see
        :class:`ptxtile.profile.profiler.Profiler`. ``tensor_supply_type``: a
        :class:`ptxtile.profile.TensorSupplyType`, Auto unless given."""
        from ptxtile.profile.profiler import Profiler

        return Profiler(self, tensor_supply_type)

    def get_kernel_source(self) -> str:
        """The PTX."""
        return self.ptx

    def get_host_source(self) -> str:
        """What a call does on the host, as text."""
        from ptxtile.inspect.host import render_host

        return render_host(self.launch)

    def show(self) -> None:
        """Prints the PTX."""
        print(self.ptx)

    def export_ptx(self, path: str | Path) -> None:
        Path(path).write_text(self.ptx)

    def export_llvm(self, path: str | Path) -> None:
        text = self.artifact.llvm_ir
        assert text is not None
        Path(path).write_text(text)

    def export(
        self, directory: str | Path, name: str | None = None, *, arguments: Sequence[Any] | None = None
    ) -> Exported:
        """Writes what a program without Python needs to run this kernel: PTX, LLVM IR, a cubin where one can be made
        here, a description of the launch as JSON, and a C header that launches it. See
        :func:`ptxtile.export.export.export`.

        ``arguments``: of a call; the variant that it would take is exported, whose sizes and strides are as free as its
        are (a dynamic size that is no multiple of 16, a tensor that is not contiguous). Without them the variant of the
        latest call, else that of contiguous, aligned tensors and dynamic sizes that are multiples of 16.
        """
        from ptxtile.export.export import export

        try:
            variant = self.variant if arguments is None else self.variant_for(*arguments)
            return export(variant.compiled(), directory, name)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    def scalar_parameters(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.signature.parameters if isinstance(p, ScalarSignature))


def _call_key(args: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, str, int | None]:
    """All of a call that a variant may depend on, by cheap attribute reads; then device type and index.

    None instead of a key when an argument is no torch tensor or number, and for a call without tensors.
    """
    import torch

    parts: list[Any] = []
    ranges: list[tuple[int, int]] = []
    device_type, device = "cpu", None
    cacheable = True
    for value in args:
        if type(value) is torch.Tensor or isinstance(value, torch.Tensor):
            address, nbytes = value.data_ptr() if value.layout is torch.strided else 0, _extent(value)
            parts.append(
                (value.dtype, value.shape, value.stride() if value.layout is torch.strided else (), address & 15)
            )
            ranges.append((address, address + nbytes))
            where = value.device
            if len(ranges) == 1 or (where.type == "cuda" and device_type != "cuda"):
                device_type, device = where.type, where.index  # with one card's tensor, all belong on a card
            parts.append(where)
        elif isinstance(value, (int, float)):
            parts.append(type(value))
        else:
            cacheable = False
            if device_type == "cpu" and hasattr(value, "__cuda_array_interface__"):
                device_type = "cuda"
    if len(ranges) > 1:
        parts.append(tuple(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(ranges) for b in ranges[:i]))
    if not ranges and cacheable:
        from ptxtile.runtime.device import has_card

        device_type = "cuda" if has_card() else "cpu"  # nothing says where: outputs go where work is usually done
    if device_type not in ("cpu", "cuda"):
        device_type = "cuda"
    return (tuple(parts) if cacheable and ranges else None), device_type, device


def _extent(tensor: Any) -> int:
    """Bytes from the first to behind the last element."""
    if tensor.numel() == 0 or tensor.layout.__class__.__name__ != "layout":
        return 0
    last = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    return (last + 1) * tensor.element_size()


def _specialize_tensors(tensors: Mapping[str, Any]) -> dict[str, TensorSpecialization]:
    """Each tensor's specialization, with the groups of those that overlap in memory."""
    spans = {name: (t.data_ptr(), t.data_ptr() + _extent(t)) for name, t in tensors.items()}
    groups: dict[str, int] = {}
    for position, (name, (start, stop)) in enumerate(spans.items()):
        for other, (first, last) in list(spans.items())[:position]:
            if start < last and first < stop:
                old, new = groups.get(name), groups.setdefault(other, len(groups))
                groups[name] = new
                if old is not None and old != new:
                    groups = {n: new if g == old else g for n, g in groups.items()}
    order: dict[int, int] = {}
    for group in groups.values():
        order.setdefault(group, len(order))
    return {
        name: specialize_tensor(t.shape, t.stride(), t.data_ptr(), order[groups[name]] if name in groups else None)
        for name, t in tensors.items()
    }


if config.read("PTXTILE_NVTX") == "1":  # once: a call without ranges has nothing to ask
    from ptxtile.profile import ranges

    ranges.enable(JITKernel)
