"""Gemms on the mma.sync path become fragment loads and warp-wide multiplications.

Input: thread stage, shared layouts chosen. Output: thread stage without Gemm of path MMA. A warp keeps the fragments of
one k step in registers, or of two where they fit: then those of the next step are loaded before the present step is
multiplied, so that the tensor cores do not wait for shared memory. Fragments come through ldmatrix where
:mod:`ptxtile.lower.operand_fragments` says that it can, else element by element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Var, constant, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Role, Statement, Store, seq
from ptxtile.ir.tensor_core_ops import LoadMatrix, MmaSync
from ptxtile.ir.tile_ops import Gemm, GemmPath
from ptxtile.ir.types import int32, parse_dtype
from ptxtile.lower.expand_copies import matrix_indices
from ptxtile.lower.gemm_geometry import COLUMNS, MMA_ROWS, WARP, Grid, dtype_names, grid_of
from ptxtile.lower.operand_fragments import MATRIX_ROWS, Operand, matrix_groups, operands, refusal, row_offset
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.records import record
from ptxtile.target import Feature, Target

REGISTERS_ELSEWHERE = 56
"""Registers of a thread that addresses, loop state and copies under way take beside fragments and accumulators."""


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels, why = [], []
    for kernel in program.kernels:
        lowering = _Lowering(program, kernel, target, names)
        body = lowering.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
        why.extend(lowering.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


class _Lowering(ScopedRewriter, kinds=(Gemm,)):
    def __init__(self, program: Program, kernel: Kernel, target: Target, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.target, self.names = kernel, target, names
        self.group = (0, kernel.threads)
        self.why: list[Why] = []
        self.registers = min(target.max_registers_per_thread, target.registers_per_sm // kernel.threads)

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer = self.group, self.registers
            self.group, self.registers = (node.first_thread, node.threads), node.registers or self.registers
            node = super().visit(node)
            self.group, self.registers = outer
            return node
        if isinstance(node, Gemm) and node.path is GemmPath.MMA:
            first, threads = self.group
            grid = grid_of(node, threads, GemmPath.MMA)
            assert grid is not None, "select_gemm_paths chose a path that fits"
            thread = self.kernel.thread - first if first else self.kernel.thread
            return _WarpGemm(self, node, grid, thread).lowered()
        return super().visit(node)


@record
class _Fragments:
    """The registers that hold an operand, and how many k steps of it. ``first``: the warp's first row of A or column of
    B. ``by_matrices``: ldmatrix fills them. ``resident``: they are the user's own fragment, which holds all of K."""

    operand: Operand
    registers: Buffer
    versions: int
    first: Expr
    by_matrices: bool
    resident: bool = False

    @property
    def count(self) -> int:
        """Elements of a thread in one k step."""
        return self.operand.tiles * self.operand.elements

    def of_step(self, step: Expr) -> Expr:
        """Where the elements of a k step start."""
        return step % self.versions * self.count if self.versions > 1 else constant(0)


class _WarpGemm:
    def __init__(self, owner: _Lowering, gemm: Gemm, grid: Grid, thread: Expr) -> None:
        self.owner, self.gemm, self.grid, self.names = owner, gemm, grid, owner.names
        self.analyzer = owner.analyzer
        self.thread = thread
        self.operands = operands(gemm, grid)
        self.steps = gemm.k // self.operands[0].depth
        self.lane = Var(self.names.fresh("lane"), int32)

    def lowered(self) -> Statement:
        gemm, grid = self.gemm, self.grid
        warp = self.thread // WARP
        lets = [Let(self.lane, self.thread % WARP)]
        firsts = (warp // grid.columns * MMA_ROWS, warp % grid.columns * (gemm.n // grid.columns))
        bound = [Var(self.names.fresh(base), int32) for base in ("warp_row", "warp_column")]
        lets += [Let(var, value) for var, value in zip(bound, firsts, strict=True)]
        with self.analyzer.scope():
            for let in lets:
                self.analyzer.bind_value(let.var, let.value)
            versions = 2 if self.steps > 1 and self._fit_twice() else 1
            a, b = (
                self._fragments(operand, first, versions) for operand, first in zip(self.operands, bound, strict=True)
            )
            own = [part for part in (a, b) if not part.resident]
            body = self._pipelined(a, b) if versions > 1 else self._one_after_the_other(a, b)
        return seq(*(Allocate(part.registers) for part in own), *lets, self._clear(), body)

    # --- registers ---------------------------------------------------------------------------------------------------

    def _fit_twice(self) -> bool:
        """Whether two k steps of fragments fit beside the accumulators, and operands that the user keeps in registers,
        in a thread's registers."""
        held, loaded = [self.gemm.accumulator.buffer], 0
        for operand in self.operands:
            if operand.buffer.scope is Scope.SHARED:
                loaded += operand.tiles * operand.elements * operand.buffer.dtype.bits // 32
            else:
                held.append(operand.buffer)
        others = sum(buffer.elements * buffer.dtype.bits // 32 for buffer in held)
        return others + 2 * loaded + REGISTERS_ELSEWHERE <= self.owner.registers

    def _fragments(self, operand: Operand, first: Expr, versions: int) -> _Fragments:
        buffer = operand.buffer
        if buffer.scope is Scope.REGISTER:
            return _Fragments(operand, buffer, self.steps, first, False, resident=True)
        name = self.names.fresh(f"{buffer.name}_fragment")
        count = versions * operand.tiles * operand.elements
        registers = allocate(name, Scope.REGISTER, buffer.dtype, (count,))
        reason = refusal(operand, self.analyzer)
        path = "element by element" if reason else "ldmatrix" + ("" if operand.along_k else ", transposed")
        why = reason or "a register of each thread is a matrix of 8 rows of 16 bytes"
        self.owner.why.append(Why("lower_mma", f"fragments of {buffer.name}", path, why, self.gemm.location))
        return _Fragments(operand, registers, versions, first, not reason)

    # --- order -------------------------------------------------------------------------------------------------------

    def _one_after_the_other(self, a: _Fragments, b: _Fragments) -> Statement:
        step = Var(self.names.fresh("k"), int32)
        with self.analyzer.scope():
            self.analyzer.bind(step, 0, self.steps - 1)
            body = seq(self._load(a, step), self._load(b, step), self._multiply(a, b, step))
        return self._loop(step, self.steps, body)

    def _pipelined(self, a: _Fragments, b: _Fragments) -> Statement:
        """Every step's fragments are loaded before the step in front of it is multiplied."""
        step, last = Var(self.names.fresh("k"), int32), self.steps - 1
        with self.analyzer.scope():
            self.analyzer.bind(step, 0, last - 1)
            following = seq(self._load(a, step + 1), self._load(b, step + 1), self._multiply(a, b, step))
        return seq(
            self._load(a, constant(0)),
            self._load(b, constant(0)),
            self._loop(step, last, following),
            self._multiply(a, b, constant(last)),
        )

    def _loop(self, var: Var, count: int, body: Statement) -> Statement:
        return For(var, constant(0), constant(count), 1, LoopKind.UNROLLED, body, location=self.gemm.location)

    def _clear(self) -> Statement | None:
        gemm = self.gemm
        if not gemm.clear and gemm.clear_if is None:
            return None
        registers = gemm.accumulator.buffer
        v = Var(self.names.fresh("v"), int32)
        store = Store(registers, (v,), constant(0, registers.dtype), location=gemm.location)
        zeros = self._loop(v, registers.elements, store)
        return zeros if gemm.clear_if is None else If(gemm.clear_if, zeros, location=gemm.location)

    def _multiply(self, a: _Fragments, b: _Fragments, step: Expr) -> Statement:
        gemm = self.gemm
        i, j = (Var(self.names.fresh(base), int32) for base in ("i", "j"))
        names = dtype_names(gemm)
        multiply = MmaSync(
            accumulator=gemm.accumulator.buffer,
            accumulator_offset=(i * b.operand.tiles + j) * 4,
            a=a.registers,
            a_offset=self._place(a, step, i),
            b=b.registers,
            b_offset=self._place(b, step, j),
            m=MMA_ROWS,
            n=COLUMNS,
            k=a.operand.depth,
            dtype_a=parse_dtype(names[0]),
            dtype_b=parse_dtype(names[1]),
            location=gemm.location,
        )
        return self._loop(i, a.operand.tiles, self._loop(j, b.operand.tiles, self._instructions(multiply)))

    def _instructions(self, multiply: MmaSync) -> Statement:
        """float64 products of 16 rows where the target has them of 8 rows and k = 4 only: the registers are the same,
        by row halves and along K."""
        if multiply.dtype_a.bits != 64 or self.owner.target.has(Feature.MMA_F64):
            return multiply
        halves = MMA_ROWS // 8
        return seq(
            *(
                replace(
                    multiply,
                    m=8,
                    k=4,
                    accumulator_offset=multiply.accumulator_offset + 2 * half,
                    a_offset=multiply.a_offset + (halves * k + half),
                    b_offset=multiply.b_offset + k,
                )
                for k in range(multiply.k // 4)
                for half in range(halves)
            )
        )

    def _place(self, fragments: _Fragments, step: Expr, tile: Expr) -> Expr:
        """Where the elements of one instruction start; in the user's own fragment the k steps of a tile follow each
        other (:func:`~ptxtile.lower.gemm_geometry.operand_fragment`)."""
        if fragments.resident:
            return (tile * self.steps + step) * fragments.operand.elements
        return fragments.of_step(step) + tile * fragments.operand.elements

    # --- loads -------------------------------------------------------------------------------------------------------

    def _load(self, fragments: _Fragments, step: Expr) -> Statement | None:
        if fragments.resident:
            return None
        if fragments.by_matrices:
            return seq(*self._matrices(fragments, step))
        return self._elements(fragments, step)

    def _matrices(self, fragments: _Fragments, step: Expr) -> list[Statement]:
        """One instruction for each group of matrices; groups of four are a loop."""
        groups = list(matrix_groups(fragments.operand))
        fours = sum(1 for _, count in groups if count == groups[0][1])
        result: list[Statement] = []
        if fours > 1:
            group, count = Var(self.names.fresh("t"), int32), groups[0][1]
            with self.analyzer.scope():
                self.analyzer.bind(group, 0, fours - 1)
                result.append(self._loop(group, fours, self._load_matrix(fragments, step, group * count, count)))
            groups = groups[fours:]
        return result + [self._load_matrix(fragments, step, constant(first), count) for first, count in groups]

    def _load_matrix(self, fragments: _Fragments, step: Expr, first: Expr, count: int) -> Statement:
        """Lanes 8·q to 8·q + 7 give the rows of matrix ``first + q``."""
        operand = fragments.operand
        matrix = first + self.lane // MATRIX_ROWS % count if count > 1 else first
        matrix = simplify_expression(matrix, self.analyzer)
        along, k = operand.matrix(matrix // operand.registers, matrix % operand.registers)
        place = (
            simplify_expression(fragments.first + along, self.analyzer),
            simplify_expression(step * operand.depth + k, self.analyzer),
        )
        offset = row_offset(operand, place, self.lane % MATRIX_ROWS, self.analyzer)
        return LoadMatrix(
            destination=fragments.registers,
            destination_offset=fragments.of_step(step) + first * operand.packed,
            shared=operand.buffer,
            offset=simplify_expression(offset, self.analyzer),
            count=count,
            transposed=not operand.along_k,
            location=self.gemm.location,
        )

    def _elements(self, fragments: _Fragments, step: Expr) -> Statement:
        operand = fragments.operand
        tile, register, place = (Var(self.names.fresh(base), int32) for base in ("t", "r", "v"))
        along, k = operand.element(tile, register, place, self.lane)
        row, column = operand.stored(fragments.first + along, step * operand.depth + k)
        value = load(operand.buffer, matrix_indices(operand.region, row, column))
        index = fragments.of_step(step) + tile * operand.elements + register * operand.packed + place
        store = Store(fragments.registers, (index,), value, location=self.gemm.location)
        return self._loop(
            tile, operand.tiles, self._loop(register, operand.registers, self._loop(place, operand.packed, store))
        )
