"""Architectures: one table file each, what they can do, and which PTX ISA versions know them."""

from __future__ import annotations

from ptxtile.target.description import Target
from ptxtile.target.features import Feature
from ptxtile.target.registry import from_compute_capability, get, names

__all__ = ["Feature", "Target", "from_compute_capability", "get", "names"]
