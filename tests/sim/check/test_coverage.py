"""Every kind of fault that the checker knows has a pair of programs here."""

from __future__ import annotations

from tests.sim.check import test_atomics, test_clusters, test_generic, test_mbarriers, test_proxies, test_tensor_cores
from tests.sim.check.faults import Pair

TABLES = (
    test_generic.RACES, test_generic.UNWRITTEN, test_generic.BOUNDS, test_generic.MEETINGS, test_proxies.FENCES,
    test_proxies.TMA, test_proxies.STORES, test_proxies.COPIES, test_mbarriers.COUNTS, test_mbarriers.PARITIES,
    test_tensor_cores.PAIRS, test_clusters.PAIRS, test_atomics.PAIRS,
)  # fmt: skip


def test_every_rule_has_a_pair() -> None:
    from ptxtile.sim.check.findings import RULES

    pairs: list[Pair] = [pair for table in TABLES for pair in table.values()]
    assert {pair.rule for pair in pairs} == set(RULES)


def test_each_text_makes_two_programs() -> None:
    """Whose difference is a line or a few."""
    for table in TABLES:
        for name, pair in table.items():
            lines = pair.text.splitlines()
            changed = [line for line in lines if "# right" in line or "# wrong" in line]
            assert 1 <= len(changed) <= 6, name
