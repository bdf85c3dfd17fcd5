"""The parameters of an operator: the kernel's own in their order, as the text of a schema, and where a call has them.

Tensors are ``Tensor`` (with an alias mark where the kernel writes them); numbers that each call passes are ``SymInt``,
``float`` or ``bool``; Python arguments, each value of which is a kernel of its own, are ``int``, ``float``, ``bool`` or
``str``, and those of other types are fixed when the operator is registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ptxtile.errors import ArgumentError
from ptxtile.frontend.signature import ScalarSignature, TensorSignature
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.records import record
from ptxtile.runtime.dtypes import FORMATS

NO_DEFAULT = inspect.Parameter.empty
_PYTHON_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
"""Python type of an argument → its name in schemas; the annotation may also be the name of the type."""
_NUMBERS = {"bool": "bool", "int": "SymInt", "uint": "SymInt", "float": "float"}


@record
class OperatorParameter:
    """``at_runtime``: passed to the kernel at each call; else a Python argument. ``type``: of the schema."""

    name: str
    type: str
    at_runtime: bool
    default: Any = NO_DEFAULT

    @property
    def is_tensor(self) -> bool:
        return self.type == "Tensor"

    def text(self, mark: str = "") -> str:
        default = "" if self.default is NO_DEFAULT else f"={_literal(self.default)}"
        return f"{self.type}{mark} {self.name}{default}"


class Kernels:
    """What an operator runs: the one kernel, or those of a function in the eager form, by its Python arguments.

    ``fixed``: values of Python arguments that are no parameters of the operator.
    """

    def __init__(self, kernel: JITFunction | JITKernel, fixed: Mapping[str, Any]) -> None:
        self._function = kernel if isinstance(kernel, JITFunction) else None
        self.name: str = kernel.function.function.__name__
        self._fixed = dict(fixed)
        if isinstance(kernel, JITKernel):
            self._refuse_unknown(fixed, ())
            self._kernel = kernel
        self.parameters = self._of_kernel(kernel) if isinstance(kernel, JITKernel) else self._of_function(kernel)
        self._positions = {parameter.name: position for position, parameter in enumerate(self.parameters)}

    def _of_kernel(self, kernel: JITKernel) -> tuple[OperatorParameter, ...]:
        return tuple(_runtime(parameter, NO_DEFAULT) for parameter in kernel.signature.inputs)

    def _of_function(self, function: JITFunction) -> tuple[OperatorParameter, ...]:
        declared = function.function.python_signature.parameters
        names = function._parameters()
        self._refuse_unknown(self._fixed, [name for name, at_runtime, _ in names if not at_runtime])
        python: dict[str, OperatorParameter] = {}
        for name, at_runtime, default in names:
            if at_runtime or name in self._fixed:
                continue
            kind = _python_type(default, declared[name].annotation)
            if kind is not None:
                python[name] = OperatorParameter(name, kind, False, default)
            elif default is NO_DEFAULT:
                raise ArgumentError(
                    f"the Python argument {name!r} of {self.name} has no default, and no annotation that says its type",
                    expected="a default, or an annotation with int, float, bool or str",
                    hint=f"fix it for this operator: python_arguments={{{name!r}: …}}",
                )
        # any values do: what the run-time parameters are does not depend on them
        kernel = function._kernel(function._with_defaults({**_stand_ins(python.values()), **self._fixed}))
        runtime = {parameter.name: parameter for parameter in kernel.signature.inputs}
        return tuple(
            _runtime(runtime[name], default) if at_runtime else python[name]
            for name, at_runtime, default in names
            if at_runtime or name in python
        )

    def _refuse_unknown(self, given: Collection[str], known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                raise ArgumentError(
                    f"{self.name} has no Python argument {name!r}", expected=", ".join(known) or "none", got=name
                )

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One value for each parameter, in order. torch has checked the call and leaves out what equals a default."""
        values = [*args, *(parameter.default for parameter in self.parameters[len(args) :])]
        for name, value in kwargs.items():
            values[self._positions[name]] = value
        return values

    def choose(self, values: Sequence[Any]) -> tuple[JITKernel, tuple[Any, ...]]:
        """The kernel for the Python arguments among ``values``, and its run-time arguments."""
        at_runtime = tuple(value for p, value in zip(self.parameters, values, strict=True) if p.at_runtime)
        if self._function is None:
            return self._kernel, at_runtime
        python = {p.name: value for p, value in zip(self.parameters, values, strict=True) if not p.at_runtime}
        return self._function._kernel(self._function._with_defaults({**python, **self._fixed})), at_runtime

    def typical(self) -> JITKernel:
        """The kernel for the defaults of the Python arguments."""
        values = [None if p.at_runtime else _stand_ins((p,))[p.name] for p in self.parameters]
        return self.choose(values)[0]


def _stand_ins(parameters: Any) -> dict[str, Any]:
    """A value for each Python argument: its default, else one of its type."""
    empty = {"bool": False, "int": 1, "float": 1.0, "str": ""}
    return {p.name: empty[p.type] if p.default is NO_DEFAULT else p.default for p in parameters}


def _runtime(parameter: TensorSignature | ScalarSignature, default: Any) -> OperatorParameter:
    if isinstance(parameter, TensorSignature):
        return OperatorParameter(parameter.name, "Tensor", True)
    return OperatorParameter(parameter.name, _NUMBERS[FORMATS[parameter.dtype.name].kind], True, default)


def _python_type(default: Any, annotation: Any) -> str | None:
    if type(default) in _PYTHON_TYPES:
        return _PYTHON_TYPES[type(default)]
    if default is NO_DEFAULT:
        return _PYTHON_TYPES.get(annotation, annotation if annotation in _PYTHON_TYPES.values() else None)
    return None


def _literal(value: Any) -> str:
    """A default as schemas write it. TypeError for a text that a schema cannot hold is torch's."""
    return f'"{value}"' if isinstance(value, str) else str(value)
