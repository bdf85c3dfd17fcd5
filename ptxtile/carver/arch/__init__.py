"""The card, under TileLang's names: ``from ptxtile.carver.arch import driver``."""

from __future__ import annotations

from ptxtile.carver.arch import driver

__all__ = ["driver"]
