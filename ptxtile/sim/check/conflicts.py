"""A conflict in the shadow of memory as a finding: what happens, who and where, and what would order it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxtile.ir.statements import Statement
from ptxtile.sim.check.clocks import WARP, Engine
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.naming import agent_in_words, describe_byte
from ptxtile.sim.check.shadow import AFTER_WRITE, OTHER_STORAGE, UNWRITTEN, Actors, Conflict, Kind, Shadow

if TYPE_CHECKING:
    from ptxtile.sim.check.watch import Watch


def describe_conflict(
    watch: Watch, shadow: Shadow, conflict: Conflict, statement: Statement, name: str, actors: Actors, kind: Kind
) -> Finding:
    """``shadow`` tells which memory it is; ``name``: the storage or tensor that ``statement`` names."""
    me = int(actors.agents[conflict.access])
    place = describe_byte(watch.group, name, conflict.byte)
    subject = agent_in_words(watch, me)
    site = watch.global_shadows.sites[conflict.site]
    other = None if site is None else site.location
    if conflict.what == UNWRITTEN:
        hint = "write it first, or load it; a tail that a guard leaves out has to be filled, too"
        return Finding(
            "uninitialised", f"{subject} reads {place}, which nobody has written", (statement.location,), hint
        )
    if conflict.what == OTHER_STORAGE:
        message = f"{subject} reads {place}, which nobody has written: there lies what was written to "
        message += watch.storage_name(conflict.other) + ", whose memory it shares"
        return Finding("uninitialised", message, (statement.location, other), "write it before it is read")
    earlier = "written" if conflict.what == AFTER_WRITE else "read"
    verb = "writes" if kind in (Kind.WRITE, Kind.ATOMIC_WRITE, Kind.REDUCTION) else "reads"
    if name in watch.group.facts.barriers:
        verb, earlier = "uses", "initialised" if earlier == "written" else "used"
    message = f"{subject} {verb} {place}, which was {earlier} by "
    message += agent_in_words(watch, conflict.other) + ": "
    locations = (statement.location, other)
    if is_known(watch, actors, conflict):
        hint = _fence_hint(watch, conflict.other, shadow)
        return Finding("missing fence", message + "no proxy fence between", locations, hint)
    return Finding("race", message + "nothing orders the two", locations, _order_hint(watch, me, conflict))


def is_known(watch: Watch, actors: Actors, conflict: Conflict) -> bool:
    """Whether the order is there, and only a fence is missing."""
    if conflict.other < 0:
        return False
    thread = int(actors.threads[conflict.access])
    known = int(actors.state[actors.rows[conflict.access], 0, conflict.other])
    if thread >= 0 and watch.clocks.owner[conflict.other] == thread:
        known = max(known, watch.clocks.known(thread, conflict.other))
    return known >= conflict.time


def _fence_hint(watch: Watch, other: int, shadow: Shadow) -> str:
    if any(shadow is known for known in watch.shared):
        return "put T.fence_proxy_async() behind the earlier accesses, before the barrier that hands the memory over"
    if watch.clocks.engine_of(other)[0] is Engine.BULK_WRITE:
        return "fence.proxy.async.global is missing between the full wait for the TMA store and this access"
    return "fence.proxy.async.global is missing between the write and the barrier"


def _order_hint(watch: Watch, me: int, conflict: Conflict) -> str:
    """What the earlier side lacks, by the engine that made it."""
    if conflict.other < 0:
        return "CTAs of a grid run in any order: give each its own part, use atomic operations, or another kernel"
    clocks = watch.clocks
    engine, other = clocks.engine_of(conflict.other)
    later, number = clocks.engine_of(me)
    if engine is Engine.TMA_LOAD:
        return f"wait for {watch.group.mbarrier_name(other // clocks.ctas)} before the access, in the right parity"
    if engine is Engine.BULK_READ:
        return "the thread that issued the store has to wait for it (T.tma_store_wait()), then a barrier follows"
    if engine is Engine.BULK_WRITE:
        return "the thread that issued the store has to wait for its writes (T.tma_store_wait(0, read=False))"
    if engine is Engine.CP_ASYNC:
        return "each thread has to wait for its own copies (cp.async.wait_group), then a barrier follows"
    if later is Engine.TMA_LOAD:
        return (
            "the tile is loaded again too early: arrive on a barrier behind the last use, and let the load wait for it"
        )
    if engine is Engine.WGMMA:
        return "wait for the wgmma group before the memory is released or written"
    if engine is later is Engine.GENERIC and other // WARP == number // WARP:
        return "put T.sync_warp() or T.sync_threads() between"
    return "put T.sync_threads() between, or an arrival behind the first and a wait before the second"
