"""``@ptxtile.jit`` in the eager form: a call finds the kernel for its Python arguments, and runs it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, PtxtileError, TraceError
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.locations import without_our_frames
from ptxtile.frontend.trace import runtime_parameters
from ptxtile.kernel import JITKernel
from ptxtile.native.calls import CallForm, NativeCallable
from ptxtile.operators.user_calls import user_call
from ptxtile.variant import Settings

if TYPE_CHECKING:
    from ptxtile.sim.check import Report


def frozen(value: Any) -> Any:
    """A hashable stand-in for a Python argument; type and value both count (1, 1.0 and True are different)."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(frozen, value))
    if isinstance(value, dict):
        return ("dict", *((frozen(k), frozen(v)) for k, v in value.items()))
    if isinstance(value, (set, frozenset)):
        return ("set", frozenset(map(frozen, value)))
    if type(value) is float:
        return (float, value.hex())  # 0.0 is equal to -0.0, and no NaN to another
    try:
        hash(value)
    except TypeError:
        return (type(value).__name__, id(value))
    return (type(value), value)


class JITFunction(NativeCallable):
    """A function in the eager form: its tensors are annotated in its body, and a call compiles and runs it."""

    def __init__(self, function: UserFunction, settings: Settings) -> None:
        self.function = function
        self.settings = settings
        self._kernels: dict[Any, JITKernel] = {}
        self._keep: list[Any] = []
        self._lock = threading.RLock()
        self._names: tuple[tuple[str, bool, Any], ...] | None = None
        self._forms: dict[tuple[int | str, ...], _CallForm] = {}
        update_wrapper(self, function.function)

    @user_call
    def _call_checked(self, *args: Any, **kwargs: Any) -> Any:
        form = self._forms.get((len(args), *kwargs))
        if form is None:
            form = self._forms[len(args), *kwargs] = self._form(args, kwargs)
        values = (*args, *kwargs.values(), *form.defaults)
        kernel, runtime = form.split(values, args, kwargs)
        return kernel._run(runtime, {}, self, form.form, values)

    __call__ = _call_checked  # calls that repeat are made in native code, which takes this place

    def __reduce__(self) -> str:
        """Pickled by name, as functions are: a worker process imports its module, and finds it there."""
        return self.function.function.__qualname__

    def check(
        self,
        *args: Any,
        seeds: int | range = 2,
        strict: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> Report:
        """What the checker finds in a call with these arguments: see :meth:`ptxtile.kernel.JITKernel.check`."""
        try:
            form = self._form(args, kwargs)
            kernel, runtime = form.split((*args, *kwargs.values(), *form.defaults), args, kwargs)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__
        return kernel.check(*runtime, seeds=seeds, strict=strict, progress=progress)

    def kernel_for(self, *args: Any, **kwargs: Any) -> tuple[JITKernel, tuple[Any, ...]]:
        """The kernel that a call with these arguments runs, and those of them that it passes on to it."""
        try:
            form = self._form(args, kwargs)
            return form.split((*args, *kwargs.values(), *form.defaults), args, kwargs)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The PTX of the kernel that a call with these arguments runs; without tensors, as :meth:`compile` makes it."""
        names = [name for name, _, _ in self._parameters()]
        return self.compile(**dict(zip(names, args, strict=False)), **kwargs).get_kernel_source()

    @property
    def tensor_parameters(self) -> tuple[str, ...]:
        """The parameters that calls pass at run time: tensors and numbers that are declared."""
        return tuple(name for name, runtime, _ in self._parameters() if runtime)

    def compile(self, **arguments: Any) -> JITKernel:
        """A kernel without a call. ``arguments``: values of ``T.const`` sizes and Python arguments, by name.

        Tensor arguments may be given too; then sizes are solved from them.
        """
        try:
            kernel = self.specialize(**arguments)
            kernel.variant.compiled()
            return kernel
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    def par_compile(
        self, configs: Iterable[Mapping[str, Any]], num_workers: int | None = None, ignore_error: bool = False
    ) -> list[JITKernel | PtxtileError]:
        """:meth:`compile` for several arguments by name, side by side: see :func:`ptxtile.compile_many`."""
        from ptxtile.tune.compile_many import compile_many

        makers = [lambda given=given: self.specialize(**given) for given in configs]
        return compile_many(makers, workers=num_workers, ignore_error=ignore_error)

    def specialize(self, **arguments: Any) -> JITKernel:
        """What :meth:`compile` gives, before anything of it is traced or compiled."""
        names = self._parameters()
        python = {name: arguments[name] for name, runtime, _ in names if not runtime and name in arguments}
        sizes = {name: value for name, value in arguments.items() if name not in {n for n, _, _ in names}}
        kernel = self._kernel(self._with_defaults(python))
        unknown = [name for name in sizes if name not in kernel.signature.constants]
        if unknown:
            raise ArgumentError(
                f"{self.function.function.__name__} has no size or argument {unknown[0]!r}",
                expected=", ".join((*kernel.signature.constants, *(n for n, runtime, _ in names if not runtime)))
                or "none",
                got=unknown[0],
            )
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ArgumentError(
                    f"the size {name} of {self.function.function.__name__}", expected="an integer ≥ 0", got=repr(value)
                )
        fixed = JITKernel(self.function, kernel.python_arguments, self.settings, constants=sizes)
        fixed.adopt_signature(kernel)
        tensors = [arguments[name] for name, runtime, _ in names if runtime and name in arguments]
        if tensors:
            import torch

            device = next((t.device for t in tensors if isinstance(t, torch.Tensor)), torch.device("cpu"))
            fixed._latest = fixed._variant_for(tuple(tensors), {}, device.type, device.index)
        return fixed

    def _parameters(self) -> tuple[tuple[str, bool, Any], ...]:
        """(name, whether calls pass it at run time, default) of each parameter."""
        if self._names is None:
            runtime = set(runtime_parameters(self.function))
            self._names = tuple(
                (name, name in runtime, parameter.default)
                for name, parameter in self.function.python_signature.parameters.items()
            )
            for name, parameter in self.function.python_signature.parameters.items():
                if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    raise TraceError(
                        f"the parameter *{name} of {self.function.function.__name__}",
                        location=self.function.rewritten.location,
                        expected="named parameters",
                    )  # fmt: skip
        return self._names

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CallForm:
        """How calls with as many positional arguments and the same keywords in the same order are taken apart.
        ArgumentError when they do not fit the parameters."""
        names = self._parameters()
        if len(args) > len(names):
            raise ArgumentError(
                f"{self.function.function.__name__}: too many arguments",
                expected=f"at most {len(names)}",
                got=str(len(args)),
            )
        keywords = {name: len(args) + position for position, name in enumerate(kwargs)}
        runtime: list[int] = []
        python: list[tuple[str, int]] = []
        defaults: list[Any] = []
        used = 0
        for position, (name, at_runtime, default) in enumerate(names):
            place = position
            if position < len(args):
                if name in kwargs:
                    raise ArgumentError(f"{self.function.function.__name__}: argument {name!r} is given twice")
            elif name in kwargs:
                place = keywords[name]
                used += 1
            elif default is not inspect.Parameter.empty:
                place = len(args) + len(kwargs) + len(defaults)
                defaults.append(default)
            else:
                raise ArgumentError(
                    f"{self.function.function.__name__}: argument {name!r} is missing",
                    expected=", ".join(n for n, _, _ in names), got=f"{len(args)} positional and {list(kwargs)}",
                )  # fmt: skip
            if at_runtime:
                runtime.append(place)
            else:
                python.append((name, place))
        if used != len(kwargs):
            unknown = next(name for name in kwargs if name not in {n for n, _, _ in names})
            raise ArgumentError(
                f"{self.function.function.__name__} has no argument {unknown!r}",
                expected=", ".join(n for n, _, _ in names), got=unknown,
            )  # fmt: skip
        places = tuple([place for _, place in python])
        form = CallForm(len(args), tuple(kwargs), tuple(runtime), places)
        return _CallForm(self, form, tuple([name for name, _ in python]), tuple(defaults))

    def _with_defaults(self, python: dict[str, Any]) -> dict[str, Any]:
        result = dict(python)
        for name, runtime, default in self._parameters():
            if not runtime and name not in result:
                if default is inspect.Parameter.empty:
                    raise ArgumentError(f"{self.function.function.__name__}: argument {name!r} is missing")
                result[name] = default
        return result

    def _kernel(self, python: dict[str, Any]) -> JITKernel:
        key = tuple((name, frozen(value)) for name, value in python.items())
        kernel = self._kernels.get(key)
        if kernel is None:
            self._refuse_tensors(python)
            with self._lock:  # threads that call it at the same time share one kernel
                kernel = self._kernels.get(key)
                if kernel is None:
                    kernel = self._kernels[key] = JITKernel(self.function, python, self.settings)
                    self._keep.append(list(python.values()))  # keys of unhashable values hold their id
        return kernel

    def _refuse_tensors(self, python: Mapping[str, Any]) -> None:
        for name, value in python.items():
            if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr"):
                raise TraceError(
                    f"the tensor argument {name} has no annotation", location=self.function.rewritten.location,
                    hint=f"write `{name}: T.Tensor(shape, dtype)` in the body or the signature",
                )  # fmt: skip


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _CallForm:
    """Where a call's arguments are, for calls of one form: places in (positional, keyword values, defaults)."""

    def __init__(
        self, function: JITFunction, form: CallForm, python_names: tuple[str, ...], defaults: tuple[Any, ...]
    ) -> None:
        self.form = form
        self.defaults = defaults
        self._function = function
        self._python = tuple(zip(python_names, form.python, strict=True))
        self._runtime_is_all = form.runtime == tuple(range(form.given))
        # Mutable defaults may be other values at the next call.
        self._fixed = all(place >= form.given and _hashable(defaults[place - form.given]) for place in form.python)
        self._kernel: JITKernel | None = None

    def split(
        self, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[JITKernel, tuple[Any, ...]]:
        """The kernel for the Python arguments of a call, and its run-time arguments in order. ``values``: by place."""
        kernel = self._kernel
        if kernel is None:
            kernel = self._function._kernel({name: values[place] for name, place in self._python})
            if self._fixed:
                self._kernel = kernel  # every Python argument has its default
        if self._runtime_is_all and not kwargs:
            return kernel, args
        return kernel, tuple([values[place] for place in self.form.runtime])
