"""Who waits for whom when nobody can go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.errors import DeadlockError, Location
from ptxtile.ir import async_copy_ops, cluster_ops, gpu_ops, manual_ops
from ptxtile.ir.rewrite import walk
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.mbarriers import CheckedMbarrier
from ptxtile.sim.check.naming import is_several, warps_in_words
from ptxtile.sim.control_flow import Turn, Wait
from ptxtile.sim.rules.barriers import BarrierWait
from ptxtile.sim.rules.mbarriers import MbarrierWaiting

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedGroup, CheckedThreads

_ARRIVALS = (
    gpu_ops.MbarrierArrive, gpu_ops.MbarrierArriveExpectTx, async_copy_ops.CpAsyncMbarrierArrive,
    cluster_ops.MbarrierArriveRemote,
)  # fmt: skip
_BYTES = (gpu_ops.TmaLoad,)
HINT = "each wait needs its arrivals: compare the counts, and look for an arrival that a branch or a loop leaves out"


def describe_deadlock(group: CheckedGroup, error: DeadlockError) -> Finding:
    """The wait-for report: who is blocked, the barrier, the phase that it expects, who has arrived and who could.
    Threads of a CTA that wait for the same are one line."""
    together: dict[tuple[int, str, str], tuple[list[np.ndarray], Location | None]] = {}
    for threads, wait in sorted(group.waiting, key=lambda item: item[0].key):
        for leaf in _leaves(wait):
            for text in _describe(threads, leaf):
                place = "" if leaf.location is None else f"; the wait is at {leaf.location}"
                key = threads.cta or 0, threads.name, text + place
                together.setdefault(key, ([], leaf.location))[0].append(threads.numbers(threads.everyone))
    lines = []
    for (_, _, text), (numbers, _) in together.items():
        who = np.concatenate(numbers)
        lines.append(f"  {warps_in_words(group.watch, who)} {'wait' if is_several(who) else 'waits'} {text}")
    known = tuple(dict.fromkeys(place for _, place in together.values() if place is not None))
    first = error.message.split("\n")[0].removeprefix("deadlock: ")
    message = "\n".join([first, *lines]) if lines else error.message.removeprefix("deadlock: ")
    return Finding("deadlock", message, known or (error.location,), HINT)


def _at(location: Location | None) -> str:
    return "" if location is None else f" at {location}"


def _leaves(wait: Wait) -> Iterator[Wait]:
    parts = getattr(wait, "waits", None)
    if parts is None:
        yield wait
    else:
        for part in parts:
            yield from _leaves(part)


def _describe(threads: CheckedThreads, wait: Wait) -> Iterator[str]:
    """What threads wait for, and why it does not come."""
    if isinstance(wait, MbarrierWaiting):
        for mbarrier, parity, waiting in wait.parts:
            if waiting[threads.cta or 0]:
                assert isinstance(mbarrier, CheckedMbarrier)
                yield _mbarrier(threads, mbarrier, parity)
    elif isinstance(wait, BarrierWait):
        yield _named_barrier(threads, wait)
    elif isinstance(wait, Turn):
        yield "for memory to change, in a loop: what it looks for never comes"
    else:
        yield from (line.split(" waits ", 1)[-1] for line in wait.describe())


def _mbarrier(threads: CheckedThreads, mbarrier: CheckedMbarrier, parity: int) -> str:
    group, cta = threads.group, threads.cta or 0
    phase, count = int(mbarrier.phase[cta]), int(mbarrier.arrivals[cta])
    missing, bytes_ = int(mbarrier.pending[cta]), int(mbarrier.transactions[cta])
    text = f"for {mbarrier.name} with parity {parity}: in phase {phase} (parity {phase & 1}) "
    came = ", ".join(f"{n} of warp {w % group.clocks.warps_of_cta}" for w, n in sorted(mbarrier.arrived[cta].items()))
    text += f"{count - missing} of {count} arrivals came" + (f" ({came})" if came else "") + f", {missing} missing"
    if bytes_ > 0:
        text += f"; {bytes_} bytes are still expected"
    elif bytes_ < 0:
        text += f"; {-bytes_} bytes more came than were expected"
    why = _wrong_phase(threads, mbarrier, parity)
    if why:
        return f"{text}; {why}"
    kinds = (_ARRIVALS if missing else ()) + (_BYTES if bytes_ else ())
    could = list(dict.fromkeys(_sources(group, mbarrier.name.split("[")[0], kinds)))
    return text + (f"; could arrive: {'; '.join(could)}" if could else "; nothing in the kernel arrives there")


def _wrong_phase(threads: CheckedThreads, mbarrier: CheckedMbarrier, parity: int) -> str:
    """Whether they wait for a parity that they have seen already, or came when it had passed."""
    cta = threads.cta or 0
    seen, phase = int(mbarrier.seen[threads.numbers(threads.everyone)].max()), int(mbarrier.phase[cta])
    if seen > 0 and seen & 1 != parity:
        return f"they have seen phase {seen - 1}, which had that parity, complete before: phase {seen} has the other"
    first = max(seen, parity)  # who has seen n phases complete waits for number n, and a first wait tells it by parity
    if first < phase:
        return f"they came when phase {first}, for which they wait, and phase {phase - 1} were over"
    return ""


def _sources(group: CheckedGroup, barrier: str, kinds: tuple[type, ...]) -> Iterator[str]:
    """Operations that arrive on a barrier or bring it bytes: the role and the line, and what that role does now."""
    for role, node in _with_roles(group):
        if isinstance(node, kinds) and node.barrier.name == barrier:
            what = "the loads" if isinstance(node, _BYTES) else "an arrival"
            yield f"{what} of {role or 'the kernel'}{_at(node.location)} ({_state(group, role)})"


def _with_roles(group: CheckedGroup) -> Iterator[tuple[str, Any]]:
    inside = {id(node): role.name for role in group.facts.roles for node in walk(role.body)}
    for node in walk(group.context.kernel.body):
        yield inside.get(id(node), ""), node


def _state(group: CheckedGroup, role: str) -> str:
    blocked = any(not role or threads.name == role for threads, _ in group.waiting)
    return "blocked" if blocked else "ended"


def _named_barrier(threads: CheckedThreads, wait: BarrierWait) -> str:
    group, cta, op = threads.group, threads.cta or 0, wait.op
    arrived, awaited = int(wait.barrier.arrived[cta]), int(wait.barrier.awaited[cta])
    kind = "bar.sync" if isinstance(op, gpu_ops.BarSync) else "bar.red"
    here = [t.numbers(t.everyone) for t, w in group.waiting if _is_at(w, op.id) and (t.cta or 0) == cta]
    names = warps_in_words(group.watch, np.sort(np.concatenate(here)))
    others = {role or "the kernel" for role, node in _with_roles(group) if _uses(node, op.id)}
    return (
        f"at {kind} {op.id} for {op.threads} threads: {arrived} arrived ({names}), {awaited - arrived} missing; "
        f"could arrive: {', '.join(sorted(others))}"
    )


def _is_at(wait: Wait, number: int) -> bool:
    return any(isinstance(leaf, BarrierWait) and leaf.op.id == number for leaf in _leaves(wait))


def _uses(node: Any, number: int) -> bool:
    return isinstance(node, (gpu_ops.BarSync, manual_ops.BarReduce, manual_ops.BarArrive)) and node.id == number
