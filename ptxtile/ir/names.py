"""Fresh names: every variable, buffer and storage of a program has a name of its own."""

from __future__ import annotations

from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, For, Let, ParallelFor, View


def names_of(program: Program) -> set[str]:
    """All names that ``program`` uses."""
    names = {parameter.name for parameter in program.parameters} | {symbol.name for symbol in program.symbols}
    names |= {buffer.name for buffer in program.allocations} | {record.name for record in program.tensor_maps}
    names |= {function.name for function in program.functions}
    for kernel in program.kernels:
        names |= {kernel.name, kernel.thread.name, *(var.name for var in kernel.block_vars)}
        for node in walk(kernel.body, Let, For, ParallelFor, Allocate, View):  # they declare every name
            if isinstance(node, (Let, For)):
                names.add(node.var.name)
            elif isinstance(node, ParallelFor):
                names |= {var.name for var in node.vars}
            else:
                names |= {node.buffer.name, node.buffer.storage.name}
    return names


class NameSupply:
    """Gives names that nothing in the program has: ``base``, else ``base_1``, ``base_2``…"""

    def __init__(self, program: Program) -> None:
        self._taken = names_of(program)
        self._next: dict[str, int] = {}

    def copy(self) -> NameSupply:
        """A supply that gives the same names next, for a trial."""
        other = NameSupply.__new__(NameSupply)
        other._taken, other._next = set(self._taken), dict(self._next)
        return other

    def fresh(self, base: str) -> str:
        name, count = base, self._next.get(base, 0)
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._next[base] = count
        self._taken.add(name)
        return name
