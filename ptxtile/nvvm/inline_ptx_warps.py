"""Templates of cp.async, clusters, wgmma's synchronization, the exchanges within a warp, and the barriers that count or
span the grid; a part of the table in :mod:`ptxtile.nvvm.inline_ptx`."""

from __future__ import annotations

from ptxtile.nvvm.ptx_template import InlinePtx, operation
from ptxtile.target import Feature

_COPY = "Data Movement and Conversion Instructions: cp.async"
_MBARRIER = "Parallel Synchronization and Communication Instructions: mbarrier"
_CLUSTER = "Parallel Synchronization and Communication Instructions: barrier.cluster"
_WGMMA = "Asynchronous Warpgroup Level Matrix Instructions: wgmma"


def templates() -> list[InlinePtx]:
    return [*_copies(), *_clusters(), *_warps(), *_barriers(), *_matrices()]


def _copies() -> list[InlinePtx]:
    """The destination's address, the source's, the number of bytes read where it is not all."""
    found = []
    for cache, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        text = f"cp.async.{cache}.shared.global [$0], [$1], {size}"
        found.append(operation(f"cp_async_{cache}_{size}", f"{text};", "r,l", ("i32", "i64"), _COPY, Feature.CP_ASYNC))
        found.append(
            operation(f"cp_async_{cache}_{size}_sized", f"{text}, $2;", "r,l,r", ("i32", "i64", "i32"), _COPY,
                      Feature.CP_ASYNC)
        )  # fmt: skip
    return [
        *found,
        operation("cp_async_commit_group", "cp.async.commit_group;", "", (), _COPY, Feature.CP_ASYNC),
        operation("cp_async_wait_group", "cp.async.wait_group $0;", "n", ("i32",), _COPY, Feature.CP_ASYNC),
        operation("cp_async_mbarrier_arrive", "cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", ("i32",),
                  _MBARRIER, Feature.CP_ASYNC),
    ]  # fmt: skip


def _clusters() -> list[InlinePtx]:
    """Arrivals of the default scope, the CTA's: those of the cluster's scope cost a third of a GEMM's speed."""
    remote = "{ .reg .b32 R; mapa.shared::cluster.u32 R, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [R]; }"
    found = [
        operation("mbarrier_arrive_remote", remote, "r,r", ("i32", "i32"), _MBARRIER, Feature.CLUSTER, isa=(8, 0)),
    ]
    for suffix, spelling in (("", ""), ("_aligned", ".aligned")):
        arrive, wait = f"barrier.cluster.arrive.release{spelling};", f"barrier.cluster.wait.acquire{spelling};"
        found.append(operation(f"cluster_arrive{suffix}", arrive, "", (), _CLUSTER, Feature.CLUSTER, isa=(8, 0)))
        found.append(operation(f"cluster_wait{suffix}", wait, "", (), _CLUSTER, Feature.CLUSTER, isa=(8, 0)))
    return found


def _warps() -> list[InlinePtx]:
    shuffle = "Data Movement and Conversion Instructions: shfl.sync"
    vote = "Parallel Synchronization and Communication Instructions: vote.sync"
    match = "Parallel Synchronization and Communication Instructions: match.sync"
    found = []
    for mode, spelling in (("idx", "idx"), ("xor", "bfly"), ("up", "up"), ("down", "down")):
        text = f"shfl.sync.{spelling}.b32 $0, $1, $2, $3, $4;"
        found.append(operation(f"shuffle_{mode}", text, "=r,r,r,n,r", ("i32",) * 4, shuffle, None, result="i32"))
    for mode in ("any", "all"):
        text = f"{{ .reg .pred P; setp.ne.b32 P, $1, 0; vote.sync.{mode}.pred P, P, $2; selp.b32 $0, 1, 0, P; }}"
        found.append(operation(f"vote_{mode}", text, "=r,r,r", ("i32",) * 2, vote, None, result="i32"))
    for bits, constraint in ((32, "r"), (64, "l")):
        any_text, all_text = f"match.any.sync.b{bits} $0, $1, $2;", f"match.all.sync.b{bits} $0, $1, $2;"
        for mode, text in (("any", any_text), ("all", all_text)):
            found.append(operation(f"match_{mode}_{bits}", text, f"=r,{constraint},r", (f"i{bits}", "i32"),
                                   match, None, result="i32"))  # fmt: skip
    ballot = "{ .reg .pred P; setp.ne.b32 P, $1, 0; vote.sync.ballot.b32 $0, P, $2; }"
    elect = "{ .reg .pred P; elect.sync _|P, -1; selp.b32 $0, 1, 0, P; }"
    return [
        *found,
        operation("vote_ballot", ballot, "=r,r,r", ("i32",) * 2, vote, None, result="i32"),
        operation("active_mask", "activemask.b32 $0;", "=r", (),
                  "Parallel Synchronization and Communication Instructions: activemask", None, result="i32"),
        operation("sync_warp", "bar.warp.sync $0;", "r", ("i32",),
                  "Parallel Synchronization and Communication Instructions: bar.warp.sync", None),
        operation("elect_one", elect, "=r", (), "Parallel Synchronization and Communication Instructions: elect.sync",
                  Feature.ELECT, result="i32"),
    ]  # fmt: skip


_GRID_SYNC = (
    "{ .reg .pred P, Q, F; .reg .b32 T, N, X, O, V; .reg .b64 A; "
    "mov.u32 T, %tid.x; setp.ne.u32 P, T, 0; @P bra D_${:uid}; "
    "mov.u32 N, %nctaid.x; mov.u32 X, %nctaid.y; mul.lo.u32 N, N, X; mov.u32 X, %nctaid.z; mul.lo.u32 N, N, X; "
    "mov.u32 X, %ctaid.x; mov.u32 V, %ctaid.y; or.b32 X, X, V; mov.u32 V, %ctaid.z; or.b32 X, X, V; "
    "setp.eq.u32 F, X, 0; sub.u32 N, 0x80000001, N; selp.u32 N, N, 1, F; "
    "mov.b64 A, {%envreg2, %envreg1}; atom.add.release.gpu.u32 O, [A+4], N; "
    "W_${:uid}: ld.acquire.gpu.u32 V, [A+4]; xor.b32 V, V, O; setp.ge.s32 Q, V, 0; @Q bra W_${:uid}; D_${:uid}: }"
)
"""Thread 0 of each CTA: the first CTA adds 2³¹ less the number of the others, those add 1; so the highest bit of the
counter changes when all have come, and what is below it is 0 again (see :class:`ptxtile.ir.manual_ops.GridSync`)."""


def _barriers() -> list[InlinePtx]:
    heading = "Parallel Synchronization and Communication Instructions: bar, barrier"
    found = [operation("grid_sync", _GRID_SYNC, "", (), heading, None)]
    for mode in ("popc", "and", "or"):
        for suffix, count in (("", "$2, $3"), ("_all", "$2")):
            start = "{ .reg .pred P; setp.ne.b32 P, $1, 0; "
            text = f"bar.red.{mode}.pred P, {count}, P; selp.b32 $0, 1, 0, P; }}"
            if mode == "popc":
                text = f"bar.red.popc.u32 $0, {count}, P; }}"
            numbers = 1 if suffix else 2
            found.append(
                operation(f"bar_reduce_{mode}{suffix}", start + text, "=r,r" + ",n" * numbers,
                          ("i32",) * (1 + numbers), heading, None, result="i32")
            )  # fmt: skip
    return found


def _matrices() -> list[InlinePtx]:
    """stmatrix; what has results or operands of many kinds is made in :mod:`ptxtile.nvvm.matrix_ptx`."""
    found = []
    for count in (1, 2, 4):
        for suffix, spelling in (("", ""), ("_transposed", ".trans")):
            registers = ", ".join(f"${1 + position}" for position in range(count))
            text = f"stmatrix.sync.aligned.m8n8.x{count}{spelling}.shared.b16 [$0], {{{registers}}};"
            found.append(
                operation(f"store_matrix_{count}{suffix}", text, "r" + ",r" * count, ("i32",) * (1 + count),
                          "Warp Level Matrix Instructions: stmatrix", Feature.STMATRIX)
            )  # fmt: skip
    return found
