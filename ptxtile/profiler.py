"""The profiler under TileLang's name of the module: see :mod:`ptxtile.profile`."""

from __future__ import annotations

from ptxtile.profile.bench import do_bench
from ptxtile.profile.profiler import Profiler
from ptxtile.profile.supply import TensorSupplyType

__all__ = ["Profiler", "TensorSupplyType", "do_bench"]
