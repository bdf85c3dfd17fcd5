"""TileLang's module of passes, of which scripts use the keys: see :mod:`ptxtile.pass_configs`."""

from __future__ import annotations

from ptxtile.pass_configs import PassConfigKey

__all__ = ["PassConfigKey"]
