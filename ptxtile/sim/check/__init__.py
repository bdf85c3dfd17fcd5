"""The checker: races, missing waits and fences, and deadlocks of a lowered program, found on the CPU."""

from __future__ import annotations

from ptxtile.sim.check.findings import Finding, Report

__all__ = ["Finding", "Report"]
