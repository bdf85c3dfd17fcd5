"""What TMA has to do with the barriers of a grid.

Input: thread stage, TMA copies lowered. Output: the same; in front of each :class:`GridSync` the threads wait for their
TMA stores to be complete, and a proxy fence orders what both proxies did to global memory. The barrier itself orders
ordinary accesses only, and the hazard analysis, which looks at one CTA, does not see what the others do.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.gpu_ops import BulkWaitGroup, FenceProxyAsync, TmaLoad, TmaStore
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.statements import Statement, seq
from ptxtile.lower.options import Options
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        ordered = _ordered(kernel)
        kernels.append(ordered)
        if ordered is not kernel:
            reason = "TMA accesses global memory in this kernel"
            why.append(Why("order_grid_barriers", kernel.name, "fences before T.sync_grid", reason, kernel.location))
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


def _ordered(kernel: Kernel) -> Kernel:
    kinds = {type(node) for node in walk(kernel.body, TmaLoad, TmaStore)}
    if not kinds:
        return kernel
    body = _Ordering(TmaStore in kinds).visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Ordering(Rewriter):
    def __init__(self, stores: bool) -> None:
        self.stores = stores

    def rewrite_GridSync(self, node: GridSync) -> Statement:
        wait = BulkWaitGroup(0, False, location=node.location) if self.stores else None
        return seq(wait, FenceProxyAsync("global", location=node.location), node)
