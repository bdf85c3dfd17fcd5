"""The tuner under TileLang's name of the module: see :mod:`ptxtile.tune`."""

from __future__ import annotations

from ptxtile.tune.decorator import autotune
from ptxtile.tune.given_inputs import get_autotune_inputs, set_autotune_inputs
from ptxtile.tune.results import TuningResult
from ptxtile.tune.tuner import AutoTuner

AutotuneResult = TuningResult

__all__ = ["AutoTuner", "AutotuneResult", "TuningResult", "autotune", "get_autotune_inputs", "set_autotune_inputs"]
