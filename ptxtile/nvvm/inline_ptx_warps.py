"""Templates of cp.async, clusters, wgmma's synchronization and the exchanges within a warp; a part of the table in
:mod:`ptxtile.nvvm.inline_ptx`."""

from __future__ import annotations

from ptxtile.nvvm.ptx_template import InlinePtx, operation
from ptxtile.target import Feature

_COPY = "Data Movement and Conversion Instructions: cp.async"
_MBARRIER = "Parallel Synchronization and Communication Instructions: mbarrier"
_CLUSTER = "Parallel Synchronization and Communication Instructions: barrier.cluster"
_WGMMA = "Asynchronous Warpgroup Level Matrix Instructions: wgmma"


def templates() -> list[InlinePtx]:
    return [*_copies(), *_clusters(), *_warps(), *_matrices()]


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
    found = []
    for mode, spelling in (("idx", "idx"), ("xor", "bfly"), ("up", "up"), ("down", "down")):
        text = f"shfl.sync.{spelling}.b32 $0, $1, $2, $3, -1;"
        found.append(operation(f"shuffle_{mode}", text, "=r,r,r,n", ("i32",) * 3, shuffle, None, result="i32"))
    for mode in ("any", "all"):
        text = f"{{ .reg .pred P; setp.ne.b32 P, $1, 0; vote.sync.{mode}.pred P, P, -1; selp.b32 $0, 1, 0, P; }}"
        found.append(operation(f"vote_{mode}", text, "=r,r", ("i32",), vote, None, result="i32"))
    ballot = "{ .reg .pred P; setp.ne.b32 P, $1, 0; vote.sync.ballot.b32 $0, P, -1; }"
    elect = "{ .reg .pred P; elect.sync _|P, -1; selp.b32 $0, 1, 0, P; }"
    return [
        *found,
        operation("vote_ballot", ballot, "=r,r", ("i32",), vote, None, result="i32"),
        operation("sync_warp", "bar.warp.sync -1;", "", (),
                  "Parallel Synchronization and Communication Instructions: bar.warp.sync", None),
        operation("elect_one", elect, "=r", (), "Parallel Synchronization and Communication Instructions: elect.sync",
                  Feature.ELECT, result="i32"),
    ]  # fmt: skip


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
