"""What to compile for: the card's architecture, or a choice when there is no card."""

from __future__ import annotations

from ptxtile import config, target
from ptxtile.errors import DriverError
from ptxtile.target import Target

WITHOUT_A_CARD = "sm_90a"
"""The architecture compiled for when there is no card and PTXTILE_TARGET says nothing: the simulator models it
fully."""


def has_card() -> bool:
    """Whether torch sees a usable CUDA card."""
    import torch

    return torch.cuda.is_available()


def target_of_device(index: int | None = None) -> Target:
    """The architecture to compile for on card ``index`` (None: torch's current one).

    DriverError without a card; TargetError for a card that is too old.
    """
    import torch

    if not torch.cuda.is_available():
        raise DriverError("there is no usable CUDA card", hint="run 'ptxtile doctor' to see what was found")
    return target.from_compute_capability(*torch.cuda.get_device_capability(index))


def default_target() -> Target:
    """The current card's architecture; without a card PTXTILE_TARGET if it is set, else :data:`WITHOUT_A_CARD`."""
    if has_card():
        return target_of_device()
    return target.get(config.read("PTXTILE_TARGET") or WITHOUT_A_CARD)


def card_for(target: Target) -> int | None:
    """torch's current card, if it can run what was compiled for ``target``; None without such a card."""
    import torch

    from ptxtile.runtime.module import runs_on

    if not torch.cuda.is_available() or not runs_on(target.name, torch.cuda.get_device_capability()):
        return None
    return torch.cuda.current_device()
