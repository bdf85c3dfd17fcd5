"""The record that describes one architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ptxtile.errors import TargetError
from ptxtile.records import record
from ptxtile.target.features import Feature

KIB = 1024


@record
class Target:
    """One architecture. The figures come from the CUDA C++ Programming Guide, «Compute Capabilities»: table «Technical
    Specifications per Compute Capability».

    ``minimum_ptx_isa``: first PTX ISA version that knows the architecture (PTX ISA, release notes). ``feature_isa``:
    the features and the first PTX ISA version that has each on this architecture. ``max_shared_bytes``: dynamic plus
    static shared memory of one CTA after opting in; ``static_shared_bytes``: without opting in.
    ``reserved_shared_bytes``: what the system takes from the multiprocessor's shared memory for each CTA.
    ``architecture_specific``: an ``a`` architecture, whose PTX runs on no other."""

    name: str
    compute_capability: tuple[int, int]
    minimum_ptx_isa: tuple[int, int]
    feature_isa: Mapping[Feature, tuple[int, int]] = field(hash=False, repr=False)
    max_shared_bytes: int
    shared_bytes_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    architecture_specific: bool = False
    static_shared_bytes: int = 48 * KIB
    reserved_shared_bytes: int = 1 * KIB
    max_threads: int = 1024
    warp_size: int = 32
    warpgroup_size: int = 128
    registers_per_sm: int = 64 * KIB
    max_registers_per_block: int = 64 * KIB
    max_registers_per_thread: int = 255
    register_allocation_unit: int = (
        256  # registers are given to a warp in units of this many (CUDA occupancy calculator)
    )
    named_barriers: int = 16  # PTX ISA, «bar, barrier»

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset(self.feature_isa)

    def has(self, feature: Feature) -> bool:
        return feature in self.feature_isa

    def isa_of(self, feature: Feature) -> tuple[int, int]:
        """The first PTX ISA version with ``feature`` on this architecture; TargetError when it never has it."""
        if feature not in self.feature_isa:
            raise TargetError(f"{self.name} has no {feature.name}: {feature.value}")
        return max(self.feature_isa[feature], self.minimum_ptx_isa)

    def __str__(self) -> str:
        return self.name
