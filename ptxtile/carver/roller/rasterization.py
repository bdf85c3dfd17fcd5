"""In which order the blocks of a grid run, as a recommendation says it."""

from __future__ import annotations


class NoRasterization:
    """As they are numbered."""


class Rasterization2DColumn:
    """By panels of columns: ``T.use_swizzle(panel_size)``."""

    def __init__(self, panel_size: int = 10) -> None:
        self.panel_width_ = panel_size
