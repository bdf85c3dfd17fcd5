"""The verifier's walk over kernels and functions: scopes, control flow, tile ops, roles
(:mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir.atomic_ops import TMA_REDUCTIONS
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Call, Const
from ptxtile.ir.gpu_ops import GpuOp, SetMaxRegisters
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.program import Function, Kernel
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    LoopKind,
    ParallelFor,
    Role,
    Seq,
    Specialized,
    Statement,
    Store,
    View,
    While,
)
from ptxtile.ir.tile_ops import (
    Assume,
    Copy,
    CopyPath,
    Fill,
    Gemm,
    KeepRegisters,
    MatrixStore,
    Print,
    Region,
    SafeValue,
    TmaCopy,
)
from ptxtile.ir.types import int32, int64
from ptxtile.ir.verify_buffers import verify_buffer
from ptxtile.ir.verify_context import FUNCTION_STAGE, STAGES, Context, Stage
from ptxtile.ir.verify_expressions import ExpressionVerifier
from ptxtile.ir.verify_gpu_ops import GpuOpVerifier
from ptxtile.ir.verify_tensor_core_ops import COPY_BYTES

WARP, WARPGROUP = 32, 128
REGISTER_FILE = 65_536
"""32-bit registers of a multiprocessor, 8.0 to 12.0 (CUDA C++ programming guide, technical specifications)."""
REGISTER_GRANULARITY = 8
MOST_REGISTERS = 255
"""Of one thread at launch (same table)."""
_FRAGMENTS = (Scope.FRAGMENT, Scope.REGISTER)
FREE, LEAVABLE, CLOSED = "no loop", "a loop that Break can leave", "a loop that runs whole"


class StatementVerifier:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.fail = context.fail
        self.expressions = ExpressionVerifier(context)
        self.gpu_ops = GpuOpVerifier(context, self.expressions)
        self.stage: Stage = context.stage or STAGES["tile"]
        self.loop = FREE
        self.in_parallel = False
        self.role: Role | None = None
        self.in_specialized = False
        self._rules: dict[type, Callable[[Any], None]] = {
            Seq: self._seq, Let: self._let, Allocate: self._allocate, View: self._view, Store: self._store,
            For: self._for, ParallelFor: self._parallel_for, While: self._while, If: self._if, Break: self._jump,
            Continue: self._jump, Role: self._role, Specialized: self._specialized, Copy: self._copy, Fill: self._fill,
            MatrixStore: self._matrix_store, TmaCopy: self._tma_copy, Gemm: self._gemm, Print: self._print,
            Assume: self._assume,
            SafeValue: self._safe_value, KeepRegisters: self._nothing, SetMaxRegisters: self._set_max_registers,
            GridSync: self._grid_sync, GridDependencyWait: self._grid_dependency_wait, LaunchDependents: self._nothing,
        }  # fmt: skip

    # ---- roots

    def kernel(self, kernel: Kernel) -> None:
        context = self.context
        context.location, context.kernel = kernel.location, kernel
        context.used_variables, context.used_tensors, context.used_tensor_maps = set(), set(), set()
        context.require(1 <= kernel.threads <= 1024, 38, f"{kernel.name} has {kernel.threads} threads, not 1 to 1024")
        context.require(len(kernel.grid) == 3, 38, f"{kernel.name} has no grid of three sizes")
        context.require(all(c >= 1 for c in kernel.cluster), 38, f"{kernel.name} has an empty cluster")
        for size in kernel.grid:
            self.expressions.check_size(size, f"the grid of {kernel.name}", 38)
        context.used_variables = set()  # the grid is the host's
        with context.scope():
            for variable in (*kernel.block_vars, kernel.thread):
                context.require(variable.dtype == int32, 38, f"{variable.name} of {kernel.name} is no int32")
                context.bind(variable)
            self.statement(kernel.body)
        own = {v.name for v in (*kernel.block_vars, kernel.thread)}
        outside = {name for name in context.used_variables if name not in own and name in context.variables}
        context.uses[kernel.name] = (outside, context.used_tensors, context.used_tensor_maps)
        context.kernel = None

    def function(self, function: Function) -> None:
        """A device function sees its parameters and nothing else."""
        context = self.context
        context.location = None
        self._check_recursion(function.name)
        stage = self.stage
        self.stage = FUNCTION_STAGE
        with context.scope():
            context.variables, context.buffers, context.storages = {}, {}, {}
            for parameter in function.parameters:
                context.bind(parameter, "parameter")
            # the body's declarations must be in scope for the result, so the outermost Seq is walked here
            body = function.body.statements if isinstance(function.body, Seq) else (function.body,)
            for statement in body:
                self.statement(statement)
            self.expressions.check(function.result)
        self.stage = stage

    def _check_recursion(self, name: str) -> None:
        functions, seen, waiting = self.expressions.functions, set(), [name]
        while waiting:
            current = functions[waiting.pop()]
            for root in (current.body, current.result):
                for node in walk(root):
                    if isinstance(node, Call) and node.function in functions and node.function not in seen:
                        if node.function == name:
                            self.fail(15, f"the function {name} calls itself")
                        seen.add(node.function)
                        waiting.append(node.function)

    # ---- statements

    def statement(self, node: Statement) -> None:
        context, outer = self.context, self.context.location
        context.location = node.location or outer
        if type(node) not in self.stage.statements:
            if self.stage is FUNCTION_STAGE:
                self.fail(30, f"{type(node).__name__} in a function")
            self.fail(27, f"{type(node).__name__} is not legal at the {context.program.stage} stage")
        rule = self._rules.get(type(node))
        if rule is not None:
            rule(node)
        elif isinstance(node, GpuOp):
            self.gpu_ops.check(node)
        else:
            self.fail(27, f"the verifier has no rule for {type(node).__name__}")
        context.location = outer

    def _body(self, node: Statement, loop: str | None = None) -> None:
        """A nested body: a scope of its own, inside a loop of the given sort."""
        outer = self.loop
        self.loop = loop or outer
        with self.context.scope():
            self.statement(node)
        self.loop = outer

    def _seq(self, node: Seq) -> None:
        with self.context.scope():
            for statement in node.statements:
                self.statement(statement)

    def _let(self, node: Let) -> None:
        self.expressions.check_typed(node.value, (node.var.dtype,), 5, f"the value of {node.var.name}")
        self.context.bind(node.var)

    def _allocate(self, node: Allocate) -> None:
        self._declare(node.buffer.scope, node)
        self.context.declare(node.buffer, new_storage=True)

    def _view(self, node: View) -> None:
        self._declare(node.buffer.scope, node)
        self.context.declare(node.buffer, new_storage=False)

    def _declare(self, scope: Any, node: Allocate | View) -> None:
        if scope not in self.stage.scopes:
            if self.stage is FUNCTION_STAGE:
                self.fail(30, f"a {scope.value} buffer in a function")
            self.fail(28, f"a {scope.value} buffer is not legal at the {self.context.program.stage} stage")
        verify_buffer(self.context, self.expressions, node.buffer)

    def _store(self, node: Store) -> None:
        self.expressions.check(node.value)
        self.expressions.access(node.buffer, node.indices, node.value.dtype, "a store to")

    def _for(self, node: For) -> None:
        if node.kind not in self.stage.loop_kinds:
            self.fail(28, f"a loop of kind {node.kind.value} is not legal at the {self.context.program.stage} stage")
        dtype = node.var.dtype
        for bound in (node.start, node.stop):
            self.expressions.check_typed(bound, (dtype,), 17, f"a bound of {node.var.name}")
        if not dtype.is_integer or dtype.lanes != 1 or not isinstance(node.step, int) or node.step == 0:
            self.fail(17, f"the loop over {node.var.name} has no integer variable or no step")
        whole = node.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED)
        if whole and not (isinstance(node.start, Const) and isinstance(node.stop, Const)):
            self.fail(17, f"the {node.kind.value} loop over {node.var.name} has bounds that are no constants")
        with self.context.scope():
            self.context.bind(node.var)
            self._body(node.body, CLOSED if whole else LEAVABLE)

    def _parallel_for(self, node: ParallelFor) -> None:
        if self.in_parallel:
            self.fail(18, "a parallel loop inside another")
        if len(node.vars) != len(node.extents) or not node.vars:
            self.fail(18, "a parallel loop with another number of extents", str(len(node.vars)), len(node.extents))
        if not all(isinstance(extent, int) and extent > 0 for extent in node.extents):
            self.fail(18, "an extent of a parallel loop is not positive", got=node.extents)
        with self.context.scope():
            for variable in node.vars:
                if variable.dtype not in (int32, int64):
                    self.fail(18, f"{variable.name} of a parallel loop is no integer", got=variable.dtype)
                self.context.bind(variable)
            self.in_parallel = True
            self._body(node.body, CLOSED)
            self.in_parallel = False

    def _while(self, node: While) -> None:
        self.expressions.check_condition(node.condition, 16, "a While's condition")
        self._body(node.body, LEAVABLE)

    def _if(self, node: If) -> None:
        self.expressions.check_condition(node.condition, 16, "an If's condition")
        self._body(node.then)
        if node.otherwise is not None:
            self._body(node.otherwise)

    def _jump(self, node: Break | Continue) -> None:
        if self.loop != LEAVABLE:
            self.fail(19, f"{type(node).__name__} in {self.loop}", "a serial loop or a While of the same role")

    # ---- tile ops

    def region(self, node: Region) -> None:
        self.context.check_buffer(node.buffer)
        if len(node.starts) != node.buffer.rank or len(node.extents) != node.buffer.rank:
            self.fail(20, f"a region of {node.buffer.name} of another rank", str(node.buffer.rank),
                      f"{len(node.starts)} starts, {len(node.extents)} extents")  # fmt: skip
        for start in node.starts:
            self.expressions.check_typed(start, (int32, int64), 20, f"a start in {node.buffer.name}")
        if not all(isinstance(extent, int) and extent > 0 for extent in node.extents):
            self.fail(20, f"a region of {node.buffer.name} with an extent that is not positive", got=node.extents)

    def _copy(self, node: Copy) -> None:
        self.region(node.source)
        self.region(node.destination)
        if node.source.dense_extents != node.destination.dense_extents:
            self.fail(20, f"a copy from {node.source.buffer.name} to {node.destination.buffer.name} of other extents",
                      str(node.source.extents), node.destination.extents)  # fmt: skip
        if node.path is CopyPath.CP_ASYNC:
            self._async_copy(node)
        if node.operator:
            source, destination = node.source.buffer, node.destination.buffer
            scopes = (source.scope, destination.scope) == (Scope.SHARED, Scope.GLOBAL)
            types = TMA_REDUCTIONS.get(node.operator, {})
            if not scopes or source.dtype != destination.dtype or source.dtype.name not in types:
                what = f"{source.name} cannot be combined with {destination.name} by {node.operator!r}"
                got = f"{source.scope.value} {source.dtype} and {destination.scope.value} {destination.dtype}"
                self.fail(20, what, f"shared and global memory, both of one of {', '.join(types)}", got)

    def _async_copy(self, node: Copy) -> None:
        source, destination = node.source.buffer, node.destination.buffer
        if (source.scope, destination.scope) != (Scope.GLOBAL, Scope.SHARED) or source.dtype != destination.dtype:
            got = f"{source.scope.value} {source.dtype} and {destination.scope.value} {destination.dtype}"
            self.fail(20, f"cp.async cannot copy {source.name}", "global to shared memory of one dtype", got)
        width = node.coalesced_width or 0
        last = node.destination.dense_extents[-1:] or (1,)
        if width * source.dtype.bits // 8 not in COPY_BYTES or last[0] % width:
            expected = f"{' or '.join(map(str, COPY_BYTES))} bytes that divide a row of {last[0]} elements"
            self.fail(20, f"no cp.async is {width} elements of {source.dtype} wide", expected)

    def _tma_copy(self, node: TmaCopy) -> None:
        self.region(node.source)
        self.region(node.destination)
        if node.source.dense_extents != node.destination.dense_extents:
            self.fail(20, f"a copy from {node.source.buffer.name} to {node.destination.buffer.name} of other extents",
                      str(node.source.extents), node.destination.extents)  # fmt: skip
        stores = node.source.buffer.scope is Scope.SHARED
        if not stores or node.barrier is not None:
            self.gpu_ops.barrier(node)
        if node.multicast is not None:
            self.gpu_ops.tensor_cores.multicast(node.multicast)

    def _gemm(self, node: Gemm) -> None:
        for region, rows, columns in (
            (node.a, *((node.k, node.m) if node.transpose_a else (node.m, node.k))),
            (node.b, *((node.n, node.k) if node.transpose_b else (node.k, node.n))),
        ):
            in_memory = region.buffer.scope is Scope.SHARED
            if in_memory or region.buffer.scope is Scope.FRAGMENT:
                self.region(region)
            if not (in_memory or region.buffer.scope in _FRAGMENTS) or (1, *region.extents)[-2:] != (rows, columns):
                wanted = f"a shared tile or a fragment of {rows}x{columns}"
                self.fail(20, f"the gemm operand {region.buffer.name}", wanted, region.extents)
        accumulator = node.accumulator.buffer
        if accumulator.scope not in _FRAGMENTS:
            what = f"the gemm accumulator {accumulator.name}"
            self.fail(20, what, "a fragment or registers", accumulator.scope.value)
        if node.clear_if is not None:
            self.expressions.check_condition(node.clear_if, 20, "clear_if of a gemm")
        if not node.commits and node.pending is not None:
            self.fail(20, "a gemm is waited for before its group of wgmma is committed", "pending None", node.pending)

    def _matrix_store(self, node: MatrixStore) -> None:
        source, destination = node.source, node.destination
        self.context.check_buffer(source)
        self.expressions.access(destination, node.indices, destination.dtype, "a matrix of")
        self.expressions.check_typed(node.source_offset, (int32, int64), 43, f"the offset into {source.name}")
        scopes = (source.scope, destination.scope)
        if scopes != (Scope.REGISTER, Scope.SHARED) or source.dtype != destination.dtype or source.dtype.bits != 16:
            what, got = f"matrices from {source.name} to {destination.name}", f"{source.scope.value} {source.dtype}"
            self.fail(43, what, "registers and a shared tile of one 16-bit dtype", f"{got}, {destination.scope.value}")
        if node.count not in (2, 4):
            self.fail(43, "an impossible number of matrices", "2 or 4", node.count)

    def _fill(self, node: Fill) -> None:
        self.region(node.destination)
        dtype = node.destination.buffer.dtype
        self.expressions.check_typed(node.value, (dtype,), 20, f"the value that fills {node.destination.buffer.name}")

    def _nothing(self, node: KeepRegisters) -> None:
        """A statement without operands."""

    def _assume(self, node: Assume) -> None:
        self.expressions.check_condition(node.condition, 16, "the condition of an assumption")

    def _safe_value(self, node: SafeValue) -> None:
        self.context.check_buffer(node.buffer)
        self.expressions.check_typed(node.value, (node.buffer.dtype,), 20, f"the safe value of {node.buffer.name}")

    def _print(self, node: Print) -> None:
        for value in node.values:
            self.expressions.check(value)

    # ---- roles

    def _role(self, node: Role) -> None:
        self.fail(31, f"the role {node.name} stands outside of a Specialized")

    def _specialized(self, node: Specialized) -> None:
        kernel = self.context.kernel
        assert kernel is not None
        if self.in_specialized:
            self.fail(31, "roles inside a role")
        taken: dict[int, str] = {}
        names: set[str] = set()
        for role in node.roles:
            if role.first_thread % WARP or role.threads % WARP or role.first_thread < 0 or role.threads <= 0:
                self.fail(31, f"the role {role.name} is not made of whole warps", "multiples of 32",
                          f"threads {role.first_thread} and on, {role.threads} of them")  # fmt: skip
            if role.first_thread + role.threads > kernel.threads:
                self.fail(31, f"the role {role.name} has threads that the kernel lacks", f"at most {kernel.threads}",
                          role.first_thread + role.threads)  # fmt: skip
            if role.name in names:
                self.fail(31, f"two roles are called {role.name}")
            names.add(role.name)
            for warp in range(role.first_thread // WARP, (role.first_thread + role.threads) // WARP):
                if warp in taken:
                    self.fail(31, f"the roles {taken[warp]} and {role.name} share threads")
                taken[warp] = role.name
        self._register_pool(node, kernel)
        outer_loop, self.in_specialized = self.loop, True
        for role in node.roles:
            self.role, self.loop = role, FREE
            if type(role) not in self.stage.statements:
                self.fail(27, f"Role is not legal at the {self.context.program.stage} stage")
            self._body(role.body)
        self.role, self.loop, self.in_specialized = None, outer_loop, False

    def _register_pool(self, node: Specialized, kernel: Kernel) -> None:
        """The roles' registers come from what the launch got: that many for each thread, in steps of 8."""
        blocks = max(1, kernel.min_blocks)
        launch = min(REGISTER_FILE // (kernel.threads * blocks), MOST_REGISTERS + 1)
        launch -= launch % REGISTER_GRANULARITY
        counts = {}
        for role in node.roles:
            ops = [op.count for op in walk(role.body, SetMaxRegisters)]
            counts[role] = max(ops) if ops else role.registers
        if all(count is None for count in counts.values()):
            return
        used = sum(role.threads * (launch if count is None else count) for role, count in counts.items())
        if used > launch * kernel.threads:
            message = f"the roles of {kernel.name} want more registers than its launch got, and would wait for ever"
            self.fail(32, message, f"at most {launch * kernel.threads}", used)

    def _grid_sync(self, node: GridSync) -> None:
        if self.role is not None:
            self.fail(33, "a barrier of the grid in a role", "all threads of the CTA", self.role.name)

    def _grid_dependency_wait(self, node: GridDependencyWait) -> None:
        kernel = self.context.kernel
        assert kernel is not None
        own = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
        if self.context.program.stage != "tile" and not any(node is statement for statement in own):
            expected = "the kernel's own statements, which all threads run"
            self.fail(33, "a wait for the grids in front stands in a role, branch or loop", expected)

    def _set_max_registers(self, node: SetMaxRegisters) -> None:
        if node.action not in ("inc", "dec") or node.count % 8 or not 24 <= node.count <= 256:
            self.fail(32, "setmaxnreg with an impossible count", "inc or dec to a multiple of 8 from 24 to 256",
                      f"{node.action} {node.count}")  # fmt: skip
        role = self.role
        if role is None or role.first_thread % WARPGROUP or role.threads % WARPGROUP:
            self.fail(32, "setmaxnreg outside of a role of whole warpgroups")
