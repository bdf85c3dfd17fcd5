"""A kernel as the backward pass of an operator: which of its parameters and results are what, by their names.

A parameter of the name of an input or of a result of the forward kernel is that tensor (or number), saved; one that is
called ``grad_C``, ``d_C`` or ``dC`` is the gradient of the result ``C``. What it returns under the name ``grad_A`` (or
``d_A``, ``dA``) is the gradient of the input ``A``; the other inputs have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.records import record

if TYPE_CHECKING:
    import torch

    from ptxtile.operators.register import TorchOperator

PREFIXES = ("grad_", "d_", "d")


@record
class Sources:
    """Where the backward kernel's arguments come from: (kind, position), kind ``input``, ``result`` or ``gradient``;
    and for each input of the forward operator the position of its gradient among the backward kernel's results."""

    arguments: tuple[tuple[str, int], ...]
    gradients: tuple[int | None, ...]


def match(forward: TorchOperator, backward: TorchOperator) -> Sources:
    """ArgumentError for a name that is none of those."""
    inputs = [parameter.name for parameter in forward.kernels.parameters]
    results = [made.name for made in forward.effects.made]
    known: dict[str, tuple[str, int]] = {}
    for prefix in PREFIXES:
        known |= {prefix + name: ("gradient", position) for position, name in enumerate(results)}
    known |= {name: ("result", position) for position, name in enumerate(results)}
    known |= {name: ("input", position) for position, name in enumerate(inputs)}
    arguments = []
    for parameter in backward.kernels.parameters:
        if parameter.name in known:
            arguments.append(known[parameter.name])
        elif parameter.at_runtime:
            raise ArgumentError(
                f"the backward kernel {backward.kernels.name} takes {parameter.name!r}, which is nothing of "
                f"{forward.kernels.name}", got=parameter.name,
                expected=f"one of {', '.join(inputs + results)}, or {' or '.join(f'grad_{name}' for name in results)}",
            )  # fmt: skip
        else:
            break  # Python arguments that the forward kernel does not have keep their defaults
    if len(arguments) < sum(parameter.at_runtime for parameter in backward.kernels.parameters):
        raise ArgumentError(
            f"the backward kernel {backward.kernels.name} has Python arguments of its own before its tensors",
            hint="fix them with torch_op(…, python_arguments={…}) and pass that operator as backward",
        )
    made = [made.name for made in backward.effects.made]
    places = {prefix + name: position for prefix in PREFIXES for position, name in enumerate(inputs)}
    _require_gradients(backward, made, places, inputs)
    by_input = {places[name]: position for position, name in enumerate(made)}
    return Sources(tuple(arguments), tuple(by_input.get(position) for position in range(len(inputs))))


def _require_gradients(backward: TorchOperator, made: Sequence[str], known: Iterable[str], inputs: list[str]) -> None:
    for name in made or ["nothing"]:
        if name not in known:
            raise ArgumentError(
                f"the backward kernel {backward.kernels.name} returns {name}",
                expected=" or ".join(f"grad_{name}" for name in inputs), got=name,
            )  # fmt: skip


def functions(sources: Sources, backward: TorchOperator) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(setup_context, backward) as ``torch.library.register_autograd`` takes them."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        results = output if isinstance(output, tuple) else (output,)
        saved: list[torch.Tensor] = []
        ctx.others = []  # (place among the arguments, number)
        for place, (kind, position) in enumerate(sources.arguments):
            if kind != "gradient":
                value = inputs[position] if kind == "input" else results[position]
                if isinstance(value, torch.Tensor):
                    saved.append(value)
                else:
                    ctx.others.append((place, value))
        ctx.save_for_backward(*saved)

    def run(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        others = dict(ctx.others)
        saved = iter(ctx.saved_tensors)
        arguments = []
        for place, (kind, position) in enumerate(sources.arguments):
            if kind == "gradient":
                arguments.append(gradients[position])
            else:
                arguments.append(others[place] if place in others else next(saved))
        found = backward(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(None if position is None else found[position] for position in sources.gradients)

    return setup_context, run
