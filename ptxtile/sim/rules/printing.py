"""Print: a line by each thread that reaches it, integers as ``%d`` and floats as ``%g``, as vprintf does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.expressions import Expr
from ptxtile.ir.tile_ops import Print
from ptxtile.sim.dtypes import as_array, decode_small, is_coded
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


def print_values(threads: Threads, op: Print, mask: Mask) -> None:
    columns = [_column(threads, expression, mask) for expression in op.values]
    for cta, lane in zip(*threads.active_lanes(mask), strict=True):
        parts = [op.message]
        for column, expression in zip(columns, op.values, strict=True):
            pattern = "%g" if expression.dtype.is_float else "%d"
            parts.extend(pattern % number for number in column[cta, lane])
        sys.stdout.write(" ".join(part for part in parts if part) + "\n")


def _column(threads: Threads, expression: Expr, mask: Mask) -> np.ndarray:
    """[CTA, thread, vector lane]."""
    values = as_array(threads.evaluate(expression, mask), expression.dtype)
    values = decode_small(values, expression.dtype) if is_coded(expression.dtype) else values
    if expression.dtype.lanes == 1:
        values = values[..., None]
    return np.broadcast_to(values, (threads.group.ctas, threads.lanes, expression.dtype.lanes))
