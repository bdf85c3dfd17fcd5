"""What became of a mutant: reported by the checker, shown to be equivalent, or neither.

A mutant that takes away order is *equivalent* when every two conflicting accesses are still ordered without the piece
that was removed. Two kinds of runs show this by the checker's own happens-before order, each under several schedules:

* The mutant itself runs without findings: it ends, with no phase or group left open, and every pair of conflicting
  accesses (with the proxy fences between them) is ordered by what is left.
* The unchanged program runs with the piece *withheld*: the operation still makes everybody wait, so that what happens
  is what the program does, but it delivers no order to the clocks (or only what its weaker form delivers). The clock
  that it would have handed to each participant is then missing at every later access of the participant, and of all
  who learn from it, unless other operations hand over the same before the access that needs it. No finding means that
  there is no such access: each edge that it contributes is implied by others, or orders nothing that conflicts.

The second kind keeps a lucky schedule of the mutant from counting as a proof: there the order in which barriers
complete is that of the program. It must have executed the operation; a piece that never ran is no equivalent. An
arrival on an mbarrier is equivalent when, in the unchanged program, nobody waits for a phase that it arrives in or for
a later one. Other pieces that somebody waits for (counts, bytes, parities) have no such argument: a mutant of them is
reported, or survives. All runs are strict: threads must also keep pace where a wait could otherwise come too late.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from ptxtile.ir import async_copy_ops, cluster_ops, gpu_ops
from ptxtile.ir.program import Program
from ptxtile.records import record
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.machine import Withheld
from ptxtile.sim.check.mutations import Mutant
from ptxtile.sim.check.run import check

if TYPE_CHECKING:
    import torch


ARRIVALS = (gpu_ops.MbarrierArrive, cluster_ops.MbarrierArriveRemote, async_copy_ops.CpAsyncMbarrierArrive)


class Fate(Enum):
    KILLED = "killed"
    EQUIVALENT = "equivalent"
    SURVIVED = "survived"


@record
class Verdict:
    """``finding``: the first one, of a mutant that was killed. ``reason``: of the others."""

    fate: Fate
    reason: str = ""
    finding: Finding | None = None


def judge(
    mutant: Mutant, program: Program, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int | float],
    seeds: range,
) -> Verdict:  # fmt: skip
    """Runs ``mutant`` of ``program`` (which it holds the statements of) until something is found."""
    report = check(mutant.program, tensors, scalars, seeds=seeds, most_findings=1, strict=True)
    if report.findings:
        return Verdict(Fate.KILLED, finding=report.findings[0])
    arrives = isinstance(mutant.original, ARRIVALS) and mutant.changed is None
    if not mutant.only_orders and not arrives:
        return Verdict(Fate.SURVIVED, "somebody waits for it, so that its order cannot be withheld")
    withheld = Withheld(mutant.original, mutant.original if arrives else mutant.changed)
    report = check(program, tensors, scalars, seeds=seeds, most_findings=1, strict=True, withheld=withheld)
    if report.findings:
        return Verdict(Fate.SURVIVED, f"its order is needed, though no run shows it: {report.findings[0].message}")
    if not withheld.executed:
        return Verdict(Fate.SURVIVED, "it never ran")
    if withheld.awaited:
        return Verdict(Fate.SURVIVED, "somebody waits for a phase that it arrives in, or for a later one")
    why = "nobody waited for what it arrives at" if arrives else "without it all conflicting accesses were ordered"
    return Verdict(Fate.EQUIVALENT, f"ran {withheld.executed} times; {why} in {len(seeds)} schedules")
