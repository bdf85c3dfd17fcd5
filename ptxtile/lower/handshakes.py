"""How the producer learns that the tiles of a group of loads may be filled again."""

from __future__ import annotations

from typing import Any

from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import buffers_of, contains, walk
from ptxtile.ir.statements import Allocate, Break, Continue, For, LoopKind, Seq, Statement, View, While
from ptxtile.lower.cluster_place import Multicast
from ptxtile.lower.ring_releases import Release, arrival_unit
from ptxtile.lower.tma_groups import LoadGroup, Phase, make_phase
from ptxtile.records import record


@record
class Handshake:
    """Of one group.

    ``credit``: the first round needs no permission and the consumers release right after their last use in the loop
    body. Otherwise the consumers grant each round just before they wait for it. ``release``: who arrives.
    ``stages``: versions of the group's tiles.
    """

    free: Phase
    credit: bool
    release: Release
    stages: int = 1


def find_handshakes(kernel: Kernel, groups: list[LoadGroup], multicasts: dict[int, Multicast]) -> dict[int, Handshake]:
    """The groups whose buffers are touched before (in program order or around a loop) they are loaded.

    A group directly in a loop body whose buffers nobody else touches gives credit; any other shape asks for a grant.
    """
    result: dict[int, Handshake] = {}
    for group in groups:
        names = {buffer.storage.name for buffer in group.buffers}
        alone = not any(
            names & {b.storage.name for b in other.buffers} for other in groups if other.number != group.number
        )
        credit = alone and _used_only_in_own_loop(kernel.body, group, names)
        if not group.in_loop and alone and not _touched_before(kernel.body, group, names):
            continue
        name = f"{kernel.name}_free_phase_{group.number}"
        stages = _stages_around(kernel.body, group) if credit else 1
        release = Release(kernel.thread, arrival_unit(kernel.body, names), multicasts.get(group.number))
        phase = make_phase(name, group.in_loop, start=1 if credit else 0)
        result[group.number] = Handshake(phase, credit, release, stages)
    return result


def _stages_around(body: Statement, group: LoadGroup) -> int:
    """Stages of the pipelined loop that the group stands in; 1 when its tiles have other views, which have no
    versions."""
    names = {buffer.storage.name for buffer in group.buffers}
    if any(node.buffer.storage.name in names for node in walk(body, View)):
        return 1
    loops = [node for node in walk(body, For) if any(n is group.copies[0] for n in walk(node))]
    return stages_of(loops[-1]) if loops else 1


def _touched_before(body: Statement, group: LoadGroup, names: set[str]) -> bool:
    """Whether anything that comes before the group in program order touches its storages."""
    for node in walk(body):
        if node is group.copies[0]:
            return False
        if node in group.copies:
            continue
        if any(buffer.storage.name in names for buffer in buffers_of(node)) and not _is_allocation(node):
            return True
    return False


def _is_allocation(node: Any) -> bool:
    return isinstance(node, (Allocate, View))


def _used_only_in_own_loop(body: Statement, group: LoadGroup, names: set[str]) -> bool:
    """The group stands directly in the Seq of a loop body, and its storages are used only after it in that Seq."""
    for node in walk(body):
        if not isinstance(node, (For, While)) or not isinstance(node.body, Seq):
            continue
        statements = node.body.statements
        if not any(statement is group.copies[0] for statement in statements):
            continue
        inside = sum(1 for _ in _uses(node, names))
        first = next(k for k, statement in enumerate(statements) if statement is group.copies[0])
        after = sum(1 for statement in statements[first:] for _ in _uses(statement, names))
        total = sum(1 for _ in _uses(body, names))
        leaves_early = contains(node.body, Break, Continue)
        return inside == after == total and not leaves_early
    return False


def _uses(node: Any, names: set[str]) -> Any:
    for inner in walk(node):
        if not _is_allocation(inner) and any(buffer.storage.name in names for buffer in buffers_of(inner)):
            yield inner


def stages_of(loop: For) -> int:
    """``num_stages`` of a T.Pipelined loop; 1 for any other."""
    stages = loop.option("num_stages") if loop.kind is LoopKind.PIPELINED else None
    return stages if isinstance(stages, int) and stages > 1 else 1
