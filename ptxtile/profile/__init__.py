"""Timing kernels, trying them against a reference, and what they take of a card.

Nothing here is loaded, and no card touched, before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxtile.profile.bench import Measurement, do_bench, measure
    from ptxtile.profile.figures import Figures, figures
    from ptxtile.profile.profiler import Profiler
    from ptxtile.profile.ranges import named_ranges
    from ptxtile.profile.supply import TensorSupplyType

_WHERE = {
    "Measurement": "bench",
    "do_bench": "bench",
    "measure": "bench",
    "Figures": "figures",
    "figures": "figures",
    "Profiler": "profiler",
    "named_ranges": "ranges",
    "TensorSupplyType": "supply",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'ptxtile.profile' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ptxtile.profile.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Figures", "Measurement", "Profiler", "TensorSupplyType", "do_bench", "figures", "measure", "named_ranges",
]  # fmt: skip
