"""The kernel object: a family of compiled variants of one function, and the call that picks one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxtile import call_keys, config
from ptxtile.compiler import Artifact
from ptxtile.errors import ArgumentError
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.locations import without_our_frames
from ptxtile.frontend.signature import (
    ScalarSignature,
    Signature,
    TensorSignature,
    call_record,
    specialize,
    typical,
)
from ptxtile.frontend.specialization import Specialization
from ptxtile.frontend.trace import learn_signature, trace
from ptxtile.ir.program import Program, Why
from ptxtile.launch_record import LaunchRecord
from ptxtile.native.calls import CallForm, Latest, NativeCallable
from ptxtile.operators.user_calls import user_call
from ptxtile.runtime.call_plan import UNFIT
from ptxtile.runtime.planned_calls import PlannedCalls
from ptxtile.target import Target
from ptxtile.target import get as get_target
from ptxtile.variant import Settings, Variant

if TYPE_CHECKING:
    from ptxtile.export.export import Exported
    from ptxtile.profile.profiler import Profiler
    from ptxtile.runtime.arguments import Binding
    from ptxtile.runtime.resources import KernelResources
    from ptxtile.sim.check import Report

_CACHED_CALLS = 4096
"""Exact call patterns (shapes, strides, address classes) remembered by a kernel before the memory is cleared."""


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

    @user_call
    def _call_checked(self, *args: Any, **kwargs: Any) -> Any:
        form = self._call_forms.get((len(args), *kwargs)) or self._form(args, kwargs)
        values = (*args, *kwargs.values())
        if kwargs:
            args, kwargs = self._positional(args, kwargs)
        return self._run(args, kwargs, self, form, values)

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
        key, device_type, device = call_keys.call_key(args)
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
            self.signature, values, call_keys.specialize_tensors(binding.tensors),
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
            _, device_type, device = call_keys.call_key(args)
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

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The PTX. ``kernel_only`` is accepted for TileLang's sake: what a call does on the host is
        :meth:`get_host_source`."""
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


if config.read("PTXTILE_NVTX") == "1":  # once: a call without ranges has nothing to ask
    from ptxtile.profile import ranges

    ranges.enable(JITKernel)
