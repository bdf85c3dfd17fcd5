"""The card, under TileLang's names: ``from ptxtile.carver.arch import driver``, and descriptions of architectures."""

from __future__ import annotations

from typing import Any

from ptxtile import config, target
from ptxtile.carver.arch import driver
from ptxtile.errors import TargetError

__all__ = ["CDNA", "CUDA", "auto_infer_current_arch", "driver"]

_WITHOUT_A_CARD = "sm_90a"


class CUDA:
    """An architecture of NVIDIA's: by name such as ``"sm_90a"``, or with ``"cuda"`` that of the current card; without
    one, what PTXTILE_TARGET names, else sm_90a."""

    def __init__(self, name: Any = "cuda") -> None:
        import torch

        self.multiprocessors = driver.get_num_sms()
        if str(name).startswith("sm_"):
            self.target = target.get(str(name))
        elif torch.cuda.is_available():
            self.target = target.from_compute_capability(*torch.cuda.get_device_capability())
        else:
            self.target = target.get(config.read("PTXTILE_TARGET") or _WITHOUT_A_CARD)


class CDNA:
    """An architecture of AMD's, for which ptxtile does not compile: TargetError."""

    def __init__(self, name: Any = "hip") -> None:
        raise TargetError("ptxtile compiles for NVIDIA's cards only", expected="CUDA", got=f"CDNA({name!r})")


def auto_infer_current_arch() -> CUDA:
    """``CUDA("cuda")``."""
    return CUDA()
