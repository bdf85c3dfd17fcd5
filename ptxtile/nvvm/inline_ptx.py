"""Every inline-PTX text that the emitter can write: a table, and what writes its entries.

Matrix instructions have too many shapes for a table; :mod:`ptxtile.nvvm.matrix_ptx` makes their templates.

LLVM has no model of these instructions. ``convergent`` marks those whose meaning depends on which threads of a warp
or CTA run them together; without it LLVM may copy them into both arms of a branch. ``pure`` marks those that only
compute. Constant operands are constraint ``n``. ``section`` is the heading in the PTX ISA manual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxtile.errors import VerificationError
from ptxtile.ir.atomic_ops import TMA_REDUCTIONS
from ptxtile.nvvm import inline_ptx_warps
from ptxtile.nvvm.ptx_template import InlinePtx, operation, pure
from ptxtile.target import Feature

if TYPE_CHECKING:
    from ptxtile.nvvm.function import FunctionWriter


_MBARRIER = "Parallel Synchronization and Communication Instructions: mbarrier"
_TENSOR = "Data Movement and Conversion Instructions: cp.async.bulk.tensor"
_WAIT = (
    "{ .reg .pred P; W_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 P, [$0], $1; "
    "@P bra D_${:uid}; bra W_${:uid}; D_${:uid}: }"
)


def _tensor_copies() -> list[InlinePtx]:
    """Loads and stores of rank 1 to 5. Operands of a load: shared address, tensor map, mbarrier, coordinates (innermost
    first); of a store: tensor map, shared address, coordinates.

    The destination of a load is ``.shared::cluster`` (PTX ISA 8.0) or ``.shared::cta`` (8.6): ptxas for sm_120a turns
    the first into a call and then ignores setmaxnreg (its message C7506), sm_90a takes either."""
    copies = []
    for rank in range(1, 6):
        load_coordinates = ", ".join(f"${3 + axis}" for axis in range(rank))
        store_coordinates = ", ".join(f"${2 + axis}" for axis in range(rank))
        indices = ("i32",) * rank
        copies.append(
            operation(
                f"tma_load_{rank}d_multicast",
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                f".multicast::cluster [$0], [$1, {{{load_coordinates}}}], [$2], ${3 + rank};",
                "r,l,r" + ",r" * rank + ",h",
                ("i32", "i64", "i32", *indices, "i16"),
                _TENSOR,
                Feature.TMA_MULTICAST,
            )
        )
        for space, feature in (("cluster", Feature.TMA), ("cta", Feature.SHARED_CTA_TMA)):
            copies.append(
                operation(
                    f"tma_load_{rank}d_{space}",
                    f"cp.async.bulk.tensor.{rank}d.shared::{space}.global.tile.mbarrier::complete_tx::bytes "
                    f"[$0], [$1, {{{load_coordinates}}}], [$2];",
                    "r,l,r" + ",r" * rank,
                    ("i32", "i64", "i32", *indices),
                    _TENSOR,
                    feature,
                )
            )
        copies.append(
            operation(
                f"tma_store_{rank}d",
                f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{store_coordinates}}}], [$1];",
                "l,r" + ",r" * rank,
                ("i64", "i32", *indices),
                _TENSOR,
                Feature.TMA,
            )
        )
        copies += [
            operation(
                f"tma_reduce_{operator}_{rank}d",
                f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operator}.tile.bulk_group "
                f"[$0, {{{store_coordinates}}}], [$1];",
                "l,r" + ",r" * rank,
                ("i64", "i32", *indices),
                "Data Movement and Conversion Instructions: cp.reduce.async.bulk.tensor",
                Feature.TMA,
            )
            for operator in TMA_REDUCTIONS
        ]
    return copies


def _synchronization() -> list[InlinePtx]:
    bulk = "Data Movement and Conversion Instructions: cp.async.bulk"
    fence = "Parallel Synchronization and Communication Instructions: membar, fence"
    barrier = "Parallel Synchronization and Communication Instructions: bar, barrier"
    dependency = "Parallel Synchronization and Communication Instructions: griddepcontrol"
    return [
        operation("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", "r,n", ("i32", "i32"), _MBARRIER,
                   Feature.MBARRIER, isa=(7, 8)),
        operation("mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", ("i32",), _MBARRIER,
                   Feature.MBARRIER, isa=(7, 8)),
        operation("mbarrier_arrive_expect_tx", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,n",
                   ("i32", "i32"), _MBARRIER, Feature.MBARRIER_EXPECT_TX),
        operation("mbarrier_wait", _WAIT, "r,r", ("i32", "i32"), _MBARRIER, Feature.MBARRIER_TRY_WAIT),
        operation("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", "", (), fence, Feature.TMA),
        operation("fence_proxy_async_shared", "fence.proxy.async.shared::cta;", "", (), fence, Feature.TMA),
        operation("fence_proxy_async_global", "fence.proxy.async.global;", "", (), fence, Feature.TMA),
        operation("bulk_commit_group", "cp.async.bulk.commit_group;", "", (), bulk, Feature.TMA),
        operation("bulk_wait_group", "cp.async.bulk.wait_group $0;", "n", ("i32",), bulk, Feature.TMA),
        operation("bulk_wait_group_read", "cp.async.bulk.wait_group.read $0;", "n", ("i32",), bulk, Feature.TMA),
        operation("prefetch_tensor_map", "prefetch.tensormap [$0];", "l", ("i64",),
                   "Data Movement and Conversion Instructions: prefetch, prefetchu", Feature.TMA),
        operation("bar_sync", "bar.sync $0, $1;", "n,n", ("i32", "i32"), barrier, None),
        operation("bar_sync_all", "bar.sync $0;", "n", ("i32",), barrier, None),
        operation("bar_arrive", "bar.arrive $0, $1;", "n,n", ("i32", "i32"), barrier, None),
        operation("bar_sync_at", "barrier.sync.aligned $0, $1;", "r,n", ("i32", "i32"), barrier, None),
        operation("bar_arrive_at", "barrier.arrive.aligned $0, $1;", "r,n", ("i32", "i32"), barrier, None),
        operation("mbarrier_expect_tx", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", "r,n",
                  ("i32", "i32"), _MBARRIER, Feature.MBARRIER_EXPECT_TX),
        operation("grid_dependency_wait", "griddepcontrol.wait;", "", (), dependency, Feature.GRID_DEPENDENCY),
        operation("launch_dependents", "griddepcontrol.launch_dependents;", "", (), dependency,
                  Feature.GRID_DEPENDENCY),
        operation("trap", "trap;", "", (), "Miscellaneous Instructions: trap", None),
        operation("set_max_registers_inc", "setmaxnreg.inc.sync.aligned.u32 $0;", "n", ("i32",),
                   "Miscellaneous Instructions: setmaxnreg", Feature.SETMAXNREG),
        operation("set_max_registers_dec", "setmaxnreg.dec.sync.aligned.u32 $0;", "n", ("i32",),
                   "Miscellaneous Instructions: setmaxnreg", Feature.SETMAXNREG),
    ]  # fmt: skip


def _approximations() -> list[InlinePtx]:
    """The card's approximate functions. All flush subnormals, as ``fast_math`` says; tanh.approx has no such form."""
    heading = "Floating Point Instructions: "
    one, two = ("float",), ("float", "float")
    table = [
        pure(f"approx_{name}", f"{name}.approx.ftz.f32 $0, $1;", "=f,f", one, heading + name, result="float")
        for name in ("ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt")
    ]
    table.append(
        pure("approx_tanh", "tanh.approx.f32 $0, $1;", "=f,f", one, heading + "tanh", result="float",
              feature=Feature.TANH_APPROX)
    )  # fmt: skip
    # div.full and not div.approx: the latter gives 0 for divisors above 2^126
    table.append(pure("approx_div", "div.full.ftz.f32 $0, $1, $2;", "=f,f,f", two, heading + "div", result="float"))
    return table


def _float8_conversions() -> list[InlinePtx]:
    """Pairs only; the single value sits in the lower byte, which is the *second* source operand."""
    heading = "Data Movement and Conversion Instructions: cvt"
    table = []
    for kind in ("e4m3", "e5m2"):
        table.append(
            pure(f"to_{kind}", f"cvt.rn.satfinite.{kind}x2.f32 $0, $1, $2;", "=h,f,f", ("float", "float"), heading,
                  result="i16", feature=Feature.FP8_CONVERT)
        )  # fmt: skip
        table.append(
            pure(f"from_{kind}", f"cvt.rn.f16x2.{kind}x2 $0, $1;", "=r,h", ("i16",), heading, result="i32",
                  feature=Feature.FP8_CONVERT)
        )  # fmt: skip
    return table


TABLE: dict[str, InlinePtx] = {
    template.name: template
    for template in (
        *_synchronization(),
        *_tensor_copies(),
        *_approximations(),
        *_float8_conversions(),
        *inline_ptx_warps.templates(),
    )
}


def require(writer: FunctionWriter, template: InlinePtx) -> None:
    """VerificationError when the target lacks the template's feature; else notes the PTX ISA that it needs."""
    target = writer.module.target
    if template.feature is not None and not target.has(template.feature):
        raise VerificationError(
            f"{target.name} has no {template.text.split('$')[0].strip(' [')}",
            location=writer.location,
            hint=f"needs a target with {template.feature.name}",
        )
    writer.module.require_template(template)


def write(writer: FunctionWriter, template: InlinePtx, operands: Sequence[str]) -> list[str]:
    """Writes a template with LLVM operand texts; gives the names of its results.

    VerificationError when the target lacks the feature.
    """
    require(writer, template)
    kinds = template.results
    result = template.result if not kinds else kinds[0] if len(kinds) == 1 else writer.module.struct(kinds)
    typed = ", ".join(f"{kind} {text}" for kind, text in zip(template.operands, operands, strict=True))
    effect = "" if template.pure else "sideeffect "
    attributes = "#0" if template.convergent else "#1" if template.pure else "#3" if template.memoryless else "#2"
    text = f'call {result} asm {effect}"{template.text}", "{template.constraints}"({typed}) {attributes}'
    if result == "void":
        writer.line(text)
        return []
    value = writer.register(text) if template.pure else writer.effect(text)
    if len(kinds) < 2:
        return [value]
    return [writer.piece(f"extractvalue {result} {value}, {position}") for position in range(len(kinds))]


def call(writer: FunctionWriter, name: str, *operands: str) -> str:
    """:func:`write` of template ``name`` of the table; gives the result's name, or "" when it has none."""
    results = write(writer, TABLE[name], operands)
    return results[0] if results else ""
