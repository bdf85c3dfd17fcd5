"""Every inline-PTX text that the emitter can write, in one table.

LLVM has no model of these instructions. ``convergent`` marks those whose meaning depends on which threads of a warp
or CTA run them together; without it LLVM may copy them into both arms of a branch. ``pure`` marks those that only
compute. Constant operands are constraint ``n``. ``section`` is the heading in the PTX ISA manual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxtile.errors import VerificationError
from ptxtile.target import Feature

if TYPE_CHECKING:
    from ptxtile.nvvm.function import FunctionWriter


@dataclass(frozen=True, slots=True)
class InlinePtx:
    """``text`` with operands $0, $1…; ``constraints`` of LLVM, one for the result (if any) and each operand;
    ``operands`` are LLVM types; ``isa``: the PTX ISA version of this spelling, where it is newer than the feature
    itself."""

    name: str
    text: str
    constraints: str
    operands: tuple[str, ...]
    section: str
    result: str = "void"
    convergent: bool = False
    pure: bool = False
    feature: Feature | None = None
    isa: tuple[int, int] = (7, 0)


def _operation(
    name: str,
    text: str,
    constraints: str,
    operands: tuple[str, ...],
    section: str,
    feature: Feature | None,
    *,
    isa: tuple[int, int] = (7, 0),
    convergent: bool = True,
) -> InlinePtx:
    """An operation with effects: the compiler must keep memory accesses on their side of it."""
    clobber = "~{memory}" if not constraints else constraints + ",~{memory}"
    return InlinePtx(name, text, clobber, operands, section, convergent=convergent, feature=feature, isa=isa)


def _pure(name: str, text: str, constraints: str, operands: tuple[str, ...], section: str, **more) -> InlinePtx:
    return InlinePtx(name, text, constraints, operands, section, pure=True, **more)


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
        for space, feature in (("cluster", Feature.TMA), ("cta", Feature.SHARED_CTA_TMA)):
            copies.append(
                _operation(
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
            _operation(
                f"tma_store_{rank}d",
                f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{store_coordinates}}}], [$1];",
                "l,r" + ",r" * rank,
                ("i64", "i32", *indices),
                _TENSOR,
                Feature.TMA,
            )
        )
    return copies


def _synchronization() -> list[InlinePtx]:
    bulk = "Data Movement and Conversion Instructions: cp.async.bulk"
    fence = "Parallel Synchronization and Communication Instructions: membar, fence"
    barrier = "Parallel Synchronization and Communication Instructions: bar, barrier"
    return [
        _operation("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", "r,n", ("i32", "i32"), _MBARRIER,
                   Feature.MBARRIER, isa=(7, 8)),
        _operation("mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", ("i32",), _MBARRIER,
                   Feature.MBARRIER, isa=(7, 8)),
        _operation("mbarrier_arrive_expect_tx", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,n",
                   ("i32", "i32"), _MBARRIER, Feature.MBARRIER_EXPECT_TX),
        _operation("mbarrier_wait", _WAIT, "r,r", ("i32", "i32"), _MBARRIER, Feature.MBARRIER_TRY_WAIT),
        _operation("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", "", (), fence, Feature.TMA),
        _operation("fence_proxy_async_shared", "fence.proxy.async.shared::cta;", "", (), fence, Feature.TMA),
        _operation("fence_proxy_async_global", "fence.proxy.async.global;", "", (), fence, Feature.TMA),
        _operation("bulk_commit_group", "cp.async.bulk.commit_group;", "", (), bulk, Feature.TMA),
        _operation("bulk_wait_group", "cp.async.bulk.wait_group $0;", "n", ("i32",), bulk, Feature.TMA),
        _operation("bulk_wait_group_read", "cp.async.bulk.wait_group.read $0;", "n", ("i32",), bulk, Feature.TMA),
        _operation("prefetch_tensor_map", "prefetch.tensormap [$0];", "l", ("i64",),
                   "Data Movement and Conversion Instructions: prefetch, prefetchu", Feature.TMA),
        _operation("bar_sync", "bar.sync $0, $1;", "n,n", ("i32", "i32"), barrier, None),
        _operation("bar_sync_all", "bar.sync $0;", "n", ("i32",), barrier, None),
        _operation("set_max_registers_inc", "setmaxnreg.inc.sync.aligned.u32 $0;", "n", ("i32",),
                   "Miscellaneous Instructions: setmaxnreg", Feature.SETMAXNREG),
        _operation("set_max_registers_dec", "setmaxnreg.dec.sync.aligned.u32 $0;", "n", ("i32",),
                   "Miscellaneous Instructions: setmaxnreg", Feature.SETMAXNREG),
    ]  # fmt: skip


def _approximations() -> list[InlinePtx]:
    """The card's approximate functions. All flush subnormals, as ``fast_math`` says; tanh.approx has no such form."""
    heading = "Floating Point Instructions: "
    one, two = ("float",), ("float", "float")
    table = [
        _pure(f"approx_{name}", f"{name}.approx.ftz.f32 $0, $1;", "=f,f", one, heading + name, result="float")
        for name in ("ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt")
    ]
    table.append(
        _pure("approx_tanh", "tanh.approx.f32 $0, $1;", "=f,f", one, heading + "tanh", result="float",
              feature=Feature.TANH_APPROX)
    )  # fmt: skip
    # div.full and not div.approx: the latter gives 0 for divisors above 2^126
    table.append(_pure("approx_div", "div.full.ftz.f32 $0, $1, $2;", "=f,f,f", two, heading + "div", result="float"))
    return table


def _float8_conversions() -> list[InlinePtx]:
    """Pairs only; the single value sits in the lower byte, which is the *second* source operand."""
    heading = "Data Movement and Conversion Instructions: cvt"
    table = []
    for kind in ("e4m3", "e5m2"):
        table.append(
            _pure(f"to_{kind}", f"cvt.rn.satfinite.{kind}x2.f32 $0, $1, $2;", "=h,f,f", ("float", "float"), heading,
                  result="i16", feature=Feature.FP8_CONVERT)
        )  # fmt: skip
        table.append(
            _pure(f"from_{kind}", f"cvt.rn.f16x2.{kind}x2 $0, $1;", "=r,h", ("i16",), heading, result="i32",
                  feature=Feature.FP8_CONVERT)
        )  # fmt: skip
    return table


TABLE: dict[str, InlinePtx] = {
    template.name: template
    for template in (*_synchronization(), *_tensor_copies(), *_approximations(), *_float8_conversions())
}


def call(writer: FunctionWriter, name: str, *operands: str) -> str:
    """Writes template ``name`` with LLVM operand texts; gives the result's name, or "" when it has none.

    VerificationError when the target lacks the feature.
    """
    template = TABLE[name]
    target = writer.module.target
    if template.feature is not None and not target.has(template.feature):
        raise VerificationError(
            f"{target.name} has no {template.text.split('$')[0].strip(' [')}",
            location=writer.location,
            hint=f"needs a target with {template.feature.name}",
        )
    writer.module.require_template(template)
    typed = ", ".join(f"{kind} {text}" for kind, text in zip(template.operands, operands, strict=True))
    effect = "" if template.pure else "sideeffect "
    attributes = "#0" if template.convergent else "#1" if template.pure else "#2"
    text = f'call {template.result} asm {effect}"{template.text}", "{template.constraints}"({typed}) {attributes}'
    if template.result == "void":
        writer.line(text)
        return ""
    return writer.register(text) if template.pure else writer.effect(text)
