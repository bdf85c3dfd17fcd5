"""``ptxtile.torch_op``: a kernel as an operator of torch, so that torch.compile, autograd and torch.export know it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.frontend.locations import without_our_frames
from ptxtile.jit_factory import JITFactory
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.operators import gradients
from ptxtile.operators.metadata import (
    Effects,
    check_tensors,
    constants_of,
    effects_of,
    made_tensors,
    solve,
    typical_effects,
)
from ptxtile.operators.parameters import Kernels

if TYPE_CHECKING:
    import torch

_EFFECTS_KEPT = 4096
"""Sets of constant sizes whose effects an operator remembers before it begins anew."""


class TorchOperator:
    """An operator of torch that runs a kernel. Called as the kernel is, inside of compiled code and outside.

    ``name``: ``namespace::name``; ``op``: the operator as torch has it, ``torch.ops.namespace.name.default``, which
    gives back the tensors that the call makes, while a call of this object gives what the kernel returns.
    """

    def __init__(
        self, name: str, kernel: JITFunction | JITKernel, mutates: Iterable[str], python_arguments: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:  # fmt: skip
        import torch

        self.name = name
        self.kernel = kernel
        self.kernels = Kernels(kernel, python_arguments)
        self.effects = typical_effects(self.kernels.typical(), sizes)
        self.mutates = frozenset(mutates) | self.effects.written
        self._known: dict[Any, Effects] = {}
        self.schema = self._schema()
        self._definition = torch.library.custom_op(
            name, self._run, mutates_args=tuple(sorted(self.mutates)), schema=self.schema
        )
        self._definition.register_fake(self._fake)
        namespace, _, own = name.partition("::")
        self.op: Any = getattr(getattr(torch.ops, namespace), own).default
        made = [allocation.name for allocation in self.effects.made]
        # For each thing that the kernel returns: the operator's result of that number, or ~ the number of a parameter.
        positions = {parameter.name: position for position, parameter in enumerate(self.kernels.parameters)}
        self._returns = tuple([made.index(n) if n in made else ~positions[n] for n in self.effects.returns])
        self._plain = self._returns == tuple(range(len(made)))
        self._parameter_names = tuple(parameter.name for parameter in self.kernels.parameters)
        self.__name__ = own
        self.__doc__ = kernel.function.function.__doc__

    def __repr__(self) -> str:
        return f"<torch operator {self.name}{self.schema} of the ptxtile kernel {self.kernels.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name: another process has it once it has registered it. A copy is the operator itself."""
        return registered, (self.name,)

    def __deepcopy__(self, memo: Any) -> TorchOperator:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self.op(*args, **kwargs)
        if self._plain:
            return made
        made = made if isinstance(made, tuple) else (made,)
        results = []
        for position in self._returns:
            if position >= 0:
                results.append(made[position])
            elif ~position < len(args):
                results.append(args[~position])
            else:
                results.append(kwargs[self._parameter_names[~position]])
        return results[0] if len(results) == 1 else tuple(results)

    def _schema(self) -> str:
        parts, marks = [], 0
        for parameter in self.kernels.parameters:
            mark = f"(a{marks}!)" if parameter.name in self.mutates else ""
            marks += bool(mark)
            parts.append(parameter.text(mark))
        unknown = self.mutates - {p.name for p in self.kernels.parameters if p.is_tensor}
        if unknown:
            raise ArgumentError(
                f"{self.kernels.name} has no tensor {min(unknown)!r} that it could write",
                expected=", ".join(p.name for p in self.kernels.parameters if p.is_tensor) or "none",
            )
        count = len(self.effects.made)
        result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"({', '.join(parts)}) -> {result}"

    # ---------------------------------------------------------------- what torch calls

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        kernel, values = self.kernels.choose(self.kernels.bound(args, kwargs))
        self._effects_of(kernel, constants_of(kernel, solve(kernel, values)))
        returned = kernel(*values)
        if not self.effects.made:
            return None
        results = returned if isinstance(returned, tuple) else (returned,)
        by_name = dict(zip(self.effects.returns, results, strict=True))
        made = tuple(by_name[allocation.name] for allocation in self.effects.made)
        return made[0] if len(made) == 1 else made

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        kernel, values = self.kernels.choose(self.kernels.bound(args, kwargs))
        sizes = solve(kernel, values)
        check_tensors(kernel, values, sizes)
        effects = self._effects_of(kernel, constants_of(kernel, sizes))
        device = next((value.device for value in values if isinstance(value, torch.Tensor)), None)
        made = made_tensors(effects, sizes, device or _default_device())
        if not made:
            return None
        return made[0] if len(made) == 1 else made

    def _effects_of(self, kernel: JITKernel, constants: Mapping[str, int]) -> Effects:
        """Of these Python arguments and sizes. ArgumentError when torch was told something else at the registration."""
        key = (id(kernel), *constants.items())  # the function keeps its kernels
        effects = self._known.get(key)
        if effects is None:
            if any(name not in constants for name in kernel.signature.constants):
                return self.effects  # the call is refused anyway, with a better word
            effects = effects_of(kernel, constants)
            self._require_as_registered(effects)
            if len(self._known) >= _EFFECTS_KEPT:
                self._known.clear()
            self._known[key] = effects
        return effects

    def _require_as_registered(self, effects: Effects) -> None:
        undeclared = effects.written - self.mutates
        if undeclared:
            raise ArgumentError(
                f"{self.name}: with these sizes and Python arguments {self.kernels.name} writes {min(undeclared)!r}, "
                "which torch was not told", hint=f"register it with mutates=[{min(undeclared)!r}]",
            )  # fmt: skip
        if effects.returns != self.effects.returns:
            raise ArgumentError(
                f"{self.name}: with these sizes and Python arguments {self.kernels.name} returns other tensors",
                expected=", ".join(self.effects.returns) or "nothing", got=", ".join(effects.returns) or "nothing",
                hint="fix the Python argument at the registration: python_arguments={…}",
            )  # fmt: skip

    # ---------------------------------------------------------------- gradients and vmap

    def register_backward(self, backward: Any, setup_context: Callable[..., Any] | None = None) -> None:
        """What ``torch_op`` does with its arguments of these names."""
        if self.mutates:
            raise ArgumentError(
                f"{self.name} writes {', '.join(sorted(self.mutates))}, and torch has no gradients of operators that "
                "write their arguments", hint="let the kernel return its result: T.empty, or out_idx of a factory",
            )  # fmt: skip
        if isinstance(backward, (JITFunction, JITKernel)):
            backward = torch_op(f"{self.name}_backward", backward)
        if isinstance(backward, TorchOperator):
            if setup_context is not None:
                raise ArgumentError("setup_context goes with a backward function: a backward kernel has its own")
            setup_context, backward = gradients.functions(gradients.match(self, backward), backward)
        self._definition.register_autograd(backward, setup_context=setup_context)

    def register_vmap(self, function: Callable[..., Any]) -> None:
        """``function(info, in_dims, *args)`` as :func:`torch.library.register_vmap` takes it."""
        self._definition.register_vmap(function)

    def _no_vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            f"{self.name} has no rule for torch.vmap",
            hint="give the kernel a batch dimension and register how to call it: torch_op(…, vmap=function)",
        )


_REGISTERED: dict[str, TorchOperator] = {}


def registered(name: str) -> TorchOperator:
    """The operator that :func:`torch_op` made of this name in this process."""
    if name not in _REGISTERED:
        raise ArgumentError(
            f"there is no operator {name} in this process", expected=", ".join(sorted(_REGISTERED)) or "none",
            hint="import the module that registers it",
        )  # fmt: skip
    return _REGISTERED[name]


def _default_device() -> torch.device:
    import torch

    from ptxtile.runtime.device import has_card

    return torch.device("cuda", torch.cuda.current_device()) if has_card() else torch.device("cpu")


def torch_op(
    name: str,
    kernel: Any = None,
    *,
    backward: Any = None,
    setup_context: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    mutates: Iterable[str] = (),
    python_arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Any:
    """Registers ``kernel`` with torch as the operator ``name`` (``"namespace::name"``); gives what to call.

    ``kernel``: a function under ``@ptxtile.jit`` in the eager form, or a kernel object (a factory's, with or without
    ``out_idx``). Without it, a decorator. The operator works under ``torch.compile(fullgraph=True)``, ``torch.export``
    and autograd, on cards and, in the simulator, with CPU tensors.

    ``backward``: another kernel, whose parameters and results say by their names what they are
    (:mod:`ptxtile.operators.gradients`); or a function ``backward(ctx, *gradients)``, with ``setup_context(ctx, inputs,
    output)``, as ``torch.library.register_autograd`` takes them. Inside of it call operators, not kernels.
    ``vmap``: as ``torch.library.register_vmap`` takes it; without it ``torch.vmap`` is an error.

    What the kernel writes is found in its traced program; ``mutates`` names tensors that it writes for some sizes or
    Python arguments only. ``python_arguments``: values of Python arguments that callers cannot choose, needed where
    they are no int, float, bool or str. ``sizes``: values of ``T.const`` sizes to trace the kernel with now, for one
    that refuses the usual ones. In compiled code ``T.const`` sizes are constants (another size compiles again), and
    ``T.dynamic`` ones stay dynamic.
    """
    if kernel is None:
        return lambda given: torch_op(
            name, given, backward=backward, setup_context=setup_context, vmap=vmap, mutates=mutates,
            python_arguments=python_arguments, sizes=sizes,
        )  # fmt: skip
    try:
        namespace, separator, own = name.partition("::")
        if not (separator and namespace.isidentifier() and own.isidentifier()):
            raise ArgumentError("the name of an operator", expected="namespace::name", got=repr(name))
        if not isinstance(kernel, (JITFunction, JITKernel)):
            hint = "call the factory with its sizes: that gives a kernel" if isinstance(kernel, JITFactory) else None
            raise ArgumentError(
                f"the operator {name} needs a kernel", expected="a function under @ptxtile.jit, or a kernel object",
                got=repr(kernel), hint=hint,
            )  # fmt: skip
        operator = TorchOperator(name, kernel, mutates, python_arguments or {}, sizes or {})
        if backward is not None:
            operator.register_backward(backward, setup_context)
        operator.register_vmap(vmap or operator._no_vmap)
        _REGISTERED[name] = operator
        return operator
    except Exception as error:
        raise without_our_frames(error) from error.__cause__
