"""``kernel.check`` with CUDA tensors: they are copied to the CPU with their overlaps, and left alone."""

from __future__ import annotations

import torch

from ptxtile.checked_calls import on_cpu
from tests.sim.check.test_interface import reversed_rows


def test_the_same_report_as_on_the_cpu() -> None:
    a, b = torch.randn(4, 64, device="cuda"), torch.full((4, 64), 7.0, device="cuda")
    before = a.clone()
    assert reversed_rows.check(a, b).clean
    report = reversed_rows.check(a, b, racy=True)
    assert "race" in {finding.rule for finding in report.findings}
    assert torch.equal(a, before) and (b == 7).all()


def test_copies_keep_places_and_overlaps() -> None:
    whole = torch.arange(100.0, device="cuda")
    tensors = {"even": whole[::2], "tail": whole[60:], "other": torch.ones(3, device="cuda")}
    copies = on_cpu(tensors)
    for name, tensor in tensors.items():
        assert copies[name].device.type == "cpu" and torch.equal(copies[name], tensor.cpu())
        assert copies[name].stride() == tensor.stride() and copies[name].storage_offset() == tensor.storage_offset()
    copies["tail"][0] = -1  # element 60 of both
    assert copies["even"][30] == -1 and whole[60] == 60
